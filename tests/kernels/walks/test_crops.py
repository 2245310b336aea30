"""Crops along walks: the Triton kernel equals the readable function to the bit."""

from itertools import product

import pytest
import torch

from gtmsm.kernels.operator import forced
from gtmsm.kernels.walks.crops import crops

SHAPES = [  # n, time, channels, size, side
    (1, 1, 1, 3, 3),
    (2, 5, 3, 16, 8),
    (3, 4, 3, 9, 5),
    (7, 1, 2, 8, 1),
    (2, 2, 3, 40, 24),
    (0, 3, 3, 8, 4),
    (2, 0, 3, 8, 4),
]


def views(n, time, channels, size, side, stride=1, margin=0):
    generator = torch.Generator().manual_seed(100 * n + time)
    images = torch.randint(256, (4, channels, size, size), generator=generator, dtype=torch.uint8)
    corner = torch.randint((size - margin - side) // stride + 1, (n, time, 2), generator=generator)
    return images, torch.randint(4, (n,), generator=generator), corner, side, stride, margin


def by_triton(device, *inputs):
    """On a CPU again: PyTorch divides with another rounding on a GPU."""
    with forced("cuda"):
        return crops(*(x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs)).cpu()


@pytest.mark.parametrize(("stride", "margin"), [(1, 0), (3, 1)])
def test_a_crop_is_cut_where_its_corner_says(stride, margin):
    images, image, corner, side, *_ = inputs = views(3, 4, 3, 20, 6, stride, margin)
    frames = crops(*inputs)
    for i, t in product(range(3), range(4)):
        top, left = (margin + stride * corner[i, t]).tolist()
        by_hand = images[image[i], :, top : top + side, left : left + side].float() / 255
        assert torch.equal(frames[i, t], by_hand)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("stride", "margin"), [(1, 0), (2, 0)])
def test_the_triton_crops_equal_the_others_to_the_bit(shape, stride, margin, triton_device):
    inputs = views(*shape, stride, margin)
    assert torch.equal(by_triton(triton_device, *inputs), crops.readable(*inputs))


def test_every_byte_becomes_the_same_number_on_every_device(triton_device):
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    nowhere = torch.zeros(1, 1, 2, dtype=torch.long)
    frame = by_triton(triton_device, images, torch.zeros(1, dtype=torch.long), nowhere, 16)
    assert torch.equal(frame.flatten(), torch.arange(256.0) / 255)


def test_images_and_corners_may_be_strided_and_expanded(triton_device):
    images, image, corner, side, *_ = views(1, 3, 3, 12, 4)
    inputs = images.transpose(2, 3)[:, 1:], image.expand(2), corner.flip(2).expand(2, 3, 2)[:, ::2].int(), side
    assert torch.equal(by_triton(triton_device, *inputs), crops.readable(*inputs))
    one = images[:1].expand(4, 3, 12, 12)
    assert torch.equal(by_triton(triton_device, one, *inputs[1:]), crops.readable(one, *inputs[1:]))

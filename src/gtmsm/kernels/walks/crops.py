"""What is seen through a window that moves over an image."""

from jaxtyping import Float32, Int, UInt8
from torch import Tensor

from gtmsm.kernels.choice import choose
from gtmsm.kernels.walks import crops_cpu


def crops_by_windows(
    images: UInt8[Tensor, "images channel height width"],
    image: Int[Tensor, "n"],
    corner: Int[Tensor, "n time 2"],
    side: int,
    stride: int = 1,
    margin: int = 0,
) -> Float32[Tensor, "n time channel side side"]:
    """The readable twin: one gather among all windows of all images, which share their pixels."""
    windows = images[..., margin:, margin:].unfold(2, side, stride).unfold(3, side, stride).permute(0, 2, 3, 1, 4, 5)
    return windows[image[:, None], corner[..., 0], corner[..., 1]].float().div_(255)


def crops(
    images: UInt8[Tensor, "images channel height width"],
    image: Int[Tensor, "n"],
    corner: Int[Tensor, "n time 2"],
    side: int,
    stride: int = 1,
    margin: int = 0,
) -> Float32[Tensor, "n time channel side side"]:
    """Squares of `side` pixels of each `image`, in [0, 1], by the fastest twin for where the tensors are.

    A corner is the row and column of a square's first pixel, counted in strides from the margin.
    """
    height, width = ((size - margin - side) // stride + 1 for size in images.shape[2:])
    twin = choose(images, cpu=0 < height * width <= corner.shape[1], triton=True)
    if twin == "cpu":
        return crops_cpu.cut(images, image, corner, side, stride, margin)
    if twin == "triton":
        from gtmsm.kernels.walks import crops_triton

        return crops_triton.cut(images, image, corner, side, stride, margin)
    return crops_by_windows(images, image, corner, side, stride, margin)

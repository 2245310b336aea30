"""Crops along long walks on a CPU, against one gather among all windows, in the same run."""

import torch

from gtmsm.kernels.walks.crops import crops

WALKS, STEPS, CELLS, SIDE, STRIDE = 32, 288, 9, 8, 3  # those of an update of `image-walk-small`
AT_LEAST = 2


def test_crops_of_long_walks_are_several_times_faster(compare):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4_000, 3, 32, 32), generator=generator, dtype=torch.uint8)
    image = torch.randint(len(images), (WALKS,), generator=generator)
    given = images, image, torch.randint(CELLS, (WALKS, STEPS, 2), generator=generator), SIDE, STRIDE, 0
    assert torch.equal(crops(*given), crops.readable(*given))
    compare(
        f"crops of {WALKS} walks of {STEPS} steps", "among all windows",
        lambda: crops.readable(*given), lambda: crops(*given), AT_LEAST, tries=10,
    )  # fmt: skip

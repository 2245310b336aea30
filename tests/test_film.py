"""A walk as a video."""

import torch

from gtmsm.film import BLANK, paint


def test_a_later_crop_lies_on_top_of_an_earlier_one():
    crops = torch.stack([torch.full((3, 2, 2), 0.25), torch.full((3, 2, 2), 0.75)])
    canvas = paint(crops, torch.tensor([[0, 0], [1, 1]]), size=4)
    first = [[0.25, 0.25, BLANK, BLANK]] * 2 + [[BLANK] * 4] * 2
    torch.testing.assert_close(canvas[0, 0], torch.tensor(first))
    expected = [[0.25, 0.25, BLANK, BLANK], [0.25, 0.75, 0.75, BLANK], [BLANK, 0.75, 0.75, BLANK], [BLANK] * 4]
    torch.testing.assert_close(canvas[1, 0], torch.tensor(expected))


def test_crops_cut_from_a_picture_paint_that_picture():
    picture = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0))
    corners = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    crops = torch.stack([picture[:, r : r + 2, c : c + 2] for r, c in corners.tolist()])
    assert torch.equal(paint(crops, corners, size=5)[-1], picture)

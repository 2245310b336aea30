"""What the metrics say about pictures, places and maps."""

import math
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from skimage.metrics import structural_similarity

from gtmsm.errors import InputError
from gtmsm.evaluation import metrics


def frames(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_a_frame_off_by_a_tenth_everywhere_has_mse_of_a_hundredth_and_20_db():
    truth = frames(2, 3, 3, 8, 8) * 0.9
    mse = metrics.frame_mse(truth, truth + 0.1)
    assert mse.shape == (2, 3)
    torch.testing.assert_close(metrics.psnr(mse), torch.full((2, 3), 20.0))


def test_an_exact_copy_has_the_capped_psnr():
    truth = frames(1, 2, 3, 8, 8)
    assert metrics.psnr(metrics.frame_mse(truth, truth)).tolist() == [[metrics.PSNR_CAP] * 2]
    assert metrics.psnr_pooled(torch.zeros(4)) == metrics.PSNR_CAP


def test_pooled_and_per_frame_psnr_differ_as_their_definitions_do():
    mse = torch.tensor([[0.1, 0.001]])
    assert metrics.psnr_pooled(mse) == pytest.approx(-10 * math.log10(0.0505))
    assert metrics.psnr_frames(mse) == pytest.approx(20.0)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20))
def test_the_mean_of_psnrs_is_never_below_the_psnr_of_the_mean(errors: list[float]):
    mse = torch.tensor(errors, dtype=torch.float64)
    assert metrics.psnr_frames(mse) >= metrics.psnr_pooled(mse) - 1e-9


def test_a_mask_chooses_which_frames_count():
    mse = torch.tensor([[0.1, 0.01], [0.5, 0.01]])
    chosen = torch.tensor([[False, True], [False, True]])
    assert metrics.psnr_pooled(mse, chosen) == pytest.approx(20.0, abs=1e-5)
    assert metrics.psnr_frames(mse, chosen) == pytest.approx(20.0, abs=1e-5)


def test_no_frame_at_all_has_no_psnr():
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert metrics.psnr_pooled(torch.ones(2, 3), nothing) is None
    assert metrics.psnr_frames(torch.ones(2, 3), nothing) is None


def test_the_curve_over_steps_pools_the_batch():
    mse = torch.tensor([[0.1, 0.02], [0.1, 0.0]])
    assert metrics.psnr_by_step(mse) == pytest.approx([10.0, 20.0], abs=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (7, 7), (9, 14), (32, 20), (5, 6), (3, 8)])
@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_agrees_with_scikit_image(size: tuple[int, int], channels: int):
    truth = frames(2, 3, channels, *size)
    guess = (truth + 0.2 * frames(2, 3, channels, *size, seed=1)).clamp(0, 1)
    window = max(n for n in (3, 5, 7) if n <= min(size))
    expected = [
        structural_similarity(
            x.numpy(), y.numpy(), win_size=window, data_range=1.0, channel_axis=0, use_sample_covariance=False
        )
        for x, y in zip(truth.double().flatten(0, 1), guess.double().flatten(0, 1), strict=True)
    ]
    assert metrics.ssim(truth, guess).flatten().tolist() == pytest.approx(expected, abs=1e-4)


def test_ssim_of_a_copy_is_one():
    truth = frames(1, 4, 3, 8, 8)
    torch.testing.assert_close(metrics.ssim(truth, truth), torch.ones(1, 4))


def test_ssim_does_not_depend_on_how_frames_are_portioned(monkeypatch: pytest.MonkeyPatch):
    truth, guess = frames(3, 5, 3, 8, 8), frames(3, 5, 3, 8, 8, seed=1)
    whole = metrics.ssim(truth, guess)
    monkeypatch.setattr(metrics, "VALUES_AT_ONCE", 4 * 3 * 8 * 8)
    torch.testing.assert_close(metrics.ssim(truth, guess), whole)


def test_ssim_refuses_films_of_different_length():
    with pytest.raises((InputError, TypeCheckError), match=r"differ in shape: \(1, 2|guess"):
        metrics.ssim(frames(1, 2, 3, 8, 8), frames(1, 3, 3, 8, 8))


def test_ssim_of_many_small_frames_takes_seconds():
    truth = frames(20, 256, 3, 8, 8)
    begin = time.perf_counter()
    metrics.ssim(truth, truth)
    assert time.perf_counter() - begin < 5  # a fifth of 100 clips; about 0.5 s on one idle core


def test_a_step_is_revisited_only_where_the_very_place_was_memorised():
    pose = torch.tensor([[[0.0, 0], [0, 1], [0, 1], [1, 1], [0, 0]]])
    assert metrics.revisited(pose, 2).tolist() == [[True, False, True]]


def test_a_place_first_seen_while_predicting_is_not_revisited():
    pose = torch.tensor([[[0.0, 0], [5, 5], [5, 5]]])
    assert metrics.revisited(pose, 1).tolist() == [[False, False]]


def test_another_clip_of_the_batch_does_not_make_a_place_known():
    pose = torch.tensor([[[0.0, 0], [1, 1]], [[1.0, 1], [1, 1]]])
    assert metrics.revisited(pose, 1).tolist() == [[False], [True]]


def test_a_hit_is_an_entry_recorded_at_the_present_place():
    pose = torch.tensor([[[0.0, 0], [0, 1], [0, 1], [0, 0]]])
    assert metrics.hits(pose, 2, torch.tensor([[1, 1]])).tolist() == [[True, False]]


def test_nothing_hits_at_a_place_that_was_never_memorised():
    pose = frames(3, 12, 2)
    retrieved = torch.randint(8, (3, 4), generator=torch.Generator().manual_seed(0))
    assert not metrics.hits(pose, 8, retrieved).any()


def test_a_share_by_step_counts_only_the_masked_and_is_none_where_there_are_none():
    value = torch.tensor([[True, True, True], [False, False, True]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert metrics.by_step(value, mask) == [0.5, 1.0, None]


def test_without_a_mask_a_share_by_step_counts_everyone():
    assert metrics.by_step(torch.tensor([[True, False], [True, True]])) == [1.0, 0.5]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_an_exact_affine_map_is_found_and_has_r2_of_one(seed: int):
    generator = torch.Generator().manual_seed(seed)
    true = torch.randn(4, 30, 2, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(2, 2, generator=generator, dtype=torch.float64)).Q
    inferred = 0.1 * true @ turn + 3
    fit = metrics.affine_fit(inferred, true)
    assert fit.r2 == pytest.approx(1)
    torch.testing.assert_close(fit(inferred), true)


def test_r2_pools_the_axes_and_does_not_average_them():
    # The first axis (variance 100) is explained, the second (variance 1) is not.
    true = torch.tensor([[10.0, 1], [10, -1], [-10, 1], [-10, -1]])
    inferred = true * torch.tensor([1.0, 0])
    assert metrics.affine_fit(inferred, true).r2 == pytest.approx(100 / 101)


def test_positions_unrelated_to_the_truth_have_r2_near_zero():
    assert metrics.affine_fit(frames(5000, 2), frames(5000, 2, seed=1)).r2 == pytest.approx(0, abs=0.01)


def test_a_collapsed_pose_explains_nothing():
    assert metrics.affine_fit(torch.ones(50, 2), frames(50, 2)).r2 == pytest.approx(0, abs=1e-9)


def test_an_agent_that_never_moved_leaves_nothing_to_explain():
    assert metrics.affine_fit(frames(50, 2), torch.ones(50, 2)).r2 == 0.0


def test_a_diverged_pose_is_refused():
    with pytest.raises(InputError, match="diverged"):
        metrics.affine_fit(torch.tensor([[0.0, torch.nan], [1, 1]]), torch.zeros(2, 2))


def test_steps_before_the_first_hit_are_those_that_nothing_went_before():
    hit = torch.tensor([[0, 0, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    assert metrics.before_first(hit).int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]


def test_a_share_of_nothing_is_none():
    value, mask = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    assert metrics.share(value, mask) == 0.5
    assert metrics.share(value, torch.zeros(3, dtype=torch.bool)) is None


def test_positions_taken_as_they_are_explain_less_than_after_a_fit():
    true = torch.randn(4, 9, 2, generator=torch.Generator().manual_seed(0))
    assert metrics.explained(true, true) == pytest.approx(1)
    assert metrics.explained(true + 3, true) < 0
    assert metrics.affine_fit(true + 3, true).r2 == pytest.approx(1)
    assert metrics.explained(true, torch.zeros_like(true)) == 0, "who never moved explains nothing"

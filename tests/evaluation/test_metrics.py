"""What the metrics say about pictures, places and maps."""

import math

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


def late(mse: torch.Tensor) -> float:
    """The mean PSNR of the late steps, as the table has it."""
    curve = metrics.psnr_by_step(mse)[metrics.late_steps(mse.shape[1])]
    return sum(curve) / len(curve)


@pytest.mark.parametrize("horizon", [1, 12, 256])
def test_contributions_of_clips_add_up_to_the_late_psnr(horizon: int):
    mse = frames(9, horizon).square() + 1e-4
    assert metrics.psnr_late_by_clip(mse).mean().item() == pytest.approx(late(mse))
    copied = torch.zeros(9, horizon)
    assert metrics.psnr_late_by_clip(copied).tolist() == [metrics.PSNR_CAP] * 9


def test_differences_of_contributions_have_the_spread_that_leaving_out_clips_shows():
    """The jackknife, which knows nothing of derivatives, over clips that are hard for both models or for neither."""
    hard = frames(200, 1) + 0.05
    ours, theirs = (hard * (0.5 + frames(200, 64, seed=seed)) for seed in (1, 2))
    keep = ~torch.eye(200, dtype=torch.bool)
    gaps = torch.tensor([late(ours[some]) - late(theirs[some]) for some in keep])
    jackknife = (199 / 200 * (gaps - gaps.mean()).square().sum()).sqrt().item()
    by_clip, alone = (metrics.psnr_late_by_clip(mse) for mse in (ours, theirs))
    paired = (by_clip - alone).std().item() / 200**0.5
    assert paired == pytest.approx(jackknife, rel=0.05)
    assert paired < 0.5 * by_clip.std().item() / 200**0.5  # what a comparison gains by the same clips


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


def test_ssim_compares_many_small_frames_at_once(monkeypatch: pytest.MonkeyPatch):
    portions, compare = list[int](), metrics._ssim
    monkeypatch.setattr(metrics, "_ssim", lambda x, y, window: portions.append(len(x)) or compare(x, y, window))
    truth = frames(20, 256, 3, 8, 8)
    metrics.ssim(truth, truth)
    assert sum(portions) == 20 * 256 and len(portions) < 5


def test_a_rate_by_step_counts_only_the_masked_and_is_none_where_there_are_none():
    value = torch.tensor([[True, True, True], [False, False, True]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert metrics.by_step(value, mask) == [0.5, 1.0, None]


def test_without_a_mask_a_rate_by_step_counts_everything():
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


def test_a_mean_of_nothing_is_none():
    value, mask = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    assert metrics.mean_where(value, mask) == 0.5
    assert metrics.mean_where(value, torch.zeros(3, dtype=torch.bool)) is None


def test_positions_taken_as_they_are_explain_less_than_after_a_fit():
    true = torch.randn(4, 9, 2, generator=torch.Generator().manual_seed(0))
    assert metrics.explained(true, true) == pytest.approx(1)
    assert metrics.explained(true + 3, true) < 0
    assert metrics.affine_fit(true + 3, true).r2 == pytest.approx(1)
    assert metrics.explained(true, torch.zeros_like(true)) == 0, "who never moved explains nothing"


def test_a_run_converged_where_retrieval_and_r2_reach_their_bars():
    reached = {"retrieval_revisited": 0.995, "pose_r2": 0.999}
    assert metrics.converged(reached) is True
    assert metrics.converged(reached | {"pose_r2": 0.98}) is False
    assert metrics.converged(reached | {"retrieval_revisited": None}) is False
    assert metrics.converged({"heading_error": 0.1}) is None


def test_where_steps_can_fail_convergence_is_judged_at_steps_that_can_be_known():
    after_obstacles = {"retrieval_revisited": 0.5, "pose_r2": 0.6, "psnr_unhindered": 24.0}
    known = {"retrieval_unhindered": 0.995, "pose_r2_unhindered": 0.999}
    assert metrics.converged(after_obstacles | known) is True
    assert metrics.converged(after_obstacles | known | {"retrieval_unhindered": 0.9}) is False
    assert metrics.converged(after_obstacles | {"converged": False}) is None, "scores of version 0.1 do not tell"

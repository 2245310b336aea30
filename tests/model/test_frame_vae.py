"""One frame to a code and back."""

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Bernoulli, Normal

from gtmsm.errors import InputError
from gtmsm.model.frame_vae import FrameVAE, FrameVAEConfig, patch_grid

FRAMES = [(3, 8, 8), (1, 4, 12), (3, 32, 32)]


def coder(frame=(3, 8, 8), **settings):
    torch.manual_seed(0)
    return FrameVAE(FrameVAEConfig(**{"width": 16, "code_size": 5, **settings}), frame).double()


def frames(*shape, seed=1):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def seeded():
    return torch.Generator().manual_seed(3)


def codes(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,)])
def test_a_frame_of_any_size_becomes_a_code_and_a_code_a_frame(frame, kind, lead):
    vae = coder(frame, coder=kind)
    q = vae.encode(frames(*lead, *frame))
    assert q.mean.shape == q.log_var.shape == (*lead, 5)
    assert vae.decode(codes(*lead, 5)).shape == (*lead, *frame)
    assert vae.log_likelihood(frames(*lead, *frame), vae.logits(codes(*lead, 5))).shape == lead


@pytest.mark.parametrize("frame", [(3, 5, 7), (1, 1, 1), (4, 9, 3)])
def test_the_dense_coder_takes_odd_frames(frame):
    vae = coder(frame)
    assert vae.encode(frames(2, *frame)).mean.shape == (2, 5)
    assert vae.decode(codes(2, 5)).shape == (2, *frame)


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_frames_are_coded_one_by_one(kind):
    vae, x, z = coder(coder=kind), frames(2, 3, 3, 8, 8), codes(2, 3, 5)
    torch.testing.assert_close(vae.encode(x).mean[1, 2], vae.encode(x[1, 2]).mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(vae.encode(x).log_var[1, 2], vae.encode(x[1, 2]).log_var, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(vae.decode(z)[0, 1], vae.decode(z[0, 1]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_some_frames_of_a_batch_may_be_coded(kind):
    vae, x, rows = coder(coder=kind), frames(4, 3, 8, 8), torch.tensor([3, 0, 3])
    assert torch.equal(vae.encode(x, rows).mean, vae.encode(x[rows]).mean)


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_decoded_pixels_are_between_black_and_white(kind):
    x = coder(coder=kind).decode(100 * codes(50, 5))
    assert x.min() >= 0 and x.max() <= 1


@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("log_sigma", [-3.0, -1.5, 0.4])
def test_the_gaussian_likelihood_is_that_of_every_pixel_summed(kind, log_sigma):
    vae, x, z = coder(coder=kind), frames(2, 3, 3, 8, 8), codes(2, 3, 5)
    with torch.no_grad():
        vae.log_sigma.fill_(log_sigma)
    expected = Normal(vae.decode(z), vae.log_sigma.exp()).log_prob(x).sum((-3, -2, -1))
    torch.testing.assert_close(vae.log_likelihood(x, vae.logits(z)), expected, rtol=1e-10, atol=1e-9)


def test_the_bernoulli_likelihood_is_that_of_every_pixel_summed():
    vae, x, z = coder(likelihood="bernoulli"), frames(2, 3, 3, 8, 8).round(), codes(2, 3, 5)
    expected = Bernoulli(vae.decode(z)).log_prob(x).sum((-3, -2, -1))
    torch.testing.assert_close(vae.log_likelihood(x, vae.logits(z)), expected, rtol=1e-10, atol=1e-9)


def test_the_bernoulli_likelihood_of_grey_pixels_is_their_cross_entropy():
    vae, x, z = coder(likelihood="bernoulli"), frames(2, 3, 3, 8, 8), codes(2, 3, 5)
    expected = -F.binary_cross_entropy(vae.decode(z), x, reduction="none").sum((-3, -2, -1))
    torch.testing.assert_close(vae.log_likelihood(x, vae.logits(z)), expected, rtol=1e-10, atol=1e-9)


def test_a_bernoulli_frame_has_no_sigma_to_learn():
    assert "log_sigma" in dict(coder().named_parameters())
    assert "log_sigma" not in dict(coder(likelihood="bernoulli").named_parameters())


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_a_code_far_out_keeps_the_likelihood_and_its_gradient_finite(likelihood):
    vae, z = coder(likelihood=likelihood), (1e4 * codes(3, 5)).requires_grad_()
    log_likelihood = vae.log_likelihood(frames(3, 3, 8, 8), vae.logits(z))
    log_likelihood.sum().backward()
    assert torch.isfinite(log_likelihood).all() and torch.isfinite(z.grad).all()


def test_an_overshooting_encoder_stays_within_bounds():
    q = coder().encode(1e6 * frames(4, 3, 8, 8))
    assert q.log_var.min() >= -10 and q.log_var.max() <= 4


@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_every_weight_feels_how_a_frame_is_coded_and_decoded(kind, likelihood):
    vae, x = coder(coder=kind, likelihood=likelihood), frames(4, 3, 8, 8)
    q = vae.encode(x)
    (vae.log_likelihood(x, vae.logits(q.sample(seeded()))).sum() + q.log_prob(codes(4, 5)).sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in vae.parameters())


@pytest.mark.parametrize("size", [(6, 8), (8, 10), (7, 7)])
def test_the_conv_coder_refuses_what_cannot_be_halved_twice(size):
    height, width = size
    with pytest.raises(InputError, match=f"{height}x{width} does not divide by 4; use coder dense"):
        coder((3, *size), coder="conv")


# ---- a code for every patch


def spatial(frame=(3, 32, 32), **settings):
    return coder(frame, **{"coder": "spatial", "code_size": 128, **settings})


@pytest.mark.parametrize(("frame", "size"), [((3, 32, 32), 64), ((3, 32, 32), 256), ((1, 8, 12), 18), ((3, 4, 4), 1)])
@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_a_spatial_code_has_the_size_asked_for(frame, size, lead):
    vae = spatial(frame, code_size=size)
    q = vae.encode(frames(*lead, *frame))
    assert q.mean.shape == q.log_var.shape == (*lead, size)
    assert vae.decode(q.mean).shape == (*lead, *frame)


def test_with_patches_twice_as_wide_a_frame_of_64_pixels_has_as_many_codes_as_one_of_32_has():
    fine, coarse = spatial(code_size=256), spatial((3, 64, 64), code_size=512, patch=8)
    q = coarse.encode(frames(2, 3, 64, 64))
    assert q.mean.shape == (2, 512) and coarse.decode(q.mean).shape == (2, 3, 64, 64)
    for vae, frame, each in ((fine, (3, 32, 32), 4), (coarse, (3, 64, 64), 8)):
        assert patch_grid(frame, vae.settings.patch) == (8, 8)
        assert vae.decoder[0].unflattened_size == (each, 8, 8)


def learned(vae):
    """Weights that are not zero, as they are at first where a shortcut does it all."""
    with torch.no_grad():
        for p in vae.parameters():
            p.add_(0.05 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(p.numel())))
    return vae


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 5), (7, 1)])
@pytest.mark.parametrize("patch", [4, 8])
def test_at_first_a_patch_is_known_to_its_neighbours_alone(row, column, patch):
    side = 8 * patch
    vae, x = spatial((3, side, side), patch=patch), frames(1, 3, side, side)
    changed = x.clone()
    changed[..., patch * row : patch * (row + 1), patch * column : patch * (column + 1)] += 0.5
    one, other = (vae.encode(frame).mean.view(2, 8, 8) for frame in (x, changed))
    around = torch.zeros(8, 8, dtype=torch.bool)
    around[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = True
    assert torch.equal((one != other).any(0), around)


def test_a_patch_far_away_is_never_known():
    vae, x = learned(spatial((3, 48, 48), code_size=288)), frames(1, 3, 48, 48)
    changed = x.clone()
    changed[..., :4, :4] = 1 - changed[..., :4, :4]
    touched = (vae.encode(x).mean != vae.encode(changed).mean).view(2, 12, 12).any(0)
    assert touched[0, 0]
    assert not touched[8:].any() and not touched[:, 8:].any()


def test_a_patch_is_painted_by_the_codes_around_it():
    vae, z = learned(spatial((3, 48, 48), code_size=288)), codes(1, 288)
    changed = z.clone()
    changed.view(1, 2, 12, 12)[..., 0, 0] += 1
    touched = (vae.decode(z) != vae.decode(changed))[0].any(0)
    assert touched[:4, :4].all()
    assert not touched[36:].any() and not touched[:, 36:].any()


@pytest.mark.parametrize("patch", [4, 8])
def test_every_weight_of_the_spatial_coder_feels_how_a_frame_is_coded_and_decoded(patch):
    vae, x = learned(spatial(patch=patch)), frames(2, 3, 32, 32)
    q = vae.encode(x)
    (vae.log_likelihood(x, vae.logits(q.sample(seeded()))).sum() + q.log_var.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in vae.parameters())


@pytest.mark.parametrize(
    ("frame", "size", "said"),
    [
        ((3, 30, 32), 64, "30x32 does not divide by 4; use frames whose sides do, such as 32x32"),
        ((3, 32, 32), 100, "code_size is 100; a spatial code of 8x8 patches needs a multiple of 64"),
        ((3, 32, 32), 16, "needs a multiple of 64"),
        ((3, 2, 2), 16, "2x2 does not divide by 4; use frames whose sides do"),
    ],
)
def test_the_spatial_coder_refuses_what_has_no_patches(frame, size, said):
    with pytest.raises(InputError, match=said):
        spatial(frame, code_size=size)


@pytest.mark.parametrize(
    ("side", "size", "said"),
    [
        (36, 64, "36x36 does not divide by 8; use frames whose sides do, such as 64x64, or patch 4"),
        (64, 256 + 1, "code_size is 257; a spatial code of 8x8 patches needs a multiple of 64"),
    ],
)
def test_patches_of_8_pixels_refuse_other_frames_in_one_line(side, size, said):
    with pytest.raises(InputError, match=said) as refused:
        spatial((3, side, side), code_size=size, patch=8)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["dense", "conv", "spatial"])
def test_codes_are_float32_under_autocast(kind):
    vae, x = learned(coder(coder=kind, code_size=16)).float(), frames(3, 3, 8, 8).float()
    with torch.autocast("cpu", torch.bfloat16):
        q = vae.encode(x)
    for part in (q.mean, q.log_var):
        assert part.dtype == torch.float32
        assert (part != part.bfloat16()).any(), "codes were rounded to bfloat16"


@pytest.mark.parametrize("kind", ["dense", "conv", "spatial"])
def test_autocast_hardly_changes_codes_and_pictures(kind):
    vae, x = learned(coder(coder=kind, code_size=16)).float(), frames(3, 3, 8, 8).float()
    exact = vae.encode(x).mean, vae.error2(x, vae.logits(vae.encode(x).mean))
    with torch.autocast("cpu", torch.bfloat16):
        rough = vae.encode(x).mean, vae.error2(x, vae.logits(vae.encode(x).mean))
    assert rough[1].dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", ["dense", "conv", "spatial"])
def test_frames_that_require_a_gradient_get_one(kind):
    vae, x = learned(coder(coder=kind, code_size=16)), frames(3, 3, 8, 8).requires_grad_()
    vae.encode(x).mean.square().sum().backward()
    assert (x.grad.abs().flatten(1).amax(1) > 0).all()


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_the_error_is_that_of_every_pixel_summed(kind):
    vae, x, z = coder(coder=kind), frames(2, 3, 3, 8, 8), codes(2, 3, 5)
    torch.testing.assert_close(vae.error2(x, vae.logits(z)), (x - vae.decode(z)).square().sum((-3, -2, -1)))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"coder": "xx"}, 'coder is "xx"; choose from dense, conv, spatial'),
        ({"likelihood": "gauss"}, 'likelihood is "gauss"; did you mean "gaussian"?'),
        ({"width": 7}, "width is 7; a coder needs at least 8 units"),
        ({"patch": 16}, "patch is 16; a patch has a side of 4 or 8 pixels: give one of these"),
        ({"code_size": 0}, "code_size is 0; a code needs at least 1 dimension"),
    ],
)
def test_a_coder_nobody_can_build_is_refused(wrong, said, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users do not have types checked
    with pytest.raises(InputError, match=said):
        FrameVAEConfig(**wrong)


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_coding_in_portions_changes_nothing(monkeypatch, kind):
    vae, x = coder(coder=kind), frames(5, 3, 8, 8)
    whole = vae.encode(x).mean, vae.decode(codes(5, 5))
    monkeypatch.setattr("gtmsm.model.frame_vae.AT_ONCE", 2)
    with torch.no_grad():
        torch.testing.assert_close(vae.encode(x).mean, whole[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(vae.decode(codes(5, 5)), whole[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("side", "together"), [(8, [4, 1]), (32, [4, 1]), (64, [1] * 5), (128, [1] * 5)])
def test_fewer_large_frames_are_coded_together(monkeypatch, side, together):
    monkeypatch.setattr("gtmsm.model.frame_vae.AT_ONCE", 4)
    vae, portions = coder((3, side, side)), []
    vae.encoder.register_forward_pre_hook(lambda _, inputs: portions.append(len(inputs[0])))
    with torch.no_grad():
        vae.encode(frames(5, 3, side, side))
    assert portions == together

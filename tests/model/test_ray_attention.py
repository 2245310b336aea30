"""Rays of the view asked for attend to the rays of the views retrieved."""

import math

import pytest
import torch
import torch.nn.functional as F
from twins import assert_equal_twins

from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.kernels.rays.attend import attend
from gtmsm.model import ray_attention, told_views
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.memory import Memory, Neighbours
from gtmsm.model.motion import MotionConfig
from gtmsm.model.ray_attention import RayAttention
from gtmsm.model.recall import RecallConfig, Retrieved
from gtmsm.tensors import Belief, Gaussian

TAU, FUTURE = 9, 5


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def model_of(choice="nearest", neighbours=3):
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(coder="spatial", width=16, code_size=12),
        motion=MotionConfig(kind="turning"),
        recall=RecallConfig(prior="rays", neighbours=neighbours, choice=choice, width=64, layers=2),
    )
    model = WorldModel(settings, (3, 8, 12), action_size=4).double()
    with torch.no_grad():
        model.motion.move.copy_(0.5 * drawn(2, 4, seed=5))
        model.motion.turn.copy_(0.5 * drawn(4, seed=6))
    return model


def walks():
    frames = torch.rand(2, TAU + FUTURE, 3, 8, 12, dtype=torch.float64, generator=seeded(1))
    return frames, drawn(2, TAU + FUTURE, 4, seed=2)


def asked(model, entries=7, k=4):
    """Three queries in each of two memories."""
    code = Gaussian(drawn(2 * entries, 12, seed=1), drawn(2 * entries, 12, seed=2))
    index = torch.stack([torch.randperm(entries, generator=seeded(s))[:k] for s in range(6)]).view(2, 3, k)
    row = index + entries * torch.arange(2).view(2, 1, 1)
    relative = model.motion.place(drawn(2, 3, k, 3, seed=4))
    near = Neighbours(index, relative[..., :2].square().sum(-1))
    return Retrieved(near, code, row, lambda: relative, 1e-4, model.prior.digest(code))


def attention_plainly(attention, x, memory):
    """Heads one by one."""
    (key, value), query = attention.key_value(memory).chunk(2, dim=-1), attention.query(x)
    found = []
    for head in range(x.shape[-1] // ray_attention.HEAD):
        at = slice(head * ray_attention.HEAD, (head + 1) * ray_attention.HEAD)
        weight = (query[..., at] @ key[..., at].mT / ray_attention.HEAD**0.5).softmax(-1)
        found.append(weight @ value[..., at])
    return attention.out(torch.cat(found, dim=-1))


def norm_plainly(norm, x):
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, ray_attention.EPSILON)


def block_plainly(block, x):
    normed = norm_plainly(block.norm, x)
    x = x + attention_plainly(block.attention, normed, normed)
    norm, wide, _, narrow = block.think
    return x + narrow(F.gelu(wide(norm_plainly(norm, x))))


def forecast_plainly(prior, retrieved):
    """Mean and log-variance for every query, each step in the order in which one would tell it."""
    patches = [part.unflatten(-1, (prior.channels, -1)).mT for part in (retrieved.bank.mean, retrieved.bank.log_var)]
    digest = prior.patch(torch.cat([patches[0], 0.1 * patches[1]], dim=-1)) + prior.where_in_view
    for block in prior.within:
        digest = block_plainly(block, digest)
    made = []
    for row, relative in zip(retrieved.row.flatten(0, 1), retrieved.relative.flatten(0, 1), strict=True):
        tokens = digest[row].unflatten(1, prior.grid) + prior.column(prior._columns(relative))[:, None]
        memory = norm_plainly(prior.memory_norm, tokens.flatten(0, 2))
        x = prior.asked
        for ask, think in zip(prior.across, prior.within_asked, strict=True):
            x = block_plainly(think, x + attention_plainly(ask.attention, norm_plainly(ask.norm, x), memory))
        norm, out = prior.out
        made.append(out(norm_plainly(norm, x)))
    mean, log_var = torch.stack(made).unflatten(0, retrieved.row.shape[:2]).chunk(2, dim=-1)
    return mean.mT.flatten(2), log_var.clamp(-8.0, 4.0).mT.flatten(2)


def test_a_forecast_is_what_attention_told_step_by_step_gives():
    model = model_of()
    for i, parameter in enumerate(model.prior.parameters()):
        parameter.data += 0.1 * drawn(*parameter.shape, seed=100 + i)
    retrieved = asked(model)
    code = model.prior(retrieved).code
    told = forecast_plainly(model.prior, retrieved)
    torch.testing.assert_close((code.mean, code.log_var), told, rtol=1e-9, atol=1e-9)


def one_by_one(model, retrieved):
    """Codes of the queries of `asked`, each read by itself."""
    found = []
    for i, j in ((i, j) for i in range(2) for j in range(3)):
        near = Neighbours(
            retrieved.neighbours.index[i, j][None, None], retrieved.neighbours.distance2[i, j][None, None]
        )
        row, relative = retrieved.row[i, j][None, None], retrieved.relative[i, j][None, None]
        code = model.prior(Retrieved(near, retrieved.bank, row, lambda at=relative: at, 1e-4, retrieved.digest)).code
        found.append(code.mean[0, 0])
    return torch.stack(found).view(2, 3, -1)


def test_a_frame_by_itself_is_that_of_a_sequence_whatever_was_read_before(monkeypatch):
    monkeypatch.setattr(told_views, "MOST", 5)  # of 14 views, so that some are forgotten and read again
    model = model_of()
    for i, parameter in enumerate(model.prior.parameters()):
        parameter.data += 0.1 * drawn(*parameter.shape, seed=100 + i)
    with torch.no_grad():
        retrieved = asked(model)
        expected = model.prior(retrieved).code.mean
        for _ in range(2):
            torch.testing.assert_close(one_by_one(model, retrieved), expected, rtol=1e-9, atol=1e-9)


def test_a_frame_by_itself_is_about_the_same_in_half_precision():
    model, (frames, actions) = model_of().float(), (part[:1].float() for part in walks())
    with torch.no_grad():
        memory, here = model.memorise(frames[:, :TAU], actions[:, :TAU])
        exact = model.imagine(memory, here, actions[:, TAU : TAU + 1]).codes
        with torch.autocast("cpu", torch.bfloat16):
            rough = model.imagine(memory, here, actions[:, TAU : TAU + 1]).codes
        again = model.imagine(memory, here, actions[:, TAU : TAU + 1]).codes
    torch.testing.assert_close(again, exact, rtol=0, atol=1e-6)  # not of what was kept in half precision
    assert 1e-5 < (rough - exact).abs().max() < 0.03 * exact.abs().max()


def test_views_are_told_anew_once_weights_have_changed():
    model = model_of()
    with torch.no_grad():
        retrieved = asked(model)
        before = one_by_one(model, retrieved)
        model.prior.across[0].attention.key_value.weight.mul_(1.5)
        after, expected = one_by_one(model, retrieved), model.prior(retrieved).code.mean
    torch.testing.assert_close(after, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(after, before, rtol=1e-4)


def test_views_that_begin_alike_are_told_apart():
    model = model_of()
    with torch.no_grad():
        one = asked(model)
        one.digest[:, 0] = one.digest[0, 0]
        torch.testing.assert_close(one_by_one(model, one), model.prior(one).code.mean, rtol=1e-9, atol=1e-9)


def test_no_query_gets_no_forecast():
    model = model_of()
    one = asked(model)
    near = Neighbours(one.neighbours.index[:, :0], one.neighbours.distance2[:, :0])
    none = Retrieved(near, one.bank, one.row[:, :0], lambda: one.relative[:, :0], one.delta, one.digest)
    assert model.prior(none).code.mean.shape == (2, 0, 12)


@pytest.mark.parametrize("halved", [(True, False), (False, True), (True, True)])
def test_memories_may_be_made_in_one_precision_and_read_in_another(halved):
    model, (frames, actions) = model_of().float(), (part.float() for part in walks())
    memorising, imagining = (torch.autocast("cpu", torch.bfloat16, enabled=half) for half in halved)
    with torch.no_grad():
        with memorising:
            memory, here = model.memorise(frames[:, :TAU], actions[:, :TAU])
        with imagining:
            rough = model.imagine(memory, here, actions[:, TAU:]).frames
        exact = model.imagine(*model.memorise(frames[:, :TAU], actions[:, :TAU]), actions[:, TAU:]).frames
    torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.05)


@torch.no_grad()
def test_many_views_are_digested_a_few_at_a_time(monkeypatch):
    model = model_of()
    one = asked(model)
    whole, taken = model.prior.digest(one.bank), []
    monkeypatch.setattr("gtmsm.model.ray_attention.VIEWS", 2)
    patches = model.prior._patches
    monkeypatch.setattr(model.prior, "_patches", lambda code: taken.append(len(code)) or patches(code))
    torch.testing.assert_close(model.prior.digest(one.bank), whole)
    assert max(taken) == 2 and sum(taken) == 2 * len(whole)


def test_a_digest_can_be_differentiated_by_functions_of_functions():
    model, code = model_of(), Gaussian(drawn(3, 12, seed=1), drawn(3, 12, seed=2))

    def total(mean):
        return model.prior.digest(Gaussian(mean, code.log_var)).square().sum()

    mean = code.mean.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(total)(code.mean), torch.autograd.grad(total(mean), mean)[0])


def test_a_forecast_has_a_code_for_every_query():
    model = model_of()
    forecast = model.prior(asked(model))
    assert forecast.code.mean.shape == forecast.code.log_var.shape == (2, 3, 12)
    assert forecast.heaviest.shape == (2, 3)


def test_the_order_of_the_views_does_not_matter():
    model, order = model_of(), [2, 0, 3, 1]
    one = asked(model)
    near = Neighbours(one.neighbours.index[..., order], one.neighbours.distance2[..., order])
    other = Retrieved(near, one.bank, one.row[..., order], lambda: one.relative[:, :, order], one.delta, one.digest)
    torch.testing.assert_close(model.prior(one).peak(), model.prior(other).peak(), rtol=1e-9, atol=1e-10)
    assert torch.equal(model.prior(one).heaviest, model.prior(other).heaviest)


def test_what_the_views_are_and_where_they_lie_both_matter():
    model = model_of()
    one = asked(model)
    elsewhere = Retrieved(one.neighbours, one.bank, one.row, lambda: one.relative.roll(1, 2), one.delta, one.digest)
    others = Retrieved(one.neighbours, one.bank, (one.row + 1) % 14, one.find_relative, one.delta, one.digest)
    for changed in (elsewhere, others):
        assert ((model.prior(one).peak() - model.prior(changed).peak()).abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("at_once", [1, 2, 4, 100])
def test_reading_in_portions_is_reading_at_once(monkeypatch, at_once):
    model = model_of()
    one = asked(model)
    whole = model.prior(one).code
    monkeypatch.setattr(ray_attention, "AT_ONCE", at_once)
    with torch.no_grad():
        portions = model.prior(one).code
    torch.testing.assert_close(portions.mean, whole.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(portions.log_var, whole.log_var, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("choice", ["nearest", "visible"])
@pytest.mark.parametrize("neighbours", [3, 0])
def test_training_reads_what_memorising_wrote(choice, neighbours):
    model, (frames, actions) = model_of(choice, neighbours), walks()
    model.motion.noise = 0.0
    memory, here = model.memorise(frames[:, :TAU], actions[:, :TAU])
    assert memory.digest.shape == (2, TAU, 6, 64)
    prior = model.imagine(memory, here, actions[:, TAU:]).prior
    kl = model.vae.encode(frames[:, TAU:]).divergence(prior.code)
    torch.testing.assert_close(model.explain(frames, actions, TAU).kl, kl, rtol=1e-8, atol=1e-8)


def test_memorising_in_two_parts_is_memorising_at_once():
    model, (frames, actions) = model_of(), walks()
    whole, _ = model.memorise(frames, actions)
    memory, here = model.memorise(frames[:, :4], actions[:, :4])
    memory, _ = model.memorise(frames[:, 4:], actions[:, 4:], memory, here)
    torch.testing.assert_close(memory.digest, whole.digest, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("choice", ["nearest", "visible"])
def test_where_the_map_lies_does_not_matter(choice):
    model, (frames, actions) = model_of(choice), walks()
    memory, here = model.memorise(frames[:, :TAU], actions[:, :TAU])
    poses = model.motion.unroll(here.mean, actions[:, TAU:])
    before = model.read(memory, Belief(model.motion.place(poses)))

    turn, (c, s) = 2.1, (math.cos(2.1), math.sin(2.1))

    def moved(place):
        x, y, cos, sin = place.unbind(-1)
        return torch.stack([7 + c * x - s * y, s * x + c * y - 3, c * cos - s * sin, s * cos + c * sin], dim=-1)

    elsewhere = Memory(Belief(moved(memory.place.mean)), memory.code, memory.digest)
    after = model.read(elsewhere, Belief(moved(model.motion.place(poses))))
    turned = torch.cat([poses[..., :2], poses[..., 2:] + turn], -1)
    torch.testing.assert_close(moved(model.motion.place(poses))[..., 2:], model.motion.place(turned)[..., 2:])
    torch.testing.assert_close(after.code.mean, before.code.mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(after.code.log_var, before.code.log_var, rtol=1e-7, atol=1e-8)


def test_the_left_of_a_frame_is_seen_to_the_left():
    prior = RayAttention(RecallConfig(prior="rays", width=64, field_of_view=90.0), 16, (2, 4))
    # Columns of a frame that is 2 wide at a distance of 1: their centres are 3/4 and 1/4 off the middle.
    assert prior.yaw.tolist() == pytest.approx([math.atan(x) for x in (0.75, 0.25, -0.25, -0.75)])


def test_a_view_of_itself_looks_straight_ahead_from_the_origin():
    prior = RayAttention(RecallConfig(prior="rays", width=64, field_of_view=90.0), 16, (2, 4))
    x, y, cos, sin, passing, along = prior._columns(torch.tensor([0.0, 0.0, 1.0, 0.0]))[:, :6].unbind(-1)
    torch.testing.assert_close(torch.atan2(sin, cos), prior.yaw)
    assert not any(part.any() for part in (x, y, passing, along))


def test_features_of_columns_come_in_the_order_that_weights_expect():
    prior = RayAttention(RecallConfig(prior="rays", width=64, field_of_view=90.0), 16, (2, 4)).double()
    x, y, heading = 2.0, -3.0, 0.4
    relative = torch.tensor([[x, y, math.cos(heading), math.sin(heading)]], dtype=torch.float64)
    made = prior._columns(relative)
    assert made.shape == (1, 4, 54)
    for column, yaw in enumerate(prior.yaw.tolist()):
        cos, sin = math.cos(heading + yaw), math.sin(heading + yaw)
        numbers = [x, y, cos, sin, x * sin - y * cos, x * cos + y * sin]
        told = list(numbers)
        for frequency in ray_attention.FREQUENCIES:
            told += [math.sin(frequency * number) for number in numbers]
            told += [math.cos(frequency * number) for number in numbers]
        assert made[0, column].tolist() == pytest.approx(told, abs=1e-9)


def test_features_of_columns_are_rounded_once():
    model, relative = model_of().float(), drawn(5, 4, seed=3).float()
    exact = model.prior._columns(relative)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.prior._columns(relative), exact.bfloat16())


def forecast_and_gradients(model, retrieved):
    code = model.prior(retrieved).code
    weight = uneven(code.mean)
    return [code.mean, *torch.autograd.grad((code.mean * weight).sum(), list(model.prior.parameters()))]


def uneven(x):
    return torch.linspace(-1, 2, x.numel(), dtype=x.dtype, device=x.device).view(x.shape)


def test_kernels_make_the_same_forecast_and_gradients(triton_device):
    model, one = model_of().float().to(triton_device), asked(model_of(), entries=2, k=2)
    code = Gaussian(*(part.float().to(triton_device) for part in (one.bank.mean, one.bank.log_var)))
    near = Neighbours(*(part.to(triton_device) for part in (one.neighbours.index, one.neighbours.distance2)))
    row, relative = one.row.to(triton_device), one.relative.float().to(triton_device)
    made = []
    for implementation in ("cuda", "readable"):
        with forced(implementation):
            digest = model.prior.digest(code)
            made.append(forecast_and_gradients(model, Retrieved(near, code, row, lambda: relative, 1e-4, digest)))
    assert_equal_twins(*made, tolerance=1e-4)


@pytest.mark.parametrize("written", [(True, True, True), (False, False, False), (True, False, True)])
def test_gradients_of_slices_come_back_side_by_side(written):
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, wanted):
            ctx.wanted = wanted
            return 3 * x

        @staticmethod
        def backward(ctx, dy):
            return (3 * dy if ctx.wanted is None else ctx.wanted.copy_(3 * dy)), None

    x, weight = drawn(2, 5, 12).requires_grad_(), drawn(2, 5, 12, seed=1)
    slices = ray_attention._slices(1 * x, 3)
    made = [Tripled.apply(part, wanted if here else None) for (part, wanted), here in zip(slices, written, strict=True)]
    (torch.cat(made, -1) * weight).sum().backward()
    torch.testing.assert_close(x.grad, 3 * weight, rtol=0, atol=0)


def test_attention_writes_gradients_of_slices_where_they_are_wanted(triton_device):
    x, query = (drawn(2, 5, size).float().to(triton_device).requires_grad_() for size in (64, 16))
    with forced("cuda"):
        slices = ray_attention._slices(x, 2)
        found = sum(attend(query, part, 16, wanted).square().sum() for part, wanted in slices)
        (gradient,) = torch.autograd.grad(found, x)
    assert gradient.data_ptr() == slices[0][1].data_ptr()
    plain = sum(attend.readable(query, part, 16).square().sum() for part in x.chunk(2, -1))
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, x)[0])


def test_slices_without_gradients_want_none():
    assert all(wanted is None for _, wanted in ray_attention._slices(drawn(2, 5, 6), 2))


def test_a_forecast_can_be_differentiated_by_functions_of_functions():
    model = model_of()
    one = asked(model)

    def total(relative):
        asking = Retrieved(one.neighbours, one.bank, one.row, lambda: relative, one.delta, one.digest)
        return model.prior(asking).code.mean.square().sum()

    relative = one.relative.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(total)(one.relative), torch.autograd.grad(total(relative), relative)[0])


def test_every_weight_but_none_of_the_geometry_is_learned():
    model, (frames, actions) = model_of(), walks()
    terms = model.explain(frames, actions, TAU, seeded(3))
    (-terms.bound.mean()).backward()
    prior = dict(model.prior.named_parameters())
    assert [name for name, p in prior.items() if p.grad is None or p.grad.abs().max() == 0] == []
    assert model.prior.state_dict().keys() == prior.keys()


def test_poses_get_a_gradient_from_the_forecast():
    model = model_of()
    one = asked(model)
    relative = one.relative.clone().requires_grad_()
    forecast = model.prior(Retrieved(one.neighbours, one.bank, one.row, lambda: relative, one.delta, one.digest))
    forecast.code.mean.square().sum().backward()
    assert (relative.grad.abs().amax(-1) > 0).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"vae": FrameVAEConfig(coder="conv")}, "prior rays needs spatial codes but coder is conv; use coder spatial"),
        ({"motion": MotionConfig(kind="walled")}, "needs an agent with a heading, and a walled motion has none"),
    ],
)
def test_rays_need_patches_and_a_heading(wrong, said):
    fine = {"vae": FrameVAEConfig(coder="spatial", code_size=64), "motion": MotionConfig(kind="turning")}
    with pytest.raises(InputError, match=said):
        WorldModelConfig(**{**fine, **wrong}, recall=RecallConfig(prior="rays"))

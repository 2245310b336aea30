"""Adam in groups: rates, clipping, what is held, and updates that are not finite."""

import pytest
import torch
from torch import nn

from gtmsm.kernels.operator import forced
from gtmsm.training.optimiser import Optimiser, Schedule

SCHEDULE = Schedule(1e-2, 1e-2, 1, 0)


def two_groups(schedule=SCHEDULE, clip_norm=10.0):
    first, second = (nn.Parameter(torch.tensor(value)) for value in ([1.0, -2.0], [0.5]))
    return first, second, Optimiser({"first": [first], "second": [second]}, schedule, clip_norm)


def step(optimiser, loss, *gradients):
    """One update with these gradients."""
    for (parameter, *_), gradient in zip(optimiser.groups.values(), gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    return float(optimiser.step(torch.tensor(loss)))


def test_updates_are_those_of_pytorchs_adam():
    first, second, optimiser = two_groups()
    plain = [nn.Parameter(first.detach().clone()), nn.Parameter(second.detach().clone())]
    adam = torch.optim.Adam(plain, lr=1e-2)
    for gradients in (([0.3, -0.1], [0.2]), ([0.1, 0.4], [-0.5])):
        step(optimiser, 1.0, *gradients)
        for parameter, gradient in zip(plain, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        adam.step()
    torch.testing.assert_close([first, second], plain)


def test_groups_that_are_clipped_together_share_a_norm_and_others_do_not():
    moved = {}
    for together in (("all", "all"), ("one", "other")):
        _, second, optimiser = two_groups(clip_norm=1.0)
        optimiser.pace({"first": 1.0, "second": 1.0}, dict(zip(("first", "second"), together, strict=True)))
        assert step(optimiser, 0.0, [30.0, 40.0], [0.5]) == pytest.approx((2500 + 0.25) ** 0.5)
        moved[together[0]] = optimiser.state(second)["exp_avg"].item()
    assert moved["one"] == pytest.approx(0.1 * 0.5)
    assert moved["all"] == pytest.approx(0.1 * 0.5 / 50, rel=1e-3)


def test_what_is_held_neither_moves_nor_counts_nor_gathers_momentum():
    first, second, optimiser = two_groups(clip_norm=1.0)
    optimiser.pace({"first": 1.0, "second": 0.0}, {"first": "all", "second": "all"})
    assert step(optimiser, 0.0, [0.3, 0.4], [1e6]) == pytest.approx(0.5)
    assert second.item() == 0.5
    assert not any(value.any() for value in optimiser.state(second).values())
    assert optimiser.state(first)["exp_avg"].tolist() == pytest.approx([0.03, 0.04])


@pytest.mark.parametrize("broken", ["loss", "gradient"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_changes_nothing_and_is_remembered(broken, number):
    first, second, optimiser = two_groups()
    step(optimiser, 1.0, [0.3, -0.1], [0.2])
    before = [first.detach().clone(), second.detach().clone()]
    moments = optimiser.state(first)["exp_avg"].clone()
    step(optimiser, number if broken == "loss" else 1.0, [number if broken == "gradient" else 0.1, 0.2], [0.1])
    assert int(optimiser.count) == int(optimiser.first_bad) == 2
    torch.testing.assert_close([first.detach(), second.detach()], before, rtol=0, atol=0)
    torch.testing.assert_close(optimiser.state(first)["exp_avg"], moments, rtol=0, atol=0)
    step(optimiser, 1.0, [0.3, -0.1], [0.2])
    assert int(optimiser.first_bad) == 2 and first[0] != before[0][0]


@pytest.mark.parametrize(("count", "rate"), [(0, 1e-3), (50, 5.5e-4), (100, 1e-4), (500, 1e-4)])
def test_the_rate_falls_linearly_and_stays(count, rate):
    assert float(Schedule(1e-3, 1e-4, 100, 0).rate(torch.tensor(count))) == pytest.approx(rate)


@pytest.mark.parametrize(("count", "share"), [(0, 0.0), (5, 0.5), (10, 1.0), (20, 1.0)])
def test_the_rate_may_rise_first(count, share):
    assert float(Schedule(1e-3, 1e-3, 100, 10).rate(torch.tensor(count))) == pytest.approx(share * 1e-3)


def test_parameters_of_even_sizes_are_aligned():
    """An unaligned weight makes a dense layer on a GPU five times slower."""
    parameters = [nn.Parameter(torch.zeros(size)) for size in (1, 64, 3, 128)]
    Optimiser({"all": parameters}, SCHEDULE, 1.0)
    assert parameters[1].data_ptr() % 16 == parameters[3].data_ptr() % 16 == 0


def test_each_group_learns_at_its_own_rate():
    _, _, optimiser = two_groups()
    optimiser.pace({"first": 1.0, "second": 3.0}, {"first": "all", "second": "all"})
    assert optimiser.rates == pytest.approx({"first": 1e-2, "second": 3e-2})


def test_the_triton_kernel_makes_the_same_updates(triton_device):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(n, generator=generator) for n in (3_000, 5, 1_500, 1_024)]
    gradients = [[torch.randn(part.shape, generator=generator) for part in drawn] for _ in range(4)]
    gradients[2][1][0] = torch.inf
    found = []
    for kind in ("cuda", "readable"):
        parameters = [nn.Parameter(part.clone().to(triton_device)) for part in drawn]
        groups = {"a": parameters[:2], "b": parameters[2:3], "c": parameters[3:]}
        optimiser = Optimiser(groups, Schedule(1e-2, 1e-3, 3, 2), 20.0)
        optimiser.pace({"a": 1.0, "b": 2.0, "c": 0.0}, {"a": "one", "b": "other", "c": "one"})
        norms = []
        for given in gradients:
            for parameter, gradient in zip(parameters, given, strict=True):
                parameter.grad = gradient.clone().to(triton_device)
            with forced(kind):
                norms.append(optimiser.step(torch.zeros((), device=triton_device)))
        states = [value for parameter in parameters for value in optimiser.state(parameter).values()]
        found.append([*(parameter.data for parameter in parameters), *states, torch.stack(norms), optimiser.first_bad])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert int(found[0][-1]) == 3
    assert torch.equal(found[0][3].cpu(), drawn[3])


def with_matrices():
    """Matrices of several shapes, wide, tall and square, and a vector; the matrices are Muon's."""
    matrices = [nn.Parameter(drawn(shape, 0)) for shape in ((8, 16), (16, 8), (8, 8), (8, 16))]
    bias = nn.Parameter(torch.ones(5))
    return matrices, bias, Optimiser({"rest": [bias], "attention": matrices}, SCHEDULE, 1e-3, ["attention"])


def drawn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def turn(matrices, bias, optimiser, seed, loss=0.0):
    """One update with gradients of this seed."""
    bias.grad = torch.ones(5)
    for matrix in matrices:
        matrix.grad = drawn(matrix.shape, seed)
    return optimiser.step(torch.tensor(loss))


def test_matrices_are_moved_as_pytorchs_muon_moves_them():
    matrices, bias, optimiser = with_matrices()
    theirs = [nn.Parameter(matrix.detach().clone()) for matrix in matrices]
    before = [matrix.detach().clone() for matrix in matrices]
    muon = torch.optim.Muon(theirs, lr=2e-2, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    optimiser.pace({"rest": 1.0, "attention": 2.0}, {"rest": "all", "attention": "all"})
    for seed in range(3):
        for other in theirs:
            other.grad = drawn(other.shape, seed)
        turn(matrices, bias, optimiser, seed)
        muon.step()
    for one, other, old in zip(matrices, theirs, before, strict=True):
        assert (one - other).norm() < 0.02 * (one - old).norm()  # PyTorch iterates in bfloat16
    assert bias[0].item() == pytest.approx(1 - 3e-2, rel=1e-3)
    assert int(optimiser.state(matrices[0])["step"]) == 3


def test_the_norm_of_all_gradients_is_told_whoever_moves_them():
    matrices, bias, optimiser = with_matrices()
    expected = sum(float(drawn(matrix.shape, 7).square().sum()) for matrix in matrices) + 5
    assert float(turn(matrices, bias, optimiser, 7)) == pytest.approx(expected**0.5, rel=1e-5)


@pytest.mark.parametrize("broken", ["loss", "matrix", "bias"])
def test_an_update_that_is_not_finite_moves_no_matrix_either(broken):
    matrices, bias, optimiser = with_matrices()
    turn(matrices, bias, optimiser, 0)
    states = [value for parameter in (*matrices, bias) for value in optimiser.state(parameter).values()]
    before = [value.clone() for value in (*(matrix.data for matrix in matrices), bias.data, *states)]
    bias.grad, matrices[2].grad = torch.ones(5), torch.ones(8, 8)
    if broken != "loss":
        {"matrix": matrices[2], "bias": bias}[broken].grad[0] = torch.nan
    optimiser.step(torch.tensor(torch.inf if broken == "loss" else 0.0))
    after = [*(matrix.data for matrix in matrices), bias.data, *states]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert int(optimiser.first_bad) == 2


@pytest.mark.parametrize("way", ["rate 0", "no gradient"])
def test_matrices_that_are_held_stay_and_gather_no_momentum(way):
    matrices, bias, optimiser = with_matrices()
    before = [matrix.detach().clone() for matrix in matrices]
    for matrix in matrices:
        matrix.requires_grad_(way == "rate 0")
    optimiser.pace({"rest": 1.0, "attention": float(way != "rate 0")}, {"rest": "all", "attention": "all"})
    turn(matrices, bias, optimiser, 0)
    torch.testing.assert_close([matrix.data for matrix in matrices], before, rtol=0, atol=0)
    assert not any(optimiser.state(matrix)["exp_avg"].any() for matrix in matrices)
    assert bias[0] != 1

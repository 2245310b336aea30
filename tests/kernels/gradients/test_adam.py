"""A step of Adam for all parameters at once equals PyTorch's own, group by group."""

import math

import pytest
import torch

from gtmsm.kernels.gradients.adam import BLOCK, Schedule, Shelf, Tally, adam_by_parts
from gtmsm.training.optimiser import Adam

SCHEDULE = Schedule(first=1e-2, last=1e-3, fall=4, rise=0)
SIZES = {"rest": [(7, 5), (3,), (2 * BLOCK + 1,)], "motion": [(2, 3)], "walls": [(), (BLOCK,)]}


def parameters(device="cpu", dtype=torch.float32):
    torch.manual_seed(0)
    return {
        name: [torch.nn.Parameter(torch.randn(size, dtype=dtype).to(device)) for size in sizes]
        for name, sizes in SIZES.items()
    }


def gradients(groups, update, scale=1.0):
    generator = torch.Generator().manual_seed(update)
    for group in groups.values():
        for parameter in group:
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = (scale * drawn).to(parameter)


def by_pytorch(groups, faster, together, updates, clip_norm, scale=1.0):
    """Clipping and Adam as PyTorch has them."""
    optimiser = torch.optim.Adam([{"params": params, "name": name} for name, params in groups.items()])
    lengths = []
    for update in range(updates):
        gradients(groups, update, scale)
        clips = {clip for clip in together.values() if clip is not None}
        norms = [
            torch.nn.utils.clip_grad_norm_([p for n in groups if together[n] == clip for p in groups[n]], clip_norm)
            for clip in clips
        ]
        for group in optimiser.param_groups:
            group["lr"] = float(SCHEDULE.rate(torch.tensor(update))) * faster[group["name"]]
        optimiser.step()
        lengths.append(torch.stack(norms).norm())
    return torch.stack(lengths)


def by_us(groups, faster, together, updates, clip_norm, scale=1.0):
    optimiser = Adam(groups, SCHEDULE, clip_norm)
    optimiser.pace(faster, together)
    lengths = []
    for update in range(updates):
        gradients(groups, update, scale)
        lengths.append(optimiser.step(next(iter(groups.values()))[0].sum()))
    return torch.stack(lengths)


TOGETHER = [
    {"rest": "all", "motion": "all", "walls": "all"},
    {"rest": "bound", "motion": "steps", "walls": "steps"},
    {"rest": "bound", "motion": None, "walls": "bound"},
]


@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_step_is_that_of_pytorch(together, scale):
    faster = {"rest": 1.0, "motion": 0.0 if together["motion"] is None else 3.0, "walls": 5.0}
    ours, theirs = parameters(dtype=torch.float64), parameters(dtype=torch.float64)
    settings = faster, together, 6, 1.0, scale
    torch.testing.assert_close(by_us(ours, *settings), by_pytorch(theirs, *settings), rtol=1e-6, atol=1e-6)
    for name in SIZES:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("schedule", [SCHEDULE, Schedule(1e-2, 1e-2, 1, 3)])
@pytest.mark.parametrize("loss", [1.0, math.nan, math.inf])
def test_the_triton_step_equals_the_step_by_parts(triton_device, schedule, loss):
    from gtmsm.kernels.gradients import adam_triton

    generator = torch.Generator().manual_seed(0)

    def shelf():
        generator.manual_seed(0)
        weight, gradient, first = (torch.randn(5 * BLOCK, generator=generator).to(triton_device) for _ in range(3))
        group = torch.tensor([0, 0, 1, 2, 2], dtype=torch.int32, device=triton_device)
        return Shelf(weight, gradient, first, first.square(), group, (2 * BLOCK, 3 * BLOCK, 5 * BLOCK))

    faster = torch.tensor([1.0, 2.0, 0.0], device=triton_device)
    clip = torch.tensor([0, 1, -1], dtype=torch.int32, device=triton_device)
    both = []
    for step in (adam_by_parts, adam_triton.adam):
        mine = shelf()
        tally = Tally(*(torch.zeros((), dtype=torch.int64, device=triton_device) for _ in range(2)))
        lengths = [
            step(mine, faster, clip, 10.0, schedule, torch.tensor(loss, device=triton_device), tally) for _ in range(3)
        ]
        both.append([mine.weight, mine.first, mine.second, torch.stack(lengths), *tally])
    torch.testing.assert_close(both[0], both[1], rtol=1e-5, atol=1e-6)
    assert int(both[1][-1]) == (0 if math.isfinite(loss) else 1)


def test_parameters_keep_their_values_and_the_way_they_lie_in_memory():
    weight = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    parameter = torch.nn.Parameter(weight.clone(memory_format=torch.preserve_format))
    optimiser = Adam({"rest": [parameter]}, SCHEDULE, 1.0)
    assert torch.equal(parameter, weight)
    assert parameter.is_contiguous(memory_format=torch.channels_last)
    parameter.grad = torch.ones(4, 3, 5, 5)  # lies otherwise
    parameter.grad[0, 0, 0, 1] = -1
    optimiser.step(torch.zeros(()))
    moved = (parameter - weight).sign()
    assert moved[0, 0, 0, 1] == 1 and moved.sum() == -moved.numel() + 2


def test_a_parameter_without_a_gradient_stays():
    groups = parameters()
    before = [p.detach().clone() for p in groups["motion"]]
    optimiser = Adam(groups, SCHEDULE, 1.0)
    for p in groups["rest"]:
        p.grad = torch.ones_like(p)
    optimiser.step(torch.zeros(()))
    assert torch.equal(groups["motion"][0], before[0])
    assert all(p.grad is None for p in groups["rest"])

"""Loops in few kernels against the same loops as one would write them."""

import pytest
import torch
import torch.nn.functional as F

from gtmsm.rivals import gtmm, rssm, ssm
from gtmsm.tensors import Gaussian

BATCH, TAU, STEPS = 3, 5, 9
KINDS = ("rssm", "gtmm-introspection", "gtmm-content")


def rssm_naive(rival, seen, actions, noise):
    """What the head is given at all steps, and the posterior's scales."""
    h, s, given, scales = torch.zeros(BATCH, 16), torch.zeros(BATCH, 8), [], []
    for t in range(STEPS):
        h = rival.cell(F.elu(rival.into(torch.cat([s, actions[:, t]], -1))), h)
        told = rival.posterior(torch.cat([h, seen[:, t]], -1)) if t < TAU else rival.prior(h)
        mean, scale = told.chunk(2, -1)
        scale = F.softplus(scale).clamp_min(rssm.LEAST_SCALE)
        s = mean + noise[:, t] * scale
        given.append(torch.cat([h, s], -1))
        scales.append(scale)
    return torch.stack(given, 1), torch.stack(scales[:TAU], 1)


def gtmm_naive(rival, seen, actions):
    """Mean and log-variance of the prior at the steps of the plan."""
    heads, Z, prior = rival.settings.heads, seen.shape[-1], []
    h = c = torch.zeros(BATCH, 16)
    read, z, rows = torch.zeros(BATCH, heads * Z), torch.zeros(BATCH, Z), seen[:, :0]
    for t in range(STEPS):
        h, c = rival.controller(torch.cat([z, actions[:, t], read], -1), (h, c))
        if t > 0:
            if rival.settings.kind == "gtmm-content":
                key, strength = rival.keys(h).unflatten(-1, (heads, -1)).split([Z, 1], -1)
                alike = F.normalize(key, dim=-1) @ F.normalize(rows, dim=-1).mT
                weight = ((1 + F.softplus(strength)) * alike).softmax(-1)
            else:
                weight = rival.ages(h).unflatten(-1, (heads, -1))[..., :t].softmax(-1).flip(-1)
            read = rival.gate(h).sigmoid() * (weight @ rows[:, -weight.shape[-1] :]).flatten(1)
        if t < TAU:
            z = seen[:, t]
        else:
            told = rival.head(torch.cat([F.elu(rival.mix(torch.cat([h, read], -1))), read], -1))
            z = told.mean
            prior.append(torch.cat([told.mean, told.log_var], -1))
        rows = torch.cat([rows, z[:, None]], 1)
    return (torch.stack(prior, 1),)


def both_ways(kind, make):
    """What is computed in few kernels and naively, and what gradients each has."""
    rival, generator = make(kind, rows=4), torch.Generator().manual_seed(3)

    def drawn(steps, size):
        return torch.randn(BATCH, steps, size, generator=generator)

    seen, actions = drawn(TAU, rival.code_size).requires_grad_(), drawn(STEPS, rival.action_size)
    if kind == "rssm":
        noise = drawn(STEPS, 8)
        h, s, belief = rival.roll(seen, actions, noise)
        fast = torch.cat([h, s], -1), (0.5 * belief.log_var).exp()
        naive = rssm_naive(rival, seen, actions, noise)
    else:
        told = rival.predict(Gaussian(seen, seen), actions[:, :TAU], actions[:, TAU:]).prior
        fast, naive = (torch.cat([told.mean, told.log_var], -1),), gtmm_naive(rival, seen, actions)
    learned = {"seen": seen} | {name: p for name, p in rival.named_parameters() if not name.startswith("vae")}
    sums = [
        sum((torch.linspace(-1, 1, part.numel()).view_as(part) * part).sum() for part in way) for way in (fast, naive)
    ]
    for _ in range(2):  # the second backward pass of the same loop is like the first
        grads = [
            torch.autograd.grad(total, learned.values(), retain_graph=True, allow_unused=True) for total in sums
        ]  # fmt: skip
    return fast, naive, *(dict(zip(learned, grad, strict=True)) for grad in grads)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_in_few_kernels_is_the_naive_loop_with_its_gradients(kind, make):
    fast, naive, fast_gradients, naive_gradients = both_ways(kind, make)
    torch.testing.assert_close(fast, naive, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fast_gradients, naive_gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_compiled_once_and_whole(kind, make, monkeypatch):
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    made = {}

    def compiled(step, device):
        return made.setdefault(step, torch.compile(step, backend=count, dynamic=False, fullgraph=True))

    for module in (rssm, gtmm):
        monkeypatch.setattr(module, "fused", compiled)
    fast, naive, *_ = both_ways(kind, make)
    torch.testing.assert_close(fast, naive, rtol=1e-5, atol=1e-6)
    assert len(graphs) == len(made) == {"rssm": 1, "gtmm-introspection": 3, "gtmm-content": 4}[kind]


@pytest.mark.parametrize("time", [5, 16, 37])
def test_a_scan_some_steps_at_a_time_is_that_of_mambapy_with_its_gradients(time):
    mamba = pytest.importorskip("mambapy.mamba")
    block = mamba.MambaBlock(mamba.MambaConfig(d_model=6, n_layers=1))
    generator = torch.Generator().manual_seed(time)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator).requires_grad_()

    delta, decay = drawn(3, time, 12).sigmoid(), -drawn(12, 16).exp()
    given = drawn(3, time, 12), delta, decay, drawn(3, time, 16), drawn(3, time, 16), drawn(12)
    ways = [ssm.selective_scan(*given), block.selective_scan(*given)]
    torch.testing.assert_close(*ways, rtol=1e-5, atol=1e-5)
    weights = torch.randn(ways[0].shape, generator=generator)
    grads = [torch.autograd.grad((weights * way).sum(), given, retain_graph=True) for way in ways]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_an_ssm_does_not_scan_by_itself(make):
    assert {layer.mixer.selective_scan for layer in make("ssm", layers=2).layers.layers} == {ssm.selective_scan}

"""Biases, shortcuts and activations in one pass: the fast implementations equal the readable functions."""

import pytest
import torch
import torch.nn.functional as F
from twins import assert_equal_twins

from gtmsm.kernels.layers.activation import activated, shortcut
from gtmsm.kernels.operator import forced

KINDS = {"elu": F.elu, "silu": F.silu, "gelu": F.gelu}
SHAPES = [
    (1, 1), (3, 5), (5, 300), (600, 24), (2, 7, 20), (1, 3, 1), (2, 1, 3, 2, 5),
    (1, 1, 1, 1), (2, 3, 5, 6), (2, 32, 3, 4), (3, 8, 20, 20), (2, 4, 1, 1),
]  # fmt: skip
LARGE_SHAPES = [
    (1024, 8192), (3001, 129), (336, 64, 1024), (1792, 32, 32, 32), (1792, 128, 8, 8), (100, 96, 17, 9),
    (84, 32, 64, 64),
]  # fmt: skip
ON_A_GPU = torch.cuda.is_available()


def draw(*shape, seed=0, dtype=torch.float32, device="cpu"):
    """Numbers on both sides of 0, the channels of a pixel beside each other."""
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return channels_beside(2 * torch.randn(shape, generator=generator)).to(device, dtype)


def channels_beside(x):
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def layer(*shape, dtype=torch.float32, device="cpu"):
    """An input and a bias."""
    channels = shape[1] if len(shape) == 4 else shape[-1]
    return draw(*shape, dtype=dtype, device=device), draw(channels, device=device)


def block(*shape, dtype=torch.float32, device="cpu"):
    """What comes by the shortcut, what comes by the block, and a bias."""
    x, bias = layer(*shape, dtype=dtype, device=device)
    return x, draw(*shape, seed=1, dtype=dtype, device=device), bias


def uneven(y, start=-1):
    """No two numbers count alike."""
    return torch.linspace(start, 2, y.numel(), dtype=torch.float64, device=y.device).view(y.shape).to(y.dtype)


def values_and_gradients(run, *inputs, kind="silu", arrange=channels_beside, looked_at=(0, 1)):
    """What was made, and the gradients of an uneven sum of those results that are looked at."""
    leaves = [None if part is None else part.detach().requires_grad_() for part in inputs]
    with forced("cuda"):
        made = run(*leaves, kind)
        made = made if isinstance(made, tuple) else (made,)
        seen = [part for index, part in enumerate(made) if index in looked_at]
        weights = [arrange(uneven(part.detach(), -1 - index)) for index, part in enumerate(seen)]
        learning = [leaf for leaf in leaves if leaf is not None]
        return [*(part.detach() for part in made), *torch.autograd.grad(seen, learning, weights)]


def by_kernel(run):
    def forced_run(*inputs):
        with forced("cuda"):
            return run(*inputs)

    return forced_run


def doubled(parts):
    return [None if part is None else part.double() for part in parts]


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.layers import activation_triton

    return note_launches(activation_triton, "_activation_forward", "_activation_backward")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3), (2, 3, 4, 5)])
def test_it_is_a_bias_and_an_activation(shape, kind):
    x, r, bias = block(*shape)
    wide = bias[:, None, None] if x.dim() == 4 else bias
    assert torch.equal(activated(x, bias, kind), KINDS[kind](x + wide))
    y, a = shortcut(x, r, bias, kind)
    assert torch.equal(y, x + r + wide)
    assert torch.equal(a, KINDS[kind](y))
    assert torch.equal(shortcut(x, None, bias, kind)[0], x + wide)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_activated_behind_a_shortcut_is_the_rounded_sum(kind):
    x, r, bias = block(6, 5, dtype=torch.bfloat16)
    y, a = shortcut(x, r, bias, kind)
    assert torch.equal(y, (x.float() + r.float() + bias).bfloat16())
    assert torch.equal(a, KINDS[kind](y.float()).bfloat16())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (1, 2, 3), (2, 3, 2, 2)])
def test_gradients_agree_with_finite_differences(shape, kind):
    x, r, bias = (part.double().requires_grad_() for part in block(*shape))
    assert torch.autograd.gradcheck(lambda *inputs: activated.readable(*inputs, kind), (x, bias))
    assert torch.autograd.gradcheck(lambda *inputs: shortcut.readable(*inputs, kind), (x, r, bias))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        *((shape, "silu") for shape in SHAPES),
        *((shape, kind) for shape in ((3, 5), (2, 3, 5, 6)) for kind in ("elu", "gelu")),
        *((shape, kind) for shape in (LARGE_SHAPES if ON_A_GPU else []) for kind in KINDS),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_equal_the_readable_functions(shape, dtype, kind, triton_device, launched):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    x, r, bias = block(*shape, dtype=dtype, device=triton_device)
    fast = values_and_gradients(by_kernel(activated), x, bias, kind=kind)
    assert [part.dtype for part in fast] == [dtype, dtype, torch.float32]
    assert_equal_twins(fast, values_and_gradients(activated.readable, *doubled((x, bias)), kind=kind), tolerance)
    fast = values_and_gradients(by_kernel(shortcut), x, r, bias, kind=kind)
    assert [part.dtype for part in fast] == [dtype] * 4 + [torch.float32]
    readable = values_and_gradients(shortcut.readable, *doubled((x, r, bias)), kind=kind)
    assert_equal_twins(fast, readable, 3 * tolerance)
    assert launched == ["_activation_forward", "_activation_backward"] * 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 300), (2, 3, 5, 6)])
def test_what_is_made_may_be_of_another_precision(shape, kind, triton_device, launched):
    x, bias = layer(*shape, dtype=torch.bfloat16, device=triton_device)

    def widened(run):
        return lambda x, bias, kind: run(x, bias, kind, torch.float32)

    fast = values_and_gradients(widened(by_kernel(activated)), x, bias, kind=kind)
    assert [part.dtype for part in fast] == [torch.float32, torch.bfloat16, torch.float32]
    assert torch.allclose(fast[0], activated.readable(x.float(), bias, kind), atol=1e-6)
    readable = values_and_gradients(activated.readable, *doubled((x, bias)), kind=kind)
    assert_equal_twins(fast, readable, 1e-2)
    assert launched == ["_activation_forward", "_activation_backward"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_round_as_the_readable_functions(kind, triton_device):
    x, r, bias = block(3, 8, 4, 4, dtype=torch.bfloat16, device=triton_device)
    y, a = by_kernel(shortcut)(x, r, bias, kind)
    last = 2**-7  # Triton's interpreter cuts numbers off instead of rounding them
    torch.testing.assert_close(y, shortcut.readable(x, r, bias, kind)[0], rtol=0 if ON_A_GPU else last, atol=0)
    torch.testing.assert_close(a, KINDS[kind](y.float()).bfloat16(), rtol=last, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_r", [True, False])
@pytest.mark.parametrize("looked_at", [(0,), (1,), (0, 1)])
def test_either_result_of_a_shortcut_may_be_left_alone(kind, with_r, looked_at, triton_device):
    x, r, bias = block(2, 3, 5, 6, device=triton_device)
    inputs = x, r if with_r else None, bias
    fast = values_and_gradients(by_kernel(shortcut), *inputs, kind=kind, looked_at=looked_at)
    readable = values_and_gradients(shortcut.readable, *doubled(inputs), kind=kind, looked_at=looked_at)
    assert_equal_twins(fast, readable)


@pytest.mark.parametrize("bias_learns", [True, False])
def test_both_sides_of_a_shortcut_may_be_used_elsewhere(bias_learns, triton_device):
    """Both get the same gradient, in one tensor: adding to one of them must not change the other."""

    def gradients(run, inputs):
        x, r, bias = (part.detach().requires_grad_() for part in inputs)
        bias.requires_grad_(bias_learns)
        left, right = x * 2, r * 3
        y, a = run(left, right, bias, "silu")
        loss = (y * uneven(y)).sum() + (a * uneven(a, 0)).sum()
        loss = loss + left.square().sum() + right.pow(3).sum() + x.pow(3).sum() + r.square().sum()
        loss.backward()
        loss = run(x, r, bias, "silu")[1].sum() + x.sum() + r.square().sum()
        loss.backward()
        return x.grad, r.grad

    inputs = block(2, 3, 5, 6, device=triton_device)
    with forced("cuda"):
        assert_equal_twins(gradients(shortcut, inputs), gradients(shortcut.readable, doubled(inputs)))


def test_shortcuts_come_one_after_another(triton_device):
    def chain(run):
        def walk(x, r, bias, kind):
            for _ in range(3):
                x, a = run(x, r, bias, kind)
                r = r + a
            return x, r

        return walk

    inputs = block(2, 3, 5, 6, device=triton_device)
    fast = values_and_gradients(chain(by_kernel(shortcut)), *inputs)
    assert_equal_twins(fast, values_and_gradients(chain(shortcut.readable), *doubled(inputs)))


def test_what_comes_out_is_laid_out_as_what_went_in(triton_device):
    x, r, bias = block(2, 3, 5, 6, device=triton_device)
    y, dx, _ = values_and_gradients(by_kernel(activated), x, bias)
    made = values_and_gradients(by_kernel(shortcut), x, r, bias)
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in (y, dx, *made[:4]))


@pytest.mark.parametrize("arrange", [lambda g: g, lambda g: g.mT.contiguous().mT, lambda g: g[:1].expand_as(g)])
@pytest.mark.parametrize("shape", [(5, 7), (2, 5, 7), (2, 3, 5, 6)])
def test_gradients_may_come_in_any_layout(shape, arrange, triton_device):
    x, r, bias = block(*shape, device=triton_device)
    for run, inputs in ((activated, (x, bias)), (shortcut, (x, r, bias))):
        fast = values_and_gradients(by_kernel(run), *inputs, arrange=arrange)
        assert_equal_twins(fast, values_and_gradients(run.readable, *doubled(inputs), arrange=arrange))


def test_the_bias_may_be_strided(triton_device):
    x, bias = layer(5, 7, device=triton_device)
    run = by_kernel(activated)
    assert torch.equal(run(x, torch.stack([bias, bias], 1)[:, 0], "silu"), run(x, bias, "silu"))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(kind, triton_device):
    x, r, bias = block(2, 3, 5, 6, dtype=torch.bfloat16, device=triton_device)
    for run in (activated.readable, by_kernel(activated)):
        plain = values_and_gradients(run, x, bias, kind=kind)
        with torch.autocast(triton_device, torch.bfloat16):
            cast = values_and_gradients(run, x, bias, kind=kind)
        assert all(torch.equal(one, other) for one, other in zip(cast, plain, strict=True))
    for run in (shortcut.readable, by_kernel(shortcut)):
        plain = values_and_gradients(run, x, r, bias, kind=kind)
        with torch.autocast(triton_device, torch.bfloat16):
            cast = values_and_gradients(run, x, r, bias, kind=kind)
        assert all(torch.equal(one, other) for one, other in zip(cast, plain, strict=True))


LAYOUTS = {
    "plane by plane": lambda x: x.contiguous(),
    "expanded": lambda x: x[:1].expand_as(x),
    "every second": lambda x: torch.stack([x, x], -1)[..., 0],
    "double": lambda x: x.double(),
    "no pixels": lambda x: x[:, :, :0],
    "no pictures": lambda x: x[:0],
    "no rows": lambda x: x[:0, 0, 0, :3],
    "tokens that are not beside each other": lambda x: x.flatten(1, 2)[..., :3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_kernels_cannot_do_is_left_to_the_readable_functions(layout, launched):
    x, r, bias = block(2, 3, 5, 6)
    x, good = LAYOUTS[layout](x), r
    r = LAYOUTS[layout](r)
    for run, inputs in ((activated, (x, bias)), (shortcut, (x, r, bias))):
        results = values_and_gradients(by_kernel(run), *inputs)
        assert results[0].dtype == x.dtype
        for one, other in zip(results, values_and_gradients(run.readable, *inputs), strict=True):
            torch.testing.assert_close(one, other)
    if x.shape == good.shape:
        values_and_gradients(by_kernel(shortcut), good, x, bias)
    assert not launched


LIMITS = {  # values and slopes at 1e4, -1e4, 0 and where there is no number
    "elu": ([1e4, -1.0, 0.0, float("nan")], [1.0, 0.0, 1.0, float("nan")]),
    "silu": ([1e4, 0.0, 0.0, float("nan")], [1.0, 0.0, 0.5, float("nan")]),
    "gelu": ([1e4, 0.0, 0.0, float("nan")], [1.0, 0.0, 0.5, float("nan")]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_large_numbers_stay_large_and_small_ones_vanish(kind, triton_device):
    values, slopes = LIMITS[kind]
    x = torch.tensor([[1e4], [-1e4], [0.0], [float("nan")]], device=triton_device, requires_grad=True)
    y = by_kernel(activated)(x, torch.zeros(1, device=triton_device), kind)
    a = by_kernel(shortcut)(x, torch.zeros_like(x), torch.zeros(1, device=triton_device), kind)[1]
    for made in (y, a):
        torch.testing.assert_close(made[:, 0].tolist(), values, equal_nan=True, rtol=1e-6, atol=1e-6)
        with forced("cuda"):
            (slope,) = torch.autograd.grad(made.sum(), x)
        torch.testing.assert_close(slope[:, 0].tolist(), slopes, equal_nan=True, rtol=1e-6, atol=1e-6)


def test_gelu_is_that_of_the_error_function_everywhere(triton_device):
    x = torch.linspace(-12, 12, 4001, device=triton_device)[:, None]
    inputs = x, torch.zeros(1, device=triton_device)
    fast = values_and_gradients(by_kernel(activated), *inputs, kind="gelu", arrange=torch.ones_like)
    readable = values_and_gradients(activated.readable, *doubled(inputs), kind="gelu", arrange=torch.ones_like)
    for one, other in zip(fast, readable, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=1e-6)


def test_few_programs_share_out_many_pixels(triton_device, monkeypatch):
    from gtmsm.kernels.layers import activation_triton

    monkeypatch.setattr(activation_triton, "PROGRAMS", 2)
    x, bias = layer(3, 33, 20, 20, device=triton_device)
    assert activation_triton.share_for(1200, 33) == 640  # ten tiles of 64 pixels, and nine for the other program
    fast = values_and_gradients(by_kernel(activated), x, bias)
    assert_equal_twins(fast, values_and_gradients(activated.readable, *doubled((x, bias))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter knows no races")
def test_the_same_twice_is_the_same_to_the_bit(triton_device):
    inputs = block(3, 8, 20, 20, device=triton_device)
    first, second = (values_and_gradients(by_kernel(shortcut), *inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_what_was_made_may_not_be_changed_before_the_backward_pass(triton_device):
    x, bias = layer(5, 3, device=triton_device)
    y = by_kernel(activated)(x.requires_grad_(), bias, "elu")
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_does_not_learn_has_no_gradient(triton_device):
    x, r, bias = block(7, 8, device=triton_device)
    with forced("cuda"):
        activated(x.requires_grad_(), bias, "silu").sum().backward()
        assert bias.grad is None
        shortcut(x, r, bias.requires_grad_(), "silu")[1].sum().backward()
    assert r.grad is None and bias.grad is not None


@pytest.mark.usefixtures("triton_device")
@pytest.mark.parametrize("rows", [1, 100, 1792 * 64, 1792 * 1024])
@pytest.mark.parametrize("channels", [1, 24, 32, 128, 8192, 10000])
def test_shares_cover_all_pixels_once(rows, channels):
    from gtmsm.kernels.layers.activation_triton import PROGRAMS, TILE, share_for, tile_for

    high, wide = tile_for(channels)
    assert high * wide == TILE
    share = share_for(rows, channels)
    parts = -(-rows // share)
    assert share % high == 0
    assert (parts - 1) * share < rows <= parts * share
    assert parts * -(-channels // wide) <= PROGRAMS


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_can_keep_it_in_a_graph(kind, in_a_graph):
    leaves = [part.requires_grad_() for part in block(64, 32, 16, 16, dtype=torch.bfloat16, device="cuda")]

    def update():
        y, a = shortcut(*leaves, kind)
        made = activated(a, leaves[2], kind)
        return [y, made, *torch.autograd.grad((y * made).square().sum(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))

"""Windows of frames: the kernel equals its readable twin to the bit."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from twins import strided

from gtmsm.errors import InputError
from gtmsm.kernels.choice import forced
from gtmsm.kernels.layers.frame_windows import MOST, frame_windows, frame_windows_by_unfolding

FOURS = ((4, 4), (2, 2), (1, 1))  # size, stride, padding of the spatial coder
CUTS = {
    "fours": FOURS,
    "threes": ((3, 3), (1, 1), (1, 1)),
    "pixels": ((1, 1), (1, 1), (0, 0)),
    "uneven": ((2, 3), (3, 1), (0, 2)),
    "apart": ((1, 2), (4, 3), (2, 0)),
}
SHAPES = [(1, 1, 2, 2), (1, 3, 8, 8), (5, 3, 7, 9), (3, 4, 5, 4), (2, 7, 3, 12)]  # frames, channels, height, width
LARGE_SHAPES = [(3600, 3, 32, 32), (77, 5, 31, 65)]  # too large to interpret
ON_A_GPU = torch.cuda.is_available()
DTYPES = list(product([torch.float32, torch.bfloat16], repeat=2))

on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="Triton needs a CUDA device")
shapes = pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)


def frames(*shape, device="cpu", dtype=torch.float32):
    """Numbers that bfloat16 has too: Triton's interpreter cuts others off instead of rounding them."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16().to(device, dtype)


def rows_of(m, n, device="cpu"):
    """Which frames are wanted, one of them twice."""
    rows = torch.randint(m, (n,), generator=torch.Generator().manual_seed(n)).to(device)
    rows[-1:] = rows[:1]
    return rows


def by_triton(*inputs):
    with forced("triton"):
        return frame_windows(*inputs)


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.layers import frame_windows_triton

    return note_launches(frame_windows_triton, "_cut_windows")


def assert_same(x, cut, rows=None, made=torch.float32):
    fast, readable = by_triton(x, *cut, rows, made), frame_windows_by_unfolding(x, *cut, rows, made)
    assert fast.dtype == readable.dtype == made
    assert fast.is_contiguous() and readable.is_contiguous()
    assert torch.equal(fast, readable)


@cuts
def test_a_window_is_cut_where_its_place_says(cut):
    (high, wide), (below, right), (above, beside) = cut
    x, rows = frames(3, 2, 6, 7), torch.tensor([2, 0])
    windows, bordered = frame_windows(x, *cut, rows, torch.float32), F.pad(x, (beside, beside, above, above))
    for n, i, j in product(*map(range, windows.shape[:3])):
        by_hand = bordered[rows[n], :, i * below : i * below + high, j * right : j * right + wide]
        assert torch.equal(windows[n, i, j], by_hand.permute(1, 2, 0).flatten())


@cuts
def test_times_weights_they_are_a_convolution(cut):
    size, stride, padding = cut
    x, weight = frames(2, 3, 6, 7).double(), frames(5, 3, *size).double()
    made = F.linear(frame_windows(x, *cut, None, x.dtype), weight.permute(0, 2, 3, 1).flatten(1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(made, F.conv2d(x, weight, None, stride, padding))


@shapes
@cuts
def test_the_triton_windows_equal_the_readable_ones_to_the_bit(shape, cut, triton_device, launched):
    x = frames(*shape, device=triton_device)
    assert_same(x, cut)
    assert_same(x, cut, rows_of(len(x), len(x) + 2, triton_device))
    assert launched == 2 * ["_cut_windows"]


@shapes
@pytest.mark.parametrize(("given", "made"), DTYPES)
def test_precisions_may_differ(shape, given, made, triton_device):
    x = frames(*shape, device=triton_device, dtype=given)
    assert_same(x, FOURS, rows_of(len(x), 3, triton_device), made)


@on_a_gpu
def test_numbers_are_rounded_as_pytorch_rounds_them():
    between = torch.arange(0x3F80, 0x3F80 + 64, dtype=torch.int32).mul(2**16) + 2**15  # two numbers of bfloat16
    x = torch.stack([between, between - 1, between + 1]).view(torch.float32).view(3, 1, 8, 8).cuda()
    extreme = torch.tensor([3.4e38, -3.4e38, float("inf"), 1e-39, -1e-41, -0.0, 1e4, 1 / 3]).cuda()
    for pixels in (x, -x, extreme.expand(1, 1, 8, 8), torch.rand(50, 3, 32, 32).cuda()):
        assert_same(pixels, FOURS, made=torch.bfloat16)


LAYOUTS = {
    "strided": strided,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded frames": lambda x: x[:1].expand_as(x),
    "expanded pixels": lambda x: x[..., :1, :1].expand_as(x),
    "part of a table": lambda x: F.pad(x, (1, 2, 3, 1, 1, 0, 0, 2))[:-2, 1:, 3:-1, 1:-2],
}


@cuts
@pytest.mark.parametrize("layout", LAYOUTS)
def test_frames_and_rows_may_be_laid_out_in_any_way(layout, cut, triton_device):
    x, rows = LAYOUTS[layout](frames(3, 3, 5, 6, device=triton_device)), rows_of(3, 4, triton_device)
    assert_same(x, cut, rows, torch.bfloat16)
    assert_same(x, cut, strided(rows))


def test_not_a_number_stays_where_it_is(triton_device):
    x = frames(2, 3, 8, 8, device=triton_device)
    x[0, 1, 3, 3] = float("nan")
    broken = by_triton(x, *FOURS, None, torch.bfloat16).isnan()
    assert torch.equal(broken, frame_windows_by_unfolding(x, *FOURS, None, torch.bfloat16).isnan())
    assert broken.sum() == 4


@pytest.mark.parametrize("twin", ["readable", "triton"])
@pytest.mark.parametrize("rows", [None, torch.zeros(0, dtype=torch.long)])
def test_no_frames_have_no_windows(twin, rows, triton_device, launched):
    x = frames(0 if rows is None else 3, 3, 8, 8, device=triton_device)
    with forced(twin):
        windows = frame_windows(x, *FOURS, None if rows is None else rows.to(triton_device), torch.bfloat16)
    assert windows.shape == (0, 4, 4, 48)
    assert windows.dtype == torch.bfloat16
    assert not launched


@pytest.mark.parametrize("twin", ["readable", "triton"])
def test_frames_get_gradients_where_they_ask_for_them(twin, triton_device):
    x = frames(3, 2, 4, 4, device=triton_device).requires_grad_()
    with forced(twin):
        frame_windows(x, *FOURS, torch.tensor([1, 1], device=triton_device), torch.float32).sum().backward()
    assert not x.grad[0].any() and not x.grad[2].any()
    windows = torch.tensor([1.0, 2.0, 2.0, 1.0], device=triton_device)  # that a row or a column is in
    assert torch.equal(x.grad[1], (2 * windows.outer(windows)).expand(2, 4, 4))


@cuts
def test_gradients_agree_with_finite_differences(cut):
    x, rows = frames(2, 2, 4, 5).double().requires_grad_(), torch.tensor([1, 0, 1])
    assert torch.autograd.gradcheck(lambda x: frame_windows_by_unfolding(x, *cut, rows, torch.float64), x)


@pytest.mark.parametrize("made", [torch.float64, torch.bfloat16])
def test_double_precision_is_left_to_the_readable_twin(made, triton_device, launched):
    assert_same(frames(2, 3, 4, 4, device=triton_device).double(), FOURS, made=made)
    assert not launched


@pytest.mark.parametrize(("channels", "launches"), [(MOST // 16, 1), (MOST // 16 + 1, 0)])
def test_windows_too_large_for_a_program_are_left_to_the_readable_twin(channels, launches, triton_device, launched):
    assert_same(frames(2, channels, 6, 6, device=triton_device), FOURS)
    assert len(launched) == launches


@pytest.mark.parametrize("twin", ["readable", "triton"])
def test_a_window_larger_than_a_frame_is_refused(twin):
    with (
        forced(twin),
        pytest.raises(InputError, match="4x4 does not fit into a frame of 8x1 with a border of 1"),
    ):
        frame_windows(frames(2, 3, 8, 1), *FOURS, None, torch.float32)


@on_a_gpu
def test_a_table_of_more_than_two_gigabytes_is_read_to_its_end():
    x = torch.zeros(800_000, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
    x[-1] = 1
    assert_same(x, FOURS, torch.tensor([799_999, 0], device="cuda"), torch.bfloat16)


def test_a_gpu_can_keep_them_in_a_graph(in_a_graph):
    x, rows = frames(360, 3, 32, 32, device="cuda"), rows_of(360, 140, "cuda")
    (warm,), (replayed,) = in_a_graph(lambda: [frame_windows(x, *FOURS, rows, torch.bfloat16)])
    assert torch.equal(warm, replayed)

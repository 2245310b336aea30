"""3x3 convolutions between few channels and many on a GPU, which read as little as possible more than once.

The large side is read or written once. A pixel of the small side with its neighbours is a row of up to 36 numbers,
gathered from planes that the cache holds. Its product with the weights is the first convolution, and the input's
gradient of the last one; its product with the large side is the gradient of the weights of either. Only the last
convolution forward needs neighbours on the large side: those above and below are loaded, left and right are found
among the products.

Gradients of weights are sums over all pixels: these are split among enough programs to fill a GPU, and the results of
the programs are added up in a fixed order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors
from gtmsm.kernels.precision import Precision, products_of

FEW = 4
"""Maximum number of channels of a picture."""
MANY = 128
"""Maximum number of channels of the large side of the last convolution: a program takes all of them at once."""
WIDEST = 256
"""Maximum number of pixels of a row of the last convolution: a program takes whole rows."""
MOST = 2**30
"""Upper bound of the pixels of all pictures, and of the numbers of one on the large side: 32 bits count them."""
TILES_EACH = 4
"""Tiles that a program computes one after another: its weights, which are scattered, are loaded only once."""
MOST_COLUMNS = 64
"""Maximum number of channels of the large side that a program takes at once."""
PROGRAMS = 4 * 132
"""Programs that split a sum over all pixels: four fit on a multiprocessor of an H200 and hide each other's latency."""


@triton.jit
def _neighbours(
    x, frame, pixel, there, x_frame,
    FLIPPED: tl.constexpr, FEW: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    X_PLANE: tl.constexpr, X_ROW: tl.constexpr, X_COLUMN: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """[taps, pixels] of a picture, taps in the order of weights [few, 3, 3]; flipped for the backward pass.

    All pixels are of one picture: Triton then sees that they are contiguous, and assigns them to adjacent threads. A
    thread has all taps of its pixel, and everything about taps is known when this is compiled.
    """
    i, j = pixel // WIDTH, pixel % WIDTH
    tap = tl.arange(0, TAPS)
    down, right = tap % 9 // 3 - 1, tap % 3 - 1
    if FLIPPED:
        down, right = -down, -right
    row, column = i[None, :] + down[:, None], j[None, :] + right[:, None]
    inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
    middle = pixel * X_COLUMN if X_ROW == WIDTH * X_COLUMN else i * X_ROW + j * X_COLUMN
    around = tap // 9 * X_PLANE + down * X_ROW + right * X_COLUMN
    x += frame.to(tl.int64) * x_frame
    return tl.load(x + (middle[None, :] + around[:, None]), inside & (tap < 9 * FEW)[:, None] & there[None, :], 0.0)


@triton.jit(do_not_specialize=["n"])
def _few_to_many(
    x, weight, bias, y, n, x_frame, w_many, w_few, w_row, w_column,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
    FEW: tl.constexpr, MANY: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    X_PLANE: tl.constexpr, X_ROW: tl.constexpr, X_COLUMN: tl.constexpr,
    TAPS: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tap = tl.arange(0, TAPS)
    w_at = (tap // 9 * w_few + tap % 9 // 3 * w_row + tap % 3 * w_column)[:, None] + column[None, :] * w_many
    w = tl.load(weight + w_at, (tap < 9 * FEW)[:, None] & (column < MANY)[None, :], 0.0)
    if PRECISION == "bfloat16":
        w = w.to(tl.bfloat16)
    SIZE: tl.constexpr = HEIGHT * WIDTH
    per_frame = tl.cdiv(SIZE, PIXELS)
    for step in range(TILES):
        tile = tl.program_id(0) * TILES + step
        frame = tl.minimum(tile // per_frame, n - 1)  # the last program may make its last tile twice
        pixel = tile % per_frame * PIXELS + tl.arange(0, PIXELS)
        there = pixel < SIZE
        a = _neighbours(x, frame, pixel, there, x_frame, not ELU, FEW, HEIGHT, WIDTH, X_PLANE, X_ROW, X_COLUMN, TAPS)
        if PRECISION == "bfloat16":
            total = tl.dot(tl.trans(a.to(tl.bfloat16)), w)
        else:
            total = tl.dot(tl.trans(a.to(tl.float32)), w, input_precision=PRECISION)
        if ELU:
            total += tl.load(bias + column, column < MANY, 0.0)[None, :]
            below = tl.where(total > 0.0, 0.0, total)
            total = tl.where(total > 0.0, total, tl.exp(below) - 1.0)
        y_at = y + frame.to(tl.int64) * (SIZE * MANY) + (pixel[:, None] * MANY + column[None, :])
        tl.store(y_at, total.to(y.dtype.element_ty), there[:, None] & (column < MANY)[None, :])


@triton.jit(do_not_specialize=["n", "share"])
def _edge_conv_into_parameters(
    x, many, dy, shares, n, share, x_frame,
    ELU: tl.constexpr, PRECISION: tl.constexpr,
    FEW: tl.constexpr, MANY: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    X_PLANE: tl.constexpr, X_ROW: tl.constexpr, X_COLUMN: tl.constexpr,
    W_MANY: tl.constexpr, W_FEW: tl.constexpr, W_ROW: tl.constexpr, W_COLUMN: tl.constexpr,
    TAPS: tl.constexpr, PIXELS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """Gradients for the first convolution (ELU: `many` is its output) or the last (`x` is its gradient, flipped)."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tap, plane = tl.arange(0, TAPS), tl.arange(0, 4)
    is_tap, is_column = tap < 9 * FEW, column < MANY
    SIZE: tl.constexpr = HEIGHT * WIDTH
    per_frame = tl.cdiv(SIZE, PIXELS)
    first = tl.program_id(0) * share
    total = tl.zeros([TAPS, COLUMNS], tl.float32)
    loose = tl.zeros([4, PIXELS], tl.float32)
    for step in range(tl.minimum(share, n * per_frame - first)):
        frame = (first + step) // per_frame
        pixel = (first + step) % per_frame * PIXELS + tl.arange(0, PIXELS)
        there = pixel < SIZE
        at = frame.to(tl.int64) * (SIZE * MANY) + (pixel[:, None] * MANY + column[None, :])
        b = tl.load(many + at, there[:, None] & is_column[None, :], 0.0)
        if ELU:
            made = b.to(tl.float32)
            b = tl.load(dy + at, there[:, None] & is_column[None, :], 0.0).to(tl.float32)
            b *= tl.where(made > 0.0, 1.0, made + 1.0)  # ELU' is 1 above 0, and ELU + 1 below
        a = _neighbours(
            x, frame, pixel, there, x_frame, not ELU, FEW, HEIGHT, WIDTH, X_PLANE, X_ROW, X_COLUMN, TAPS
        ).to(tl.float32)
        if ELU:
            # one tap is always left over: it is 1 everywhere, for the gradient of the bias
            a = tl.where((tap == 9 * FEW)[:, None], 1.0, a)
        else:
            here = frame.to(tl.int64) * x_frame + (pixel // WIDTH * X_ROW + pixel % WIDTH * X_COLUMN)
            is_plane = (plane < FEW)[:, None] & there[None, :]
            loose += tl.load(x + here[None, :] + plane[:, None] * X_PLANE, is_plane, 0.0)
        if PRECISION == "bfloat16":
            total = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
        else:
            total = tl.dot(a, b, total, input_precision=PRECISION)
    # one row of `shares` holds all weights, in their memory order, then all biases
    weights = 9 * FEW * MANY
    shares += tl.program_id(0).to(tl.int64) * (weights + (MANY if ELU else FEW))
    w_tap = tap // 9 * W_FEW + tap % 9 // 3 * W_ROW + tap % 3 * W_COLUMN
    tl.store(shares + w_tap[:, None] + column[None, :] * W_MANY, total, is_tap[:, None] & is_column[None, :])
    if ELU:
        of_bias = tl.sum(tl.where((tap == 9 * FEW)[:, None], total, 0.0), 0)
        tl.store(shares + weights + column, of_bias, is_column)
    elif tl.program_id(1) == 0:
        tl.store(shares + weights + plane, tl.sum(loose, 1), plane < FEW)


@triton.jit
def _weights_of_row(
    weight, row, w_many, w_few, w_row, w_column, FEW: tl.constexpr, MANY: tl.constexpr, DEPTH: tl.constexpr
):  # pragma: no cover - runs on the GPU
    """[channels, 16] of one row of the 3x3: columns are 4 for the left neighbour, 4 for the middle, 4 for the right."""
    channel, column = tl.arange(0, DEPTH), tl.arange(0, 16)
    plane, right = column % 4, column // 4
    at = channel[:, None] * w_many + (plane * w_few + row * w_row + right * w_column)[None, :]
    return tl.load(weight + at, (channel < MANY)[:, None] & ((plane < FEW) & (right < 3))[None, :], 0.0)


@triton.jit
def _times_row(
    x, line, j, i, is_line, w, total, row,
    PRECISION: tl.constexpr, MANY: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """The large side times its weights; a line above for row 0, below for row 2."""
    channel = tl.arange(0, DEPTH)
    inside = is_line & (i + row >= 1) & (i + row <= HEIGHT) & (j < WIDTH)
    at = ((line + row - 1).to(tl.int64) * WIDTH + j) * MANY
    a = tl.load(x + at[:, None] + channel[None, :], inside[:, None] & (channel < MANY)[None, :], 0.0)
    if PRECISION == "bfloat16":
        total = tl.dot(a, w.to(tl.bfloat16), total)
    else:
        total = tl.dot(a, w, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["lines"])
def _many_to_few(
    x, weight, bias, y, lines, w_many, w_few, w_row, w_column,
    PRECISION: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, LINES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    above = _weights_of_row(weight, 0, w_many, w_few, w_row, w_column, FEW, MANY, DEPTH)
    beside = _weights_of_row(weight, 1, w_many, w_few, w_row, w_column, FEW, MANY, DEPTH)
    under = _weights_of_row(weight, 2, w_many, w_few, w_row, w_column, FEW, MANY, DEPTH)
    PIXELS: tl.constexpr = LINES * WIDE
    p, column, plane = tl.arange(0, PIXELS), tl.arange(0, 16), tl.arange(0, 4)
    j = p % WIDE
    # the index of each neighbour's part of this pixel; beyond the ends of a line there is none
    shifted = p[:, None] + column[None, :] // 4 - 1
    neighbour = j[:, None] + column[None, :] // 4 - 1
    is_neighbour = (neighbour >= 0) & (neighbour < WIDTH) & (column < 12)[None, :]
    shifted = tl.where(is_neighbour, shifted, p[:, None])
    b = tl.load(bias + plane, plane < FEW, 0.0)
    for tile in range(TILES):
        line = (tl.program_id(0) * TILES + tile) * LINES + p // WIDE
        is_line, i = line < lines, line % HEIGHT
        total = tl.zeros([PIXELS, 16], tl.float32)
        total = _times_row(x, line, j, i, is_line, above, total, 0, PRECISION, MANY, HEIGHT, WIDTH, DEPTH)
        total = _times_row(x, line, j, i, is_line, beside, total, 1, PRECISION, MANY, HEIGHT, WIDTH, DEPTH)
        total = _times_row(x, line, j, i, is_line, under, total, 2, PRECISION, MANY, HEIGHT, WIDTH, DEPTH)
        total = tl.where(is_neighbour, tl.gather(total, shifted, 0), 0.0)
        found = tl.sum(tl.reshape(total, [PIXELS, 4, 4]), 1) + b[None, :]
        y_at = ((line // HEIGHT).to(tl.int64) * FEW * HEIGHT + i) * WIDTH + j
        is_pixel = is_line & (j < WIDTH)
        y_at = y_at[:, None] + plane[None, :] * (HEIGHT * WIDTH)
        tl.store(y + y_at, found, is_pixel[:, None] & (plane < FEW)[None, :])


def _tile(few: int, many: int, precision: Precision) -> dict[str, int]:
    """Taps, pixels and channels of a tile: a pixel for each thread, and in float32 no more than registers can hold.

    Hopper's own instructions, which need 64 pixels, do not take float32 in this layout; 32 pixels use Ampere's.
    """
    warps = 4 if precision == "bfloat16" else 1
    return {
        "TAPS": triton.next_power_of_2(9 * few + 1),
        "PIXELS": 32 * warps,
        "COLUMNS": max(16, min(MOST_COLUMNS, triton.next_power_of_2(many))),
        "num_warps": warps,
        "num_stages": 1,  # several programs at once hide latency; prefetching would bypass the nearest cache
    }


def share_for(tiles: int, across: int) -> int:
    """Number of tiles of pixels that a program adds up, if channels are split among `across` programs."""
    return triton.cdiv(tiles, max(1, PROGRAMS // across))


def _dense(weight: Tensor) -> Tensor:
    """Weights without gaps in memory, so that their gradients have the same layout and need no copy."""
    is_dense = weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)
    return weight if is_dense else weight.contiguous()


def _spread(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, precision: Precision) -> None:
    """Fill y, the large side, from x, the small one, by weights [many, few, 3, 3].

    The forward pass has a bias and an ELU; without them this is a backward pass, and the weights are flipped.
    """
    (n, many, height, width), few = y.shape, x.shape[1]
    tile = _tile(few, many, precision)
    tiles = n * triton.cdiv(height * width, tile["PIXELS"])
    _few_to_many[(triton.cdiv(tiles, TILES_EACH), triton.cdiv(many, tile["COLUMNS"]))](
        x, weight, x if bias is None else bias, y, n, x.stride(0), *weight.stride(),
        ELU=bias is not None, PRECISION=precision, FEW=few, MANY=many, HEIGHT=height, WIDTH=width,
        X_PLANE=x.stride(1), X_ROW=x.stride(2), X_COLUMN=x.stride(3), TILES=TILES_EACH, **tile,
    )  # fmt: skip


def _gradients(
    x: Tensor, many_side: Tensor, dy: Tensor | None, weight: Tensor, precision: Precision
) -> tuple[Tensor, Tensor]:
    """Gradients of weight [many, few, 3, 3] and bias, from the small side x and the large one.

    `dy` is the incoming gradient if there was an ELU. Otherwise that gradient is x, and its taps are flipped.
    """
    (n, many, height, width), few = many_side.shape, x.shape[1]
    tile = _tile(few, many, precision)
    tiles, across = n * triton.cdiv(height * width, tile["PIXELS"]), triton.cdiv(many, tile["COLUMNS"])
    share = share_for(tiles, across)
    parts = triton.cdiv(tiles, share)
    w_many, w_few, w_row, w_column = weight.stride()
    shares = weight.new_empty(parts, weight.numel() + (few if dy is None else many))
    _edge_conv_into_parameters[(parts, across)](
        x, many_side, many_side if dy is None else dy, shares, n, share, x.stride(0),
        ELU=dy is not None, PRECISION=precision, FEW=few, MANY=many, HEIGHT=height, WIDTH=width,
        X_PLANE=x.stride(1), X_ROW=x.stride(2), X_COLUMN=x.stride(3),
        W_MANY=w_many, W_FEW=w_few, W_ROW=w_row, W_COLUMN=w_column, **tile,
    )  # fmt: skip
    found = shares.sum(0)
    return found[: weight.numel()].as_strided(weight.shape, weight.stride()), found[weight.numel() :]


def _in_empty(x: Tensor, weight: Tensor, bias: Tensor, made: torch.dtype) -> list[Tensor]:
    size = (len(x), len(weight), *x.shape[2:])
    return [torch.empty(size, dtype=made, device=x.device, memory_format=torch.channels_last)]


def _in_forward(x: Tensor, weight: Tensor, bias: Tensor, made: torch.dtype) -> list[Tensor]:
    (y,), weight = _in_empty(x, weight, bias, made), _dense(weight)
    _spread(x, weight, bias.contiguous(), y, products_of(made, convolution=True))
    return [y]


def _in_backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    (x, weight, _, kind), (y,), (dy,) = args, made, gradients
    dy, precision = dy.contiguous(memory_format=torch.channels_last), products_of(kind, convolution=True)
    return None, *_gradients(x, y, dy, _dense(weight), precision), None


def _out_empty(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    return [x.new_empty(len(x), len(weight), *x.shape[2:], dtype=torch.float32)]


def _out_forward(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    (y,), x = _out_empty(x, weight, bias), x.contiguous(memory_format=torch.channels_last)
    (n, many, height, width), few, weight = x.shape, len(weight), _dense(weight).transpose(0, 1)
    precision = products_of(x.dtype, convolution=True)
    wide, at_once = triton.next_power_of_2(width), 32 if precision == "ieee" else 128
    high = max(1, at_once // wide)
    _many_to_few[(triton.cdiv(n * height, high * TILES_EACH),)](
        x, weight, bias.contiguous(), y, n * height, *weight.stride(),
        PRECISION=precision, FEW=few, MANY=many, HEIGHT=height, WIDTH=width,
        DEPTH=max(16, triton.next_power_of_2(many)), WIDE=wide, LINES=high, TILES=TILES_EACH,
        num_warps=max(1, high * wide // 32), num_stages=1,
    )  # fmt: skip
    return [y]


def _out_backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """The incoming gradient is the small side."""
    (x, weight, _), (dy,), dx, dweight, dbias = args, gradients, None, None, None
    x, weight = x.contiguous(memory_format=torch.channels_last), _dense(weight).transpose(0, 1)
    precision = products_of(x.dtype, convolution=True)
    if needed[0]:
        dx = torch.empty_like(x, memory_format=torch.channels_last)
        _spread(dy, weight, None, dx, precision)
    if needed[1] or needed[2]:
        dweight, dbias = _gradients(dy, x, None, weight, precision)
        dweight = dweight.transpose(0, 1)
    return dx, dweight, dbias


def _in_float32(weight: Tensor, bias: Tensor) -> bool:
    return weight.dtype == bias.dtype == torch.float32 and weight.numel() > 0


def _countable(n: int, many: int, height: int, width: int) -> bool:
    return 0 < n * height * width < MOST and many * height * width < MOST


def _in_supports(x: Tensor, weight: Tensor, bias: Tensor, made: torch.dtype) -> bool:
    precise = x.dtype == torch.float32 and made in (torch.float32, torch.bfloat16) and _in_float32(weight, bias)
    small = x.shape[1] <= FEW and _countable(len(x), len(weight), *x.shape[2:])
    return precise and small and not x.requires_grad  # there is no kernel for the gradient of pictures


def _out_supports(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    precise = x.dtype in (torch.float32, torch.bfloat16) and _in_float32(weight, bias)
    return precise and len(weight) <= FEW and x.shape[1] <= MANY and x.shape[3] <= WIDEST and _countable(*x.shape)


edge_conv_in = Fast(_in_forward, _in_empty, _in_backward, _in_supports)
edge_conv_out = Fast(_out_forward, _out_empty, _out_backward, _out_supports)

"""What Triton's compiler makes of the kernels, on a machine without a GPU: instructions, registers and spills.

```sh
python benchmarks/compiled.py               # compiles for an H200 (sm_90); nothing is launched
python benchmarks/compiled.py glide attend  # only modules whose names contain one of these
python benchmarks/compiled.py --bfloat16    # of what takes either, only bfloat16; float32 uses no tensor cores here
```
Run it before and after a change that should change nothing: the same hash is the same instructions in the same order.
The interpreter of the tests does not refuse what the compiler refuses; this does. It does not say how fast anything is.

It ends with an error where products of Hopper may read registers that were overwritten: in a pipelined loop Triton does
not wait for a product whose first factor is in registers before it computes that of the next step there
(triton-lang/triton#9433). Such a kernel is right but for once in millions of launches.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch import randn as r
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gtmsm.kernels.operator import OPERATORS, Fast

PTXAS = next((Path(triton.__file__).parent / "backends/nvidia/bin").glob("ptxas*"))


class NoGpu:
    """The driver of an H200 that is not there: kernels are compiled for it."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def cases(kinds: tuple[torch.dtype, ...]) -> Iterator[tuple[str, tuple[Any, ...], int]]:
    """Operator, arguments, and how many of its outputs have gradients; sizes are those of presets, or a little less."""
    for noise in (None, r(64, 288, 2)):
        yield "walled_poses", (r(64, 2), r(64, 288, 2), noise, r(64, 2), r(64), r(64), r(())), 1
    steps = r(32, 182), r(32, 182), r(32, 182, 48), r(2), r(48, 2), r(4, 48)
    yield "glide_steps", (r(32, 2), r(32, 182, 2), *steps), 2
    yield "most_visible", (r(2, 150, 4), r(2, 10, 4), 10, 80.0), 0
    for kind in kinds:
        row, sum_of = r(512, 256).to(kind), (r(512, 256).to(kind), r(256))
        yield "edge_conv_in", (r(8, 3, 32, 32), r(32, 3, 3, 3), r(32), kind), 1
        for side in (32, 64):
            yield "edge_conv_out", (r(8, 32, side, side).to(kind), r(3, 32, 3, 3), r(3)), 1
        yield "dense_layer", (r(2048, 192), r(128, 192), r(128), True, kind), 1
        yield "dense_layer", (r(4000, 256).to(kind), r(256, 256), r(256), True, kind), 1
        for activation in ("elu", "silu", "gelu"):
            yield "activated", (row, r(256), activation, None), 1
            yield "shortcut", (row, *sum_of, activation), 2
        yield "normed_sum", (row, *sum_of, r(256), r(256), 1e-5), 2
        for asked in (640, 600):
            yield "attend", (r(4, 64, 256).to(kind), r(4, asked, 512).to(kind), 64, None), 1


def compiled(fast: Fast, args: tuple[Any, ...], outputs: int) -> None:
    """Forward and backward; what comes out is any numbers."""
    made = list(fast.forward(*args))
    if outputs and fast.backward is not None:
        gradients = [torch.randn(x.shape).to(x.dtype) for x in made[:outputs]]
        fast.backward(gradients, args, made, [isinstance(x, Tensor) for x in args])


def told(name: str, ptx: str) -> str:
    """A line: instructions, a hash of them in order, registers of a thread, bytes spilled."""
    operations = [line.split()[0] for line in ptx.splitlines() if re.match(r"\t[a-z@]", line)]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        words = [PTXAS, "-v", "-arch=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    registers, spilled = (re.findall(pattern, said)[0] for pattern in (r"Used (\d+) reg", r"(\d+) bytes spill stores"))
    digest = hashlib.sha256("\n".join(operations).encode()).hexdigest()[:8]
    return f"{name:28} {len(operations):6,} {digest} {registers:>4} registers, {spilled} bytes spilled"


def not_awaited(ptx: str) -> bool:
    """Whether products of a factor in registers may still be under way when these are written to again."""
    products = re.findall(r"wgmma\.mma_async[^;]*;", ptx)
    left = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", ptx)
    return any(re.search(r"\}\s*,\s*\{", product) for product in products) and any(map(int, left))


def main(words: list[str]) -> None:
    """Compile what is launched, and print it instead of launching it."""
    wanted = [word for word in words if word != "--bfloat16"]
    kinds = (torch.bfloat16,) if "--bfloat16" in words else (torch.float32, torch.bfloat16)
    driver.set_active(NoGpu())
    run: Callable[..., Any] = JITFunction.run
    unsafe = []

    def compile_only(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **settings: Any) -> None:
        ptx = run(kernel, *args, grid=grid, warmup=True, **settings).asm["ptx"]
        print(told(kernel.__name__, ptx), flush=True)
        if not_awaited(ptx):
            unsafe.append(kernel.__name__)

    JITFunction.run = compile_only  # type: ignore[method-assign]
    from gtmsm.model import gtmsm as _  # noqa: F401 - registers all operators

    for name, args, outputs in cases(kinds):
        operator = OPERATORS[name]
        if not wanted or any(word in operator._modules["cuda"] for word in wanted):
            fast = operator.load("cuda")
            assert fast is not None and fast.supports(*args)
            compiled(fast, args, outputs)
    if unsafe:
        sys.exit(f"products of registers that are not awaited: {', '.join(unsafe)}")


if __name__ == "__main__":
    main(sys.argv[1:])

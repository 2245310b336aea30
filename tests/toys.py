"""What all tests share: cheap checks of shapes, and a toy world that trains in a second, with a tiny model."""

import atexit
import ctypes
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
import sparing
import torch
import torch.nn.functional as F
from jaxtyping import install_import_hook

gc.disable()  # until all tests are imported: there is no garbage before
if not torch.cuda.is_available():
    # Read when Triton is imported, which some modules of PyTorch do.
    os.environ.setdefault("TRITON_INTERPRET", "1")
if importlib.util.find_spec("triton") and os.environ.get("TRITON_INTERPRET") == "1":
    sparing.interpret_faster()

# Shapes in signatures are checked in every room but those that greet people: they refuse in words of their own. And
# not in Triton's kernels: it compiles the source of a function, which the hook has rewritten ("tl is not defined").
CHECKED = ("kernels", "worlds", "data", "evaluation", "film", "find", "model", "pose", "tensors")
GREETING = {
    "gtmsm.model.gtmsm",
    "gtmsm.model.settings",
    "gtmsm.model.checks",
    "gtmsm.model.dream",
    "gtmsm.model.weights",
    "gtmsm.model.long_memory.memory",
}


def check_shapes() -> None:
    """From now on, wherever these are imported."""
    spec = importlib.util.find_spec("gtmsm")
    assert spec is not None and spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    paths = (path.relative_to(package).with_suffix("").parts for path in package.rglob("*.py"))
    names = {".".join(("gtmsm", *parts)) for parts in paths if parts[0] in CHECKED and parts[-1] != "__init__"}
    install_import_hook(sorted(name for name in names - GREETING if not name.endswith("_triton")), "beartype.beartype")


sparing.spare()
sparing.parse_faster()
check_shapes()

from gtmsm import WorldModel, WorldModelConfig, cli  # noqa: E402
from gtmsm.model.motion import MotionConfig  # noqa: E402

Result = TypeVar("Result")

TOY_FLAGS = (
    "--world.size 20 --model.vae.width 32 --model.vae.code-size 8 --batch 4 --tau 16 --horizon 4 --warm-up 4 "
    "--grow 4 4 --updates 16 --prospect.candidates 32 --prospect.rounds 2 --prospect.restarts 1 --prospect.clips 4 "
    "--prospect.tau 8 --prospect.horizon 4 --log-every 3 --watch-every 6 --save-every 5 "
    "--evaluation.tau 16 --evaluation.horizon 20 --evaluation.clips 4 --device cpu"
)


def smooth_images(n: int, seed: int, size: int = 20) -> torch.Tensor:
    """Colours that change slowly and never repeat: no two places look alike."""
    coarse = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    return (F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1) * 255).byte()


LONG = (
    "fast_kernels_make", "prospecting_finds", "process_that_is_interrupted", "in_a_real_process", "for_hours",
    "with_and_without_each_operator", "wrong_files_and_odd", "killed_runs",
)  # fmt: skip
"""Parts of names of tests that take long though they train nothing. Those that share a fixture stay with their file."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As in malloc.h."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: not (item.get_closest_marker("slow") or any(part in item.name for part in LONG)))


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: from now on the search for garbage leaves them out, a tenth of all time.

    To search a tenth as often as is usual takes 3% off, and to keep freed memory, which is given out again soon, 2%.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    gc.enable()
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # glibc's
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 256 << 20)
    atexit.register(gc.unfreeze)  # modules are taken apart at the end as ever


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Shapes are checked anew in every file of tests."""
    sparing.begin_test(item.path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Autograd that knows of a GPU refuses to run in a fork: a test that forks is run by a process that sees no GPU."""
    if pyfuncitem.get_closest_marker("forks") is None or not torch.cuda.is_available():
        return None
    words = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--benchmark-disable", pyfuncitem.nodeid]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=pyfuncitem.config.rootpath,
        # Lightning asks for NVML, by which a fork is the first to meet the driver of CUDA, and dies of it.
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    return True


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the parent process ignores it, as `nohup make test &` does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def triton_device() -> str:
    """Where kernels in Triton run: on a GPU, or by Triton's interpreter on a CPU."""
    if torch.cuda.is_available():
        return "cuda"
    if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton needs a CUDA device, or its interpreter")
    return "cpu"


@pytest.fixture
def note_launches(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """From now on, a list of the kernels of a module that are launched."""

    def note(module: ModuleType, *kernels: str) -> list[str]:
        names: list[str] = []

        class Noted:
            def __init__(self, name: str) -> None:
                self.name, self.kernel = name, getattr(module, name)

            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
                names.append(self.name)
                return self.kernel[grid]

        for name in kernels:
            monkeypatch.setattr(module, name, Noted(name))
        return names

    return note


@pytest.fixture
def in_a_graph() -> Callable[[Callable[[], list[torch.Tensor]]], tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """What an update makes by itself, and what it makes as a CUDA graph that is replayed twice: nothing may pile up."""
    if not torch.cuda.is_available():
        pytest.skip("only a GPU captures graphs")

    def both(update: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        made: list[list[torch.Tensor]] = []

        def make() -> None:
            # Detached: an autograd graph that is kept alive binds gradients to the stream it was made on.
            made.append([x.detach() for x in update()])

        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            for _ in range(3):  # everything must have been compiled and allocated before
                make()
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            make()
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        return made[0], made[-1]

    return both


@pytest.fixture
def without_waiting() -> Callable[[Callable[[], Result]], Result]:
    """Run something in which the host must not wait for the GPU."""

    def run(call: Callable[[], Result]) -> Result:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch calls this mode a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            return call()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = f"/usr/bin/{os.environ['GTMSM_BROWSER']}"
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def turner() -> WorldModel:
    """An agent that goes two ahead (0), or turns: to the left by 0.3 (1) or by 0.45 (2), to the right by 0.3 (3)."""
    torch.manual_seed(0)
    model = WorldModel(WorldModelConfig(motion=MotionConfig(kind="turning")), (3, 8, 8), 4).eval().requires_grad_(False)
    model.motion.get_parameter("move").copy_(torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    model.motion.get_parameter("turn").copy_(torch.tensor([0.0, 0.3, 0.45, -0.3]))
    return model


@pytest.fixture(scope="session")
def toy_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .npz of 64 images to train on and 8 to be tested on."""
    path = tmp_path_factory.mktemp("images") / "toy.npz"
    train, test = (smooth_images(n, seed=n).permute(0, 2, 3, 1).numpy() for n in (64, 8))
    np.savez(path, train=train, test=test)
    return path


@pytest.fixture(scope="session")
def toy_flags(toy_images: Path) -> list[str]:
    """What makes `gtmsm train image-walk-small` a matter of a second."""
    return [*TOY_FLAGS.split(), "--images", str(toy_images)]


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory, toy_flags: list[str]) -> Path:
    """A trained and scored run folder; look at it, but do not write into it."""
    folder = tmp_path_factory.mktemp("runs") / "toy"
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "image-walk-small", *toy_flags, "--run", str(folder)])
    assert ended.value.code == 0
    return folder


class Told(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def gtmsm(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """The command line, in this process."""

    def command(*words: object) -> Told:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Told(int(ended.value.code or 0), out, err)

    return command


@pytest.fixture
def refused(gtmsm: Callable[..., Told]) -> Callable[..., str]:
    """The one line that a command is refused with."""

    def command(*words: object) -> str:
        code, _, err = gtmsm(*words)
        assert code == 2, err
        assert err.startswith("gtmsm: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        return err.removeprefix("gtmsm: ").rstrip()

    return command

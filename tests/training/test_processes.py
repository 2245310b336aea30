"""Training in processes of its own: interrupted, killed, and shared by two."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kill_trials import left_in, start, wait, work, write_images

from gtmsm import cli
from gtmsm.errors import InputError
from gtmsm.files import read_tensors
from gtmsm.model.gtmsm import WorldModel
from gtmsm.training import train as training
from gtmsm.training.engine import _machines

pytestmark = pytest.mark.usefixtures("ctrl_c")


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_interrupted_says_how_to_resume_and_resumes_exactly(tmp_path: Path, toy_flags: list[str]):
    long = [*toy_flags, "--warm-up", "4000", "--updates", "5000", "--save-every", "100000", "--no-evaluate"]
    command, run, log = ["train", "image-walk-small"], tmp_path / "run", tmp_path / "log"
    child, _ = start([*command, *long, "--run", str(run)], log)
    while not (run / "metrics.jsonl").is_file() or not (run / "metrics.jsonl").read_text():
        assert os.waitpid(child, os.WNOHANG) == (0, 0), log.read_text()
        time.sleep(0.02)
    os.kill(child, signal.SIGINT)
    assert wait(child) == 130
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    told = log.read_text().replace("\n", " ")
    assert f"interrupted; continue with: gtmsm train image-walk-small --run {run} --resume" in told
    assert "gtmsm: " not in told
    assert WorldModel.load(run).action_size == 5
    done = int(read_tensors(run / "checkpoint.safetensors")[1]["count"])
    assert 0 < done < 4000

    # In this process: resume to a few updates more, and train as many at once.
    resumed = ["--run", str(run), "--resume", "--updates", str(done + 5), "--device", "cpu", "--no-evaluate"]
    at_once = [*long, "--run", str(tmp_path / "at once"), "--updates", str(done + 5)]
    for flags in (resumed, at_once):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, *flags])
        assert ended.value.code == 0
    assert left_in(run) == left_in(tmp_path / "at once")


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_runs_are_resumed_exactly(tmp_path: Path):
    """A few of the trials of which docs/reliability.md tells."""
    write_images(tmp_path / "images.npz")
    rows = work(0, 2, 0, 0, tmp_path, tmp_path / "images.npz")
    assert len(rows) >= 2
    assert not [problem for row in rows for problem in row["wrong"]]


DOUBLED = """
from pathlib import Path
import torch
from lightning_fabric import Fabric
from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.files import write_tensors
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import Motion
from gtmsm.training.curriculum import Stage
from gtmsm.training.engine import build_fabric
from gtmsm.training.loss import Loss, ObjectiveConfig
from gtmsm.training.update import OptimiserConfig, Updater
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker

def drawn_by(generator):
    world = ImageWalk((255 * torch.rand(6, 3, 20, 20, generator=torch.Generator().manual_seed(1))).byte(),
                      ImageWalkConfig(size=20))
    clip = record(world, PoissonWalker(), 2, 20, generator)
    return Clip(*(part.double() for part in (clip.x, clip.a, clip.true_pose, clip.true_step)))

def trained(fabric, source, generator, name):
    torch.manual_seed(0)
    settings = WorldModelConfig(vae=FrameVAEConfig(width=16, code_size=4))
    model = WorldModel(settings, (3, 8, 8), 5).double()
    updater = Updater(fabric, Loss(model, ObjectiveConfig()), source, OptimiserConfig(batch=4), generator)
    updater.enter(Stage("here", 0, 100, 16, 4, settings.recall, motion_rate=1.0, wall_rate=1.0))
    for _ in range(5):
        updater.run()
    if fabric.is_global_zero:
        write_tensors(Path("{folder}") / (name + ".safetensors"), model.state_dict(), {{}})

fabric = build_fabric("cpu", 2, 4)
fabric.launch()
trained(fabric, lambda n, steps, own: drawn_by(own), torch.Generator().manual_seed(fabric.global_rank), "two")
if fabric.is_global_zero:
    both, randn = [torch.Generator().manual_seed(rank) for rank in (0, 1)], torch.randn
    def in_halves(*shape, generator=None, **kind):  # the numbers that both processes drew
        if generator is None:
            return randn(*shape, **kind)
        n, *rest = shape[0] if len(shape) == 1 else shape
        return torch.cat([randn(n // 2, *rest, generator=half, **kind) for half in both])
    def all_clips(n, steps, generator):
        one, two = (drawn_by(half) for half in both)
        return Clip(*(torch.cat(parts) for parts in zip((one.x, one.a, one.true_pose, one.true_step),
                                                        (two.x, two.a, two.true_pose, two.true_step))))
    torch.randn = in_halves
    draw = Motion.draw_noise
    Motion.draw_noise = lambda self, a, _: torch.cat([draw(self, *half) for half in zip(a.chunk(2), both)])
    trained(Fabric(accelerator="cpu", devices=1), all_clips, torch.Generator(), "one")
"""
"""Two processes with half a batch each, and then one with all of it, in float64, by the same random numbers."""


TOGETHER = ("--device=cpu", "--devices=2", "--no-evaluate")


def pair(script: Path, commands: list[list[str]], after: str) -> subprocess.CompletedProcess[str]:
    """Two processes that run commands one after the other: starting a pair takes longer than all its updates."""
    script.write_text(f"""
from gtmsm import cli
for flags in {commands}:
    try:
        cli.main(["train", "image-walk-small", *flags, *{TOGETHER}])
    except SystemExit as ended:
        assert ended.code == 0, ended.code
{after}
""")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180, check=False)


def pair_of_which_one_dies(monkeypatch: pytest.MonkeyPatch, command: list[str], logs: Path) -> tuple[int, int]:
    """Two processes as torchrun would start them, but forked, which saves imports; how both ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in (("TORCHELASTIC_RUN_ID", "a"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, value)
    save, children = training.write_checkpoint, []

    def save_and_die(*arguments: Any) -> None:
        save(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    for rank in ("0", "1"):
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, rank)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, "2")
        children.append(start(command, logs / f"log {rank}")[0])
        monkeypatch.setattr(training, "write_checkpoint", save_and_die)
    monkeypatch.undo()
    ends = [os.waitpid(child, 0)[1] for child in children]
    return ends[0], ends[1]


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.slow
def test_two_processes_share_a_run_and_resume_it_exactly_after_a_kill(
    tmp_path: Path, toy_flags: list[str], monkeypatch: pytest.MonkeyPatch
):
    at_once, killed = f"--run={tmp_path}/at once", f"--run={tmp_path}/killed"
    dying = ["train", "image-walk-small", "--run", f"{tmp_path}/killed", *toy_flags, "--updates", "9", *TOGETHER]
    first, other = pair_of_which_one_dies(monkeypatch, dying, tmp_path)
    assert os.WTERMSIG(other) == signal.SIGKILL and os.WEXITSTATUS(first) == 2
    said = (tmp_path / "log 0").read_text()
    assert f"another process of this training was killed; {tmp_path}/killed has a checkpoint" in said
    assert "Traceback" not in said.split("gtmsm: ")[0]
    assert int(read_tensors(tmp_path / "killed" / "checkpoint.safetensors")[1]["count"]) == 5
    again = [[killed, "--resume", "--updates", "9"], [at_once, *toy_flags, "--updates", "9"]]
    done = pair(tmp_path / "again.py", again, DOUBLED.format(folder=tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("9 updates behind it") == 2
    assert left_in(tmp_path / "killed") == left_in(tmp_path / "at once")
    generators = read_tensors(tmp_path / "at once" / "checkpoint.safetensors")[1]["generator"]
    assert len(generators) == 2
    assert not torch.equal(generators[0], generators[1])
    one, other = (read_tensors(tmp_path / f"{name}.safetensors")[1] for name in ("one", "two"))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-10


def test_torchrun_says_how_many_machines_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert _machines(2) == 4
    with pytest.raises(InputError, match="devices is 1, but torchrun has started 2 processes here; give --devices 2"):
        _machines(1)

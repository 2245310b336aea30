"""What is attacked: readers and verbs with wrong files, verbs and public methods with odd arguments."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import torch
from fuzz import mutate
from fuzz.material import TOY
from fuzz.odd import odd, odd_words

from gtmsm import Belief, Clip, Gaussian, InputError, LongMemory, Memory, WorldModel, WorldModelConfig, cli
from gtmsm.config import read_config
from gtmsm.data.record import record
from gtmsm.data.store import Recording, read_clip, write_clip
from gtmsm.run import Run, read_scores
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images, load_picture, read_picture
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms
from gtmsm.worlds.walkers import PoissonWalker

Thunk = Callable[[], Any]
RUN, WALK, VIEW, IMAGES = Path("run"), Path("walk.npz"), Path("view.png"), Path("images.npz")
_NAMED = {"run": RUN, "walk": WALK, "view": VIEW}
FRAME, ACTIONS = (3, 8, 8), 5

# ---- commands

COMMANDS = {
    "evaluate": "evaluate {run} --clips 1 --horizon 4 --seed 3 --out scored --device cpu",
    "imagine": "imagine {run} --steps 4 --tau 12 --actions r2 --picture view.png --out film.gif --device cpu",
    "record": "record {run} new.npz --steps 12 --seed 2 --images images.npz",
    "localise": "localise {run} {walk} {view} --out where.png --closure 0 --device cpu",
    "compare": "compare {run} {run}",
    "resume": "train obstacles-small --run {run} --resume --updates 4 --device cpu --no-evaluate",
    "train": f"train obstacles-small --run new {TOY}",
    "begin": f"train obstacles-small --run new {TOY} --begin-with {{run}}",
    "bench": "bench nothing --json new.json --device cpu",
    "demo": "demo nothing --run new --seed 1",
}


def command(words: list[str]) -> None:
    """The command line in this process; it ends with SystemExit."""
    try:
        cli.main(words)
    finally:
        for path in Path().glob("scored/scores.json"):
            json.loads(path.read_text(), parse_constant=lambda word: _fail(f"{word} in scores.json"))


def _fail(what: str) -> None:
    raise AssertionError(what)


# ---- wrong files


@dataclass(frozen=True)
class FileTarget:
    """A file of a format, how it is harmed, and who reads it then."""

    name: str
    share: int
    path: Path
    mutate: Callable[[Random, bytes], bytes]
    read: Callable[[Path], Any] | str
    """A function of its path, or the name of a command."""

    def prepare(self, rng: Random) -> tuple[Thunk, str]:
        """Harm the file in the current folder; what to call then, and the call in words."""
        if (way := rng.random()) < 0.04:
            mutate.no_file(rng, self.path)
        else:
            good = self.path.read_bytes()
            self.path.write_bytes(self.mutate(rng, good) if way < 0.97 else good)
        top = old = Path(self.path.parts[0])
        if rng.random() < 0.06:
            top = Path(f"{rng.choice(mutate.NAMES)}{old.suffix}")
            top.parent.mkdir(exist_ok=True)
            if os.path.lexists(old):
                old.rename(top)
        path = top.joinpath(*self.path.parts[1:])
        if not isinstance(self.read, str):
            return partial(self.read, path), f"{self.name}({str(path)!r})"
        names = {name: str(top if where == old else where) for name, where in _NAMED.items()}
        words = [word.format(**names) for word in COMMANDS[self.read].split()]
        return partial(command, words), f"gtmsm {words}"


def _answer(path: Path) -> Any:
    """Load weights, and ask them."""
    model = WorldModel.load(path)
    chance = torch.Generator().manual_seed(0)
    x = torch.rand(1, 8, *model.frame_shape, generator=chance)
    a = torch.eye(model.action_size)[torch.randint(model.action_size, (1, 8), generator=chance)]
    memory, here = model.memorise(x, a)
    return memory, here, model.imagine(memory, here, a).frames, model.explain(x, a, tau=6).bound


def _folder(path: Path) -> Any:
    return load_images(path.parent, 20)


def _clip(path: Path) -> Any:
    recording = read_clip(path, FRAME, ACTIONS)
    return recording, recording.x(), recording.a(ACTIONS)


WEIGHTS, CHECKPOINT, CONFIG = RUN / "weights.safetensors", RUN / "checkpoint.safetensors", RUN / "config.yaml"
SCORES, METRICS = RUN / "scores.json", RUN / "metrics.jsonl"
FILES = [
    FileTarget("weights: load, imagine", 2000, WEIGHTS, mutate.tensors, _answer),
    FileTarget("weights of rooms: load, imagine", 1000, Path("rooms.safetensors"), mutate.tensors, _answer),
    FileTarget("weights: evaluate", 40, WEIGHTS, mutate.tensors, "evaluate"),
    FileTarget("weights: imagine", 60, WEIGHTS, mutate.tensors, "imagine"),
    FileTarget("weights: localise", 60, WEIGHTS, mutate.tensors, "localise"),
    FileTarget("weights: train --begin-with", 60, WEIGHTS, mutate.tensors, "begin"),
    FileTarget("checkpoint: train --resume", 500, CHECKPOINT, mutate.tensors, "resume"),
    FileTarget("config: Run.open", 1700, CONFIG, mutate.yaml_file, lambda path: Run.open(path.parent)),
    FileTarget("config: record", 150, CONFIG, mutate.config_to_use, "record"),
    FileTarget("config: evaluate", 30, CONFIG, mutate.config_to_use, "evaluate"),
    FileTarget("config: train --resume", 100, CONFIG, mutate.config_to_use, "resume"),
    FileTarget("scores: read", 700, SCORES, mutate.json_file, lambda path: read_scores(path.parent)),
    FileTarget("scores: compare", 700, SCORES, mutate.json_file, "compare"),
    FileTarget("metrics: train --resume", 300, METRICS, mutate.json_lines, "resume"),
    FileTarget("walk: read_clip", 1200, WALK, mutate.archive, _clip),
    FileTarget("walk: localise", 100, WALK, mutate.archive, "localise"),
    FileTarget("images: load_images", 800, IMAGES, mutate.archive, lambda path: load_images(path, 20)),
    FileTarget("picture: read_picture", 900, VIEW, mutate.picture, read_picture),
    FileTarget("picture: load_picture", 900, VIEW, mutate.picture, lambda path: load_picture(path, 20)),
    FileTarget("picture: folder of images", 300, Path("folder/2.png"), mutate.picture, _folder),
    FileTarget("picture: localise", 60, VIEW, mutate.picture, "localise"),
]

# ---- odd calls


@dataclass(frozen=True)
class CallTarget:
    """A public function with good arguments, of which one or two become odd."""

    name: str
    share: int
    make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]

    def prepare(self, rng: Random) -> tuple[Thunk, str]:
        """The call to make, and the same in words."""
        function, arguments = self.make()
        for name in rng.sample(list(arguments), min(len(arguments), rng.choice([1, 1, 1, 2]))):
            arguments[name] = odd(rng, arguments[name])
        told = ", ".join(f"{name}={' '.join(repr(value)[:200].split())[:60]}" for name, value in arguments.items())
        return partial(function, **arguments), f"{self.name}({told})"


@dataclass(frozen=True)
class CommandTarget:
    """A command, of which one or two words become odd."""

    name: str
    share: int

    def prepare(self, rng: Random) -> tuple[Thunk, str]:
        """The call to make, and the same in words."""
        good = COMMANDS[self.name].format(run="run", walk="walk.npz", view="view.png").split()
        words = odd_words(rng, good, may_lose=self.name not in ("bench", "demo", "resume"))
        return partial(command, words), f"gtmsm {words}"


def _walk(n: int = 2, steps: int = 12) -> Clip:
    world = ImageWalk(load_images(IMAGES, 20).train, ImageWalkConfig(size=20))
    return record(world, PoissonWalker(), n, steps, torch.Generator().manual_seed(0))


def _with_model(verb: str, *names: str) -> CallTarget:
    """A verb of the model; arguments by name."""

    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        model, clip = WorldModel.load(RUN), _walk()
        memory, here = model.memorise(clip.x, clip.a)
        known = {
            "frames": clip.x, "actions": clip.a, "memory": memory, "here": here, "tau": 8, "batch": 2, "closure": 0,
            "plan": clip.a[:, :3], "generator": torch.Generator().manual_seed(0), "path": "new.safetensors",
        }  # fmt: skip

        def call(**given: Any) -> Any:
            answer = getattr(model, verb)(**given)
            return (answer.poses, answer.frames, answer.retrieved) if verb == "imagine" else answer

        return call, {name: known[name] for name in names}

    return CallTarget(f"WorldModel.{verb}", 50, make)


def _entries(n: int = 70) -> Memory:
    chance = torch.Generator().manual_seed(0)
    place, mean, log_var = (torch.randn(1, n, size, generator=chance) for size in (2, 4, 4))
    return Memory(Belief(place), Gaussian(mean, log_var))


def _of_memory(verb: str, long: bool, **good: Any) -> CallTarget:
    """A method of a memory of 70 entries; what was written is then searched."""

    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        memory = LongMemory.of(_entries(), buffer=16) if long else _entries()

        def call(**given: Any) -> Any:
            answer = getattr(memory, verb)(**given)
            if isinstance(index := given.get("index"), torch.Tensor) and index.device.type == "cpu":
                assert not index.numel() or 0 <= index.min() <= index.max() < 70, "an answer for no entry"
            grown = answer if isinstance(answer, Memory) else memory
            return answer, grown.nearest(Belief(torch.zeros(1, 1, 2)), 3)

        return call, dict(good)

    return CallTarget(f"{'LongMemory' if long else 'Memory'}.{verb}", 30, make)


def _in_world(make_world: Callable[[], Any], name: str, verb: str, **good: Any) -> CallTarget:
    def make() -> tuple[Callable[..., Any], dict[str, Any]]:
        world = make_world()
        return lambda **given: (getattr(world, verb)(**given), world.look(), world.pose), dict(good)

    return CallTarget(f"{name}.{verb}", 15, make)


def _in_env(name: str, **settings: Any) -> CallTarget:
    def call(seed: Any, action: Any, **settings: Any) -> Any:
        try:
            # An odd render_mode is Gymnasium's to refuse.
            env = gymnasium.make(name, disable_env_checker=True, render_mode="rgb_array", **settings)
            return env.reset(seed=seed), env.step(action), env.render()
        except gymnasium.error.Error as problem:  # Gymnasium's own refusal
            raise InputError(str(problem)) from None

    return CallTarget(name, 40, lambda: (call, {"seed": 1, "action": 2} | settings))


def _image_walk() -> ImageWalk:
    return ImageWalk(load_images(IMAGES, 20).train, ImageWalkConfig(size=20))


def _rooms() -> Rooms:
    config = RoomsConfig(textures="procedural", pixels=32, antialias=1, train_places=1, test_places=1)
    return draw_rooms(config, 1, seed=0)


def _settings(**settings: Any) -> WorldModel:
    return WorldModel(read_config(WorldModelConfig, settings, "settings"), FRAME, ACTIONS)


QUERY, INDEX = Belief(torch.zeros(1, 2, 2)), torch.tensor([[[0, 5], [69, 3]]])
CALLS: list[CallTarget | CommandTarget] = [
    *(CommandTarget(name, 30) for name in COMMANDS),
    _with_model("memorise", "frames", "actions", "memory", "here", "closure"),
    _with_model("follow", "frames", "actions", "memory", "here", "closure"),
    _with_model("localise", "memory", "frames", "actions"),
    _with_model("imagine", "memory", "here", "actions", "generator"),
    _with_model("explain", "frames", "actions", "tau", "generator"),
    _with_model("forward", "frames", "actions", "plan"),
    _with_model("anywhere", "batch"),
    _with_model("save", "path"),
    CallTarget("WorldModel.load", 20, lambda: (WorldModel.load, {"path": "run", "device": "cpu"})),
    CallTarget("WorldModelConfig", 40, lambda: (_settings, asdict(WorldModelConfig()))),
    CallTarget("LongMemory", 15, lambda: (LongMemory, {"index": "tree", "buffer": 16, "ratio": 4})),
    CallTarget("Clip.split", 15, lambda: (_walk().split, {"tau": 3})),
    CallTarget("load_images", 15, lambda: (load_images, {"source": "images.npz", "size": 20})),
    CallTarget("write_clip", 15, lambda: (lambda clip: write_clip(WALK, Recording.of(clip)), {"clip": _walk(1)})),
    *(_of_memory("write", long, later=_entries(5)) for long in (True, False)),
    *(_of_memory("nearest", long, query=QUERY, k=3, distance="euclidean") for long in (True, False)),
    *(_of_memory("place_at", long, index=INDEX) for long in (True, False)),
    *(_of_memory("code_at", long, index=INDEX) for long in (True, False)),
    *(_of_memory("retrieve", long, index=INDEX) for long in (True, False)),
    _of_memory("insert", True, place=[0.5, 1.0], mean=[0.0] * 4, log_var=[0.0] * 4),
    _of_memory("find", True, place=[0.5, 1.0], k=3),
    *(
        _in_world(world, name, verb, **good)
        for world, name in ((_image_walk, "ImageWalk"), (_rooms, "Rooms"))
        for verb, good in (
            ("reset", {"n": 1, "generator": torch.Generator()}),
            ("step", {"action": torch.tensor([1])}),
            ("walk", {"actions": torch.tensor([[1, 2, 0]])}),
        )
    ),
    _in_env(
        "gtmsm/ImageWalk-v0", images="images.npz", size=20, crop=8, stride=3, start="centre", slip=0.1, obstacles=0
    ),
    _in_env("gtmsm/Rooms-v0", pixels=32, plan="room", textures="procedural", places=2, objects=1),
]

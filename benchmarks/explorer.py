"""What an Explorer costs per step, and how well it knows where it is: `python benchmarks/explorer.py [PART ...]`.

Parts, by default all: `cost` (100,000 steps, some minutes; draws explorer.png), `beside` (steps with 100,000 views
memorised and with 1,000, in turn, so that other work on the machine slows both alike), `loops` (walks with 10% slips,
online and in one call), `walks` (a second walk through a picture from an unknown start, and one through another).
The weights are weights/obstacles-celeba, the pictures are those that ship, none of which they were trained on.
`--steps`, `--walks` and `--closure` change the sizes, `--seed` the walk of `cost`.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from gtmsm import Belief, Explorer, Memory, WorldModel
from gtmsm.data.clip import Clip
from gtmsm.data.record import as_clip, record
from gtmsm.evaluation.examine.examiner import from_start
from gtmsm.evaluation.examine.image_walk import ImageWalkExaminer
from gtmsm.model.motion import Walled
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.slip import SlipConfig, slipping
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig

WEIGHTS = Path(__file__).parent.parent / "weights" / "obstacles-celeba"
WALKER = PoissonWalker(PoissonWalkerConfig(look_first=True))
PARTS = ("cost", "beside", "loops", "walks")


def a_world() -> ImageWalk:
    """Held-out pictures, with obstacles."""
    return ImageWalk(load_images("builtin", 32).test, ImageWalkConfig(obstacles=2))


def right(found: Tensor, clip: Clip) -> Tensor:
    """Whether poses are within half a cell of the true ones."""
    return (found - from_start(clip.true_start, clip.true_pose)).norm(dim=-1) <= 0.5


def cost(model: WorldModel, steps: int, closure: int, seed: int = 0) -> None:
    """Milliseconds of each step of one long walk, by the clock and by the processor."""
    chance = torch.Generator().manual_seed(seed)
    clip = record(slipping(a_world(), SlipConfig(probability=0.1)), WALKER, 1, steps, chance)
    explorer, wall, busy = Explorer(model, closure=closure), torch.zeros(steps), torch.zeros(steps)
    print(f"a walk of {steps:,} steps, loops closed every {closure}; ms of a step")
    print("up to step     median   mean  99 of 100  longest | processor: median   mean | in the right cell")
    part = max(1, steps // 10)
    for t in range(steps):
        since, worked = time.perf_counter(), time.process_time()
        explorer.step(clip.x[0, t], clip.a[0, t])
        wall[t], busy[t] = 1e3 * (time.perf_counter() - since), 1e3 * (time.process_time() - worked)
        if (t + 1) % part == 0:
            near, cpu = wall[t + 1 - part : t + 1], busy[t + 1 - part : t + 1]
            is_right = right(explorer.path, clip[:, : t + 1])[0, -part:].float()
            print(
                f"{t + 1:12,} {near.median():8.2f} {near.mean():6.2f} {near.quantile(0.99):10.2f} {near.max():8.1f} | "
                f"{cpu.median():17.2f} {cpu.mean():6.2f} | {100 * is_right.mean():.1f}%",
                flush=True,
            )
    first, last = slice(0, 1_000), slice(steps - 1_000, steps)
    for name, times in (("clock", wall), ("processor", busy)):
        ratio = times[last].mean() / times[first].mean()
        print(
            f"{name}: first 1,000 steps {times[first].mean():.2f} ms, last {times[last].mean():.2f}, {ratio:.2f} times"
        )
    chunks = busy[: steps // 500 * 500].view(-1, 500)
    plt.figure(figsize=(7, 3))
    plt.plot(500 * torch.arange(1, len(chunks) + 1), chunks.mean(1), label="mean of 500 steps")
    plt.plot(500 * torch.arange(1, len(chunks) + 1), chunks.median(1).values, label="median")
    plt.xlabel("steps, one memorised view each")
    plt.ylabel("ms of processor time")
    plt.ylim(0)
    plt.legend()
    plt.tight_layout()
    plt.savefig("explorer.png", dpi=120)


def beside(model: WorldModel, steps: int, closure: int, more: int = 1_280) -> None:
    """The same steps, with few views memorised before them and with many, at their true places."""
    clip = record(a_world(), WALKER, 1, steps + more, torch.Generator().manual_seed(1))
    true, landmarks = from_start(clip.true_start, clip.true_pose), model.require_landmarks("walk")
    explorers, times = [], torch.zeros(2, more)
    for first in (steps - 1_000, 0):
        code, place = model.vae.encode(clip.x[:, first:steps]), true[:, first:steps]
        variance = torch.full_like(place[..., :1], 0.01)
        memory = Memory(Belief(place, landmarks.as_covariance(variance, place)), code, variance=variance)
        explorers.append(Explorer(model, memory, Belief(true[:, steps - 1]), closure))
    for t in range(more):
        for i, explorer in enumerate(explorers):
            since = time.process_time()
            explorer.step(clip.x[0, steps + t], clip.a[0, steps + t])
            times[i, t] = 1e3 * (time.process_time() - since)
    few, many = times
    print(f"{more} steps with 1,000 and with {steps:,} views before, loops closed every {closure}; processor ms:")
    print(f"  median {few.median():.2f} and {many.median():.2f}, {many.median() / few.median():.2f} times;", end=" ")
    print(f"mean {few.mean():.2f} and {many.mean():.2f}, {many.mean() / few.mean():.2f} times", flush=True)


def loops(model: WorldModel, walks: int, closure: int, steps: int) -> None:
    """Shares of right cells, on the map that is left in the end and as believed at each step."""
    inner = a_world()
    clip = record(slipping(inner, SlipConfig(probability=0.1)), WALKER, walks, steps, torch.Generator().manual_seed(2))
    paths, poses = [], []
    for i in range(walks):
        explorer = Explorer(model, closure=closure)
        poses.append([explorer.step(x, a).mean for x, a in zip(clip.x[i], clip.a[i], strict=True)])
        explorer.close_loops()
        paths.append(explorer.path)
    believed = right(torch.cat([torch.stack(each, 1) for each in poses]), clip).float().mean()
    equal = right(ImageWalkExaminer(inner, steps).by_equal_frames(clip), clip).float().mean()
    one_call = right(model.follow(clip.x, clip.a, closure=closure).mean, clip).float().mean(1)
    online = right(torch.cat(paths), clip).float().mean(1)
    none = right(model.follow(clip.x, clip.a, closure=0).mean, clip).float().mean(1)
    more = 100 * (online - one_call)
    mean, error = more.mean(), more.std() / walks**0.5
    print(f"{walks} walks of {steps} steps, 10% slips, in the right cell:")
    print(f"  no loops closed {100 * none.mean():.1f}%, closed in one call {100 * one_call.mean():.1f}%")
    print(f"  closed step by step {100 * online.mean():.1f}%: {mean:+.2f} ± {error:.2f} points")
    print(f"  as believed at each step, closed step by step {100 * believed:.1f}%; equal frames {100 * equal:.1f}%")


def walks_of_one_place(model: WorldModel, walks: int, closure: int, longest: int = 60) -> None:
    """A first walk of 256 steps; then from any free cell of the same picture, or of another one, until it is found."""
    world, chance = a_world(), torch.Generator().manual_seed(3)
    clip = record(world, WALKER, walks, 256, chance)
    image, solid, cells = world.image, world.solid, world.config.cells
    cell = torch.multinomial((~solid).flatten(1).float(), 1, generator=chance)[:, 0]
    world.place(image, torch.stack([cell // cells, cell % cells], 1), solid)
    again = as_clip(world, WALKER(world, longest, chance))
    true = from_start(clip.true_start, again.true_pose)
    found, correct, strange = [], [], 0
    for i in range(walks):
        explorer = Explorer(model, closure=closure)
        for x, a in zip(clip.x[i], clip.a[i], strict=True):
            explorer.step(x, a)
        second = Explorer(model, explorer.memory, model.anywhere(1), closure)
        for t in range(longest):
            second.step(again.x[i, t], again.a[i, t])
            if not second.lost:
                found.append(t + 1)
                correct.append(float((second.here.mean[0] - true[i, t]).norm() <= 0.5))
                break
        j = next(j for k in range(1, walks) if image[j := (i + k) % walks] != image[i])
        stranger = Explorer(model, explorer.memory, model.anywhere(1), closure)
        for x, a in zip(again.x[j], again.a[j], strict=True):
            stranger.step(x, a)
        strange += not stranger.lost
    steps = torch.tensor(found, dtype=torch.float)
    print(f"{walks} second walks from an unknown start, up to {longest} steps: {len(found)} know where they are,")
    print(f"  {sum(t <= 8 for t in found)} of them within 8 steps, {steps.median():.0f} in the median;")
    print(f"  {100 * sum(correct) / len(correct):.1f}% of them in the right cell; ", end="")
    print(f"of {walks} walks through another picture {strange} take it for this one")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    words.add_argument("--steps", type=int, default=100_000)
    words.add_argument("--walks", type=int, default=32)
    words.add_argument("--closure", type=int, default=64)
    words.add_argument("--seed", type=int, default=0, help="of the walk of `cost`")
    given = words.parse_args()
    model = WorldModel.load(WEIGHTS)
    assert isinstance(model.motion, Walled)  # so that poses are cells from the start
    with torch.no_grad():
        for part in given.parts or PARTS:
            if part == "cost":
                cost(model, given.steps, given.closure, given.seed)
            elif part == "beside":
                beside(model, given.steps, given.closure)
            elif part == "loops":
                loops(model, given.walks, given.closure, min(given.steps, 1_000))
            else:
                walks_of_one_place(model, given.walks, given.closure)


if __name__ == "__main__":
    main()

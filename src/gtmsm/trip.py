"""`gtmsm plan`: memorise a place, then walk to a goal picture in it by planning, as a video."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require, require_seed
from gtmsm.data.store import LONGEST, require_size
from gtmsm.evaluation.arrival import Arrival, ImageArrival, RoomArrival, arrival_in, spl
from gtmsm.evaluation.video import require_video_name, side_by_side, write_video
from gtmsm.explore import Explorer, Journey, TravelConfig, travel
from gtmsm.files import require_writable
from gtmsm.run import Run
from gtmsm.worlds.image_map import draw_windows
from gtmsm.worlds.images import read_picture
from gtmsm.worlds.physics import IDLE
from gtmsm.worlds.world import World

SIDE = 192
"""Width of a column of the video, or a little less, in pixels."""


class _Agent:
    """One agent of a world, with its true poses and frames."""

    def __init__(self, world: World, generator: torch.Generator) -> None:
        world.reset(1, generator)
        self.world, self.poses = world, [world.pose[0].clone()]
        self.frames: list[Float[Tensor, "channel height width"]] = []

    def act(self, action: int) -> Float[Tensor, "channel height width"]:
        """Do an action, -1 for none, and return the view after it."""
        self.world.step(torch.tensor([action], device=self.world.device))
        self.poses.append(self.world.pose[0].clone())
        self.frames.append(self.world.look()[0])
        return self.frames[-1]


@torch.no_grad()
def film_plan(
    run: Run, *, goal: str, seed: int, every: int, steps: int | None, tau: int | None, images: str | None,
    out: Path, device: torch.device,
) -> str:  # fmt: skip
    """Write the video; return lines about the result."""
    tau = run.experiment.evaluation.tau if tau is None else tau
    require_video_name(out)
    require_writable(out)
    require_seed(seed)
    require(1 <= tau <= LONGEST, f"tau is {tau}; give 1 to {LONGEST} steps to memorise")
    setting = run.set_up(device, images)
    world, explorer = setting.test_world, Explorer(run.load_model(device))
    arrival = arrival_in(world)
    settings = TravelConfig(every=every, steps=steps or arrival.budget)
    generator = torch.Generator().manual_seed(seed)
    agent = _Agent(world, generator)
    for action in setting.walker(world, tau, generator)[0].tolist() + [IDLE] * arrival.rests:
        explorer.step(agent.act(action), None if action == IDLE else action)
    picture, true_goal = _goal(goal, agent, arrival, explorer, seed)
    begun, start = len(agent.frames), world.pose[0].clone()
    shortest = None if true_goal is None else arrival.shortest(true_goal)
    journey = travel(explorer, picture, agent.act, settings, seed)
    for _ in range(arrival.rests if journey.choices else 0):
        agent.act(IDLE)
    taken = agent.poses[begun:]
    if journey.choices:
        _write(out, arrival, explorer, agent.frames[begun:], torch.stack(taken), journey, picture)
    said = f"{len(journey.choices)} steps; " + ("it says that it is there" if journey.arrived else journey.reason)
    if true_goal is not None and shortest is not None:
        success = arrival.there(true_goal)
        score = spl(success, shortest, arrival.length(torch.stack([start, *taken[1:]])))
        said += f"; {'success' if success else 'failure'}, SPL {score:.2f}"
    return said + (f"\nvideo: {out}" if journey.choices else "\nno video: there is nothing to walk")


def _goal(
    goal: str, agent: _Agent, arrival: Arrival, explorer: Explorer, seed: int
) -> tuple[Tensor, Float[Tensor, "D"] | None]:
    """The goal picture and, if known, the true pose from which it was seen."""
    seen = len(agent.frames)
    if not goal:
        fair = [t for t in range(seen) if arrival.fair(agent.poses[t + 1])]
        require(bool(fair), "the agent is at all that it has seen; memorise a longer walk with --tau")
        goal = str(1 + int(np.random.default_rng(seed).choice(fair)))
    if not goal.isdecimal():
        frame = read_picture(Path(goal))
        require_size(f"{goal}:", frame.shape[1], frame.shape[2], explorer.model.frame_shape)
        return frame.to(explorer.here.mean) / 255, None
    require(1 <= int(goal) <= seen, f"goal is {goal}; give a step from 1 to {seen}, or a picture file")
    return agent.frames[int(goal) - 1], agent.poses[int(goal)]


def _write(
    out: Path,
    arrival: Arrival,
    explorer: Explorer,
    frames: list[Tensor],
    poses: Float[Tensor, "time D"],
    journey: Journey,
    picture: Tensor,
) -> None:
    """Write the video: the agent on the map, its view, the view that the plan predicted, and the goal."""
    expected = []
    for t, plan in enumerate(journey.plans):
        first = next(i for i, other in enumerate(journey.plans) if other is plan)
        expected.append(plan.frames[t - first])
    expected += expected[-1:] * (len(frames) - len(expected))
    count = len(frames)
    columns = [torch.stack(list(film)).cpu().numpy() for film in (frames, expected, [picture] * count)]
    labels, zoom = ["sees", "expects", "goal"], max(1, SIDE // columns[0].shape[-1])
    if isinstance(arrival, ImageArrival):
        world = arrival.world
        size = max(1, SIDE // world.config.size)
        maps = draw_windows(world.picture()[0], poses[-count:].long(), world.config, size, world.solid[0])
        shown = (255 * maps.permute(0, 2, 3, 1)).round().byte().cpu().numpy()
    else:
        assert isinstance(arrival, RoomArrival)
        floor = arrival.world.map(int(arrival.world.where[0]), SIDE)
        path = poses.cpu()
        shown = np.stack([floor.path(path[: t + 2]).agent(path[t + 1]).pixels() for t in range(count)])
    names = arrival.world.action_names
    words = ["nothing" if choice < 0 else names[choice] for choice in journey.choices]
    captions = [f"step {t + 1}: {words[t]}" if t < len(words) else "at rest" for t in range(count)]
    write_video(out, side_by_side([shown, *columns], ["where it is", *labels], zoom, captions), 8)

"""A memory as a Gymnasium environment: agents walk in memorised places, without the real environment.

>>> import gymnasium, gtmsm
>>> env = gymnasium.make("gtmsm/Dream-v0", run="image-walk", memory=explorer)  # doctest: +SKIP
>>> envs = gymnasium.make_vec("gtmsm/Dream-v0", num_envs=256, run=..., memory=...)            # doctest: +SKIP

An episode begins at a memorised place and ends at the goal, with a reward of 1, or after `steps`. All other rewards
are 0. The motion is the learned one; walls, remembered bumps and unknown ground stop an agent.
"""

from pathlib import Path
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require, require_choice, require_whole
from gtmsm.errors import InputError, shown
from gtmsm.explore.explorer import Explorer, Frame
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.model.planning import PlanConfig, Terrain
from gtmsm.tensors import Belief

PICTURE = 256
"""Side of a rendered picture in screen pixels, rounded down to a multiple of the frame's height."""
Seen: TypeAlias = Literal["frame", "place"]
Info: TypeAlias = dict[str, Any]


class _Dreams:
    """A batch of agents that walk in one memory."""

    @torch.no_grad()
    def __init__(
        self,
        count: int,
        run: str | Path | WorldModel,
        memory: Explorer | Memory | str | Path,
        goal: Frame | None,
        observation: Seen,
        steps: int,
        device: torch.device | str,
    ) -> None:
        require_whole("steps", steps)
        require_choice("observation", observation, ("frame", "place"))
        model = run if isinstance(run, WorldModel) else WorldModel.load(run, device)
        explorer = memory if isinstance(memory, Explorer) else None
        if isinstance(memory, str | Path):
            explorer = Explorer.load(memory, model)
        elif isinstance(memory, Memory):
            explorer = Explorer(model, memory)
        if explorer is None or not len(explorer):
            raise InputError(f"memory is {shown(memory)}; give an Explorer or a Memory that holds something, or a file")
        self.model, self.seen, self.steps = explorer.model, observation, steps
        assert explorer.memory is not None
        self.memory = explorer.memory.snapshot()
        self.terrain = Terrain.of(
            self.model,
            self.memory,
            explorer.walked,
            PlanConfig(),
            torch.eye(self.model.action_size).to(explorer.here.mean),
        )
        self.visited = self.model.motion.pose_at(self.memory.place.mean[0].detach())
        self.fixed = None if goal is None else self._find(explorer, goal)
        self.action_space = gymnasium.spaces.Discrete(self.model.action_size)
        height, width = self.model.frame_shape[1:]
        self.observation_space: gymnasium.spaces.Box[Any] = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
        if observation == "place":
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2 * self.model.place_size,), np.float32)
        self.state = self.model.motion.start(count)
        self.goal = self.visited[:1].expand(count, -1).clone()
        self.time = np.zeros(count, int)

    def _find(self, explorer: Explorer, goal: Frame) -> Float[Tensor, "D"]:
        """The pose of the goal, which must be known."""
        found = explorer.find(goal)
        require(
            found.known >= PlanConfig().least_known,
            f"goal was seen with probability {found.known:.2f}; give a picture of this place, or a pose",
        )
        return found.pose

    def begin(self, which: np.ndarray, rng: np.random.Generator) -> None:
        """Put these agents at rest at memorised places; draw new goals unless the goal is fixed."""
        count = int(which.sum())
        if not count:
            return
        if self.fixed is None:
            goal = self.visited[torch.as_tensor(rng.integers(len(self.visited), size=count))]
        else:
            goal = self.fixed.expand(count, -1)
        start = self.model.motion.start(count)
        start[:, : self.visited.shape[1]] = self.visited[torch.as_tensor(rng.integers(len(self.visited), size=count))]
        chosen = torch.as_tensor(which)
        self.state[chosen], self.goal[chosen] = start, goal
        self.time[which] = 0

    @torch.no_grad()
    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step all agents; return rewards, whether agents are at the goal, and whether their time is up."""
        one_hot = torch.eye(self.model.action_size).to(self.state)[torch.as_tensor(actions)]
        if self.model.bumps is not None:
            one_hot = self.model.bumps.foreseen(self.model, self.memory, self.state, one_hot[:, None])[:, 0]
        self.state = self.terrain.step(self.state, one_hot)
        self.time += 1
        there = self.terrain.there(self.state, self.goal).cpu().numpy()
        return there.astype(float), there, (self.time >= self.steps) & ~there

    @torch.no_grad()
    def frames(self) -> np.ndarray:
        """The imagined frame of each agent, uint8 `n height width 3`."""
        place = Belief(self.model.motion.place(self.state)[:, None])
        frames = self.model.vae.decode(self.model.read(self.memory, place).peak())[:, 0]
        frames = frames.expand(-1, 3, -1, -1) if frames.shape[1] == 1 else frames[:, :3]
        return (frames.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()

    def look(self) -> np.ndarray:
        """The observation of each agent."""
        if self.seen == "frame":
            return self.frames()
        return self.places(self.state, self.goal)

    def places(self, state: Float[Tensor, "n S"], goal: Float[Tensor, "n D"]) -> np.ndarray:
        """Places of the agents, and of the goal relative to them, in steps; headings as cosine and sine."""
        motion, place = self.model.motion, self.model.motion.place(state)
        away = motion.relative(motion.space.place(goal), place)
        scale = place.new_full((place.shape[-1],), 1 / self.terrain.pace.stride)
        scale[2:] = 1
        return torch.cat([place * scale, away * scale], -1).cpu().numpy().astype(np.float32)

    def info(self) -> Info:
        """Poses of agents and goals."""
        pose, goal = self.state[:, : self.goal.shape[1]].clone(), self.goal.clone()
        return {"pose": pose.cpu().numpy(), "goal_pose": goal.cpu().numpy()}


class DreamEnv(gymnasium.Env[np.ndarray, int | np.int64]):
    """One agent in a memory."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(
        self,
        run: str | Path | WorldModel,
        memory: Explorer | Memory | str | Path,
        goal: Frame | None = None,
        observation: Seen = "frame",
        steps: int = 128,
        render_mode: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Walk in `memory`, which the weights of `run` made: an Explorer, a Memory, or a file of `Explorer.save`.

        `goal`: a picture or a pose; None: another memorised place in each episode. `observation`: the imagined frame,
        or the place of the agent and the place of the goal relative to it, in steps.
        """
        if render_mode is not None:
            require_choice("render_mode", render_mode, self.metadata["render_modes"])
        self.dreams = _Dreams(1, run, memory, goal, observation, steps, device)
        self.render_mode = render_mode
        self.action_space, self.observation_space = self.dreams.action_space, self.dreams.observation_space

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Begin an episode at rest at a memorised place."""
        super().reset(seed=seed)
        self.dreams.begin(np.ones(1, bool), self.np_random)
        return self.dreams.look()[0], self._info()

    def step(self, action: int | np.int64 | Tensor) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Make one step of the learned motion."""
        action = action.item() if isinstance(action, Tensor) and action.ndim == 0 else action  # type: ignore[assignment]
        known = self.action_space.contains(action)
        require(known, f"action is {shown(action)}; give a whole number from 0 to {self.dreams.model.action_size - 1}")
        reward, there, late = self.dreams.step(np.array([action]))
        return self.dreams.look()[0], float(reward[0]), bool(there[0]), bool(late[0]), self._info()

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The imagined frame, enlarged."""
        if self.render_mode is None:
            return None
        return _enlarged(self.dreams.frames()[0])

    def _info(self) -> Info:
        return {name: value[0] for name, value in self.dreams.info().items()}


class DreamVectorEnv(gymnasium.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Many agents in one memory, on one device; when an episode ends, the next begins in the same step.

    `info["final_obs"]` then holds the last observations of the episodes that ended, where `info["_final_obs"]` is true.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12, "autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        num_envs: int,
        run: str | Path | WorldModel,
        memory: Explorer | Memory | str | Path,
        goal: Frame | None = None,
        observation: Seen = "frame",
        steps: int = 128,
        render_mode: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """As `DreamEnv`, `num_envs` times."""
        require_whole("num_envs", num_envs)
        if render_mode is not None:
            require_choice("render_mode", render_mode, self.metadata["render_modes"])
        self.dreams = _Dreams(num_envs, run, memory, goal, observation, steps, device)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_action_space, self.single_observation_space = (
            self.dreams.action_space,
            self.dreams.observation_space,
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:  # type: ignore[override]
        """Begin all episodes at rest at memorised places."""
        super().reset(seed=seed)
        self.dreams.begin(np.ones(self.num_envs, bool), self.np_random)
        return self.dreams.look(), self.dreams.info()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Make one step with all agents; an agent whose episode ends begins the next at a new place."""
        each = f"give each of the {self.num_envs} agents a whole number from 0 to {self.dreams.model.action_size - 1}"
        require(self.action_space.contains(np.asarray(actions)), f"actions are {shown(actions)}; {each}")
        reward, there, late = self.dreams.step(np.asarray(actions))
        seen, over = self.dreams.look(), there | late
        if not over.any():
            return seen, reward, there, late, self.dreams.info()
        self.dreams.begin(over, self.np_random)
        final = {"final_obs": seen, "_final_obs": over}
        return self.dreams.look(), reward, there, late, self.dreams.info() | final

    def render(self) -> tuple[np.ndarray, ...] | None:
        """The imagined frame of each agent, enlarged."""
        if self.render_mode is None:
            return None
        return tuple(_enlarged(frame) for frame in self.dreams.frames())


def _enlarged(frame: np.ndarray) -> np.ndarray:
    """Every pixel as a square."""
    zoom = max(1, PICTURE // frame.shape[0])
    return frame.repeat(zoom, 0).repeat(zoom, 1)

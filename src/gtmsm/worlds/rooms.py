"""Section 4.2: agents walk through textured rooms with the momentum of Labyrinth, and see what lies ahead.

A unit is the height of a wall; a pose is x, y and the heading in radians, counter-clockwise and not wrapped.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor

from gtmsm.config import config, require, require_seed, require_whole
from gtmsm.errors import InputError
from gtmsm.worlds.floor_map import FloorMap
from gtmsm.worlds.floorplan import FloorPlans, Plan, draw_floorplans, require_walkable
from gtmsm.worlds.physics import ACTIONS, IDLE, Body, Obstacles, Physics, PhysicsConfig
from gtmsm.worlds.scene import Camera, draw_frames
from gtmsm.worlds.textures import Source, load_textures
from gtmsm.worlds.world import ActionNumbers, Twice, Walk, drawn, one_step, require_reset, require_walk

PIXELS_AT_ONCE = 1 << 22
"""Pixels drawn in one go, 4096 frames of 32 by 32; more would only need more memory."""

Filmed: TypeAlias = tuple[UInt8[Tensor, "n time 3 pixels pixels"], Float[Tensor, "n time 3"]]
"""Frames as bytes, a quarter of the memory, and poses."""


@config
class RoomsConfig:
    """Which places, and how they are seen and walked."""

    plan: Plan = "room"
    """A single room, a few rooms with doors and corridors, or a maze of Labyrinth's own generator."""
    textures: Source = "auto"
    """Labyrinth's own ("lab"), our own ("procedural"), or whichever is there ("auto")."""
    objects: int = 4
    """Solid objects in every place."""
    pixels: int = 32
    """Side of what the agent sees (section 4.2: 32)."""
    field_of_view: float = 80.0
    """Degrees from the left to the right edge of what it sees."""
    antialias: int = 2
    """Rays per pixel and axis."""
    train_places: int = 4096
    """Places to learn from."""
    validation_places: int = 64
    """Places to look at while learning, none of them learned from or tested on."""
    test_places: int = 256
    """Places to be tested on, none of them learned from."""
    physics: PhysicsConfig = PhysicsConfig()

    def __post_init__(self) -> None:
        """Refuse what cannot be built, seen or walked."""
        require_walkable(self.plan, self.objects, self.physics.radius)
        require(32 <= self.pixels <= 128, f"pixels is {self.pixels}; expected 32 to 128")
        require(20 <= self.field_of_view <= 140, f"field_of_view is {self.field_of_view}; expected 20 to 140 degrees")
        require(1 <= self.antialias <= 4, f"antialias is {self.antialias}; expected 1 to 4 rays per pixel and axis")
        for name in ("train_places", "validation_places", "test_places"):
            require_whole(name, getattr(self, name), most=10**6)


class Rooms:
    """A world of places; each agent is alone in its place."""

    action_names: tuple[str, ...] = ACTIONS
    action_keys: Mapping[str, int] = dict(zip("fbadlrqe", range(len(ACTIONS)), strict=True)) | {".": IDLE}
    """A letter for each action, for people; a dot presses no key."""
    rest: int = IDLE
    """The action of doing nothing; momentum goes on."""

    def __init__(self, plans: FloorPlans, config: RoomsConfig) -> None:
        """Walk these places, on their device; one agent stands in the first until `reset`."""
        self.plans, self.config = plans, config
        self.frame_shape = (3, config.pixels, config.pixels)
        self.camera = Camera(config.pixels, config.field_of_view, config.antialias)
        self.physics = Physics(config.physics, self.device)
        self._obstacles = Obstacles.of(plans.scene)
        self.where: Int64[Tensor, "n"]
        self.body: Body
        self.obstacles: Obstacles
        self.bumped = torch.zeros(1, 0, dtype=torch.bool)
        """Whether something was in the way, at each step that the agents last travelled."""
        self.reset(1)

    def reset(self, n: int, generator: torch.Generator | None = None) -> None:
        """Put `n` agents at rest on free spots of places drawn with replacement, facing anywhere.

        Without a generator: the first `n` places in order, the first spot, facing east.
        """
        require_reset(n, generator)
        places, spots = self.plans.spots.shape[:2]
        device = self.device
        if generator is None:
            place = torch.arange(n, device=device) % places
            spot, heading = torch.zeros_like(place), torch.zeros(n, device=device)
        else:
            place, spot = drawn(places, (n,), generator, device), drawn(spots, (n,), generator, device)
            heading = 2 * math.pi * torch.rand(n, device=generator.device, generator=generator).to(device)
        self._put(place, torch.cat([self.plans.spots[place, spot], heading[:, None]], 1))

    def place(self, place: Int[Tensor, "n"], pose: Float[Tensor, "n 3"]) -> None:
        """Put agents exactly there, at rest; checking the numbers waits for the device."""
        fits = isinstance(place, Tensor) and isinstance(pose, Tensor) and place.dim() == 1 and pose.shape[1:] == (3,)
        require(fits, "agents are put by tensors of places, (agents), and poses, (agents, 3)")
        require(not place.is_floating_point(), f"place is {place.dtype}; give whole numbers")
        require(len(place) == len(pose), f"got {len(place)} places but {len(pose)} poses; give one of each")
        place, pose = place.long().to(self.device), pose.float().to(self.device)
        for wrong in place[(place < 0) | (place >= self.plans.places)].tolist():
            raise InputError(f"place {wrong} does not exist; choose from 0 to {self.plans.places - 1}")
        require(bool(pose.isfinite().all()), "a pose is not finite; give x, y and a heading in radians")
        self._put(place, pose)

    def step(self, action: Int[Tensor, "n"], twice: Bool[Tensor, "n"] | None = None) -> None:
        """Four ticks of an action; IDLE (-1) presses no key, but momentum goes on. Four more where `twice` says so."""
        require_walk(one_step(action), self.agents, len(ACTIONS), self.device)
        self._step(action, twice)

    def _step(self, action: Int[Tensor, "n"], twice: Bool[Tensor, "n"] | None) -> None:
        """`step`, of actions that were looked at."""
        self.body = self.physics.step(self.body, action, self.obstacles)
        if twice is not None:
            again = self.physics.step(self.body, action, self.obstacles)
            self.body = _gone_on(self.body, again, twice)

    def travel(self, actions: ActionNumbers, twice: Twice = None) -> Float[Tensor, "n time 3"]:
        """As `walk`, without frames: poses alone, step by step since momentum and walls are sequential."""
        require_walk(actions, self.agents, len(ACTIONS), self.device)
        poses, bumped = [], []
        for t, action in enumerate(actions.unbind(1)):
            self._step(action, None if twice is None else twice[:, t])
            poses.append(self.pose)
            bumped.append(self.body.touched)
        self.bumped = torch.stack(bumped, 1)
        return torch.stack(poses, 1)

    def walk(self, actions: ActionNumbers, twice: Twice = None) -> Walk:
        """Every step's frame and pose; the agents end where the last action leads."""
        frames, poses = self.walk_bytes(actions, twice)
        return Walk(frames.float().div_(255), poses)

    def walk_bytes(self, actions: ActionNumbers, twice: Twice = None) -> Filmed:
        """Frames as bytes, a quarter of the memory, and poses."""
        poses = self.travel(actions, twice)
        return self.see(self.where[:, None].expand(poses.shape[:2]), poses), poses

    def look(self) -> Float[Tensor, "n 3 pixels pixels"]:
        """What each agent sees now."""
        return self.see(self.where, self.pose).float().div_(255)

    def see(
        self, place: Int[Tensor, "*batch"], pose: Float[Tensor, "*batch 3"]
    ) -> UInt8[Tensor, "*batch 3 pixels pixels"]:
        """What would be seen from any poses, a bounded number at a time."""
        places, poses = place.reshape(-1), pose.reshape(-1, 3)
        frames = torch.empty(len(places), *self.frame_shape, dtype=torch.uint8, device=pose.device)
        at_once = max(1, PIXELS_AT_ONCE // self.config.pixels**2)
        for start in range(0, len(places), at_once):
            part = slice(start, start + at_once)
            frames[part] = draw_frames(self.plans.scene, self.camera, places[part], poses[part])
        return frames.reshape(*place.shape, *self.frame_shape)

    def map(self, place: int, size: int = 512) -> FloorMap:
        """A place from above, for people."""
        require(
            0 <= place < self.plans.places, f"place {place} does not exist; choose from 0 to {self.plans.places - 1}"
        )
        return FloorMap.of(self.plans.scene, place, size)

    def to(self, device: torch.device | str) -> "Rooms":
        """A copy on another device, with its agents where they are."""
        copy = Rooms(self.plans.to(device), self.config)
        copy.where = self.where.to(device)
        copy.body = Body(**{name: value.to(device) for name, value in vars(self.body).items()})
        copy.obstacles = copy._obstacles.at(copy.where)
        return copy

    @property
    def device(self) -> torch.device:
        """Where the places are."""
        return self.plans.spots.device

    @property
    def agents(self) -> int:
        """How many agents there are."""
        return len(self.where)

    @property
    def pose(self) -> Float[Tensor, "n 3"]:
        """x, y and heading of each agent."""
        return self.body.pose

    @property
    def width(self) -> Float[Tensor, "n"]:
        """Of a typical room of each agent's place, for relative errors."""
        return self.plans.width[self.where]

    def _put(self, place: Int64[Tensor, "n"], pose: Float[Tensor, "n 3"]) -> None:
        """Agents there, and what may be in their way."""
        self.where, self.body = place, Body.at_rest(pose)
        self.obstacles = self._obstacles.at(place)


def _gone_on(once: Body, again: Body, goes_on: Bool[Tensor, "n"]) -> Body:
    """Bodies after a second step where they went on, else after the first; what either touched counts."""
    return Body(
        position=torch.where(goes_on[:, None], again.position, once.position),
        velocity=torch.where(goes_on[:, None], again.velocity, once.velocity),
        heading=torch.where(goes_on, again.heading, once.heading),
        touched=once.touched | (again.touched & goes_on),
    )


def draw_rooms(config: RoomsConfig, count: int, seed: int, device: torch.device | str = "cpu") -> Rooms:
    """`count` places drawn from a seed; the textures to choose from are the same for every seed."""
    plans = draw_floorplans(config.plan, count, config.objects, load_textures(config.textures), seed)
    return Rooms(plans.to(device), config)


@dataclass(frozen=True)
class Seeds:
    """Of places to learn from, to look at while learning, and to be tested on."""

    train: int
    validation: int
    test: int


def seeds_of(seed: int) -> Seeds:
    """Three seeds from one."""
    require_seed(seed)
    train, test, validation = np.random.SeedSequence(seed).generate_state(3).tolist()  # the first two came first
    return Seeds(train, validation, test)

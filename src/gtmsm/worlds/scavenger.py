"""A policy that walks from object to object through rooms, around obstacles, as Labyrinth's agents do."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gtmsm.camera import BOX
from gtmsm.config import config, require
from gtmsm.errors import InputError
from gtmsm.worlds.physics import ACTIONS, IDLE
from gtmsm.worlds.rooms import Rooms
from gtmsm.worlds.slip import unwrapped
from gtmsm.worlds.world import World

FORWARD, TURN_LEFT, TURN_RIGHT, VEER_LEFT, VEER_RIGHT = (
    ACTIONS.index(name)
    for name in ("forward", "turn left", "turn right", "forward and turn left", "forward and turn right")
)
RANDOM_ACTIONS = tuple(range(1, len(ACTIONS))) + (IDLE,)
"""Actions that explore: everything but walking ahead."""
LONGEST_RANDOM = 5

DETOURS = (0.0, 0.35, -0.35, 0.7, -0.7, 1.1, -1.1, 1.6, -1.6, 2.3, -2.3)
"""Radians off the straight way that are considered when something stands on it."""
LOOKAHEAD = (0.1, 0.4, 0.7)
"""How far ahead a way is looked at, in units."""
PENALTY = (12.0, 4.0, 3.0)
"""Radians of detour that it is worth to avoid an obstacle there."""
SHARP_TURN, WIDE_TURN = 0.5, 1.2
"""Radians off course beyond which it turns on the spot: near its goal, and where there is space to run a curve."""


@config
class ScavengerWalkerConfig:
    """Walking from object to object (section 4.2.2)."""

    exploration: float = 0.1
    """Share of the steps with random actions: a strafe, a look aside, a step back, a pause."""
    spot_share: float = 0.5
    """Share of the goals that are free spots instead of objects, so that bare corners are seen too."""
    may_bump: bool = False
    """Walk straight on into walls and objects instead of around them."""

    def __post_init__(self) -> None:
        """Refuse a share outside of 0 to 1."""
        for name in ("exploration", "spot_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}; expected a share from 0 to 1")


class ScavengerWalker:
    """Goes to an object, then to another, through doors if need be, with some random actions in between."""

    def __init__(self, config: ScavengerWalkerConfig | None = None) -> None:
        """Walk by these settings."""
        self.config = config or ScavengerWalkerConfig()

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """Simulate the walk in poses alone, on the generator's device: a CPU's gives the same actions on any device.

        Slips are not foreseen: where actions go wrong, the agent does what it had planned.
        """
        actions = self.steps(world, generator)
        return torch.stack([next(actions) for _ in range(steps)], 1)

    def steps(self, world: World, generator: torch.Generator) -> Iterator[Int64[Tensor, "n"]]:
        """The same, an action at a time, for as long as somebody asks: what the world does meanwhile is not noticed."""
        world = unwrapped(world)
        if not isinstance(world, Rooms):
            raise InputError(f"a scavenger walks in Rooms, not in {type(world).__name__}; choose another walker")
        here = world if world.device.type == generator.device.type else world.to(generator.device)
        walk = _Scavenging(here, self.config, generator)
        while True:
            yield walk.step().to(world.device)


class _Scavenging:
    """The state of a walk: goals and bodies of the agents; the world itself does not change."""

    def __init__(self, world: Rooms, settings: ScavengerWalkerConfig, generator: torch.Generator) -> None:
        """Where agents stand, and all that they may walk to."""
        self.world, self.settings, self.generator = world, settings, generator
        self.body = world.body
        self.in_sight = world.obstacles
        self.radius = world.config.physics.radius
        self.goals, self.near = self._all_goals()
        n, device = world.agents, world.device
        self.agent = torch.arange(n, device=device)
        self.here = world.plans.region_at(world.where, self.body.position).clamp(min=0)
        self.goal = self._new_goals(torch.rand(2, n, generator=generator, device=device))
        self.age = torch.zeros(n, device=device)
        self.random = torch.full((n,), IDLE, device=device)
        self.random_steps = torch.zeros(n, device=device)
        self._random_actions = torch.tensor(RANDOM_ACTIONS, device=device)
        detours = [0.0] if settings.may_bump else DETOURS
        self._detours = torch.tensor(detours, device=device)
        self._ahead, self._penalty = torch.tensor([LOOKAHEAD, PENALTY], device=device)
        self._glide = torch.tensor([0.0, 0.5, 1.0], device=device)[:, None]

    def step(self) -> Int64[Tensor, "n"]:
        """One action of each agent, and its consequences."""
        chance = torch.rand(5, self.world.agents, generator=self.generator, device=self.agent.device)
        # The nearest eight: a crossing of corridors has as many walls within reach.
        self.in_sight = self.world.obstacles.nearest(self.body.position, 8)
        self._look_up_where_it_is()
        self._give_up_or_arrive(chance[:2])
        bearing, distance = self._bearing()
        turn = torch.where(bearing > 0, TURN_LEFT, TURN_RIGHT)
        action = torch.where(bearing > 0, VEER_LEFT, VEER_RIGHT)
        # Running and turning make a circle 0.9 in radius, at the settings of Labyrinth.
        sharp = torch.where(distance < 1.2, SHARP_TURN, WIDE_TURN)
        action = torch.where(bearing.abs() > sharp, turn, action)
        action = torch.where(bearing.abs() < self.world.config.physics.turn / 2, FORWARD, action)
        action = self._or_a_random_one(action, chance[2:])
        if not self.settings.may_bump:
            action = torch.where(self._can_still_brake(action), action, turn)
        self.body = self.world.physics.step(self.body, action, self.world.obstacles)
        return action

    def _all_goals(self) -> tuple[Float[Tensor, "n goals 2"], Float[Tensor, "n goals"]]:
        """Objects, then free spots; and the distance within which each counts as reached."""
        scene, where = self.world.plans.scene, self.world.where
        spots = self.world.plans.spots[where]
        objects, is_box = scene.objects[where], scene.object_kind[where] == BOX
        reach = torch.where(is_box, math.sqrt(2) * objects[..., 2], objects[..., 2])
        near_object = reach + self.radius + (0.02 if self.settings.may_bump else 0.35)
        near_spot = torch.full_like(spots[..., 0], 0.4)
        return torch.cat([objects[..., :2], spots], 1), torch.cat([near_object, near_spot], 1)

    def _new_goals(self, chance: Float[Tensor, "2 n"]) -> Int64[Tensor, "n"]:
        """An object, or now and then a spot; a spot always where there is no object."""
        objects = self.world.plans.scene.objects.shape[1]
        spots = self.goals.shape[1] - objects
        spot = objects + (chance[1] * spots).long()
        if not objects:
            return spot
        return torch.where(chance[0] < self.settings.spot_share, spot, (chance[1] * objects).long())

    def _look_up_where_it_is(self) -> None:
        """Which region it is in; a new one counts once the body is well inside, so that no corner is cut."""
        plans, where = self.world.plans, self.world.where
        in_tile = (self.body.position - plans.scene.corner[where]) / plans.scene.tile
        well_inside = ((in_tile - in_tile.floor() - 0.5).abs() < 0.3).all(1)
        region = plans.region_at(where, self.body.position)
        self.here = torch.where(well_inside & (region >= 0), region, self.here)

    def _give_up_or_arrive(self, chance: Float[Tensor, "2 n"]) -> None:
        """Choose another goal where this one is near enough, or has taken too long."""
        away = self.goals[self.agent, self.goal] - self.body.position
        arrived = away.norm(dim=1) < self.near[self.agent, self.goal]
        done = arrived | (self.age >= 150)
        self.goal = torch.where(done, self._new_goals(chance), self.goal)
        self.age = torch.where(done, 0.0, self.age + 1)

    def _bearing(self) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """Radians to turn to the left towards the goal or the next door, around obstacles, and its distance."""
        goal, near = self.goals[self.agent, self.goal], self.near[self.agent, self.goal]
        there = self.world.plans.region_at(self.world.where, goal).clamp(min=0)
        before, behind = self.world.plans.doorway[self.world.where, self.here, there].split(2, 1)
        # Before a door, get into line with it first; then walk through.
        through, offset = behind - before, self.body.position - before
        is_in_line = (through[:, 0] * offset[:, 1] - through[:, 1] * offset[:, 0]).abs() < 0.25
        door = torch.where(is_in_line[:, None], behind, before)
        is_here = self.here == there
        way = torch.where(is_here[:, None], goal, door) - self.body.position
        distance = way.norm(dim=1)
        free_for = (distance - torch.where(is_here, near, 0.0)).clamp(*LOOKAHEAD[::2])
        straight = torch.atan2(way[:, 1], way[:, 0])
        heading = straight + self._detour(straight, free_for)
        bearing = torch.remainder(heading - self.body.heading.float() + math.pi, 2 * math.pi) - math.pi
        return bearing, distance

    def _detour(self, straight: Float[Tensor, "n"], free_for: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """The smallest turn off the straight way that is free; each agent prefers one side."""
        direction = straight[:, None] + self._detours
        ahead = torch.stack([direction.cos(), direction.sin()], -1)[:, :, None]
        length = torch.minimum(self._ahead, free_for[:, None])[:, None, :, None]
        points = self.body.position[:, None, None] + length * ahead
        missing = 1 - (self.in_sight.clearance(points) - self.radius) / 0.07  # space wanted beside a way
        penalty = (self._penalty * missing.clamp(0, 1)).sum(-1)
        prefers_left = (self.agent + self.goal) % 2 == 0
        other_side = (self._detours < 0) == prefers_left[:, None]
        cost = self._detours.abs() + 0.05 * other_side + penalty
        return self._detours[cost.argmin(1)]

    def _or_a_random_one(self, action: Int64[Tensor, "n"], chance: Float[Tensor, "3 n"]) -> Int64[Tensor, "n"]:
        """Begin a random action, go on with one, or do the planned one."""
        mean_steps = (1 + LONGEST_RANDOM) / 2
        share = min(self.settings.exploration, 1 - 1e-6)
        begins = (self.random_steps <= 0) & (chance[0] < share / (share + mean_steps * (1 - share)))
        new = self._random_actions[(chance[1] * len(RANDOM_ACTIONS)).long()]
        self.random = torch.where(begins, new, self.random)
        self.random_steps = torch.where(begins, (1 + chance[2] * LONGEST_RANDOM).floor(), self.random_steps) - 1
        return torch.where(self.random_steps >= 0, self.random, action)

    def _can_still_brake(self, action: Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether a body that does this, and then brakes, comes to rest before it touches anything.

        Turning on the spot is braking. So an agent that only takes actions which pass here can always turn safely.
        """
        then = self.world.physics.step(self.body, action)
        speed = then.velocity.norm(dim=1, keepdim=True)
        glide = then.velocity / speed.clamp(min=1e-6) * self.world.physics.stopping_distance(speed)
        points = then.position[:, None] + self._glide * glide[:, None]
        return self.in_sight.clearance(points).amin(1) > self.radius + 0.02

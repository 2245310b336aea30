"""Ground movement as in Quake III, on which Labyrinth is built: momentum, friction, a top speed, walls to slide along.

Velocity is kept in the world's frame, so it outlasts a turn: a body that turns while running drifts for a few steps.
"""

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from gtmsm.camera import BOX, NOTHING
from gtmsm.config import config, require
from gtmsm.worlds.scene import Scene

KEYS = {
    "forward": (1, 0, 0),
    "backward": (-1, 0, 0),
    "strafe left": (0, 1, 0),
    "strafe right": (0, -1, 0),
    "turn left": (0, 0, 1),
    "turn right": (0, 0, -1),
    "forward and turn left": (1, 0, 1),
    "forward and turn right": (1, 0, -1),
}
"""Ahead, to the left, and turned to the left by each action."""
ACTIONS = tuple(KEYS)
IDLE = -1
"""The action of pressing no key; its one-hot code is the zero vector."""

Gaps: TypeAlias = Float[Tensor, "n *points obstacles"]
FAR = 1e6
"""The gap to padding."""


@config
class PhysicsConfig:
    """How a body moves. A unit is the height of a wall."""

    top_speed: float = 2.0
    """Units per second."""
    friction: float = 6.0
    """Share of its speed that a body loses per second."""
    acceleration: float = 10.0
    """Share of the top speed that it gains per second."""
    stop_speed: float = 0.625
    """Below this speed friction no longer fades (100 of Quake's 320)."""
    ticks: int = 4
    """Ticks of the engine per step: the usual action repeat of agents in DeepMind Lab; the paper names none."""
    tick_rate: int = 60
    """Ticks per second."""
    turn_steps: int = 41
    """Steps of a full turn (section 4.2.1)."""
    radius: float = 0.15
    """Of the body, which is a disc."""

    def __post_init__(self) -> None:
        """Refuse bodies that cannot move, or that would move through a wall within a tick."""
        for name in ("top_speed", "friction", "acceleration", "stop_speed", "radius"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; expected a number above 0")
        for name in ("ticks", "tick_rate", "turn_steps"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; expected 1 or more")
        require(
            self.friction < self.tick_rate,
            f"friction is {self.friction}; a tick rate of {self.tick_rate} needs it below {self.tick_rate}",
        )
        require(
            self.top_speed / self.tick_rate < self.radius,
            f"top_speed is {self.top_speed}: within a tick that is past a body of radius {self.radius}, and through "
            f"walls; make it less than {self.radius * self.tick_rate:g}",
        )

    @property
    def tick(self) -> float:
        """Seconds of a tick."""
        return 1 / self.tick_rate

    @property
    def turn(self) -> float:
        """Radians that a turning body turns in a step."""
        return 2 * math.pi / self.turn_steps


@dataclass(frozen=True)
class Body:
    """`n` bodies. The heading is counted in float64: thousands of turns must still add up to full circles."""

    position: Float[Tensor, "n 2"]
    velocity: Float[Tensor, "n 2"]
    """Units per second, in the world's frame."""
    heading: Float64[Tensor, "n"]
    touched: Bool[Tensor, "n"]
    """Whether a wall or an object was in the way during the last step."""

    @classmethod
    def at_rest(cls, pose: Float[Tensor, "n 3"]) -> "Body":
        """Bodies that stand at these poses."""
        still = torch.zeros_like(pose[:, :2])
        return cls(pose[:, :2].clone(), still, pose[:, 2].double(), torch.zeros_like(pose[:, 0], dtype=torch.bool))

    @property
    def pose(self) -> Float[Tensor, "n 3"]:
        """x, y and the heading in radians, counter-clockwise and not wrapped."""
        return torch.cat([self.position, self.heading[:, None].to(self.position.dtype)], 1)


@dataclass(frozen=True)
class Obstacles:
    """What is in the way: segments with a thickness. Walls are thin; round objects are thick, and of no length.

    A box counts as the disc around it, so that no body is caught at its corners.
    """

    x: Float[Tensor, "n obstacles"]
    y: Float[Tensor, "n obstacles"]
    along_x: Float[Tensor, "n obstacles"]
    along_y: Float[Tensor, "n obstacles"]
    per_length2: Float[Tensor, "n obstacles"]
    """One over the squared length; zero for a disc."""
    thickness: Float[Tensor, "n obstacles"]
    """Minus infinity, nearly, for padding: nothing is ever close to it."""

    @classmethod
    def of(cls, scene: Scene) -> "Obstacles":
        """The obstacles of every place."""
        x0, y0, x1, y1 = scene.walls.unbind(-1)
        x, y, radius = scene.objects[..., :3].unbind(-1)
        radius = torch.where(scene.object_kind == BOX, math.sqrt(2) * radius, radius)
        radius = torch.where(scene.object_kind == NOTHING, -FAR, radius)
        length2 = (x1 - x0).square() + (y1 - y0).square()
        wall_thickness = torch.where(length2 > 0, 0.0, -FAR)
        per_length2 = torch.where(length2 > 0, 1 / length2, 0.0)
        none = torch.zeros_like(x)
        walls = (x0, y0, x1 - x0, y1 - y0, per_length2, wall_thickness)
        return cls(*(torch.cat(both, -1) for both in zip(walls, (x, y, none, none, none, radius), strict=True)))

    def at(self, place: Int[Tensor, "m"]) -> "Obstacles":
        """The obstacles in the place of each agent."""
        return Obstacles(**{name: value[place] for name, value in vars(self).items()})

    def nearest(self, position: Float[Tensor, "n 2"], count: int) -> "Obstacles":
        """The `count` obstacles nearest to each agent, for looking a little ahead."""
        gaps = self.gaps(position[:, :1], position[:, 1:])[2]
        which = gaps.topk(min(count, gaps.shape[1]), largest=False, sorted=False).indices
        return Obstacles(**{name: value.gather(1, which) for name, value in vars(self).items()})

    def gaps(self, x: Float[Tensor, "n *points 1"], y: Float[Tensor, "n *points 1"]) -> tuple[Gaps, Gaps, Gaps]:
        """The vector (x and y) from the nearest point of each obstacle's core, and the distance to its surface."""
        several = (slice(None),) + (None,) * (x.ndim - 2)  # points of an agent, if it asks for more than one
        along_x, along_y = self.along_x[several], self.along_y[several]
        from_x, from_y = x - self.x[several], y - self.y[several]
        share = ((from_x * along_x + from_y * along_y) * self.per_length2[several]).clamp(0, 1)
        away_x, away_y = from_x - share * along_x, from_y - share * along_y
        return away_x, away_y, (away_x.square() + away_y.square()).sqrt() - self.thickness[several]

    def clearance(self, points: Float[Tensor, "n *points 2"]) -> Float[Tensor, "n *points"]:
        """The distance from each point to the nearest obstacle; negative inside of one."""
        return self.gaps(points[..., :1], points[..., 1:])[2].amin(-1)


class Physics:
    """The laws of motion, on a device."""

    def __init__(self, config: PhysicsConfig, device: torch.device) -> None:
        """Put the table of keys on the device once: a CUDA graph cannot copy it from the host."""
        self.config = config
        # The last row is that of IDLE, which -1 finds by itself.
        self._keys = torch.tensor([*KEYS.values(), (0, 0, 0)], dtype=torch.float32, device=device)

    def step(self, body: Body, action: Int[Tensor, "n"], obstacles: Obstacles | None = None) -> Body:
        """A few ticks of the same action, among obstacles or without any."""
        keys = self._keys[action]
        touched = torch.zeros_like(body.touched)
        for _ in range(self.config.ticks):
            body = self._push(body, keys)
            body = replace(body, position=body.position + self.config.tick * body.velocity)
            if obstacles is not None:
                body = self._slide(body, obstacles)
                touched = touched | body.touched
        return replace(body, touched=touched)

    def stopping_distance(self, speed: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """How far a body still glides, in closed form: a geometric series down to the stop speed, then a plain one."""
        dt = self.config.tick
        kept = 1 - self.config.friction * dt
        loss = self.config.stop_speed * self.config.friction * dt
        fading = ((self.config.stop_speed / speed.clamp(min=1e-9)).log() / math.log(kept)).ceil().clamp(min=0)
        faded = speed * kept**fading
        fall = kept * (speed - faded) / (1 - kept)
        ticks = (faded / loss).floor()
        return dt * (fall + ticks * faded - loss * ticks * (ticks + 1) / 2)

    def _push(self, body: Body, keys: Float[Tensor, "n 3"]) -> Body:
        """Turn, then friction, then acceleration: PM_Friction and PM_Accelerate of Quake III."""
        settings, dt = self.config, self.config.tick
        heading = body.heading + settings.turn / settings.ticks * keys[:, 2].double()
        speed = body.velocity.norm(dim=1)
        drop = speed.clamp(min=settings.stop_speed) * settings.friction * dt
        velocity = body.velocity * ((speed - drop).clamp(min=0) / speed.clamp(min=1e-9))[:, None]

        cos, sin = heading.cos().float(), heading.sin().float()
        ahead, left = keys[:, 0], keys[:, 1]
        wish = torch.stack([cos * ahead - sin * left, sin * ahead + cos * left], 1)
        missing = settings.top_speed - (velocity * wish).sum(1, keepdim=True)
        gain = missing.clamp(0, settings.acceleration * dt * settings.top_speed)
        return replace(body, heading=heading, velocity=velocity + gain * wish)

    def _slide(self, body: Body, obstacles: Obstacles) -> Body:
        """Push bodies out of what they touch; they lose the velocity into it and keep the velocity along it."""
        x, y = body.position.split(1, 1)
        speed_x, speed_y = body.velocity.split(1, 1)
        touched = torch.zeros_like(x, dtype=torch.bool)
        for _ in range(3):  # two passes free a body from a corner, the third from a sharp one
            away_x, away_y, gaps = obstacles.gaps(x, y)
            gap, worst = gaps.min(1, keepdim=True)
            away_x, away_y = away_x.gather(1, worst), away_y.gather(1, worst)
            length = (away_x.square() + away_y.square()).sqrt().clamp(min=1e-9)
            away_x, away_y = away_x / length, away_y / length
            depth = (self.config.radius - gap).clamp(min=0)
            x, y = x + depth * away_x, y + depth * away_y
            touches = depth > 0
            into = (speed_x * away_x + speed_y * away_y).clamp(max=0) * touches
            speed_x, speed_y = speed_x - into * away_x, speed_y - into * away_y
            touched = touched | touches
        position, velocity = torch.cat([x, y], 1), torch.cat([speed_x, speed_y], 1)
        return replace(body, position=position, velocity=velocity, touched=touched[:, 0])

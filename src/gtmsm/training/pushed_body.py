"""A body that is pushed by keys and slowed down by drag: a motion with few enough parameters to be fitted to few loops.

Velocity is kept in the world's frame, and all directions are equal: two curves, shared by all keys, give the speed that
drag leaves of a speed, and the speed that a key adds along its push. A gliding network is so flexible that it overfits
the loops before it learns the motion; so it learns from this body instead.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gtmsm.model.motion.turning import Gliding
from gtmsm.tensors import Actions, States

TICKS = 4
"""Substeps of a step; drag and push are computed at each."""
FASTEST = 16
"""The highest speed of the curves, in knots, the points between which the curves are linear."""
SPARE = 1.2
"""That speed relative to the fastest step that the body is initialised with."""
WEAK = 0.15
"""Fraction of the strongest push below which an action does not push, but turns on the spot."""
TURNS = 1e-2
"""Scale of the turns' parameters, in radians: positions after long loops are sensitive to turns."""
LEAST_GAIN, STRANGE, STEEP = 1e-5, 10.0, 1e3
"""Gain of an iteration below which the fit ends; weight of `strangeness`, in nats; gradient norm that is refused."""


class PushedBody(nn.Module):
    """Drag and push as curves, turns as constants. States are those of `Gliding`: pose, velocity in its own frame."""

    def __init__(self, turn: Float[Tensor, "A"], move: Float[Tensor, "2 A"], keep: float, top: float) -> None:
        """Initialise from moves and the fraction `keep` of the velocity kept after a step; `top` is the fastest step.

        Speeds are in knots of the curves: from 0 for drag, and symmetric about 0 for pushes. The fitted parameters are
        differences between knots: each of them changes a whole part of the curve, which halves the iterations needed.
        """
        super().__init__()
        strongest = move.norm(dim=0).max()
        self._kept, self._knot = keep ** (1 / TICKS), SPARE * top / FASTEST
        self._strongest = strongest * (1 - self._kept) / (1 - keep) / self._knot
        self._began_with = turn.clone()
        self._pushes: Bool[Tensor, "A"] = torch.ones_like(turn, dtype=torch.bool)
        self._speeds = torch.arange(FASTEST + 1.0, device=turn.device)
        self.d_turn = nn.Parameter(torch.zeros_like(turn))
        self.push = nn.Parameter((move / strongest).contiguous())  # L-BFGS needs contiguous parameters
        self.drag = nn.Parameter(turn.new_zeros(FASTEST))
        self.fade = nn.Parameter(turn.new_zeros(FASTEST + 1))

    def start(self, batch: int) -> Float[Tensor, "{batch} 5"]:
        """States of `batch` bodies at rest at the origin."""
        return self.push.new_zeros(batch, 5)

    @property
    def turn(self) -> Float[Tensor, "A"]:
        """The turn of every action, in radians."""
        return self._began_with + TURNS * self.d_turn

    @property
    def left(self) -> Float[Tensor, "speeds"]:
        """The speed that drag leaves, for the speed at each knot; clamped so that drag never adds or reverses speed."""
        left = torch.cat([self.drag.new_zeros(1), (self._kept + self.drag).cumsum(0)])
        return torch.minimum(left, self._speeds).clamp_min(0)

    @property
    def gain(self) -> Float[Tensor, "speeds"]:
        """The speed that a key adds along its push, for the speed at each knot."""
        return (self._strongest * (1 + self.fade.cumsum(0))).clamp_min(0)

    @torch.no_grad()
    def drop_weak_pushes(self) -> None:
        """Set weak pushes to zero from now on (see `WEAK`).

        A point beside an agent moves on a circle when the agent turns, and pairs of views of one heading cannot
        distinguish it from the agent. But only the agent itself turns on the spot.
        """
        strength = self.push.norm(dim=0)
        self._pushes = strength > WEAK * strength.max()

    @property
    def strangeness(self) -> Float[Tensor, ""]:
        """Penalty that is 0 if two bodies with the same actions never diverge, so that gradients stay finite.

        Then drag leaves more of a higher speed, but takes more from it, and a push adds no more to a higher speed.
        """
        slope, rise = self._kept + self.drag, self._strongest * self.fade[1:]
        return (slope - slope.clamp(0, 1)).square().sum() + rise.clamp_min(0).square().sum()

    def unroll(self, start: Float[Tensor, "batch 5"], a: Actions) -> States:
        """States after each action. Drag makes this a loop over time, which runs only in the search before training."""
        turn = a @ self.turn
        heading = start[:, 2:3] + torch.cat([torch.zeros_like(turn[:, :1]), turn.cumsum(1)], dim=1)
        part = torch.arange(1, TICKS + 1, device=a.device) / TICKS
        push = a @ (self.push * self._pushes).T
        push = _turned(push[:, :, None], heading[:, :-1, None] + turn[..., None] * part)
        along = push / (push.square().sum(-1, keepdim=True) + 1e-4).sqrt()
        move, v = self._glide(_turned(start[:, 3:], start[:, 2]) / self._knot, push, along)
        path = start[:, None, :2] + move.cumsum(1) * (self._knot / TICKS)
        return torch.cat([path, heading[:, 1:, None], _turned(v, -heading[:, 1:]) * self._knot], dim=-1)

    def _glide(
        self,
        v: Float[Tensor, "batch 2"],
        push: Float[Tensor, "batch time ticks 2"],
        along: Float[Tensor, "batch time ticks 2"],
    ) -> tuple[Float[Tensor, "batch time 2"], Float[Tensor, "batch time 2"]]:
        """Displacement of each step, in knots times ticks, and the velocity after it, both in the frame of the world.

        A curve at a speed is the sum over its pieces of the fraction of the piece below that speed, times its rise.
        """
        left, gain, least = self.left.diff()[None], self.gain.diff()[None], self.gain[:1]
        below, half = self._speeds[:-1], 0.5 * along  # curves of pushes are symmetric about speed 0
        moves, velocities = list[Tensor](), list[Tensor]()
        for pushes, halves in zip(push.unbind(1), half.unbind(1), strict=True):
            moved = torch.zeros_like(v)
            for pushed, ahead in zip(pushes.unbind(1), halves.unbind(1), strict=True):
                speed = v.norm(dim=-1, keepdim=True).clamp_min(1e-6)
                v = v * (F.linear((speed - below).clamp(0, 1), left) / speed)
                speed = (v * ahead).sum(-1, keepdim=True) + FASTEST / 2
                v = torch.addcmul(v, pushed, F.linear((speed - below).clamp(0, 1), gain, least))
                moved = moved + v
            moves.append(moved)
            velocities.append(v)
        return torch.stack(moves, 1), torch.stack(velocities, 1)


def _turned(v: Float[Tensor, "*batch 2"], by: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch 2"]:
    """Vectors rotated to the left by angles."""
    c, s = by.cos(), by.sin()
    x, y = v.unbind(-1)
    return torch.stack([c * x - s * y, s * x + c * y], dim=-1)


def fit_body(
    body: PushedBody,
    a: Actions,
    misfit: Callable[[States], Tensor],
    others: Sequence[Tensor],
    iterations: int,
    turns: bool = False,
) -> None:
    """Minimise a misfit of the body's states along actions from rest, by L-BFGS; `others` are parameters of the misfit.

    With `turns` only its turns are fitted, else all but its turns: as long as moves are wrong, wrong turns compensate.
    """
    parameters = [part for name, part in body.named_parameters() if turns == (name == "d_turn")] + [*others]
    states = _along(body, a)

    def loss() -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        value = misfit(states()) + STRANGE * body.strangeness
        value.backward()
        steep = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]).norm()
        if steep < STEEP:
            return value
        for parameter in parameters:  # bodies diverge with these curves: the line search must step back
            parameter.grad = torch.zeros_like(parameter)
        return torch.full_like(value, STEEP)

    with torch.enable_grad():
        torch.optim.LBFGS(
            parameters, max_iter=iterations, history_size=60, line_search_fn="strong_wolfe", tolerance_change=LEAST_GAIN
        ).step(loss)


def _along(body: PushedBody, a: Actions) -> Callable[[], States]:
    """A function that returns the body's states along these actions from rest, for its current parameters.

    On a GPU, forward and backward passes are captured as CUDA graphs: each has tens of thousands of kernels, which take
    many times longer to launch than to run.
    """

    # The start is made inside the graph: a replay reads the memory used during capture, and keeps nothing alive.
    def along(*_: Tensor) -> States:
        return body.unroll(body.start(len(a)), a)

    if a.device.type != "cuda":
        return along
    parameters = tuple(body.parameters())
    with torch.enable_grad(), warnings.catch_warnings():
        # Caused by PyTorch's warm-up on another stream; gradients are returned here, so none are accumulated.
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream does not match")
        captured = torch.cuda.make_graphed_callables(along, parameters, num_warmup_iters=1, allow_unused_input=True)
    return lambda: cast(States, captured(*parameters))


def teach(
    motion: Gliding, body: PushedBody, a: Actions, updates: int, generator: torch.Generator, batch: int = 1_024
) -> None:
    """Train a gliding network to step as the body does along actions; a quarter of the steps pair random velocities and
    actions."""
    with torch.no_grad():
        start = body.start(len(a))
        before = torch.cat([start[:, None], body.unroll(start, a)[:, :-1]], dim=1)
        velocity, actions = before[..., 3:].flatten(0, 1), a.flatten(0, 1)
        who, did = torch.randint(len(actions), (2, len(actions) // 3), device=a.device, generator=generator)
        velocity, actions = torch.cat([velocity, velocity[who]]), torch.cat([actions, actions[did]])
        states = torch.cat([body.start(len(actions))[:, :3], velocity], dim=1)
        told = body.unroll(states, actions[:, None])[:, 0]
        unit = velocity.square().mean().sqrt()
        motion.turn.copy_(body.turn)
    optimiser = torch.optim.Adam([part for name, part in motion.named_parameters() if name != "turn"], lr=1e-2)
    slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, updates)
    with torch.enable_grad():
        for _ in range(updates):
            some = torch.randint(len(actions), (batch,), device=a.device, generator=generator)
            loss = ((motion.step(states[some], actions[some]) - told[some]) / unit).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            slower.step()

"""Where an agent is in a memory, by what it did and saw: many guesses, each as likely as its imagined view is alike.

A particle filter for models without landmarks. Guesses follow the learned motion, with noise; some go a part of the
way (the agent may have bumped), and some are put where memory holds a view like the one that is seen.
"""

from dataclasses import dataclass

import numpy as np
import torch

from gtmsm.model.planning.goal import difference
from gtmsm.tensors import Belief, Gaussian

ALIKE = 16
"""The number of most similar views at which guesses are put."""


@dataclass(frozen=True)
class GuessConfig:
    """How guesses move, and what speaks for them."""

    rough: tuple[float, float, float] = (0.02, 0.02, 0.01)
    """Standard deviation of a guess's step ahead and aside, in units of the model, and of its turn."""
    bumped: float = 0.1
    """Share that goes a part of its way only."""
    again: float = 0.0
    """Share of those that did at the last step which do so again, at the least."""
    swerve: float = 0.0
    """Standard deviation of these guesses' turn, in radians."""
    anew: float = 0.05
    """Share that is put where views are alike."""
    put: float = 0.1
    """Share that is put where something else tells, when something does."""
    elsewhere: float = 3.0
    """How much less likely, as a power of e, guesses are that are put somewhere."""
    sharp: float = 2.0
    """How much less likely, as a power of e, a guess is whose view is as much more off as the best one's is off at all;
    0 where views are not compared."""


class Guesses:
    """`states` and their `weight`; `memory` and `count` do not change."""

    def __init__(self, model, memory, count, seed, here=None, settings=None):
        """At memorised places, any of them, or at `here`."""
        self.model, self.memory, self.count, self.settings = model, memory, count, settings or GuessConfig()
        self.places = model.motion.pose_at(memory.place.mean[0])
        self.chance = torch.Generator().manual_seed(seed)
        self.weight = torch.full((count,), 1 / count)
        if here is None:
            every = torch.randint(len(self.places), (count,), generator=self.chance)
            here = self._at(self.places[every])
        self.states, self.held = here.expand(count, -1).clone(), torch.zeros(count, dtype=torch.bool)
        self.least = []  # the smallest error of each step: what even the best guess is off by

    def _at(self, poses):
        """States at rest."""
        return self.model.motion.settle(self.model.motion.start(len(poses)), poses)

    def _errors(self, states, frames):
        """Mean squared difference between frames and what is imagined at states."""
        place = Belief(self.model.motion.place(states)[:, None])
        imagined = self.model.vae.decode(self.model.read(self.memory, place).peak())[:, 0]
        return (imagined - frames).square().mean((1, 2, 3))

    def step(self, frame, action, also=None, bumps=None, put=None):
        """Go on by `action`, one row of the model's actions or None, and look at `frame`.

        `also`: what else is known, as a function from states to log-likelihoods; `bumps`: one from states to the
        probabilities that something is in the way there; `put`: one that moves states to where they may be instead.
        """
        if action is not None:
            self.states = self._moved(action, bumps)
        likely = torch.zeros(self.count, dtype=torch.double)
        if put is not None:
            chosen = torch.rand(self.count, generator=self.chance) < self.settings.put
            self.states[chosen] = put(self.states[chosen])
            likely[chosen] -= self.settings.elsewhere
        if self.settings.sharp:
            anew = torch.rand(self.count, generator=self.chance) < self.settings.anew
            self.states[anew] = self._alike(frame, int(anew.sum()))
            errors = self._errors(self.states, frame[None])
            self.least.append(float(errors.min()))
            likely -= self.settings.sharp * errors / np.median(self.least)
            likely[anew] -= self.settings.elsewhere  # who is put somewhere has no past that speaks for it
        if also is not None:
            likely += also(self.states).double()
        weight = self.weight.double().log() + likely
        self.weight = (weight - weight.logsumexp(0)).exp().float()
        if 1 / float(self.weight.square().sum()) < self.count / 2:
            self._resample()

    def _moved(self, action, bumps):
        """Where the guesses are after an action."""
        before, size = self.states, self.model.motion.pose_size
        moved = self.model.motion.step(before, action.expand(self.count, -1))
        rough = torch.tensor(self.settings.rough[:size])
        moved[:, :size] += torch.randn(self.count, size, generator=self.chance) * rough
        often = self.settings.bumped if bumps is None else bumps(moved)
        often = torch.where(self.held, torch.as_tensor(often).clamp(min=self.settings.again), often)
        self.held = bumped = torch.rand(self.count, generator=self.chance) < often
        part = torch.rand(int(bumped.sum()), 1, generator=self.chance)
        moved[bumped, :2] = before[bumped, :2] + part * (moved - before)[bumped, :2]
        moved[bumped, size : size + 2] *= part
        if self.settings.swerve:
            moved[bumped, 2] = before[bumped, 2] + part[:, 0] * (moved - before)[bumped, 2]
            moved[bumped, 2] += self.settings.swerve * torch.randn(len(part), generator=self.chance)
        return moved

    def _alike(self, frame, count):
        """Where memory holds similar views."""
        code = self.model.vae.encode(frame[None, None])
        known = self.memory.code
        best = difference(known, Gaussian(code.mean, code.log_var))[0].topk(min(ALIKE, len(self.memory)), largest=False)
        return self._at(self.places[best.indices[torch.randint(len(best.indices), (count,), generator=self.chance)]])

    def _resample(self):
        start = torch.rand(1, generator=self.chance)
        at = torch.searchsorted(self.weight.cumsum(0), (torch.arange(self.count) + start) / self.count)
        at = at.clamp(max=self.count - 1)
        self.states, self.held = self.states[at], self.held[at]
        self.weight = torch.full((self.count,), 1 / self.count)

    def best(self, reach=0.5):
        """The state around which most of the weight lies, and how much of it does."""
        place = self.model.motion.place(self.states)
        near = torch.cdist(place, place) < reach
        shares = near.float() @ self.weight
        top = int(shares.argmax())
        weight = self.weight * near[top]
        state = self.states[top] + (weight[:, None] * self._off(self.states, self.states[top])).sum(0) / weight.sum()
        return state[None], float(shares[top])

    def _off(self, states, middle):
        off = states - middle
        if self.model.motion.pose_size == 3:
            off[:, 2] = torch.remainder(off[:, 2] + torch.pi, 2 * torch.pi) - torch.pi
        return off

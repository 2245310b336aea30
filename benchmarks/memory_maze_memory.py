"""Memory Maze as a model memorised it: ground is where its walk went, and its views tell where the agent is.

No rule says what floor or walls look like. Off walls the learned motion hardly errs. Views correct the rest: the code
that memory expects to be seen at a guess is compared with the code of what is seen.
"""

import numpy as np
import torch
from memory_maze_sights import small

from gtmsm.tensors import Belief

BETWEEN = 4
"""Points of ground to a step of the walk."""
REACH, WRONG, EXACT, WEIGHT = 0.6, 0.12, 0.003, 0.05
"""Of guesses beside views. How far from all memorised places a guess may be that views can judge, in the model's units;
the mean squared difference of codes at a wrong pose, and at the right one where a view was memorised (both as measured
on recorded walks); and how much each picture counts, since successive ones are not independent."""
OFTEN, WALKED = (0.05, 0.002), 0.12
"""Probabilities of a bump off the walk, and on it; and how far from it that begins, in cells."""
STILL = 0.2, 30.0
"""How much more likely a bump is, at the least and at the most, by how little the code of what is seen has changed."""


class Memorised:
    """What an explorer memorises of a maze; in cells."""

    margin = 0.06
    """Of plans: within 0.07 cells of the walk, which keeps farther than that from walls."""

    def __init__(self, explorer, unit):
        self.explorer = explorer
        self.scale, self.before = torch.tensor([unit, unit, 1.0]), None

    def points(self):
        """Ground that is known to be open: the way between successive places of the walk."""
        way = self.scale[0].item() * self.explorer.memory.place.mean[0, :, :2].numpy()
        return np.concatenate([way[:-1] + i / BETWEEN * np.diff(way, axis=0) for i in range(BETWEEN)])

    def see(self, frame, pose, things):
        """Keep the last code; the explorer memorises what is seen."""
        self.before = self._code(frame)

    def _code(self, frame):
        picture = torch.from_numpy(small(frame)).permute(2, 0, 1) / 255
        return self.explorer.model.vae.encode(picture[None, None]).mean[0, 0]

    def bump(self, pose):
        """Nothing to do: plans avoid what steps failed at."""

    def careful(self, action, frame, things):
        """The action as it is planned."""
        return action

    def bumps(self, points, frame):
        """How likely it is to have bumped at each of these points: more where what is seen has hardly changed."""
        chance = torch.where(torch.cdist(points, torch.as_tensor(self.points()).to(points)).amin(1) > WALKED, *OFTEN)
        more = (WRONG / (self._code(frame) - self.before).square().mean()).clamp(*STILL)
        return chance * more / (1 - chance + chance * more)

    def likely(self, frame, poses, things):
        """Log-likelihood of what is seen at each of these poses, against that of a wrong pose; 0 far from all views."""
        model, memory = self.explorer.model, self.explorer.memory
        if not len(memory):
            return torch.zeros(len(poses))
        place = model.motion.place(poses / self.scale)
        near = 1 - torch.cdist(place, memory.place.mean[0]).amin(1) / REACH
        off = (model.read(memory, Belief(place[:, None])).peak()[:, 0] - self._code(frame)).square().mean(1)
        return WEIGHT * near.clamp(min=0) * (WRONG / off.clamp(min=EXACT)).log()

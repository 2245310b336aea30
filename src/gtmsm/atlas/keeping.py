"""Which entries of a memory are retained: those that imagination needs, and those that no newer one contradicts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.atlas.meeting import NEAR
from gtmsm.atlas.recognisers import recogniser
from gtmsm.evaluation.metrics import psnr
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief

ASKED = 512
"""Number of dropped entries of each agent at whose places the loss of imagination is measured."""
HALVINGS = 30
"""Number of bisections in the search for the side of a box."""
AXES = 4
"""Number of directions in which codes are compared for pruning."""
CODES = 0.25
"""Weight of a code relative to a place in that comparison."""
SPOT = 0.05
"""Side of a box, in units of the place, of whose entries only the newest is compared with older ones. Loop closure
puts all views of one place at the same pose, so that old ones could be all that is near."""
AT_ONCE = 4_096
"""Number of entries that are compared with their neighbours at a time."""


@dataclass(frozen=True)
class Loss:
    """PSNR, pooled, of frames imagined at the places of dropped entries, against the decoded codes of these entries."""

    before: float
    """With all entries."""
    after: float
    """With the entries that are left."""
    asked: int
    """Number of places compared."""


@dataclass(frozen=True)
class Pruned:
    """The result of pruning."""

    before: int
    """Number of entries."""
    after: int
    loss: Loss | None
    """None if nothing was dropped."""

    @staticmethod
    def of(before: int, after: int, losses: Sequence[Loss]) -> "Pruned":
        """Average the losses over all places compared."""
        asked = sum(loss.asked for loss in losses)
        if not asked:
            return Pruned(before, after, None)
        mean = [sum(getattr(loss, name) * loss.asked for loss in losses) / asked for name in ("before", "after")]
        return Pruned(before, after, Loss(mean[0], mean[1], asked))


def chosen(memory: Memory, keep: int) -> Int[Tensor, "n"]:
    """Numbers of at most `keep` entries, spread over places and codes, in ascending order.

    Places and codes are divided into boxes as small as `keep` allows, and the newest entry of every box is retained.
    So repeated views are discarded first, while a place that has changed keeps both of its views.
    """
    if len(memory) <= keep:
        return torch.arange(len(memory))
    place, code = memory.place.mean[0].double(), memory.code.mean[0].double()
    # Only the directions in which codes differ most: with all of them, every entry would have a box of its own.
    centred = code - code.mean(0)
    spread, axes = torch.linalg.eigh(centred.mT @ centred / len(code))
    main = centred @ axes[:, -AXES:] / spread[-AXES:].clamp_min(1e-12).sqrt()
    seen = torch.cat([place / place.std(0).clamp_min(1e-12), CODES * main], 1)
    small, large = 1e-6, 2 * float(seen.abs().max()) + 1.0
    found = _newest_of_boxes(seen, large)
    for _ in range(HALVINGS):
        side = (small * large) ** 0.5
        now = _newest_of_boxes(seen, side)
        if len(now) <= keep:
            large, found = side, now
        else:
            small = side
    return found[-keep:]


def _newest_of_boxes(seen: Float[Tensor, "n d"], side: float) -> Int[Tensor, "m"]:
    """Numbers of the last entry in every box of this side."""
    _, box = (seen / side).floor().long().unique(dim=0, return_inverse=True)
    last = torch.zeros(int(box.max()) + 1, dtype=torch.long)
    return last.scatter_reduce_(0, box, torch.arange(len(box)), "amax").sort().values


@torch.no_grad()
def compared(model: WorldModel, memory: Memory, left: Memory, number: Int[Tensor, "n"]) -> Loss:
    """Measure the loss by pruning at up to `ASKED` dropped entries; `number` are the entries that are left."""
    gone = torch.ones(len(memory), dtype=torch.bool).index_fill_(0, number, False).nonzero()[:, 0]
    asked = gone[torch.linspace(0, len(gone) - 1, min(ASKED, len(gone))).round().long()]
    entries = memory.at(asked)
    true, query = model.vae.decode(entries.code.mean), Belief(entries.place.mean)
    shown = [model.vae.decode(model.read(known, query).peak()) for known in (memory, left)]
    before, after = (float(psnr((frames - true).square().mean())) for frames in shown)
    return Loss(before, after, len(asked))


@torch.no_grad()
def newest(model: WorldModel, memory: Memory, times: Float[Tensor, "n"]) -> Int[Tensor, "m"]:
    """Numbers of the entries that no later, different view of the same place contradicts."""
    known, space = recogniser(model, memory), model.motion.space
    by_age = times.argsort(stable=True)
    last = by_age[_newest_of_boxes(memory.at(by_age).place.mean[0], SPOT)]
    recent, kept = memory.at(last), []
    for part in torch.arange(len(memory)).split(AT_ONCE):
        entries = memory.at(part)
        near = recent.nearest(Belief(entries.place.mean), min(4 * NEAR, len(recent))).index
        pose, there = model.motion.pose_at(entries.place.mean), model.motion.pose_at(recent.place_at(near))
        relative = space.displacement(there, pose[:, :, None])
        later = (times[last][near] > times[part][None, :, None]) & known.near(relative)
        alike = known.alike(recent.code_at(near), entries.code, relative)
        kept.append(part[~(later & ~alike).any(-1)[0]])
    return torch.cat(kept)

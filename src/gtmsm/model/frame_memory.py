"""The memory that training reads: a frame is encoded only if it is retrieved."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from gtmsm.model.frame_vae import FrameVAE
from gtmsm.model.memory import Distance, Neighbours, nearest
from gtmsm.model.recall import Prior
from gtmsm.tensors import Belief, Frames, Gaussian, gather


class FrameMemory:
    """A memory of frames at known places that encodes only the frames that a read retrieves.

    Poses do not depend on frames, so a search needs no codes; of 256 memorised frames, 50 are typically retrieved. The
    frames to explain are encoded in the same call (`asked_code`). A captured CUDA graph needs fixed shapes: it gives a
    `capacity`, and steps whose retrieved frames exceed it are marked as not `complete`. It can be read once.
    """

    def __init__(
        self,
        place: Belief,
        frames: Frames,
        asked: Int64[Tensor, "batch asked"],
        vae: FrameVAE,
        prior: Prior,
        capacity: int | None,
        hold: Callable[[Gaussian], Gaussian] | None = None,
    ) -> None:
        """`place`: places of the memorised steps, the first of `frames`; `asked`: the steps to explain.

        `hold` maps retrieved codes to what memory holds of them; None: the codes themselves.
        """
        self.place, self._frames, self._asked = place, frames, asked
        self._vae, self._prior, self._capacity, self._hold = vae, prior, capacity, hold
        self.asked_code: Gaussian
        """q(z|x) of the frames to explain; set by `retrieve`."""
        self.complete: Bool[Tensor, "batch asked"] | None = None
        self.needed: Int[Tensor, ""] | None = None

    def __len__(self) -> int:
        """Number of entries in each memory of the batch."""
        return self.place.mean.shape[1]

    @property
    def batch(self) -> int:
        """Number of memories."""
        return len(self.place.mean)

    def nearest(self, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
        """The k entries nearest to each query."""
        return nearest(self.place, query, k, distance)

    def place_at(self, index: Int[Tensor, "batch *which"]) -> Float[Tensor, "batch *which P"]:
        """Places of the entries `index`."""
        return gather(self.place.mean, index)

    def retrieve(
        self, index: Int[Tensor, "batch time K"]
    ) -> tuple[Gaussian, Int[Tensor, "batch time K"], Float[Tensor, "rows tokens width"] | None]:
        """Codes of the entries `index` in one flat bank, their rows in it, and the prior's digest of each row."""
        batch, steps = self._frames.shape[:2]
        first = frame_numbers(batch, 1, steps, index.device)
        if index.shape[-1] == len(self):  # all entries are retrieved
            entry = frame_numbers(batch, len(self), steps, index.device).flatten()
            row = index + frame_numbers(batch, 1, len(self), index.device)[..., None]
        else:
            found = distinct(index, len(self), steps, self._capacity)
            entry, row, self.needed = found.entry, found.row, found.needed
            self.complete = None if self._capacity is None else found.complete
        asked = (first + self._asked).flatten()
        code = self._vae.encode(self._frames.flatten(0, 1), torch.cat([asked, entry]))
        (mean, bank_mean), (log_var, bank_log_var) = (
            part.split([len(asked), len(entry)]) for part in (code.mean, code.log_var)
        )
        self.asked_code = Gaussian(mean, log_var).unflatten(0, (batch, -1))
        bank = Gaussian(bank_mean, bank_log_var)
        if self._hold is not None:
            bank = self._hold(bank)
        return bank, row, self._prior.digest(bank)


@cache  # a captured graph reads these tensors, and does not keep them alive
def frame_numbers(batch: int, steps: int, pitch: int, device: torch.device) -> Int64[Tensor, "batch steps"]:
    """Numbers b pitch + t of the first steps t of each clip b, in a flat batch of clips of `pitch` frames."""
    with torch.inference_mode(False):  # a tensor made in inference mode could not be used in training
        return torch.arange(steps, device=device) + pitch * torch.arange(batch, device=device)[:, None]


class Distinct(NamedTuple):
    """The distinct entries that are retrieved from a batch of memories."""

    entry: Int64[Tensor, "capacity"]
    """Entry i of memory b as number b pitch + i, ascending; 0 in unused capacity."""
    row: Int64[Tensor, "batch time K"]
    """Position of each retrieved entry in that list; arbitrary if it exceeds the capacity."""
    complete: Bool[Tensor, "batch time"]
    """Whether the list holds all entries that a query retrieves."""
    needed: Int64[Tensor, ""]
    """Number of distinct entries, including those beyond the capacity."""


@torch.no_grad()
def distinct(index: Int64[Tensor, "batch time K"], n: int, pitch: int, capacity: int | None) -> Distinct:
    """Each retrieved entry of memories of n entries once; without a `capacity`, it synchronises with the device."""
    number = index + frame_numbers(len(index), 1, n, index.device)[..., None]
    used = torch.zeros(len(index) * n, dtype=torch.int64, device=index.device).index_fill_(0, number.flatten(), 1)
    count = used.cumsum(0)
    needed = count[-1]
    size = int(needed) if capacity is None else capacity
    every = frame_numbers(len(index), n, pitch, index.device).flatten()
    # The c-th used entry is written to slot c; unused ones go to a slot before the list, excess ones to one after it.
    place = (used * count).clamp_(max=size + 1)
    entry = torch.zeros(size + 2, dtype=torch.int64, device=index.device).scatter_(0, place, every)[1:-1]
    row = place[number] - 1
    complete = row.amax(-1) < size
    return Distinct(entry, row.clamp_(max=size - 1), complete, needed)

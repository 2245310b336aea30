"""An atlas: persistent memories of many agents in many worlds, shared between processes and machines."""

import time as clock
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from gtmsm.atlas.keeping import Pruned, chosen, compared, newest
from gtmsm.atlas.local import LocalWorld, Met
from gtmsm.atlas.meeting import meet
from gtmsm.atlas.record import Draft, Hit, World, chunks_of, require_name
from gtmsm.atlas.store import Store, open_store
from gtmsm.config import require, require_whole
from gtmsm.errors import InputError, did_you_mean, shown
from gtmsm.model.checks import require_memory
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.localisation import PoseMixture
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.tensors import Actions, Belief, Frames

AT_ONCE = 16
"""Number of chunks that are committed together."""


class Unfinished(InputError):
    """Not all entries could be added."""

    def __init__(self, reason: str, committed: int, asked: int) -> None:
        super().__init__(f"{reason}; {committed} of {asked} entries are committed, the others are not in the atlas")
        self.committed = committed
        """Number of the given entries, counted from the first, that are in the atlas."""


@dataclass(frozen=True)
class Place:
    """An entry of some world whose view resembles a picture."""

    hit: Hit
    pose: Tensor
    """Pose of the entry, in the frame of the agent that made it."""


class Atlas:
    """A log of the memories of agents for each world; look-ups in a world read what this process has pulled.

    Each agent of a world has its own frame until `merge` finds where their maps meet. Entries are never changed: a
    meeting is a line of the log, and `memory` applies it when it is called.
    """

    def __init__(self, store: Store, model: WorldModel | None = None) -> None:
        """Use `open`."""
        self._store, self.model = store, model
        self._local: dict[str, LocalWorld] = {}

    @classmethod
    def open(cls, address: str | Path, model: WorldModel | None = None, create: bool = True) -> "Atlas":
        """Open a file, or "postgresql://USER@HOST/DATABASE"; `model` is the model that made the memories.

        Memories can be added, copied and counted without a model; recognising and imagining need one.
        """
        fits = isinstance(address, str | Path)
        require(fits, f"the address is {shown(address)}; give a file, or postgresql://HOST/DATABASE")
        return cls(open_store(str(address), create), model)

    def __enter__(self) -> "Atlas":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file or the connection to the server."""
        self._store.close()

    @property
    def address(self) -> str:
        """Address of the store, without a password."""
        return self._store.address

    def worlds(self) -> list[World]:
        """All worlds of the atlas."""
        return self._store.worlds()

    def written(self, world: str, agent: str) -> int:
        """Number of entries an agent has ever added to a world; continue with `add(..., memory.since(written))`."""
        return self._store.written(world, agent)

    def add(self, world: str, agent: str, memory: Memory, time: float | None = None) -> int:
        """Append the entries of a memory, in the agent's own frame; return how many the agent has now written.

        They are committed a few chunks at a time. If that fails, `Unfinished` says how many entries are committed.
        """
        require_name("world", world)
        require_name("agent", agent)
        require(isinstance(memory, Memory), f"got a {type(memory).__name__} to add; give a Memory, as memorise returns")
        memory = memory.snapshot()
        require(memory.batch == 1, f"got {memory.batch} memories; add those of one agent, as memory[:1] is")
        if self.model is not None:
            require_memory(self.model, memory)
        require(memory.is_finite, "this memory holds NaN or infinity; memorise the walk again")
        first = start = self._store.written(world, agent)
        now = clock.time() if time is None else float(time)
        drafts = chunks_of(memory, agent, first, now)
        while batch := list(islice(drafts, AT_ONCE)):
            try:
                self._store.append(world, memory.weights, batch)
            except InputError as problem:
                done = self._known_written(world, agent, first)
                end = first + sum(draft.entries for draft in batch)
                if done != end:  # otherwise only the reply was lost, not the chunks
                    raise Unfinished(str(problem), done - start, len(memory)) from problem
            first += sum(draft.entries for draft in batch)
        return first

    def _known_written(self, world: str, agent: str, at_least: int) -> int:
        """Number of entries in the log after a failure; `at_least` if the store does not answer."""
        try:
            return max(at_least, self._store.written(world, agent))
        except InputError:
            return at_least

    def pull(self, world: str) -> int:
        """Read what others have added to a world since the last pull; return the number of new lines."""
        local = self._local.get(world)
        if local is None:
            known = {found.name: found for found in self.worlds()}
            if world not in known:
                choice = did_you_mean(str(world), known) if known else "it is empty"
                raise InputError(f"there is no world {shown(world)} in {self.address}; {choice}")
            local = LocalWorld(world, known[world].weights, self.address)
        if self.model is not None and local.weights not in (None, self.model.fingerprint):
            raise InputError(
                f"world {world} of {self.address} was made by the weights {local.weights}, not by "
                f"{self.model.fingerprint}; open it with the model that made it"
            )
        try:
            taken = local.take(self._store.pull(world, local.seq))
            if local.is_stale:
                local = LocalWorld(world, local.weights, self.address)
                local.take(self._store.pull(world, 0))
        except BaseException:
            self._local.pop(world, None)  # read again next time
            raise
        self._local[world] = local
        return taken

    def local(self, world: str) -> LocalWorld:
        """The local copy of a world, brought up to date."""
        self.pull(world)
        return self._local[world]

    def memory(self, world: str, agent: str | None = None, newer_wins: bool = False) -> LongMemory:
        """The entries of an agent and of all agents it has met, in its frame; its own entries come first.

        Where a place has changed, both views are kept and the nearest one is read. `newer_wins` leaves out entries that
        a later, different view of the same place contradicts.
        """
        local = self.local(world)
        space = None if self.model is None else self.model.motion.space
        name = local.agent(agent)
        memory = local.merged(name, space)
        return memory if not newer_wins else self._newest(local, name, memory)

    def merge(self, world: str) -> list[Met]:
        """Find where maps meet, for every pair of agents with new entries; write the results to the log."""
        model, local, news = self._require_model("merge"), self.local(world), []
        names = sorted(local.agents)
        for one, other in ((a, b) for i, a in enumerate(names) for b in names[i + 1 :]):
            known = len(local.agents[one]), len(local.agents[other])
            before = local.met.get((one, other))
            if before is None or before.known != known:
                met = Met(one, other, meet(model, local.agents[one], local.agents[other]), known)
                if met.found or before is not None:
                    news.append(met)
        if news:
            drafts = [Draft.saying("meeting", met.one, met.said(), clock.time()) for met in news]
            self._store.append(world, local.weights, drafts)
        return list(self.local(world).met.values())

    @torch.no_grad()
    def where(
        self, world: str, frames: Frames, actions: Actions | None = None, agent: str | None = None
    ) -> PoseMixture:
        """Where in a world a picture, or the last of a clip, was seen; poses are in the frame of an agent."""
        return self._require_model("say where").localise(self.memory(world, agent), frames, actions)

    @torch.no_grad()
    def imagine(self, world: str, here: Belief, plans: Actions, agent: str | None = None) -> Dream:
        """Imagine what each plan would show, from a pose in the frame of an agent, with that agent's merged memory."""
        return self._require_model("imagine").imagine(self.memory(world, agent), here, plans)

    @torch.no_grad()
    def which(self, frame: Tensor, k: int = 5) -> list[Place]:
        """The k entries of all worlds whose codes are most similar to that of a frame."""
        model = self._require_model("say which world")
        require_whole("k", k, most=1_000)
        code = model.vae.encode(frame[None, None]).mean[0, 0].float().cpu().numpy()
        found = []
        for hit in self._store.alike(model.fingerprint, code, k):
            (line,) = islice(self._store.pull(hit.world, hit.seq - 1), 1)
            place = line.memory(model.fingerprint, self.address).place.mean[0, hit.row]
            found.append(Place(hit, model.motion.pose_at(place)))
        return found

    def prune(self, world: str, keep: int) -> Pruned:
        """Keep about `keep` entries of a world, those that imagination needs most; repeated views are dropped first."""
        model, local = self._require_model("prune"), self.local(world)
        require_whole("keep", keep)
        before, share = len(local), min(1.0, keep / max(1, len(local)))
        drafts: list[Draft] = []
        dropped: list[int] = []
        losses = []
        for agent, memory in sorted(local.agents.items()):
            number = chosen(memory, max(model.settings.recall.neighbours, int(share * len(memory))))
            if len(number) < len(memory):
                left = memory.at(number)
                losses.append(compared(model, memory, left, number))
                drafts += self._with_times(local, agent, left, number)
                dropped += local.chunks[agent]
        if dropped:
            drafts.append(Draft.saying("prune", "", {"dropped": dropped}, clock.time()))
            self._store.append(world, local.weights, drafts, dropped)
        return Pruned.of(before, len(self.local(world)), losses)

    def _with_times(self, local: LocalWorld, agent: str, left: Memory, number: Tensor) -> Iterator[Draft]:
        """Chunks of the retained entries, with the times at which they were added."""
        ends = torch.tensor([end for end, _ in local.times[agent]])
        chunk = torch.bucketize(number, ends, right=True)
        times = torch.tensor([time for _, time in local.times[agent]], dtype=torch.float64)[chunk]
        _, sizes = times.unique_consecutive(return_counts=True)
        start = 0
        for size in sizes.tolist():
            yield from chunks_of(left.at(torch.arange(start, start + size)), agent, None, float(times[start]))
            start += size

    def export(self, path: str | Path, worlds: Sequence[str] = ()) -> int:
        """Copy worlds, by default all, to another atlas, a file or a server; return the number of entries."""
        entries = 0
        with Atlas.open(path) as other:
            there = {world.name for world in other.worlds()}
            for world in worlds or [world.name for world in self.worlds()]:
                require(world not in there, f"{other.address} has a world {world} already; give another file")
                local = self.local(world)
                lines = (line for line in self._store.pull(world, 0) if line.kind != "prune")
                while batch := list(islice(lines, AT_ONCE)):
                    drafts = []
                    for line in batch:
                        codes = None
                        if line.kind == "chunk":
                            line.require_whole(world, local.weights, self.address)
                            codes = line.memory(local.weights, self.address).code.mean[0].float().numpy()
                        drafts.append(
                            Draft(line.kind, line.agent, line.first, line.entries, line.time, line.body, codes)
                        )
                        entries += line.entries
                    other._store.append(world, local.weights, drafts)
        return entries

    def _newest(self, local: LocalWorld, agent: str, memory: LongMemory) -> LongMemory:
        """Leave out entries that a later, different view of the same place contradicts."""
        model = self._require_model("let newer views win")
        times, order = [], [agent, *sorted(local.frames(agent, model.motion.space).keys() - {agent})]
        for name in order:
            ends = torch.tensor([0, *(end for end, _ in local.times[name])])
            times.append(
                torch.tensor([t for _, t in local.times[name]], dtype=torch.float64).repeat_interleave(ends.diff())
            )
        kept = newest(model, memory, torch.cat(times)[: len(memory)])
        return LongMemory.of(memory.at(kept))

    def _require_model(self, what: str) -> WorldModel:
        require(self.model is not None, f"to {what} takes a model; give it to Atlas.open")
        assert self.model is not None
        return self.model

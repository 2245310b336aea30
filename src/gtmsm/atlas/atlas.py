"""An atlas: memories of many agents in many worlds, which outlive processes and are shared by machines."""

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
"""Chunks that are committed together."""


class Unfinished(InputError):
    """Not all entries could be added."""

    def __init__(self, reason: str, committed: int, asked: int) -> None:
        super().__init__(f"{reason}; {committed} of {asked} entries are committed, the others are not in the atlas")
        self.committed = committed
        """How many of the given entries are in the atlas: the first ones."""


@dataclass(frozen=True)
class Place:
    """A world in which something like a picture was seen."""

    hit: Hit
    pose: Tensor
    """In the frame of the agent that saw it."""


class Atlas:
    """A log of what agents saw, by worlds; look-ups are answered by what this process has pulled of it.

    Agents of one world have frames of their own until `merge` finds where their maps meet. Entries are never changed:
    a meeting is a line of the log, and `memory` applies it when it is asked for.
    """

    def __init__(self, store: Store, model: WorldModel | None = None) -> None:
        """Use `open`."""
        self._store, self.model = store, model
        self._local: dict[str, LocalWorld] = {}

    @classmethod
    def open(cls, address: str | Path, model: WorldModel | None = None, create: bool = True) -> "Atlas":
        """A file, or "postgresql://USER@HOST/DATABASE"; `model` is the one whose memories are kept.

        Without a model memories can be added, copied and counted; to recognise and to imagine takes one.
        """
        fits = isinstance(address, str | Path)
        require(fits, f"the address is {shown(address)}; give a file, or postgresql://HOST/DATABASE")
        return cls(open_store(str(address), create), model)

    def __enter__(self) -> "Atlas":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file or of the server."""
        self._store.close()

    @property
    def address(self) -> str:
        """Of the store, without a password."""
        return self._store.address

    def worlds(self) -> list[World]:
        """The worlds that there are."""
        return self._store.worlds()

    def written(self, world: str, agent: str) -> int:
        """How many entries an agent has ever added to a world: where to go on, `add(..., memory.since(written))`."""
        return self._store.written(world, agent)

    def add(self, world: str, agent: str, memory: Memory, time: float | None = None) -> int:
        """Append the entries of a memory, in the agent's own frame; returns how many it has written now.

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
                if done != end:  # else the answer was lost, not the chunks
                    raise Unfinished(str(problem), done - start, len(memory)) from problem
            first += sum(draft.entries for draft in batch)
        return first

    def _known_written(self, world: str, agent: str, at_least: int) -> int:
        """What the log holds after a failure, if it can be asked."""
        try:
            return max(at_least, self._store.written(world, agent))
        except InputError:
            return at_least

    def pull(self, world: str) -> int:
        """Take in what others have added to a world since; returns the number of new lines."""
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
        """A world, with all that others have added so far."""
        self.pull(world)
        return self._local[world]

    def memory(self, world: str, agent: str | None = None, newer_wins: bool = False) -> LongMemory:
        """What an agent and those whom it met remember, in its frame; its own entries come first.

        Where a place has changed, both views are kept and the nearest one is read. `newer_wins` leaves out entries at
        whose places something else was seen later.
        """
        local = self.local(world)
        space = None if self.model is None else self.model.motion.space
        name = local.agent(agent)
        memory = local.merged(name, space)
        return memory if not newer_wins else self._newest(local, name, memory)

    def merge(self, world: str) -> list[Met]:
        """Look for where maps meet, for every pair of agents that has something new; what is found goes to the log."""
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
        """Where in a world was this picture, or the last of this clip, seen? In the frame of an agent."""
        return self._require_model("say where").localise(self.memory(world, agent), frames, actions)

    @torch.no_grad()
    def imagine(self, world: str, here: Belief, plans: Actions, agent: str | None = None) -> Dream:
        """What each of these plans would show, from a pose in the frame of an agent, by all that it can know."""
        return self._require_model("imagine").imagine(self.memory(world, agent), here, plans)

    @torch.no_grad()
    def which(self, frame: Tensor, k: int = 5) -> list[Place]:
        """In which worlds was something like this seen? The k likest entries of all of them, by their codes."""
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
        """Keep the `keep` entries of a world that imagination needs most; repeated views are dropped first."""
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
        """Chunks of what is left, with the times at which it was added."""
        ends = torch.tensor([end for end, _ in local.times[agent]])
        chunk = torch.bucketize(number, ends, right=True)
        times = torch.tensor([time for _, time in local.times[agent]], dtype=torch.float64)[chunk]
        _, sizes = times.unique_consecutive(return_counts=True)
        start = 0
        for size in sizes.tolist():
            yield from chunks_of(left.at(torch.arange(start, start + size)), agent, None, float(times[start]))
            start += size

    def export(self, path: str | Path, worlds: Sequence[str] = ()) -> int:
        """Copy worlds, by default all, to another atlas: a file, or a server; returns the number of entries."""
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
        """Without entries at whose places something else was seen later."""
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

"""This process's copy of a world of an atlas: the lines it has pulled, as memories that it can search."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from gtmsm.atlas.meeting import Meeting, is_clear
from gtmsm.atlas.record import Record
from gtmsm.config import require
from gtmsm.errors import InputError, did_you_mean
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.pose import Space

DAMAGED = "restore the atlas from a copy"


@dataclass(frozen=True)
class Met:
    """How the maps of two agents fit together: motions from the frame of `other` to the frame of `one`."""

    one: str
    other: str
    found: list[Meeting]
    """Best first; several where different places look alike."""
    known: tuple[int, int]
    """Number of entries of each agent when the motions were found."""

    @property
    def clear(self) -> bool:
        """Whether the first motion is clearly the best; if not, none is used."""
        return is_clear(self.found)

    def said(self) -> dict[str, object]:
        """The content of a line of the log."""
        found = [
            {"origin": m.origin.tolist(), "covariance": m.covariance.tolist(), "sights": m.sights, "share": m.share}
            for m in self.found
        ]
        return {"one": self.one, "other": self.other, "found": found, "known": list(self.known)}

    @staticmethod
    def read(record: Record, source: str) -> "Met":
        """Read a line of the log."""
        said = record.said(source)
        try:
            found = [
                Meeting(torch.tensor(m["origin"]), torch.tensor(m["covariance"]), m["sights"], m["share"])
                for m in said["found"]
            ]
            return Met(said["one"], said["other"], found, (said["known"][0], said["known"][1]))
        except (KeyError, TypeError, ValueError, IndexError):
            raise InputError(f"{source}: line {record.seq} is no meeting; {DAMAGED}") from None


@dataclass
class LocalWorld:
    """The part of a world that was pulled."""

    name: str
    weights: str | None
    source: str
    seq: int = 0
    agents: dict[str, LongMemory] = field(default_factory=dict)
    """The memory of each agent, in its own frame."""
    times: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """For each chunk of an agent: its number of entries after it, and the time at which it was added."""
    chunks: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the lines that hold each agent's chunks."""
    met: dict[tuple[str, str], Met] = field(default_factory=dict)
    """The newest meeting of each pair of agents."""
    pruned: set[int] = field(default_factory=set)
    _merged: dict[str, tuple[object, dict[str, int], LongMemory]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of entries of all agents."""
        return sum(map(len, self.agents.values()))

    def take(self, lines: Iterable[Record]) -> int:
        """Add lines that follow the ones already taken; return their number."""
        fresh: dict[str, list[Memory]] = {}
        taken, missing = 0, set[int]()
        for line in lines:
            line.require_whole(self.name, self.weights, self.source)
            missing |= set(range(self.seq + 1, line.seq))
            self.seq, taken = line.seq, taken + 1
            if line.kind == "chunk":
                fresh.setdefault(line.agent, []).append(line.memory(self.weights, self.source))
                times = self.times.setdefault(line.agent, [])
                times.append((line.entries + (times[-1][0] if times else 0), line.time))
                self.chunks.setdefault(line.agent, []).append(line.seq)
            elif line.kind == "meeting":
                met = Met.read(line, self.source)
                self.met[met.one, met.other] = met
            else:
                self.pruned |= {int(seq) for seq in line.said(self.source).get("dropped", [])}
        lost = sorted(missing - self.pruned)
        require(not lost, f"{self.source}: lines {lost[:5]} of world {self.name} are missing; {DAMAGED}")
        for agent, parts in fresh.items():
            self.agents.setdefault(agent, LongMemory()).write(_joined(parts))
        return taken

    @property
    def is_stale(self) -> bool:
        """Whether a chunk held here was pruned meanwhile."""
        return any(seq in self.pruned for seqs in self.chunks.values() for seq in seqs)

    def agent(self, name: str | None) -> str:
        """The checked name of an agent of this world; None stands for its only agent."""
        require(bool(self.agents), f"world {self.name} of {self.source} is empty; add a memory to it first")
        if name is None:
            require(len(self.agents) == 1, f"world {self.name} has {len(self.agents)} agents; say in whose frame")
            return next(iter(self.agents))
        known = did_you_mean(name, self.agents)
        require(name in self.agents, f"there is no agent {name} in world {self.name} of {self.source}; {known}")
        return name

    def frames(self, agent: str, space: Space) -> dict[str, Meeting]:
        """The most certain motion into this agent's frame from each agent it has met, directly or through others."""
        links: dict[str, list[tuple[str, Meeting]]] = {}
        for (one, other), met in self.met.items():
            if met.clear and {one, other} <= self.agents.keys():
                links.setdefault(one, []).append((other, met.found[0]))
                links.setdefault(other, []).append((one, met.found[0].inverse(space)))
        found: dict[str, Meeting] = {}
        queue: list[tuple[float, int, str, Meeting]] = [(0.0, 0, agent, Meeting.none(space))]
        while queue:
            _, _, name, motion = heapq.heappop(queue)
            if name not in found:
                found[name] = motion
                for other, link in links.get(name, []):
                    further = link.then(motion, space)
                    heapq.heappush(queue, (float(further.covariance.trace()), len(queue) + len(found), other, further))
        return found

    def merged(self, agent: str, space: Space | None) -> LongMemory:
        """The entries of this agent and of all agents it has met, in its frame; its own entries come first."""
        own = self.agents[agent]
        if space is None or len(self.agents) == 1:
            return own.snapshot()
        frames = self.frames(agent, space)
        key = sorted((name, tuple(motion.origin.tolist())) for name, motion in frames.items())
        kept = self._merged.get(agent)
        have, memory = (dict[str, int](), LongMemory()) if kept is None or kept[0] != key else kept[1:]
        for name in [agent, *sorted(frames.keys() - {agent})]:
            if len(self.agents[name]) > have.get(name, 0):
                more = self.agents[name].since(have.get(name, 0))
                memory.write(more if name == agent else frames[name].moved(more, space))
                have[name] = len(self.agents[name])
        self._merged[agent] = key, have, memory
        return memory.snapshot()


def _joined(parts: list[Memory]) -> Memory:
    """Concatenate memories."""
    names = set.intersection(*(set(part.columns) for part in parts))
    return Memory.of_columns(
        {name: torch.cat([part.columns[name] for part in parts], 1) for name in names}, parts[0].weights
    )

"""The store of an atlas's log: the part that SQLite and PostgreSQL share.

A world has a counter. A writer increments it, which locks it until the transaction ends. So numbers have no gaps and
become visible in order: a reader that has pulled up to number n misses nothing when it asks for the lines after n.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gtmsm.atlas.record import Draft, Hit, Record, World
from gtmsm.config import require
from gtmsm.errors import InputError

VERSION = 1
"""Version of the tables."""
PAGE = 64
"""Number of lines pulled at once."""


class Store(ABC):
    """A log for each world, in tables."""

    address: str
    """The address as shown to people, without a password."""

    @abstractmethod
    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows; values replace its question marks."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Commit all statements of the block or none of them; one writer of a world at a time."""

    @abstractmethod
    def close(self) -> None:
        """Close the file or the connection."""

    @abstractmethod
    def alike(self, weights: str | None, code: np.ndarray, k: int) -> list[Hit]:
        """The k entries of all worlds of these weights whose codes are nearest."""

    @abstractmethod
    def index_codes(self, world: int, seq: int, draft: Draft) -> None:
        """Index the codes of a line for `alike`, if the store has an index."""

    @abstractmethod
    def forget_codes(self, world: int, seqs: Sequence[int]) -> None:
        """Undo `index_codes` for dropped lines."""

    def worlds(self) -> list[World]:
        """All worlds, sorted by name."""
        return [World(*row) for row in self.run("SELECT name, weights, seq FROM worlds ORDER BY name")]

    def written(self, world: str, agent: str) -> int:
        """Number of entries an agent has ever written into a world."""
        found = self.run(
            "SELECT a.written FROM agents a JOIN worlds w ON a.world = w.id WHERE w.name = ? AND a.name = ?",
            world,
            agent,
        )
        return int(found[0][0]) if found else 0

    def pull(self, world: str, after: int) -> Iterator[Record]:
        """The lines of a world after number `after`, in order."""
        sql = """SELECT l.seq, l.kind, l.agent, l.first, l.entries, l.time, l.hash, l.body FROM log l
                 WHERE l.world = ? AND l.seq > ? ORDER BY l.seq LIMIT ?"""
        number = self.run("SELECT id FROM worlds WHERE name = ?", world)
        while number:
            rows = self.run(sql, number[0][0], after, PAGE)
            for row in rows:
                yield Record(*row)
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def append(self, world: str, weights: str | None, drafts: Sequence[Draft], dropped: Sequence[int] = ()) -> range:
        """Write lines and drop the lines that they replace, in one transaction; return the new lines' numbers."""
        with self.transaction():
            number, last = self._raised(world, weights, len(drafts))
            seqs = range(last - len(drafts) + 1, last + 1)
            for seq, draft in zip(seqs, drafts, strict=True):
                if draft.first is not None:
                    self._count(number, world, draft)
                self.run(
                    """INSERT INTO log (world, seq, kind, agent, first, entries, time, hash, body)
                       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                    number, seq, draft.kind, draft.agent, draft.first, draft.entries, draft.time,
                    draft.hash(world, weights), draft.body,
                )  # fmt: skip
                if draft.codes is not None:
                    self.index_codes(number, seq, draft)
            for seq in dropped:
                gone = self.run("DELETE FROM log WHERE world = ? AND seq = ? RETURNING seq", number, seq)
                require(len(gone) == 1, f"{self.address}: world {world} was pruned by somebody else; try again")
            self.forget_codes(number, dropped)
        return seqs

    def _raised(self, world: str, weights: str | None, by: int) -> tuple[int, int]:
        """Increment the counter of a world; return the id of the world and the number of its last line."""
        raised = "UPDATE worlds SET seq = seq + ? WHERE name = ? RETURNING id, seq, weights"
        if not (found := self.run(raised, by, world)):
            self.run("INSERT INTO worlds (name, weights, seq) VALUES (?, ?, 0) ON CONFLICT DO NOTHING", world, weights)
            found = self.run(raised, by, world)
        number, last, made = found[0]
        if made != weights:
            raise InputError(
                f"world {world} of {self.address} was made by the weights {made}, and this memory by {weights}; use "
                "the model that made the world, or a world of another name"
            )
        return number, last

    def _count(self, number: int, world: str, draft: Draft) -> None:
        """Count the entries of a chunk; refuse one that does not follow what its agent has written."""
        counted = "UPDATE agents SET written = written + ? WHERE world = ? AND name = ? RETURNING written"
        values = draft.entries, number, draft.agent
        if not (found := self.run(counted, *values)):
            self.run("INSERT INTO agents (world, name, written) VALUES (?, ?, 0)", number, draft.agent)
            found = self.run(counted, *values)
        before = found[0][0] - draft.entries
        if before != draft.first:
            raise InputError(
                f"agent {draft.agent} has {before} entries in world {world} of {self.address}, not {draft.first}: "
                "another process writes in its name; give each process an agent of its own"
            )


def open_store(address: str, create: bool) -> Store:
    """Open SQLite for a path, PostgreSQL for the address of a server."""
    if address.startswith(("postgresql://", "postgres://")):
        try:
            from gtmsm.atlas.postgres import PostgresStore
        except ModuleNotFoundError as problem:
            if problem.name not in ("psycopg", "pgvector"):
                raise
            raise InputError(f'{problem.name} is needed for PostgreSQL; run: pip install "gtmsm[atlas]"') from None
        return PostgresStore(address, create)
    from gtmsm.atlas.sqlite import SqliteStore

    if "://" in address:
        raise InputError(f"the address is {address.split(':')[0]}://...; give postgresql://HOST/DATABASE or a file")
    return SqliteStore(address, create)

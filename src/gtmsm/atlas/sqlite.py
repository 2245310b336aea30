"""The log in one file: SQLite with a write-ahead log, so that readers never wait."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from gtmsm.atlas.record import Draft, Hit
from gtmsm.atlas.store import VERSION, Store
from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.files import as_path, require_writable

OURS = 0x67746D73
"""The application_id of atlas files."""
PATIENCE = 60.0
"""Seconds to wait for another process that writes."""
SCHEMA = f"""
CREATE TABLE worlds (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, weights TEXT, seq INTEGER NOT NULL);
CREATE TABLE agents (
    world INTEGER NOT NULL REFERENCES worlds, name TEXT NOT NULL, written INTEGER NOT NULL, PRIMARY KEY (world, name)
);
CREATE TABLE log (
    world INTEGER NOT NULL REFERENCES worlds, seq INTEGER NOT NULL, kind TEXT NOT NULL, agent TEXT NOT NULL,
    first INTEGER, entries INTEGER NOT NULL, time REAL NOT NULL, hash BLOB NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (world, seq)
);
PRAGMA application_id = {OURS};
PRAGMA user_version = {VERSION};
"""


class SqliteStore(Store):
    """A file that any number of processes may read and write."""

    def __init__(self, address: str, create: bool) -> None:
        self.address, path = address, as_path(address)
        self._lock = RLock()
        there = path.exists()
        require(there or create, f"{path}: no such atlas; give the file of one, or make it with gtmsm atlas add")
        require_writable(path)
        with self._refusing():
            if there:
                self._require_ours(path)
            self._connection = sqlite3.connect(path, PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Make the tables if there are none."""
        self.run("PRAGMA page_size = 16384")
        self.run("PRAGMA journal_mode = WAL")
        self.run("PRAGMA synchronous = FULL")  # committed lines survive a loss of power, too
        with self.transaction():
            if not self.run("SELECT 1 FROM sqlite_master LIMIT 1"):
                for statement in SCHEMA.strip().split(";")[:-1]:
                    self.run(statement)

    def _require_ours(self, path: Path) -> None:
        """Refuse files of other programs without changing them."""
        reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", PATIENCE, uri=True)
        try:
            empty = not reader.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
            (made_by,), (version,) = (
                reader.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
            )
        finally:
            reader.close()
        require(empty or made_by == OURS, f"{path} is a database of another program; give an atlas, or a new name")
        require(
            empty or version <= VERSION,
            f"{path} is an atlas of version {version}, and this gtmsm knows up to {VERSION}; install a newer gtmsm",
        )

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn errors of SQLite into errors of one line."""
        try:
            yield
        except sqlite3.Error as problem:
            fix = "is it an atlas?" if isinstance(problem, sqlite3.DatabaseError) else "try again"
            if isinstance(problem, sqlite3.OperationalError):
                fix = "what was committed before is kept"
            raise InputError(f"{self.address}: {problem}; {fix}") from problem

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        with self._lock, self._refusing():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction; other writers wait for its end."""
        with self._lock:
            self.run("BEGIN IMMEDIATE")
            try:
                yield
                self.run("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self.run("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def index_codes(self, world: int, seq: int, draft: Draft) -> None:
        """Do nothing: `alike` compares all codes."""

    def forget_codes(self, world: int, seqs: Sequence[int]) -> None:
        """Do nothing."""

    def alike(self, weights: str | None, code: np.ndarray, k: int) -> list[Hit]:
        """Compare all codes."""
        found: list[Hit] = []
        for world in self.worlds():
            if world.weights != weights:
                continue
            for record in self.pull(world.name, 0):
                if record.kind == "chunk":
                    means = record.memory(weights, self.address).code.mean[0].float().numpy()
                    far = np.linalg.norm(means - code, axis=1)
                    rows = np.argsort(far, kind="stable")[:k]
                    found += [Hit(world.name, record.agent, record.seq, int(row), float(far[row])) for row in rows]
            found = sorted(found, key=lambda hit: (hit.distance, hit.world, hit.seq, hit.row))[:k]
        return found

"""The log on a PostgreSQL server, for many machines; pgvector finds entries of all worlds by their codes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
import psycopg
from pgvector.psycopg import register_vector
from psycopg.conninfo import conninfo_to_dict

from gtmsm.atlas.record import Draft, Hit
from gtmsm.atlas.store import VERSION, Store
from gtmsm.config import require
from gtmsm.errors import InputError, shortened

SCHEMA = "gtmsm_atlas"
PARTS = 8
"""Number of partitions, by world: a look-up in one world reads one of them."""
LOCK = 0x67746D73
"""Key of the advisory lock that is held while the tables are made."""
TABLES = f"""
CREATE SCHEMA {SCHEMA};
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE {SCHEMA}.about (version INTEGER NOT NULL);
INSERT INTO {SCHEMA}.about VALUES ({VERSION});
CREATE TABLE {SCHEMA}.worlds (
    id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL UNIQUE, weights TEXT, seq BIGINT NOT NULL
);
CREATE TABLE {SCHEMA}.agents (
    world INTEGER NOT NULL REFERENCES {SCHEMA}.worlds, name TEXT NOT NULL, written BIGINT NOT NULL,
    PRIMARY KEY (world, name)
);
CREATE TABLE {SCHEMA}.log (
    world INTEGER NOT NULL, seq BIGINT NOT NULL, kind TEXT NOT NULL, agent TEXT NOT NULL,
    first BIGINT, entries INTEGER NOT NULL, time DOUBLE PRECISION NOT NULL, hash BYTEA NOT NULL, body BYTEA NOT NULL,
    PRIMARY KEY (world, seq)
) PARTITION BY HASH (world);
CREATE TABLE {SCHEMA}.codes (world INTEGER NOT NULL, seq BIGINT NOT NULL, row INTEGER NOT NULL, code vector NOT NULL)
    PARTITION BY HASH (world);
CREATE INDEX ON {SCHEMA}.codes (world, seq);
""" + "".join(
    f"CREATE TABLE {SCHEMA}.{table}_{i} PARTITION OF {SCHEMA}.{table} "
    f"FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {i});\n"
    for table in ("log", "codes")
    for i in range(PARTS)
)


class PostgresStore(Store):
    """A server that any number of machines may read and write; broken connections are opened again when needed."""

    def __init__(self, address: str, create: bool) -> None:
        self._conninfo, self._lock = address, RLock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self.address = "postgresql://..."
        with self._refusing():
            said = conninfo_to_dict(address)
        self.address = f"postgresql://{said.get('host', '')}/{said.get('dbname', '')}"
        try:
            with self._refusing():
                self._prepare(create)
        except BaseException:
            self.close()
            raise

    def _prepare(self, create: bool) -> None:
        """Make the tables if there are none; refuse tables of another program."""
        connection = self._connected()
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [SCHEMA]).fetchall():
                require(create, f"{self.address}: there is no atlas; make one with gtmsm atlas add")
                connection.execute(TABLES)
            ours = connection.execute(f"SELECT to_regclass('{SCHEMA}.about')").fetchall()[0][0] is not None
            fix = "give another database"
            require(ours, f"{self.address}: the schema {SCHEMA} was made by another program; {fix}")
            version = connection.execute(f"SELECT version FROM {SCHEMA}.about").fetchall()[0][0]
            require(
                version <= VERSION,
                f"{self.address} is an atlas of version {version}, and this gtmsm knows up to {VERSION}; install a "
                "newer gtmsm",
            )
        register_vector(connection)

    def _connected(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """The connection, opened again if it is broken."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=10)
            self._connection.execute(f"SET search_path = {SCHEMA}, public")
            if self._connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchall():
                register_vector(self._connection)
        return self._connection

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn errors of psycopg into errors of one line."""
        try:
            yield
        except psycopg.Error as problem:
            said = shortened(" ".join(str(problem).split()) or type(problem).__name__, 200)
            raise InputError(
                f"{self.address}: {said}; is the server there? what was committed before is kept"
            ) from problem

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        with self._lock, self._refusing():
            cursor = self._connected().execute(sql.replace("?", "%s"), values, binary=True)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin a transaction: writers of one world wait for each other, writers of different worlds do not."""
        with self._lock, self._refusing(), self._connected().transaction():
            yield

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def index_codes(self, world: int, seq: int, draft: Draft) -> None:
        """Write one row per entry, as one block of PostgreSQL's binary COPY."""
        assert draft.codes is not None
        rows, size = draft.codes.shape
        fields = [
            ("count", ">i2"), ("a", ">i4"), ("world", ">i4"), ("b", ">i4"), ("seq", ">i8"), ("c", ">i4"),
            ("row", ">i4"), ("d", ">i4"), ("size", ">i2"), ("unused", ">i2"), ("code", ">f4", (size,)),
        ]  # fmt: skip
        table = np.zeros(rows, fields)
        for name, value in (
            ("count", 4), ("a", 4), ("world", world), ("b", 8), ("seq", seq), ("c", 4), ("row", np.arange(rows)),
            ("d", 4 + 4 * size), ("size", size), ("code", draft.codes),
        ):  # fmt: skip
            table[name] = value
        with self._connected().cursor().copy("COPY codes (world, seq, row, code) FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + table.tobytes() + b"\xff\xff")

    def forget_codes(self, world: int, seqs: Sequence[int]) -> None:
        """Delete the codes of dropped lines."""
        if seqs:
            self.run("DELETE FROM codes WHERE world = ? AND seq = ANY(?)", world, list(seqs))

    def alike(self, weights: str | None, code: np.ndarray, k: int) -> list[Hit]:
        """Let the server search the codes."""
        sql = """SELECT w.name, l.agent, c.seq, c.row, c.far FROM (
                     SELECT world, seq, row, code <-> ? AS far FROM codes
                     WHERE world = ANY(ARRAY(SELECT id FROM worlds WHERE weights IS NOT DISTINCT FROM ?))
                     ORDER BY far LIMIT ?
                 ) c JOIN worlds w ON w.id = c.world JOIN log l ON l.world = c.world AND l.seq = c.seq
                 ORDER BY c.far, w.name, c.seq, c.row"""
        return [Hit(*row) for row in self.run(sql, code.astype(np.float32), weights, k)]

"""What every store of an atlas does: the same suite for a file and for a server."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from gtmsm.atlas import Atlas, Unfinished
from gtmsm.atlas.record import CHUNK
from gtmsm.atlas.store import VERSION
from gtmsm.errors import InputError
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief, Gaussian

Made = Callable[..., Memory]


def columns(memory: Memory) -> dict[str, torch.Tensor]:
    return memory.snapshot().columns


def assert_same(one: Memory, other: Memory) -> None:
    assert columns(one).keys() == columns(other).keys()
    assert all(torch.equal(column, columns(other)[name]) for name, column in columns(one).items())
    assert one.weights == other.weights


def test_what_was_added_comes_back_bit_by_bit(address: str, entries: Made):
    memory = entries(2 * CHUNK + 10)
    with Atlas.open(address) as atlas:
        assert atlas.add("house", "anna", memory) == len(memory)
    with Atlas.open(address, create=False) as atlas:
        assert_same(atlas.memory("house"), memory)
        assert [(world.name, world.weights, world.seq) for world in atlas.worlds()] == [("house", "some weights", 3)]


def test_large_entries_are_kept_in_smaller_chunks(tmp_path: Path, entries: Made):
    memory = replace(entries(40), digest=torch.rand(1, 40, 64, 1_024))
    with Atlas.open(tmp_path / "atlas.db") as atlas:
        atlas.add("house", "anna", memory)
        assert [line.entries for line in atlas._store.pull("house", 0)] == [15, 15, 10]
        assert_same(atlas.memory("house"), memory)


def test_an_agent_goes_on_where_it_stopped(address: str, entries: Made):
    whole = entries(300)
    with Atlas.open(address) as atlas:
        atlas.add("house", "anna", Memory.of_columns({n: c[:, :120] for n, c in whole.columns.items()}, whole.weights))
    with Atlas.open(address) as atlas:
        written = atlas.written("house", "anna")
        rest = {name: column[:, written:] for name, column in whole.columns.items()}
        assert atlas.add("house", "anna", Memory.of_columns(rest, whole.weights)) == 300
        assert_same(atlas.memory("house", "anna"), whole)


def test_pulling_brings_what_others_have_added_since_and_only_that(address: str, entries: Made):
    with Atlas.open(address) as one, Atlas.open(address) as other:
        one.add("house", "anna", entries(10))
        assert other.pull("house") == 1
        one.add("house", "anna", entries(5, seed=1))
        one.add("house", "bert", entries(7, seed=2))
        one.add("garden", "anna", entries(3, seed=3))
        assert other.pull("house") == 2
        assert other.pull("house") == 0
        assert {name: len(memory) for name, memory in other.local("house").agents.items()} == {"anna": 15, "bert": 7}


def test_worlds_and_agents_are_kept_apart(address: str, entries: Made):
    made = {
        (world, agent): entries(20, seed) for seed, (world, agent) in enumerate([("a", "x"), ("a", "y"), ("b", "x")])
    }
    with Atlas.open(address) as atlas:
        for (world, agent), memory in made.items():
            atlas.add(world, agent, memory)
        for (world, agent), memory in made.items():
            assert_same(atlas.local(world).agents[agent], memory)


def test_entries_are_looked_up_by_code_across_worlds(address: str, entries: Made):
    made = {"here": entries(1_500, 1), "there": entries(200, 2)}
    with Atlas.open(address) as atlas:
        for world, memory in made.items():
            atlas.add(world, "anna", memory)
        atlas.add("elsewhere", "anna", entries(50, 2, weights="others"))
        code = made["there"].code.mean[0, 37].numpy()
        found = atlas._store.alike("some weights", code, 12)
    far = {
        (world, row // CHUNK + 1, row % CHUNK): float(np.linalg.norm(memory.code.mean[0, row].numpy() - code))
        for world, memory in made.items()
        for row in range(len(memory))
    }
    assert [(hit.world, hit.seq, hit.row) for hit in found] == sorted(far, key=far.__getitem__)[:12]
    assert [hit.distance for hit in found] == pytest.approx(sorted(far.values())[:12], abs=1e-5)


def repeated(number: int, n: int) -> Memory:
    """Entries that say which they are."""
    code = torch.full((1, n, 4), float(number))
    return Memory(Belief(torch.zeros(1, n, 2)), Gaussian(code, code), weights="w")


def forked(work: Callable[[], object]) -> int:
    """A process that does this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 fears for threads, and the child uses none
        if process := os.fork():
            return process
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def test_two_writers_leave_a_log_without_gaps(address: str):
    def write(agent: str) -> None:
        with Atlas.open(address) as atlas:
            for i in range(20):
                atlas.add("house", agent, repeated(i, 10))

    writers = [forked(partial(write, name)) for name in ("anna", "bert")]
    assert [os.waitpid(writer, 0)[1] for writer in writers] == [0, 0]
    with Atlas.open(address) as atlas:
        assert [line.seq for line in atlas._store.pull("house", 0)] == list(range(1, 41))
        for agent in ("anna", "bert"):
            codes = atlas.local("house").agents[agent].code.mean[0, :, 0]
            assert codes.tolist() == [float(i) for i in range(20) for _ in range(10)]


def test_a_writer_that_is_killed_leaves_whole_chunks(address: str):
    def write(told: int) -> None:
        with Atlas.open(address) as atlas:
            for i in range(100_000):
                os.write(told, b"%9d\n" % atlas.add("house", "anna", repeated(i, 500)))

    for _ in range(3):
        hear, told = os.pipe()
        writer = forked(partial(write, told))
        os.close(told)
        said = [int(os.read(hear, 10)) for _ in range(8)][-1]
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(hear)
        with Atlas.open(address) as atlas:
            written = atlas.written("house", "anna")
            assert written >= said and written % 500 == 0
            assert len(atlas.memory("house")) == written


# ---- what is refused, with nothing changed


def log_of(address: str) -> list[tuple[object, ...]]:
    with Atlas.open(address) as atlas:
        return [(w, *(line.hash for line in atlas._store.pull(w.name, 0))) for w in atlas.worlds()]


def test_wrong_words_change_nothing(address: str, entries: Made):
    mistakes = [
        ("house", "anna", "others", "house of .* made by the weights some weights, and this memory by others; use the"),
        ("house", "anna", None, "made by the weights some weights, and this memory by None"),
        ("x'; DROP TABLE log; --", "anna", "some weights", "the world is .*DROP TABLE.*; give a name"),
        ("house", 'a"; DELETE FROM log', "some weights", "the agent is .*DELETE.*; give a name"),
        ("", "anna", "some weights", "the world is ''; give a name"),
        ("house", "an\nna", "some weights", "the agent is .*; give a name"),
        ("h" * 101, "anna", "some weights", "the world is .*; give a name"),
    ]
    with Atlas.open(address) as atlas:
        atlas.add("house", "anna", entries(10))
        before = log_of(address)
        for world, agent, weights, complaint in mistakes:
            with pytest.raises(InputError, match=complaint) as refused:
                atlas.add(world, agent, entries(10, weights=weights))
            assert "\n" not in str(refused.value)
    assert log_of(address) == before


def test_entries_that_are_not_finite_are_refused(address: str, entries: Made):
    memory = entries(10)
    memory.code.mean[0, 3, 1] = float("nan")
    with Atlas.open(address) as atlas, pytest.raises(InputError, match="holds NaN"):
        atlas.add("house", "anna", memory)


def test_a_chunk_that_was_changed_is_named(address: str, entries: Made):
    with Atlas.open(address) as atlas:
        atlas.add("house", "anna", entries(CHUNK + 1))
        names = ("body", "entries", "time", "agent")
        right = atlas._store.run(f"SELECT {', '.join(names)} FROM log WHERE seq = 2")[0]
        wrong = right[0][:-1] + bytes([right[0][-1] ^ 1]), 2, 1.0, "bert"
        for name, was, value in zip(names, right, wrong, strict=True):
            atlas._store.run(f"UPDATE log SET {name} = ? WHERE seq = 2", value)
            with pytest.raises(InputError, match="line 2 of world house .* has a wrong hash"):
                atlas.memory("house")
            atlas._store.run(f"UPDATE log SET {name} = ? WHERE seq = 2", was)
        assert len(atlas.memory("house")) == CHUNK + 1


def test_a_chunk_that_is_missing_is_named(address: str, entries: Made):
    with Atlas.open(address) as atlas:
        atlas.add("house", "anna", entries(3 * CHUNK))
        atlas._store.run("DELETE FROM log WHERE seq = 2")
    with Atlas.open(address) as atlas, pytest.raises(InputError, match=r"lines \[2\] of world house are missing"):
        atlas.memory("house")


def test_two_processes_in_one_name_are_refused(address: str, entries: Made):
    with Atlas.open(address) as atlas:
        atlas.add("house", "anna", entries(10))
        stale, atlas._store.written = atlas._store.written, lambda world, agent: 4  # type: ignore[method-assign]
        with pytest.raises(InputError, match="anna has 10 entries in world house .*, not 4: another process"):
            atlas.add("house", "anna", entries(10))
        atlas._store.written = stale  # type: ignore[method-assign]
        assert len(atlas.memory("house")) == 10


def test_an_atlas_of_the_future_is_refused(address: str):
    with Atlas.open(address) as atlas:
        sqlite = not address.startswith("postgres")
        atlas._store.run(
            f"PRAGMA user_version = {VERSION + 1}" if sqlite else f"UPDATE about SET version = {VERSION + 1}"
        )
    with pytest.raises(InputError, match=f"an atlas of version {VERSION + 1}, and this gtmsm knows up to {VERSION}"):
        Atlas.open(address)


def test_an_atlas_that_is_not_there_is_not_made(address: str):
    for _ in range(2):
        with pytest.raises(InputError, match="no (such )?atlas"):
            Atlas.open(address, create=False)


# ---- files


def test_a_database_of_another_program_stays_as_it_is(tmp_path: Path):
    import sqlite3

    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE worlds (mine TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"other\.db is a database of another program"):
        Atlas.open(path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["other.db"]


def test_a_file_that_is_no_database_stays_as_it_is(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 1_000)
    with pytest.raises(InputError, match=r"notes\.txt: file is not a database"):
        Atlas.open(path)
    assert path.read_text() == "not a database\n" * 1_000


def test_a_full_disk_keeps_what_was_committed_and_says_how_much(tmp_path: Path, entries: Made):
    with Atlas.open(tmp_path / "atlas.db") as atlas:
        atlas.add("house", "anna", entries(10 * CHUNK))
        (pages,) = atlas._store.run("PRAGMA page_count")[0]
        atlas._store.run(f"PRAGMA max_page_count = {2 * pages}")
        with pytest.raises(Unfinished, match=r"database or disk is full.*; 0 of 40000 entries are committed") as failed:
            atlas.add("house", "anna", entries(40 * CHUNK))
        assert failed.value.committed == 0
        assert len(atlas.memory("house")) == 10 * CHUNK
        atlas._store.run("PRAGMA max_page_count = 4294967294")
        assert atlas.add("house", "anna", entries(CHUNK)) == 11 * CHUNK


# ---- servers


def test_a_schema_of_another_program_is_refused(database: str):
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA gtmsm_atlas")
    with pytest.raises(InputError, match="the schema gtmsm_atlas was made by another program"):
        Atlas.open(database)


def test_a_server_that_is_not_there_is_one_line_without_the_password():
    with pytest.raises(InputError, match="is the server there") as refused:
        Atlas.open("postgresql://me:secret@127.0.0.1:1/places")
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_broken_connection_is_named_and_made_again(database: str, entries: Made):
    import psycopg

    with Atlas.open(database) as atlas:
        atlas.add("house", "anna", entries(10))
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                          "AND datname = current_database()")  # fmt: skip
        with pytest.raises(InputError, match="is the server there"):
            atlas.worlds()
        assert atlas.add("house", "anna", entries(5, 1)) == 15
        assert len(atlas.memory("house")) == 15

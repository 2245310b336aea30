import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from visitor import Heard, request
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gtmsm.page.catalogue import Catalogue
from gtmsm.page.server import Limits, Lobby, bound, is_ours, server_of
from gtmsm.page.wire import MOST_BYTES

BEGIN = request("begin", world="image", seed=8)


@contextmanager
def serving(lobby: Lobby) -> Iterator[str]:
    """A real server in a thread; its address."""
    with bound("127.0.0.1", 0) as listening:
        server = server_of(lobby, "127.0.0.1")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def lobby(catalogue: Catalogue) -> Lobby:
    return Lobby(catalogue, Limits(sessions=3, idle=60))


@pytest.fixture
def server(lobby: Lobby) -> Iterator[str]:
    with serving(lobby) as address:
        yield address


def opened(server: str, origin: str | None = None, host: str | None = None) -> ClientConnection:
    """A websocket of a page that came from `origin`, and that has asked for `host`: by default the server itself."""
    origin = f"http://{server}" if origin is None else origin
    number = int(server.partition(":")[2])
    there = socket.create_connection(("127.0.0.1", number))
    return connect(f"ws://{host or server}/walk", sock=there, origin=origin or None, max_size=None)  # type: ignore[arg-type]


class Page:
    """A page's end of its websocket."""

    def __init__(self, socket: ClientConnection, session: str | None = None) -> None:
        self.socket = socket
        self.hello = self.ask(request("hello", session=session))

    def ask(self, message: bytes) -> list[Heard]:
        self.socket.send(message)
        return self.answer()

    def answer(self) -> list[Heard]:
        """All messages up to the one that says that it is done, or why not."""
        heard = [self.hear()]
        while heard[-1].said["t"] not in ("done", "error"):
            heard.append(self.hear())
        return heard

    def hear(self) -> Heard:
        message = self.socket.recv(timeout=20)
        assert isinstance(message, bytes)
        return Heard.of(message)

    def told(self, message: bytes) -> list[str]:
        return [heard.said["t"] for heard in self.ask(message)]

    def closed(self) -> int:
        """The code with which the server has closed it."""
        with pytest.raises(ConnectionClosed) as closed:
            self.socket.recv(timeout=20)
        assert closed.value.rcvd is not None
        return int(closed.value.rcvd.code)


def got(server: str, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of a page."""
    with closing(HTTPConnection(server, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        said = {name.lower(): value for name, value in response.getheaders()}
        return response.status, said, response.read().decode()


def test_the_page_asks_for_nothing_from_elsewhere(server: str) -> None:
    status, headers, _ = got(server, "/")
    assert status == 200
    assert "default-src 'self'" in headers["content-security-policy"]
    for name in ("page.js", "draw.js", "wire.js", "style.css", "icon.svg"):
        status, _, text = got(server, f"/{name}")
        assert status == 200
        assert not re.search(r"https?://(?!www\.w3\.org)", text), name
    assert got(server, "/../server.py")[0] == 404
    assert got(server, "/", host="evil.example")[0] == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://evil.example:8765", "host": "evil.example:8765"},
    ],
)
def test_pages_of_others_cannot_open_the_websocket(server: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus, match="403"), opened(server, **headers):
        pass


def test_a_name_that_others_may_own_is_refused() -> None:
    assert all(is_ours(name, "127.0.0.1") for name in ("127.0.0.1:80", "localhost:8765", "[::1]:8765"))
    assert not any(
        is_ours(name, "127.0.0.1") for name in ("evil.example", "10.0.0.1", "127.0.0.1.evil.example", "[", "")
    )
    assert is_ours("10.0.0.1:8765", "0.0.0.0")
    assert not is_ours("evil.example", "0.0.0.0")
    assert is_ours("walks.example", "walks.example")


def test_a_step_shows_the_truth_first_and_then_what_was_imagined(server: str) -> None:
    with opened(server) as socket:
        page = Page(socket)
        assert page.told(BEGIN) == ["place", "truth", "imagined", "done"]
        truth, expected, imagined, _ = page.ask(request("step", action=0))
        assert truth.said["at"] == expected.said["at"] == imagined.said["at"] == 1
        assert len(truth.pictures[0]) == len(imagined.pictures[0]) == 8 * 8 * 3
        assert expected.pictures == imagined.pictures


def test_two_visitors_walk_apart(server: str) -> None:
    with opened(server) as one, opened(server) as two:
        first, second = Page(one), Page(two)
        first.ask(BEGIN), second.ask(request("begin", world="obstacles", seed=3))
        for _ in range(3):
            first.ask(request("step", action=0))
        assert second.ask(request("step", action=1))[0].said["at"] == 1
        assert first.ask(request("step", action=1))[0].said["at"] == 4


def test_a_page_that_is_loaded_again_is_told_everything_anew(server: str) -> None:
    with opened(server) as socket:
        page = Page(socket)
        told = page.ask(BEGIN)[:-1]
        for action in (0, 2, 1):
            told += page.ask(request("step", action=action))[:-1]
        key = page.hello[0].said["session"]
    with opened(server) as socket:
        again = Page(socket, key)
        assert again.hello[1:-1] == [heard for heard in told if heard.said["t"] != "expected"]
        assert again.ask(request("step", action=0))[0].said["at"] == 4


def test_the_latest_of_two_tabs_takes_a_session_over(server: str) -> None:
    with opened(server) as one, opened(server) as two:
        first = Page(one)
        first.ask(BEGIN)
        second = Page(two, first.hello[0].said["session"])
        assert [heard.said["t"] for heard in second.hello] == ["hello", "place", "truth", "imagined", "done"]
        assert first.closed() == 4001
        assert second.told(request("step", action=0)) == ["truth", "expected", "imagined", "done"]


def test_when_all_seats_are_taken_those_who_left_make_room_and_others_are_told(server: str, lobby: Lobby) -> None:
    with opened(server) as one, opened(server) as two:
        Page(one), Page(two)
        with opened(server) as three:
            Page(three)
            with opened(server) as four:
                assert "all 3 seats are taken" in Page(four).hello[0].said["why"]
        with opened(server) as four:
            assert Page(four).hello[0].said["t"] == "hello"
        assert len(lobby.seats) == 3


def test_a_session_of_which_nothing_is_heard_ends(catalogue: Catalogue) -> None:
    lobby = Lobby(catalogue, Limits(idle=0.2))
    with serving(lobby) as server, opened(server) as socket:
        page = Page(socket)
        page.ask(BEGIN)
        assert page.closed() == 4002
        assert not lobby.seats


def wrong_messages(count: int) -> Iterator[bytes]:
    """Bytes by chance; requests of which some bytes are others; JSON that is nearly right."""
    chance = random.Random(0)
    values: list[Any] = [None, True, -1, 10**30, 1.5, "x", "\ud800", [], {}, [0.5, 0.5], [[]], "image", {"a": 1}]
    for number in range(count):
        if number % 3 == 0:
            yield chance.randbytes(chance.randrange(200))
        elif number % 3 == 1:
            message = bytearray(request("step", action=0))
            for _ in range(chance.randrange(1, 4)):
                message[chance.randrange(len(message))] = chance.randrange(256)
            yield bytes(message)
        else:
            names = chance.sample(["do", "world", "seed", "action", "from", "at", "on", "session"], chance.randrange(4))
            said = {"do": chance.choice(["step", "begin", "where", "goal", "imagine", "dream", "follow", "fly"])}
            head = json.dumps(said | {name: chance.choice(values) for name in names}).encode()
            yield len(head).to_bytes(4, "little") + head + chance.randbytes(chance.randrange(50))


def test_wrong_messages_get_one_line_each_and_the_walk_goes_on(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(server) as socket:
        page = Page(socket)
        page.ask(BEGIN)
        refused = 0
        for number, message in enumerate(wrong_messages(150)):
            if number % 50 == 0:
                page.ask(BEGIN)
            (*_, last) = heard = page.ask(message)
            if last.said["t"] == "error":
                refused += 1
                assert len(heard) == 1
                assert 0 < len(last.said["why"]) < 1_100
                assert "went wrong" not in last.said["why"]
        socket.send("hello")
        assert "send bytes" in page.answer()[0].said["why"]
        assert refused > 100
        assert page.told(BEGIN) == ["place", "truth", "imagined", "done"]
    assert capsys.readouterr().err == ""


def test_a_picture_that_is_too_large_is_refused_in_words(server: str) -> None:
    with opened(server) as socket:
        page = Page(socket)
        page.ask(BEGIN)
        (heard,) = page.ask(request("where", bytes(MOST_BYTES + 8_192)))
        assert "send at most" in heard.said["why"]
        assert page.told(request("step", action=0)) == ["truth", "expected", "imagined", "done"]
        socket.send(bytes(20 << 20))
        assert page.closed() == 1009  # too big to be even looked at


def test_a_page_that_only_sends_nonsense_is_shown_the_door(server: str) -> None:
    with opened(server) as socket:
        page = Page(socket)
        for _ in range(100):
            page.ask(b"?")
        assert page.closed() == 1000


def test_a_page_that_leaves_in_the_middle_of_a_step_leaves_a_whole_session(catalogue: Catalogue) -> None:
    lobby = Lobby(catalogue, Limits())
    with serving(lobby) as server:
        with opened(server) as socket:
            page = Page(socket)
            page.ask(BEGIN)
            socket.send(request("step", action=0))
        with opened(server) as socket:
            again = Page(socket, page.hello[0].said["session"])
            at = again.hello[-2].said["at"]
            assert at in (0, 1)  # the step was heard, or not
            assert again.ask(request("step", action=0))[0].said["at"] == at + 1


def test_a_port_that_is_in_use_is_one_line(refused: Callable[..., str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refused("play", "--port", port).startswith(f"port {port} is in use; choose another one with --port")


def test_a_run_that_is_not_there_is_one_line(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert 'did you mean "walk-strong"?' in refused("play", "walk-stron")
    assert "is not a run folder" in refused("play", tmp_path / "nowhere")


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_server_in_a_real_process() -> None:
    code = "from gtmsm_command import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", code, "play", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd(),
    )  # fmt: skip
    assert server.stdout is not None
    line = server.stdout.readline()
    assert re.match(r"walk at http://127\.0\.0\.1:\d+ ", line)
    server.send_signal(signal.SIGINT)
    try:
        out, err = server.communicate(timeout=20)
    finally:
        server.kill()
    assert (server.returncode, out, err) == (130, "", "gtmsm: interrupted\n")

"""The server: static files, one websocket for each page, and separate sessions that expire."""

import asyncio
import errno
import ipaddress
import socket
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.staticfiles import StaticFiles

from gtmsm.config import require, require_whole
from gtmsm.errors import InputError
from gtmsm.page.catalogue import Catalogue
from gtmsm.page.session import Session
from gtmsm.page.walk import HISTORY
from gtmsm.page.wire import MOST_MESSAGE, Request, packed
from gtmsm.training.engine import cores

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAITS = 10.0
"""Seconds within which a new page must say hello."""
MOST_WRONG = 100
"""Number of refused messages in a row after which the page itself is refused."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
FULL, TAKEN, IDLE = 4000, 4001, 4002
"""Close codes of a websocket: no session is free; another tab has taken over; the session was idle."""


@dataclass(frozen=True)
class Limits:
    """Limits of the server."""

    sessions: int = 128
    """Maximum number of sessions at a time."""
    idle: float = 900.0
    """Seconds without a message after which a session ends."""
    history: int = HISTORY
    """Number of steps that are kept for each session."""

    def __post_init__(self) -> None:
        """Refuse limits that are out of range."""
        require_whole("sessions", self.sessions, most=10_000)
        require_whole("history", self.history, 16, 100_000)
        require(self.idle > 0, f"idle is {self.idle}; give a number of seconds above 0")


@dataclass
class _Seat:
    """A session, and the page that shows it."""

    session: Session
    page: WebSocket | None = None
    used: float = field(default_factory=time.monotonic)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ahead: Iterator[None] | None = None
    """Computes ahead what may be requested next."""


class Lobby:
    """All sessions. Everything happens in the event loop, except that answers are computed by threads."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self.catalogue, self.limits = catalogue, limits
        self.seats: dict[str, _Seat] = {}
        # Two, so that one visitor's slow request does not block all others.
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="gtmsm-page")
        self._asking = 0  # number of visitors who wait for an answer
        self._one_ahead = asyncio.Lock()
        self._foreseeing: set[asyncio.Task[None]] = set()

    async def visit(self, page: WebSocket) -> None:
        """Serve a page until it disconnects."""
        await page.accept()
        seat = None
        try:
            hello = Request.parse(await asyncio.wait_for(page.receive_bytes(), WAITS))
            require(hello.do == "hello", f"do is {hello.do}; say hello first")
            seat = await self._seated(page, str(hello.said.get("session") or ""))
            await self._serve(page, seat, hello)
        except InputError as problem:
            with suppress(WebSocketDisconnect, RuntimeError):
                await page.send_bytes(packed({"t": "error", "why": str(problem)}))
                await page.close(FULL if seat is None and len(self.seats) >= self.limits.sessions else 1008)
        except (TimeoutError, WebSocketDisconnect, KeyError, RuntimeError):
            pass  # it disconnected, said nothing, or sent text before hello
        finally:
            if seat is not None and seat.page is page:
                seat.page = None
            with suppress(WebSocketDisconnect, RuntimeError):
                await page.close()

    async def _seated(self, page: WebSocket, key: str) -> _Seat:
        """The session that a page had before, or a new one."""
        seat = self.seats.get(key)
        if seat is None:
            if len(self.seats) >= self.limits.sessions:
                left = [key for key, other in self.seats.items() if other.page is None]
                require(bool(left), f"all {self.limits.sessions} seats are taken; come back later")
                await self._end(min(left, key=lambda key: self.seats[key].used))
            seat = _Seat(Session(self.catalogue, self.limits.history))
            self.seats[seat.session.key] = seat
        before, seat.page = seat.page, page
        if before is not None:
            with suppress(WebSocketDisconnect, RuntimeError):
                await before.close(TAKEN, "opened in another tab")
        return seat

    async def _serve(self, page: WebSocket, seat: _Seat, hello: Request) -> None:
        """Answer messages one after the other."""
        entries, missing = self.catalogue.entries, self.catalogue.missing
        worlds = [{"name": name, "pictures": entry.takes_pictures} for name, entry in entries.items()]
        await page.send_bytes(packed({"t": "hello", "session": seat.session.key, "worlds": worlds, "missing": missing}))
        wrong = 0
        if seat.session.walk is not None:
            await self._answer(page, seat, hello)
        else:
            await page.send_bytes(packed({"t": "done"}))
        while wrong < MOST_WRONG:
            message = await page.receive()
            seat.used = time.monotonic()
            if message["type"] == "websocket.disconnect":
                return
            try:
                require(message.get("bytes") is not None, "a message came as text; send bytes")
                await self._answer(page, seat, Request.parse(message["bytes"]))
                wrong = 0
            except InputError as problem:
                wrong += 1
                await page.send_bytes(packed({"t": "error", "why": str(problem)}))

    async def _answer(self, page: WebSocket, seat: _Seat, request: Request) -> None:
        """Compute an answer in a thread, and send each part as soon as it is ready.

        It is computed to its end even if the page disconnects, so that no session stops in the middle of a step.
        """
        loop = asyncio.get_running_loop()
        async with seat.turn, self._waited_for():
            try:
                parts = await loop.run_in_executor(self._pool, seat.session.answer, request)
                while part := await loop.run_in_executor(self._pool, next, parts, b""):
                    with suppress(WebSocketDisconnect, RuntimeError):
                        await page.send_bytes(part)
            except InputError:
                raise
            except Exception:
                traceback.print_exc()  # a bug of ours: this visitor is told, the others are not affected
                raise InputError("something went wrong on the server; begin anew") from None
            if seat.session.walk is not None:
                seat.ahead = seat.session.walk.foresee()
                foreseeing = asyncio.create_task(self._foresee(seat, seat.ahead))
                self._foreseeing.add(foreseeing)  # keeps the task alive
                foreseeing.add_done_callback(self._foreseeing.discard)
        await page.send_bytes(packed({"t": "done"}))

    @asynccontextmanager
    async def _waited_for(self) -> AsyncIterator[None]:
        """Count a visitor who waits for an answer; until it is sent, nothing is computed ahead."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    async def _foresee(self, seat: _Seat, ahead: Iterator[None]) -> None:
        """Compute ahead while nobody waits, for one visitor at a time; errors surface when the result is requested."""
        loop, more = asyncio.get_running_loop(), True
        with suppress(Exception):
            async with self._one_ahead:
                while more and not self._asking and seat.ahead is ahead:
                    more = await loop.run_in_executor(self._pool, next, ahead, "ended") is None

    async def watch(self) -> None:
        """End sessions that have been idle for too long."""
        while True:
            await asyncio.sleep(min(30.0, self.limits.idle / 2))
            late = time.monotonic() - self.limits.idle
            for key in [key for key, seat in self.seats.items() if seat.used < late]:
                await self._end(key)

    async def _end(self, key: str) -> None:
        """End a session."""
        seat = self.seats.pop(key)
        seat.ahead = None
        if seat.page is not None:
            with suppress(WebSocketDisconnect, RuntimeError):
                await seat.page.close(IDLE, "nothing was heard for a while")
        async with seat.turn:
            await asyncio.get_running_loop().run_in_executor(self._pool, seat.session.close)

    async def close(self) -> None:
        """End all sessions."""
        for key in list(self.seats):
            await self._end(key)
        self._pool.shutdown(cancel_futures=True)


def build_app(lobby: Lobby, host: str) -> FastAPI:
    """The page and its websocket, for browsers that addressed this server by a name of its own (`is_ours`)."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(lobby.watch())
        yield
        watching.cancel()
        await lobby.close()

    app = FastAPI(title="gtmsm", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        from fastapi.responses import PlainTextResponse

        if not is_ours(request.headers.get("host", ""), host):
            return PlainTextResponse("this server was asked for by another name; see gtmsm play --host", 400)
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.websocket("/walk")
    async def walk(page: WebSocket) -> None:
        asked, origin = page.headers.get("host", ""), page.headers.get("origin", "")
        # Other sites' pages may open websockets to this address, but cannot forge the origin.
        if not is_ours(asked, host) or urlsplit(origin).netloc != asked:
            await page.close(1008)
            return
        await lobby.visit(page)

    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def is_ours(asked: str, host: str) -> bool:
    """Whether a Host header names this server, and is no foreign name that merely resolves to it (DNS rebinding).

    IP addresses are safe, since no name was resolved; a server on the loopback address accepts only its own.
    """
    try:
        name = urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return False
    if name in (*LOOPBACK, host, socket.gethostname().lower()):
        return True
    try:
        return host not in LOOPBACK and bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def serve(
    run: Path | None, *, host: str, port: int, device: torch.device, limits: Limits,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve the page until Ctrl-C or SIGTERM."""
    require_whole("port", port, 0, 65_535)
    catalogue = Catalogue(run, device)
    torch.set_num_threads(max(1, cores() // 2))
    with bound(host, port) as listening:
        number = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        tell(f"walk at http://{shown}:{number} (Ctrl-C ends it)")
        server_of(Lobby(catalogue, limits), host).run(sockets=[listening])


def server_of(lobby: Lobby, host: str) -> uvicorn.Server:
    """The web server, with bounds: messages of a few MB, few of them queued, pages that do not answer dropped."""
    config = uvicorn.Config(
        build_app(lobby, host), log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3,
        ws="websockets-sansio", ws_max_size=2 * MOST_MESSAGE, ws_max_queue=4, ws_ping_interval=20, ws_ping_timeout=60,
    )  # fmt: skip
    return uvicorn.Server(config)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; if there can be none, an error of one line says why."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as on_failure:
            listening = on_failure.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(256)
            on_failure.pop_all()
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is in use; choose another one with --port, or 0 for any") from None
        raise InputError(f"cannot listen at {host} port {port}: {problem.strerror or problem}") from None
    return listening

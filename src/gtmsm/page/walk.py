"""A walk through one place: an explorer, and the history of moments that a visitor can go back to."""

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gtmsm.config import require
from gtmsm.data.record import one_hot
from gtmsm.explore import Explorer
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.model.planning import Obstacles
from gtmsm.page.catalogue import MOST_PIXELS, Entry
from gtmsm.page.overlay import Overlay
from gtmsm.page.walkable import AnyWalkable, Frame, Pose, as_frame
from gtmsm.page.way import Way
from gtmsm.page.wire import packed
from gtmsm.tensors import Belief
from gtmsm.worlds.images import load_picture
from gtmsm.worlds.physics import IDLE

HISTORY = 512
"""Number of steps that a visitor can go back, the length of a test sequence (section 4.1); older ones are dropped."""
MOST_MEMORY = 1 << 25
"""Maximum bytes of a visitor's memory: 500 views of walk-strong."""
LATELY = 64
"""Number of last steps from which the next action is guessed: visitors repeat what they did."""
ALIKE = 18.0
"""Minimum PSNR in dB of two views of the same place."""

Seen: TypeAlias = tuple[Pose, Frame] | tuple[None, None]
"""Pose and frame of the agent in the real world; None if there is no such agent."""

Next: TypeAlias = tuple[Future[tuple[Any, Seen]] | None, Future[Dream]]
"""Result of an action: state of the world and what is seen there (None if it cannot go back), and what is imagined."""


Known: TypeAlias = tuple[Memory, Obstacles | None]
"""What is memorised, and what was bumped into."""


@dataclass(frozen=True)
class Moment:
    """A step of the timeline, real or imagined."""

    action: int | None
    state: Any
    """State of the world; in a dream, that of an agent which does the same in the real world. None if there is none."""
    here: Belief
    """The pose estimate of the model."""
    seen: Seen
    imagined: Frame
    recalled: tuple[int, ...]
    """Numbers of the moments whose views were read from memory."""
    dreamt: bool
    body: int
    """Number of the latest real moment, to which the end of a dream returns."""
    entries: int
    """Number of views memorised so far."""
    memorised: bool


class Walk:
    """A walk through one place, from its first moment on; requests are answered by messages to the page."""

    def __init__(self, entry: Entry, model: WorldModel, place: AnyWalkable, seed: int, history: int) -> None:
        self.place, self._model, self._history = place, model, history
        self._explorer = Explorer(model)
        self._overlay = Overlay(model, place, entry.metric)
        self.moments: list[Moment] = []
        self._numbers: list[int] = []  # numbers of the memorised moments, in the order of memory
        self._chance = torch.Generator().manual_seed(seed)
        self._walker: Iterator[int] | None = None
        self._way: Way | None = None
        self._ahead: dict[int, Next] = {}  # results of actions after the last moment, computed ahead
        self._in_world = Lock()  # a place has one agent, and `foresee` may run in another thread

    @property
    def entries(self) -> int:
        """Number of views memorised."""
        return len(self._explorer)

    def begin(self) -> Iterator[bytes]:
        """Look for the first time."""
        state = self.place.begin()
        seen = self._seen(state)
        yield self._told_truth(0, seen, None, False)
        here = self._memorise(seen, None)
        yield self._add(None, state, here, seen, self._dream(here, IDLE), dreamt=False, memorised=True)

    def again(self) -> Iterator[bytes]:
        """Send all moments again, for a page that was reloaded."""
        for number, moment in enumerate(self.moments):
            yield self._told_truth(number, moment.seen, moment.action, moment.dreamt)
            yield self._told(number)

    # ---- steps

    def step(self, action: int) -> Iterator[bytes]:
        """Make one step, in the world or in the dream."""
        self._walker = self._way = None
        yield from self._step(action)

    def explore(self) -> Iterator[bytes]:
        """Make one step of a walker that explores by itself."""
        now = self.moments[-1]
        require(now.state is not None, "there is no walker in this dream; use the keys")
        self._way = None
        with self._in_world:
            self.place.enter(now.state)
            if self._walker is None:
                self._walker = self.place.explore(now.state, self._chance)
            action = next(self._walker)
        yield from self._step(action)

    def follow(self) -> Iterator[bytes]:
        """Make one step of the way to the goal."""
        require(self._way is not None, "there is no way to follow; choose a goal first")
        assert self._way is not None
        yield from self._step(self._way.next(self.moments[-1].here))

    def _step(self, action: int) -> Iterator[bytes]:
        yield from self._forget()
        now, number = self.moments[-1], len(self.moments)
        there, dreamt = self._ahead.get(action, (None, None))
        state, seen = self._stepped(now.state, action) if there is None else there.result()
        yield self._told_truth(number, seen, action, now.dreamt)
        dream = self._dream(now.here, action) if dreamt is None else dreamt.result()
        if now.dreamt:
            here = self._belief(now.here, dream, action)
            yield self._add(action, state, here, seen, dream, dreamt=True)
            return
        # The prediction is sent before the view is memorised.
        yield packed({"t": "expected", "at": number}, [as_frame(dream.frames[0, 0]).tobytes()])
        here = self._memorise(seen, action)
        yield self._add(action, state, here, seen, dream, dreamt=False, memorised=True)

    def foresee(self) -> Iterator[None]:
        """Compute the result of every action from here, one at a time while there are no requests; the likeliest first.

        The likeliest are actions that followed the last two actions before, then those that followed the last one, then
        recent ones. It may run in another thread while a step is made; a step waits at most for the frame it needs.
        """
        self._ahead = {}
        known = self._explorer.memory.snapshot(), self._explorer.obstacles
        done = [moment.action for moment in self.moments[: -LATELY - 1 : -1] if moment.action is not None]
        again = [[done[i] for i in range(len(done)) if done[i + 1 : i + 1 + n] == done[:n] != []] for n in (2, 1)]
        actions = dict.fromkeys(
            [*(action for after in again for action in after), *done[:8], *range(len(self.place.action_names))]
        )
        return self._foresee(self._ahead, known, self.moments[-1], actions)

    def _foresee(self, ahead: dict[int, Next], known: Known, now: Moment, actions: Iterable[int]) -> Iterator[None]:
        for action in actions:
            there: Future[tuple[Any, Seen]] = Future()
            dream: Future[Dream] = Future()
            ahead[action] = there if self.place.rewinds else None, dream
            try:
                if self.place.rewinds:
                    there.set_result(self._stepped(now.state, action))
                dream.set_result(self._dream(now.here, action, known))
            except BaseException as problem:
                for part in (there, dream):
                    if not part.done():
                        part.set_exception(problem)
                raise
            yield

    def dream(self, on: bool) -> Iterator[bytes]:
        """Begin or end a dream: in it the model imagines, and the real world follows unseen by the model, if it can."""
        now = self.moments[-1]
        require(now.dreamt != on, f"it is {'dreaming' if on else 'awake'} already")
        body = self.moments[now.body]
        yield from self._appear(body.state if self.place.rewinds or not on else None, body.here, dreamt=on)

    def imagine(self, point: tuple[float, float]) -> Iterator[bytes]:
        """Begin a dream at a point of the map, with the present heading."""
        inferred, true = self._overlay.at(np.array(point), self.moments[-1].here)
        start, size = self._model.motion.start(1), self._model.motion.pose_size
        here = Belief(torch.cat([torch.from_numpy(inferred)[None].to(start), start[:, size:]], 1))
        yield from self._appear(self.place.at(true), here, dreamt=True)

    def _appear(self, state: Any, here: Belief, dreamt: bool) -> Iterator[bytes]:
        """Put the agent somewhere without a step."""
        yield from self._forget()
        self._walker = self._way = None
        seen = self._seen(state)
        yield self._told_truth(len(self.moments), seen, None, dreamt)
        yield self._add(None, state, here, seen, self._dream(here, IDLE), dreamt=dreamt)

    def set_out(self, point: tuple[float, float]) -> Iterator[bytes]:
        """Plan a way to a point of the map."""
        inferred, _ = self._overlay.at(np.array(point), self.moments[-1].here)
        self._walker, self._way = None, Way(self._explorer, self.moments[-1].here, inferred)
        path = [self._overlay.shares(pose)[:2] for pose in self._way.path]
        yield packed({"t": "way", "path": path, "goal": point, "steps": self._way.left})

    def _memorise(self, seen: Seen, action: int | None) -> Belief:
        """Add what is seen to memory; return the pose estimate."""
        assert seen[1] is not None
        here = self._explorer.step(seen[1], None if action == IDLE else action)
        self._numbers.append(len(self.moments))
        self._lay_over()
        return here

    def _lay_over(self) -> None:
        """Fit poses of the model to those of the world."""
        real = [(moment.here, moment.seen[0]) for moment in self.moments if moment.memorised]
        self._overlay.fit([here for here, _ in real], [true for _, true in real if true is not None])

    def _seen(self, state: Any) -> Seen:
        with self._in_world:
            return (None, None) if state is None else (self.place.pose(state), self.place.look(state))

    def _stepped(self, state: Any, action: int) -> tuple[Any, Seen]:
        """State of the world after an action, and what is seen there."""
        if state is not None:
            with self._in_world:
                state = self.place.step(state, action)
        return state, self._seen(state)

    def _dream(self, here: Belief, action: int, known: Known | None = None) -> Dream:
        """Imagine one action, which an obstacle may stop; its frame is decoded at once."""
        memory, obstacles = known or (self._explorer.memory, self._explorer.obstacles)
        with torch.no_grad():
            dream = self._model.imagine(memory, here, self._vector(action), obstacles=obstacles)
            with rough(dream.poses.device):  # poses are never rounded
                dream.frames  # noqa: B018
        return dream

    def _belief(self, before: Belief, dream: Dream, action: int) -> Belief:
        """Pose estimate after an imagined action; with a covariance only if memory is searched by it."""
        if self._model.settings.recall.distance != "kl":
            return Belief(dream.poses[:, -1])
        believed = self._model.motion.believe(before, self._vector(action))[:, -1]
        return Belief(dream.poses[:, -1], believed.covariance)

    def _vector(self, action: int) -> Tensor:
        device = self._model.motion.start(1).device
        return one_hot(torch.tensor([[action]], device=device), self._model.action_size)

    @torch.no_grad()
    def _add(
        self, action: int | None, state: Any, here: Belief, seen: Seen, dream: Dream, *, dreamt: bool,
        memorised: bool = False,
    ) -> bytes:  # fmt: skip
        """Append a moment, with what was imagined; return its message."""
        imagined, entries = as_frame(dream.frames[0, 0]), dream.prior.neighbours.index[0, 0].tolist()
        number, recalled = len(self.moments), tuple(self._numbers[entry] for entry in entries)
        body = self.moments[-1].body if dreamt else number
        held, self._ahead = self.entries, {}
        self.moments.append(Moment(action, state, here, seen, imagined, recalled, dreamt, body, held, memorised))
        return self._told(number)

    # ---- back in time

    def go_back(self, number: int) -> None:
        """Drop all later moments; the memory of that time is the first entries of the present one."""
        if number == len(self.moments) - 1:
            return
        body = self.moments[self.moments[number].body]
        latest = self.moments[self.moments[-1].body].state
        require(
            self.place.rewinds or body.state == latest,
            "Doom's engine cannot go back; walk on from the last step, or dream",
        )
        del self.moments[number + 1 :]
        self._ahead = {}
        self._numbers = self._numbers[: body.entries]
        if self.entries > body.entries:
            self._explorer = self._explorer.part(0, body.entries, body.here)
        self._walker = self._way = None
        self._lay_over()

    def _forget(self) -> Iterator[bytes]:
        """Drop the oldest quarter of a history that has become too long, with its memory entries."""
        memory = self._explorer.memory
        assert memory is not None
        size = sum(column[:, :1].nbytes for column in memory.snapshot().columns.values())
        if len(self.moments) < self._history and len(memory) * size < MOST_MEMORY:
            return
        self._ahead = {}
        quarter = len(self.moments) // 4
        awake = (i for i, moment in enumerate(self.moments) if i >= quarter and not moment.dreamt)
        first = next(awake, len(self.moments))
        dropped = sum(number < first for number in self._numbers)
        require(
            first < len(self.moments) and dropped < len(self._numbers),
            f"this dream is {self._history} steps long; drag the timeline back, or begin anew",
        )
        self.moments = [
            replace(
                moment, body=moment.body - first, entries=moment.entries - dropped,
                recalled=tuple(number - first for number in moment.recalled if number >= first),
            )
            for moment in self.moments[first:]
        ]  # fmt: skip
        self._numbers = [number - first for number in self._numbers[dropped:]]
        self._explorer = self._explorer.part(dropped, len(memory))
        yield packed({"t": "forget", "count": first})

    # ---- where was this?

    def where(self, content: bytes) -> Iterator[bytes]:
        """Find where a picture was seen: by landmarks, with probabilities, or else by the most similar views."""
        picture = load_picture(content, self._model.frame_shape[-1], MOST_PIXELS)
        frame = picture.permute(1, 2, 0).contiguous().numpy()
        said = self._by_landmarks(frame) if self._model.landmarks is not None else self._by_likeness(picture, frame)
        yield packed({"t": "found", **said}, [frame.tobytes()])

    def _by_landmarks(self, frame: Frame) -> dict[str, Any]:
        found = self._explorer.localise(frame)
        weights, entries = found.weight[0, :3].tolist(), found.entry[0, :3].tolist()
        places = [
            {"at": self._overlay.shares(pose), "p": round(weight, 3), "moment": self._numbers[entry]}
            for pose, weight, entry in zip(found.pose[0, :3].double().cpu().numpy(), weights, entries, strict=True)
            if weight >= 0.01
        ]
        return {"by": "landmarks", "known": round(float(found.known[0]), 3), "places": places}

    @torch.no_grad()
    def _by_likeness(self, picture: Tensor, frame: Frame) -> dict[str, Any]:
        assert self._explorer.memory is not None
        held = self._explorer.memory.snapshot().code.mean[0]
        asked = self._model.vae.encode(picture[None, None].to(held) / 255).mean[0]
        places = []
        for entry in (held - asked).square().sum(-1).argsort()[:3].tolist():
            moment = self.moments[self._numbers[entry]]
            at = self._overlay.shares(self._overlay.pose(moment.here))
            places.append({"at": at, "psnr": psnr(frame, moment.seen[1]), "moment": self._numbers[entry]})
        return {"by": "likeness", "alike": max(place["psnr"] or 0 for place in places) >= ALIKE, "places": places}

    # ---- messages

    def _told_truth(self, number: int, seen: Seen, action: int | None, dreamt: bool) -> bytes:
        """Message with the real frame and pose, which are known first."""
        true, frame = seen
        place = None if true is None else self._overlay.on_map(true)
        said = {"t": "truth", "at": number, "dream": dreamt, "action": action, "true": place}
        return packed(said, [] if frame is None else [frame.tobytes()])

    def _told(self, number: int) -> bytes:
        """Message with the imagined frame and the pose estimate."""
        moment = self.moments[number]
        here, (true, frame) = self._overlay.in_world(self._overlay.pose(moment.here)), moment.seen
        off = turned = None
        if true is not None:
            off = round(float(np.linalg.norm((here - true)[:2])), 3)
            if len(true) == 3:
                turned = round(abs((math.degrees(here[2] - true[2]) + 180) % 360 - 180), 1)
        said = {
            "t": "imagined", "at": number, "here": self._overlay.on_map(here), "off": off, "turned": turned,
            "psnr": psnr(moment.imagined, frame), "recalled": moment.recalled, "memorised": moment.memorised,
            "left": None if self._way is None else self._way.left,
        }  # fmt: skip
        return packed(said, [moment.imagined.tobytes()])


@contextmanager
def rough(device: torch.device) -> Iterator[None]:
    """Compute products in bfloat16 on CPUs made for it: for frames that are displayed, not for what is kept."""
    made_for_it = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    with torch.autocast(device.type, torch.bfloat16, enabled=made_for_it):
        yield


def psnr(one: Frame, other: Frame | None) -> float | None:
    """PSNR in dB, at most 60; None without a second frame."""
    if other is None:
        return None
    error2 = float(np.square(one.astype(np.float32) - other).mean()) / 255**2
    return round(min(60.0, -10 * math.log10(max(error2, 1e-6))), 2)

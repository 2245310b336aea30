"""A walk through one place: an explorer, and all that has happened, so that one can go back."""

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
from gtmsm.page.catalogue import MOST_PIXELS, Entry
from gtmsm.page.overlay import Overlay
from gtmsm.page.walkable import AnyWalkable, Frame, Pose, as_frame
from gtmsm.page.way import Way
from gtmsm.page.wire import packed
from gtmsm.tensors import Belief
from gtmsm.worlds.images import load_picture
from gtmsm.worlds.physics import IDLE

HISTORY = 512
"""Steps that a visitor can go back, as long as a test sequence (section 4.1); older ones are forgotten."""
MOST_MEMORY = 1 << 25
"""Bytes of a visitor's memory: 500 views of walk-strong."""
LATELY = 64
"""Steps that tell what is done next: who walks repeats himself."""
ALIKE = 18.0
"""PSNR from which two views may be of the same place."""

Seen: TypeAlias = tuple[Pose, Frame] | tuple[None, None]
"""Where an agent of the real world is, and what it sees; nothing where there is none."""

Next: TypeAlias = tuple[Future[tuple[Any, Seen]] | None, Future[Dream]]
"""What an action leads to: a state of the world and what is seen there, where it can go back, and what is imagined."""


@dataclass(frozen=True)
class Moment:
    """A step of the timeline: real, or dreamt."""

    action: int | None
    state: Any
    """Of the world; in a dream that of an agent who does the same in the real world; None where there is none."""
    here: Belief
    """Where the model thinks it is."""
    seen: Seen
    imagined: Frame
    recalled: tuple[int, ...]
    """The moments whose views memory was read from."""
    dreamt: bool
    body: int
    """The latest real moment: where the agent is when it wakes up."""
    entries: int
    """Views memorised so far."""
    memorised: bool


class Walk:
    """A walk through one place, from its first moment on; what is asked for is answered in messages to the page."""

    def __init__(self, entry: Entry, model: WorldModel, place: AnyWalkable, seed: int, history: int) -> None:
        self.place, self._model, self._history = place, model, history
        self._explorer = Explorer(model)
        self._overlay = Overlay(model, place, entry.metric)
        self.moments: list[Moment] = []
        self._numbers: list[int] = []  # of the moments that are memorised, in the order of memory
        self._chance = torch.Generator().manual_seed(seed)
        self._walker: Iterator[int] | None = None
        self._way: Way | None = None
        self._ahead: dict[int, Next] = {}  # what actions would lead to from the last moment on
        self._in_world = Lock()  # a place has one agent, and who looks ahead may do so in another thread

    @property
    def entries(self) -> int:
        """Views memorised."""
        return len(self._explorer)

    def begin(self) -> Iterator[bytes]:
        """Look around for the first time."""
        state = self.place.begin()
        seen = self._seen(state)
        yield self._told_truth(0, seen, None, False)
        here = self._memorise(seen, None)
        yield self._add(None, state, here, seen, self._dream(here, IDLE), dreamt=False, memorised=True)

    def again(self) -> Iterator[bytes]:
        """Everything, for a page that was loaded again."""
        for number, moment in enumerate(self.moments):
            yield self._told_truth(number, moment.seen, moment.action, moment.dreamt)
            yield self._told(number)

    # ---- steps

    def step(self, action: int) -> Iterator[bytes]:
        """One step, in the world or in the dream."""
        self._walker = self._way = None
        yield from self._step(action)

    def explore(self) -> Iterator[bytes]:
        """A step of who looks around by itself."""
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
        """A step of the way to the goal."""
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
        # What is expected, before it is memorised.
        yield packed({"t": "expected", "at": number}, [as_frame(dream.frames[0, 0]).tobytes()])
        here = self._memorise(seen, action)
        yield self._add(action, state, here, seen, dream, dreamt=False, memorised=True)

    def foresee(self) -> Iterator[None]:
        """What every action would lead to from here, one by one, while nothing is asked for; the likeliest first.

        That is what was done after the last two actions before, then after the last one, then lately. It may go on in
        another thread while a step is made: what that has to wait for is at most the frame it wants.
        """
        self._ahead = {}
        memory = self._explorer.memory.snapshot()
        done = [moment.action for moment in self.moments[: -LATELY - 1 : -1] if moment.action is not None]
        again = [[done[i] for i in range(len(done)) if done[i + 1 : i + 1 + n] == done[:n] != []] for n in (2, 1)]
        actions = dict.fromkeys(
            [*(action for after in again for action in after), *done[:8], *range(len(self.place.action_names))]
        )
        return self._foresee(self._ahead, memory, self.moments[-1], actions)

    def _foresee(self, ahead: dict[int, Next], memory: Memory, now: Moment, actions: Iterable[int]) -> Iterator[None]:
        for action in actions:
            there: Future[tuple[Any, Seen]] = Future()
            dream: Future[Dream] = Future()
            ahead[action] = there if self.place.rewinds else None, dream
            try:
                if self.place.rewinds:
                    there.set_result(self._stepped(now.state, action))
                dream.set_result(self._dream(now.here, action, memory))
            except BaseException as problem:
                for part in (there, dream):
                    if not part.done():
                        part.set_exception(problem)
                raise
            yield

    def dream(self, on: bool) -> Iterator[bytes]:
        """Fall asleep: the model imagines, and the real world goes along in silence, where it can. Or wake up."""
        now = self.moments[-1]
        require(now.dreamt != on, f"it is {'dreaming' if on else 'awake'} already")
        body = self.moments[now.body]
        yield from self._appear(body.state if self.place.rewinds or not on else None, body.here, dreamt=on)

    def imagine(self, point: tuple[float, float]) -> Iterator[bytes]:
        """A dream that begins at a point of the map, looking where the agent looks now."""
        inferred, true = self._overlay.at(np.array(point), self.moments[-1].here)
        start, size = self._model.motion.start(1), self._model.motion.pose_size
        here = Belief(torch.cat([torch.from_numpy(inferred)[None].to(start), start[:, size:]], 1))
        yield from self._appear(self.place.at(true), here, dreamt=True)

    def _appear(self, state: Any, here: Belief, dreamt: bool) -> Iterator[bytes]:
        """Be somewhere without having walked."""
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
        """Add what is seen to memory; returns where the model thinks that is."""
        assert seen[1] is not None
        here = self._explorer.step(seen[1], None if action == IDLE else action)
        self._numbers.append(len(self.moments))
        self._lay_over()
        return here

    def _lay_over(self) -> None:
        """Poses of the model over those of the world."""
        real = [(moment.here, moment.seen[0]) for moment in self.moments if moment.memorised]
        self._overlay.fit([here for here, _ in real], [true for _, true in real if true is not None])

    def _seen(self, state: Any) -> Seen:
        with self._in_world:
            return (None, None) if state is None else (self.place.pose(state), self.place.look(state))

    def _stepped(self, state: Any, action: int) -> tuple[Any, Seen]:
        """What an action leads to in the world, and what is seen there."""
        if state is not None:
            with self._in_world:
                state = self.place.step(state, action)
        return state, self._seen(state)

    def _dream(self, here: Belief, action: int, memory: Memory | None = None) -> Dream:
        """What an action would show; its frame is worked out at once."""
        with torch.no_grad():
            dream = self._model.imagine(memory or self._explorer.memory, here, self._vector(action))
            with rough(dream.poses.device):  # poses are never rounded
                dream.frames  # noqa: B018
        return dream

    def _belief(self, before: Belief, dream: Dream, action: int) -> Belief:
        """Where a dreamt action leads; covariances are kept where memory is searched by them."""
        if self._model.settings.recall.distance != "kl":
            return Belief(dream.poses[:, -1])
        return self._model.motion.believe(before, self._vector(action))[:, -1]

    def _vector(self, action: int) -> Tensor:
        device = self._model.motion.start(1).device
        return one_hot(torch.tensor([[action]], device=device), self._model.action_size)

    @torch.no_grad()
    def _add(
        self, action: int | None, state: Any, here: Belief, seen: Seen, dream: Dream, *, dreamt: bool,
        memorised: bool = False,
    ) -> bytes:  # fmt: skip
        """A moment, with what was imagined."""
        imagined, entries = as_frame(dream.frames[0, 0]), dream.prior.neighbours.index[0, 0].tolist()
        number, recalled = len(self.moments), tuple(self._numbers[entry] for entry in entries)
        body = self.moments[-1].body if dreamt else number
        held, self._ahead = self.entries, {}
        self.moments.append(Moment(action, state, here, seen, imagined, recalled, dreamt, body, held, memorised))
        return self._told(number)

    # ---- back in time

    def go_back(self, number: int) -> None:
        """Forget what came after a moment; memory is a value, so that of then is the first entries of that of now."""
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
            assert self._explorer.memory is not None
            self._explorer = Explorer(self._model, part_of(self._explorer.memory, 0, body.entries), body.here)
        self._walker = self._way = None
        self._lay_over()

    def _forget(self) -> Iterator[bytes]:
        """Drop the oldest quarter of a history that has become too long, and what was memorised then."""
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
        self._explorer = Explorer(self._model, part_of(memory, dropped, len(memory)), self._explorer.here)
        yield packed({"t": "forget", "count": first})

    # ---- where was this?

    def where(self, content: bytes) -> Iterator[bytes]:
        """By landmarks, with a probability; or else the views that are most like it."""
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
        """What is really there: it is known first."""
        true, frame = seen
        place = None if true is None else self._overlay.on_map(true)
        said = {"t": "truth", "at": number, "dream": dreamt, "action": action, "true": place}
        return packed(said, [] if frame is None else [frame.tobytes()])

    def _told(self, number: int) -> bytes:
        """What the model makes of it."""
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


def part_of(memory: Memory, first: int, last: int) -> Memory:
    """The entries from `first` to `last` - 1; nothing is copied."""
    columns = {name: column[:, first:last] for name, column in memory.snapshot().columns.items()}
    return Memory.of_columns(columns, None)


@contextmanager
def rough(device: torch.device) -> Iterator[None]:
    """Products in bfloat16 where a processor is made for it: for frames that are looked at, not for what is kept."""
    made_for_it = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
    with torch.autocast(device.type, torch.bfloat16, enabled=made_for_it):
        yield


def psnr(one: Frame, other: Frame | None) -> float | None:
    """In dB, at most 60."""
    if other is None:
        return None
    error2 = float(np.square(one.astype(np.float32) - other).mean()) / 255**2
    return round(min(60.0, -10 * math.log10(max(error2, 1e-6))), 2)

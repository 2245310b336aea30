"""The session of a visitor: requests of the page, and the walk that answers them."""

import io
import secrets
from collections.abc import Callable, Iterator

from PIL import Image

from gtmsm.config import require
from gtmsm.page.catalogue import Catalogue
from gtmsm.page.walk import HISTORY, Walk
from gtmsm.page.walkable import Picture
from gtmsm.page.wire import Request, packed
from gtmsm.worlds.physics import IDLE


class Session:
    """A visitor's session, with one walk at a time."""

    def __init__(self, catalogue: Catalogue, history: int = HISTORY) -> None:
        self.key = secrets.token_urlsafe(24)
        self._catalogue, self._history = catalogue, history
        self.walk: Walk | None = None
        self._place: bytes = b""

    def answer(self, request: Request) -> Iterator[bytes]:
        """Answer a request by messages to the page; the request is checked before anything is done."""
        if request.do == "begin":
            return self._begin(request.word("world"), request.whole("seed", 0, 2**31 - 1), request.content)
        walk = self.walk
        require(walk is not None, "no world is open; begin one first")
        assert walk is not None
        if request.do == "hello":
            return self._again(walk)
        if request.do == "where":
            return walk.where(request.content)
        answers: dict[str, Callable[[], Iterator[bytes]]] = {
            "step": lambda: walk.step(request.whole("action", IDLE, len(walk.place.action_names) - 1)),
            "explore": walk.explore,
            "follow": walk.follow,
            "dream": lambda: walk.dream(request.flag("on")),
            "imagine": lambda: walk.imagine(request.point("at")),
            "goal": lambda: walk.set_out(request.point("at")),
        }
        answer = answers[request.do]()  # checks the arguments, but does nothing yet
        if "from" in request.said:
            walk.go_back(request.whole("from", 0, len(walk.moments) - 1))
        return answer

    def close(self) -> None:
        """Release the resources of the place."""
        if self.walk is not None:
            self.walk.place.close()

    def _begin(self, name: str, seed: int, picture: bytes) -> Iterator[bytes]:
        """Enter a place and look for the first time."""
        entry, model, place = self._catalogue.enter(name, seed, picture or None)
        self.close()
        self.walk = Walk(entry, model, place, seed, self._history)
        said = {
            "t": "place", "world": name, "seed": seed, "own": bool(picture), "actions": place.action_names,
            "unit": place.unit, "heading": model.settings.motion.has_heading, "frame": model.frame_shape[1:],
            "view": place.view, "rewinds": place.rewinds, "weights": entry.run.folder.resolve().name,
        }  # fmt: skip
        self._place = packed(said, [as_png(place.picture())])
        yield self._place
        yield from self.walk.begin()

    def _again(self, walk: Walk) -> Iterator[bytes]:
        yield self._place
        yield from walk.again()


def as_png(picture: Picture) -> bytes:
    """A picture as the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()

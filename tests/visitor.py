"""A visitor of the page who asks and is answered."""

import io
import json
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from gtmsm.page.catalogue import Catalogue
from gtmsm.page.session import Session
from gtmsm.page.wire import Request


def png(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


class Heard(NamedTuple):
    """A message to the page."""

    said: dict[str, Any]
    pictures: list[bytes]

    @classmethod
    def of(cls, message: bytes) -> "Heard":
        length = int.from_bytes(message[:4], "little")
        said, at, pictures = json.loads(message[4 : 4 + length]), 4 + length, []
        for size in said["sizes"]:
            pictures.append(message[at : at + size])
            at += size
        assert at == len(message)
        return cls(said, pictures)


def request(do: str, content: bytes = b"", **said: Any) -> bytes:
    """A message of the page; `back` stands for `from`, a word of Python."""
    if "back" in said:
        said["from"] = said.pop("back")
    head = json.dumps({"do": do, **said}).encode()
    return len(head).to_bytes(4, "little") + head + content


class Visitor:
    """Asks one session."""

    def __init__(self, catalogue: Catalogue, world: str, content: bytes = b"", history: int = 512) -> None:
        self.session = Session(catalogue, history)
        self.first = self.ask("begin", content, world=world, seed=8)
        assert self.session.walk is not None
        self.walk = self.session.walk

    def ask(self, do: str, content: bytes = b"", **said: Any) -> list[Heard]:
        return [Heard.of(message) for message in self.session.answer(Request.parse(request(do, content, **said)))]

    def step(self, *actions: int, **said: Any) -> Heard:
        """What the last of these steps was answered with: what is imagined."""
        for action in actions:
            heard = self.ask("step", action=action, **said)[-1]
            said = {}
        return heard

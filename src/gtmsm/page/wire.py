"""Messages of the websocket, in both directions: JSON followed by bytes.

    length of the JSON (4 bytes, little-endian) | JSON in UTF-8 | bytes

The JSON of the page has `do` and its arguments; that of the server has `t`, and the `sizes` of the pictures after it.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gtmsm.config import is_whole, require
from gtmsm.errors import did_you_mean, shown
from gtmsm.files import parse_json

LONGEST = 4_096
"""Maximum bytes of the JSON of a request."""
MOST_BYTES = 4 << 20
"""Maximum bytes of a picture that is sent."""
MOST_MESSAGE = MOST_BYTES + LONGEST + 4

FIELDS: dict[str, tuple[str, ...]] = {
    "hello": ("session",),
    "begin": ("world", "seed"),
    "step": ("action", "from"),
    "explore": ("from",),
    "dream": ("on", "from"),
    "imagine": ("at", "from"),
    "goal": ("at", "from"),
    "follow": ("from",),
    "where": (),
}
"""All requests, with the names of their arguments."""


@dataclass(frozen=True)
class Request:
    """A request of the page."""

    do: str
    said: dict[str, Any]
    content: bytes

    @classmethod
    def parse(cls, message: bytes) -> "Request":
        """Parse a message; refuse anything that is not a request with an error of one line."""
        require(len(message) <= MOST_MESSAGE, f"a message has {len(message):,} bytes; send at most {MOST_MESSAGE:,}")
        require(len(message) >= 4, f"a message has {len(message)} bytes; send the length of its JSON first, in 4 bytes")
        length = int.from_bytes(message[:4], "little")
        require(length <= LONGEST, f"the JSON of a message has {length:,} bytes; send at most {LONGEST:,}")
        require(length <= len(message) - 4, f"the JSON of a message has {length} bytes, and {len(message) - 4} came")
        said = parse_json(message[4 : 4 + length], "a message")
        do = said.pop("do", None)
        require(isinstance(do, str), f"do is {shown(do)}; give one of {', '.join(FIELDS)}")
        require(do in FIELDS, f"do is {shown(do)}; {did_you_mean(str(do), FIELDS)}")
        for name in said:
            require(name in FIELDS[do], f"{do} has no {shown(name)}; give {' and '.join(FIELDS[do]) or 'nothing'}")
        return cls(do, said, message[4 + length :])

    def whole(self, name: str, least: int, most: int) -> int:
        """A required argument: a whole number."""
        value: Any = self.said.get(name)
        fits = is_whole(value) and least <= int(value) <= most
        require(fits, f"{name} is {shown(value)}; give a whole number from {least} to {most}")
        return int(value)

    def word(self, name: str) -> str:
        """A required argument: a word."""
        value = self.said.get(name)
        require(isinstance(value, str), f"{name} is {shown(value)}; give a word")
        return str(value)

    def flag(self, name: str) -> bool:
        """A required argument: true or false."""
        value = self.said.get(name)
        require(isinstance(value, bool), f"{name} is {shown(value)}; give true or false")
        return bool(value)

    def point(self, name: str) -> tuple[float, float]:
        """A required argument: a point of the map, as fractions of its side to the right and down."""
        value: Any = self.said.get(name)
        fits = isinstance(value, list) and len(value) == 2
        fits = fits and all(type(x) in (int, float) and math.isfinite(x) and 0 <= x <= 1 for x in value)
        require(fits, f"{name} is {shown(value)}; give two numbers from 0 to 1")
        return float(value[0]), float(value[1])


def packed(said: dict[str, Any], pictures: Sequence[bytes] = ()) -> bytes:
    """Encode a message to the page."""
    head = json.dumps({**said, "sizes": [len(picture) for picture in pictures]}, allow_nan=False).encode()
    return b"".join([len(head).to_bytes(4, "little"), head, *pictures])

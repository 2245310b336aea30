"""One reader for each format, which trusts nothing that a file says.

A reader opens ordinary files only. It checks what a file declares before it allocates anything for it, and whatever is
wrong inside is an `InputError` that names the file and the place. Nothing is ever unpickled.
"""

import io
import json
import math
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import yaml
from PIL import Image
from safetensors import safe_open

from gtmsm.errors import InputError, shortened, shown

if TYPE_CHECKING:
    from torch import Tensor

PICTURES = ("PNG", "JPEG")
"""Formats of pictures. Pillow knows many more, and starts other programs for some of them."""
MOST_PIXELS = 50_000_000
"""Of a picture: 7,000 by 7,000, which take at most 0.8 GB while they are read."""
MOST_HEADER = 2**20
"""Bytes that describe the tensors of a safetensors file; ours are below 100,000."""
MOST_JSON, MOST_YAML = 2**22, 2**16
"""Bytes of a file of JSON, and of YAML, whose parser is slow; scores and a config have some thousands."""
DEEPEST = 20
"""Levels of YAML inside each other; a config has five."""
INFLATED, ANYHOW = 50, 2**26
"""How many times larger than an .npz its arrays may be, and how many bytes they may have in any case."""


@contextmanager
def refusing(complaint: str, fix: str) -> Iterator[None]:
    """Around other people's decoders: whatever they raise becomes one line, since they promise no kind of error."""
    try:
        yield
    except InputError:
        raise
    except Exception as problem:
        reason = shortened(" ".join(str(problem).split()) or type(problem).__name__, 200)
        raise InputError(f"{complaint} ({reason}); {fix}") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """An ordinary file to read from: a pipe or a device might be waited for without end."""
    try:
        if not path.is_file():
            found = "a folder, a pipe or a device; give an ordinary file" if path.exists() else "no such file"
            raise InputError(f"{path}: {found}")
        file = path.open("rb")
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror or problem}") from None
    with file:
        yield file


def _by_name(found: Any, source: str) -> dict[str, Any]:
    """Refuse what is none of our files: each of them holds values by name."""
    if not isinstance(found, dict):
        raise InputError(f"{source} was not written by gtmsm: expected values by name, found {shown(found)}")
    return found


def _read_bytes(path: Path, most: int) -> bytes:
    """A file of text, unless it is far too large to be one of ours."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(f"{path} was not written by gtmsm: it has more than {most:,} bytes")
    return content


def parse_json(text: str | bytes, source: str, fix: str = "is it whole?") -> dict[str, Any]:
    """What a text says by name; `source` is where it was found."""
    with refusing(f"{source} is not valid JSON", fix):
        # NaN, which older files may hold, is nothing; and so is 1e400.
        found = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    return _by_name(found, source)


def _finite(word: str) -> float | None:
    """A number of JSON, unless it is too large for one of ours."""
    return number if math.isfinite(number := float(word)) else None


def read_json(path: Path, fix: str) -> dict[str, Any]:
    """What a file of JSON says by name."""
    return parse_json(_read_bytes(path, MOST_JSON), str(path), fix)


def read_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Lines of JSON and what each says by name; a last one that a crash has cut short is left out."""
    with opened(path) as file:
        lines = file.read().splitlines()
    said = []
    for number, line in enumerate(lines, 1):
        try:
            said.append((line, parse_json(line, f"{path} line {number}", "mend or delete the line")))
        except InputError:
            if number < len(lines):
                raise
    return said


class _Loader(yaml.SafeLoader):
    """YAML without aliases, some lines of which stand for more than memory holds; errors name the place."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A value and those inside it."""
        event = self.peek_event()
        too_deep = f"more than {DEEPEST} levels inside each other" if self.depth > DEEPEST else None
        refused = "an alias; write its value out" if isinstance(event, yaml.AliasEvent) else too_deep
        if refused:
            raise yaml.MarkedYAMLError(problem=refused, problem_mark=event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """A value; a date such as 2001-99-99 is none."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError) as problem:
            raise yaml.MarkedYAMLError(problem=str(problem), problem_mark=node.start_mark) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """What a file of YAML says by name."""
    with refusing(f"{path} is not valid YAML", "mend it, or restore the file"):
        try:
            found = yaml.load(_read_bytes(path, MOST_YAML).decode(), _Loader)
        except yaml.MarkedYAMLError as problem:
            line = problem.problem_mark.line + 1 if problem.problem_mark else "?"
            raise ValueError(f"line {line}: {problem.problem}") from None
    return _by_name(found, str(path))


class _Content(io.BytesIO):
    """What a file holds, for decoders whose complaints quote what they were given."""

    def __repr__(self) -> str:
        return f"of {len(self.getbuffer()):,} bytes"


@contextmanager
def open_picture(source: Path | bytes, most: int = MOST_PIXELS) -> Iterator[Image.Image]:
    """A PNG or JPEG of which only the header has been read; the block holds nothing but calls of Pillow.

    `source` is a file or what one holds; a picture of more than `most` pixels is refused.
    """
    name = "the picture" if isinstance(source, bytes) else str(source)
    with (
        nullcontext(_Content(source)) if isinstance(source, bytes) else opened(source) as file,
        warnings.catch_warnings(),
        refusing(f"{name}: cannot be read as a PNG or JPEG picture", "repair it or leave it out"),
    ):
        warnings.simplefilter("ignore")  # a damaged picture is refused or read: Pillow's doubts help nobody
        with Image.open(file, formats=PICTURES) as image:
            if math.prod(image.size) > most:
                wide, high = image.size
                raise InputError(f"{name}: {wide}x{high} is more than {most:,} pixels; make the picture smaller")
            yield image


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, "Tensor"]]:
    """The description and the tensors that `write_tensors` wrote."""
    with opened(path) as file, refusing(f"{path} cannot be read as a safetensors file", "is it whole?"):
        if int.from_bytes(file.read(8), "little") > MOST_HEADER:
            raise ValueError(f"its header has more than {MOST_HEADER:,} bytes")
        with safe_open(path, framework="pt") as content:
            about = (content.metadata() or {}).get("gtmsm")
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a dict
    if about is None:
        raise InputError(f"{path} holds weights of another program: gtmsm's own description is missing in it")
    return parse_json(about, f"{path}: the description in it"), tensors


def read_arrays(path: Path, names: Iterable[str], fix: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays called `names` of an .npz, where they are there, and all names that it holds; others stay packed."""
    arrays: dict[str, np.ndarray] = {}
    unreadable = partial(refusing, fix=fix)
    with opened(path) as file:
        with unreadable(f"{path}: not a readable .npz of plain arrays"):
            archive = zipfile.ZipFile(file)
        left = max(ANYHOW, INFLATED * os.fstat(file.fileno()).st_size)
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in (name for name in names if name in members):
            with unreadable(f"{path}: not a readable .npz of plain arrays: {name}"):
                arrays[name] = _read_array(archive, members[name], left)
                left -= arrays[name].nbytes
    return arrays, shortened(", ".join(members)) or "nothing by name"


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> np.ndarray:
    """An array whose header declares as many bytes as there are, and no more than `most`."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("packed otherwise than numpy does it")
    if member.file_size > most:
        raise ValueError(f"{member.file_size:,} bytes once unpacked, far more than the file itself")
    layout = np.lib.format
    with archive.open(member) as stream:
        read_header = {(1, 0): layout.read_array_header_1_0, (2, 0): layout.read_array_header_2_0}
        shape, _, dtype = read_header[layout.read_magic(stream)](stream)
        held = member.file_size - stream.tell()
        if math.prod(shape) * dtype.itemsize != held:
            raise ValueError(f"{dtype} of shape {shape} declared, {held:,} bytes there")
    with archive.open(member) as stream:
        return layout.read_array(stream, allow_pickle=False)

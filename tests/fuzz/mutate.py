"""Wrong files: each function takes a source of chance and a good file, and returns a bad one."""

import io
import json
import os
import struct
import zipfile
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml
from PIL import Image

NAN, INF = float("nan"), float("inf")


def damaged(rng: Random, good: bytes) -> bytes:
    """What disks, networks and hands do to any file."""
    if rng.random() < 0.5:
        flipped = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 8])):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    cut, end = sorted(rng.randrange(len(good) + 1) for _ in range(2))
    extreme = rng.choice([b"\0", b"\xff", b"\x7f"]) * rng.choice([1, 2, 4, 8])
    return rng.choice([
        good[:cut], good[:cut] + good[end:], good[:end] + good[cut:], good[end:] + good[:cut],
        good[:cut] + bytes(end - cut) + good[end:], good[:cut] + rng.randbytes(end - cut) + good[end:],
        good[:cut] + extreme + good[cut + len(extreme) :], good * 2, b"\xef\xbb\xbf" + good,
        rng.choice([b"", b"\0", b"\n", b"{}", b"PK\3\4", b"\x80\x04."]),
    ])  # fmt: skip


# ---- JSON and YAML: a change somewhere in a tree of values

VALUES = (None, True, "", "x", -1, 0, 1.5, 30_000, 10**9, 2**63, 10**30, NAN, INF, [], {}, [[]], "é\n")
DEEP = "[" * 10_000 + "]" * 10_000
JSON_WORDS = ("NaN", "-Infinity", "1e400", "9" * 5_000, DEEP, '{"a":' * 10_000, r'"\ud800"', "nul", "'x'", "01")
BOMB = "{" + ", ".join(f"k{i}: &k{i} [{', '.join(['x' if not i else f'*k{i - 1}'] * 9)}]" for i in range(9)) + "}"
YAML_WORDS = (
    ".nan", "-.inf", "1e400", "9" * 5_000, DEEP, BOMB, "2001-99-99", "!!python/object/apply:os.getcwd []", "*none",
    "&a [*a]", "!!binary x", "!!set {a}", "'", "{<<: 1}", "? [a]", "0o9", "1:99:99", "\x07", "!!timestamp x", "12:00",
)  # fmt: skip


def changed_tree(rng: Random, plain: Any, words: tuple[str, ...], values: tuple[Any, ...] = VALUES) -> Any:
    """A value or a key somewhere is another; words of the format itself are put in as WORD0WORD, WORD1WORD, ..."""
    spots: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            spots.append((node, key))
            visit(node[key])

    visit(plain)
    for node, key in rng.sample(spots, min(len(spots), rng.choice([1, 1, 1, 3]))):
        way = rng.choice(["lose", "rename", "move", "word", "large", "value", "value"])
        if way == "lose" and isinstance(node, dict):
            node.pop(key, None)
        elif way == "rename" and isinstance(node, dict):
            node[rng.choice(["", "x", f"{key}s", key.upper()])] = node.pop(key, None)
        elif way == "move":
            other, its = rng.choice(spots)
            node[key] = json.loads(json.dumps(other[its] if isinstance(other, list) else other.get(its)))
        elif way == "large" and isinstance(node[key] if isinstance(node, list) else node.get(key), int):
            node[key] = rng.choice([value for value in values if isinstance(value, int) and value > 1_000])
        else:
            node[key] = f"WORD{rng.randrange(len(words))}WORD" if way == "word" else rng.choice(values)
    return plain


def spelled(text: str, words: tuple[str, ...]) -> bytes:
    """Text whose placeholders are words of the format."""
    for i, word in enumerate(words):
        text = text.replace(f'"WORD{i}WORD"', word).replace(f"WORD{i}WORD", word)
    return text.encode("utf-8", "surrogatepass")


def json_file(rng: Random, good: bytes) -> bytes:
    """A wrong .json."""
    if rng.random() < 0.25:
        return damaged(rng, good)
    return spelled(json.dumps(changed_tree(rng, json.loads(good), JSON_WORDS)), JSON_WORDS)


def json_lines(rng: Random, good: bytes) -> bytes:
    """Wrong lines of JSON: one of them, or the file as a crash leaves it."""
    lines = good.splitlines(keepends=True)
    if (way := rng.random()) < 0.3:
        return good[: -rng.randrange(1, len(lines[-1]) + 1)] + rng.choice([b"", b"\0" * 512, b"\xff\xfe"])
    which = rng.randrange(len(lines))
    return damaged(rng, good) if way < 0.5 else b"".join([*lines[:which], json_file(rng, lines[which]), *lines[which:]])


def yaml_file(rng: Random, good: bytes, values: tuple[Any, ...] = VALUES) -> bytes:
    """A wrong .yaml."""
    if (way := rng.random()) < 0.2:
        return damaged(rng, good)
    if way < 0.25:
        return spelled(rng.choice([*YAML_WORDS, "- a", "a: b: c", "\tx: 1", "%YAML 9.9\n--- x", "--- 1\n--- 2"]), ())
    plain = changed_tree(rng, yaml.safe_load(good), YAML_WORDS, values)
    return spelled(yaml.safe_dump(plain, sort_keys=False, width=10**6), YAML_WORDS)


def config_to_use(rng: Random, good: bytes) -> bytes:
    """A wrong config without sizes that merely take long."""
    return yaml_file(rng, good, tuple(value for value in VALUES if value != 30_000))


# ---- safetensors

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "C64": 8}


def tensors(rng: Random, good: bytes) -> bytes:
    """A wrong safetensors file: its bytes, its header, our description in it, or one of its tensors."""
    length = int.from_bytes(good[:8], "little")
    header, data = json.loads(good[8 : 8 + length]), good[8 + length :]
    way = rng.choice(["bytes", "length", "header", "about", "about", "parts", "parts"])
    if way == "bytes":
        return damaged(rng, good)
    if way == "length":
        return struct.pack("<Q", rng.choice([0, 1, length - 1, length + 1, 10**8, 2**63, 2**64 - 1])) + good[8:]
    if way == "header":
        return _packed(spelled(json.dumps(changed_tree(rng, header, JSON_WORDS)), JSON_WORDS), data)
    about = header.pop("__metadata__")
    if way == "about":
        about["gtmsm"] = json_file(rng, about["gtmsm"].encode()).decode("utf-8", "replace")
    parts = {name: [part["dtype"], part["shape"], data[slice(*part["data_offsets"])]] for name, part in header.items()}
    if way == "parts":
        _harm(rng, parts, rng.choice(list(parts)))
    header, data = {"__metadata__": about}, b""
    for name, (dtype, shape, content) in parts.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return _packed(json.dumps(header).encode(), data)


def _packed(header: bytes, data: bytes) -> bytes:
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def _harm(rng: Random, parts: dict[str, list[Any]], name: str) -> None:
    """One tensor gets other values, another type or shape, another name, or is lost."""
    dtype, shape, content = part = parts[name]
    way = rng.choice(["value", "value", "all", "type", "convert", "shape", "rename", "lose", "swap"])
    if way in ("value", "all") and SIZES[dtype] == 4:
        number = struct.pack("<f", rng.choice([NAN, INF, -INF, 3e38, -3e38, 1e20, 1e-44]))
        at = 4 * rng.randrange(len(content) // 4)
        part[2] = number * (len(content) // 4) if way == "all" else content[:at] + number + content[at + 4 :]
    elif way == "type":
        part[0] = rng.choice([other for other, size in SIZES.items() if size == SIZES[dtype]])
    elif way == "convert":
        part[0] = rng.choice(list(SIZES))
        part[2] = rng.randbytes(len(content) // SIZES[dtype] * SIZES[part[0]])
    elif way == "shape":
        part[1] = rng.choice([shape[::-1], [1, *shape], [*shape, 1], [int(np.prod(shape))]])
    elif way == "swap":
        parts[name] = parts[rng.choice(list(parts))]
    else:
        lost = parts.pop(name)
        parts |= {rng.choice(["", "x", f"{name}.x", f"model.{name}"]): lost} if way == "rename" else {}


# ---- .npz


@cache
def zeros(gigabytes: int) -> bytes:
    """So many zeros, deflated: one block for 64 MB, again and again."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = squeeze.compress(bytes(1 << 26)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    return block * (16 * gigabytes) + squeeze.flush()


def odd_array(rng: Random, array: np.ndarray) -> np.ndarray:
    kinds = ("uint8", "int8", "int64", "uint64", "float32", "float64", "float16", "complex64", "bool", "U4", "S3", "O")
    some = array if array.ndim and array.dtype.kind not in "US" else np.zeros((2, 2))
    with np.errstate(all="ignore"):
        return rng.choice([
            *[some.astype(rng.choice(kinds)) for _ in range(2)], some.reshape(-1), some[None], some.T, some[:0],
            np.full(some.shape, rng.choice([NAN, INF, -1.0, 1e300, 1e30])), np.array(rng.choice([None, {}, 1j, "x"])),
            np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.zeros((0, 10**9), np.uint8),
            np.full((*some.shape[:-1], 4), 200, np.uint8),
        ])  # fmt: skip


def archive(rng: Random, good: bytes) -> bytes:
    """A wrong .npz: its bytes, its members, or what they say of themselves."""

    with zipfile.ZipFile(io.BytesIO(good)) as whole:
        members = {member: whole.read(member) for member in whole.namelist()}
    name = rng.choice(list(members))
    way = rng.choice(["bytes"] * 3 + ["array"] * 4 + ["rename", "lose", "header", "pack", "bomb", "damage"])
    if way == "bytes":
        return damaged(rng, good)
    if way == "array":
        odd = io.BytesIO()
        np.save(odd, odd_array(rng, np.load(io.BytesIO(members[name]))))
        members[name] = odd.getvalue()
    elif way in ("rename", "lose"):
        lost = members.pop(name)
        members |= {rng.choice([".npy", "x", "x.npy", "../x.npy", name.upper()]): lost} if way == "rename" else {}
    elif way == "damage":
        members[name] = damaged(rng, members[name])
    elif way == "header":
        shape = rng.choice(["(10000000000,)", "(1, 99999, 99999, 3)", "(-1,)", "((1,),)", "x", "(" * 5_000])
        kind = rng.choice(["|u1", "<f8", "|O", "<U9999", "zz"])
        text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        members[name] = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + bytes(64)
    made = io.BytesIO()
    packing = rng.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]) if way == "pack" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(made, "w") as out:
        for key, content in members.items():
            out.writestr(zipfile.ZipInfo(key), content, packing)  # without the time of day
    return _with_bomb(rng, made.getvalue()) if way == "bomb" else made.getvalue()


def _with_bomb(rng: Random, good: bytes) -> bytes:
    """The first member is 3 GB of zeros, as it says itself, or as only its data tell."""
    stream, head = zeros(3), bytearray(good[:30])
    name = good[30 : 30 + int.from_bytes(head[26:28], "little")]
    head[18:26] = struct.pack("<II", len(stream), rng.choice([3 << 30, 100]))
    entry = b"PK\1\2\x14\0" + bytes(head[4:30]) + bytes(14) + name
    body = bytes(head[:28]) + b"\0\0" + name + stream
    return body + entry + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(body), 0)


# ---- pictures


@cache
def _black(side: int) -> bytes:
    return zlib.compress(bytes((side + 1) * side), 1)


def _png(header: tuple[int, ...], content: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A PNG of these chunks; a header is width, height, bits, colours, interlacing."""
    chunks = [(b"IHDR", struct.pack(">IIBBxxB", *header)), *more, (b"IDAT", content), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def picture(rng: Random, good: bytes) -> bytes:
    """A wrong picture, or one of another kind."""
    image, made = Image.open(io.BytesIO(good)), io.BytesIO()
    way = rng.choice(["bytes", "bytes", "jpeg", "mode", "size", "format", "chunk", "wide", "eps"])
    if way == "bytes":
        return damaged(rng, good)
    if way == "size":
        size = (rng.choice([0, 1, 8, 9, 13_000, 60_000, 2**31 - 1, 2**32 - 1]) for _ in range(2))
        kind = rng.choice([1, 2, 8, 16, 3]), rng.choice([0, 2, 3, 4, 6, 7]), rng.choice([0, 1])
        return _png((*size, *kind), zlib.compress(good))
    if way == "chunk":
        bomb = b"x\0\0" + zlib.compress(bytes(1 << 22))
        odd = (b"zTXt", bomb), (b"iCCP", bomb), (b"tRNS", b"x"), (b"eXIf", rng.randbytes(40)), (b"PLTE", b"xx")
        return _png((8, 8, 8, 2, 0), zlib.compress(bytes(8 * 25)), rng.choice(odd))
    if way == "wide":
        side = rng.choice([300, 13_000])
        return _png((side, side, 8, 0, 0), _black(side))
    if way == "eps":
        return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n0 0 8 8 rectfill\nshowpage\n%%EOF\n"
    others = ("GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "PCX", "PDF")
    kind = {"jpeg": "JPEG", "mode": "PNG"}.get(way) or rng.choice(others)
    modes = {"jpeg": ("RGB", "L", "CMYK"), "mode": ("1", "L", "LA", "P", "RGBA")}.get(way, ("RGB",))
    image.convert(rng.choice(modes)).save(made, kind)
    return damaged(rng, made.getvalue()) if rng.random() < 0.5 else made.getvalue()


# ---- what is no file, and names

NAMES = (
    "[bold]x",
    "[/]",
    "[link=x]",
    "a\nb",
    "\udcff",
    "é",
    " ",
    "-x",
    "{0}",
    "%s",
    "x" * 200,
    "a'b\"c",
    "\x1b[31m",
    "~",
)


def no_file(rng: Random, path: Path) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    way = rng.choice(["fifo", "folder", "loop", "dangling", "zero", "nothing"])
    if way == "fifo":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    elif way != "nothing":
        path.symlink_to({"loop": path.name, "dangling": "nowhere", "zero": "/dev/zero"}[way])

"""An array in one file: a shard of zarr 3, which any reader of zarr opens, written and read without `zarr` itself.

The layout never varies, so some 60 lines do what `zarr` does in general: rows are cut into chunks, each compressed by
zstd and followed by its CRC-32C. An index of (offset, bytes) for every chunk comes first, so a truncated file still
gives the chunks that are left. Decompression releases Python's lock, so two threads can decompress at the same time.
"""

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gtmsm.episodes.episode import MOST_BYTES
from gtmsm.errors import InputError

try:
    from google_crc32c import value as crc32c
    from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError
except ImportError:
    raise InputError('recordings need zarr and its codecs; install them with: pip install "gtmsm[own]"') from None

LEVEL = -20
"""Of zstd: packs frames of rooms to 81% and unpacks them in 60% of the time of level -7, which packs them to 70%."""
DECLARED = -1
"""The level that zarr's metadata state. Readers do not use it: stores of any level are read alike."""
ENTRY = np.dtype("<u8")
CHECKSUM = 4
"""Bytes of a checksum."""
WHOLE = 0x48674BC7
"""The CRC-32C of anything that is followed by its own CRC-32C."""
MOST_WINDOW = 2**24
"""Maximum bytes that zstd may allocate to decompress a chunk, whatever the chunk declares."""
_own = threading.local()
"""The decompressor of each thread: making a new one for every chunk takes a third longer."""


def checksum_of(content: bytes) -> int:
    """CRC-32C of the content."""
    return crc32c(content)


class Damage(InputError):
    """Stored bytes differ from what was written; `chunk` is the number of the chunk, or -1 for the whole file.

    In a truncated file, the message is empty for chunks behind its end.
    """

    def __init__(self, message: str, chunk: int = -1) -> None:
        super().__init__(message)
        self.chunk = chunk


@dataclass(frozen=True)
class Layout:
    """How the rows of an array are stored in a file."""

    row: tuple[int, ...]
    """Shape of a row."""
    dtype: str
    """Name of the data type, the same in NumPy and zarr."""
    chunk: int
    """Rows of a chunk."""

    @cached_property
    def row_bytes(self) -> int:
        """Size of a row."""
        return prod(self.row) * np.dtype(self.dtype).itemsize

    @cached_property
    def file_name(self) -> str:
        """Zarr's file name of the only shard."""
        return ".".join(("c", *"0" * (1 + len(self.row))))

    def chunks(self, rows: int) -> int:
        """Number of chunks that `rows` rows take."""
        return -(-rows // self.chunk)

    def metadata(self, rows: int) -> dict[str, Any]:
        """Zarr's metadata of an array of `rows` rows."""
        codec: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
        checksum = {"name": "crc32c"}
        inner = [codec, {"name": "zstd", "configuration": {"level": DECLARED, "checksum": False}}, checksum]
        sharding = {
            "chunk_shape": [self.chunk, *self.row],
            "codecs": inner,
            "index_codecs": [codec, checksum],
            "index_location": "start",
        }
        shard = [self.chunks(rows) * self.chunk, *self.row]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [rows, *self.row],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": {},
        }

    def encode(self, rows: np.ndarray) -> tuple[bytes, int]:
        """Encode rows as a file; return it with the checksum of its index. Chunks of zeros are written like others."""
        count = self.chunks(len(rows))
        padded = np.zeros((count, self.chunk, *self.row), self.dtype)  # zarr pads the last chunk, too
        padded.reshape(-1, *self.row)[: len(rows)] = rows
        blobs, packer = [], ZstdCompressor(level=LEVEL)
        for chunk in padded:
            packed = packer.compress(chunk)
            blobs.append(packed + crc32c(packed).to_bytes(CHECKSUM, "little"))
        sizes = np.array([len(blob) for blob in blobs], ENTRY)
        offsets = np.cumsum(sizes) - sizes + np.uint64(sizes.nbytes * 2 + CHECKSUM)
        index = np.stack([offsets, sizes], 1).astype(ENTRY).tobytes()
        checksum = crc32c(index)
        return b"".join([index, checksum.to_bytes(CHECKSUM, "little"), *blobs]), checksum

    def read(
        self, path: str | Path, rows: int, size: int, first: int, count: int, into: np.ndarray | None = None
    ) -> np.ndarray:
        """Read `count` rows from `first` of a file that has `rows` rows and `size` bytes; every byte used is checked.

        `into`: contiguous memory for them; that of a new array would have to be cleared first.
        """
        if not 0 <= first <= first + count <= rows or count < 1:
            raise InputError(f"asked for {count} rows from {first} of {rows}")
        if count * self.row_bytes > MOST_BYTES:
            raise InputError(f"{path}: asked for {count * self.row_bytes:,} bytes at once; read a part of it")
        out = np.empty((count, *self.row), self.dtype) if into is None else into
        unpacked, each = out.reshape(-1).view(np.uint8), self.chunk * self.row_bytes
        with _opened(path) as handle:
            if (found := os.fstat(handle).st_size) != size:
                raise _resized(path, found, size)
            low, high = first // self.chunk, (first + count - 1) // self.chunk + 1
            places = self._index(path, handle, rows, size, low, high)
            for number, (offset, length) in enumerate(places, low):
                at, blob = (number * self.chunk - first) * self.row_bytes, _read(handle, length, offset)
                if 0 <= at <= len(unpacked) - each:
                    self._decode(path, number, blob, unpacked[at : at + each])
                else:
                    whole = np.empty(each, np.uint8)
                    self._decode(path, number, blob, whole)
                    unpacked[max(at, 0) : at + each] = whole[max(-at, 0) : len(unpacked) - at]
        return out

    def damages(self, path: str | Path, rows: int, size: int, checksum: int) -> Iterator[Damage]:
        """Read a whole file and yield what is damaged, chunk by chunk."""
        count, whole = self.chunks(rows), np.empty(self.chunk * self.row_bytes, np.uint8)
        with _opened(path) as handle:
            found = os.fstat(handle).st_size
            index = _read(handle, 16 * count + CHECKSUM, 0)
            if found != size:
                yield _resized(path, found, size)
            elif not crc32c(index[:-CHECKSUM]) == int.from_bytes(index[-CHECKSUM:], "little") == checksum:
                yield Damage(f"{path}: its index fails its checksum")
            for number in range(count):
                try:
                    ((offset, length),) = self._index(path, handle, rows, found, number, number + 1)
                    self._decode(path, number, _read(handle, length, offset), whole)
                except Damage as problem:
                    yield Damage("", number) if found < size and "behind" in str(problem) else problem

    def _index(self, path: str | Path, handle: int, rows: int, size: int, low: int, high: int) -> list[tuple[int, int]]:
        """Read offsets and sizes of the chunks from `low` to before `high`."""
        entries = _read(handle, 16 * (high - low), 16 * low)
        if len(entries) < 16 * (high - low):
            raise Damage(f"{path} is cut short: it ends in its index", low)
        places: list[tuple[int, int]] = list(struct.iter_unpack("<QQ", entries))  # type: ignore[arg-type]
        header = 16 * self.chunks(rows) + CHECKSUM
        most = self.chunk * self.row_bytes + self.chunk * self.row_bytes // 128 + 1024  # zstd's output for noise
        for number, (offset, length) in enumerate(places, low):
            if offset < header or not CHECKSUM < length <= most:
                raise Damage(f"{path}: the index says nonsense of chunk {number}", number)
            if offset + length > size:
                raise Damage(f"{path}: chunk {number} is behind the end of the file", number)
        return places

    def _decode(self, path: str | Path, number: int, blob: bytes, out: np.ndarray) -> None:
        """Check a chunk and decompress it into `out`; no more is allocated, whatever size the chunk declares."""
        if crc32c(blob) != WHOLE:
            raise Damage(f"{path}: chunk {number} fails its checksum", number)
        try:
            unpacker = _own.unpacker = getattr(_own, "unpacker", None) or ZstdDecompressor(max_window_size=MOST_WINDOW)
            if unpacker.stream_reader(blob).readinto(out) != len(out):
                raise Damage(f"{path}: chunk {number} holds fewer than {len(out):,} bytes", number)
        except ZstdError as problem:
            raise Damage(f"{path}: chunk {number} cannot be unpacked ({problem})", number) from None


@contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    """Open an ordinary file as a descriptor, without the cost of a file object."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError)
        raise Damage(f"{path} {'is missing' if missing else f'cannot be read: {problem.strerror}'}") from None
    try:
        yield handle
    finally:
        os.close(handle)


def _resized(path: str | Path, found: int, size: int) -> Damage:
    why = "it was cut short" if found < size else "something was added"
    return Damage(f"{path} has {found:,} bytes instead of {size:,}: {why}")


def _read(handle: int, count: int, offset: int) -> bytes:
    """Read `count` bytes of a file, fewer only at its end."""
    got = os.pread(handle, count, offset)
    while 0 < len(got) < count and (more := os.pread(handle, count - len(got), offset + len(got))):
        got += more
    return got

"""Files that strangers wrote, or that were cut short: refused in one line, before anything is allocated."""

import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gtmsm.errors import InputError
from gtmsm.files import read_arrays, read_json, read_lines, read_tensors, read_yaml, write_tensors
from gtmsm.model import weights
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig


def test_tensors_of_another_program_are_refused(tmp_path: Path):
    save_file({"a": torch.zeros(2)}, tmp_path / "t.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="t.safetensors holds weights of another program"):
        read_tensors(tmp_path / "t.safetensors")


@pytest.mark.parametrize("kept", [0, 1, 7, 9, 60, 200])
def test_a_truncated_file_of_tensors_is_refused_in_one_line(tmp_path: Path, kept: int):
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.zeros(50)}, {})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="t.safetensors cannot be read .* is it whole?") as refusal:
        read_tensors(path)
    assert "\n" not in str(refusal.value)


def harmed(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refusal_of(read: Callable[[], object]) -> str:
    """One line, which quotes nothing at length."""
    with pytest.raises(InputError) as refusal:
        read()
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500
    return str(refusal.value)


def refusal_of_file(path: Path, content: bytes, read: Callable[[Path], object]) -> str:
    """The same of a file of this content, which it names."""
    told = refusal_of(lambda: read(harmed(path, content)))
    assert str(path) in told
    return told


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a: 1\nb: 2001-99-99", "line 2: month must be in 1..12"),
        (b"a: !!bool perhaps", "line 1: 'perhaps'"),
        (b"a: !!timestamp noon", "line 1:"),
        (b"a: !!int ''", "line 1:"),
        (b"? [1, 2]\n: 3", "line 1: found unhashable key"),
        (b"a: !!python/object/apply:os.system [ls]", "line 1: could not determine a constructor"),
        (b"a: &b [1]\nc: [*b, *b]", "line 2: an alias; write its value out"),
        (b"a: " + 10_000 * b"[", "line 1: more than 20 levels inside each other"),
        (10_000 * b"- ", "line 1: more than 20 levels inside each other"),
        (b"a: \xe9", "'utf-8' codec can't decode"),
        (b"a: \x00", "special characters are not allowed"),
        (b"a: [", "line 1:"),
        (b"- 1", "expected values by name, found [1]"),
        (b"a: " + 2**16 * b"b", "more than 65,536 bytes"),
    ],
)
def test_yaml_that_is_none_of_ours_is_refused_with_its_place(tmp_path: Path, content: bytes, complaint: str):
    assert complaint in refusal_of_file(tmp_path / "config.yaml", content, read_yaml)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"a": 1', "is not valid JSON (Expecting ',' delimiter: line 1 column 8"),
        (b"", "is not valid JSON"),
        (10_000 * b"[", "is not valid JSON (maximum recursion depth"),
        (b'{"a": "\xe9"}', "is not valid JSON ('utf-8' codec"),
        (b'{"a": ' + 5_000 * b"1" + b"}", "is not valid JSON (Exceeds the limit"),
        (b"[" + 1_000 * b"1, " + b"1]", "expected values by name, found [1, 1, 1, 1, 1, 1, ...]"),
        (2**22 * b" " + b"{}", "more than 4,194,304 bytes"),
    ],
)
def test_json_that_is_none_of_ours_is_refused(tmp_path: Path, content: bytes, complaint: str):
    reader = partial(read_json, fix="make it anew")
    assert complaint in refusal_of_file(tmp_path / "scores.json", content, reader)


def test_numbers_that_are_none_are_read_as_nothing(tmp_path: Path):
    path = harmed(tmp_path / "scores.json", b'{"a": NaN, "b": -Infinity, "c": 1e400, "d": 1.5}')
    assert read_json(path, "make it anew") == {"a": None, "b": None, "c": None, "d": 1.5}


@pytest.mark.parametrize("torn", [b'{"update": 2, "el', b"{", b"12", b'{"a": "\xc3', b"\0\0\0\0", b"[", 10_000 * b"["])
def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path, torn: bytes):
    path = harmed(tmp_path / "metrics.jsonl", b'{"update": 1}\n' + torn)
    assert read_lines(path) == [(b'{"update": 1}', {"update": 1})]
    path.write_bytes(torn + b'\n{"update": 1}\n')
    assert "metrics.jsonl line 1 " in refusal_of(lambda: read_lines(path))


def tensors_file(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


ABOUT = b'{"__metadata__": {"gtmsm": "%s"}, "a": {"dtype": "%s", "shape": %s, "data_offsets": [0, 8]}}'


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PK\3\4 not tensors at all", "cannot be read as a safetensors file"),
        ((2**40).to_bytes(8, "little") + b"{}", "its header has more than 1,048,576 bytes"),
        (tensors_file(b"{" * 100), "cannot be read as a safetensors file"),
        (tensors_file(10_000 * b"["), "cannot be read as a safetensors file"),
        (tensors_file(b'{"\xff": 1}'), "cannot be read as a safetensors file"),
        (tensors_file(b'{"__metadata__": {"gtmsm": 3}}'), "cannot be read as a safetensors file"),
        (tensors_file(ABOUT % (b"{}", b"F99", b"[2]"), bytes(8)), "cannot be read as a safetensors file"),
        (tensors_file(ABOUT % (b"{}", b"F32", b"[999999999999]"), bytes(8)), "cannot be read as a safetensors file"),
        (tensors_file(ABOUT % (b"{}", b"F32", b"[-2, -1]"), bytes(8)), "cannot be read as a safetensors file"),
        (tensors_file(ABOUT % (b"not JSON", b"F32", b"[2]"), bytes(8)), "the description in it is not valid JSON"),
        (tensors_file(ABOUT % (10_000 * b"[", b"F32", b"[2]"), bytes(8)), "the description in it is not valid JSON"),
        (tensors_file(ABOUT % (b"[1]", b"F32", b"[2]"), bytes(8)), "expected values by name, found [1]"),
    ],
)
def test_tensors_that_are_none_of_ours_are_refused(tmp_path: Path, content: bytes, complaint: str):
    assert complaint in refusal_of_file(tmp_path / "weights.safetensors", content, read_tensors)


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ({"model": {"vae": {"width": 30_000}}}, "describe a larger one than the file can fill"),
        (
            {"model": {"vae": {"coder": "conv", "width": 999_999_999, "code_size": 999_999_999}}},
            "describe a larger one than the file can fill",
        ),
        ({"model": {"vae": {"width": 10**9}}}, "width is 1000000000; no such setting is 1,000,000,000 or more"),
        ({"model": {"recall": {"layers": 10**6}}}, "layers is 1000000; give 1 to 100"),
        ({"model": {"vae": 3}}, "model.vae is 3"),
        ({"model": []}, "model is []"),
        ({"model": {"vae": {"wdith": 3}}}, 'unknown setting "model.vae.wdith"; did you mean "width"?'),
        ({"frame_shape": [3, 8]}, "frame_shape.2"),
        ({"frame_shape": [3, 10**6, 8]}, "frame_shape is 1000000; give a whole number from 1 to 1024"),
        ({"frame_shape": None}, "frame_shape is None"),
        ({"action_size": "many"}, "action_size is 'many'"),
        ({"action_size": -1}, "action_size is -1; give a whole number from 1 to 1024"),
        ({"colour": "blue"}, 'unknown setting "colour"'),
    ],
)
def test_weights_that_lie_about_themselves_are_refused_before_a_model_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: dict[str, object], complaint: str
):
    model, path = WorldModel(WorldModelConfig(), (3, 8, 8), 5), tmp_path / "weights.safetensors"
    model.save(path)
    about, tensors = read_tensors(path)
    write_tensors(path, tensors, about | lie)
    monkeypatch.setattr(weights, "take_weights", lambda *any: pytest.fail("a model was built"))
    assert complaint in refusal_of(lambda: WorldModel.load(path))


def npz(path: Path, packing: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(shape: tuple[int, ...], data: bytes = b"", kind: str = "|u1") -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": kind, "fortran_order": False, "shape": shape})
    return content.getvalue() + data


# Made when they are needed: one is of 128 MB, and would be part of a test's name.
@pytest.mark.parametrize(
    ("packing", "pack", "complaint"),
    [
        (zipfile.ZIP_LZMA, lambda: npy((1,), b"1"), "packed otherwise than numpy does it"),
        (zipfile.ZIP_BZIP2, lambda: npy((1,), b"1"), "packed otherwise than numpy does it"),
        (
            zipfile.ZIP_DEFLATED,
            lambda: npy((2**27,), bytes(2**27)),
            "134,217,856 bytes once unpacked, far more than the file",
        ),
        (zipfile.ZIP_STORED, lambda: npy((10**15,)), "uint8 of shape (1000000000000000,) declared, 0 bytes there"),
        (zipfile.ZIP_STORED, lambda: npy((2,), b"123"), "uint8 of shape (2,) declared, 3 bytes there"),
        (zipfile.ZIP_STORED, lambda: npy((-1, -3), b"123"), "not a readable .npz of plain arrays: a ("),
        (zipfile.ZIP_STORED, lambda: npy((1,), bytes(8), "|O"), "Object arrays cannot be loaded"),
        (
            zipfile.ZIP_STORED,
            lambda: npy((1,), b"1").replace(b"'|u1'", b"'|?q'"),
            "not a readable .npz of plain arrays: a (",
        ),
        (zipfile.ZIP_STORED, lambda: npy((1,), b"1").replace(b"{", b"["), "not a readable .npz of plain arrays: a ("),
        (zipfile.ZIP_STORED, lambda: b"\x93NUMPY\x09\x09", "not a readable .npz of plain arrays: a ("),
        (zipfile.ZIP_STORED, lambda: b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{", "not a readable .npz of plain arrays: a ("),
        (
            zipfile.ZIP_STORED,
            lambda: b"plain text",
            "not a readable .npz of plain arrays: a (the magic string is not correct",
        ),
    ],
)
def test_an_array_that_is_not_what_it_declares_is_not_unpacked(
    tmp_path: Path, packing: int, pack: Callable[[], bytes], complaint: str
):
    path = npz(tmp_path / "any.npz", packing, a=pack())
    tracemalloc.start()
    told = refusal_of(lambda: read_arrays(path, ("a",), "write it anew"))
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    assert complaint in told
    assert str(path) in told


def test_arrays_that_nobody_asks_for_stay_packed(tmp_path: Path):
    path = npz(tmp_path / "any.npz", zipfile.ZIP_LZMA, b=b"anything")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.npy", npy((3,), b"abc"))
    arrays, holds = read_arrays(path, ("a", "c"), "")
    assert (arrays.keys(), bytes(arrays["a"]), holds) == ({"a"}, b"abc", "b, a")


def test_only_ordinary_files_are_read(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        for read in (read_yaml, read_lines, read_tensors, lambda p: read_json(p, ""), lambda p: read_arrays(p, (), "")):
            assert "a folder, a pipe or a device; give an ordinary file" in refusal_of(partial(read, path))

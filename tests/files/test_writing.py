"""Files that are there whole or not at all."""

import json
import os
import re
import resource
from pathlib import Path

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.files import (
    locked,
    read_json,
    read_tensors,
    replacing,
    require_folder,
    write_atomically,
    write_json,
    write_tensors,
)
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.training import train


def test_what_was_written_is_there(tmp_path: Path):
    write_atomically(tmp_path / "note.txt", "hello")
    assert (tmp_path / "note.txt").read_text() == "hello"


def test_writing_again_replaces(tmp_path: Path):
    for text in ("a long first text", "short"):
        write_atomically(tmp_path / "note.txt", text)
    assert (tmp_path / "note.txt").read_text() == "short"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_who_may_read_a_written_file_is_what_the_umask_says(tmp_path: Path, umask: int, mode: int):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "note.txt", "hello")
    finally:
        os.umask(before)
    assert (tmp_path / "note.txt").stat().st_mode & 0o777 == mode


def test_bytes_that_are_no_text_come_through(tmp_path: Path):
    write_atomically(tmp_path / "note.txt", os.fsdecode(b"caf\xe9"))
    assert (tmp_path / "note.txt").read_bytes() == b"caf\xe9"


def test_what_a_killed_writer_left_is_swept_and_nothing_else(tmp_path: Path):
    others = [
        tmp_path / name for name in (".note.txt.swp", ".gtmsm-notours", "gtmsm-01234567.txt", ".gtmsm-0123456.txt")
    ]
    strays = [tmp_path / name for name in (".gtmsm-01234567.txt", ".gtmsm-89abcdef")]
    for path in others + strays:
        path.write_text("")
    with replacing(tmp_path / "slow.txt") as draft:  # of a writer that lives
        write_atomically(tmp_path / "note.txt", "hello")
        assert set(tmp_path.iterdir()) == {*others, tmp_path / "note.txt", draft}
        draft.write_text("whole")
    assert (tmp_path / "slow.txt").read_text() == "whole"


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot write .*pipe: it is a device or pipe; name a file"):
        write_atomically(tmp_path / "pipe", "hello")
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_is_locked_once_and_by_whom_is_told(tmp_path: Path):
    with locked(tmp_path):
        message = f"{re.escape(str(tmp_path))} is being trained by process {os.getpid()}; wait until it has ended"
        with pytest.raises(InputError, match=message), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_that_is_a_link_to_another_file_is_not_followed(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".gtmsm-lock").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_lock_ends_with_its_process(tmp_path: Path):
    (tmp_path / ".gtmsm-lock").write_text("12345")  # it was killed
    with locked(tmp_path):
        assert (tmp_path / ".gtmsm-lock").read_text().strip() == str(os.getpid())


def test_a_failing_write_keeps_the_old_file_and_leaves_no_litter(tmp_path: Path):
    path = tmp_path / "note.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as draft:
        draft.write_text("half of the ne")
        raise RuntimeError("power cut")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_at_the_very_end_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "note.txt"
    path.write_text("old")

    def refuse(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InputError, match="could not write .*note.txt: No space left on device; the one before is kept"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_file_is_replaced(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(InputError, match="it is a (folder|device or pipe); name a file"):
            write_atomically(tmp_path / name, "text")
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="could not write .*nowhere/note.txt: No such file or directory$"):
        write_atomically(tmp_path / "nowhere" / "note.txt", "hello")


def test_a_folder_that_can_be_made_is_accepted(tmp_path: Path):
    require_folder(tmp_path / "new" / "newer")
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write into .*file/below: .*file is not a folder"):
        require_folder(tmp_path / "file" / "below")


def test_a_folder_that_must_not_be_written_into_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))} is not writable"):
        require_folder(tmp_path / "new")


def test_tensors_and_their_description_come_back_to_the_bit(tmp_path: Path):
    tensors = {"a": torch.randn(3, 2), "step": torch.tensor(7), "seed": torch.arange(5, dtype=torch.uint8)}
    write_tensors(tmp_path / "t.safetensors", tensors, {"kind": ["x", 1]})
    about, back = read_tensors(tmp_path / "t.safetensors")
    assert about == {"kind": ["x", 1]}
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], value) and back[name].dtype == value.dtype for name, value in tensors.items())


def test_tensors_that_share_memory_can_be_written(tmp_path: Path):
    one = torch.randn(4)
    write_tensors(tmp_path / "t.safetensors", {"a": one, "b": one[:2]}, {})
    assert torch.equal(read_tensors(tmp_path / "t.safetensors")[1]["b"], one[:2])


def test_on_a_full_disk_the_previous_checkpoint_survives(
    gtmsm, tmp_path: Path, toy_flags: list[str], monkeypatch: pytest.MonkeyPatch
):
    """No file above 100 kB can be written from update 5 on: the weights fit, the checkpoint does not."""
    run, save, limits = tmp_path / "run", train._Loop._save, resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk(loop: train._Loop, update: int) -> None:
        save(loop, update)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))

    monkeypatch.setattr(train._Loop, "_save", fill_the_disk)
    try:
        code, _, err = gtmsm("train", "image-walk-small", *toy_flags, "--run", run, "--no-evaluate")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert err == f"gtmsm: could not write {run / 'checkpoint.safetensors'}: File too large; the one before is kept\n"
    about, tensors = read_tensors(run / "checkpoint.safetensors")
    assert (int(tensors["count"]), about["prospected"]) == (5, True)
    assert WorldModel.load(run).state_dict().keys() == {n[6:] for n in tensors if n.startswith("model.")}
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["update"] == 9


def test_a_model_is_saved_under_a_name_that_is_text(tmp_path: Path):
    model = WorldModel(WorldModelConfig(), (3, 8, 8), 5)
    model.save(str(tmp_path / "a.safetensors"))
    assert (tmp_path / "a.safetensors").is_file()
    assert WorldModel.load(str(tmp_path / "a.safetensors")).settings == model.settings


def test_json_has_a_line_for_a_name_and_one_for_a_list_of_numbers(tmp_path: Path):
    said = {"a": [1, 2.5, None], "b": {"c": [[1, 2], []], "d": {}}, "e": [{"f": "é\n"}, 3]}
    write_json(path := tmp_path / "a.json", said)
    assert read_json(path, "") == said
    assert path.read_text().splitlines() == [
        "{", ' "a": [1, 2.5, null],', ' "b": {', '  "c": [[1, 2], []],', '  "d": {}', " },", ' "e": [', "  {",
        '   "f": "\\u00e9\\n"', "  },", "  3", " ]", "}",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": [float("nan")]})

"""A clip as a file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.data.store import Chart, Recording, read_clip, write_clip
from gtmsm.errors import InputError
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker

FRAME = (3, 8, 8)
ACTIONS = 5


def walk(steps: int = 6) -> Clip:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2, 3, 20, 20), generator=generator, dtype=torch.uint8)
    return record(ImageWalk(images, ImageWalkConfig(size=20)), PoissonWalker(), 1, steps, generator)


def arrays(steps: int = 6, **others: Any) -> dict[str, Any]:
    """What a user would write."""
    mine = {"frames": np.zeros((steps, 8, 8, 3), np.uint8), "actions": np.zeros(steps, int)} | others
    return {name: array for name, array in mine.items() if array is not None}


def saved(folder: Path, **others: Any) -> Path:
    np.savez(folder / "clip.npz", **arrays(**others))
    return folder / "clip.npz"


def test_what_is_written_is_read_again(tmp_path: Path):
    clip = walk()
    chart = Chart(np.full((10, 12, 3), 7, np.uint8), np.array([1.0, 2.0]), np.array([[0.0, 3.0], [3.0, 0.0]]))
    write_clip(tmp_path / "clip.npz", Recording.of(clip, chart))
    again = read_clip(tmp_path / "clip.npz", FRAME, ACTIONS)
    torch.testing.assert_close(again.x(), clip.x)
    torch.testing.assert_close(again.a(ACTIONS), clip.a)
    assert np.array_equal(again.poses, clip.true_pose[0].numpy())
    assert again.chart is not None
    assert np.array_equal(again.chart.picture, chart.picture)
    assert np.array_equal(again.chart.scale, chart.scale)
    assert (again.kind, again.steps) == ("image-walk", 6)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.npz"]


def test_frames_and_actions_alone_are_a_clip(tmp_path: Path):
    read = read_clip(saved(tmp_path, actions=np.array([0, 1, 2, 3, 4, -1], np.int32)), FRAME, ACTIONS)
    assert (read.poses, read.chart, read.kind) == (None, None, "")
    assert read.a(ACTIONS)[0].sum(1).tolist() == [1, 1, 1, 1, 1, 0]  # -1 is no action at all


def test_actions_may_be_vectors(tmp_path: Path):
    vectors = np.linspace(0, 1, 30).reshape(6, ACTIONS)
    read = read_clip(saved(tmp_path, actions=vectors), FRAME, ACTIONS)
    torch.testing.assert_close(read.a(ACTIONS)[0], torch.from_numpy(vectors).float())
    clip = Clip(read.x(), read.a(ACTIONS), torch.zeros(1, 6, 2), torch.zeros(1, 6, 2))
    write_clip(tmp_path / "again.npz", Recording.of(clip))
    assert read_clip(tmp_path / "again.npz", FRAME, ACTIONS).actions.shape == (6, ACTIONS)


def test_a_chart_knows_where_poses_are():
    chart = Chart(np.zeros((9, 9, 3), np.uint8), np.array([1.0, 2.0]), np.array([[0.0, 3.0], [3.0, 0.0]]))
    assert chart.pixel(np.array([[1.0, 2.0, 0.5]])).tolist() == [[7.0, 5.0]]  # row 1, column 2: right and down


def nothing(folder: Path) -> Path:
    return folder / "none.npz"


def words(folder: Path) -> Path:
    (folder / "clip.npz").write_text("not an archive")
    return folder / "clip.npz"


def single_array(folder: Path) -> Path:
    np.save(folder / "one.npy", np.zeros(3))
    return folder / "one.npy"


def cut_short(folder: Path) -> Path:
    path = saved(folder)
    path.write_bytes(path.read_bytes()[:-80])
    return path


def a_folder(folder: Path) -> Path:
    return folder


def objects(folder: Path) -> Path:
    return saved(folder, actions=np.array([{}] * 6))


MAP = {
    "map": np.zeros((4, 4, 3), np.uint8),
    "map_origin": np.zeros(2),
    "map_scale": np.eye(2),
    "poses": np.zeros((6, 2)),
}


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (nothing, "none.npz: no such clip; make one with `gtmsm record`, or with numpy.savez"),
        (words, "not a readable .npz of plain arrays"),
        (single_array, "not a readable .npz of plain arrays"),
        (cut_short, "not a readable .npz of plain arrays"),
        (a_folder, "a folder, a pipe or a device; give an ordinary file"),
        ({"kind": np.array(["a", "b"])}, "kind is <U1 of shape (2,); expected a word"),
        ({"poses": np.zeros((6, 2), complex)}, "poses are complex128 of shape (6, 2); expected finite numbers"),
        ({"actions": np.full((6, 5), 1e300)}, "this model's have 5, all of them finite"),
        ({"actions": np.zeros(6, "m8[s]")}, "actions are timedelta64[s] of shape (6,); expected integers"),
        (
            {"frames": np.zeros((10_001, 8, 8, 3), np.uint8), "actions": np.zeros(10_001, int)},
            "has 10001 steps; give a clip of at most 10000",
        ),
        (objects, "not a readable .npz of plain arrays"),
        ({"actions": None}, "holds frames, but no actions; write them with numpy.savez(path, frames=..., actions=...)"),
        ({"frames": None, "x": np.zeros(3)}, "holds actions, x, but no frames"),
        (
            {"frames": np.zeros((6, 8, 8, 3))},
            "frames are float64 of shape (6, 8, 8, 3); expected uint8 of shape (time, height, width, 3)",
        ),
        ({"frames": np.zeros((6, 3, 8, 8), np.uint8)}, "frames are uint8 of shape (6, 3, 8, 8); expected"),
        ({"frames": np.zeros((8, 8, 3), np.uint8)}, "frames are uint8 of shape (8, 8, 3); expected"),
        ({"frames": np.zeros((0, 8, 8, 3), np.uint8)}, "has 0 steps; a clip needs at least 1"),
        (
            {"frames": np.zeros((6, 16, 12, 3), np.uint8)},
            "frames are 12x16 pixels; this model sees 8x8: cut or scale to that size",
        ),
        ({"actions": np.zeros(5, int)}, "5 actions and 6 frames; give as many of each"),
        ({"actions": np.zeros(6)}, "actions are float64 of shape (6,); expected integers of shape (time), or floats"),
        ({"actions": np.array(list("udlrsu"))}, "actions are <U1 of shape (6,); expected integers"),
        (
            {"actions": np.array([0, 0, 5, 0, 0, 0])},
            "action 5 at step 3; this model knows 0 to 4, and -1 for none",
        ),
        ({"actions": np.array([0, -2, 5, 0, 0, 0])}, "action -2 at step 2; this model knows 0 to 4"),
        ({"actions": np.zeros((6, 3))}, "actions are vectors of 3 numbers; this model's have 5, all of them finite"),
        ({"actions": np.full((6, 5), np.nan)}, "this model's have 5, all of them finite"),
        ({"poses": np.zeros((5, 2))}, "poses are float64 of shape (5, 2); expected finite numbers of shape (6, 2)"),
        ({"poses": np.full((6, 2), np.inf)}, "poses are float64 of shape (6, 2); expected finite numbers"),
        ({**MAP, "poses": None}, "has a map but no poses; add it, or leave out the map"),
        ({**MAP, "map_scale": None}, "has a map but no map_scale; add it, or leave out the map"),
        ({**MAP, "map": np.zeros((4, 4))}, "map is float64 of shape (4, 4); expected uint8 of shape (tall, wide, 3)"),
        (
            {**MAP, "map_scale": np.eye(3)},
            "map_scale is float64 of shape (3, 3); expected finite numbers of shape",
        ),
    ],
)
def test_what_is_no_clip_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], Path] | dict[str, Any], complaint: str
):
    path = saved(tmp_path, **make) if isinstance(make, dict) else make(tmp_path)
    with pytest.raises(InputError) as refused:
        read_clip(path, FRAME, ACTIONS)
    assert str(refused.value).startswith(f"{path}: ")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_holds_one_walk(tmp_path: Path):
    one = walk()
    two = Clip(*(torch.cat([part, part]) for part in (one.x, one.a, one.true_pose, one.true_step)))
    with pytest.raises(InputError, match="got 2 walks; a file holds one"):
        Recording.of(two)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"x": torch.zeros(1, 6, 1, 8, 8)}, "that is no clip"),
    ({"true_pose": torch.zeros(1, 6, 2, device="meta")}, "that is no clip"),
    ({"x": torch.full((1, 6, 3, 8, 8), 2.0)}, "frames are not in"),
    ({"a": torch.full((1, 6, 5), torch.nan)}, "or actions or poses not finite"),
])  # fmt: skip
def test_what_no_walk_can_be_is_not_stored(changes: dict[str, Any], complaint: str):
    with pytest.raises(InputError, match=complaint):
        Recording.of(replace(walk(), **changes))


def test_a_clip_is_written_as_npz(tmp_path: Path):
    with pytest.raises(InputError, match=r'cannot write a clip as "clip.mp4"; end its name with .npz'):
        write_clip(tmp_path / "clip.mp4", Recording.of(walk()))
    assert not list(tmp_path.iterdir())

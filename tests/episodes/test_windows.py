"""Windows read from a store: those that the generator's state stands for."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("zstandard")
pytest.importorskip("google_crc32c")

from gtmsm.data.clip import Clip
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.store import Store
from gtmsm.episodes.windows import StoreWindows
from gtmsm.errors import InputError

LENGTHS = (3, 8, 20, 9)


def numbered(episode: int, steps: int, discrete: bool = True) -> Episode:
    """Every frame says which episode and step it is of."""
    t = np.arange(steps)
    frames = np.zeros((steps, 4, 4, 3), np.uint8)
    frames[..., 0], frames[..., 1] = episode, t[:, None, None]
    if not discrete:
        return Episode(frames, np.stack([t, -t], 1).astype(np.float32))
    poses = np.stack([0.5 * (t + 1), 0 * t, 0 * t], 1).astype(np.float32)
    return Episode(frames, t % 3, poses, np.zeros(3, np.float32))


@pytest.fixture(scope="module", params=[True, False], ids=["numbers", "vectors"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store:
    discrete = request.param
    kind = Kind((4, 4, 3), ("a", "b", "c"), 3, 3) if discrete else Kind((4, 4, 3), None, 2)
    path: Path = tmp_path_factory.mktemp("store") / "s"
    with Store.create(path, kind) as writing:
        writing.append(*(numbered(i, steps, discrete) for i, steps in enumerate(LENGTHS)))
    return Store.open(path)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of(store: Store, *which: int, from_start: bool = False) -> StoreWindows:
    return StoreWindows(store, np.array(which or range(len(store))), from_start=from_start)


def where(clip: Clip) -> list[tuple[int, int]]:
    """Of each window: its episode, and its first step."""
    return [(int(x[0, 0, 0, 0] * 255 + 0.5), int(x[0, 1, 0, 0] * 255 + 0.5)) for x in clip.x]


def test_a_window_is_a_clip(store: Store) -> None:
    clip = of(store)(5, 8, seeded())
    assert clip.x.shape == (5, 8, 3, 4, 4) and clip.x.is_contiguous()
    for (episode, first), x, a, pose, step in zip(
        where(clip), clip.x, clip.a, clip.true_pose, clip.true_step, strict=True
    ):
        t = torch.arange(first, first + 8)
        assert first + 8 <= LENGTHS[episode]
        assert torch.equal((x[:, 1, 2, 3] * 255).round().long(), t)
        if store.kind.discrete:
            assert torch.equal(a, torch.eye(3)[t % 3])
            assert torch.allclose(pose[:, 0], 0.5 * (t + 1)) and torch.allclose(step, torch.tensor([0.5, 0, 0]))
        else:
            assert torch.equal(a, torch.stack([t, -t], 1).float()) and pose.shape == step.shape == (8, 0)


def test_windows_begin_anywhere_and_episodes_are_equally_likely(store: Store) -> None:
    windows, generator = of(store), seeded()
    found = [window for _ in range(600) for window in where(windows(2, 8, generator))]
    for episode in (1, 2, 3):
        starts = [first for i, first in found if i == episode]
        assert abs(len(starts) - 400) < 100 and set(starts) == set(range(LENGTHS[episode] - 7))


def test_windows_depend_on_the_state_of_the_generator_alone(store: Store) -> None:
    generator, windows = seeded(), of(store, 1, 2, 3)
    first = where(windows(4, 5, generator))
    state, second = generator.get_state(), where(windows(4, 5, generator))
    assert first != second and where(of(store, 1, 2, 3)(4, 5, generator.set_state(state))) == second


def test_a_heading_that_passes_pi_is_a_small_step(tmp_path: Path) -> None:
    heading = (np.arange(21) * 0.5 + np.pi) % (2 * np.pi) - np.pi
    poses = np.stack([np.zeros(21), np.zeros(21), heading], 1).astype(np.float32)
    with Store.create(tmp_path / "s", Kind((4, 4, 3), ("a",), 1, 3)) as store:
        store.append(Episode(np.zeros((20, 4, 4, 3), np.uint8), np.zeros(20, np.int64), poses[1:], poses[0]))
    clip = of(store)(4, 18, seeded())
    assert torch.allclose(clip.true_step[..., 2], torch.tensor(0.5), atol=1e-5)


def test_windows_from_the_start_begin_at_the_first_step(store: Store) -> None:
    clip = of(store, from_start=True)(50, 8, seeded())
    assert set(where(clip)) == {(1, 0), (2, 0), (3, 0)}


def test_only_the_episodes_chosen_are_drawn_from(store: Store) -> None:
    assert {episode for episode, _ in where(of(store, 1, 3)(200, 3, seeded()))} == {1, 3}


def test_windows_longer_than_any_episode_are_refused(store: Store) -> None:
    with pytest.raises(InputError, match="windows of 21 steps but the longest of these episodes has 20"):
        of(store)(1, 21, seeded())


def test_memory_of_a_batch_is_used_again_once_nobody_holds_any_part_of_it(store: Store) -> None:
    windows = of(store)
    first = windows(2, 8, seeded())
    part, address, before = first.x[1, 3:5], first.x.data_ptr(), first.x.clone()
    del first
    assert windows(2, 8, seeded(1)).x.data_ptr() != address
    assert torch.equal(part, before[1, 3:5])
    del part
    assert address in {windows(2, 8, seeded(2)).x.data_ptr() for _ in range(2)}
    assert windows(3, 8, seeded()).x.shape[0] == 3


def test_windows_of_several_lengths_do_not_share_frames(store: Store) -> None:
    windows = of(store)
    for steps in (8, 3, 8, 20):
        clip = windows(4, steps, seeded(steps))
        for (_, first), x in zip(where(clip), clip.x, strict=True):
            assert torch.equal((x[:, 1, 2, 3] * 255).round().long(), torch.arange(first, first + steps))


def test_memory_that_does_not_fit_a_window_is_refused(store: Store) -> None:
    for memory in (np.empty((7, 4, 4, 3), np.uint8), np.empty((8, 4, 4, 3)), np.empty((16, 4, 4, 3), np.uint8)[::2]):
        with pytest.raises(InputError, match=r"expected contiguous uint8 of shape \(8, 4, 4, 3\)"):
            store.window(2, 0, 8, memory)

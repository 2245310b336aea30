"""Where the pictures come from."""

import hashlib
import os
import socket
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.worlds import images, photographs
from gtmsm.worlds.images import ImageSet, load_images

GREEN = (10, 200, 30)


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures, each of one grey of its own: 10, 20, ... 120."""
    for i in range(1, 13):
        Image.new("RGB", (40, 30), (10 * i,) * 3).save(tmp_path / f"{i:02}.png")
    return tmp_path


def split_of(loaded: ImageSet) -> tuple[Tensor, Tensor, Tensor]:
    return loaded.train, loaded.validation, loaded.test


# ---- built in


def test_the_builtin_views_are_thousands_and_of_the_size_asked_for():
    views = load_images("builtin", 32)
    assert views.train.shape == (3750, 3, 32, 32)
    assert views.test.shape == (500, 3, 32, 32)
    assert views.train.dtype == views.test.dtype == torch.uint8


def test_the_builtin_views_are_the_same_every_time_and_never_touch_the_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("network")

    first = load_images("builtin", 16)
    images._builtin.cache_clear()
    monkeypatch.setattr(socket, "socket", refuse)
    again = load_images("builtin", 16)
    assert again is not first and again.fingerprint == first.fingerprint
    assert again.train.shape == (3750, 3, 16, 16)


def test_training_and_test_views_come_from_different_photographs():
    assert not set(photographs.TRAIN_PHOTOGRAPHS) & set(photographs.TEST_PHOTOGRAPHS)


def test_hardly_two_builtin_views_are_the_same():
    train = load_images("builtin", 32).train
    assert len(train.flatten(1).unique(dim=0)) > 0.97 * len(train)


def test_no_image_is_in_two_parts():
    views = load_images("builtin", 32)
    train, validation, test = ({image.tobytes() for image in part.numpy()} for part in split_of(views))
    assert not train & validation
    assert not (train | validation) & test


def test_every_sixteenth_image_to_learn_from_is_for_validation(tmp_path):
    given = noise(50, 4, 4, 3)
    loaded = load_images(saved(tmp_path / "mine.npz", train=given, test=given), 4)
    assert np.array_equal(loaded.validation.permute(0, 2, 3, 1).numpy(), given[[15, 31, 47]])
    assert len(loaded.train) == 47
    assert np.array_equal(loaded.test.permute(0, 2, 3, 1).numpy(), given)


def test_neighbouring_cells_of_builtin_views_look_different():
    views = load_images("builtin", 32)
    for part in split_of(views):
        shifted = (part[..., 3:].float() - part[..., :-3].float()).abs().mean((1, 2, 3))
        assert shifted.min() > 2
        assert shifted.median() > 15


def test_builtin_views_come_in_other_sizes():
    assert load_images("builtin", 36).train.shape == (3750, 3, 36, 36)


def test_builtin_views_larger_than_the_photographs_are_refused():
    with pytest.raises(InputError, match="size is 129; the built-in photographs are sharp up to 128"):
        load_images("builtin", 129)


def test_a_missing_photograph_is_named(monkeypatch):
    monkeypatch.setattr(photographs, "TRAIN_PHOTOGRAPHS", ("unicorn.png",))
    images._builtin.cache_clear()
    with pytest.raises(InputError, match="scikit-image has no unicorn.png; pip install"):
        load_images("builtin", 16)


# ---- a .npz


def test_a_npz_of_the_right_size_is_taken_as_it_is(tmp_path):
    train, test = noise(5, 32, 32, 3), noise(2, 32, 32, 3)
    loaded = load_images(saved(tmp_path / "mine.npz", train=train, test=test, ids=np.arange(5)), 32)
    assert np.array_equal(loaded.train.permute(0, 2, 3, 1).numpy(), train[:4])
    assert np.array_equal(loaded.validation.permute(0, 2, 3, 1).numpy(), train[4:])
    assert np.array_equal(loaded.test.permute(0, 2, 3, 1).numpy(), test)
    assert loaded.name == "mine.npz"


def test_the_fingerprint_is_the_hash_of_the_pixels(tmp_path):
    train, test = noise(5, 16, 16, 3), noise(2, 16, 16, 3)
    loaded = load_images(saved(tmp_path / "mine.npz", train=train, test=test), 16)
    pixels = train.transpose(0, 3, 1, 2).tobytes() + test.transpose(0, 3, 1, 2).tobytes()
    assert loaded.fingerprint == hashlib.sha256(pixels).hexdigest()


def test_a_npz_of_another_size_is_resized_without_aliasing(tmp_path):
    stripes = np.zeros((3, 64, 64, 3), np.uint8)
    stripes[:, :, ::2] = 255
    loaded = load_images(saved(tmp_path / "stripes.npz", train=stripes, test=stripes), 16)
    assert loaded.train.shape == (2, 3, 16, 16)
    assert (loaded.train.float() - 127.5).abs().max() < 10


def test_a_npz_of_oblong_images_keeps_their_central_square(tmp_path):
    oblong = noise(3, 20, 32, 3)
    loaded = load_images(saved(tmp_path / "oblong.npz", train=oblong, test=oblong), 20)
    assert np.array_equal(loaded.train.permute(0, 2, 3, 1).numpy(), oblong[:2, :, 6:26])


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"pictures": noise(3, 8, 8, 3)}, "holds pictures; expected the keys train and test"),
        ({"train": noise(3, 8, 8, 3)}, "holds train; expected the keys train and test"),
        (
            {"train": noise(3, 8, 8, 3) / 255, "test": noise(3, 8, 8, 3)},
            r"train is float64 of shape \(3, 8, 8, 3\)",
        ),
        (
            {"train": noise(3, 8, 8, 3), "test": noise(3, 8, 8)},
            r"test is uint8 of shape \(3, 8, 8\); .*\(N, H, W, 3\)",
        ),
        ({"train": noise(3, 3, 8, 8), "test": noise(3, 8, 8, 3)}, r"train is uint8 of shape \(3, 3, 8, 8\)"),
        ({"train": noise(3, 0, 8, 3), "test": noise(3, 8, 8, 3)}, r"train is uint8 of shape \(3, 0, 8, 3\)"),
        (
            {"train": noise(1, 8, 8, 3), "test": noise(3, 8, 8, 3)},
            "gives 1 training and 3 test.*at least 2 and 1",
        ),
        (
            {"train": noise(3, 8, 8, 3), "test": noise(0, 8, 8, 3)},
            "gives 3 training and 0 test.*at least 2 and 1",
        ),
        ({"train": np.array([{}]), "test": noise(3, 8, 8, 3)}, "not a readable .npz of plain arrays"),
    ],
)
def test_a_npz_of_something_else_is_refused_by_name(tmp_path, arrays, complaint):
    path = saved(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError, match=complaint) as refusal:
        load_images(path, 8)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kept", [0, 1, 10, 500, 4000])
def test_a_truncated_npz_is_refused(tmp_path, kept):
    path = saved(tmp_path / "mine.npz", train=noise(5, 16, 16, 3), test=noise(2, 16, 16, 3))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="mine.npz: not a readable .npz"):
        load_images(path, 16)


def test_a_npz_with_a_flipped_bit_is_refused(tmp_path):
    path = saved(tmp_path / "mine.npz", train=noise(5, 16, 16, 3), test=noise(2, 16, 16, 3))
    damaged = bytearray(path.read_bytes())
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="mine.npz: not a readable .npz"):
        load_images(path, 16)


def test_a_text_file_renamed_to_npz_is_refused(tmp_path):
    path = tmp_path / "notes.npz"
    path.write_text("these are not the arrays you are looking for")
    with pytest.raises(InputError, match="notes.npz: not a readable .npz"):
        load_images(path, 16)


def test_a_npy_file_is_refused(tmp_path):
    path = tmp_path / "one.npy"
    np.save(path, noise(3, 8, 8, 3))
    with pytest.raises(InputError, match="one.npy: .*train=..., test=..."):
        load_images(path, 8)


def test_a_path_that_does_not_exist_is_refused_with_the_choices():
    with pytest.raises(InputError, match='images "no/such": no such file or folder; give "builtin", a .npz'):
        load_images("no/such", 32)


def test_a_size_without_pixels_is_refused():
    with pytest.raises(InputError, match="size is 0"):
        load_images("builtin", 0)


# ---- a folder


def test_every_tenth_picture_of_a_folder_is_held_out(folder):
    loaded = load_images(folder, 8)
    assert loaded.test[:, 0, 0, 0].tolist() == [100]
    assert loaded.train[:, 0, 0, 0].tolist() == [10, 20, 30, 40, 50, 60, 70, 80, 90, 110]
    assert loaded.validation[:, 0, 0, 0].tolist() == [120]


def test_of_three_pictures_each_part_has_one(tmp_path):
    for name in "abc":
        Image.new("RGB", (8, 8), GREEN).save(tmp_path / f"{name}.JPG")
    loaded = load_images(tmp_path, 8)
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (1, 1, 1)


def test_pictures_are_cropped_to_their_central_square(folder):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(folder / "00.png")
    assert load_images(folder, 10).train[0].min() == 255


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_pictures_of_every_mode_become_colours(folder, mode):
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new("RGB", (20, 20), "white").convert(mode).save(folder / f"00.{suffix}")
    assert load_images(folder, 8).train[0].min() >= 250


def test_sixteen_bit_greys_are_scaled_not_cut_off(folder):
    Image.fromarray(np.full((20, 20), 257 * 100, np.uint16)).save(folder / "00.png")
    assert (load_images(folder, 8).train[0] == 100).all()


def test_what_is_transparent_becomes_white(folder):
    Image.new("RGBA", (20, 20), (*GREEN, 0)).save(folder / "00.png")
    assert (load_images(folder, 8).train[0] == 255).all()


def test_colours_keep_their_order(folder):
    Image.new("RGB", (20, 20), GREEN).save(folder / "00.png")
    assert load_images(folder, 8).train[0, :, 4, 4].tolist() == list(GREEN)


def test_other_files_in_a_folder_are_passed_over(folder):
    (folder / "notes.txt").write_text("hello")
    (folder / "._01.png").write_text("what a Mac leaves behind")
    assert len(load_images(folder, 8).train) == 10


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="gives 0 training and 0 test images; .*put 3 or more .png"):
        load_images(tmp_path, 8)


def test_a_folder_with_one_picture_is_refused(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    with pytest.raises(InputError, match="gives 0 training and 1 test images; at least 2 and 1 are needed"):
        load_images(tmp_path, 8)


@pytest.mark.parametrize("kept", [0, 20, 60])
def test_a_damaged_picture_is_named(folder, kept):
    path = folder / "05.png"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="05.png: cannot be read as a PNG or JPEG"):
        load_images(folder, 8)


def eps(path):
    """A program in PostScript, under the name of a picture."""
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


def bitmap(path):
    Image.new("RGB", (8, 8)).save(path, "BMP")


def huge(path):
    Image.new("1", (7_072, 7_072)).save(path, "PNG")


def monstrous(path):
    Image.new("1", (2, 2)).save(path, "PNG")
    header = b"IHDR" + (10**6).to_bytes(4, "big") * 2 + b"\1\0\0\0\0"
    content = path.read_bytes()
    path.write_bytes(content[:12] + header + zlib.crc32(header).to_bytes(4, "big") + content[33:])


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (eps, "cannot be read as a PNG or JPEG picture"),
        (bitmap, "cannot be read as a PNG or JPEG picture"),
        (huge, "7072x7072 is more than 50,000,000 pixels; make the picture smaller"),
        (monstrous, "exceeds limit of"),
        (os.mkfifo, "a folder, a pipe or a device; give an ordinary file"),
        (Path.mkdir, "a folder, a pipe or a device; give an ordinary file"),
    ],
)
def test_what_is_no_picture_is_refused_without_being_drawn(folder, make, complaint, monkeypatch):
    (folder / "05.png").unlink()
    make(folder / "05.png")
    monkeypatch.setattr(subprocess, "Popen", lambda *any, **named: pytest.fail("another program was started"))
    with pytest.raises(InputError, match="05.png: ") as refusal:
        load_images(folder, 8)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_images_that_are_a_pipe_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "mine.npz")
    with pytest.raises(InputError, match="mine.npz: a folder, a pipe or a device"):
        load_images(tmp_path / "mine.npz", 8)


def test_a_single_picture_is_refused_with_advice(folder):
    with pytest.raises(InputError, match="01.png: a single picture; give the folder"):
        load_images(folder / "01.png", 8)

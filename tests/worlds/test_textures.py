"""Textures: both banks are soft, seamless, and always the same; who lacks Lab's is told once."""

import sys
from importlib.util import find_spec

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.worlds import textures
from gtmsm.worlds.textures import TINTS, load_textures

needs_labmaze = pytest.mark.skipif(find_spec("labmaze") is None, reason="Lab's textures come with labmaze")
SOURCES = ["procedural", pytest.param("lab", marks=needs_labmaze)]


@pytest.fixture
def without_labmaze(monkeypatch):
    monkeypatch.setitem(sys.modules, "labmaze", None)
    textures._say_once.cache_clear()


@pytest.fixture
def with_broken_labmaze(monkeypatch, tmp_path):
    """It is found, but what it needs of its own is not."""
    (tmp_path / "labmaze").mkdir()
    (tmp_path / "labmaze" / "__init__.py").write_text("raise ImportError('libmaze.so is missing\\nand more')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "labmaze"]:
        monkeypatch.delitem(sys.modules, name)
    textures._say_once.cache_clear()


@pytest.mark.parametrize("source", SOURCES)
def test_every_texture_is_of_a_wall_a_floor_or_a_ceiling(source):
    found = load_textures(source)
    assert found.name == source
    assert found.bank.shape[1:] == (32, 32, 3) and found.bank.dtype == torch.uint8
    everything = torch.cat([found.walls, found.floors, found.ceilings])
    assert torch.equal(everything.sort().values, torch.arange(len(found.bank)))
    assert len(found.walls) == 128 and len(found.floors) == 112 and len(found.ceilings) == 28


@pytest.mark.parametrize("source", SOURCES)
def test_no_two_textures_are_the_same(source):
    flat = load_textures(source).bank.flatten(1).float()
    apart = torch.cdist(flat, flat) + 1e9 * torch.eye(len(flat))
    assert apart.min() > 30  # half a grey level in every texel


@pytest.mark.parametrize("source", SOURCES)
def test_textures_are_soft(source):
    bank = load_textures(source).bank.float() / 255
    contrast = bank.std((1, 2)).mean()
    assert 0.02 < contrast < 0.06
    assert 0.3 < bank.mean() < 0.7


@pytest.mark.parametrize("source", SOURCES)
def test_ceilings_are_lighter_than_floors(source):
    found = load_textures(source)
    assert found.bank[found.ceilings].float().mean() > found.bank[found.floors].float().mean() + 40


def test_drawn_textures_have_no_seam():
    """The step over the edge is no larger than the largest inside."""
    bank = load_textures("procedural").bank.float()
    for along in (1, 2):
        steps = (bank - bank.roll(1, along)).abs().mean((3 - along, 3))
        assert (steps[:, 0] <= steps[:, 1:].amax(1) * 1.6 + 2).all()


@pytest.mark.parametrize("source", SOURCES)
def test_variants_are_the_same_pattern_in_another_colour(source):
    found = load_textures(source)
    texture, variant = (found.bank[found.walls[i]].float() for i in (0, TINTS - 1))
    for channel in range(3):
        pair = torch.stack([texture[..., channel].flatten(), variant[..., channel].flatten()])
        assert torch.corrcoef(pair)[0, 1] > 0.9
    assert (texture.mean((0, 1)) - variant.mean((0, 1))).abs().max() > 5


def test_the_same_textures_every_time():
    first = load_textures("procedural")
    textures._procedural.cache_clear()
    again = load_textures("procedural")
    assert torch.equal(first.bank, again.bank) and first.fingerprint == again.fingerprint
    assert len(first.fingerprint) == 64


@needs_labmaze
def test_labs_textures_where_they_are_and_in_silence(capsys):
    assert load_textures("auto").name == "lab"
    assert capsys.readouterr() == ("", "")


def test_without_labs_textures_one_is_told_once(without_labmaze, capsys):
    assert load_textures("auto").name == "procedural"
    assert load_textures("auto").name == "procedural"
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and 'pip install "gtmsm[lab]"' in err


def test_asking_for_labs_textures_where_they_are_not_says_how_to_get_them(without_labmaze):
    with pytest.raises(InputError, match=r'pip install "gtmsm\[lab\]"'):
        load_textures("lab")


def test_a_broken_labmaze_is_as_none(with_broken_labmaze, capsys):
    assert load_textures("auto").name == "procedural"
    assert capsys.readouterr().err.count("\n") == 1


def test_asking_for_labs_textures_of_a_broken_labmaze_says_in_a_line_what_is_wrong(with_broken_labmaze):
    with pytest.raises(InputError) as refusal:
        load_textures("lab")
    assert str(refusal.value) == (
        'textures "lab" needs labmaze, which cannot be imported (libmaze.so is missing); '
        'run: pip install "gtmsm[lab]", or choose "procedural"'
    )

"""Configs: what they refuse, and how they come back from a file."""

import math
from typing import Literal

import pytest

from gtmsm.config import as_plain, changed, config, read_config, require, require_seed
from gtmsm.errors import InputError
from gtmsm.experiments import Experiment
from gtmsm.presets import PRESETS


@config
class Shoe:
    size: float = 42.0
    colour: Literal["red", "black"] = "red"

    def __post_init__(self) -> None:
        require(self.size > 0, f"size is {self.size}; a shoe has one")


@config
class Pair:
    left: Shoe = Shoe()
    right: Shoe = Shoe()
    holes: tuple[int, ...] = (5, 5)


def test_a_config_does_not_change():
    with pytest.raises(AttributeError):
        Shoe().size = 43.0  # type: ignore[misc]


def test_a_config_is_made_by_name_only():
    with pytest.raises(TypeError):
        Shoe(43.0)  # type: ignore[misc]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_config_holds_a_number_that_is_not_finite(number: float):
    @config
    class Free:
        weight: float = 1.0

    with pytest.raises(InputError, match=f"weight is {number}; give a finite number"):
        Free(weight=number)


@pytest.mark.parametrize(
    ("colour", "hint"), [("blak", 'did you mean "black"?'), ("green", "choose from red, black"), (None, "choose from")]
)
def test_a_word_that_is_no_choice_is_refused(colour: str, hint: str):
    with pytest.raises(InputError) as refused:
        Shoe(colour=colour)  # type: ignore[arg-type]
    assert str(refused.value).startswith(f'colour is "{colour}"; {hint}')


@pytest.mark.parametrize("holes", [(5, 10**9), (-(10**9),), (10**5_000,)])
def test_no_config_holds_a_count_that_cannot_be_meant(holes: tuple[int, ...]):
    with pytest.raises(InputError, match="holes is .*; no such setting is 1,000,000,000 or more") as refusal:
        Pair(holes=holes)
    assert len(str(refusal.value)) < 120


def test_what_is_refused_is_never_quoted_whole():
    with pytest.raises(InputError) as refusal:
        read_config(Pair, {"left": {"size": ["x" * 10_000] * 1_000}}, "here")
    assert len(str(refusal.value)) < 200
    assert len(str(InputError("x" * 10_000))) == 999


def test_the_own_check_of_a_config_speaks_first():
    with pytest.raises(InputError, match="size is -inf; a shoe has one"):
        Shoe(size=-math.inf)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_comes_back_from_plain_data_unchanged(preset: str):
    experiment = PRESETS[preset][1]
    assert read_config(type(experiment), as_plain(experiment), "here") == experiment


def test_plain_data_is_plain():
    assert as_plain(Pair()) == {
        "left": {"size": 42.0, "colour": "red"},
        "right": {"size": 42.0, "colour": "red"},
        "holes": [5, 5],
    }


def test_what_is_not_given_has_its_default():
    assert read_config(Pair, {"left": {"size": 40.0}}, "here") == Pair(left=Shoe(size=40.0))


@pytest.mark.parametrize(
    ("plain", "complaint"),
    [
        ({"lefft": {}}, 'here: unknown setting "lefft"; did you mean "left"?'),
        ({"left": {"sise": 3}}, 'here: unknown setting "left.sise"; did you mean "size"?'),
        ({"left": {"xyz": 3}}, 'here: unknown setting "left.xyz"; choose from size, colour'),
        ({"right": {"size": "big"}}, "here: right.size is 'big'; input should be a valid number"),
        ({"right": {"size": -1}}, "here: size is -1.0; a shoe has one"),
        ({"right": {"colour": "blue"}}, "here: right.colour is 'blue'; input should be 'red' or 'black'"),
        ({"left": {"size": math.nan}}, "here: size is nan"),
        ({"holes": [5, "x"]}, "here: holes.1 is 'x'"),
        ({"left": 3}, "here: left is 3"),
        ({1: 2}, 'here: unknown setting "1"; choose from'),
        ({"left": {1: 2}}, "here: left.1 is 1; keys should be strings"),
        (3, "here: expected settings by name, found 3"),
        (None, "here: expected settings by name, found None"),
    ],
)
def test_a_wrong_setting_is_named_with_its_path(plain: object, complaint: str):
    with pytest.raises(InputError) as refusal:
        read_config(Pair, plain, "here")  # type: ignore[arg-type]
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_misspelt_setting_deep_inside_an_experiment_is_told_its_right_name():
    plain = {"training": {"optimiser": {"learning_rat": 1.0}}}
    with pytest.raises(InputError, match='"training.optimiser.learning_rat"; did you mean "learning_rate"?'):
        read_config(Experiment, plain, "here")


@pytest.mark.parametrize("size", ["42", None, True, 1j, [42]])
def test_a_setting_of_another_type_is_refused(size):
    with pytest.raises(InputError, match="size is .*; give a number$"):
        Shoe(size=size)


def test_a_part_of_another_type_is_refused():
    with pytest.raises(InputError, match="left is None; give a Shoe$"):
        Pair(left=None)


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_that_no_generator_takes_is_refused(seed: int):
    with pytest.raises(InputError, match=f"seed is {seed}; give a whole number from 0"):
        require_seed(seed)


def test_changes_by_dotted_names_leave_the_rest_as_it_is():
    pair = Pair(holes=(6, 6), left=Shoe(colour="black"))
    other = changed(pair, {"left.size": 40.0, "right": {"size": 41.0}})
    assert other == Pair(holes=(6, 6), left=Shoe(size=40.0, colour="black"), right=Shoe(size=41.0))


def test_changes_of_a_class_begin_with_its_defaults():
    assert changed(Pair, {"left.size": 40.0}) == Pair(left=Shoe(size=40.0))


def test_a_change_that_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="size is -1"):
        changed(Pair, {"left.size": -1.0})
    with pytest.raises(TypeError):
        changed(Pair, {"left.sise": 1.0})

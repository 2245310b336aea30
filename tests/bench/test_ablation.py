"""The ablation script: which operators are switched off, and what its table says."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gtmsm.bench.sizes import ON_CPU
from gtmsm.kernels.operator import OPERATORS
from gtmsm.kernels.search.nearest import nearest_k

CPU = torch.device("cpu")
TINY = replace(ON_CPU, most_clips=(1, 1), pool=2, places=2, imagined=(1, 2), drawn=4, remembered=(100,))


@pytest.fixture
def ablation():
    path = Path(__file__).parents[2] / "benchmarks" / "ablation.py"
    spec = importlib.util.spec_from_file_location("ablation", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROUNDS_ON_CPU = 1
    return module


def test_every_operator_is_loaded(ablation):
    ablation.load_operators()
    assert {"crops", "clamped_walk", "raycast"} <= set(OPERATORS)


def test_an_update_is_timed_with_and_without_each_operator_that_it_uses(ablation, capsys):
    found = ablation.ablate("image-walk", TINY, CPU, budget=1e-6)
    assert {"none", "all", "crops", "clamped_walk"} <= set(found)
    assert "raycast" not in found
    assert min(found.values()) > 0


@pytest.mark.parametrize("name", ["raycast", "long-memory", "imagine"])
def test_what_users_wait_for_is_timed(ablation, name, capsys):
    assert {"none", "all"} <= set(ablation.ablate(name, TINY, CPU, budget=1e-6))


def test_operators_are_switched_on_again(ablation):
    with pytest.raises(RuntimeError), ablation.switched_off(nearest_k):
        assert nearest_k.fast("cpu") is None
        raise RuntimeError
    assert nearest_k.fast("cpu") is not None


def test_the_table_has_a_row_for_each_operator_and_a_dash_where_it_is_not_used(ablation):
    found = {"walk": {"none": 2.0, "scan": 3.0, "all": 4.0}, "imagine": {"none": 1.0, "all": 1.5}}
    lines = ablation.as_markdown(found).splitlines()
    assert lines[0] == "| plain instead | walk, ms | imagine, ms |"
    assert lines[3] == "| scan | 3 (+50%) | – |"
    assert lines[4] == "| all | 4 (+100%) | 1.5 (+50%) |"

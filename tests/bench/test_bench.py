"""`gtmsm bench`: what it measures, what it shows, and what it refuses."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console, RenderableType
from torch import nn

from gtmsm.bench import ENTRIES, Report, bench, profile_table, sizes, speeds_table
from gtmsm.bench.clock import Ceilings, Share, measure_ceilings, short, time_calls, where_time_goes
from gtmsm.bench.measure import Row
from gtmsm.bench.sizes import LARGEST, ON_CPU, ON_GPU, Sizes, sizes_for
from gtmsm.bench.tables import digits, duration, scaled
from gtmsm.bench.tasks import BY_DEFAULT, UPDATE_GOALS, Goal, count_flops
from gtmsm.errors import InputError
from gtmsm.kernels.walks.crops import crops
from gtmsm.presets import PRESETS

CPU = torch.device("cpu")
TINY = Sizes(
    seconds=0.01, copied=1 << 12, matmul=16, most_clips=(2, 1), learned=0, pool=2, places=2, rollouts=(4, 8),
    imagined=(2, 4), nearest=(2, 3, 50), drawn=4, rays=1, remembered=(100, 200),
)  # fmt: skip
SMALL = [name for name in BY_DEFAULT if name not in ("walk", "walk-strong")]

ROW = Row(
    name="nearest", work="nearest 4", size="32 × 150 of 100,000, 4-D", seconds=2e-3, repeats=200, units=4_800,
    unit="queries", rate=2.4e6, reference="torch.cdist + topk", reference_seconds=1e-2,
    goal=Goal("times the reference", 8.0),
)  # fmt: skip
UPDATE = Row(
    name="image-walk", work="update, image-walk", size="64 × (256 + 32) steps", seconds=3.1e-4, repeats=200, units=1,
    unit="updates", rate=3_226.0, flops=5_760_000_000, precision="float32", floor=1e-5,
    goal=Goal("milliseconds", 0.45),
)  # fmt: skip
CEILINGS = Ceilings(4.1e12, {"float32": 5e13, "tf32": 4e14, "bfloat16": 7e14})
REPORT = Report("NVIDIA H200", "2.11.0", "0.1.0", CEILINGS, [UPDATE, ROW])


def printed(*parts: RenderableType, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(*parts)
    return console.file.getvalue()


# ---- clocks and ceilings


def test_a_call_is_repeated_until_the_time_is_up():
    calls = []
    seconds = time_calls(lambda: calls.append(1), CPU, budget=1e-4)
    assert len(calls) >= len(seconds) >= 3


def test_a_cpu_has_a_bandwidth_and_one_precision():
    ceilings = measure_ceilings(CPU, 1 << 12, 16, 0.01)
    assert ceilings.bandwidth > 0
    assert list(ceilings.flops) == ["float32"]


def test_sizes_follow_the_device_and_large_adds_the_longest_memory():
    assert sizes_for(CPU) == ON_CPU
    assert sizes_for(torch.device("cuda")) == ON_GPU
    assert sizes_for(CPU, large=True).remembered[-1] == LARGEST


# ---- counting


def test_a_linear_layer_takes_two_flops_for_each_weight_and_row():
    layer, x = nn.Linear(3, 5), torch.ones(7, 3)
    assert count_flops(lambda: layer(x)) == 2 * 7 * 3 * 5


def test_its_gradients_take_twice_as_many_again():
    layer, x = nn.Linear(3, 5), torch.ones(7, 3, requires_grad=True)
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 7 * 3 * 5


def test_attention_is_counted_as_its_two_products():
    q, k, v = (torch.ones(1, 2, n, 8) for n in (3, 5, 5))
    flops = count_flops(lambda: nn.functional.scaled_dot_product_attention(q, k, v))
    assert flops == 2 * (2 * 3 * 5 * 8) + 2 * (2 * 3 * 5 * 8)


def test_flops_are_counted_with_readable_operators(monkeypatch: pytest.MonkeyPatch):
    used = []
    images, image = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, dtype=torch.long)
    corner = torch.zeros(1, 9, 2, dtype=torch.long)
    monkeypatch.setattr(crops, "readable", lambda *args, was=crops.readable: used.append(1) or was(*args))
    count_flops(lambda: crops(images, image, corner, 2, 1, 0))
    assert used


# ---- what is measured


@pytest.mark.parametrize("name", SMALL)
def test_every_entry_is_measured(name: str):
    report = bench([name], CPU, TINY)
    assert report.rows
    for row in report.rows:
        assert row.name == name
        assert min(row.seconds, row.rate) > 0
        assert (row.flops > 0) == (row.floor is not None)
        assert row.flops or name not in ("image-walk", "imagine")
        if name == "long-memory":
            assert [row.size for row in report.rows] == ["3 of 100, 4-D", "3 of 200, 4-D"]
        if row.flops:
            assert row.floor == pytest.approx(row.flops / report.ceilings.flops["float32"])


@pytest.mark.slow
def test_updates_in_rooms_are_measured_too():
    (row,) = bench(["rotate-small"], CPU, TINY).rows
    assert row.size.startswith("1 × (33 + ")
    assert row.flops > 1e8


def test_the_update_of_every_preset_can_be_timed_and_three_are_by_default():
    assert set(PRESETS) - {"own"} <= set(ENTRIES)  # which needs recordings
    assert [name for name in BY_DEFAULT if name in PRESETS] == ["image-walk", "walk", "walk-strong"]
    assert UPDATE_GOALS == {"image-walk": 0.45, "walk": 3.0, "walk-strong": 14.0}


def test_every_row_is_reported_as_soon_as_it_is_measured_in_an_order_of_its_own():
    known: list[list[str]] = []
    bench(["long-memory", "rollouts"], CPU, TINY, keep=lambda so_far: known.append([row.name for row in so_far.rows]))
    assert known == [["rollouts"], ["rollouts", "long-memory"], ["rollouts", "long-memory", "long-memory"]]


def test_progress_names_what_is_measured():
    heard: list[str] = []
    bench(["rollouts"], CPU, TINY, tell=heard.append)
    assert heard == ["the ceilings of this device", "rollouts"]


def test_an_unknown_name_is_refused_with_the_closest():
    with pytest.raises(InputError, match='no speed called "rolouts"; did you mean "rollouts"'):
        bench(["rolouts"], CPU, TINY)


def test_only_updates_can_be_profiled():
    with pytest.raises(InputError, match="--profile looks into updates, and rollouts has none; name one of image-walk"):
        bench(["rollouts"], CPU, TINY, profile=True)


# ---- where the time goes


def test_shares_are_largest_first_and_come_to_one():
    a = torch.ones(200, 200)
    shares = where_time_goes(lambda: (a @ a).exp().sum(), CPU, top=2)
    assert sum(share.share for share in shares) == pytest.approx(1)
    assert shares[0].seconds >= shares[1].seconds
    assert len(shares) == 3
    assert shares[-1].kernel == "all others"


def test_a_kernel_is_shown_without_name_spaces_and_arguments():
    kernel = "void at::native::(anonymous namespace)::elementwise<4, at::native::CUDAFunctor_add<float>>(int)"
    assert short(kernel) == "elementwise<4, CUDAFunctor_add<float>>"
    assert short("aten::mm") == "aten::mm"
    assert short("_forward") == "_forward"


# ---- what is shown


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (digits(0.1234), "0.12"), (digits(0.0234), "0.023"), (digits(12.34), "12.3"), (digits(1234.5), "1,234"),
        (scaled(1.5e12, "B/s"), "1.50 TB/s"), (scaled(2e6, "steps/s"), "2.00 M steps/s"), (scaled(57e6, ""), "57.0 M"),
        (duration(2.5), "2.50 s"), (duration(3.1e-4), "310 µs"), (duration(5e-9), "5.00 ns"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_a_unit(shown: str, text: str):
    assert shown == text


@pytest.mark.parametrize(("goals", "width"), [(False, 90), (True, 120)])
def test_the_table_has_one_line_for_each_row(goals: bool, width: int):
    lines = printed(speeds_table(REPORT, goals), width=width).splitlines()
    (update,) = (line for line in lines if line.startswith("update, image-walk"))
    assert "310 µs" in update
    assert "31.0" in update.split()
    (nearest,) = (line for line in lines if line.startswith("nearest 4  "))
    assert "2.00 ms" in nearest
    assert "2.40 M queries/s" in nearest


def test_the_table_names_the_device_and_its_best_rates():
    text = printed(speeds_table(REPORT))
    assert "device:   NVIDIA H200; gtmsm 0.1.0, torch 2.11.0" in text
    assert "ceilings: memory 4.10 TB/s; float32 50.0 TFLOP/s, tf32 400 TFLOP/s, bfloat16 700 TFLOP/s" in text


def test_a_reference_is_compared_with():
    text = " ".join(printed(speeds_table(REPORT)).split())
    assert "nearest 4, 32 × 150 of 100,000, 4-D: 5.00 times as fast as torch.cdist + topk" in text


def test_goals_are_shown_where_asked_for():
    lines = printed(speeds_table(REPORT, goals=True), width=130).splitlines()
    (update,) = (line for line in lines if line.startswith("update"))
    (nearest,) = (line for line in lines if line.startswith("nearest 4  "))
    assert "≤ 0.45 ms" in update and "not met" not in update and update.rstrip().endswith("met")
    assert "≥ 8.00 × reference" in nearest and nearest.rstrip().endswith("not met")
    assert "met" not in printed(speeds_table(REPORT))


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("rate", 2e6), True), (Goal("rate", 3e6), False), (Goal("milliseconds", 2.5), True),
        (Goal("milliseconds", 1.5), False), (Goal("times the reference", 5.0), True), (None, None),
    ],
)  # fmt: skip
def test_a_goal_is_a_bound_from_the_right_side(goal: Goal | None, met: bool | None):
    assert replace(ROW, goal=goal).met is met


def test_a_profile_shows_shares():
    text = printed(profile_table("walk", [Share("aten::mm", 12, 1e-3, 0.75), Share("all others", 3, 3e-4, 0.25)]))
    assert "an update of walk, by kernel" in text
    assert "75.0%" in text


def test_a_report_survives_json():
    plain = REPORT.as_plain()
    read = json.loads(json.dumps(plain))
    assert read == json.loads(json.dumps(plain, sort_keys=True))
    assert read["device"] == "NVIDIA H200"
    assert read["ceilings"]["flops"]["tf32"] == 4e14
    assert read["rows"][1]["reference_seconds"] == 1e-2
    assert (read["rows"][0]["goal_met"], read["rows"][1]["goal_met"]) == (True, False)
    assert read["rows"][1]["times_reference"] == pytest.approx(5)


# ---- the verb


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """As little of everything as there can be."""
    monkeypatch.setattr(sizes, "ON_CPU", TINY)
    monkeypatch.setenv("COLUMNS", "120")


def test_the_verb_prints_a_table_and_writes_what_it_holds(gtmsm, tiny, tmp_path: Path):
    file = tmp_path / "new" / "speeds.json"
    code, out, err = gtmsm("bench", "rollouts", "--device", "cpu", "--json", file, "--goals")
    assert (code, err) == (0, "")
    assert "pose rollouts" in out
    assert "≥ 200 M steps/s" in out
    written = json.loads(file.read_text())
    assert written.keys() == {"device", "torch", "gtmsm", "ceilings", "rows", "profiles"}
    (row,) = written["rows"]
    assert (row["name"], row["size"], row["units"]) == ("rollouts", "4 × 8 steps", 32)


def test_the_verb_writes_nothing_unless_told(gtmsm, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert gtmsm("bench", "rollouts", "--device", "cpu").code == 0
    assert not list(tmp_path.iterdir())


def test_the_verb_looks_into_updates(gtmsm, tiny):
    out = gtmsm("bench", "image-walk", "--device", "cpu", "--profile").out
    assert "an update of image-walk, by kernel" in out
    assert "aten::" in out


def test_the_help_names_everything_that_is_timed(gtmsm):
    out = gtmsm("bench", "--help").out
    assert all(name in out for name in BY_DEFAULT)


def test_the_verb_refuses_what_it_does_not_know(refused, tiny, tmp_path: Path):
    assert refused("bench", "nearst", "--device", "cpu") == 'there is no speed called "nearst"; did you mean "nearest"?'
    assert "unknown flag" in refused("bench", "--jsn", "x")
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused("bench", "rollouts", "--json", tmp_path / "file" / "speeds.json")

"""What to train on when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtmsm.errors import InputError
from gtmsm.model.recall import RecallConfig
from gtmsm.training.curriculum import CurriculumConfig, plan_stages

READING = RecallConfig()
SCHEDULES = st.builds(
    CurriculumConfig,
    tau=st.integers(1, 600),
    horizon=st.integers(1, 64),
    warm_up=st.integers(0, 300),
    grow=st.lists(st.integers(1, 300), max_size=5).map(tuple),
    read_all_stages=st.integers(0, 6),
)
READINGS = st.builds(RecallConfig, neighbours=st.integers(0, 12), delta=st.sampled_from([1e-5, 1e-4, 1e-2, 1.0]))


@settings(max_examples=150, deadline=None)
@given(schedule=SCHEDULES, reading=READINGS, updates=st.integers(1, 2_000))
def test_stages_cover_every_update_once(schedule, reading, updates):
    stages = plan_stages(schedule, reading, updates)
    assert [number for stage in stages for number in range(stage.begin, stage.end)] == list(range(updates))


@settings(max_examples=150, deadline=None)
@given(schedule=SCHEDULES, reading=READINGS, updates=st.integers(1, 2_000))
def test_no_stage_asks_for_more_neighbours_than_its_memory_holds(schedule, reading, updates):
    for stage in plan_stages(schedule, reading, updates):
        assert 0 <= stage.reading.neighbours <= stage.tau
        assert stage.reading.neighbours in (0, min(reading.neighbours, stage.tau))


@settings(max_examples=150, deadline=None)
@given(schedule=SCHEDULES, reading=READINGS, updates=st.integers(1, 2_000))
def test_memory_never_shrinks_and_never_exceeds_tau(schedule, reading, updates):
    taus = [stage.tau for stage in plan_stages(schedule, reading, updates) if stage.name != "warm up"]
    assert taus == sorted(taus)
    assert all(1 <= tau <= schedule.tau for tau in taus)


def test_the_papers_schedule_doubles_memory_up_to_tau():
    stages = plan_stages(CurriculumConfig(), READING, 50_000)
    assert [(stage.name, stage.begin, stage.end, stage.tau, stage.horizon) for stage in stages] == [
        ("warm up", 0, 1_000, 16, 16),
        ("grow 32", 1_000, 3_000, 32, 32),
        ("grow 64", 3_000, 4_500, 64, 32),
        ("grow 128", 4_500, 6_000, 128, 32),
        ("full 256", 6_000, 50_000, 256, 32),
    ]


def test_the_last_stage_reads_as_the_model_will():
    reading = RecallConfig(neighbours=7, delta=3e-4)
    assert plan_stages(CurriculumConfig(), reading, 50_000)[-1].reading == reading


def test_reading_starts_soft_and_gets_sharper():
    deltas = [stage.reading.delta for stage in plan_stages(CurriculumConfig(), READING, 50_000)]
    assert deltas == pytest.approx([1e-2, 1e-2, 1e-3, 1e-4, 1e-4])


def test_at_first_all_of_memory_is_read():
    neighbours = [stage.reading.neighbours for stage in plan_stages(CurriculumConfig(), READING, 50_000)]
    assert neighbours == [0, 0, 5, 5, 5]


def test_who_does_not_want_to_read_all_reads_k_from_the_start():
    stages = plan_stages(CurriculumConfig(read_all_stages=0), READING, 50_000)
    assert [stage.reading.neighbours for stage in stages] == [5] * 5


def test_no_stage_reads_more_sharply_than_the_model():
    soft = RecallConfig(delta=0.5)
    assert {stage.reading.delta for stage in plan_stages(CurriculumConfig(), soft, 50_000)} == {0.5}


def test_a_short_memory_caps_the_neighbours():
    stages = plan_stages(CurriculumConfig(tau=8, read_all_stages=0), RecallConfig(neighbours=5), 50_000)
    assert [(stage.tau, stage.reading.neighbours) for stage in stages] == [(1, 1), (1, 1), (2, 2), (4, 4), (8, 5)]


def test_the_distance_stays_the_models():
    by_kl = RecallConfig(distance="kl")
    assert all(stage.reading.distance == "kl" for stage in plan_stages(CurriculumConfig(), by_kl, 50_000))


def test_few_updates_end_in_the_middle_of_the_schedule():
    stages = plan_stages(CurriculumConfig(), READING, 1_700)
    assert [(stage.name, stage.end) for stage in stages] == [("warm up", 1_000), ("grow 32", 1_700)]


def test_without_warm_up_and_growth_there_is_only_the_full_horizon():
    (stage,) = plan_stages(CurriculumConfig(warm_up=0, grow=()), READING, 10)
    assert (stage.begin, stage.end, stage.tau, stage.steps) == (0, 10, 256, 288)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tau": 0}, "tau is 0; give at least 1 step to memorise"),
        ({"horizon": 0}, "horizon is 0; give at least 1 step to predict"),
        ({"warm_up": -1}, "warm_up is -1; give 0 or more updates"),
        ({"warm_up_tau": -1}, "warm_up_tau is -1; give steps, or 0 for tau / 16"),
        ({"tau": 33, "warm_up_tau": 34}, "warm_up_tau is 34, longer than tau = 33; give at most that"),
        ({"motion_rate": -1.0}, "motion_rate is -1.0; give 0 or more"),
        ({"wall_rate": 0.0}, "wall_rate is 0.0; give a positive one"),
        ({"landmark_rate": 0.0}, "landmark_rate is 0.0; give a positive one"),
        ({"read_all_stages": -1}, "read_all_stages is -1; give 0 or more"),
        ({"grow": (5, 0)}, r"grow is \(5, 0\); every stage needs at least 1 update"),
    ],
)
def test_a_schedule_nobody_can_walk_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        CurriculumConfig(**wrong)


def test_walls_are_not_learned_before_the_motion_is_known():
    stages = plan_stages(CurriculumConfig(wall_rate=2.0), READING, 50_000)
    assert [stage.wall_rate for stage in stages] == [0.0, 2.0, 2.0, 2.0, 2.0]


def test_the_motion_learns_at_its_rate_from_the_first_update_on():
    stages = plan_stages(CurriculumConfig(motion_rate=3.0), READING, 50_000)
    assert [stage.motion_rate for stage in stages] == [3.0] * 5


def test_landmarks_learn_as_soon_as_there_are_poses_to_learn_from():
    told, searching = (
        plan_stages(CurriculumConfig(landmark_rate=3.0, prospect=prospect), READING, 50_000)
        for prospect in (False, True)
    )
    assert {stage.landmark_rate for stage in told} == {3.0}
    assert [stage.landmark_rate for stage in searching] == [0.0, 3.0, 3.0, 3.0, 3.0]


def test_the_warm_up_may_memorise_as_many_steps_as_asked():
    first = plan_stages(CurriculumConfig(tau=33, horizon=16, warm_up_tau=20), READING, 50_000)[0]
    assert (first.name, first.tau, first.horizon) == ("warm up", 20, 16)


def test_the_warm_up_of_a_short_memory_predicts_no_more_than_it_memorises():
    first = plan_stages(CurriculumConfig(tau=33, horizon=16, warm_up_tau=5), READING, 50_000)[0]
    assert (first.tau, first.horizon, first.steps) == (5, 5, 10)


def test_as_many_stages_as_asked_read_all_of_memory():
    stages = plan_stages(CurriculumConfig(read_all_stages=2), READING, 50_000)
    assert [stage.reading.neighbours for stage in stages] == [0, 0, 0, 5, 5]

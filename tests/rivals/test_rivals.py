"""What all rivals have in common."""

import json
import struct
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gtmsm.errors import InputError
from gtmsm.model.gtmsm import WorldModel
from gtmsm.rivals import ssm
from gtmsm.rivals.build import KINDS, build_rival, load_rival
from gtmsm.rivals.loss import RivalLoss
from gtmsm.rivals.rival import RivalConfig
from gtmsm.training.loss import ObjectiveConfig
from gtmsm.training.update import OptimiserConfig

TAU, HORIZON = 4, 4
FILES = ("checkpoint.safetensors", "weights.safetensors", "metrics.jsonl")
AT_ANY_LENGTH = OptimiserConfig(batch=4, anneal_updates=8)
every_kind = pytest.mark.parametrize("kind", KINDS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def predicted(rival, clip, tau=TAU, generator=None):
    """The prior of the steps after tau."""
    past, future = clip.split(tau)
    poses = (past.true_pose, future.true_pose) if rival.needs_poses else None
    return rival.predict(rival.vae.encode(past.x), past.a, future.a, poses, generator).prior


def loss_of(rival, clip, **objective):
    loss = RivalLoss(rival, ObjectiveConfig(**objective))
    return loss(clip.x, clip.a, clip.true_step, TAU, loss.reading, seeded(), None, None, clip.true_pose)


# ---- what may depend on what


@every_kind
def test_what_comes_later_in_a_plan_changes_nothing_before_it(kind, make, clip):
    rival, other = make(kind), clip.a.clone()
    other[:, -1] = other[:, -1].roll(1, -1)
    if rival.needs_poses:
        pytest.skip("its actions are its poses")
    changed = type(clip)(clip.x, other, clip.true_pose, clip.true_step)
    before, after = predicted(rival, clip), predicted(rival, changed)
    torch.testing.assert_close(after.mean[:, :-1], before.mean[:, :-1])
    assert not torch.equal(after.mean[:, -1], before.mean[:, -1])


@every_kind
def test_what_was_memorised_counts_at_every_later_step(kind, make, clip):
    rival, seen = make(kind), clip.x.clone().requires_grad_()
    prior = predicted(rival, type(clip)(seen, clip.a, clip.true_pose, clip.true_step))
    for step in range(HORIZON):
        (gradient,) = torch.autograd.grad(prior.mean[:, step].sum(), seen, retain_graph=True)
        assert gradient[:, :TAU].abs().amax() > 0


@every_kind
def test_in_the_loss_no_prior_looks_at_the_frames_that_it_predicts(kind, make, clip):
    rival, given = make(kind), []
    predict = rival.predict

    def noted(*arguments):
        given.append(predict(*arguments))
        return given[0]

    rival.predict = noted
    x = clip.x.clone().requires_grad_()
    loss_of(rival, type(clip)(x, clip.a, clip.true_pose, clip.true_step))
    (gradient,) = torch.autograd.grad(given[0].prior.mean.sum() + given[0].prior.log_var.sum(), x)
    assert gradient[:, :TAU].abs().amax() > 0
    assert gradient[:, TAU:].abs().amax() == 0


def test_only_rivals_that_say_so_are_given_true_poses(make, clip):
    past, future = clip.split(TAU)
    poses = past.true_pose, future.true_pose
    with pytest.raises(InputError, match="no such privilege"):
        make("gru").forecast(past.x, past.a, future.a, poses)
    with pytest.raises(InputError, match="needs true poses"):
        make("context-poses").forecast(past.x, past.a, future.a)
    assert {kind for kind, rival in KINDS.items() if rival.needs_poses} == {"context-poses"}
    assert {kind for kind, rival in KINDS.items() if rival.privileges} == {"context-poses", "grid-map"}


# ---- the loss


@every_kind
def test_every_weight_that_learns_has_a_gradient(kind, make, clip):
    rival = make(kind)
    loss, logs, _ = loss_of(rival, clip, foresight=1.0)
    loss.backward()
    assert logs.keys() == set(RivalLoss(rival, ObjectiveConfig(foresight=1.0)).names)
    assert [name for name, weight in rival.named_parameters() if weight.requires_grad and weight.grad is None] == []
    held = {name for name, weight in rival.named_parameters() if not weight.requires_grad}
    assert held == ({"motion.M"} if kind == "grid-map" else set())


@every_kind
def test_an_update_never_looks_at_numbers_on_the_host(kind, make, clip):
    # A number that is asked for is an error where there are none: what a CUDA graph would refuse, too.
    rival = make(kind)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        parts = [mode.from_tensor(part) for part in (clip.x, clip.a, clip.true_step, clip.true_pose)]
        loss = RivalLoss(rival, ObjectiveConfig(foresight=1.0, targets=2))
        value, *_ = loss(parts[0], parts[1], parts[2], TAU, loss.reading, seeded(), None, None, parts[3])
        assert value.shape == ()


def test_fewer_targets_give_the_same_bound_on_average(make, clip):
    rival = make("transformer")
    whole = loss_of(rival, clip)[1]["kl"]
    some = torch.stack([
        RivalLoss(rival, ObjectiveConfig(targets=2))(
            clip.x, clip.a, clip.true_step, TAU, None, seeded(seed), None, None, clip.true_pose
        )[1]["kl"]
        for seed in range(40)
    ])  # fmt: skip
    assert abs(some.mean() - whole) < 4 * some.std() / 40**0.5


# ---- sizes


@every_kind
def test_contexts_are_longer_at_test_than_in_training(kind, make):
    rival, generator = make(kind), seeded()
    x, a = torch.rand(1, 300, *rival.frame_shape, generator=generator), torch.rand(1, 600, 5, generator=generator)
    poses = torch.rand(1, 600, 2, generator=generator)
    told = (poses[:, :300], poses[:, 300:]) if rival.needs_poses else None
    frames = rival.forecast(x, a[:, :300], a[:, 300:], told)
    assert frames.shape == (1, 300, *rival.frame_shape) and bool(frames.isfinite().all())


def test_sizes_that_cannot_be_built_are_refused():
    with pytest.raises(InputError, match="width is 20; 4 heads need a multiple of 16"):
        RivalConfig(width=20)
    with pytest.raises(InputError, match="layers is 0"):
        RivalConfig(layers=0)
    with pytest.raises(InputError, match='kind is "lstm"'):
        RivalConfig(kind="lstm")


def test_a_grid_map_asks_for_a_motion_and_others_refuse_one(make, walking):
    rival = make("gru")
    sizes = rival.about.vae, rival.frame_shape, 5
    with pytest.raises(InputError, match="walks by the motion of a trained GTM-SM"):
        build_rival(RivalConfig(kind="grid-map"), *sizes)
    with pytest.raises(InputError, match="has no use for the motion"):
        build_rival(RivalConfig(kind="gru"), *sizes, borrowed=walking)


def test_a_missing_mambapy_is_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mambapy.mamba", None)
    with pytest.raises(InputError, match=r'pip install "gtmsm\[mamba\]"'):
        ssm.build_mamba(16, 1)


# ---- files


@every_kind
def test_a_rival_is_saved_and_loaded_to_the_bit(kind, make, clip, tmp_path):
    rival = make(kind)
    rival.save(tmp_path / "weights.safetensors")
    again = load_rival(tmp_path)
    assert again.about == rival.about and not again.training
    assert again.state_dict().keys() == rival.state_dict().keys()
    assert all(torch.equal(value, rival.state_dict()[name]) for name, value in again.state_dict().items())
    with torch.no_grad():
        assert torch.equal(predicted(again, clip).mean, predicted(rival, clip).mean)


def test_hostile_files_are_refused_in_one_line(make, walking, tmp_path):
    path = tmp_path / "weights.safetensors"
    walking.save(path)
    with pytest.raises(InputError, match="holds no weights of a rival"):
        load_rival(path)
    make("gru").save(path)
    with pytest.raises(InputError, match="holds no weights of a world model"):
        WorldModel.load(path)
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    for key, value, told in (("width", 4_096, "larger one than the file can fill"), ("kind", "lstm", "lstm")):
        about = json.loads(header["__metadata__"]["gtmsm"])
        about["rival"][key] = value
        odd = json.dumps(header | {"__metadata__": {"gtmsm": json.dumps(about)}}).encode()
        path.write_bytes(struct.pack("<Q", len(odd)) + odd + content[8 + size :])
        with pytest.raises(InputError, match=told):
            load_rival(path)
    path.write_bytes(content[:-100])
    with pytest.raises(InputError):
        load_rival(path)


# ---- the same again


@pytest.mark.slow
def test_a_training_is_resumed_exactly(train, tmp_path):
    often = {"save_every": 3, "log_every": 2, "watch_every": 4}
    for folder, updates in (("at once", 8), ("again", 8), ("in two", 5), ("in two", 8)):
        train("grid-map", tmp_path / folder, updates, **often | {"optimiser": AT_ANY_LENGTH})
    left = [(tmp_path / folder / name).read_bytes() for folder in ("at once", "again", "in two") for name in FILES]
    assert left[: len(FILES)] == left[len(FILES) : 2 * len(FILES)] == left[2 * len(FILES) :]


def test_what_is_watched_while_a_rival_trains_never_touches_the_test(setting, train, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("somebody walks in the test")

    for verb in ("reset", "walk", "look", "step"):
        monkeypatch.setattr(setting.test_world, verb, refuse)
    train("gru", tmp_path, 2, watch_every=1)
    assert "psnr" in (tmp_path / "metrics.jsonl").read_text()


def test_other_places_are_not_resumed(train, setting, tmp_path, monkeypatch):
    train("gru", tmp_path, 2)
    train("gru", tmp_path, 2)
    monkeypatch.setattr(setting, "places", replace(setting.places, sha256="of other images"))
    with pytest.raises(InputError, match="holds a rival of other settings or places"):
        train("gru", tmp_path, 2)


def test_other_settings_are_not_resumed(train, tmp_path):
    train("gru", tmp_path, 1)
    with pytest.raises(InputError, match="holds a rival of other settings"):
        train("transformer", tmp_path, 1)

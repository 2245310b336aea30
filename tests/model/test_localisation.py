"""Where was this seen? Matches are merged, and may all be wrong."""

import math

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.localisation import merge_matches
from gtmsm.model.memory import Memory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import Comparison, LandmarkConfig
from gtmsm.pose import space_of
from gtmsm.tensors import Gaussian

MATCHES = 4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def comparison(heading=False):
    return Comparison(LandmarkConfig(form="bayes", width=8), 4, space_of(3 if heading else 2))


def weighed(odds, poses, known=0.0, heading=False):
    odds, poses = torch.tensor([odds]), torch.tensor([poses])
    variance = torch.arange(1.0, 1.0 + odds.shape[1])[None, :, None].expand(-1, -1, 2 if heading else 1)
    entry = 10 + torch.arange(odds.shape[1])[None]
    return merge_matches(comparison(heading), odds, poses, variance, entry, torch.tensor([known]))


# ---- merging


@pytest.mark.parametrize("known", [-30.0, -1.0, 0.0, 2.0, 30.0])
def test_what_is_likely_and_what_is_unknown_add_up_to_one(known):
    generator = seeded()
    odds, pose = torch.randn(5, 7, generator=generator), 0.6 * torch.randn(5, 7, 2, generator=generator)
    entry = torch.arange(7).expand(5, 7)
    told = merge_matches(comparison(), odds, pose, torch.ones(5, 7, 1), entry, torch.full((5,), known))
    torch.testing.assert_close(told.weight.sum(1) + told.unknown, torch.ones(5), rtol=0, atol=1e-6)
    torch.testing.assert_close(told.known, torch.full((5,), known).sigmoid(), rtol=0, atol=1e-6)
    assert (told.weight >= 0).all()
    assert (told.weight.diff(dim=1) <= 0).all()


def test_matches_of_one_place_are_merged():
    told = weighed([0.0, 0.0, 0.5], [[3.0, 3.0], [3.1, 3.0], [0.0, 0.0]])
    share = torch.softmax(torch.tensor([0.0, 0.0, 0.5]), 0)
    assert told.weight[0].tolist() == pytest.approx([0.5 * (share[0] + share[1]).item(), 0.5 * share[2].item(), 0.0])
    assert told.pose[0, 0].tolist() == pytest.approx([3.0 + 0.1 / 3, 3.0])
    assert told.pose[0, 1].tolist() == [0.0, 0.0]


def test_a_merged_place_is_where_its_matches_say_each_by_how_precise_it_is():
    """Variances are 1, 2 and 3; the entry is that of the likeliest of the first two, which are one place."""
    told = weighed([0.0, 1.0, 0.2], [[3.0, 3.0], [3.3, 3.0], [9.0, 9.0]])
    assert told.pose[0, 0].tolist() == pytest.approx([(3.0 / 1 + 3.3 / 2) / (1 / 1 + 1 / 2), 3.0])
    assert told.entry[0].tolist()[:2] == [11, 12]
    assert told.variance[0, :2, 0].tolist() == pytest.approx([2 / (1 / 1 + 1 / 2), 3.0])


def test_headings_of_a_merged_place_are_averaged_by_the_shorter_way_round():
    told = weighed([1.0, 0.0], [[1.0, 1.0, math.pi - 0.03], [1.0, 1.0, 0.03 - math.pi]], heading=True)
    assert told.pose[0, 0].tolist() == pytest.approx([1.0, 1.0, math.pi - 0.03 + 0.06 / 3])


def test_headings_that_differ_by_a_full_turn_are_one_place_and_others_are_not():
    told = weighed([0.0, 0.0, 0.0], [[1.0, 1.0, 0.0], [1.0, 1.0, 2 * math.pi], [1.0, 1.0, 2.0]], heading=True)
    assert told.weight[0].tolist() == pytest.approx([0.5 * 2 / 3, 0.5 / 3, 0.0])


def test_a_single_match_has_all_the_weight():
    told = weighed([-5.0], [[1.0, 2.0]], known=1.0)
    assert told.weight[0].tolist() == pytest.approx([1 / (1 + math.exp(-1.0))])


# ---- localising


def model_with_exact_codes(monkeypatch, matches=MATCHES, kind="walled"):
    """Codes are the frames themselves, and nothing but exact likeness tells anything."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=8, code_size=12),
        motion=MotionConfig(kind=kind, noise=1e-2, hidden=8, fence=0.0, open_bias=50.0),
        recall=RecallConfig(neighbours=2, prior="query" if kind == "turning" else "mixture"),
        landmark=LandmarkConfig(form="bayes", width=8, matches=matches),
    )
    model = WorldModel(settings, (3, 2, 2), action_size=5)
    with torch.no_grad():
        model.landmarks.compare.net[-1].weight.zero_()
        model.landmarks.compare.net[-1].bias.zero_()
        if kind == "walled":
            model.motion.M.copy_(torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0, 0.0]]))
        else:
            model.motion.move.copy_(torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]))
            model.motion.turn.copy_(torch.tensor([0.0, 0.0, 0.5, -0.5, 0.0]))
    monkeypatch.setattr(
        model.vae, "encode", lambda x: Gaussian(x.flatten(-3), torch.full_like(x.flatten(-3), math.log(1e-4)))
    )
    return model.requires_grad_(False)


def walk(batch=2, steps=12, seed=0):
    frames = torch.rand(batch, steps, 3, 2, 2, generator=seeded(seed))
    choice = torch.randint(0, 5, (batch, steps), generator=seeded(seed + 1))
    return frames, torch.nn.functional.one_hot(choice, 5).float()


def spiral(batch=2):
    """Steps right, then up: no place is seen twice."""
    actions = torch.zeros(batch, 12, 5)
    actions[:, :6, 0] = actions[:, 6:, 2] = 1.0
    return actions


@pytest.mark.parametrize("kind", ["walled", "turning"])
def test_a_picture_seen_before_is_found_where_it_was_seen(monkeypatch, kind):
    model, (frames, _) = model_with_exact_codes(monkeypatch, kind=kind), walk()
    memory, _ = model.memorise(frames, spiral())
    pose = model.motion.pose_at(memory.place.mean)
    for t in (0, 5, 11):
        told = model.localise(memory, frames[:, [t]])
        assert told.entry[:, 0].tolist() == [t, t]
        torch.testing.assert_close(told.pose[:, 0], pose[:, t], rtol=0, atol=1e-5)
        assert (told.weight[:, 0] > told.weight[:, 1]).all()


def test_a_short_clip_is_found_with_its_actions_and_without(monkeypatch):
    model, (frames, _) = model_with_exact_codes(monkeypatch), walk()
    memory, _ = model.memorise(frames, spiral())
    for actions in (spiral()[:, 3:6], None):
        told = model.localise(memory, frames[:, 3:6], actions)
        assert told.entry[:, 0].tolist() == [5, 5]
        torch.testing.assert_close(told.weight.sum(1) + told.unknown, torch.ones(2), rtol=0, atol=1e-5)


def test_the_last_picture_of_a_clip_tells_two_places_that_look_alike_apart(monkeypatch):
    """Entries 2 and 9 look the same; what came just before tells which of them it is."""
    model, (frames, _) = model_with_exact_codes(monkeypatch), walk(batch=1)
    frames[:, 9] = frames[:, 2]
    memory, _ = model.memorise(frames, spiral(1))
    alone = model.localise(memory, frames[:, [2]])
    torch.testing.assert_close(alone.weight[:, 0], alone.weight[:, 1])
    for t in (2, 9):
        told = model.localise(memory, frames[:, t - 2 : t + 1], spiral(1)[:, t - 2 : t + 1])
        assert told.entry[0, 0] == t
        assert told.weight[0, 0] > 2 * told.weight[0, 1]


def test_every_clip_is_looked_for_in_its_own_memory(monkeypatch):
    model, (frames, _) = model_with_exact_codes(monkeypatch), walk()
    memory, _ = model.memorise(frames, spiral())
    told = model.localise(memory, torch.stack([frames[0, [3]], frames[1, [8]]]))
    assert told.entry[:, 0].tolist() == [3, 8]


# ---- refusals


def said_by(refused):
    message = str(refused.value)
    assert "\n" not in message
    return message


def no_entries(memory):
    return Memory(memory.place[:, :0], memory.code[:, :0], None, memory.variance[:, :0])


def test_an_empty_memory_is_refused(monkeypatch):
    model, (frames, actions) = model_with_exact_codes(monkeypatch), walk()
    memory, _ = model.memorise(frames, actions)
    with pytest.raises(InputError) as refused:
        model.localise(no_entries(memory), frames[:, :1])
    assert said_by(refused) == "this memory is empty; memorise a walk before you ask where something was seen"


def test_a_memory_of_fewer_entries_than_are_looked_up_is_refused(monkeypatch):
    model, (frames, actions) = model_with_exact_codes(monkeypatch), walk()
    memory, _ = model.memorise(frames[:, :3], actions[:, :3])
    with pytest.raises(InputError) as refused:
        model.localise(memory, frames[:, :1])
    expected = "this model looks up 4 entries (K') but memory holds 3; memorise at least 4 steps"
    assert said_by(refused) == expected


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (torch.zeros(2, 1, 3, 2, 3), "frames are torch.float32 of shape (2, 1, 3, 2, 3) on cpu; this model expects"),
        (torch.zeros(2, 3, 2, 2), "frames are torch.float32 of shape (2, 3, 2, 2) on cpu; this model expects"),
        (torch.zeros(3, 1, 3, 2, 2), "2 memories and 3 clips; give as many of each"),
        (torch.zeros(2, 0, 3, 2, 2), "there is nothing to localise: frames and actions have 0 steps; give at least 1"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(monkeypatch, shown, said):
    model, (frames, actions) = model_with_exact_codes(monkeypatch), walk()
    memory, _ = model.memorise(frames, actions)
    with pytest.raises(InputError) as refused:
        model.localise(memory, shown)
    assert said_by(refused).startswith(said)


def test_a_clip_with_more_actions_than_pictures_is_refused(monkeypatch):
    model, (frames, actions) = model_with_exact_codes(monkeypatch), walk()
    memory, _ = model.memorise(frames, actions)
    with pytest.raises(InputError, match=r"\(2, 2\) frames but \(2, 3\) actions"):
        model.localise(memory, frames[:, :2], actions[:, :3])


@pytest.mark.parametrize("verb", ["localise", "start anywhere"])
def test_a_model_without_landmarks_is_refused(verb):
    settings = WorldModelConfig(vae=FrameVAEConfig(width=8, code_size=4))
    model, (frames, actions) = WorldModel(settings, (3, 2, 2), 5), walk()
    memory, _ = model.memorise(frames, actions)
    with pytest.raises(InputError) as refused:
        model.localise(memory, frames[:, :1]) if verb == "localise" else model.anywhere(1)
    assert said_by(refused).startswith(f"to {verb} takes landmarks, and this model has none; train one with")


def test_a_memory_that_does_not_say_how_sure_it_is_is_refused(monkeypatch):
    model, (frames, actions) = model_with_exact_codes(monkeypatch), walk()
    memory, _ = model.memorise(frames, actions)
    with pytest.raises(InputError) as refused:
        model.localise(Memory(memory.place, memory.code), frames[:, :1])
    assert said_by(refused).startswith("this memory does not say how sure its poses are")

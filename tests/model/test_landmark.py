"""Knowing where you are from what you see: App. D, in both its forms."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from gtmsm.errors import InputError
from gtmsm.model import landmark
from gtmsm.model.closing import filter_with_closure
from gtmsm.model.following import known
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.landmark import Known, Landmarks
from gtmsm.model.landmark_filter import Surprise, fuse, step_divergence
from gtmsm.model.motion import MotionConfig, build_motion
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig, Lookup, Match
from gtmsm.model.slips import Slips
from gtmsm.pose import Plane
from gtmsm.tensors import Belief, Gaussian, gather

CODE, ACTIONS, STEPS = 4, 5, 14
NEVER = {"doubt": 1e9}
EAGER = {"doubt": -20.0}
"""So ready to believe that even a network that has learned nothing is heard."""


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def model_of(form="bayes", kind="walled", **landmark):
    """The same seed gives the same model, with landmarks or without: their networks come last."""
    torch.manual_seed(0)
    heading = kind not in ("free", "walled")
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=CODE),
        motion=MotionConfig(kind=kind, noise=0.05, hidden=8),
        recall=RecallConfig(neighbours=3, prior="query" if heading else "mixture"),
        landmark=LandmarkConfig(form=form, **{"width": 8, "matches": 3, **landmark}),
    )
    return WorldModel(settings, (3, 8, 8), ACTIONS).requires_grad_(False)


def walks(batch=2, steps=STEPS):
    return torch.rand(batch, steps, 3, 8, 8, generator=seeded(1)), torch.randn(
        batch, steps, ACTIONS, generator=seeded(2)
    )


def blinded(model):
    """The paper's networks, with beta = 0 whatever is seen."""
    model.landmarks.paper.beta[-1].weight.zero_()
    model.landmarks.paper.beta[-1].bias.fill_(-1e9)
    return model


def landmarks_of(form="bayes", kind="walled", **landmark):
    torch.manual_seed(0)
    motion = build_motion(MotionConfig(kind=kind, noise=0.3, hidden=8), ACTIONS).double()
    settings = LandmarkConfig(form=form, **{"width": 8, "matches": 3, **landmark})
    return Landmarks(settings, CODE, motion).double(), motion


def codes(batch=2, steps=6):
    return Gaussian(drawn(batch, steps, CODE, seed=3), 0.3 * drawn(batch, steps, CODE, seed=4))


# ---- nothing recognised


def test_who_believes_no_sight_walks_as_if_there_were_none_to_the_bit():
    (frames, actions), plain, blind = walks(), model_of("off"), model_of(**NEVER)
    assert torch.equal(blind.follow(frames, actions).mean, plain.follow(frames, actions).mean)
    (memory, here), (expected, there) = (model.memorise(frames, actions) for model in (blind, plain))
    assert torch.equal(memory.place.mean, expected.place.mean)
    assert torch.equal(memory.code.mean, expected.code.mean)
    assert torch.equal(here.mean, there.mean)


def test_who_has_nothing_to_look_up_walks_by_its_actions_to_the_bit():
    """The first step of all: no frame came before it."""
    (frames, actions), seeing, plain = walks(steps=1), model_of(**EAGER), model_of("off")
    assert torch.equal(seeing.follow(frames, actions).mean, plain.follow(frames, actions).mean)


@pytest.mark.parametrize("kind", ["free", "turning", "drifting", "gliding"])
def test_any_agent_that_believes_no_sight_walks_by_its_actions(kind):
    (frames, actions), plain = walks(), model_of("off", kind)
    followed = model_of("bayes", kind, **NEVER).follow(frames, actions).mean
    torch.testing.assert_close(followed, plain.follow(frames, actions).mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["free", "walled", "turning", "drifting"])
def test_the_papers_form_with_beta_zero_walks_by_its_actions(kind):
    (frames, actions), plain = walks(), model_of("off", kind)
    blind = blinded(model_of("paper", kind))
    tolerance = 1e-6 if kind in ("free", "walled") else 1e-5
    expected = plain.follow(frames, actions).mean
    torch.testing.assert_close(blind.follow(frames, actions).mean, expected, rtol=tolerance, atol=tolerance)
    memory, _ = blind.memorise(frames, actions)
    torch.testing.assert_close(
        memory.place.mean, plain.memorise(frames, actions)[0].place.mean, rtol=tolerance, atol=tolerance
    )


def test_the_papers_variance_of_a_blind_walk_grows_by_sigma_q_squared_a_step():
    landmarks, motion = landmarks_of("paper")
    with torch.no_grad():
        landmarks.paper.beta[-1].bias.fill_(-1e9)  # the other network says 0 before it has learned: sigma_q = r
    code, start = codes(), motion.start(2)
    learned = landmarks.learn(motion, start, drawn(2, 6, ACTIONS), code, landmarks.look_back(code, code, 0))
    expected = 0.3**2 * torch.arange(1, 7, dtype=torch.float64)
    torch.testing.assert_close(learned.track.variance[..., 0], expected.expand(2, 6), rtol=1e-10, atol=0)
    torch.testing.assert_close(learned.divergence, torch.zeros(2, 6, dtype=torch.float64), rtol=0, atol=1e-12)


# ---- two landmarks


def test_two_landmarks_move_the_papers_plan_by_their_betas():
    landmarks, motion = landmarks_of("paper", kind="free", matches=2)
    with torch.no_grad():
        motion.M.zero_()
        motion.M[0, 0] = 1.0
        landmarks.paper.beta[-1].bias.fill_(math.log(0.25 / 0.75))  # beta is 1/4 for any distance
        landmarks.paper.spread[-1].bias.fill_(math.log(2.0))
    past = Known.whole(
        torch.tensor([[[3.0, 0.0], [0.0, 2.0]]], dtype=torch.float64),
        torch.tensor([[[0.1], [0.2]]], dtype=torch.float64),
        codes(1, 2),
    )
    a = torch.eye(ACTIONS, dtype=torch.float64)[None, :1]
    variance = torch.full((1, 1), 0.4, dtype=torch.float64)
    track = landmarks.trace(motion, motion.start(1), variance, a, codes(1, 1), past).track
    # from mu_p = (1, 0) it is (2, 0) to the one and (-1, 2) to the other
    assert track.state.flatten().tolist() == pytest.approx([1 + 0.25 * (2 - 1), 0.25 * 2])
    assert track.variance.item() == pytest.approx(0.5**2 * 0.4 + 0.25**2 * (0.1 + 0.2) + 2 * 0.3**2)


def test_two_landmarks_move_bayes_plan_by_how_likely_and_how_sure_they_are():
    """No doubt that one of them is right, three to one for the first; a step and a look are equally unsure."""

    def number(*values):
        return torch.tensor(values, dtype=torch.float64)

    surprise = Surprise(1e-12, (0.5,), (1.0,))
    sighted = number(2.0, 0.0, -2.0, 0.0).view(1, 2, 2)  # as far from the plan
    log_odds = number(100.0 + math.log(3.0), 100.0).view(1, 2)
    noise, known = number(0.5, 0.5).view(1, 2, 1), torch.zeros(1, 2, 1, dtype=torch.float64)
    fused = fuse(
        Plane(2), number(0.0, 0.0).view(1, 2), number(0.0).view(1, 1), sighted, known, log_odds, noise, surprise
    )
    assert fused.beta.flatten().tolist() == pytest.approx([0.75 / 2, 0.25 / 2])
    assert fused.pose.flatten().tolist() == pytest.approx([0.75 - 0.25, 0.0])
    # half the noise is left, and it may be the other one: the means are 1 and -1, in one of two dimensions
    assert fused.variance.item() == pytest.approx(0.25 + 0.5 * (1 - 0.5**2))


# ---- what the bound pays


def beliefs(heading):
    """Any pose, its variances, a plan and what was unsure before it."""
    size, groups = (3, 2) if heading else (2, 1)
    pose, planned = (0.3 * drawn(6, size, seed=seed) for seed in (1, 2))
    return pose, 0.05 * drawn(6, groups, seed=3).exp(), planned, 0.02 * drawn(6, groups, seed=4).exp()


def gaussian(pose, variance):
    """Each coordinate with the variance of its group."""
    every = variance[..., :1].expand(*variance.shape[:-1], 2)
    every = torch.cat([every, variance[..., 1:]], -1) if variance.shape[-1] == 2 else every
    return Independent(Normal(pose, every.sqrt()), 1)


@pytest.mark.parametrize("kind", ["walled", "turning"])
def test_where_no_step_surprises_the_divergence_is_that_of_two_gaussians(kind):
    landmarks, _ = landmarks_of(kind=kind, surprise=1e-300)
    pose, variance, planned, unsure = beliefs(kind == "turning")
    plan = gaussian(planned, unsure + variance.new_tensor(landmarks.surprise.planned[: variance.shape[-1]]))
    expected = kl_divergence(gaussian(pose, variance), plan)
    torch.testing.assert_close(
        step_divergence(landmarks.space, pose, variance, planned, unsure, landmarks.surprise),
        expected,
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize("kind", ["walled", "turning"])
def test_the_divergence_from_two_ways_to_go_lies_between_the_true_one_and_that_of_either_way(kind):
    landmarks, _ = landmarks_of(kind=kind, surprise=0.3, steady=0.2, steady_turn=0.2, stray=0.6, stray_turn=0.5)
    pose, variance, planned, unsure = beliefs(kind == "turning")
    claimed = step_divergence(landmarks.space, pose, variance, planned, unsure, landmarks.surprise)
    belief, groups = gaussian(pose, variance), variance.shape[-1]
    fresh = [variance.new_tensor(each[:groups]) for each in (landmarks.surprise.planned, landmarks.surprise.stray)]
    ways = [gaussian(planned, unsure + each) for each in fresh]
    for chance, way in zip((0.7, 0.3), ways, strict=True):
        assert (claimed <= kl_divergence(belief, way) - math.log(chance) + 1e-9).all()
    mixture = MixtureSameFamily(
        Categorical(torch.tensor([0.7, 0.3], dtype=torch.float64).expand(6, 2)),
        Independent(
            Normal(
                torch.stack([way.base_dist.loc for way in ways], 1),
                torch.stack([way.base_dist.scale for way in ways], 1),
            ),
            1,
        ),
    )
    torch.manual_seed(0)
    draws = belief.sample((20_000,))
    gaps = belief.log_prob(draws) - mixture.log_prob(draws)
    true, error = gaps.mean(0), gaps.std(0) / math.sqrt(len(draws))
    assert (claimed > true - 4 * error).all()
    assert (claimed - true < 0.7).all(), "a bound this loose tells nothing"


def test_the_papers_divergence_is_that_of_what_is_inferred_from_what_was_planned():
    landmarks, motion = landmarks_of("paper")
    with torch.no_grad():
        for parameter in landmarks.paper.parameters():
            parameter.copy_(0.3 * drawn(*parameter.shape, seed=7))
    a, code = drawn(2, 6, ACTIONS), codes()
    lookup = landmarks.look_back(code, code, 0)
    learned = landmarks.learn(motion, motion.start(2), a, code, lookup)
    known = gather(learned.track.variance, lookup.index)[..., 0]
    log_ratio = torch.stack(
        [landmarks.paper.log_ratio(lookup.distance[:, t], known[:, t], lookup.there[:, t], 0.3**2) for t in range(6)], 1
    )
    inferred = Independent(Normal(learned.track.state, 0.3 * (0.5 * log_ratio)[..., None].exp().expand(2, 6, 2)), 1)
    before = torch.cat([motion.start(2)[:, None], learned.track.state[:, :-1]], 1)
    planned = Independent(Normal(motion.step(before, a), 0.3 * torch.ones(2, 6, 2, dtype=torch.float64)), 1)
    assert torch.equal(learned.before, before)
    torch.testing.assert_close(learned.divergence, kl_divergence(inferred, planned), rtol=1e-9, atol=1e-10)
    assert learned.divergence.min() > 0


@pytest.mark.parametrize("wall", [True, False])
def test_the_divergence_is_from_a_plan_that_knows_the_walls(wall):
    """Inferred poses go through walls where nothing is recognised; the plan stays before a wall that is closed."""
    landmarks, motion = landmarks_of(**NEVER, surprise=1e-300, steady=0.5)
    with torch.no_grad():
        motion.v.zero_(), motion.c.fill_(-50.0 if wall else 50.0)
    a, code = drawn(2, 6, ACTIONS), codes()
    learned = landmarks.learn(motion, motion.start(2), a, code, landmarks.look_back(code, code, 0))
    d = a @ motion.M.T
    torch.testing.assert_close(learned.track.state, d.cumsum(1), rtol=1e-10, atol=1e-12)
    variance = 0.5**2 * torch.arange(1, 7, dtype=torch.float64)
    torch.testing.assert_close(learned.track.variance[..., 0], variance.expand(2, 6), rtol=1e-10, atol=1e-12)
    expected = 0.5 * d.square().sum(-1) / variance if wall else torch.zeros(2, 6, dtype=torch.float64)
    torch.testing.assert_close(learned.divergence, expected, rtol=1e-9, atol=1e-9)


def test_sighted_poses_are_as_likely_as_the_belief_says():
    """Log-densities without constants: a position 5 off under a variance of 4 and a heading 1 off under one of 0.5."""
    landmarks, _ = landmarks_of(kind="turning")
    state, pose = torch.tensor([[1.0, 1.0, 3.0]]), torch.tensor([[[4.0, 5.0, 4.0 - 2 * math.pi]]])
    found = landmarks.log_prob(pose, torch.tensor([[[3.0, 0.1]]]), state, torch.tensor([[1.0, 0.4]]))
    assert found.item() == pytest.approx(-0.5 * (2 * math.log(4.0) + 25 / 4 + math.log(0.5) + 1 / 0.5))


def test_the_bound_pays_for_poses_that_were_inferred():
    (frames, actions), model = walks(), model_of(**EAGER)
    terms = model.explain(frames, actions, tau=6)
    assert terms.pose_kl.shape == terms.kl.shape == (2, STEPS - 6)
    torch.testing.assert_close(terms.bound, terms.log_likelihood - terms.kl - terms.pose_kl)
    assert model_of("off").explain(frames, actions, tau=6).pose_kl is None


# ---- gradients


class Learning(torch.nn.Module):
    """`Landmarks.learn` as a function of its networks' parameters."""

    def __init__(self, landmarks, motion, steps):
        super().__init__()
        self.landmarks, self.motion = landmarks, motion
        self.code, self.actions = codes(2, steps), drawn(2, steps, ACTIONS, seed=5)
        self.lookup = landmarks.look_back(self.code, self.code, 0)

    def forward(self):
        start = self.motion.start(2)
        learned = self.landmarks.learn(self.motion, start, self.actions, self.code, self.lookup)
        return learned.track.state, learned.track.variance, learned.divergence


# Bayes' form takes every step again from a path that has no gradient. That path depends on no network until step 2.
@pytest.mark.parametrize(
    ("form", "kind", "steps"), [("paper", "walled", 4), ("bayes", "free", 2), ("bayes", "turning", 2)]
)
def test_gradients_of_what_is_learned_agree_with_finite_differences(form, kind, steps):
    landmarks, motion = landmarks_of(form, kind, doubt=2.0)
    if form == "paper":
        with torch.no_grad():
            for parameter in landmarks.paper.parameters():
                parameter.copy_(0.3 * drawn(*parameter.shape, seed=7))
    learning = Learning(landmarks, motion, steps)
    network = "landmarks.paper" if form == "paper" else "landmarks.compare"
    names, values = zip(
        *((n, p) for n, p in learning.named_parameters() if n.startswith(network) and "trust" not in n), strict=True
    )

    def learn(*parameters):
        return torch.func.functional_call(learning, dict(zip(names, parameters, strict=True)), ())

    assert torch.autograd.gradcheck(learn, values, fast_mode=True)
    assert any(
        g is not None and g.abs().max() > 0
        for g in torch.autograd.grad(learn(*values)[0].sum(), values, allow_unused=True)
    )


def test_recognising_teaches_the_network_that_compares_and_nothing_else():
    landmarks, motion = landmarks_of()
    mean = drawn(3, 6, CODE).requires_grad_()
    code = Gaussian(mean, torch.zeros(3, 6, CODE, dtype=torch.float64))
    path = drawn(3, 6, 2, seed=1).cumsum(1)
    landmarks.compare.walk_loss(code, landmarks.look_back(code, code, 0), path).backward()
    assert mean.grad is None
    assert all(parameter.grad is not None for parameter in landmarks.compare.parameters())
    assert all(parameter.grad is None for parameter in motion.parameters())


# ---- time


@pytest.mark.parametrize(
    ("form", "kind"), [("bayes", "walled"), ("paper", "walled"), ("bayes", "gliding"), ("paper", "turning")]
)
def test_what_is_seen_later_changes_no_earlier_pose(form, kind):
    (frames, actions), model = walks(), model_of(form, kind, **EAGER)
    other = frames.clone()
    other[:, 8:] = torch.rand(2, STEPS - 8, 3, 8, 8, generator=seeded(9))
    one, two = (model.follow(x, actions).mean for x in (frames, other))
    assert torch.equal(one[:, :8], two[:, :8])
    assert not torch.equal(one[:, 8:], two[:, 8:])


def test_who_closes_loops_learns_where_it_was_from_what_it_sees_later():
    """A walk of 2 to and fro: what is seen at its end is taken for the beginning, or is not."""
    model = model_of(**EAGER)
    a = torch.randn(1, 1, ACTIONS, generator=seeded(3))
    actions = torch.cat([a.expand(1, 4, -1), -a.expand(1, 4, -1)], 1)
    frames = torch.rand(1, 8, 3, 8, 8, generator=seeded(4))
    revisits = frames.clone()
    revisits[:, 7] = revisits[:, 0]
    plainly, seeing = ([model.follow(x, actions, closure=each).mean for x in (frames, revisits)] for each in (0, 8))
    assert torch.equal(plainly[0][:, :7], plainly[1][:, :7])
    assert not torch.allclose(seeing[0][:, :7], seeing[1][:, :7], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["walled", "gliding"])
def test_what_was_believed_at_a_step_knows_nothing_that_was_seen_later_although_loops_are_closed(kind):
    (frames, actions), model = walks(), model_of(kind=kind, **EAGER)
    other = frames.clone()
    other[:, 10:] = torch.rand(2, STEPS - 10, 3, 8, 8, generator=seeded(9))
    one, two = (model.observe(x, actions, closure=4) for x in (frames, other))
    assert torch.equal(one.believed[:, :10], two.believed[:, :10])
    assert not torch.allclose(one.walk.mean[:, :10], two.walk.mean[:, :10], rtol=0, atol=1e-4)
    never = model.observe(frames, actions, closure=0)
    assert torch.equal(never.believed, never.walk.mean)
    torch.testing.assert_close(one.believed[:, :4], never.believed[:, :4], rtol=0, atol=1e-5)  # no loop closed yet
    assert not torch.allclose(one.believed[:, 4:], never.believed[:, 4:], rtol=0, atol=1e-4)


def test_loops_are_closed_as_the_settings_say_unless_told_otherwise():
    (frames, actions), model = walks(), model_of(closure=5, **EAGER)
    closed = model.follow(frames, actions).mean
    assert torch.equal(closed, model.follow(frames, actions, closure=5).mean)
    never = model.follow(frames, actions, closure=0).mean
    assert torch.equal(never, model_of(**EAGER).follow(frames, actions).mean)
    assert not torch.allclose(closed, never, rtol=0, atol=1e-4)


def test_what_memory_holds_stays_as_it_is_when_loops_are_closed():
    (frames, actions), model = walks(), model_of(closure=4, **EAGER)
    memory, here = model.memorise(frames[:, :7], actions[:, :7])
    kept = memory.place.mean.clone()
    longer, _ = model.memorise(frames[:, 7:], actions[:, 7:], memory, here)
    assert torch.equal(longer.place.mean[:, :7], kept)


def test_a_single_step_closes_no_loop_whatever_the_settings_say():
    (frames, actions), model = walks(), model_of(closure=4, watch=True, **EAGER)
    memory, here = model.memorise(frames[:, :-1], actions[:, :-1])
    _, one = model.memorise(frames[:, -1:], actions[:, -1:], memory, here)
    assert torch.equal(one.mean, model.memorise(frames[:, -1:], actions[:, -1:], memory, here, closure=0)[1].mean)


@pytest.mark.parametrize("kind", ["walled", "turning"])
@pytest.mark.parametrize("form", ["paper", "bayes", "watch"])
def test_memorising_in_two_parts_is_memorising_at_once(form, kind):
    watch = form == "watch"
    (frames, actions), model = walks(), model_of("bayes" if watch else form, kind, watch=watch, **EAGER)
    whole, there = model.memorise(frames, actions)
    memory, here = model.memorise(frames[:, :5], actions[:, :5])
    memory, here = model.memorise(frames[:, 5:], actions[:, 5:], memory, here)
    for one, other in (
        (memory.place.mean, whole.place.mean),
        (memory.variance, whole.variance),
        (memory.code.mean, whole.code.mean),
        (here.mean[..., :2], there.mean[..., :2]),
        (here.covariance, there.covariance),
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_papers_form_cannot_close_loops():
    (frames, actions), model = walks(), model_of("paper")
    with pytest.raises(InputError, match="the paper's form of landmarks cannot close loops; use form bayes"):
        model.follow(frames, actions, closure=4)
    assert model.follow(frames, actions, closure=0).mean.shape == (2, STEPS, 2)


def test_loops_cannot_be_closed_before_they_are_walked():
    (frames, actions), model = walks(), model_of()
    with pytest.raises(InputError, match="closure is -1; give a number of steps, 0 for never"):
        model.follow(frames, actions, closure=-1)


# ---- memory


def test_the_reversed_dictionary_reads_the_tensors_of_memory_itself():
    (frames, actions), model = walks(), model_of()
    memory, here = model.memorise(frames, actions)
    past = known(model, memory, memory.code)
    assert past.code is memory.code
    assert past.variance is memory.variance
    assert past.pose.data_ptr() == memory.place.mean.data_ptr()


def test_who_comes_back_with_a_memory_is_where_the_memory_says():
    """A start that is off by 1; the first frame is one of memory's, which is surely recognised."""
    (frames, actions), model = walks(batch=1), model_of(kind="free", grain=0.01, steady=0.1, **EAGER)
    memory, _ = model.memorise(frames, actions, closure=0)
    model.landmarks.compare.net[-1].weight.zero_()
    model.landmarks.compare.net[-1].bias.zero_()
    memory = replace(memory, weights=None)
    start = memory.place.mean[:, 5] + 1.0
    here = Belief(start, torch.eye(2)[None])
    found = model.follow(frames[:, [5]], torch.zeros(1, 1, ACTIONS), memory, here).mean[:, 0]
    assert (found - memory.place.mean[:, 5]).norm() < 0.2


@pytest.mark.parametrize(
    ("form", "kind", "groups"), [("bayes", "walled", 1), ("bayes", "gliding", 2), ("paper", "gliding", 1)]
)
def test_variances_and_covariances_of_a_belief_say_the_same(form, kind, groups):
    (frames, actions), model = walks(), model_of(form, kind, **EAGER)
    belief = model.follow(frames, actions)
    memory, here = model.memorise(frames, actions)
    assert memory.variance.shape == (2, STEPS, groups)
    size = model.motion.state_size
    assert (belief.mean.shape, belief.covariance.shape) == ((2, STEPS, size), (2, STEPS, size, size))
    assert not belief.covariance[..., model.motion.pose_size :, :].any()
    torch.testing.assert_close(model.landmarks.as_variance(belief), memory.variance)
    torch.testing.assert_close(model.landmarks.as_variance(here), memory.variance[:, -1])
    assert not model.landmarks.as_variance(Belief(belief.mean)).any()


@pytest.mark.parametrize("kind", ["walled", "gliding"])
def test_anywhere_is_the_origin_give_or_take_all_within_reach(kind):
    model = model_of(kind=kind, reach=3.0)
    lost = model.anywhere(4)
    size = model.motion.state_size
    assert (lost.mean.shape, lost.covariance.shape) == ((4, size), (4, size, size))
    expected = [9.0, 9.0] + ([math.pi**2 / 3, 0.0, 0.0] if kind == "gliding" else [])
    torch.testing.assert_close(lost.covariance[0], torch.diag(torch.tensor(expected)))


def test_a_drawn_pose_is_as_far_off_as_its_variances_say():
    landmarks, motion = landmarks_of(kind="gliding")
    code = codes(1, 4)
    track = landmarks.learn(
        motion, motion.start(1), drawn(1, 4, ACTIONS), code, landmarks.look_back(code, code, 0)
    ).track
    draws = torch.stack([landmarks.sample(track, seeded(i)) for i in range(3_000)]).detach()
    off = draws - track.state.detach()
    assert not off[..., 3:].any()
    torch.testing.assert_close(off[..., :2].square().mean((0, 3)), track.variance[..., 0], rtol=0.1, atol=0)
    torch.testing.assert_close(off[..., 2].square().mean(0), track.variance[..., 1], rtol=0.1, atol=0)


def test_a_strange_walk_has_nothing_to_compare_with_and_no_nan():
    landmarks, motion = landmarks_of()
    code = codes(1, 1)
    lookup = landmarks.look_back(code, code, 0)
    assert isinstance(lookup, Lookup) and not lookup.there.any()
    learned = landmarks.learn(motion, motion.start(1), drawn(1, 1, ACTIONS), code, lookup)
    loss = landmarks.compare.walk_loss(code, lookup, learned.track.state.detach())
    (learned.divergence.sum() + loss).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in landmarks.parameters())


# ---- what the filter is given


def heard(landmarks, motion, monkeypatch, **asked):
    """The surprise that `follow` gives to the filter of a motion."""
    given = []
    plain = type(motion).filter

    def spy(*arguments, walls, slips):
        given.append(arguments[-1])
        return plain(motion, *arguments, walls=walls, slips=slips)

    monkeypatch.setattr(motion, "filter", spy)
    code = codes(2, 6)
    nothing = Known.whole(motion.start(2)[:, None][:, :0], motion.start(2)[:, None, :1][:, :0], code[:, :0])
    track = landmarks.trace(
        motion, motion.start(2), torch.zeros(2, 1).double(), drawn(2, 6, ACTIONS), code, nothing, **asked
    ).track
    assert track.state.shape == (2, 6, 2)
    return given


def test_log_odds_of_a_match_are_per_unit_of_area_less_the_doubt():
    landmarks, _ = landmarks_of(reach=2.0, doubt=1.5)
    lookup = Lookup(
        torch.zeros(1, 1, 2, dtype=torch.int64), torch.tensor([[[True, False]]]), torch.ones(1, 1, 2).double()
    )
    match = Match(drawn(1, 1, 2), drawn(1, 1, 2, 2), drawn(1, 1, 2, 1).exp())
    sights = landmarks._sights(match, lookup)
    expected = match.log_odds[0, 0, 0].item() + math.log(2 * math.pi * 2.0**2) - 1.5
    assert sights.log_odds.flatten().tolist() == pytest.approx([expected, -math.inf])
    assert sights.offset is match.offset and sights.noise is match.noise


@torch.no_grad()
def test_where_actions_are_unknown_nearly_every_step_may_go_otherwise(monkeypatch):
    for guess, chance in ((True, 0.9), (False, 0.1)):
        given = heard(*landmarks_of(kind="free"), monkeypatch, guess=guess)
        assert [surprise.chance for surprise in given] == [chance]


LEARNING = {"watch": True, "surprise": 0.3, "surprise_worth": 2.0, "surprise_again": 0.6, **NEVER}
"""Only successive frames are compared, and tell how often steps slip."""


@torch.no_grad()
def test_what_was_learned_of_slips_outlasts_the_closing_of_loops():
    (frames, actions), model = walks(), model_of(kind="turning", **LEARNING)
    whole, parts = (model.observe(frames, 0.1 * actions, closure=every).entries.slips for every in (0, 4))
    assert whole.shape == (2, STEPS, 6)
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_who_was_put_elsewhere_knows_how_often_it_slips_and_forgets_that_it_just_did():
    (frames, actions), model = walks(), model_of(kind="turning", **LEARNING)
    memory, here = model.memorise(frames, 0.1 * actions)
    slips = Slips.of_column(memory.slips)
    stumbled = replace(memory, slips=slips._replace(last=torch.ones_like(slips.last)).column)
    rested = replace(memory, slips=slips.at_rest().column)

    def learned(belief, past):
        return model.observe(frames[:, :1], 0.1 * actions[:, :1], past, belief).entries.slips

    assert torch.equal(*(learned(model.anywhere(2), past) for past in (stumbled, rested)))
    assert not torch.allclose(*(learned(here, past) for past in (stumbled, rested)))
    assert (learned(model.anywhere(2), rested)[..., 2:4] > slips.tried[:, -1:]).all()


@torch.no_grad()
def test_loops_are_closed_with_two_thirds_of_the_doubt_and_never_where_actions_are_unknown(monkeypatch):
    bonuses = []

    def spy(*arguments):
        bonuses.append(arguments[-3:-1])
        return filter_with_closure(*arguments)

    monkeypatch.setattr(landmark, "filter_with_closure", spy)
    heard(*landmarks_of(kind="free", doubt=6.0), monkeypatch, closure=3)
    heard(*landmarks_of(kind="free", doubt=6.0), monkeypatch, closure=3, guess=True)
    assert bonuses == [(3, 2.0)]


@pytest.mark.parametrize("kind", ["walled", "turning"])
def test_steps_taken_again_to_learn_from_them_are_those_of_the_filter(kind):
    landmarks, motion = landmarks_of(kind=kind, **EAGER)
    a, code, start = drawn(2, 6, ACTIONS), codes(), motion.start(2)
    lookup = landmarks.look_back(code, code, 0)
    learned = landmarks.learn(motion, start, a, code, lookup)
    sights = landmarks._sights(landmarks.compare(code, code, lookup), lookup)
    groups = len(motion.space.groups)
    nothing = start[:, None][:, :0], start[:, None, :groups][:, :0]
    walk = motion.filter(start, a, start[:, :groups], sights, nothing, landmarks.surprise, walls=False)
    torch.testing.assert_close(learned.track.state, walk.state, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(learned.track.variance, walk.variance, rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_a_walk_from_anywhere_without_a_memory_is_moved_to_where_the_walls_say(monkeypatch):
    """Walls that are closed everywhere do not stop the walk itself; they only say where it was."""
    landmarks, motion = landmarks_of(**NEVER, surprise=1e-300, steady=0.5)
    motion.v.zero_(), motion.c.fill_(-50.0)
    shift = torch.tensor([[3.0, 4.0], [-1.0, 2.0]], dtype=torch.float64)
    monkeypatch.setattr(motion, "among_walls", lambda *_: (shift, torch.full((2, 1), 0.75).double()))
    a, code, start = drawn(2, 6, ACTIONS), codes(), motion.start(2)
    nothing = Known.whole(start[:, None][:, :0], start[:, None, :1][:, :0], code[:, :0])
    track = landmarks.trace(motion, start, landmarks.ignorance(2, start), a, code, nothing).track
    torch.testing.assert_close(track.state, shift[:, None] + (a @ motion.M.T).cumsum(1), rtol=1e-9, atol=1e-10)
    grown = 0.75 + 0.5**2 * torch.arange(1, 7, dtype=torch.float64)
    torch.testing.assert_close(track.variance[..., 0], grown.expand(2, 6), rtol=1e-9, atol=1e-10)

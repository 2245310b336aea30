"""The motion of an agent with a heading from views that look alike, in a world of lamps on a plain."""

import math
from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

from gtmsm.model.motion import MotionConfig
from gtmsm.model.motion.turning import Gliding, Turning
from gtmsm.training.alike_views import find_pairs, shifts
from gtmsm.training.prospect import ProspectConfig, _by_loops, cross_entropy_search
from gtmsm.training.walking_loops import (
    SEARCHES,
    WalkingLoops,
    _beside,
    aimed,
    find_body,
    find_by_walking_loops,
    find_moves,
    find_turns,
    fit_motion,
)

AHEAD, BACK, ASIDE, LEFT, RIGHT = range(5)
TURN, SPEED, KEEP = 2 * math.pi / 24, 0.06, 0.6
STEPS, CLIPS, LAMPS, VIEW = 160, 96, 10, math.radians(90)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def walked() -> tuple[Tensor, Tensor, Tensor]:
    """Frames, actions and poses of agents with momentum that come back whenever they have gone too far."""
    chance = seeded(1)
    lamps = 4 * torch.rand(CLIPS, LAMPS, 2, generator=chance) - 2
    colour = torch.rand(CLIPS, LAMPS, 3, generator=chance)
    position, velocity, heading = torch.zeros(CLIPS, 2), torch.zeros(CLIPS, 2), torch.zeros(CLIPS)
    push = SPEED * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    columns = VIEW * (0.5 - (torch.arange(16) + 0.5) / 16)  # the first column shows what is to the left
    frames, actions, poses, action = [], [], [], torch.zeros(CLIPS, dtype=torch.long)
    for _ in range(STEPS):
        fresh = torch.rand(CLIPS, generator=chance) < 0.3
        action = torch.where(fresh, torch.randint(5, (CLIPS,), generator=chance), action)
        home = torch.remainder(torch.atan2(-position[:, 1], -position[:, 0]) - heading + math.pi, 2 * math.pi) - math.pi
        back = torch.where(home.abs() < TURN, AHEAD, torch.where(home > 0, LEFT, RIGHT))
        action = torch.where(position.norm(dim=1) > 0.5, back, action)
        c, s = heading.cos(), heading.sin()
        u = push[action]
        velocity = KEEP * velocity + torch.stack([c * u[:, 0] - s * u[:, 1], s * u[:, 0] + c * u[:, 1]], 1)
        position = position + velocity
        heading = heading + TURN * ((action == LEFT).float() - (action == RIGHT).float())
        off = lamps - position[:, None]
        bearing = torch.atan2(off[..., 1], off[..., 0]) - heading[:, None]
        apart = torch.remainder(bearing[..., None] - columns + math.pi, 2 * math.pi) - math.pi
        bright = torch.exp(-0.5 * (apart * off.norm(dim=-1)[..., None] / 0.3).square())
        frames.append(torch.einsum("blc,bld->bdc", bright, colour)[:, :, None].expand(-1, -1, 4, -1))
        actions.append(torch.nn.functional.one_hot(action, 5).float())
        poses.append(torch.cat([position, heading[:, None]], 1))
    return torch.stack(frames, 1), torch.stack(actions, 1), torch.stack(poses, 1)


def source(n: int, steps: int, generator: torch.Generator) -> SimpleNamespace:
    which = torch.randperm(CLIPS, generator=generator)[:n]
    x, a, _ = walked()
    return SimpleNamespace(x=x[which, :steps], a=a[which, :steps])


def search(score, size: int) -> Tensor:
    settings = ProspectConfig(candidates=128, rounds=15, restarts=1)
    return cross_entropy_search(score, size, settings, seeded(2), (0.2,) * size).vector


@cache
def found() -> tuple[Gliding, WalkingLoops]:
    torch.manual_seed(0)
    motion = Gliding(MotionConfig(kind="gliding", hidden=8), 5)
    with torch.no_grad():
        return motion, find_by_walking_loops(motion, source, search, CLIPS, STEPS, 60, seeded(3))


def test_what_is_seen_moves_to_the_right_when_an_agent_turns_left():
    x, a, _ = walked()
    shift = shifts(x)
    assert shift[..., 1:][a[:, 1:, LEFT] == 1].mean() > 0.05 and shift[..., 1:][a[:, 1:, RIGHT] == 1].mean() < -0.05
    assert bool((shift[:, 0] == 0).all())


def test_turns_are_found_with_their_sign():
    turn, explained, searches, runner_up = find_turns(find_pairs(source, CLIPS, STEPS, seeded(4)), search)
    assert explained > 0.3 and searches > 0 and (searches == SEARCHES) == (runner_up == 0)
    torch.testing.assert_close(turn, TURN * torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0]), rtol=0, atol=0.01 * TURN)


def test_only_the_true_momentum_brings_views_that_are_alike_together():
    turn = TURN * torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0])
    walks = find_pairs(source, CLIPS, STEPS, seeded(4), turn)
    walks = walks._replace(alike=walks.alike.most_alike(16))
    left = {keep: find_moves(walks, turn, keep)[1] for keep in (0.0, 0.3, KEEP, 0.9)}
    assert min(left, key=left.__getitem__) == KEEP
    move = aimed(walks, turn, find_moves(walks, turn, KEEP)[0], KEEP)
    ahead = move / move[0, AHEAD]
    true = torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    torch.testing.assert_close(ahead, true, rtol=0, atol=0.15)


def test_a_point_beside_an_agent_is_told_by_turns_on_the_spot():
    _, _, poses = walked()
    position, heading = poses[..., :2], poses[..., 2]
    c, s = heading.cos(), heading.sin()
    ahead, left = 0.2, -0.1
    point = position + torch.stack([c * ahead - s * left, s * ahead + c * left], dim=-1)
    told = _beside(point.diff(dim=1), heading) - _beside(position.diff(dim=1), heading)
    assert (told - torch.tensor([ahead, left])).norm() < 0.1
    assert _beside(position.diff(dim=1), heading).norm() < 0.03


def angle_of(motion: Gliding) -> float:
    """Degrees by which what a motion takes for ahead lies to the left of what is."""
    _, a, pose = walked()
    with torch.no_grad():
        path = motion.unroll(motion.start(CLIPS), a)
    mine, true = (torch.view_as_complex(part[..., :2].contiguous()) for part in (path, pose))
    return math.degrees(-torch.angle((true * mine.conj()).sum()))


def test_a_motion_that_takes_aside_for_ahead_is_set_right_by_how_frames_shift():
    turn = TURN * torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0])
    walks = find_pairs(source, CLIPS, STEPS, seeded(4), turn)
    walks = walks._replace(alike=walks.alike.most_alike(16))
    c, s = math.cos(math.radians(20)), math.sin(math.radians(20))
    askew = torch.tensor([[c, -s], [s, c]]) @ aimed(walks, turn, find_moves(walks, turn, KEEP)[0], KEEP)
    motion = Gliding(MotionConfig(kind="gliding", hidden=8), 5)
    motion.adopt({"turn": turn, "move": askew / (1 - KEEP), "keep": torch.tensor(KEEP)})
    assert angle_of(motion) > 15
    fit_motion(motion, walks, 60, seeded(5))
    assert abs(angle_of(motion)) < 5


def test_turns_that_are_right_are_kept_however_wrong_moves_still_are():
    turn = TURN * torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0])
    walks = find_pairs(source, CLIPS, 100, seeded(4), turn)
    walks = walks._replace(alike=walks.alike.most_alike(16))
    learned, others = walks.part(slice(CLIPS // 4, CLIPS)), walks.part(slice(CLIPS // 4))
    body = find_body(learned, others, turn, find_moves(learned, turn, KEEP)[0], KEEP, 400)
    assert torch.equal(body.turn, turn)


def test_the_whole_motion_is_found_without_a_single_pose():
    motion, loops = found()
    assert loops.found and loops.closed < loops.without
    assert "motion found" in loops.verdict and "by moves alone" in loops.verdict
    assert f"({loops.searches} of {SEARCHES} searches found these" in loops.verdict
    _, a, pose = walked()
    with torch.no_grad():
        path = motion.unroll(motion.start(CLIPS), a)
    assert (path[..., 2] - pose[..., 2]).abs().max() < 0.1
    mine, true = (torch.view_as_complex(part[..., :2].contiguous()) for part in (path, pose))
    scale = (true * mine.conj()).sum() / mine.abs().square().sum()
    assert abs(math.degrees(torch.angle(scale))) < 10  # ahead is ahead
    assert (mine * scale - true).abs().mean() < 0.15 * (true - true.mean()).abs().mean()


def test_frames_that_say_nothing_are_said_to_say_nothing():
    def noise(n: int, steps: int, generator: torch.Generator) -> SimpleNamespace:
        clip = source(n, steps, generator)
        return SimpleNamespace(x=torch.rand(clip.x.shape, generator=generator), a=clip.a)

    motion = Gliding(MotionConfig(kind="gliding", hidden=8), 5)
    with torch.no_grad():
        loops = find_by_walking_loops(motion, noise, search, CLIPS, STEPS, 3, seeded(3))
    assert not loops.found and "not found" in loops.verdict


def test_clips_in_which_nobody_comes_back_are_said_to_be_too_short():
    motion = Gliding(MotionConfig(kind="gliding", hidden=8), 5)
    before = {name: part.clone() for name, part in motion.state_dict().items()}
    with torch.no_grad():
        loops = find_by_walking_loops(motion, source, search, CLIPS, 9, 3, seeded(3))
    assert not loops.found and "give longer clips" in loops.verdict
    assert all(torch.equal(part, before[name]) for name, part in motion.state_dict().items())


def test_turns_of_nothing_do_not_explain_why_views_of_short_clips_are_alike():
    motion = Gliding(MotionConfig(kind="gliding", hidden=8), 5)
    with torch.no_grad():
        loops = find_by_walking_loops(motion, source, search, CLIPS, 24, 3, seeded(3))
    assert not loops.found or motion.turn.abs().max() > 0.5 * TURN, loops.verdict


def test_a_motion_without_momentum_is_found_by_loops_too():
    motion = Turning(MotionConfig(kind="turning"), 5)
    with torch.no_grad():
        loops = find_by_walking_loops(motion, source, search, CLIPS, STEPS, 3, seeded(3))
    assert loops.turned > 0.5 and (motion.turn[LEFT] * motion.turn[RIGHT]) < 0


def test_what_was_not_found_by_loops_is_not_kept():
    """The search that follows sets turns and moves alone: momentum from noise would stay."""
    torch.manual_seed(0)
    model = SimpleNamespace(motion=Gliding(MotionConfig(kind="gliding", hidden=8), 5))
    before = {name: part.clone() for name, part in model.motion.state_dict().items()}

    def noise(n: int, steps: int, generator: torch.Generator) -> SimpleNamespace:
        clip = source(n, steps, generator)
        return SimpleNamespace(x=torch.rand(clip.x.shape, generator=generator), a=clip.a)

    settings = ProspectConfig(candidates=64, rounds=3, loops=STEPS, loop_clips=CLIPS, loop_updates=2)
    with torch.no_grad():
        told = _by_loops(model, noise, settings, seeded(3))
    assert not told.found
    assert all(torch.equal(part, before[name]) for name, part in model.motion.state_dict().items())

"""q(s_t | s_{t-1}, a_t, z_t, m): the pose inferred from what is seen (App. D).

Memory is read backwards: the codes nearest to that of the current frame, and the poses they were seen from. The paper's
form moves the plan towards those poses by weights beta, a small network of the distance between codes. Bayes' form
computes beta by Bayes' rule from a network that compares two codes (do they show one place, and from which relative
pose?) and from the distance between that place and the plan, in units of its variance.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gtmsm.config import require
from gtmsm.model.bearings import PLANNED, SOME, WATCHED, locate_starts, moved_to_end
from gtmsm.model.closing import filter_with_closure
from gtmsm.model.landmark_filter import Sights, Surprise, Track, Watched, fuse, isotropic_divergence, step_divergence
from gtmsm.model.motion import Motion
from gtmsm.model.paper_landmarks import PaperNetworks
from gtmsm.model.place_graph import Sameness
from gtmsm.model.recognition import Comparison, LandmarkConfig, Lookup, Match, look_up
from gtmsm.model.rendering import Rendered, Show, render_and_compare
from gtmsm.model.slips import Habits, Slips
from gtmsm.tensors import (
    Actions,
    Belief,
    EntryPoses,
    Gaussian,
    PerStep,
    Poses,
    State,
    States,
    Variance,
    gather,
)

LAST, MISSED = 8, 0.1
"""Steps at the end of a walk from an unknown start by whose views it is located once more; the probability that
something was missed on the way, so that it has not ended where it is believed to."""
RENDERED = (0.03, 0.02)
"""Standard deviations of a pose at which memory shows what was seen, in units of the pose space and radians."""


@dataclass(frozen=True)
class Known:
    """The entries of a map: poses, their variances, and codes of what was seen there; some may be left out."""

    pose: EntryPoses
    variance: Float[Tensor, "batch n G"]
    code: Gaussian
    number: Int[Tensor, "n"]
    """Which entries these are."""
    held: int
    """How many there are in all."""
    slips: Slips | None = None
    """What the steps that made them have told of how often steps slip."""

    @classmethod
    def whole(cls, pose: EntryPoses, variance: Float[Tensor, "batch n G"], code: Gaussian) -> "Known":
        """All entries of a map."""
        return cls(pose, variance, code, torch.arange(pose.shape[1], device=pose.device), pose.shape[1])

    def numbers(self, steps: int) -> Int[Tensor, "n_and_steps"]:
        """Numbers of its entries, followed by those of the steps of a walk."""
        return torch.cat([self.number, self.held + torch.arange(steps, device=self.number.device)])


class Trace(NamedTuple):
    """A walk as it was followed."""

    track: Track
    start: State
    """The pose before the first step, estimated where it was not given."""
    sights: Sights | None
    """What was recognised at each step, by rows of `Known` and on through the steps; in Bayes' form."""
    believed: States
    """The filtered pose of each step, from what was seen up to it."""


@dataclass(frozen=True)
class Learned:
    """A track with gradients, and its term of the bound."""

    track: Track
    divergence: PerStep
    """KL[q(s_t | s_{t-1}, a_t, z_t, m) || p(s_t | s_{t-1}, a_t)], the third term of App. D's bound. App. D takes its
    expectation over q*(s_{t-1}); here it is taken at the mean, or between marginals (docs/deviations.md), so that the
    sum of all terms is not a strict bound."""
    before: States
    """The state before each step."""
    match: Match | None = None
    """What the comparison said of each pair of views, in Bayes' form."""


class Landmarks(nn.Module):
    """The inference network of App. D."""

    def __init__(self, settings: LandmarkConfig, code_size: int, motion: Motion) -> None:
        super().__init__()
        self.settings, self.noise, self.space = settings, motion.noise, motion.space
        self.compare = Comparison(settings, code_size, self.space)
        if settings.form == "paper":
            self.paper = PaperNetworks(settings)

    @property
    def groups(self) -> tuple[slice, ...]:
        """Coordinates of a pose that share a variance: in the paper's form all of them."""
        return self.space.groups if self.settings.form == "bayes" else (slice(0, self.space.size),)

    @property
    def surprise(self) -> Surprise:
        """The noise of a step."""
        chosen = self.settings
        steady, stray = (chosen.steady**2, chosen.steady_turn**2), (chosen.stray**2, chosen.stray_turn**2)
        habits = None
        if chosen.watch:
            chances = (chosen.surprise, chosen.surprise_turn)[: len(self.groups)]
            habits = Habits(chances, chosen.surprise_worth, chosen.surprise_again)
        return Surprise(chosen.surprise, steady, stray, habits, chosen.doubt)

    @property
    def asked(self) -> int:
        """How many entries of memory a step looks up, to find K' that are not too recent."""
        return self.settings.matches + self.settings.recent

    def look_back(
        self, entries: Gaussian, code: Gaussian, first: int, number: Int[Tensor, "n"] | None = None
    ) -> Lookup:
        """The entries that look most like each step of a walk, among those before it; see `look_up`."""
        return look_up(entries, code, self.settings.matches, first, self.settings.recent, number)

    def _sights(self, match: Match, lookup: Lookup) -> Sights:
        """Matches as the filter takes them: log-odds per unit of area, less `doubt`."""
        log_odds = match.log_odds + (self.compare.indifference - self.settings.doubt)
        log_odds = log_odds.masked_fill(~lookup.there, -math.inf)
        return Sights(lookup.index, log_odds, match.offset, match.noise)

    def trace(
        self,
        motion: Motion,
        start: State,
        variance: Variance,
        actions: Actions,
        code: Gaussian,
        past: Known,
        guess: bool = False,
        closure: int | None = None,
        show: Show | None = None,
    ) -> Trace:
        """q*(s_t) of each step, from actions and from what was seen, reading m_{1:t-1}.

        `guess`: the actions are unknown, and every step may lead anywhere near. `closure`: steps after which loops are
        closed, 0 for never; None: as the settings say. `show`: what memory shows at a pose, where unknown starts are
        judged by that.
        """
        slips, lost, doubtful = past.slips, self.is_lost(variance), variance
        surprise = self.surprise.of_any_step() if guess else self.surprise
        if lost:
            slips = slips and slips.at_rest()
            if past.pose.shape[1]:
                path, chance = self._first_steps(motion, actions, code, surprise)
                pose, variance, shown = self._find_start(path, chance, code, past, show)
                start, doubtful = motion.settle(start, pose), torch.where(shown, 0.0, variance)
            elif self.settings.form == "bayes":
                track = self._fit_to_walls(motion, start, actions, code)
                return Trace(track, start, None, track.state)
        entries, known = past.code.then(code), (past.pose, past.variance)
        lookup = self.look_back(entries, code, past.held, past.numbers(code.mean.shape[1]))
        lookup = lookup.begun_elsewhere() if lost else lookup
        if self.settings.form == "paper":
            require(not closure, "the paper's form of landmarks cannot close loops; use form bayes, or closure 0")
            track = self.paper.filter(motion, start, variance, actions, lookup, known)[0]
            return Trace(track, start, None, track.state)
        sights = self._sights(self.compare(entries, code, lookup), lookup)
        every = self.settings.closure if closure is None else closure
        require(every >= 0, f"closure is {every}; give a number of steps, or 0 for never")
        steps = actions.shape[1]
        closes = bool(every) and not guess and steps > 1
        if closes:
            track, believed = filter_with_closure(
                motion, start, variance, actions, sights, known, surprise, self.same, every, self.bonus, slips
            )
        else:
            track = motion.filter(start, actions, variance, sights, known, surprise, walls=True, slips=slips)
            believed = track.state
        # Of a longer walk whose loops were closed these tell more.
        if lost and show is not None and track.watched and steps > LAST and (steps <= self.looks or not closes):
            start, track = self._look_again(start, doubtful, track, track.watched, code, past, show)
            believed = torch.cat([believed[:, :-1], track.state[:, -1:]], dim=1)
        return Trace(track, start, sights, believed)

    @property
    def bonus(self) -> float:
        """Nats added to the log-odds of sights where loops are closed."""
        return self.settings.doubt / 3

    @property
    def same(self) -> Sameness:
        """When two views are of one place."""
        near = (self.settings.tolerance, math.radians(self.settings.tolerance_turn))
        return Sameness(self.settings.grain**2, near[: len(self.groups)])

    def is_lost(self, variance: Variance) -> bool:
        """Whether walks begin at unknown places (`ignorance`)."""
        walks, lost = len(variance), int((variance[:, 0] >= self.settings.reach**2).sum())
        mixed = f"{lost} of {walks} walks begin anywhere, the others at known places; follow them separately"
        require(lost in (0, walks), mixed)
        return lost == walks

    def is_placed(self, variance: Variance) -> bool:
        """Whether the variance of all positions is below that of a step that went otherwise."""
        return bool((variance[:, 0] < self.settings.stray**2).all())

    def _find_start(
        self, path: Float[Tensor, "batch looks D"], chance: float, code: Gaussian, past: Known, show: Show | None
    ) -> tuple[Float[Tensor, "batch D"], Variance, Bool[Tensor, "batch 1"]]:
        """The pose before a walk with these first steps, its variance, and whether memory shows there what was seen."""
        count = 1 if show is None else self.settings.rendered
        found, agreed = locate_starts(self.compare, path, chance, code, past.pose, past.code, count)
        if show is None:
            return found[:, 0], self._start_variance(agreed), torch.zeros_like(agreed, dtype=torch.bool)
        judged = render_and_compare(show, self.space, found, path, code.mean[:, : path.shape[1]])
        voted = self._start_variance(agreed.gather(1, judged.best))
        return judged.likeliest, torch.where(judged.shown, self._rendered(agreed), voted), judged.shown

    def _rendered(self, like: Tensor) -> Float[Tensor, "G"]:
        """Variances of a pose at which memory shows what was seen."""
        return like.new_tensor([each**2 for each in RENDERED][: len(self.groups)])

    def _look_again(
        self, start: State, doubt: Variance, track: Track, watched: Watched, code: Gaussian, past: Known, show: Show
    ) -> tuple[State, Track]:
        """A walk from an unknown start, both moved to where memory shows what was seen last.

        Whatever was missed on the way, views tell where it has ended: where it is believed to, or where matches say.
        `doubt` is the variance of the start. The first step adds none: the start was found by where it led.
        """
        space, states = self.space, torch.cat([start[:, None], track.state], 1)
        pose, momentum = states.tensor_split([space.size], dim=-1)
        judged = self._judge_ends(pose, code[:, -LAST:], past, show)
        end = torch.where(judged.shown, judged.likeliest, pose[:, -1])
        added = torch.cat([doubt[:, None], torch.zeros_like(doubt)[:, None], watched.added[:, 1:]], 1)
        moved, share = moved_to_end(space, pose, end, added)
        closer = torch.where(judged.shown[:, None], share[:, 1:], 0.0)
        variance = track.variance + closer * (self._rendered(doubt) - track.variance)
        watched = watched._replace(step=space.displacement(moved[:, :-1], moved[:, 1:]))
        states = torch.cat([moved, momentum], dim=-1)
        return states[:, 0], track._replace(state=states[:, 1:], variance=variance, watched=watched)

    def _judge_ends(self, pose: Poses, last: Gaussian, past: Known, show: Show) -> Rendered:
        """Where a walk may have ended, by its last views: where it is believed to comes first, and is likelier."""
        path = self.space.displacement(pose[:, -1:].expand_as(pose), pose)[:, -LAST:]
        ends, _ = locate_starts(self.compare, path, 0.0, last, past.pose, past.code, self.settings.rendered)
        chance = pose.new_tensor([1 - MISSED] + [MISSED] * ends.shape[1])
        return render_and_compare(show, self.space, torch.cat([pose[:, -1:], ends], 1), path, last.mean, chance.log())

    def _start_variance(self, agreed: Float[Tensor, "batch 1"]) -> Variance:
        """The variance of a start: that of a step that went otherwise if all matches agree on it, up to `ignorance`.

        Where steps were watched, some are enough: a start that all steps vote for is better than what single ones see.
        """
        fresh = agreed.new_tensor([self.settings.stray**2, self.settings.stray_turn**2][: len(self.groups)])
        share = (agreed > SOME).to(agreed) if self.settings.watch else agreed
        return share * fresh + (1 - share) * self.ignorance(len(agreed), agreed)

    @property
    def looks(self) -> int:
        """Number of first steps of a walk by which an unknown start is found."""
        return WATCHED if self.settings.watch else PLANNED

    def _first_steps(
        self, motion: Motion, actions: Actions, code: Gaussian, surprise: Surprise
    ) -> tuple[Float[Tensor, "batch looks D"], float]:
        """These steps from the origin on, and the chance that one of them is wrong; walls are not where it has them."""
        start, first = motion.start(len(actions)), slice(0, self.looks)
        if not self.settings.watch:
            return motion.unroll_openly(start, actions[:, first])[..., : self.space.size], surprise.chance
        track = self._alone(motion, start, actions[:, first], code[:, first], surprise)
        return track.state[..., : self.space.size], 0.0

    def _alone(self, motion: Motion, start: State, actions: Actions, code: Gaussian, surprise: Surprise) -> Track:
        """A walk from a known start that recognises nothing but what it has seen itself, without walls."""
        lookup, sure = self.look_back(code, code, 0), self._certain(start)
        sights = self._sights(self.compare(code, code, lookup), lookup)
        nothing = start[:, None, : self.space.size][:, :0], sure[:, None][:, :0]
        return motion.filter(start, actions, sure, sights, nothing, surprise, walls=False)

    def _fit_to_walls(self, motion: Motion, start: State, actions: Actions, code: Gaussian) -> Track:
        """A walk from an unknown start without a memory, shifted to where its failed steps fit the walls."""
        state, variance, slips, _ = self._alone(motion, start, actions, code, self.surprise)
        before, size = torch.cat([start[:, None], state[:, :-1]], dim=1), self.space.size
        steps = self.space.displacement(before[..., :size], state[..., :size])
        shift, added = motion.among_walls(before, actions, steps, self.settings.surprise)
        return Track(state + shift[:, None], variance + added[:, None], slips)

    def learn(self, motion: Motion, start: State, actions: Actions, code: Gaussian, lookup: Lookup) -> Learned:
        """The same for a walk from a known start, with gradients and with the KL that the bound pays.

        The paper's form is differentiated through all of time. Bayes' form filters without gradients first and then
        takes every step again, all at once, from the filtered states: its gradients are those of single steps.
        """
        size, sure = self.space.size, self._certain(start)
        nothing = start[:, None, :size][:, :0], sure[:, None][:, :0]
        if self.settings.form == "paper":
            track, fresh = self.paper.filter(motion, start, sure, actions, lookup, nothing)
            before = torch.cat([start[:, None], track.state[:, :-1]], dim=1)
            planned = motion.step(before, actions)[..., :size]
            far2 = self.space.difference(planned, track.state[..., :size]).square().sum(-1)
            return Learned(track, isotropic_divergence(fresh[..., 0], far2, self.noise**2, size), before)
        match = self.compare(code, code, lookup)
        sights = self._sights(match, lookup)
        surprise = self.surprise._replace(habits=None)  # training has the fast scan, and networks that know little yet
        with torch.no_grad():
            # Walls are still being learned, and soft ones would squeeze the map.
            state, variance, *_ = motion.filter(start, actions, sure, sights, nothing, surprise, walls=False)
        before = torch.cat([start[:, None], state[:, :-1]], dim=1)
        uncertain = torch.cat([sure[:, None], variance[:, :-1]], dim=1)
        after = motion.go(before, actions)
        sighted = self.space.step(gather(state[..., :size], lookup.index), sights.offset)
        known = gather(variance, lookup.index)
        fused = fuse(self.space, after[..., :size], uncertain, sighted, known, sights.log_odds, sights.noise, surprise)
        track = Track(motion.settle(after, fused.pose), fused.variance)
        planned = motion.step(before, actions)[..., :size]
        divergence = step_divergence(self.space, fused.pose, fused.variance, planned, uncertain, surprise)
        return Learned(track, divergence, before, match)

    def log_prob(
        self, pose: Float[Tensor, "batch K D"], noise: Float[Tensor, "batch K G"], state: State, variance: Variance
    ) -> Float[Tensor, "batch K"]:
        """log N(pose | state, noise + variance) of sighted poses, without constants."""
        far2 = self.space.squared_lengths(self.space.difference(state[:, None, : self.space.size], pose))
        total = noise + variance[:, None]
        parts = [
            (group.stop - group.start) * total[..., g].log() + far2[g] / total[..., g]
            for g, group in enumerate(self.space.groups)
        ]
        return -0.5 * torch.stack(parts).sum(0)

    def sample(self, track: Track, generator: torch.Generator) -> States:
        """A pose drawn from each belief."""
        pose, rest = track.state.tensor_split([self.space.size], dim=-1)
        noise = torch.randn(pose.shape, dtype=pose.dtype, device=pose.device, generator=generator)
        return torch.cat([pose + noise * self._spread(track.variance).sqrt(), rest], dim=-1)

    def ignorance(self, batch: int, like: Tensor) -> Variance:
        """The variance of a pose of which nothing is known; that of a heading is uniform."""
        return like.new_tensor([self.settings.reach**2, math.pi**2 / 3][: len(self.groups)]).repeat(batch, 1)

    def as_covariance(self, variance: Variance, state: Float[Tensor, "*n S"]) -> Float[Tensor, "*n S S"]:
        """The covariance of the whole state; velocities have none."""
        rest = state.shape[-1] - self.space.size
        return torch.diag_embed(nn.functional.pad(self._spread(variance), (0, rest)))

    def as_variance(self, belief: Belief) -> Variance:
        """The variances of a belief's pose; 0 where it is known exactly."""
        if belief.covariance is None:
            return self._certain(belief.mean)
        diagonal = belief.covariance.diagonal(dim1=-2, dim2=-1)
        return torch.stack([diagonal[..., group].mean(-1) for group in self.groups], dim=-1)

    def _certain(self, state: Float[Tensor, "*n S"]) -> Variance:
        """Variances of 0."""
        return torch.zeros_like(state[..., : len(self.groups)])

    def _spread(self, variance: Variance) -> Float[Tensor, "*n D"]:
        """The variance of every coordinate."""
        sizes = [group.stop - group.start for group in self.groups]
        return torch.cat(
            [variance[..., g : g + 1].expand(*variance.shape[:-1], n) for g, n in enumerate(sizes)], dim=-1
        )

"""q(s_t | s_{t-1}, a_t, z_t, m): the pose inferred from frames (App. D).

Memory is read backwards: it is searched for the codes nearest to that of the current frame, and returns the poses they
were seen from. The paper's form moves the planned pose towards those poses by weights beta, from a small network of the
distance between codes. Bayes' form computes beta by Bayes' rule from a network that compares two codes (do they show
the same place, and from which relative pose?) and from the distance between that pose and the plan, in units of its
variance.
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
"""Number of last steps by whose views a walk from an unknown start is located once more; prior probability that its
estimated end is wrong, because something was missed on the way."""
RENDERED = (0.03, 0.02)
"""Standard deviations of a pose at which memory predicts the observed views, in units of the pose space and radians."""


@dataclass(frozen=True)
class Known:
    """Entries of a map: poses, their variances, and codes of the frames seen there; some entries may be left out."""

    pose: EntryPoses
    variance: Float[Tensor, "batch n G"]
    code: Gaussian
    number: Int[Tensor, "n"]
    """Numbers of these entries."""
    held: int
    """Number of all entries."""
    slips: Slips | None = None
    """Statistics of slipped steps after the last entry."""

    @classmethod
    def whole(cls, pose: EntryPoses, variance: Float[Tensor, "batch n G"], code: Gaussian) -> "Known":
        """All entries of a map."""
        return cls(pose, variance, code, torch.arange(pose.shape[1], device=pose.device), pose.shape[1])

    def numbers(self, steps: int) -> Int[Tensor, "n_and_steps"]:
        """Numbers of its entries, followed by those of the steps of a walk."""
        return torch.cat([self.number, self.held + torch.arange(steps, device=self.number.device)])


class Trace(NamedTuple):
    """The pose estimates of a walk, and what they are based on."""

    track: Track
    start: State
    """The state before the first step, estimated if it was not given."""
    sights: Sights | None
    """What was recognised at each step, in Bayes' form; indices are rows of `Known`, then steps of the walk."""
    believed: States
    """The filtered state after each step, from frames up to that step."""


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
    """The comparison of each pair of views, in Bayes' form."""


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
        """The noise model of a step."""
        chosen = self.settings
        steady, stray = (chosen.steady**2, chosen.steady_turn**2), (chosen.stray**2, chosen.stray_turn**2)
        habits = None
        if chosen.watch:
            chances = (chosen.surprise, chosen.surprise_turn)[: len(self.groups)]
            habits = Habits(chances, chosen.surprise_worth, chosen.surprise_again)
        # Views that memory predicts judge whether a lost agent is placed, where they are compared.
        placed = math.inf if chosen.rendered else chosen.stray**2
        return Surprise(chosen.surprise, steady, stray, habits, chosen.doubt, chosen.watch_odds or math.inf, placed)

    @property
    def asked(self) -> int:
        """Number of entries of memory that a step looks up, to find K' that are not too recent."""
        return self.settings.matches + self.settings.recent

    def look_back(
        self, entries: Gaussian, code: Gaussian, first: int, number: Int[Tensor, "n"] | None = None
    ) -> Lookup:
        """For each step of a walk, the entries before it that look most like its frame; see `look_up`."""
        return look_up(entries, code, self.settings.matches, first, self.settings.recent, number)

    def _sights(self, match: Match, lookup: Lookup) -> Sights:
        """Matches as input of the filter: log-odds per unit of area, less `doubt`."""
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
        """q*(s_t) of each step, from actions and frames, reading m_{1:t-1}.

        `guess`: the actions are unknown, and each step may lead anywhere nearby. `closure`: number of steps after which
        loops are closed; 0: never; None: as in the settings. `show`: predicts views at poses, if unknown starts are
        judged by them.
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
        # In a longer walk whose loops were closed, the loops are more informative than its last views.
        if lost and show is not None and track.watched and steps > LAST and (steps <= self.looks or not closes):
            start, track = self._look_again(start, doubtful, track, track.watched, code, past, show)
            believed = torch.cat([believed[:, :-1], track.state[:, -1:]], dim=1)
        return Trace(track, start, sights, believed)

    @property
    def bonus(self) -> float:
        """Nats added to the log-odds of sights when loops are closed."""
        return self.settings.doubt / 3

    @property
    def same(self) -> Sameness:
        """The criterion for two views to be of the same place."""
        near = (self.settings.tolerance, math.radians(self.settings.tolerance_turn))
        return Sameness(self.settings.grain**2, near[: len(self.groups)])

    def is_lost(self, variance: Variance) -> bool:
        """Whether the initial poses of the walks are unknown (`ignorance`)."""
        walks, lost = len(variance), int((variance[:, 0] >= self.settings.reach**2).sum())
        mixed = f"{lost} of {walks} walks begin anywhere, the others at known places; follow them separately"
        require(lost in (0, walks), mixed)
        return lost == walks

    def is_placed(self, variance: Variance) -> bool:
        """Whether the variance of all positions is below that of a step that does not go as planned."""
        return bool((variance[:, 0] < self.settings.stray**2).all())

    def _find_start(
        self, path: Float[Tensor, "batch looks D"], chance: float, code: Gaussian, past: Known, show: Show | None
    ) -> tuple[Float[Tensor, "batch D"], Variance, Bool[Tensor, "batch 1"]]:
        """The initial pose of a walk with these first steps, its variance, and whether predicted views confirm it."""
        count = 1 if show is None else self.settings.rendered
        found, agreed = locate_starts(self.compare, path, chance, code, past.pose, past.code, count)
        if show is None:
            return found[:, 0], self._start_variance(agreed), torch.zeros_like(agreed, dtype=torch.bool)
        judged = render_and_compare(show, self.space, found, path, code.mean[:, : path.shape[1]])
        voted = self._start_variance(agreed.gather(1, judged.best))
        return judged.likeliest, torch.where(judged.shown, self._rendered(agreed), voted), judged.shown

    def _rendered(self, like: Tensor) -> Float[Tensor, "G"]:
        """Variances of a pose at which memory predicts the observed views."""
        return like.new_tensor([each**2 for each in RENDERED][: len(self.groups)])

    def _look_again(
        self, start: State, doubt: Variance, track: Track, watched: Watched, code: Gaussian, past: Known, show: Show
    ) -> tuple[State, Track]:
        """A walk from an unknown start, with start and track moved to the end at which memory predicts its last views.

        These views decide between the estimated end and ends implied by matches, even if a slip on the way was missed.
        `doubt`: variance of the start. The first step adds none, since the start was inferred from where it led.
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
        """Possible ends of a walk, judged by its last views; the estimated end comes first, with the highest prior."""
        path = self.space.displacement(pose[:, -1:].expand_as(pose), pose)[:, -LAST:]
        ends, _ = locate_starts(self.compare, path, 0.0, last, past.pose, past.code, self.settings.rendered)
        chance = pose.new_tensor([1 - MISSED] + [MISSED] * ends.shape[1])
        return render_and_compare(show, self.space, torch.cat([pose[:, -1:], ends], 1), path, last.mean, chance.log())

    def _start_variance(self, agreed: Float[Tensor, "batch 1"]) -> Variance:
        """The variance of a start: that of a step that does not go as planned if all matches agree, up to `ignorance`.

        If memory's views judge the start, the fraction `SOME` of the votes is enough: a start that all steps vote for
        is better than what single ones see.
        """
        fresh = agreed.new_tensor([self.settings.stray**2, self.settings.stray_turn**2][: len(self.groups)])
        share = (agreed > SOME).to(agreed) if self.settings.rendered else agreed
        return share * fresh + (1 - share) * self.ignorance(len(agreed), agreed)

    @property
    def looks(self) -> int:
        """Number of first steps of a walk from which an unknown start is estimated."""
        return WATCHED if self.settings.watch else PLANNED

    def _first_steps(
        self, motion: Motion, actions: Actions, code: Gaussian, surprise: Surprise
    ) -> tuple[Float[Tensor, "batch looks D"], float]:
        """The path of these steps from the origin, and the chance that a step is wrong.

        Walls are ignored: they lie relative to a start that is unknown here.
        """
        start, first = motion.start(len(actions)), slice(0, self.looks)
        if not self.settings.watch:
            return motion.unroll_openly(start, actions[:, first])[..., : self.space.size], surprise.chance
        track = self._alone(motion, start, actions[:, first], code[:, first], surprise)
        return track.state[..., : self.space.size], 0.0

    def _alone(self, motion: Motion, start: State, actions: Actions, code: Gaussian, surprise: Surprise) -> Track:
        """The track of a walk from a known start, without walls, that recognises only its own earlier frames."""
        lookup, sure = self.look_back(code, code, 0), self._certain(start)
        sights = self._sights(self.compare(code, code, lookup), lookup)
        nothing = start[:, None, : self.space.size][:, :0], sure[:, None][:, :0]
        return motion.filter(start, actions, sure, sights, nothing, surprise, walls=False)

    def _fit_to_walls(self, motion: Motion, start: State, actions: Actions, code: Gaussian) -> Track:
        """The track of a walk from an unknown start without memory, shifted to where its failed steps fit the walls."""
        state, variance, slips, _ = self._alone(motion, start, actions, code, self.surprise)
        before, size = torch.cat([start[:, None], state[:, :-1]], dim=1), self.space.size
        steps = self.space.displacement(before[..., :size], state[..., :size])
        shift, added = motion.among_walls(before, actions, steps, self.settings.surprise)
        return Track(state + shift[:, None], variance + added[:, None], slips)

    def learn(self, motion: Motion, start: State, actions: Actions, code: Gaussian, lookup: Lookup) -> Learned:
        """q*(s_t) of a walk from a known start, with gradients and with the KL term of the bound.

        The paper's form is differentiated through all of time. Bayes' form filters without gradients first and then
        computes all steps again at once from the filtered states: its gradients are those of single steps.
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
        surprise = self.surprise._replace(habits=None)  # training uses the fast scan; its networks know little yet
        with torch.no_grad():
            # Walls are still being learned, and half-open ones would shrink the map.
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
        """The variance of an unknown pose; for a heading, that of a uniform angle."""
        return like.new_tensor([self.settings.reach**2, math.pi**2 / 3][: len(self.groups)]).repeat(batch, 1)

    def as_covariance(self, variance: Variance, state: Float[Tensor, "*n S"]) -> Float[Tensor, "*n S S"]:
        """The covariance of the whole state; that of velocities is 0."""
        rest = state.shape[-1] - self.space.size
        return torch.diag_embed(nn.functional.pad(self._spread(variance), (0, rest)))

    def as_variance(self, belief: Belief) -> Variance:
        """The variances of a belief's pose; 0 if it is known exactly."""
        if belief.covariance is None:
            return self._certain(belief.mean)
        diagonal = belief.covariance.diagonal(dim1=-2, dim2=-1)
        return torch.stack([diagonal[..., group].mean(-1) for group in self.groups], dim=-1)

    def _certain(self, state: Float[Tensor, "*n S"]) -> Variance:
        """Variances of 0."""
        return torch.zeros_like(state[..., : len(self.groups)])

    def _spread(self, variance: Variance) -> Float[Tensor, "*n D"]:
        """The variance of each coordinate."""
        sizes = [group.stop - group.start for group in self.groups]
        return torch.cat(
            [variance[..., g : g + 1].expand(*variance.shape[:-1], n) for g, n in enumerate(sizes)], dim=-1
        )

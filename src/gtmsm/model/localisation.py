"""Where a frame was seen: a mixture over poses, and the probability that it was seen at none of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.following import known, views_of
from gtmsm.model.memory import Memory
from gtmsm.model.recognition import Comparison, look_up
from gtmsm.model.rendering import Show, render_and_compare
from gtmsm.pose import Space
from gtmsm.tensors import Actions, Codes, Frames, gather

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel


@dataclass(frozen=True)
class PoseMixture:
    """A Gaussian mixture over poses, most likely first; its weights and `unknown` add up to 1."""

    weight: Float[Tensor, "batch M"]
    pose: Float[Tensor, "batch M D"]
    variance: Float[Tensor, "batch M G"]
    """Variance of the position and, if there is one, of the heading."""
    entry: Int[Tensor, "batch M"]
    """The entry of memory that matches best."""
    unknown: Float[Tensor, "batch"]
    """Probability that the frame was seen at none of these poses."""

    @property
    def known(self) -> Float[Tensor, "batch"]:
        """Probability that the frame was seen at one of these poses."""
        return 1 - self.unknown

    def judged(self, show: Show, space: Space, seen: Codes, most: int) -> "PoseMixture":
        """The mixture reweighted by the views that memory predicts at the `most` likeliest of its poses.

        The other poses are weighted as the least likely of these. The frame is known if the best of these predicts it.
        """
        some = self.pose[:, :most]
        judged = render_and_compare(show, space, some, torch.zeros_like(some[:, :1]), seen)
        rest = judged.log_prob.amin(1, keepdim=True).expand(-1, self.pose.shape[1] - some.shape[1])
        likely = self.weight.clamp_min(1e-12).log() + torch.cat([judged.log_prob, rest], dim=1)
        known = judged.known.gather(1, likely[:, :most].argmax(1, keepdim=True))
        weight = known * torch.softmax(likely, dim=1)
        order = likely.argsort(dim=1, descending=True, stable=True)
        pose = gather(torch.cat([judged.pose, self.pose[:, most:]], dim=1), order)
        variance, entry = gather(self.variance, order), self.entry.gather(1, order)
        return PoseMixture(weight.gather(1, order), pose, variance, entry, 1 - known[:, 0])


def merge_matches(
    compare: Comparison,
    log_odds: Float[Tensor, "batch K"],
    pose: Float[Tensor, "batch K D"],
    variance: Float[Tensor, "batch K G"],
    entry: Int[Tensor, "batch K"],
    log_known: Float[Tensor, "batch"],
) -> PoseMixture:
    """The mixture of K matches; poses within tolerance of each other are merged, with the sum of their weights.

    A merged pose is the mean of its poses, weighted by precision; so is its variance, which is not smaller than theirs:
    all matches are of one picture, so that their errors are correlated.
    """
    space, probability = compare.space, torch.softmax(log_odds, dim=-1)
    left = probability.clone()
    chosen, weights, poses, variances = [], [], [], []
    for _ in range(probability.shape[-1]):
        best = left.argmax(-1, keepdim=True)
        off = space.difference(gather(pose, best), pose)
        same = compare.right(off) & (left > 0)
        precision = (same | torch.zeros_like(same).scatter(1, best, True))[..., None] / variance
        share = precision / precision.sum(1, keepdim=True)
        moved = [(share[..., g, None] * off[..., group]).sum(1) for g, group in enumerate(space.groups)]
        weights.append((probability * same).sum(-1))
        chosen.append(best[:, 0])
        poses.append(gather(pose, best)[:, 0] + torch.cat(moved, dim=-1))
        variances.append((share * variance).sum(1))
        left = left.masked_fill(same, -1.0)
    weight, first = torch.stack(weights, 1), torch.stack(chosen, 1)
    order = weight.argsort(dim=-1, descending=True, stable=True)
    known, place, spread = torch.sigmoid(log_known), torch.stack(poses, 1), torch.stack(variances, 1)
    return PoseMixture(
        known[:, None] * weight.gather(1, order),
        gather(place, order),
        gather(spread, order),
        entry.gather(1, first.gather(1, order)),
        1 - known,
    )


def localise(model: "WorldModel", memory: Memory, frames: Frames, actions: Actions, guess: bool) -> PoseMixture:
    """Where the last frame of each clip was seen: from its code; for clips of several frames, from the walk that led
    there; and, with the setting `rendered`, from the views that memory predicts.

    `guess`: the actions are unknown, so that any may have been made.
    """
    landmarks, show = model.require_landmarks("localise"), views_of(model, memory)
    code = model.vae.encode(frames)
    past = known(model, memory, code)
    lookup = look_up(past.code, code, landmarks.settings.matches)
    log_odds, offset, noise = landmarks.compare(past.code, code, lookup)
    sure = landmarks.compare.confidence(log_odds, noise, lookup.distance).mean(1)
    score = landmarks.compare.evidence(log_odds, noise)[:, -1]
    entry = lookup.index[:, -1]
    pose = model.motion.space.step(gather(past.pose, entry), offset[:, -1])
    if frames.shape[1] > 1:
        here = model.anywhere(len(frames))
        track = landmarks.trace(
            model.motion, here.mean, landmarks.as_variance(here), actions, code, past, guess=guess, show=show
        ).track
        score = score + landmarks.log_prob(pose, noise[:, -1], track.state[:, -1], track.variance[:, -1])
    variance = noise[:, -1] + gather(past.variance, entry)
    found = merge_matches(landmarks.compare, score, pose, variance, past.number[entry], sure)
    if show is None:
        return found
    return found.judged(show, model.motion.space, code.mean[:, -1:], landmarks.settings.rendered)

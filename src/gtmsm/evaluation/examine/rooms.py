"""Scoring walks through rooms: poses with a heading in the start's frame, colours of rooms."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot
from gtmsm.data.store import Chart
from gtmsm.evaluation import metrics
from gtmsm.evaluation.examine.examiner import (
    CALIBRATED,
    Errors,
    Examiner,
    Masks,
    Placed,
    Walked,
    dead_reckoning,
    from_start,
    joined,
)
from gtmsm.evaluation.gallery import RoomsGallery
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.pose import PlaneWithHeading, wrapped
from gtmsm.worlds.floor_map import SHARP
from gtmsm.worlds.rooms import Rooms
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.visibility import seen_before
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

SPACE = PlaneWithHeading()
NEAR = 0.25
"""Units within which a pose counts as revisited ..."""
NEAR_TURN = math.radians(8)
"""... if its heading is within this, too: less than one step of a rotating agent."""
NEAR_IN_WIDTHS = 0.05
"""A position is right within this fraction of the room's width ..."""
RIGHT_TURN = 10.0
"""... if its heading is within as many degrees."""
LATE = 400
"""Frames after this step have a score of their own, where a clip is long enough (App. C shows 396 to 411)."""
SHOWN = {(33, 78): ((34, 41), (70, 77)), (150, 300): ((284, 299),), (150, 450): ((396, 411),)}
"""The runs of time steps that the paper shows, by tau and T; of other clips the last are shown."""
LAST = 16
PIXELS_EVERY = 8
"""Pixels seen before are told from others at every eighth step: neighbouring frames are alike."""


class RoomsExaminer(Examiner):
    """Poses are compared in the frame of each walk's own start: where a room lies on a map cannot be known."""

    unit = "wall heights"
    right = f"within {100 * NEAR_IN_WIDTHS:.0f}% of the room's width and {RIGHT_TURN:.0f}°"
    exact = False
    world: Rooms

    def __init__(self, world: World, tau: int, metric: bool = False) -> None:
        """See `Examiner`."""
        super().__init__(world, tau, metric)
        self.privileges = "the agent's start is the origin; " + (
            "true displacements as targets while training (section 4.2.2)" if metric else "no displacement loss"
        )
        self.poses = "from the true start on, " + (
            "as they are, in the world's units"
            if metric
            else "after the best turn, mirror image and scale, which actions alone cannot tell; fitted on other walks"
        )
        self._fit: tuple[Tensor, Tensor, float] | None = None
        self._errors: list[dict[str, Tensor]] = []
        self._pixels: list[dict[str, Tensor]] = []
        self._controls: dict[str, list[Tensor]] = {}
        """Of who knows no way: how far off positions are at the last step."""

    @property
    def where(self) -> Int[Tensor, "n"]:
        """Floor plans."""
        return self.world.where

    def same_place(
        self, past: Float[Tensor, "n before 3"], now: Float[Tensor, "n time 3"]
    ) -> Bool[Tensor, "n time before"]:
        """Near enough to see nearly the same; no two poses are exactly the same."""
        step = now[:, :, None] - past[:, None]
        return (step[..., :2].norm(dim=-1) <= NEAR) & (wrapped(step[..., 2]).abs() <= NEAR_TURN)

    def bumped(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Into walls and objects: models of rooms know neither."""
        return self.world.bumped[:, self.tau :]

    def places(self, clip: Clip, walk: Walked) -> tuple[Placed, Placed]:
        """x, y, cos and sin from the start; the model's by a fit of their own of true positions onto its own."""
        pose = from_start(clip.true_start, clip.true_pose)
        _, into_model, sign = self._fitted(pose, walk)
        known = torch.cat([pose[..., :2] @ into_model.to(pose), sign * pose[..., 2:]], dim=-1)
        return SPACE.place(pose), SPACE.place(known)

    def _move_in(self, generator: torch.Generator) -> None:
        """At rest on free spots, facing anywhere."""
        place, spots = self.world.where, self.world.plans.spots
        spot = torch.randint(spots.shape[1], place.shape, device=generator.device, generator=generator)
        heading = 2 * math.pi * torch.rand(len(place), 1, device=generator.device, generator=generator)
        self.world.place(place, torch.cat([spots[place, spot.to(place.device)], heading.to(spots.device)], dim=1))

    def clumsy(self, walker: Walker) -> Walker | None:
        """Of walkers from object to object: one that goes straight into what is in the way."""
        if not isinstance(walker, ScavengerWalker) or walker.config.may_bump:
            return None
        return ScavengerWalker(replace(walker.config, may_bump=True))

    def careful(self, walker: Walker) -> Walker | None:
        """Of walkers that go straight into what is in the way: one that goes around it."""
        if not isinstance(walker, ScavengerWalker) or not walker.config.may_bump:
            return None
        return ScavengerWalker(replace(walker.config, may_bump=False))

    def errors(self, believed: Float[Tensor, "n time 3"], true: Float[Tensor, "n time 3"]) -> Errors:
        """Headings, and distances, also in widths of the room."""
        off = (believed - true)[..., :2].norm(dim=-1)
        return {
            "heading_error": wrapped(believed[..., 2] - true[..., 2]).abs().rad2deg(),
            "position_error": off,
            "position_error_relative": off / self.world.width[:, None],
        }

    def within(self, errors: Errors) -> Bool[Tensor, "n time"]:
        """Near, and facing the right way."""
        return (errors["position_error_relative"] <= NEAR_IN_WIDTHS) & (errors["heading_error"] <= RIGHT_TURN)

    def as_claimed(self, errors: Errors, settings: LandmarkConfig) -> Bool[Tensor, "n time"]:
        """Within the tolerances that the model learned to be sure of."""
        turn = errors["heading_error"] <= settings.tolerance_turn
        return turn & (errors["position_error"] <= settings.tolerance)

    def judge(self, clip: Clip, frames: Tensor) -> Errors:
        """Where there are several rooms: how wrong the colours of floor and wall are, of 255."""
        if not self._several_rooms:
            return {}
        truth, height = clip.x[:, self.tau :], frames.shape[-2]
        rows = {"floor": slice(3 * height // 4, None), "wall": slice(3 * height // 8, 5 * height // 8)}

        def colour(picture: Tensor, part: slice) -> Tensor:
            return picture[..., part, :].mean((-2, -1))

        return {
            f"{name}_colour_error": 255 * (colour(truth, part) - colour(frames, part)).abs().mean(-1)
            for name, part in rows.items()
        }

    def masks(self, clip: Clip) -> Masks:
        """Where there are several rooms: steps in one that was left after it was memorised, and entered again; steps in
        any that was walked in while memorising; those of them after 400."""
        if not self._several_rooms:
            return {}
        batch, time = clip.true_pose.shape[:2]
        place = self.world.where[:, None].expand(batch, time)
        region = self.world.plans.region_at(place.flatten(), clip.true_pose[..., :2].flatten(0, 1)).view(batch, time)
        in_a_room = (region >= 0) & self.world.plans.is_room[place, region.clamp_min(0)]
        past, future = region[:, None, : self.tau], region[:, self.tau :, None]
        seen = (past == future).any(-1) & in_a_room[:, self.tau :]
        # Left since: some step from the last memorised one to this one was elsewhere.
        elsewhere = region[:, None, self.tau - 1 :] != future
        so_far = torch.ones(elsewhere.shape[1:], dtype=torch.bool, device=seen.device).tril()
        late = torch.arange(self.tau, time, device=seen.device) >= LATE
        return {
            "reentered_rooms": seen & (elsewhere & so_far).any(-1),
            "seen_rooms": seen,
            "seen_rooms_late": seen & late,
        }

    def note(self, clip: Clip, walk: Walked, imagined: Tensor, reckoned: Walked | None = None) -> None:
        """As in every world; also errors of pixels whose surfaces were seen while memorising, and of all others."""
        super().note(clip, walk, imagined, reckoned)
        past, future = clip.true_pose.split([self.tau, clip.steps - self.tau], dim=1)
        world, device = self.world, imagined.device
        poses = (part.to(device) for part in (world.where[: len(past)], past, future[:, ::PIXELS_EVERY]))
        seen = seen_before(world.plans.scene.to(device), world.camera, *poses)
        truth = clip.x[:, self.tau :][:, ::PIXELS_EVERY].to(device)
        off = (truth - imagined[:, ::PIXELS_EVERY]).square().mean(2)
        parts = {"seen": seen, "error": off}
        self._pixels.append({name: part.flatten(0, 1).cpu() for name, part in parts.items()})

    def _add(self, clip: Clip, walk: Walked, reckoned: Walked | None) -> None:
        true = from_start(clip.true_start, clip.true_pose)
        self._fitted(true, walk)
        errors = self.errors(self.in_world(walk), true)
        self._errors.append({name: error.cpu() for name, error in errors.items()})
        for name, poses in (("standing_still", 0 * true), ("at_the_mean", true.mean(1, keepdim=True).expand_as(true))):
            off = self.errors(poses, true)["position_error_relative"][:, -1]
            self._controls.setdefault(f"{name}_position_error_relative", []).append(off.cpu())

    def _scenes(self, clip: Clip, walk: Walked) -> dict[str, Any]:
        poses = SPACE.step(clip.true_start[:, None], self.in_world(walk))
        maps = tuple(self.world.map(place) for place in self.world.where[: len(clip.x)].tolist())
        return {"inferred_pose": poses.cpu().numpy(), "maps": maps}

    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch 3"]:
        """In the start's frame."""
        assert self._fit is not None
        matrix, _, sign = self._fit
        return torch.cat([walk[..., :2] @ matrix.to(walk), sign * walk[..., 2:3]], dim=-1)

    def scores(self) -> dict[str, Any]:
        """Errors of heading and position, at the end and at every step; PSNR of pixels seen before, and of others."""
        curves, pixels = joined(self._errors), joined(self._pixels)
        seen, off = pixels["seen"], pixels["error"]
        of_pixels = {
            "seen_pixels": seen.double().mean().item(),
            "psnr_seen_pixels": metrics.psnr_pooled(off, seen),
            "psnr_unseen_pixels": metrics.psnr_pooled(off, ~seen),
        }
        return (
            of_pixels
            | {name: float(error[:, -1].mean()) for name, error in curves.items()}
            | {f"{name}_by_step": error.mean(0).tolist() for name, error in curves.items()}
            | {name: torch.cat(off).double().mean().item() for name, off in self._controls.items()}
        )

    def gallery(self, model: WorldModel) -> RoomsGallery:
        """Poses on the map, and what actions do."""
        steps = self._examples["true_pose"].shape[1]
        last = (max(self.tau, steps - LAST) + 1, steps)
        learned, true = self._pushes(model)
        return RoomsGallery(
            **self._examples,
            tau=self.tau,
            strips=SHOWN.get((self.tau, steps), (last,)),
            displacement=learned,
            true_displacement=true,
            action_names=self.world.action_names,
        )

    def chart(self) -> Chart:
        """The floor plan."""
        floor = self.world.map(int(self.world.where[0]))
        per_unit = floor.scale / SHARP
        (west, south), tall = floor.corner, floor.image.height / SHARP
        origin = np.array([-west * per_unit, tall + south * per_unit])
        return Chart(floor.pixels(), origin, np.array([[per_unit, 0.0], [0.0, -per_unit]]))

    @property
    def _several_rooms(self) -> bool:
        return self.world.config.plan != "room"

    def calibrate(
        self, model: WorldModel, walker: Walker, steps: int, seed: int, elsewhere: World | None = None
    ) -> None:
        """By 32 walks that are not scored, followed by actions alone."""
        generator = torch.Generator().manual_seed(seed)
        self.world.reset(CALIBRATED, generator)
        start, actions = self.world.pose, walker(self.world, steps, generator)
        a = one_hot(actions, len(self.world.action_names))
        self._fit = None
        self._fitted(from_start(start, self.world.travel(actions)), dead_reckoning(model, a))

    def _fitted(self, true: Float[Tensor, "n time 3"], walk: Walked) -> tuple[Tensor, Tensor, float]:
        """The turn, mirror image and scale by which the model's positions fit true ones best, those by which true ones
        fit the model's, and the sign of headings; found on the first walks, kept for the rest."""
        if self._fit is None:
            same = torch.eye(2, dtype=torch.float64)
            self._fit = same, same, 1.0
            if not self.metric:
                true, mine = (poses.double().cpu().flatten(0, 1) for poses in (true, walk))
                off = [wrapped(sign * mine[:, 2] - true[:, 2]).abs().mean() for sign in (1.0, -1.0)]
                sign = 1.0 if off[0] <= off[1] else -1.0
                mirror = torch.tensor([[1.0, 0.0], [0.0, sign]], dtype=torch.float64)
                here, there = mine[:, :2] @ mirror, true[:, :2]
                self._fit = mirror @ _turned_onto(here, there), _turned_onto(there, here) @ mirror, sign
        return self._fit

    def _pushes(self, model: WorldModel) -> tuple[Any, Any]:
        """What one step of each action does to an agent at rest: as learned, and as it is in the middle of a room."""
        count, motion = len(self.world.action_names), model.motion
        start = motion.start(count)
        actions = torch.arange(count, device=start.device)
        learned = self.in_world(motion.unroll(start, one_hot(actions[:, None], count))[:, 0, :3].cpu())
        spots = self.world.plans.spots[:1, :1, :].expand(count, 1, 2)[:, 0]
        before = torch.cat([spots, torch.zeros_like(spots[:, :1])], dim=-1)
        self.world.place(torch.zeros(count, dtype=torch.long), before)
        self.world.step(actions)
        return learned.numpy(), SPACE.displacement(before, self.world.pose).cpu().numpy()


def _turned_onto(these: Float[Tensor, "n 2"], those: Float[Tensor, "n 2"]) -> Float[Tensor, "2 2"]:
    """The turn and scale that take positions, as rows, nearest to others."""
    length2 = these.square().sum().clamp_min(1e-12)
    along = (these * those).sum() / length2
    across = (these[:, 0] * those[:, 1] - these[:, 1] * those[:, 0]).sum() / length2
    return torch.stack([torch.stack([along, across]), torch.stack([-across, along])])

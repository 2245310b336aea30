"""Scoring walks through rooms: poses with a heading, relative to the start; colours of rooms."""

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
"""Maximum distance, in units of the world, of a revisited pose ..."""
NEAR_TURN = math.radians(8)
"""... and maximum difference in heading, in radians: less than one step of a rotating agent."""
NEAR_IN_WIDTHS = 0.05
"""Maximum error of a right position, as a fraction of the room's width ..."""
RIGHT_TURN = 10.0
"""... and of its heading, in degrees."""
LATE = 400
"""Frames after this step have a separate score if a clip is long enough (App. C shows 396 to 411)."""
SHOWN = {(33, 78): ((34, 41), (70, 77)), (150, 300): ((284, 299),), (150, 450): ((396, 411),)}
"""Ranges of time steps that the paper shows, by tau and T; of other clips the last steps are shown."""
LAST = 16
PIXELS_EVERY = 8
"""Scores of pixels are computed at every eighth step, since successive frames are alike."""


class RoomsExaminer(Examiner):
    """Scores walks through rooms. Poses are compared relative to the start of each walk, since a model cannot know
    where a room lies on a map."""

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
        """Errors in position at the last step of controls that ignore actions."""

    @property
    def where(self) -> Int[Tensor, "n"]:
        """The number of each agent's floor plan."""
        return self.world.where

    def same_place(
        self, past: Float[Tensor, "n before 3"], now: Float[Tensor, "n time 3"]
    ) -> Bool[Tensor, "n time before"]:
        """Which past poses are within `NEAR` and `NEAR_TURN`; poses hardly ever recur exactly."""
        step = now[:, :, None] - past[:, None]
        return (step[..., :2].norm(dim=-1) <= NEAR) & (wrapped(step[..., 2]).abs() <= NEAR_TURN)

    def bumped(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Predicted steps that bump into walls or objects: models of rooms know neither."""
        return self.world.bumped[:, self.tau :]

    def places(self, clip: Clip, walk: Walked) -> tuple[Placed, Placed]:
        """x, y, cos and sin relative to the start; for the model's space, true positions are fitted to the model's."""
        pose = from_start(clip.true_start, clip.true_pose)
        _, into_model, sign = self._fitted(pose, walk)
        known = torch.cat([pose[..., :2] @ into_model.to(pose), sign * pose[..., 2:]], dim=-1)
        return SPACE.place(pose), SPACE.place(known)

    def _move_in(self, generator: torch.Generator) -> None:
        """Draw free spots and headings uniformly; agents are at rest."""
        place, spots = self.world.where, self.world.plans.spots
        spot = torch.randint(spots.shape[1], place.shape, device=generator.device, generator=generator)
        heading = 2 * math.pi * torch.rand(len(place), 1, device=generator.device, generator=generator)
        self.world.place(place, torch.cat([spots[place, spot.to(place.device)], heading.to(spots.device)], dim=1))

    def clumsy(self, walker: Walker) -> Walker | None:
        """For a walker from object to object: one that bumps into obstacles on its way."""
        if not isinstance(walker, ScavengerWalker) or walker.config.may_bump:
            return None
        return ScavengerWalker(replace(walker.config, may_bump=True))

    def careful(self, walker: Walker) -> Walker | None:
        """For a walker from object to object that bumps into obstacles: one that goes around them."""
        if not isinstance(walker, ScavengerWalker) or not walker.config.may_bump:
            return None
        return ScavengerWalker(replace(walker.config, may_bump=False))

    def errors(self, believed: Float[Tensor, "n time 3"], true: Float[Tensor, "n time 3"]) -> Errors:
        """Errors of the heading in degrees and of the position, in units of the world and in widths of the room."""
        off = (believed - true)[..., :2].norm(dim=-1)
        return {
            "heading_error": wrapped(believed[..., 2] - true[..., 2]).abs().rad2deg(),
            "position_error": off,
            "position_error_relative": off / self.world.width[:, None],
        }

    def within(self, errors: Errors) -> Bool[Tensor, "n time"]:
        """Whether errors are within `NEAR_IN_WIDTHS` and `RIGHT_TURN`."""
        return (errors["position_error_relative"] <= NEAR_IN_WIDTHS) & (errors["heading_error"] <= RIGHT_TURN)

    def as_claimed(self, errors: Errors, settings: LandmarkConfig) -> Bool[Tensor, "n time"]:
        """Whether errors are within the tolerances that the model's confidence refers to."""
        turn = errors["heading_error"] <= settings.tolerance_turn
        return turn & (errors["position_error"] <= settings.tolerance)

    def judge(self, clip: Clip, frames: Tensor) -> Errors:
        """If there are several rooms: errors of the colours of floor and wall, out of 255."""
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
        """If there are several rooms: steps in a memorised room that was left and entered again; steps in any memorised
        room; and those of the latter after step 400."""
        if not self._several_rooms:
            return {}
        batch, time = clip.true_pose.shape[:2]
        place = self.world.where[:, None].expand(batch, time)
        region = self.world.plans.region_at(place.flatten(), clip.true_pose[..., :2].flatten(0, 1)).view(batch, time)
        in_a_room = (region >= 0) & self.world.plans.is_room[place, region.clamp_min(0)]
        past, future = region[:, None, : self.tau], region[:, self.tau :, None]
        seen = (past == future).any(-1) & in_a_room[:, self.tau :]
        # The room was left if any step from the last memorised one to this one was elsewhere.
        elsewhere = region[:, None, self.tau - 1 :] != future
        so_far = torch.ones(elsewhere.shape[1:], dtype=torch.bool, device=seen.device).tril()
        late = torch.arange(self.tau, time, device=seen.device) >= LATE
        return {
            "reentered_rooms": seen & (elsewhere & so_far).any(-1),
            "seen_rooms": seen,
            "seen_rooms_late": seen & late,
        }

    def note(self, clip: Clip, walk: Walked, imagined: Tensor, reckoned: Walked | None = None) -> None:
        """See `Examiner`; also stores errors of pixels, and which of them show surfaces seen while memorising."""
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
        """Poses relative to the start, in the world's units."""
        assert self._fit is not None
        matrix, _, sign = self._fit
        return torch.cat([walk[..., :2] @ matrix.to(walk), sign * walk[..., 2:3]], dim=-1)

    def scores(self) -> dict[str, Any]:
        """Errors of heading and position at the last and at every step; PSNR of pixels seen before, and of others."""
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
        """The first few walks, with poses on the map, and displacements by each action."""
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
        """Fit the map of poses on 32 walks that are not scored, by actions alone."""
        generator = torch.Generator().manual_seed(seed)
        self.world.reset(CALIBRATED, generator)
        start, actions = self.world.pose, walker(self.world, steps, generator)
        a = one_hot(actions, len(self.world.action_names))
        self._fit = None
        self._fitted(from_start(start, self.world.travel(actions)), dead_reckoning(model, a))

    def _fitted(self, true: Float[Tensor, "n time 3"], walk: Walked) -> tuple[Tensor, Tensor, float]:
        """The best rotation, reflection and scale from the model's positions to true ones, and from true ones to the
        model's; and the sign of headings. Fitted on the first walks, then kept."""
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
        """Displacement of an agent at rest by each action: as learned, and the true one in the middle of a room."""
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
    """The rotation and scale that map positions, as rows, closest to others (least squares)."""
    length2 = these.square().sum().clamp_min(1e-12)
    along = (these * those).sum() / length2
    across = (these[:, 0] * those[:, 1] - these[:, 1] * those[:, 0]).sum() / length2
    return torch.stack([torch.stack([along, across]), torch.stack([-across, along])])

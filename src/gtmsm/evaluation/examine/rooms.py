"""What is particular to scoring walks through rooms: poses in the start's frame, headings, colours of rooms."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot
from gtmsm.evaluation.gallery import RoomsGallery
from gtmsm.model.gtmsm import WorldModel
from gtmsm.pose import PlaneWithHeading
from gtmsm.worlds.rooms import Rooms

SPACE = PlaneWithHeading()
NEAR = 0.25
"""Units within which a pose counts as revisited ..."""
NEAR_TURN = math.radians(8)
"""... if its heading is within this, too: less than one step of a rotating agent."""
LATE = 400
"""Frames after this step are scored apart, where a clip is long enough (App. C shows 396 to 411)."""
SHOWN = {(33, 78): ((34, 41), (70, 77)), (150, 300): ((284, 299),), (150, 450): ((396, 411),)}
"""The stretches of time steps that the paper shows, by tau and T; of other clips the last are shown."""
LAST = 16
EXAMPLES = 4


class RoomsExaminer:
    """Poses are compared in the frame of each walk's own start: where a room lies on a map cannot be known."""

    def __init__(self, world: Rooms, tau: int, horizon: int, metric: bool) -> None:
        """For walks in `world` of which tau steps are memorised; `metric`: poses are in the world's units."""
        self.world, self.tau, self.horizon, self.metric = world, tau, horizon, metric
        self.privileges = "the agent's start is the origin; " + (
            "true displacements as targets while training (section 4.2.2)" if metric else "no displacement loss"
        )
        self.poses = "from the true start on, " + (
            "as they are, in the world's units"
            if metric
            else "after the best linear map of positions and sign of headings, which actions alone cannot tell"
        )
        self._fit: tuple[Tensor, float] | None = None
        self._heading: list[Tensor] = []
        self._position: list[Tensor] = []
        self._relative: list[Tensor] = []
        self._examples: dict[str, Any] = {}

    def revisited(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Which predicted steps are at a pose near a memorised one."""
        past, future = clip.true_pose[:, None, : self.tau], clip.true_pose[:, self.tau :, None]
        near = (future - past)[..., :2].norm(dim=-1) <= NEAR
        return (near & (wrapped((future - past)[..., 2]).abs() <= NEAR_TURN)).any(-1)

    def hits(self, clip: Clip, retrieved: Int[Tensor, "batch future"]) -> None:
        """No two poses are exactly the same."""
        return None

    def true_places(self, clip: Clip) -> Float[Tensor, "batch time 4"]:
        """x, y, cos and sin, in the start's frame."""
        return SPACE.place(_from_start(clip))

    def known_places(
        self, model: WorldModel, clip: Clip, walk: Float[Tensor, "batch time S"]
    ) -> Float[Tensor, "batch time 4"]:
        """True poses as the model would have them."""
        matrix, sign = self._fitted(clip, walk)
        pose = _from_start(clip)
        xy = pose[..., :2] @ torch.linalg.pinv(matrix).to(pose)
        return SPACE.place(torch.cat([xy, sign * pose[..., 2:]], dim=-1))

    def judge(self, clip: Clip, frames: Tensor) -> dict[str, Float[Tensor, "batch future"]]:
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

    def masks(self, clip: Clip) -> dict[str, Bool[Tensor, "batch future"]]:
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

    def note(
        self,
        clip: Clip,
        walk: Float[Tensor, "batch time S"],
        imagined: Tensor,
        reckoned: Float[Tensor, "batch time S"] | None = None,
    ) -> None:
        """Compare poses with the truth; keep the first few clips to show."""
        self._fitted(clip, walk)
        true, believed = _from_start(clip), self.in_world(walk)
        self._heading.append(wrapped(believed[..., 2] - true[..., 2]).abs().rad2deg().cpu())
        off = (believed - true)[..., :2].norm(dim=-1)
        self._position.append(off.cpu())
        self._relative.append((off / self.world.width[:, None]).cpu())
        if self._examples:
            return
        some = slice(min(EXAMPLES, len(walk)))
        self._examples = {
            "truth": clip.x[some, self.tau :].cpu().numpy(),
            "imagined": imagined[some].cpu().numpy(),
            "true_pose": clip.true_pose[some].cpu().numpy(),
            "inferred_pose": SPACE.step(clip.true_start[:, None], believed)[some].cpu().numpy(),
            "seen": self.revisited(clip)[some].cpu().numpy(),
            "maps": tuple(self.world.map(place) for place in self.world.where[some].tolist()),
        }

    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch 3"]:
        """Poses of the model from the start of its walk, in the world's units; after `note`."""
        assert self._fit is not None
        matrix, sign = self._fit
        return torch.cat([walk[..., :2] @ matrix.to(walk), sign * walk[..., 2:3]], dim=-1)

    def scores(self) -> dict[str, Any]:
        """Errors of heading and position, at the end and at every step."""
        curves = {
            "heading_error": torch.cat(self._heading),
            "position_error": torch.cat(self._position),
            "position_error_relative": torch.cat(self._relative),
        }
        return {name: float(error[:, -1].mean()) for name, error in curves.items()} | {
            f"{name}_by_step": error.mean(0).tolist() for name, error in curves.items()
        }

    def gallery(self, model: WorldModel) -> RoomsGallery:
        """What to show."""
        steps = self.tau + self.horizon
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

    @property
    def _several_rooms(self) -> bool:
        return self.world.config.plan != "room"

    def _fitted(self, clip: Clip, walk: Float[Tensor, "batch time S"]) -> tuple[Tensor, float]:
        """positions = model's @ matrix, headings = sign * model's; found on the first clips, kept for the rest."""
        if self._fit is None:
            if self.metric:
                self._fit = torch.eye(2, dtype=torch.float64), 1.0
            else:
                true = _from_start(clip).double().cpu().flatten(0, 1)
                mine = walk.double().cpu().flatten(0, 1)
                matrix = torch.linalg.lstsq(mine[:, :2], true[:, :2], driver="gelsd").solution
                off = [wrapped(sign * mine[:, 2] - true[:, 2]).abs().mean() for sign in (1.0, -1.0)]
                self._fit = matrix, 1.0 if off[0] <= off[1] else -1.0
        return self._fit

    def _pushes(self, model: WorldModel) -> tuple[Any, Any]:
        """What one step of each action does to an agent at rest: as learned, and as it is in the middle of a room."""
        count = len(self.world.action_names)
        matrix, sign = self._fit or (torch.eye(2, dtype=torch.float64), 1.0)
        motion = model.motion
        start = motion.start(count)
        actions = torch.arange(count, device=start.device)
        learned = motion.unroll(start, one_hot(actions[:, None], count))[:, 0, :3].cpu()
        learned = torch.cat([learned[:, :2] @ matrix.to(learned), sign * learned[:, 2:]], dim=-1)
        spots = self.world.plans.spots[:1, :1, :].expand(count, 1, 2)[:, 0]
        before = torch.cat([spots, torch.zeros_like(spots[:, :1])], dim=-1)
        self.world.place(torch.zeros(count, dtype=torch.long), before)
        self.world.step(actions)
        return learned.numpy(), SPACE.displacement(before, self.world.pose).cpu().numpy()


def wrapped(angle: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The same angle between -pi and pi."""
    return torch.atan2(angle.sin(), angle.cos())


def _from_start(clip: Clip) -> Float[Tensor, "batch time 3"]:
    """True poses as they lie from each walk's start."""
    return SPACE.displacement(clip.true_start[:, None], clip.true_pose)

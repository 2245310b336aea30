"""Where pictures of Memory Maze show its targets, whose colours and size are known, and so is the lens."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

PIXELS, RADIUS = 64, 0.3
"""Side of a picture, and half of a target's width in cells."""
FOCAL = PIXELS / 2 / math.tan(math.radians(40))
"""Of a lens of 80 degrees, in pixels."""
LEVEL, RISE = 28.75, 0.45
"""Row of the horizon, since the camera looks down a little, and the camera's height in cells."""
HORIZON = 28
"""Row of a picture above which there is never a target, but there are walls of its colour."""
NARROWEST, SURE, AGREE = 6, 30, 0.5
"""Pixels of a target that is looked at (narrower ones are walls often); pixels of all sightings that settle where one
is, and how near to their middle these must be, in cells."""
LARGE = 10
"""Pixels of a target that is hardly ever something else."""
WHOLE = 0.9
"""Share of its width that is seen of a target that nothing hides."""
BETWEEN = 0.1
"""Cells between points of open ground, from where a target was seen to where it is, and around it."""
MISTAKEN = 0.03
"""Share of the sightings that are of something else, or badly off."""
UNSURE_FAR, UNSURE_BEARING = (0.06, 0.07), 0.05
"""Standard deviations of a sighting: of its distance in cells, and how much more per cell; of its bearing."""
REACH, UNSURE_REACH = 0.27, 0.09
"""How far from the middle of a target it is after the step that touched it, in cells, and how sure that is."""


def matching(frame, colour):
    """Which pixels have the colour of a target, whatever the light."""
    pixels = frame.astype(float)
    like = pixels @ colour / np.maximum(np.linalg.norm(pixels, axis=2) * np.linalg.norm(colour), 1.0)
    return (like > 0.99) & (pixels.max(2) > 50)


def things(frame, colours):
    """Columns of a picture in which there may be a target."""
    return np.any([matching(frame, np.array(colour))[HORIZON:].any(0) for colour in colours], 0)


def sighting(frame, colour):
    """A target in a picture: how far ahead and to the left it is, in cells, and how wide it looks; None: none there."""
    match = matching(frame, np.array(colour))
    columns = match[HORIZON:].any(0) & ~match[:HORIZON].any(0)
    found = np.flatnonzero(columns)
    if len(found) < NARROWEST or found[0] == 0 or found[-1] == PIXELS - 1 or found[-1] - found[0] + 1 != len(found):
        return None
    rows = np.flatnonzero(match[:, found].any(1))
    if rows[-1] - rows[0] + 1 > len(found):  # higher than wide
        return None
    ahead = RISE * FOCAL / (rows[-1] + 1 - LEVEL) + 0.9 * RADIUS
    if rows[-1] == PIXELS - 1:  # its foot is out of view
        ahead = 2 * RADIUS * FOCAL / len(found)
    return ahead, ahead * (PIXELS / 2 - (found[0] + found[-1] + 1) / 2) / FOCAL, len(found)


@dataclass
class Targets:
    """Where sightings put the targets, in the model's frame, in cells."""

    points: dict[tuple[float, ...], list[tuple[float, float, float]]] = field(default_factory=dict)
    seen_from: dict[tuple[float, ...], list[tuple[bool, int, tuple[float, float]]]] = field(default_factory=dict)
    """Sightings on the memorised walk: whether it was large and nothing hid it, how wide it looked, and from where."""

    def see(self, frame, pose, colours, walking):
        """Note what is seen from a pose, on the memorised walk or after it."""
        for colour in colours:
            if (seen := sighting(frame, colour)) is not None:
                ahead, left, width = seen
                c, s = math.cos(pose[2]), math.sin(pose[2])
                point = np.array([pose[0] + c * ahead - s * left, pose[1] + s * ahead + c * left])
                if (place := self.place(colour)) is not None and np.hypot(*(point - place)) > AGREE:
                    continue
                self.points.setdefault(colour, []).append((*point, width**2))
                if walking:
                    clear = width >= LARGE and width > WHOLE * 2 * RADIUS * FOCAL / ahead
                    self.seen_from.setdefault(colour, []).append((clear, width, pose[:2]))

    def place(self, colour):
        """The weighted median of all sightings; None where few agree."""
        if colour not in self.points:
            return None
        x, y, weight = np.array(self.points[colour]).T
        middle = np.array([_median(x, weight), _median(y, weight)])
        agree = np.hypot(x - middle[0], y - middle[1]) < AGREE
        return middle if np.sqrt(weight[agree]).sum() >= SURE else None

    def ground(self):
        """Points of open ground: clear lines of sight from the walk to each target, or the best one; and around it."""
        points, angles = [np.zeros((0, 2))], np.arange(0, 2 * np.pi, BETWEEN / RADIUS)
        for colour, sightings in self.seen_from.items():
            if (place := self.place(colour)) is not None:
                points.append(place + RADIUS * np.stack([np.cos(angles), np.sin(angles)], -1))
                for clear, _, one in sightings:
                    if clear or one == max(sightings)[2]:
                        points.append(np.linspace(one, place, 2 + int(np.hypot(*(place - one)) / BETWEEN)))
        return np.concatenate(points)

    def implied(self, frame, touched=None):
        """Where the agent is by a target that is touched or looks large: its place, how far ahead and to the left."""
        if touched is not None and (place := self.place(touched)) is not None:
            return place, REACH, 0.0
        for colour in self.points:
            seen, place = sighting(frame, colour), self.place(colour)
            if seen is not None and place is not None and seen[2] >= LARGE:
                return place, *seen[:2]
        return None

    def likely(self, frame, poses, touched=None):
        """Log-likelihood of what a picture shows of the targets, and of a touch, at each of these poses (in cells)."""
        total = torch.zeros(len(poses))
        for colour in self.points:
            if (place := self.place(colour)) is None:
                continue
            away = torch.tensor(place, dtype=torch.float32) - poses[:, :2]
            far = away.norm(dim=-1)
            if colour == touched:
                total += _mistaken((far - REACH) / UNSURE_REACH)
            elif (seen := sighting(frame, colour)) is not None:
                ahead, left, _ = seen
                beside = torch.atan2(away[:, 1], away[:, 0]) - poses[:, 2] - math.atan2(left, ahead)
                beside = torch.remainder(beside + math.pi, 2 * math.pi) - math.pi
                off = (far - math.hypot(ahead, left)) / (UNSURE_FAR[0] + UNSURE_FAR[1] * far)
                total += _mistaken(torch.stack([off, beside / UNSURE_BEARING]).norm(dim=0))
        return total


def small(frame):
    """A picture as the model takes it, of half the size."""
    half = frame.reshape(PIXELS // 2, 2, PIXELS // 2, 2, 3).mean((1, 3))
    return half.round().astype(np.uint8)


def _mistaken(off):
    """Log-likelihood of something so many standard deviations off, or of anything else."""
    return torch.logaddexp(-0.5 * off.square(), torch.tensor(math.log(MISTAKEN)))


def _median(values, weights):
    order = np.argsort(values)
    return values[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]

"""Filtering of a walk with loops closed on the way, in one call."""

import torch

from gtmsm.model.landmark_filter import Past, Sights, Surprise, Track, Watched
from gtmsm.model.motion import Motion
from gtmsm.model.place_graph import PlaceGraph, Sameness
from gtmsm.model.pose_graph import close_loops, close_watched_loops, planned_steps
from gtmsm.model.slips import Slips
from gtmsm.tensors import Actions, Poses, State, States, Variance


def filter_with_closure(
    motion: Motion,
    start: State,
    variance: Variance,
    actions: Actions,
    sights: Sights,
    past: Past,
    surprise: Surprise,
    same: Sameness,
    every: int,
    bonus: float,
    slips: Slips | None = None,
) -> tuple[Track, States]:
    """`Motion.filter`, with loops closed each time after `every` steps; later steps use the corrected map.

    Also the filtered state after each step, before later frames corrected it. `bonus` is added to the log-odds of
    sights when loops are closed.
    """
    size, s, v = motion.pose_size, start, variance
    states, variances, plans = start[:, None][:, :0], variance[:, None][:, :0], start[:, None, :size][:, :0]
    added, believed, learned = variances, [], []
    maps = _Maps(motion, start, past, same)
    for begin in range(0, actions.shape[1], every):
        now = slice(begin, begin + every)
        entries = torch.cat([past[0], states[..., :size]], 1), torch.cat([past[1], variances], 1)
        seen = Sights(*(part[:, now] for part in sights))
        state, more, column, watched = motion.filter(
            s, actions[:, now], v, seen, entries, surprise, walls=True, slips=slips
        )
        believed.append(state)
        if column is not None:
            learned.append(column)
            slips = Slips.of_column(column[:, -1])
        plan = watched.step if watched else planned_steps(motion, s, state, actions[:, now])
        plans = torch.cat([plans, plan], 1)
        states, variances = torch.cat([states, state], 1), torch.cat([variances, more], 1)
        pose = states[..., :size].clone()
        so_far = Sights(*(part[:, : now.stop] for part in sights))
        trusted = so_far._replace(log_odds=so_far.log_odds + bonus)
        if watched:
            added = torch.cat([added, watched.added], 1)
            watched = Watched(plans, added)
        if others := maps.close(pose, plans, so_far, surprise, bonus):
            begun, some = start[others, :size], Sights(*(part[others] for part in trusted))
            if watched:
                steps = Watched(plans[others], added[others])
                pose[others], variances[others] = close_watched_loops(
                    motion.space, pose[others], begun, variance[others], steps, some, past[0][others]
                )
            else:
                rest = (begun, plans[others], some, past[0][others], surprise)
                pose[others] = close_loops(motion.space, pose[others], *rest)
        states = torch.cat([pose, states[..., size:]], dim=-1)
        s, v = states[:, -1], variances[:, -1]
    column = torch.cat(learned, dim=1) if learned else None
    return Track(states, variances, column, watched), torch.cat(believed, dim=1)


class _Maps:
    """A graph of places for each walk, kept once most of its views are equal to earlier ones."""

    def __init__(self, motion: Motion, start: State, past: Past, same: Sameness) -> None:
        self.space, self.same, self.start, self.past = motion.space, same, start[:, : motion.pose_size], past[0]
        self.graphs: dict[int, PlaceGraph] = {}

    def close(self, pose: Poses, plan: Poses, sights: Sights, surprise: Surprise, bonus: float) -> list[int]:
        """Correct the poses of the walks so far in place, by their graphs; return the walks without a graph to use."""
        often = self.same.is_back(sights, self.past.shape[1]).tolist()
        for b in range(len(pose)):
            if b not in self.graphs and not often[b]:
                continue
            graph = self.graphs.get(b) or PlaceGraph.begin(self.past.shape[1], self.start[b], len(self.space.groups))
            new = slice(len(graph), None)
            seen = Sights(*(part[b, new] for part in sights))
            graph = graph.then(self.space, self.same, pose[b, new], plan[b, new], seen, self.past[b].__getitem__)
            if graph.is_map:
                graph = graph.closed(self.space, self.same, surprise, bonus)
                pose[b] = graph.poses.to(pose)
            self.graphs[b] = graph
        return [b for b in range(len(pose)) if b not in self.graphs or not self.graphs[b].is_map]

"""Tasks that others publish figures of: memorise a place, then act in it by planning. Nothing is trained by reward.

    python benchmarks/known_tasks.py two-room --runs runs/tworoom-0 runs/tworoom-128 --rows two-room.jsonl
    python benchmarks/known_tasks.py memory-maze --runs runs/mm4
    python benchmarks/known_tasks.py my-way-home --runs runs/home
    python benchmarks/known_tasks.py two-room --pool two-room.jsonl

A run is what `gtmsm train own` leaves; docs/planning.md has the commands that record and train. `--rows` appends a line
for each episode as soon as it is over, so that a task can be done in parts; `--pool` puts parts together. Bands are 95%
of 2,000 resamplings of the episodes.
"""

import argparse
import importlib
import json

import numpy as np
import torch

from gtmsm.run import Run

TASKS = {"two-room": (60, True), "memory-maze": (5, False), "my-way-home": (100, True)}
"""Episodes, and whether an outcome is a success."""


class Learned:
    """A trained model, and where poses lie in it."""

    def __init__(self, folder):
        run = Run.open(folder)
        self.model, self.unit = run.load_model(torch.device("cpu")), run.experiment.unit

    def pose(self, true, start):
        """A true pose as the model has it, whose walk began at `start`: there is its origin, and it looks ahead."""
        true, start = np.asarray(true, float), np.asarray(start, float)
        away = true[:2] - start[:2]
        if len(start) == 2:
            return torch.tensor(away / self.unit, dtype=torch.float32)
        c, s = np.cos(start[2]), np.sin(start[2])
        x, y = (c * away[0] + s * away[1]) / self.unit, (-s * away[0] + c * away[1]) / self.unit
        return torch.tensor([x, y, true[2] - start[2]], dtype=torch.float32)


def band(values, resamplings=2_000):
    """The mean, and between which numbers it lies in 95% of resamplings."""
    values = np.asarray(values, float)
    drawn = np.random.default_rng(0).choice(values, (resamplings, len(values))).mean(1)
    return values.mean(), *np.quantile(drawn, [0.025, 0.975])


def table(title, episodes, percent):
    """Policies and their outcomes, one number an episode, as Markdown."""
    print(f"\n| {title} | mean | 95% of resamplings | episodes |\n|---|---|---|---|")
    for who in episodes[0]["outcomes"]:
        values = [one["outcomes"][who] for one in episodes]
        scale, unit, digits = (100, "%", 1) if percent else (1, "", 2)
        mean, low, high = (f"{scale * number:.{digits}f}{unit}" for number in band(values))
        print(f"| {who} | {mean} | {low} to {high} | {len(values)} |")


def report(task, episodes):
    """All episodes in a table, and those of each kind in one of their own; then what else was counted."""
    print(f"\nseeds {', '.join(str(one['seed']) for one in episodes)}")
    table(task, episodes, TASKS[task][1])
    for kind in sorted({kind for one in episodes for kind in one["kinds"]}):
        table(f"of these, {kind}", [one for one in episodes if kind in one["kinds"]], TASKS[task][1])
    for name in episodes[0]["besides"]:
        values = [one["besides"][name] for one in episodes if one["besides"][name] is not None]
        values = values or [np.nan]
        print(f"\n{name}: median {np.median(values):.2f}, from {min(values):.2f} to {max(values):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[*TASKS])
    parser.add_argument("--runs", nargs="+", default=[], help="of two-room: the full view, then the cropped one")
    parser.add_argument("--episodes", type=int, default=0, help="0: as many as docs/planning.md has")
    parser.add_argument("--seed", type=int, default=5000, help="of the first episode")
    parser.add_argument("--rows", help="file to append outcomes to")
    parser.add_argument("--pool", nargs="+", help="files of --rows to report, instead of playing")
    flags = parser.parse_args()
    if flags.pool:
        return report(flags.task, [json.loads(line) for name in flags.pool for line in open(name)])
    if len(flags.runs) != 1 + (flags.task == "two-room"):
        parser.error(f"{flags.task} takes {1 + (flags.task == 'two-room')} of --runs")
    torch.set_num_threads(1)
    seeds = range(flags.seed, flags.seed + (flags.episodes or TASKS[flags.task][0]))
    play = importlib.import_module(f"{flags.task.replace('-', '_')}_task").play
    episodes = []
    with torch.no_grad():
        for one in play([Learned(folder) for folder in flags.runs], seeds):
            episodes.append(one)
            print(f"{one['seed']}: {json.dumps(one['outcomes'])} {json.dumps(one['besides'])}", flush=True)
            if flags.rows:
                with open(flags.rows, "a") as file:
                    print(json.dumps(one), file=file)
    return report(flags.task, episodes)


if __name__ == "__main__":
    main()

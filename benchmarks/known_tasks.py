"""Tasks that others publish figures of: memorise a place, then act in it by planning. Nothing is trained by reward.

    python benchmarks/known_tasks.py two-room --runs runs/tworoom-0 runs/tworoom-128
    python benchmarks/known_tasks.py memory-maze --runs runs/mm4

A run is what `gtmsm train own` leaves; docs/planning.md has the commands that record and train. Bands are 95% of 2,000
resamplings of the episodes.
"""

import argparse

import numpy as np
import torch

from gtmsm.run import Run


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


def table(title, rows, percent):
    """Policies and their outcomes, one number an episode, as Markdown."""
    print(f"\n| {title} | mean | 95% of resamplings | episodes |\n|---|---|---|---|")
    for who, values in rows.items():
        scale, unit, digits = (100, "%", 1) if percent else (1, "", 2)
        mean, low, high = (f"{scale * number:.{digits}f}{unit}" for number in band(values))
        print(f"| {who} | {mean} | {low} to {high} | {len(values)} |")


def progress(rows, number):
    print(f"{number}: " + ", ".join(f"{who} {np.mean(values):.2f}" for who, values in rows.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["two-room", "memory-maze"])
    parser.add_argument("--runs", nargs="+", required=True, help="of two-room: the full view, then the cropped one")
    parser.add_argument("--episodes", type=int, default=0, help="0: as many as docs/planning.md has")
    parser.add_argument("--seed", type=int, default=5000)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    runs = [Learned(folder) for folder in flags.runs]
    with torch.no_grad():
        if flags.task == "two-room":
            from two_room_task import two_room as task
        else:
            from memory_maze_task import memory_maze as task
        task(runs, flags.seed, *([flags.episodes] if flags.episodes else []), report=table, told=progress)


if __name__ == "__main__":
    main()

"""Verdicts in words: whether GTM-SM is ahead of rivals and controls by more than chance."""

from collections.abc import Mapping, Sequence
from math import inf
from statistics import mean, stdev
from typing import Any, TypeAlias

from gtmsm.evaluation.metrics import late_steps
from gtmsm.evaluation.sets import AWAY
from gtmsm.reproduce.results import Result
from gtmsm.reproduce.rows import OURS
from gtmsm.reproduce.table import CONTROL, Line, lines_of, mean_over, sets_of

Scores: TypeAlias = Mapping[str, Any]
"""Scores of one seed on one set."""
CLIPS = "psnr_late_by_clip"
"""Key of the clips' contributions to the late PSNR, which older results lack."""
BLIND = ("mean frame", "last frame")
"""Controls that ignore places: a model that is not ahead of them makes no use of its memory."""
LONG, LATEST = 200, f"/return-{max(AWAY)}"
"""Sets of which a verdict is given in a sentence: so many steps are predicted, or a walk returns this late."""
VERDICTS = (
    "*Ahead* or *behind*: the worst seed of one against the best of the other, by more than twice the standard error "
    "over clips{}; otherwise *level*. In brackets, the difference of the means."
)
PAIRED = {
    frozenset([True]): " of their difference, since both were scored on the same clips",
    frozenset([True, False]): " of their difference where both results keep the same clips, of each where not",
    frozenset([False]): "",
}
"""Words for `VERDICTS`, by whether comparisons were made clip by clip: all, some or none."""
LONG_MEMORY = (
    "**Long predictions and late returns**, at their late steps, by the same rule: a band reaches from the worst seed "
    "to the best, and bands overlap unless more than twice the standard error over clips lies between them. GTM-SM is"
)


def ahead(lines: Sequence[Line], horizon: int) -> str:
    """Verdicts at the late steps: GTM-SM against each rival and each of the `BLIND` controls."""
    if not lines or lines[0].name != OURS:
        return ""
    late = late_steps(horizon)
    value = mean_over(late)
    ours = lines[0].over_seeds(value)
    told, paired = [], set()
    for line in lines[1:]:
        theirs = line.over_seeds(value)
        if (line.given == CONTROL and line.name not in BLIND) or not theirs or not ours:
            continue
        told.append(f"{_verdict(lines[0], line, late)} {line.label} ({mean(ours) - mean(theirs):+.2f} dB)")
        paired |= {_is_paired(one, other) for one in lines[0].scores for other in line.scores}
    if not told:
        return ""
    seeds = f"{len(ours)} {'seed' if len(ours) == 1 else 'seeds'}"
    rule = VERDICTS.format(PAIRED[frozenset(paired)])
    return f"**At the late steps** ({seeds} of ours) GTM-SM is {'; '.join(told)}. {rule}"


def _verdict(ours: Line, theirs: Line, late: slice) -> str:
    """In words: ahead or behind if the worst seed of one clearly beats the best of the other, else level."""
    (worst, best), (low, high) = (_extremes(line, late) for line in (ours, theirs))
    return "ahead of" if beats(worst, high, late) else "behind" if beats(low, best, late) else "level with"


def _extremes(line: Line, late: slice) -> tuple[Scores, Scores]:
    """Scores of the seeds with the lowest and with the highest PSNR at the late steps."""
    value = mean_over(late)
    known = sorted((found, seed) for seed, scores in enumerate(line.scores) if (found := value(scores)) is not None)
    return line.scores[known[0][1]], line.scores[known[-1][1]]


def beats(one: Scores, other: Scores, late: slice) -> bool:
    """Whether one is better than the other by more than twice the standard error over clips.

    If both results have contributions of the same clips, it is the standard error of their difference, clip by clip.
    """
    value = mean_over(late)
    gap = (value(one) or 0.0) - (value(other) or 0.0)
    if _is_paired(one, other):
        apart = [a - b for a, b in zip(one[CLIPS], other[CLIPS], strict=True)]
        error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else inf
    else:
        error = max(_standard_error(scores, late) for scores in (one, other))
    return gap > 2 * error


def _is_paired(one: Scores, other: Scores) -> bool:
    """Whether both have contributions of clips, and were scored on the same clips."""
    return CLIPS in one and CLIPS in other and bool(one["sha256"] == other["sha256"])


def _standard_error(scores: Scores, late: slice) -> float:
    """Standard error over clips of the PSNR at the late steps."""
    known = [error for error in scores["psnr_band"]["error"][late] if error is not None]
    return mean(known) if known else inf


def long_memory(results: Sequence[Result], world: str) -> str:
    """A sentence for each set of long predictions or late returns: which rivals GTM-SM is ahead of, and by how much."""
    told = []
    for name in sets_of(results, world):
        ours, *others = lines_of(results, world, name)
        rivals = [line for line in others if line.given != CONTROL and not line.bold]
        horizon, late = ours.scores[0]["horizon"], late_steps(len(ours.scores[0]["psnr_by_step"]))
        value = mean_over(late)
        if ours.name != OURS or not rivals or (horizon < LONG and not name.endswith(LATEST)):
            continue
        found: dict[str, list[str]] = {"ahead of": [], "level with": [], "behind": []}
        for line in rivals:
            gap = mean(ours.over_seeds(value)) - mean(line.over_seeds(value))
            found[_verdict(ours, line, late)].append(f"{line.label} ({gap:+.2f} dB)")
        said = {
            "ahead of": "ahead of {}",
            "level with": "not ahead of {}, because the bands overlap",
            "behind": "behind {}",
        }
        words = "; ".join(said[verdict].format(", ".join(names)) for verdict, names in found.items() if names)
        told.append(f"- on `{name}`: {words}.")
    return "\n".join([LONG_MEMORY, "", *told]) if told else ""

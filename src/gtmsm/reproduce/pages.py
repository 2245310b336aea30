"""Pages made from results alone: the table in Markdown, and its plots."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from gtmsm.evaluation.metrics import CONVERGED, late_steps
from gtmsm.evaluation.sets import SETS, FixedSet
from gtmsm.files import write_atomically
from gtmsm.reproduce.results import Result
from gtmsm.reproduce.rows import ROWS, WORLDS, Row
from gtmsm.reproduce.table import (
    Field,
    Line,
    fields_of,
    key,
    lines_of,
    markdown_table,
    marks_of,
    sets_of,
)
from gtmsm.reproduce.verdicts import Scores, ahead, beats, long_memory

TABLE = "table.md"
RIVALS = "https://github.com/gtmsm/gtmsm/blob/main/docs/rivals.md#at-the-papers-size"
BANDS = (
    "*Curves of 32 steps or more are means over 8. Bands are the range of seeds, where a row has several. There is a "
    "lighter band about GTM-SM: plus and minus twice the standard error over clips, averaged over its seeds.*"
)
REACHED = (
    f"*Converged: the motion was found (at least {CONVERGED['retrieval']:.0%} retrieved, and R² of positions at least "
    f"{CONVERGED['R²']:g}). Above the mean frame: at the late steps of the first set, predictions are ahead of the "
    "mean of the memorised frames, by more than twice the standard error over clips. Where most places are new, a "
    "model that has found the motion may be below.*"
)
OTHER_RATES = (
    "*The row as it is has the best learning rate of those that were tried, ablations have the preset's. So compare "
    "rows of one rate, except where the rate itself is what was changed.*"
)
FRAMES = "*The first test walk, true above imagined frames; red steps are at places that were never memorised.*"


def write_pages(out: Path, results: Sequence[Result], made_by: str) -> list[Path]:
    """Write the table and its plots from results alone; return the files. `made_by`: the command, in Markdown."""
    from gtmsm.reproduce.plots import write_plots

    rows = [row for result in results if not (row := ROWS[result.row]).is_ablation]
    names = [name for name in WORLDS if any(row.world == name for row in rows)]
    parts = [_intro(results, made_by)]
    written = []
    for world in names:
        plots = write_plots(out, world, {name: lines_of(results, world, name) for name in sets_of(results, world)})
        written += plots
        parts.append(_of_world(world, results, [path.name for path in plots]))
    parts += [_ablations(results), _provenance(results)]
    write_atomically(out / TABLE, "\n\n".join(part for part in parts if part) + "\n")
    return [out / TABLE, *written]


def _intro(results: Sequence[Result], made_by: str) -> str:
    quick = any(result.facts.get("quick") for result in results)
    size = (
        "This is the toy size: it shows that every row can be made, and which way the differences point. "
        "Rivals are small and have three tenths of the updates, since each costs several of GTM-SM's on a CPU. "
        "The figures of a full training are another table.\n\n"
        if quick
        else ""
    )
    return (
        f"# The table{' at toy size' if quick else ''}\n\n"
        f"Made by {made_by} from the JSON files beside it; nothing here was typed. {size}"
        "Every row was trained by the same loop on the same windows, with the same coder and decoder, and scored on "
        "the same clips, which are drawn on a CPU from a seed and have a checksum. Steps after tau are predicted from "
        "actions alone. PSNR in dB, data range 1; *pooled* is the PSNR of the mean error, *per frame* the mean of each "
        "frame's PSNR. Several seeds: mean ± half the range, and how many of them have the score where some lack it. "
        f"*Given* is what a row knows beyond frames and actions. Why rows stand where they do: [rivals]({RIVALS})."
    )


def _of_world(world: str, results: Sequence[Result], plots: Sequence[str]) -> str:
    """The section of a world: a table for the first set, verdicts, plots, a table for all other sets, and costs."""
    first, *others = sets_of(results, world)
    lines = lines_of(results, world, first)
    about = lines[0].scores[0]
    clips, tau, horizon, scored = about["clips"], about["tau"], about["horizon"], len(about["psnr_by_step"])
    last = "" if scored == horizon else f", of which the last {scored} are scored"
    fields = fields_of(lines, scored)
    marks = marks_of(lines)
    table = markdown_table(
        ["", *(field.title for field in fields), "given"],
        ([line.label, *(field.cell(line) for field in fields), marks.get(line.given, line.given)] for line in lines),
    )
    given = "\n".join(f"- {mark}: {words}" for words, mark in marks.items())
    shown = "\n\n".join(f"![PSNR over the predicted steps, {world}]({name})" for name in plots)
    drawn = [r.facts["figure"] for r in results if _has_figure(r, world)]
    return "\n\n".join(
        part
        for part in (
            f"## {world}: {WORLDS[world].about}",
            f"`{first}`: {clips} clips, {tau} steps memorised, {horizon} predicted{last}; {_checksum(lines, results)}.",
            table,
            given and f"Given:\n\n{given}",
            ahead(lines, scored),
            f"{shown}\n\n{BANDS}",
            "\n\n".join(f"![True and imagined frames, {world}]({name})" for name in drawn),
            drawn and FRAMES,
            _other_sets(results, world, others),
            long_memory(results, world),
            _costs(results, world),
        )
        if part
    )


def _checksum(lines: Sequence[Line], results: Sequence[Result]) -> str:
    """The clips' checksum in words: whether it is as listed, and whether all rows were scored on the same clips."""
    about = lines[0].scores[0]
    found = list(dict.fromkeys(scores["sha256"] for line in lines for scores in line.scores))
    quick = any(result.facts["quick"] for result in results)
    listed = FixedSet(about["set"], "test", quick, SETS[about["set"]]).listed
    said = f"sha256 {', '.join(f'`{one[:12]}…`' for one in found)}"
    if listed and set(found) <= set(listed.known):
        return f"{said}, as listed"
    return f"{said}, **{'not as listed' if len(found) == 1 else 'rows were scored on different clips'}**"


def _has_figure(result: Result, world: str) -> bool:
    return result.row == world and bool(result.facts.get("figure"))


def _other_sets(results: Sequence[Result], world: str, names: Sequence[str]) -> str:
    """Table of the other sets (loops, returns, other places): PSNR at memorised places, one column per set."""
    if not names:
        return ""
    by_set = {name: {line.label: line for line in lines_of(results, world, name)} for name in names}
    field = Field("", key("psnr_revisited"))
    labels = list(dict.fromkeys(label for lines in by_set.values() for label in lines))
    rows = (
        [label, *(field.cell(by_set[name][label]) if label in by_set[name] else "–" for name in names)]
        for label in labels
    )
    return "Other protocols, PSNR at memorised places:\n\n" + markdown_table(["", *(f"`{n}`" for n in names)], rows)


def _costs(results: Sequence[Result], world: str) -> str:
    """Table of the size and training cost of each row."""
    rows = [row for row in ROWS.values() if row.world == world and not row.is_ablation]
    found = [(row, [r.facts for r in results if r.row == row.name]) for row in rows]
    body = [
        [
            row.rival or f"**{row.title}**",
            row.context(facts[0]["quick"]),
            f"{facts[0]['parameters']:,}",
            f"{facts[0]['updates']:,}",
            f"{facts[0]['learning_rate']:g}" + (" (swept)" if facts[0].get("swept") else ""),
            f"{mean(fact['seconds'] for fact in facts if fact['machine'] == facts[0]['machine']):.0f}",
            str(len(facts)),
            _share(fact.get("converged") for fact in facts),
            _share(_above_mean_frame(fact, results, world) for fact in facts),
        ]
        for row, facts in found
        if facts
    ]
    costs = ("parameters", "updates", "learning rate", "seconds of training", "seeds")
    head = ["", "a prediction can use", *costs, "converged", "above the mean frame"]
    told = (
        "*Seconds are by the clock, of the seeds that were trained where the first one was; several trainings may have "
        "shared the device (`--workers`). Attempts that were killed or failed are not counted.*"
    )
    return f"{markdown_table(head, body)}\n\n{REACHED}\n\n{told}"


def _above_mean_frame(facts: Scores, results: Sequence[Result], world: str) -> bool | None:
    """Whether a training is ahead of the mean frame at the late steps of its world's first set; None if unknown."""
    name = sets_of(results, world)[0]
    control = next((line for line in lines_of(results, world, name) if line.name == "mean frame"), None)
    if control is None or name not in facts["scores"]:
        return None
    mine = facts["scores"][name]
    return beats(mine, control.scores[0], late_steps(len(mine["psnr_by_step"])))


def _share(found: Iterable[bool | None]) -> str:
    """For how many seeds something holds, as text; a dash if that is undefined."""
    known = [holds for holds in found if holds is not None]
    return f"{sum(known)} of {len(known)}" if known else "–"


def _ablations(results: Sequence[Result]) -> str:
    """Tables of ablations, with GTM-SM itself as the first row."""
    changed: list[Row] = [row for row in ROWS.values() if row.is_ablation]
    worlds = dict.fromkeys(row.world for row in changed if any(r.row == row.name for r in results))
    parts = []
    for world in worlds:
        name = sets_of(results, world)[0]
        lines, rates = [], []
        for row in (ROWS[world], *(row for row in changed if row.world == world)):
            made = [r.facts for r in results if r.row == row.name and name in r.facts["scores"]]
            if made:
                label = "**as it is**" if row.name == world else row.about
                lines.append(Line(label, "", tuple(facts["scores"][name] for facts in made)))
                rates.append(f"{made[0]['learning_rate']:g}")
        fields = [
            f for f in fields_of(lines, len(lines[0].scores[0]["psnr_by_step"])) if f.title not in ("FLIP", "per frame")
        ]
        head = [f"`{world}` with", *(field.title for field in fields), "learning rate", "seeds"]
        body = (
            [line.label, *(f.cell(line) for f in fields), rate, str(len(line.scores))]
            for line, rate in zip(lines, rates, strict=True)
        )
        parts.append(markdown_table(head, body) + (f"\n\n{OTHER_RATES}" if len(set(rates)) > 1 else ""))
    return "## Ablations\n\n" + "\n\n".join(parts) if parts else ""


def _provenance(results: Sequence[Result]) -> str:
    """Section with versions, commits and machines of the results."""
    made = dict.fromkeys(
        "- version {version}, commit `{commit}`, PyTorch {torch}, {machine}".format(**r.facts) for r in results
    )
    return "## Made by\n\n" + "\n".join(made)

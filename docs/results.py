"""Writes what is made of JSON: docs/results.md, the tables of docs/table*, and that of the README. `make results`."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gtmsm.errors import InputError
from gtmsm.evaluation.metrics import late_steps
from gtmsm.files import read_json, write_atomically
from gtmsm.reproduce.pages import TABLE, write_pages
from gtmsm.reproduce.plots import RETURN
from gtmsm.reproduce.results import Result, read_results
from gtmsm.reproduce.rows import QUICK_SHARE, ROWS, WORLDS
from gtmsm.reproduce.table import Field, Line, key, lines_of, markdown_table, marks_of, mean_over, sets_of

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
KEPT = {
    "table-h200": ("At the size of the paper", "`gtmsm reproduce`, in the parts that docs/rivals.md lists,"),
    "table": ("At toy size", "`gtmsm reproduce --quick --workers 2 --device cpu --seeds 0 1 2`"),
}
"""Folders of results of `gtmsm reproduce`: what to call them, and what made them."""
BESIDE = ("VAE ceiling", "mean frame")
"""Controls that are shown here; the tables themselves have all."""
INTRO = """# Results
`make results` writes this page from the JSON files in `docs/measured/`, `docs/table/` and `docs/table-h200/`; no figure
on it was typed. A range covers all seeds, from the lowest to the highest score; "±" is half of that range.

- **Where it was scored.** All places are held out. Settings, learning rates and the time to stop were chosen on
  validation places. Test places were scored once for each training, and nothing was chosen by them, with these
  exceptions. One number of the filter of `obstacles` (`doubt`) was chosen on test images
  ([validation scores](older-measurements.md#landmarks-app-d)). Two settings of `walk-strong`, the choice of views and
  the learning rate, were chosen on 40 test walks before there were validation rooms ([notebook](notebook.md#pictures)).
  K and the weight of foresight in `query` and `foresight` are the best on validation places, but test scores were
  printed beside them. So were those of the learned map of `walk`, before the preset had it. Of the 500 walks with
  slips, 200 had been scored before, and all walks of `obstacles-free-slips` with an earlier training of seed 0; each of
  its five seeds is scored with and without slips. The test walks of `walk-free` and `walk-strong-free` were scored
  again after the search for the motion had changed, and the test rooms of `walk-landmarks` with each new training.
- **PSNR** is in dB, data range 1, of the pooled error. Predictions are the mean path and the prior's point estimate.
  [Protocol](protocol.md) has the rules and the evaluation sets.
- **Right place**, or *retrieval*: the share of predicted steps at memorised places at which the memory entry with the
  largest weight was recorded at exactly the true place. **R²** is that of true positions after one affine fit.
- **Controls.** *VAE ceiling*: the true frame, encoded and decoded, which is the best that this decoder can show.
  *Memory at true poses*: the model, given its true poses. *Copying*: the memorised frame nearest to the true pose.
  *Best copy*: the memorised frame most similar to the answer. *Mean of memory* or *mean frame*: the mean of the
  memorised frames. *Last frame*: the latest memorised frame. *Dead reckoning*: poses from actions alone.
- tau is the number of memorised steps, K the number of memory entries that are read for a prediction.
- **Sources.** `docs/measured/` has what commands other than `gtmsm reproduce` measured. The score files of those runs
  were not kept. Their figures were copied from three pages typed by hand:
  [older measurements](older-measurements.md), [performance](performance.md) and [planning](planning.md). A test finds
  every figure there. Negative results are in the [notebook](notebook.md)."""
BEGIN, END = "<!-- made by make results -->\n", "\n<!-- to here -->\n"
"""Around the table of the README."""
IN_HEAD = ("dB", "ms")
"""Units that stand in the head of a table."""
WIDE = 6
"""Figures in a row from which on a table is turned, if it has fewer rows: a phone shows four or five columns."""
SEVERAL_ROOMS = "rooms/multi"
RIVALS = """## Rivals
GTM-SM, its [rivals](rivals.md) and controls; `gtmsm reproduce` trained each row. *Back after N*: an agent looks around
a place, leaves, wanders for N steps and returns; PSNR of the frames it sees there. *Several rooms* (App. C): models
trained in single rooms memorise 150 steps of a walk through several rooms and predict 300."""


def main() -> None:
    """Write all of them."""
    for name, (_, made_by) in KEPT.items():
        write_pages(DOCS / name, read_results(DOCS / name), made_by)
    write_atomically(DOCS / "results.md", page(DOCS))
    write_atomically(README, readme(DOCS, README.read_text()))
    print(f"wrote {DOCS / 'results.md'}, {len(KEPT)} tables and that of {README.name}")


def page(docs: Path) -> str:
    """All of docs/results.md."""
    measured = read_measured(docs / "measured")
    parts = [INTRO, in_short(measured)]
    parts += [section(facts) for facts in measured]
    parts.append(RIVALS)
    parts += [of_table(docs / name, *words) for name, words in KEPT.items()]
    return "\n\n".join(parts) + "\n"


def read_measured(folder: Path) -> list[dict[str, Any]]:
    """What was measured, by the names of files; one that lacks where it is from is refused."""
    found = []
    for path in sorted(folder.glob("*.json")):
        facts = read_json(path, "it is kept in the repository")
        lacks = {"section", "command", "commit", "date", "device", "columns", "rows"} - facts.keys()
        uneven = [row["name"] for row in facts.get("rows", ()) if len(row["values"]) != len(facts["columns"])]
        if lacks or uneven:
            raise InputError(f"{path} lacks {sorted(lacks)}; rows of other lengths than its columns: {uneven}")
        found.append(facts)
    return found


def in_short(measured: Sequence[Mapping[str, Any]]) -> str:
    """One line for each thing that people ask for first."""
    rows = []
    for facts in measured:
        for line in facts.get("short", ()):
            rows.append([line["what"], *(quoted(facts, line[part]) for part in ("shows", "beside"))])
    return "## In short\n" + markdown_table(["", "result", "for comparison"], rows)


def quoted(facts: Mapping[str, Any], figures: Sequence[Sequence[str]]) -> str:
    """Figures in words, by their rows and columns: what each is of, and how much."""
    said: dict[str, list[str]] = {}
    for row, column, *_ in figures:
        said.setdefault(row, []).append(f"{column} {figure(facts, row, column)}")
    return "; ".join(f"{row}: {', '.join(told)}" for row, told in said.items())


def figure(facts: Mapping[str, Any], row: str, column: str) -> str:
    """One of them, with its unit."""
    columns = {name: (at, *kind) for at, (name, *kind) in enumerate(facts["columns"])}
    values = {one["name"]: one["values"] for one in facts["rows"]}
    at, *kind = columns[column]
    return cell(values[row][at], *kind)


def readme(docs: Path, text: str) -> str:
    """The README with its table made anew: a line for each figure that is first asked for and was trained for."""
    rows = []
    for facts in read_measured(docs / "measured"):
        for line in facts.get("short", ()):
            if "trained" in line:
                shown = (
                    ", ".join(f"{word} {figure(facts, row, column)}".strip() for row, column, word in line[part])
                    for part in ("shows", "beside")
                )
                seeds = f"{line['seeds']} seed{'s' * (line['seeds'] > 1)}"
                rows.append([f"{line['what']}:<br>`{line['trained']}`", *shown, f"{line['told']}; {seeds}"])
    table = markdown_table(["", "result", "for comparison", "supervision"], rows)
    before, rest = text.split(BEGIN)
    return before + BEGIN + table + END + rest.split(END)[1]


def cell(value: Any, unit: str, digits: int | None, in_table: bool = False) -> str:
    """A figure, or the least and the most of several; in a table the unit may stand above it."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    ends = dict.fromkeys(number(end, digits) for end in (min(value), max(value))) if isinstance(value, list) else None
    shown = " to ".join(ends) if ends else number(value, digits)
    return shown + (unit if unit not in IN_HEAD else "" if in_table else f" {unit}")


def number(value: float, digits: int | None) -> str:
    """As many digits as were measured."""
    return f"{value:g}" if digits is None else f"{value:.{digits}f}"


def section(facts: Mapping[str, Any]) -> str:
    """What was measured, by which command, and the figures."""
    head = ["", *(f"{name}, {unit}" if unit in IN_HEAD else name for name, unit, _ in facts["columns"])]
    table = [head]
    for row in facts["rows"]:
        cells = [
            cell(value, column[1], column[2], in_table=True)
            for value, column in zip(row["values"], facts["columns"], strict=True)
        ]
        table.append([row["name"], *cells])
    if any("commit" in row for row in facts["rows"]):
        commits = [f"`{row['commit']}`" if "commit" in row else "" for row in facts["rows"]]
        table = [[*row, one] for row, one in zip(table, ["commit, if different", *commits], strict=True)]
    if len(facts["rows"]) < len(facts["columns"]) >= WIDE:
        table = [list(column) for column in zip(*table, strict=True)]
    source = facts.get("archive", "")
    where = f" In full: [{source.split('.md')[0].replace('-', ' ')}]({source})." if source else ""
    commit = re.sub(r"\b([0-9a-f]{7})\b", r"`\1`", facts["commit"])
    return "\n".join([
        f"## {facts['section']}",
        facts["about"] + "\n",
        "```sh", *facts["command"], "```",
        f"Commit: {commit} ({facts['date']}); {facts['device']}.{where}\n",
        markdown_table(table[0], table[1:]),
    ])  # fmt: skip


def of_table(folder: Path, title: str, made_by: str) -> str:
    """The late steps of a table, row by row: all worlds beside each other at toy size, else one after the other."""
    results = read_results(folder)
    worlds = [name for name in WORLDS if any(ROWS[result.row].world == name for result in results)]
    together = [worlds] if any(result.facts["quick"] for result in results) else [[world] for world in worlds]
    whole = f"[The whole table]({folder.name}/{TABLE}), made by {made_by.removesuffix(',')}."
    head = f"### {title}\n{about(results)} {whole}"
    return "\n\n".join([head, *(of_worlds(results, some, folder.name) for some in together)])


def of_worlds(results: Sequence[Result], worlds: Sequence[str], folder: str) -> str:
    """The table of some worlds, and the plot of the first."""
    lines = {world: lines_of(results, world, sets_of(results, world)[0]) for world in worlds}
    by_label = {world: {line.label: line for line in found} for world, found in lines.items()}
    columns = [(by_label[world], Field(f"`{world}`, {steps(lines[world])}", late(lines[world]))) for world in worlds]
    if len(worlds) == 1:
        (only,) = worlds
        more = [field for field in MORE if any(line.over_seeds(field.value) for line in lines[only])]
        columns += [(by_label[only], field) for field in more] + other_sets(results, only)
    marks = marks_of([line for found in lines.values() for line in found])
    labels = dict.fromkeys(
        (line.label, line.given)
        for found in lines.values()
        for line in found
        if line.given in marks or not line.given.startswith("control") or line.name in BESIDE
    )
    names = list(dict.fromkeys(label for label, _ in labels))
    body = [
        [
            name,
            *(field.cell(found[name]) if name in found else "–" for found, field in columns),
            ", ".join(dict.fromkeys(marks.get(given, given) for label, given in labels if label == name)),
            str(max(len(found[name].scores) for found in by_label.values() if name in found)),
        ]
        for name in names
    ]
    head = ["PSNR in dB", *(field.title for _, field in columns), "given", "seeds"]
    given = "\n".join(f"- {mark}: {words}" for words, mark in marks.items())
    plot = f"![PSNR over the predicted steps, {worlds[0]}]({folder}/{worlds[0]}-horizon.png)"
    return "\n\n".join([markdown_table(head, body), f"Given:\n\n{given}", plot])


def other_sets(results: Sequence[Result], world: str) -> list[tuple[dict[str, Line], Field]]:
    """Columns of memorised places, where that was asked: left and come back to, at once and after the most steps; in
    several rooms, where training had one."""
    known = sets_of(results, world)
    gaps = {int(found[1]): name for name in known if (found := RETURN.fullmatch(name))}
    asked = {f"back after {gap:,}": gaps[gap] for gap in sorted({min(gaps), max(gaps)} if gaps else ())}
    if SEVERAL_ROOMS in known:
        asked["several rooms, revisited"] = SEVERAL_ROOMS
    return [
        ({line.label: line for line in lines_of(results, world, name)}, Field(title, key("psnr_revisited")))
        for title, name in asked.items()
    ]


MORE = [
    Field("revisited", key("psnr_revisited")),
    Field("unseen", key("psnr_unseen")),
    Field("retrieved", key("retrieval_revisited"), 1, 100, "%"),
]


def steps(lines: Sequence[Line]) -> str:
    """The late steps of a set, in words."""
    horizon = len(lines[0].scores[0]["psnr_by_step"])
    return f"steps {(late_steps(horizon).start or 0) + 1} to {horizon}"


def late(lines: Sequence[Line]) -> Any:
    """PSNR over the late steps."""
    return mean_over(late_steps(len(lines[0].scores[0]["psnr_by_step"])))


def about(results: Sequence[Result]) -> str:
    """How long these were trained, by which code, and where."""

    def said(name: str) -> list[str]:
        return sorted({str(result.facts[name]) for result in results})

    ours = [result.facts for result in results if result.row in WORLDS and result.facts.get("converged") is not None]
    verdict = f" GTM-SM on images converged in {sum(fact['converged'] for fact in ours)} of {len(ours)} trainings."
    quick = any(result.facts["quick"] for result in results)
    trained: dict[str, set[int]] = {}
    for result in results:
        trained.setdefault("" if quick else ROWS[result.row].world, set()).add(result.facts["updates"])
    span = "; ".join(_updates(world, sorted(updates)) for world, updates in trained.items())
    span += f", rivals {QUICK_SHARE:.0%} of those of GTM-SM" if quick else ""
    commits = ", ".join(f"`{commit}`" for commit in said("commit"))
    return f"{span}; commit {commits}, {', '.join(said('machine'))}.{verdict if ours else ''}"


def _updates(world: str, updates: Sequence[int]) -> str:
    """How many a row had, and at full size of how many."""
    span = f"{updates[0]:,}" + (f" to {updates[-1]:,}" if len(updates) > 1 else "")
    if not world:
        return f"{span} updates a row"
    whole = ROWS[world].experiment(0, False, None).training.updates
    return f"`{world}`: {span} updates a row" + (f" of the preset's {whole:,}" if updates != [whole] else "")


if __name__ == "__main__":
    sys.exit(main())

"""Builds the documentation site into site/: copies of the pages, and a reference made of docstrings. `make site`."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".site"
SOURCE = "https://github.com/gtmsm/gtmsm/blob/main"
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository's root that are pages of the site, too."""
LIST = re.compile(r"([-*]|\d+\.) ")


def main() -> None:
    """Prepare the pages in .site/, let zensical build them, and leave the result in site/."""
    shutil.rmtree(WORK, ignore_errors=True)
    pages = WORK / "docs"
    pages.mkdir(parents=True)
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix in (".gif", ".png", ".mp4", ".css"):
            shutil.copy(path, pages / name_on_site(path.relative_to(ROOT)))
    for path in (*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in TOP)):
        (pages / name_on_site(path.relative_to(ROOT))).write_text(for_site(path.read_text(), path.parent))
    for path in (ROOT / "weights").glob("*/CARD.md"):
        (pages / f"{path.parent.name}.md").write_text(for_site(path.read_text(), path.parent))
    (pages / "api.md").write_text(spaced(python_reference()))
    (pages / "flags.md").write_text(spaced(command_reference()))
    (WORK / "zensical.toml").write_text(without_missing((ROOT / "zensical.toml").read_text(), pages))
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=WORK, check=True)
    for path in (WORK / "site").glob("*.html"):
        path.write_text(with_whole_names(path.read_text()))
    if wrong := list(complaints(WORK / "site")):
        sys.exit("\n".join(wrong))
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    shutil.move(WORK / "site", ROOT / "site")
    print(f"open {ROOT / 'site' / 'index.html'}")


def complaints(site: Path) -> Iterator[str]:
    """Links, pictures and films of the built pages that are not there, and whatever they would load from elsewhere."""
    pages = {path.name: path.read_text() for path in site.glob("*.html") if path.name != "404.html"}
    ids = {name: set(re.findall(r'id="?([^"\s>]+)"?', text)) for name, text in pages.items()}
    for name, text in pages.items():
        for tag in re.findall(
            r'<(?:script|img|video|source|link rel="?(?:stylesheet|preconnect))[^>]*(?:src|href)="?https?:[^>]*>', text
        ):
            yield f"{name} loads from elsewhere: {tag}"
        for kind, link in re.findall(r'\b(href|src|poster)="([^":]*)"', text):
            address, _, anchor = link.partition("#")
            target = address.removeprefix("./") or name
            if not (site / target).exists() or (anchor and anchor not in ids.get(target, ()) and anchor[:2] != "__"):
                yield f"{name} {'links to' if kind == 'href' else 'shows'} {link}, which is not there"


def with_whole_names(page: str) -> str:
    """A built page whose flags and names in code are not broken at hyphens, unless they are too long for a phone."""

    def whole(code: re.Match[str]) -> str:
        return re.sub(r"(?<![\w.-])(?=[\w.]*-)[\w.-]{3,30}(?![\w.-])", r'<span class="whole">\g<0></span>', code[0])

    return re.sub(r"<code>[^<]+</code>", whole, page)


def without_missing(settings: str, pages: Path) -> str:
    """The settings without the lines of the navigation whose page is not there."""
    named = re.compile(r'^\s*\{ "[^"]+" = "([^"]+\.md)" \},$')
    lines = settings.splitlines()
    return "\n".join(x for x in lines if not (found := named.match(x)) or (pages / found[1]).exists())


def name_on_site(path: Path) -> str:
    """The site has no folders: docs/table/table.md is table-table.md there."""
    return "-".join(path.parts[1:] or path.parts)


def for_site(text: str, folder: Path) -> str:
    """A page of the repository as one of the site: links out of docs/ lead to the source, or to the page's copy."""

    def moved(link: re.Match[str]) -> str:
        address, _, anchor = link[1].partition("#")
        if address.startswith(f"{SOURCE}/"):
            target = Path(address.removeprefix(f"{SOURCE}/"))
        elif not address or "://" in address:
            return link[0]
        else:
            target = (folder / address).resolve().relative_to(ROOT)
        inside = target.parts[0] == "docs" or str(target) in TOP
        where = name_on_site(target) if inside else f"{SOURCE}/{target}"
        if target.name == "CARD.md":
            where = f"{target.parent.name}.md"
        return f"]({where}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    prose = (re.sub(r"\]\(([^)\s]+)\)", moved, part) if i % 2 == 0 else part for i, part in enumerate(parts))
    return spaced("".join(prose))


def spaced(text: str) -> str:
    """With blank lines where GitHub needs none, and Python's Markdown does: before lists and tables."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        before = lines[-1] if lines else ""
        starts_list = LIST.match(line) and not LIST.match(before) and not before.startswith(" ")
        starts_table = line.startswith("|") and not before.startswith("|")
        after_table = before.startswith("|") and line and not line.startswith("|")
        if not fenced and before and (starts_list or starts_table or after_table):
            lines.append("")
        fenced ^= line.startswith("```")
        lines.append(line)
    return "\n".join(lines) + "\n"


def python_reference() -> str:
    """All public names, by their docstrings."""
    import gtmsm

    parts = ["# Python reference\nAll that `from gtmsm import ...` gives, made from the docstrings of this version."]
    for name in gtmsm.__all__:
        thing = getattr(gtmsm, name)
        parts.append(f"## {name}")
        if not inspect.isclass(thing):
            parts.append(described(thing))
            continue
        about = thing.__doc__ if thing.__doc__ and not thing.__doc__.startswith(f"{name}(") else ""
        parts.append(f"`from gtmsm import {name}` · `{thing.__module__}`\n\n{paragraphs(about)}")
        if is_dataclass(thing):
            parts += [f"- `{field}`: {text}" for field, _, text in documented_fields(thing)]
        for method, found in vars(thing).items():
            function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            if method.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
                continue
            parts.append(f"### {name}.{method}\n{described(function, isinstance(found, property))}")
    return "\n\n".join(parts)


def described(function: Any, is_property: bool = False) -> str:
    """The signature as it is written, and the docstring."""
    head = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(head, ast.FunctionDef)
    given = [part for part in ast.unparse(head.args).split(", ") if part != "self" and part != "cls"]
    returns = f" -> {ast.unparse(head.returns)}".replace("'", "") if head.returns else ""
    shown = f"{head.name}{'' if is_property else '(' + ', '.join(given) + ')'}{returns}"
    lines = textwrap.wrap(shown, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "```python\n" + "\n".join(lines) + f"\n```\n\n{paragraphs(function.__doc__)}"


def paragraphs(docstring: str | None) -> str:
    """A docstring as Markdown: what is indented, or typed at a prompt, is code."""
    text = inspect.cleandoc(docstring or "")
    return re.sub(r"(^>>> .*(?:\n(?!\n).*)*)", r"```pycon\n\1\n```", text, flags=re.MULTILINE)


def documented_fields(kind: Any) -> Iterator[tuple[str, Field[Any], str]]:
    """The fields of a dataclass, each with the string that stands below it, those of its bases first."""
    told: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for one, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                told[one.target.id] = " ".join(str(after.value.value).split()) if is_text else ""  # type: ignore
    for field in fields(kind):
        yield field.name, field, told.get(field.name, "")


def command_reference() -> str:
    """All verbs with their flags, and all presets."""
    from gtmsm.cli import MODULES, VERBS
    from gtmsm.presets import PRESETS

    parts = ["# All commands\nMade from the flags of this version; `gtmsm VERB --help` says the same."]
    for verb, about in VERBS.items():
        parts.append(f"## gtmsm {verb}\n{about[0].upper()}{about[1:]}.".replace("<", "&lt;"))
        module = import_module(f"gtmsm.verbs.{next(name for name, verbs in MODULES.items() if verb in verbs)}")
        if verb == "train":
            parts.append("| preset | |\n|---|---|\n" + "\n".join(f"| `{k}` | {v[0]} |" for k, v in PRESETS.items()))
            parts.append(
                "`gtmsm train PRESET --help` has all numbers of a preset, their defaults and their places in the paper."
            )
        elif verb in ("data", "atlas"):
            for what, (kind, line, *_) in getattr(module, "DATA" if verb == "data" else "WHAT").items():
                parts.append(f"### gtmsm {verb} {what}\n{line[0].upper()}{line[1:]}.\n\n{flag_table(kind)}")
        else:
            kinds = ["RecordEnvironmentFlags", "RecordFlags"] if verb == "record" else [f"{verb.capitalize()}Flags"]
            parts += [
                f"{paragraphs(getattr(module, kind).__doc__)}\n\n{flag_table(getattr(module, kind))}" for kind in kinds
            ]
    return "\n\n".join(parts)


def flag_table(kind: Any) -> str:
    """Flags of a dataclass, with their defaults and what they say of themselves."""
    rows, hints = [], get_type_hints(kind, include_extras=True)
    for name, field, text in documented_fields(kind):
        is_word = get_origin(hints[name]) is Annotated and any("Positional" in repr(x) for x in get_args(hints[name]))
        shown = name.upper() if is_word else f"--{name.replace('_', '-')}"
        default = "" if field.default in (MISSING, None, "", ()) else f"`{field.default}`"
        rows.append(f"| `{shown}` | {default} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(["| flag | default | |", "|---|---|---|", *rows]) if rows else ""


if __name__ == "__main__":
    main()

"""What the pages say is there, is there: links, paths, modules, commands, sessions, options, and words of a verdict."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.cli_options import add_speculation_options
from harness.commands.arguments import build_parser
from harness.model import OriginKind
from harness.verdict import CaseOutcome, MetricOutcome

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "models").rglob("*.md"),
        *(ROOT / folder / "README.md" for folder in ("artifacts", "baselines")),
    ]
)
FOLDERS = ("harness", "engine", "native", "suites", "tests", "baselines", "docs", "models", ".github")
CODE_FOLDERS = ("harness", "engine", "native", "suites", "tests")
# Options of programs that are not ours, which the pages name beside the program.
FOREIGN = {"--nproc-per-node", "--tool", "--kernel-name"}
OWN_FOLDER = ROOT / "artifacts" / "README.md"  # its paths lie in its folder, and only after a run
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _commands_and_names(page: Path) -> Iterator[str]:
    """Inline code, and each line of the fenced blocks."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.findall(text):
        yield from block.splitlines()[1:-1]
    yield from CODE.findall(BLOCK.sub("", text))


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Each command's own parser, by the command."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and anchor not in _anchors(place)):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("page", [page for page in PAGES if page != OWN_FOLDER], ids=_by_name)
def test_paths_exist(page: Path) -> None:
    named = {
        word.split("::")[0]
        for text in _commands_and_names(page)
        for word in text.split()
        if re.fullmatch(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]+(?:::\w+)?", word)
    }
    assert not sorted(name for name in named if not (ROOT / name).exists())


def test_files_of_the_architecture_page_exist() -> None:
    """Its tables name files relative to the part of the section, or to a folder that stands in the same row."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    absent = []
    for part in ("harness", "engine", "native", "suites"):
        section = re.search(rf"^## {part}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, part
        for row in section[1].splitlines():
            words = [word for code in CODE.findall(row) for word in code.split()]
            folders = [ROOT, ROOT / part, *(ROOT / part / word for word in words if word.endswith("/"))]
            files = [word for word in words if re.fullmatch(r"[\w/]+(?:\.py|/)", word)]
            absent += [f"{part}: {file}" for file in files if not any((at / file).exists() for at in folders)]
    assert not absent


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_modules_commands_and_sessions_exist(page: Path) -> None:
    commands = _parsers(build_parser())
    sessions = set(re.findall(r"^@nox\.session\ndef (\w+)\(", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    wrong = []
    for text in _commands_and_names(page):
        modules = [name for name in re.findall(r"-m ([a-z_][\w.]*\w)", text) if name.split(".")[0] in CODE_FOLDERS]
        wrong += [f"module {name}" for name in modules if find_spec(name) is None]
        wrong += [f"harness {name}" for name in re.findall(r"(?:^|-m )harness ([a-z]+)", text) if name not in commands]
        for asked in re.findall(r"(?:noxfile\.py|nox) -s ((?:[a-z_]+ ?)+)", text):
            wrong += [f"session {name}" for name in asked.split() if name not in sessions]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=_by_name)
def test_options_exist(page: Path) -> None:
    """An option of `harness COMMAND` is one of that command's; any other is the engine's or stands in our code."""
    commands = _parsers(build_parser())
    engine = argparse.ArgumentParser()
    add_speculation_options(engine)  # their names are put together
    ours = FOREIGN | {name for action in engine._actions for name in action.option_strings}
    for folder in CODE_FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            ours |= set(re.findall(r'"(--[a-z][\w-]*)"', path.read_text(encoding="utf-8")))
    wrong = []
    for text in _commands_and_names(page):
        options = set(re.findall(r"(?<![\w-])(--[a-z][\w-]*[a-z])(?![\w*-])", text.split(" -- ")[0]))
        if said := re.match(r"(?:.*-m )?harness ([a-z]+)", text):
            parser = commands.get(said[1])
            known = {name for action in parser._actions for name in action.option_strings} if parser else set()
            wrong += [f"harness {said[1]} {option}" for option in options - known]
        else:
            wrong += [f"{option} in {text!r}" for option in options - ours]
    assert not sorted(wrong)


def test_the_glossary_has_every_word_of_a_verdict() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = {outcome.value for outcome in (*CaseOutcome, *MetricOutcome)} | {kind.value for kind in OriginKind}
    assert not sorted(word for word in words if not re.search(rf"\b{word.replace('_', '.')}\b", glossary))

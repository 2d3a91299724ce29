"""The CI workflows follow GitHub's schema, and say the commands that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.commands.arguments import build_parser

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
_HARNESS = re.compile(r"-m harness (.+?)(?: \|\| true)?$", re.MULTILINE)
_SESSION = re.compile(r"noxfile\.py -s ([\w ]+)$", re.MULTILINE)


def schema_says(path: Path) -> str:
    """Empty where the file follows the schema that ships with check-jsonschema."""
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_follows_the_schema(path: Path) -> None:
    assert schema_says(path) == ""


def test_the_schema_sees_a_misspelt_key(tmp_path: Path) -> None:
    spoilt = tmp_path / "nightly.yml"
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    spoilt.write_text(text.replace("timeout-minutes", "timeout-minuets"))
    assert "timeout-minuets" in schema_says(spoilt)


@pytest.mark.parametrize(("script", "least"), [(".ci/run", 0), (".github/workflows/nightly.yml", 1)])
def test_each_command_of_ours_is_understood(script: str, least: int) -> None:
    text = (ROOT / script).read_text()
    commands, called = _HARNESS.findall(text), _SESSION.findall(text)
    assert called, "no session is found in it: the pattern no longer fits how it is written"
    assert len(commands) >= least
    for line in commands:
        build_parser().parse_args(line.split())  # argparse exits where it does not understand
    sessions = set(re.findall(r"@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text()))
    for names in called:
        assert set(names.split()) <= sessions


def test_an_issue_is_filed_only_from_what_two_nights_agree_in() -> None:
    text = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    step = text[text.index("An issue, or a word") :]
    assert "hashFiles('artifacts/issue.md') != ''" in step
    assert "rm -f artifacts/issue.md" in text[: text.index("An issue, or a word")]


def test_ci_runs_what_the_script_says() -> None:
    assert "run: bash .ci/run\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_no_workflow_names_a_secret_but_github_s_own_token() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml"]
    for path in WORKFLOWS:
        assert "secrets." not in path.read_text(), path.name

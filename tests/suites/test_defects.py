"""Every planted defect turns its named cases red, and those cases are green without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import pytest

from suites import defects
from tests.suites.forked_pytest import CLEAN

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = defects.registry()
NOTICED = "failure"
NOT_PASSED = {NOTICED, "error", "skipped"}
# All defects together take about five minutes alone on two cores, much longer beside other work.
SECONDS_ALLOWED = 2400

pytestmark = pytest.mark.timeout(SECONDS_ALLOWED + 60)


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of every defect that this session tries, and of a clean run over the cases they name."""
    folder = tmp_path_factory.mktemp("planted")
    tried = {item.callspec.params["name"] for item in request.session.items if "reports" in item.fixturenames}  # type: ignore[attr-defined]
    jobs = {name: list(REGISTRY[name].must_go_red) for name in sorted(tried)}
    jobs[CLEAN] = sorted({node for nodes in jobs.values() for node in nodes})
    subprocess.run(
        [sys.executable, "-m", "tests.suites.forked_pytest", str(folder)],
        cwd=ROOT,
        input=json.dumps(jobs),
        text=True,
        timeout=SECONDS_ALLOWED,
        check=True,
    )
    return folder


def _outcomes(folder: Path, name: str) -> Mapping[str, str]:
    """Outcome of each case of one run: passed, failure, error or skipped."""
    report = folder / f"{name}.xml"
    assert report.is_file(), f"pytest did not finish:\n{(folder / f'{name}.log').read_text()[-3000:]}"
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        worst = next((child.tag for child in case if child.tag in NOT_PASSED), "passed")
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = worst
    return outcomes


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_defect_goes_red(name: str, reports: Path) -> None:
    planted, clean = _outcomes(reports, name), _outcomes(reports, CLEAN)
    assert planted, f"{name} names no case that exists:\n{(reports / f'{name}.log').read_text()[-3000:]}"
    # A case that errs before it asks anything (a fixture, an import) would go red over whatever was planted.
    assert {node: outcome for node, outcome in planted.items() if outcome != NOTICED} == {}, f"{name} was not noticed"
    assert {node: clean[node] for node in planted} == dict.fromkeys(planted, "passed")


def test_every_scope_with_suites_has_defects() -> None:
    scopes = {path.parent.name for path in (ROOT / "suites").glob("*/test_*.py")}
    assert scopes <= {defect.scope for defect in REGISTRY.values()}


def test_an_unknown_defect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(defects.PLANT_VARIABLE, "no-such-defect")
    with pytest.raises(ValueError, match=r"no-such-defect: no such defect; known: .*kernels-nibble-order"):
        defects.planted()


def test_pytest_refuses_an_unknown_defect_in_one_line() -> None:
    environment = {**os.environ, defects.PLANT_VARIABLE: "no-such-defect"}
    command = [sys.executable, "-m", "pytest", "suites/sampling", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: SM70_PLANT=no-such-defect: no such defect; known: " in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_planted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(defects.PLANT_VARIABLE, raising=False)
    assert defects.planted() is None

"""Every planted defect turns its named cases red, and those cases are green without it."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import pytest

from suites import defects

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = defects.registry()
RED = {"failure", "error"}


def _outcomes(folder: Path, nodes: tuple[str, ...], plant: str) -> Mapping[str, str]:
    """Run exactly ``nodes`` in a process of their own -> outcome of each case: passed, failure, error or skipped."""
    report = folder / f"{plant or 'clean'}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *nodes]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, defects.PLANT_VARIABLE: plant},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), (
        f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
    )
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        worst = next((child.tag for child in case if child.tag in {*RED, "skipped"}), "passed")
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = worst
    return outcomes


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Outcomes of every named case with nothing planted, from one run."""
    nodes = tuple(sorted({node for defect in REGISTRY.values() for node in defect.must_go_red}))
    return _outcomes(tmp_path_factory.mktemp("clean"), nodes, "")


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_defect_goes_red(name: str, clean: Mapping[str, str], tmp_path: Path) -> None:
    planted = _outcomes(tmp_path, REGISTRY[name].must_go_red, name)
    assert planted, f"{name} names no case that exists"
    assert {node for node, outcome in planted.items() if outcome not in RED} == set(), f"{name} was not noticed"
    assert {node: clean[node] for node in planted} == dict.fromkeys(planted, "passed")


def test_every_scope_with_suites_has_defects() -> None:
    assert {"kernels", "latency"} <= {defect.scope for defect in REGISTRY.values()}


def test_an_unknown_defect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(defects.PLANT_VARIABLE, "no-such-defect")
    with pytest.raises(ValueError, match=r"no-such-defect: no such defect; known: .*kernels-nibble-order"):
        defects.planted()


def test_nothing_is_planted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(defects.PLANT_VARIABLE, raising=False)
    assert defects.planted() is None

"""What consecutive nights agree in: which findings are confirmed, and the issue about them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.compare import compare
from harness.gate import decide
from harness.model import CaseStatus, Evidence, ScopeEvidence
from harness.report import render_markdown
from harness.report.nights import build_nights_document, issue_title
from harness.trends.nights import Night, bad_in_a_row, confirmed, judge_nights
from harness.verdict import Comparison, GateDecision, Policy
from tests.harness.build import case, evidence, metric, samples, scope
from tests.harness.conftest import call_here

Run = tuple[Evidence, Comparison, GateDecision]
FAST, SLOW = (1.0, 1.01, 1.02, 1.03), (1.5, 1.51, 1.52, 1.53)
GOOD = scope(case("a"), case("b"))
BAD_A, BAD_B = scope(case("a", CaseStatus.FAILED), case("b")), scope(case("a"), case("b", CaseStatus.FAILED))
BASE = evidence(GOOD, label="baselines")


def run(day: int, one: ScopeEvidence, base: Evidence | None = BASE) -> Run:
    head = replace(
        evidence(one, label=f"night-{day}"),
        digest=f"{day:064x}",
        created=f"2026-11-{day:02d}T01:17:00Z",
        commit="c" * 40,
    )
    comparison = compare(base, head, Policy())
    return head, comparison, decide(comparison, Policy())


def nights(*scopes: ScopeEvidence, base: Evidence | None = BASE) -> tuple[Night, ...]:
    return judge_nights(run(day, one, base) for day, one in enumerate(scopes, 1))


def places(found: tuple[Night, ...]) -> dict[str, str]:
    return {night.evidence.digest: f"artifacts/bundles/{night.evidence.label}" for night in found}


def keys(found: tuple[Night, ...]) -> list[tuple[str, int]]:
    return [(streak.finding.key[1], streak.nights) for streak in confirmed(found)]


@pytest.mark.parametrize(
    ("scopes", "held", "bad"),
    [
        ((GOOD,), [], 0),
        ((BAD_A,), [], 1),
        ((GOOD, BAD_A), [], 1),
        ((GOOD, BAD_A, BAD_A), [("a", 2)], 2),
        ((BAD_A, BAD_A, BAD_A), [("a", 3)], 3),
        ((BAD_A, BAD_A, GOOD), [], 0),
        ((BAD_A, GOOD, BAD_A), [], 1),
        ((BAD_A, BAD_B), [], 2),  # two bad nights that agree in nothing
        ((BAD_A, scope(case("b")), BAD_A), [("a", 3)], 3),  # failed, vanished, failed: about one case all the same
    ],
)
def test_what_is_confirmed(scopes: tuple[ScopeEvidence, ...], held: list[tuple[str, int]], bad: int) -> None:
    found = nights(*scopes)
    assert keys(found) == held
    assert bad_in_a_row(found) == bad


def test_the_order_is_that_of_time_not_of_arrival() -> None:
    runs = [run(1, GOOD), run(2, BAD_A), run(3, BAD_A)]
    assert keys(judge_nights(reversed(runs))) == [("a", 2)]
    named = [
        (replace(head, label=label), comparison, decision)
        for label, (head, comparison, decision) in zip(("z", "m", "a"), runs, strict=True)
    ]
    assert [night.evidence.label for night in judge_nights(named)] == ["z", "m", "a"]


def test_two_figures_of_one_case_are_two_findings() -> None:
    def stating(**values: int) -> ScopeEvidence:
        rows = tuple(replace(metric("a", value), name=name) for name, value in values.items())
        return scope(case("a"), metrics=rows)

    base = evidence(stating(one=1, other=1), label="baselines")
    apart = nights(stating(one=2, other=1), stating(one=1, other=2), base=base)
    assert (keys(apart), bad_in_a_row(apart)) == ([], 2)
    assert keys(nights(stating(one=2, other=1), stating(one=2, other=1), base=base)) == [("a", 2)]


def test_a_scope_that_is_no_clean_run_is_a_finding() -> None:
    dead = replace(GOOD, problem="pytest died of SIGSEGV")
    found = nights(dead, dead)
    assert [streak.finding.problem for streak in confirmed(found)] == ["pytest died of SIGSEGV"]
    assert "PROBLEM scope kernels" in issue_title(found)


def test_where_the_baseline_is_silent_the_last_green_night_speaks() -> None:
    """Times that no baseline holds are held against the night that was green before; each judged three-way."""

    def timed(values: tuple[float, ...]) -> ScopeEvidence:
        return scope(case("a"), case("b"), samples=(samples("a", values, ""),))

    found = nights(timed(FAST), timed(SLOW), timed(SLOW))
    assert [night.green for night in found] == [True, False, False]
    assert keys(found) == [("a", 2)]
    assert keys(nights(timed(FAST), timed(FAST), timed(FAST))) == []


def test_a_case_that_vanished_from_a_scope_without_a_baseline() -> None:
    gone = scope(case("a"))
    assert keys(nights(GOOD, gone, gone, base=None)) == [("b", 2)]


def test_what_the_baseline_accepts_is_no_finding_though_the_last_green_night_had_it_otherwise() -> None:
    moved = evidence(scope(case("a"), metrics=(metric("a", 50),)), label="baselines")
    runs = [run(1, scope(case("a"), metrics=(metric("a", 40),)), None)]
    runs += [run(day, scope(case("a"), metrics=(metric("a", 50),)), moved) for day in (2, 3)]
    assert keys(judge_nights(runs)) == []


def test_the_issue_is_safe_to_post_and_says_where_to_look() -> None:
    name = "x.py::test[@maintainer <img src=x> | `tick`]"
    bad = scope(case(name, CaseStatus.FAILED, "boom\n@everyone ![x](http://evil)"))
    found = nights(scope(case(name)), bad, bad, base=evidence(scope(case(name)), label="baselines"))
    text = render_markdown(build_nights_document(found, places(found), ["artifacts/x: changed byte"]))
    assert "2 nights in a row" in text
    assert "the same commit: look at the machine first" in text
    assert "changed byte" in text
    assert "compare artifacts/bundles/night-1 artifacts/bundles/night-3" in text
    assert "@everyone" not in text
    assert not re.search(r"(?<!\\)<img", text)
    assert "](http" not in text
    assert "\n" not in issue_title(found)


def test_two_hundred_findings_fit_an_issue() -> None:
    cases = [f"suites/x/test_y.py::test[{'n' * 200}-{i}]" for i in range(2000)]
    good, bad = scope(*map(case, cases)), scope(*(case(node, CaseStatus.FAILED, "why " * 50) for node in cases))
    found = nights(good, bad, bad, base=evidence(good))
    text = render_markdown(build_nights_document(found, places(found)))
    assert len(text.encode()) < 60_000  # GitHub takes 65,536 characters
    assert "2,000" in text


# ---- the command ----------------------------------------------------------------------------------------------------


def seal_night(root: Path, day: int, factor: float) -> None:
    """The run of the fixture again, on another day, its times multiplied."""
    target = root / "runs" / f"n{day}"
    shutil.copytree(root / "runs" / "a", target)
    about = json.loads((target / "run.json").read_text())
    (target / "run.json").write_text(json.dumps({**about, "created": f"2027-01-{day:02d}T01:17:00Z"}))
    records = target / "timed" / "records.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "samples":
            line["values"] = [factor * value for value in line["values"]]
            line["rounds"] = [[factor * value for value in row] for row in line["rounds"]]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call_here(root, "seal", f"runs/n{day}", "--out", "nights").code == (1 if factor > 1 else 0)


def test_an_issue_on_the_second_bad_night_and_not_before(sealed: Path) -> None:
    seal_night(sealed, 1, 1.0)
    seal_night(sealed, 2, 1.2)
    one = call_here(sealed, "nightly", "nights", "--issue", "issue.md")
    assert (one.code, (sealed / "issue.md").exists()) == (0, False)
    assert "ONE BAD NIGHT" in one.out
    seal_night(sealed, 3, 1.2)
    two = call_here(sealed, "nightly", "nights", "--issue", "issue.md", "--format", "markdown")
    assert two.code == 1
    title, empty, *body = (sealed / "issue.md").read_text().splitlines()
    assert title == "Nightly on cpu-x86-64: WORSE suites/timed/test_timed.py::test_decode round_ms"
    assert empty == ""
    assert "2 nights in a row; +20.0 %" in "\n".join(body)
    again = call_here(sealed, "nightly", "nights", "--issue", "issue.md")
    assert (again.code, "is there already" in again.err) == (2, True)
    member = next((sealed / "nights").glob("n3-*")) / "data" / "bundle.json"
    member.chmod(0o644)
    member.write_bytes(member.read_bytes() + b" ")
    left = call_here(sealed, "nightly", "nights")  # what does not verify is named, and is no night
    assert left.code == 3
    assert "not read" in left.out
    assert call_here(sealed, "nightly", "nights", "--device-key", "sm70").code == 2
    assert call_here(sealed, "nightly", "nights", "--last", "0").code == 2

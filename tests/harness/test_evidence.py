"""A scope's folder read back: tries folded, XML held against records, deaths told from lies."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EvidenceError
from harness.evidence import attempt_folders, read_scope, shard_folders
from harness.model import CaseStatus, OriginKind
from tests.harness.test_records import SAMPLES, TOKENS, end, line, start

FACTS = {"device_key": "cpu-x86-64"}


def xml(**outcomes: str) -> str:
    body = {"passed": "", "failed": "<failure/>", "error": "<error/>", "skipped": "<skipped/>"}
    cases = "".join(
        f'<testcase classname="t" name="{name}">{body[outcome]}</testcase>' for name, outcome in outcomes.items()
    )
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>"


def put(folder: Path, records: bytes, junit: str | None = None, **record: Any) -> None:
    """A try as a run leaves it: with its log, the end of its records, and the outcomes that the runner counted."""
    folder.mkdir(parents=True, exist_ok=True)
    attempts = folder / "attempts"
    exit_code = record.get("exit_code", 0)
    given = {
        "schema": 1,
        "scope": "s",
        "state": "finished",
        "origin": {"kind": "fresh", "detail": ""},
        "argv": ["pytest"],
        "exit_code": 0,
        "seconds": 1.0,
        "problem": "",
        "attempt": 1 + (len(list(attempts.iterdir())) if attempts.exists() else 0),
        "counts": Counter(re.findall(r'"outcome": ?"([a-z]+)"', records.decode())),
        **record,
    }
    (folder / "log.txt").write_text("")
    if exit_code in (0, 1):
        records += line("scope_end", worker="", exit_code=exit_code)
    (folder / "scope.json").write_text(json.dumps(given))
    (folder / "records.jsonl").write_bytes(records)
    (folder / "environment.json").write_text(json.dumps(FACTS))
    if junit is not None:
        (folder / "junit.xml").write_text(junit)


def ran(name: str, outcome: str = "passed", reason: str = "") -> bytes:
    return start(f"t.py::{name}") + end(f"t.py::{name}", outcome, reason or ("" if outcome == "passed" else "why"))


def test_a_plain_scope(tmp_path: Path) -> None:
    put(tmp_path / "s", ran("a") + ran("b", "skipped"), xml(a="passed", b="skipped"))
    scope = read_scope(tmp_path / "s", FACTS)
    assert {case.node: case.status.value for case in scope.cases} == {"t.py::a": "passed", "t.py::b": "skipped"}
    assert scope.environment == {}
    assert scope.notes == ()
    assert read_scope(tmp_path / "s", {"device_key": "other"}).environment == FACTS


def test_failing_then_passing_is_flaky_and_has_no_times(tmp_path: Path) -> None:
    numbers = line("tokens", node="t.py::a", name="t", **TOKENS) + line("samples", node="t.py::a", name="s", **SAMPLES)
    put(tmp_path / "s" / "attempts" / "1", ran("a", "failed") + ran("b"), xml(a="failed", b="passed"), exit_code=1)
    put(tmp_path / "s", ran("a") + numbers, xml(a="passed"), partial=True)
    scope = read_scope(tmp_path / "s", FACTS)
    cases = {case.node: case for case in scope.cases}
    assert cases["t.py::a"].status is CaseStatus.FLAKY
    assert cases["t.py::a"].reason == "failed at try 1, passed at try 2"
    assert cases["t.py::b"].status is CaseStatus.PASSED
    assert scope.samples == ()
    assert scope.notes[:2] == (
        "2 tries are kept; the last one of each case counts",
        "t.py::a: its times are left out, it is flaky",
    )


@pytest.mark.parametrize("bad", ["failed", "error"])
def test_a_case_that_was_ever_unwell_stays_flaky(tmp_path: Path, bad: str) -> None:
    put(tmp_path / "s" / "attempts" / "1", ran("a", bad), xml(a=bad), exit_code=1)
    put(tmp_path / "s" / "attempts" / "2", ran("a"), xml(a="passed"))
    put(tmp_path / "s", ran("a"), xml(a="passed"))
    (only,) = read_scope(tmp_path / "s", FACTS).cases
    assert (only.status, only.reason) == (CaseStatus.FLAKY, "failed at try 1, passed at try 3")


def test_an_interrupted_try_takes_nothing_back(tmp_path: Path) -> None:
    """It ran what it ran; what it did not reach keeps its word from the try before."""
    put(tmp_path / "s" / "attempts" / "1", ran("a") + ran("b"), xml(a="passed", b="passed"))
    put(tmp_path / "s", ran("a"), state="interrupted", exit_code=2, problem="interrupted")
    assert [case.node for case in read_scope(tmp_path / "s", FACTS).cases] == ["t.py::a", "t.py::b"]


def test_the_figures_of_a_case_are_those_of_its_last_try(tmp_path: Path) -> None:
    def stating(value: float) -> bytes:
        return line("metric", node="t.py::a", name="m", value=value, unit="B", better="lower", assume="exact")

    put(tmp_path / "s" / "attempts" / "1", ran("a") + stating(1.0), xml(a="passed"))
    put(tmp_path / "s", ran("a") + stating(2.0), xml(a="passed"))
    assert [metric.value for metric in read_scope(tmp_path / "s", FACTS).metrics] == [2.0]


def test_tries_and_shards_come_by_number_without_a_gap(tmp_path: Path) -> None:
    for kind, folders_of in (("attempts", attempt_folders), ("shards", shard_folders)):
        home = tmp_path / kind
        for number in (11, 10, 9, 2, 1):
            (home / kind / str(number)).mkdir(parents=True)
        with pytest.raises(EvidenceError, match=r"are numbered from 1, found 1, 10, 11, 2, 9"):
            folders_of(home)
        for number in range(3, 9):
            (home / kind / str(number)).mkdir()
        assert [int(path.name) for path in folders_of(home)] == list(range(1, 12))


def test_a_whole_try_forgets_cases_that_are_gone_but_not_that_they_failed(tmp_path: Path) -> None:
    put(
        tmp_path / "s" / "attempts" / "1", ran("a", "failed") + ran("gone"), xml(a="failed", gone="passed"), exit_code=1
    )
    put(tmp_path / "s", ran("a"), xml(a="passed"))
    scope = read_scope(tmp_path / "s", FACTS)
    assert [(case.node, case.status) for case in scope.cases] == [("t.py::a", CaseStatus.FLAKY)]


def test_a_killed_try_is_history_only(tmp_path: Path) -> None:
    """What it had open was interrupted, not crashed; that it had no scope.json is why it was tried again."""
    attempt = tmp_path / "s" / "attempts" / "1"
    put(attempt, ran("a") + start("t.py::b"))
    (attempt / "scope.json").unlink()
    put(tmp_path / "s", ran("a") + ran("b"), xml(a="passed", b="passed"))
    scope = read_scope(tmp_path / "s", FACTS)
    assert {case.status for case in scope.cases} == {CaseStatus.PASSED}


def test_a_crash_has_results_without_xml(tmp_path: Path) -> None:
    nodes = line("collected", nodes=["t.py::a", "t.py::b", "t.py::c"])
    put(tmp_path / "s", nodes + ran("a") + start("t.py::b"), exit_code=-11, problem="pytest died of SIGSEGV")
    scope = read_scope(tmp_path / "s", FACTS)
    assert [case.status.value for case in scope.cases] == ["passed", "crashed", "not_run"]
    assert scope.problem == "pytest died of SIGSEGV"
    assert "junit.xml was never written" in scope.notes[0]
    (tmp_path / "s" / "junit.xml").write_text("<testsuites><testsu")
    assert "junit.xml is cut" in read_scope(tmp_path / "s", FACTS).notes[0]


def test_a_worker_s_crash_is_in_both(tmp_path: Path) -> None:
    put(tmp_path / "s", ran("a") + start("t.py::b"), xml(a="passed", b="failed"), exit_code=1)
    assert read_scope(tmp_path / "s", FACTS).cases[1].status is CaseStatus.CRASHED


@pytest.mark.parametrize(
    ("records", "junit", "says"),
    [
        (ran("a"), None, "missing, though pytest ended with exit code 0"),
        (ran("a"), "<testsuites", "not well-formed"),
        (ran("a"), xml(), "t.py::a is in the records (passed) and not in the XML"),
        (ran("a"), xml(a="passed", b="passed"), "t::b is in the XML and not in the records"),
        (ran("a"), xml(a="failed"), "t.py::a is failed in the XML and passed in the records"),
        (ran("a", "failed"), xml(a="passed"), "t.py::a is passed in the XML and failed in the records"),
        (ran("a", "skipped"), xml(a="error"), "t.py::a is error in the XML and skipped in the records"),
        (ran("a"), xml(a="skipped"), "t.py::a is skipped in the XML and passed in the records"),
        (ran("a", "xfailed"), xml(a="passed"), "t.py::a is passed in the XML and xfailed in the records"),
        (b"{}\n", xml(), "line 1"),
    ],
)
def test_files_that_contradict(tmp_path: Path, records: bytes, junit: str | None, says: str) -> None:
    put(tmp_path / "s", records, junit)
    with pytest.raises(EvidenceError) as caught:
        read_scope(tmp_path / "s", FACTS)
    assert says in str(caught.value)


def test_a_case_listed_twice_may_have_been_skipped_in_part(tmp_path: Path) -> None:
    put(
        tmp_path / "s",
        ran("a"),
        "<testsuites><testsuite>"
        + 2 * '<testcase classname="t" name="a"><skipped/></testcase>'
        + "</testsuite></testsuites>",
    )
    assert read_scope(tmp_path / "s", FACTS).cases[0].status is CaseStatus.PASSED


@pytest.mark.parametrize(
    ("record", "gone", "says"),
    [
        ({"counts": {"passed": 2}}, "", "scope.json counts 2 passed, the records have 1 passed"),
        ({"attempt": 2}, "", "scope.json is of try 2, 0 earlier ones are kept"),
        ({}, "log.txt", "log.txt: missing, though pytest ended with exit code 0"),
        ({}, "scope_end", "has no end, though pytest ended with 0"),
        ({"exit_code": 1}, "1", "pytest ended with 0 in scope.json and with 1 in the records"),
        ({"seconds": -1.0}, "", "-1.0 is no duration in seconds"),
    ],
)
def test_one_file_that_was_edited(tmp_path: Path, record: dict[str, Any], gone: str, says: str) -> None:
    folder = tmp_path / "s"
    put(folder, ran("a"), xml(a="passed"), **record)
    if gone == "log.txt":
        (folder / gone).unlink()
    elif gone == "scope_end":
        (folder / "records.jsonl").write_bytes(ran("a"))
    elif gone:
        edited = (folder / "scope.json").read_text().replace('"exit_code": 1', '"exit_code": 0')
        (folder / "scope.json").write_text(edited)
    with pytest.raises(EvidenceError) as caught:
        read_scope(folder, FACTS)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": 1, "schema": 1}', "the key 'schema' is there twice"),
        ('{"schema": NaN}', "NaN is no number that JSON has"),
        ("[" * 100_000, "not valid JSON"),
        ('{"schema": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_json_that_readers_take_in_different_ways(tmp_path: Path, text: str, says: str) -> None:
    put(tmp_path / "s", ran("a"), xml(a="passed"))
    (tmp_path / "s" / "scope.json").write_text(text)
    with pytest.raises(EvidenceError) as caught:
        read_scope(tmp_path / "s", FACTS)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "record", [{"state": None}, {"origin": {}}, {"origin": {"kind": "odd", "detail": ""}}, {"argv": 3}, {"scope": None}]
)
def test_a_scope_json_that_is_not_ours(tmp_path: Path, record: dict[str, Any]) -> None:
    put(tmp_path / "s", ran("a"), xml(a="passed"), **record)
    if record.get("scope", "") is None or record.get("state", "") is None:
        broken = json.loads((tmp_path / "s" / "scope.json").read_text())
        broken.pop(next(iter(record)))
        (tmp_path / "s" / "scope.json").write_text(json.dumps(broken))
    with pytest.raises(EvidenceError, match="not as this harness writes it"):
        read_scope(tmp_path / "s", FACTS)


def test_not_run(tmp_path: Path) -> None:
    told = {"state": "not_run", "origin": {"kind": "not_run", "detail": "no GPU"}, "exit_code": None}
    put(tmp_path / "s", ran("a", "failed"), xml(a="failed"), **told)
    with pytest.raises(EvidenceError, match=r"not run according to scope\.json, and yet there is records\.jsonl"):
        read_scope(tmp_path / "s", FACTS)
    (tmp_path / "s" / "records.jsonl").unlink()
    (tmp_path / "s" / "junit.xml").unlink()
    scope = read_scope(tmp_path / "s", FACTS)
    assert scope.notes == ()
    assert (scope.origin.kind, scope.origin.detail, scope.cases) == (OriginKind.NOT_RUN, "no GPU", ())


def test_not_run_after_a_try_that_failed(tmp_path: Path) -> None:
    put(tmp_path / "s" / "attempts" / "1", ran("a", "failed") + ran("b"), xml(a="failed", b="passed"), exit_code=1)
    put(tmp_path / "s", b"", state="not_run", origin={"kind": "not_run", "detail": "no GPU"}, exit_code=None)
    (tmp_path / "s" / "records.jsonl").unlink()
    assert read_scope(tmp_path / "s", FACTS).notes == ("1 earlier try did run, 1 case ended badly there",)

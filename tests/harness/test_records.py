from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EvidenceError, HarnessError
from harness.model import Assume, Better, CaseStatus
from harness.records import (
    AnyLine,
    CaseEnd,
    CaseStart,
    MetricLine,
    encode_lines,
    parse_records,
    read_records,
    to_cases,
    to_metrics,
    to_samples,
    to_tokens,
)


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"schema": 1, "kind": kind, **fields}).encode() + b"\n"


def start(node: str = "n", group: str = "") -> bytes:
    return line("case_start", node=node, group=group)


def end(node: str = "n", outcome: str = "passed", reason: str = "", reruns: int = 0) -> bytes:
    return line("case_end", node=node, outcome=outcome, phases={}, seconds=0.5, reason=reason, reruns=reruns)


SHA = "a" * 64
TOKENS = {
    "sha256": SHA,
    "prompt_sha256": [SHA],
    "finish": ["stop"],
    "tokens": 6,
    "rounds": 4,
    "acceptance_histogram": [0, 4],
}
SAMPLES = {"values": [1.0, 2.0], "unit": "ms", "better": "lower", "control": "t", "rounds": [], "unfit": []}


def test_statuses() -> None:
    content = b"".join(
        [
            line("collected", nodes=["a", "b", "c", "d", "e", "f"]),
            line("deselected", nodes=["z"]),
            line("collect_error", node="broken.py", reason="no such module"),
            start("a", "numbers") + end("a"),
            start("b") + end("b", "failed", "why"),
            start("c") + end("c", "passed", reruns=2),
            start("d") + end("d", "interrupted"),
            start("e"),
        ]
    )
    cases = {case.node: case for case in to_cases(parse_records(content, "r"))}
    assert {node: case.status.value for node, case in cases.items()} == {
        "a": "passed",
        "b": "failed",
        "c": "flaky",
        "d": "not_run",
        "e": "crashed",
        "f": "not_run",
        "z": "not_run",
        "broken.py": "error",
    }
    assert cases["a"].group == "numbers"
    assert cases["c"].reason == "passed only at try 3"
    assert cases["f"].reason == "collected, never run: the process ended before"
    assert cases["z"].reason == "deselected on the command line"
    assert cases["broken.py"].reason == "could not be collected: no such module"


def test_a_case_that_ran_twice_in_one_process() -> None:
    failed_then_passed = start() + end("n", "failed", "x") + start() + end()
    assert to_cases(parse_records(failed_then_passed, "r"))[0].status is CaseStatus.FLAKY
    erred_then_passed = start() + end("n", "error", "x") + start() + end()
    assert to_cases(parse_records(erred_then_passed, "r"))[0].status is CaseStatus.FLAKY
    two_at_once_and_one_ended = start() + start() + end()
    assert to_cases(parse_records(two_at_once_and_one_ended, "r"))[0].status is CaseStatus.CRASHED
    passed_then_failed = start() + end() + start() + end("n", "failed", "x")
    assert to_cases(parse_records(passed_then_failed, "r"))[0].status is CaseStatus.FAILED
    passed_then_open = start() + end() + start()
    assert to_cases(parse_records(passed_then_open, "r"))[0].status is CaseStatus.CRASHED


def test_numbers_and_their_controls() -> None:
    content = b"".join(
        [
            line("unfit", node="", reason="profiled"),
            line("unfit", node="n", reason="planted"),
            line("unfit", node="other", reason="not ours"),
            line("tokens", node="n", name="t", **TOKENS),
            line("samples", node="n", name="s", **SAMPLES),
            line("metric", node="n", name="m", value=3, unit="1", better="higher", assume="exact"),
        ]
    )
    records = parse_records(content, "r")
    (control,) = to_tokens(records, "r")
    assert control.emitted_per_round == 1.5
    (sample,) = to_samples(records, "r")
    assert sample.token_sha256 == SHA
    assert sample.unfit == ("profiled", "planted")
    (metric,) = to_metrics(records)
    assert (metric.value, metric.better, metric.assume) == (3.0, Better.HIGHER, Assume.EXACT)


def test_a_cut_last_line_is_where_the_process_died() -> None:
    records = parse_records(start() + end() + b'{"schema": 1, "kind": "cas', "r")
    assert records.cut == 3
    assert to_cases(records)[0].status is CaseStatus.PASSED


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (start() + b'{"schema": 1, "ki\n' + end(), "r, line 2: "),
        (start() + b"\n" + end(), "r, line 2: an empty line"),
        (line("case_begin", node="n"), "r, line 1: Invalid value 'case_begin'"),
        (b'{"schema":2,"kind":"case_start","node":"n","group":""}\n', "schema 2, this harness reads 1"),
        (line("case_start", node="n", group="", extra=1), "unknown field `extra`"),
        (line("case_start", node=3, group=""), "Expected `str`, got `int`"),
        (end(), "line 1: n ended without having started"),
        (start() + end() + end(), "line 3: n ended without having started"),
        (start() + end("n", "great"), "Invalid enum value 'great'"),
        (line("metric", node="n", name="m", value=1, unit="1", better="up", assume=""), "Invalid enum value 'up'"),
        (line("tokens", node="n", name="t", **TOKENS) * 2, "line 2: n states 't' twice"),
        (b"[1]\n", "line 1: Expected `object`, got `array`"),
        (b"\xff\xfe\n", "line 1: "),
        (b'{"a":' * 100_000 + b"\n", "line 1: "),
    ],
)
def test_damage_is_named_by_file_and_line(content: bytes, says: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        parse_records(content, "r")
    assert says in str(caught.value)


def test_a_sample_without_its_control(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(line("samples", node="n", name="s", **SAMPLES))
    with pytest.raises(EvidenceError, match="no tokens record 't'"):
        to_samples(read_records(tmp_path / "r"), "r")
    with pytest.raises(HarnessError, match=r"cannot read .*absent"):
        read_records(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "A" * 64}, "is no SHA-256 in hex"),
        ({"prompt_sha256": ["b" * 64]}, "the hash of the only prompt is not that of all prompts"),
        ({"finish": []}, "1 prompts and 0 finish reasons"),
        ({"tokens": -1}, "below zero"),
        ({"rounds": -4}, "below zero"),
        ({"acceptance_histogram": [0, -1]}, "below zero"),
    ],
)
def test_a_token_control_that_no_run_leaves(change: dict[str, Any], says: str) -> None:
    records = parse_records(line("tokens", node="n", name="t", **{**TOKENS, **change}), "r")
    with pytest.raises(EvidenceError, match=says):
        to_tokens(records, "r")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": [[1.0]]}, "2 repeats but raw rounds of 1"),
        ({"rounds": [[1.0, 1.0], [2.5, 3.0]]}, "2.0 does not lie among its own rounds"),
        ({"rounds": [[1.0], []], "values": [0.5, 2.0]}, "0.5 does not lie among its own rounds"),
    ],
)
def test_times_that_their_own_rounds_contradict(change: dict[str, Any], says: str) -> None:
    lines = line("tokens", node="n", name="t", **TOKENS) + line("samples", node="n", name="s", **{**SAMPLES, **change})
    with pytest.raises(EvidenceError, match=says):
        to_samples(parse_records(lines, "r"), "r")


names = st.text(min_size=1, max_size=8)


@given(st.lists(st.tuples(names, st.floats(allow_nan=False, allow_infinity=False)), unique_by=lambda pair: pair[0]))
def test_lines_come_back(pairs: list[tuple[str, float]]) -> None:
    lines = [
        MetricLine(schema=1, node="n", name=name, value=value, unit="1", better=Better.LOWER, assume=Assume.EXACT)
        for name, value in pairs
    ]
    records = parse_records(encode_lines(lines), "r")
    assert [(metric.name, metric.value) for metric in to_metrics(records)] == pairs


VALID = start() + end() + line("tokens", node="n", name="t", **TOKENS) + line("samples", node="n", name="s", **SAMPLES)


@given(st.data())
def test_only_documented_errors_leave_the_reader(data: st.DataObject) -> None:
    """Bytes cut, changed or put in anywhere: the reader gives words or an ``EvidenceError``, never anything else."""
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        match data.draw(st.sampled_from(["cut", "change", "insert"])):
            case "cut":
                del content[at : at + data.draw(st.integers(1, 40))]
            case "change" if content:
                content[at] = data.draw(st.integers(0, 255))
            case _:
                content[at:at] = data.draw(st.binary(max_size=20))
    try:
        records = parse_records(bytes(content), "r")
        to_cases(records), to_tokens(records, "r"), to_samples(records, "r")
    except HarnessError:
        pass


def test_encoding_of_cases() -> None:
    lines: list[AnyLine] = [
        CaseStart(schema=1, node="n", group=""),
        CaseEnd(schema=1, node="n", outcome="passed", phases={}, seconds=None, reason="", reruns=0),
    ]
    assert to_cases(parse_records(encode_lines(lines), "r"))[0].seconds is None

from __future__ import annotations

import contextlib
from pathlib import Path

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import junit
from harness.errors import EvidenceError, HarnessError
from harness.junit import JUnitCase, parse_junit, pytest_address
from harness.model import CaseStatus


def one(body: str) -> JUnitCase:
    (case,) = parse_junit(f'<testsuite name="s">{body}</testsuite>'.encode(), "f").cases
    return case


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ('<testcase name="a"/>', "passed", ""),
        ('<testcase name="a"><system-out>x</system-out><properties/></testcase>', "passed", ""),
        ('<testcase name="a"><failure message="m"/></testcase>', "failed", "m"),
        ('<testcase name="a"><failure>first\nsecond</failure></testcase>', "failed", "first"),
        ('<testcase name="a"><error type="T"/></testcase>', "error", "T"),
        ('<testcase name="a"><skipped/></testcase>', "skipped", "no reason given"),
        ('<testcase name="a"><skipped type="pytest.xfail" message="known"/></testcase>', "xfailed", "known"),
        ('<testcase name="a"><flakyFailure message="once"/></testcase>', "flaky", "once"),
        ('<testcase name="a"><rerunFailure message="r"/><failure message="m"/></testcase>', "failed", "r"),
        ('<testcase name="a"><failure/><error/></testcase>', "error", "no reason given"),
        ('<testcase name="a"><skipped/><failure/></testcase>', "failed", "no reason given"),
        ('<testcase name="a" status="notrun"/>', "skipped", "status=notrun"),
        ('<testcase name="a" status="notrun" result="suppressed"/>', "skipped", "status=notrun"),
        ('<testcase name="a" status="run" result="completed"/>', "passed", ""),
        ('<testcase name="a" status="fail"/>', "failed", "status=fail"),
        ('<testcase name="a" status="odd"/>', "unknown", "status='odd' is of unknown meaning"),
        ('<testcase name="a"><warning/></testcase>', "unknown", "it holds an element <warning> of unknown meaning"),
        ('<x:testcase xmlns:x="u" name="a"><x:failure message="m"/></x:testcase>', "failed", "m"),
    ],
)
def test_outcomes(body: str, status: str, reason: str) -> None:
    case = one(body)
    assert (case.status.value, case.reason) == (status, reason)


def test_a_nested_outcome_is_not_the_case_s_own() -> None:
    """junitparser counts the stackTrace's failure of a rerun; only direct children speak for the case."""
    body = '<testcase name="a"><flakyFailure message="f"><stackTrace/><system-out/></flakyFailure></testcase>'
    assert one(body).status is CaseStatus.FLAKY


def test_times() -> None:
    assert one('<testcase name="a" time="0,5"/>').seconds == 0.5
    assert one('<testcase name="a" time="67.6ms"/>').seconds == pytest.approx(0.0676)
    assert one('<testcase name="a" duration="3"/>').seconds == 3.0
    for unknown in ("", "-1", "nan", "12,345", "x"):
        assert one(f'<testcase name="a" time="{unknown}"/>').seconds is None


def test_nesting_names_and_cases_outside_any_suite() -> None:
    xml = b"""<testsuites name="tool"><testcase name="loose"/>
      <testsuite name="outer"><testcase classname="outer" name="a"/>
        <testsuite name="inner"><testcase classname="C" name="b"/><testcase/></testsuite></testsuite></testsuites>"""
    nodes = [case.node for case in parse_junit(xml, "f").cases]
    assert nodes == ["loose", "outer::a", "outer::inner::C::b", "outer::inner::unnamed case 2"]


def test_suite_level_trouble_is_never_green() -> None:
    xml = b"""<testsuites><testsuite name="a"><error message="could not load"/></testsuite>
      <testsuite name="b" tests="3" failures="2"><testcase name="x"/></testsuite>
      <testsuite name="c" tests="5"/><testsuite name="d" tests="1"/>
      <testsuite name="e" errors="1"><testcase name="x"/></testsuite></testsuites>"""
    cases = {case.node: case for case in parse_junit(xml, "f").cases}
    assert cases["a::(suite)"].status is CaseStatus.ERROR
    assert cases["a::(suite)"].reason == "suite-level error: could not load"
    assert cases["b::(suite)"].status is CaseStatus.UNKNOWN
    assert "states 2 failures, none is listed" in cases["b::(suite)"].reason
    assert cases["c::(suite)"].status is CaseStatus.UNKNOWN
    assert cases["d::(suite)"].status is CaseStatus.UNKNOWN
    assert "states 1 failures, none is listed" in cases["e::(suite)"].reason
    assert cases["b::x"].status is CaseStatus.PASSED


def test_header_counts_that_lie_are_a_doubt() -> None:
    report = parse_junit(b'<testsuite name="s" tests="7" failures="x"><testcase name="a"/></testsuite>', "f")
    assert report.doubts == ["s: the header states 7 cases, 1 are listed"]
    inner = b'<testsuite><testcase name="a"><failure/></testcase></testsuite>'
    outer = b'<testsuites tests="1" failures="1">' + inner + b"</testsuites>"
    assert parse_junit(outer, "f").doubts == []
    assert len(parse_junit(outer, "f").cases) == 1


def test_duplicates_are_tries() -> None:
    failed, passed = '<testcase name="a"><failure message="f"/></testcase>', '<testcase name="a" time="2"/>'
    flaky = one(failed + passed)
    assert (flaky.status, flaky.listed, flaky.seconds) == (CaseStatus.FLAKY, 2, 2.0)
    assert one(passed + failed).status is CaseStatus.FAILED
    assert one(passed + passed).status is CaseStatus.PASSED
    assert (
        one('<testcase name="a"><failure/></testcase><testcase name="a"><error/></testcase>').status is CaseStatus.ERROR
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso8859-1", "cp1252"])
def test_encodings(encoding: str) -> None:
    declared = encoding.replace("-sig", "")
    text = f'<?xml version="1.0" encoding="{declared}"?>\r\n<testsuite><testcase name="é"/>\r\n</testsuite>'
    (case,) = parse_junit(text.encode(encoding), "f").cases
    assert case.name == "é"


def test_characters_that_xml_forbids() -> None:
    raw = b'<testsuite><testcase name="a\x1b[31m"/><testcase name="b&#x1B;&#0;&#xFFFF;&#99999999;&#65;"/></testsuite>'
    names = [case.name for case in parse_junit(raw, "f").cases]
    assert names == ["a\ufffd[31m", "b\ufffd\ufffd\ufffd\ufffdA"]
    broken = parse_junit(b'<testsuite><testcase name="\xff"/></testsuite>', "f")
    assert broken.cases[0].name == "\ufffd"
    assert "no utf-8" in broken.doubts[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"   \n", "the file is empty"),
        (b'<testsuite name="s"><testcase name="a"/>', "not well-formed"),
        (b"<html/>", "the root element is <html>"),
        (b"<testsuites/><x/>", "not well-formed"),
        (b'<!DOCTYPE t [<!ENTITY a "b">]><testsuite/>', "a DOCTYPE or entity is refused"),
        (b'<!DOCTYPE t SYSTEM "file:///etc/passwd"><testsuite/>', "a DOCTYPE or entity is refused"),
        (b"<testsuite>" * 100, "nest deeper than 64"),
        (b'<?xml version="1.0" encoding="rot13"?><testsuite/>', "encoding 'rot-13' is not read"),
        (b'<?xml version="1.0" encoding="utf-7"?><testsuite/>', "encoding 'utf-7' is not read"),
        (b"<testsuite>&undefined;</testsuite>", "not well-formed"),
    ],
)
def test_refused(content: bytes, says: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        parse_junit(content, "f")
    assert says in str(caught.value)


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f.xml").write_bytes(b"<testsuite/>")
    monkeypatch.setattr(junit, "SIZE_LIMIT", 5)
    with pytest.raises(EvidenceError, match="more than the 5 bytes that are read of such a file"):
        junit.read_junit(tmp_path / "f.xml")


@pytest.mark.parametrize(
    ("node", "address"),
    [
        ("suites/kernels/test_a.py::test_b", ("suites.kernels.test_a", "test_b")),
        ("test_a.py::TestC::test_b[x::y/z-1]", ("test_a.TestC", "test_b[x::y/z-1]")),
    ],
)
def test_pytest_addresses(node: str, address: tuple[str, str]) -> None:
    assert pytest_address(node) == address


def test_second_opinion() -> None:
    """On a plain file of pytest's, junitparser finds the same cases with the same results."""
    xml = b"""<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="0"
      failures="1" skipped="1" tests="3" time="0.1"><testcase classname="t" name="a" time="0.001"/>
      <testcase classname="t" name="b" time="0.002"><failure message="m">x</failure></testcase>
      <testcase classname="t" name="c" time="0.000"><skipped type="pytest.skip" message="why">w</skipped></testcase>
      </testsuite></testsuites>"""
    theirs = {}
    for suite in junitparser.JUnitXml.fromstring(xml):
        for case in suite:
            kinds = [type(result).__name__ for result in case.result]
            theirs[case.name] = {"Failure": "failed", "Skipped": "skipped"}.get(kinds[0], "?") if kinds else "passed"
    ours = {case.name: case.status.value for case in parse_junit(xml, "f").cases}
    assert ours == theirs


PIECES = st.lists(
    st.sampled_from(
        ["<testsuites>", "</testsuites>", '<testsuite name="s" tests="1">', "</testsuite>", '<testcase name="a">',
         "</testcase>", "<failure>", "</failure>", "<skipped/>", "<error/>", "&amp;", "&#0;", "text", "<!--", "-->",
         "<![CDATA[", "]]>", "\x00", "\ufeff", '<?xml version="1.0"?>', "<flakyError/>", '<testcase status="fail"/>']
    ),
    max_size=25,
)  # fmt: skip


@given(PIECES, st.sampled_from(["utf-8", "utf-16", "latin-1"]))
def test_only_documented_errors_leave_the_reader(pieces: list[str], encoding: str) -> None:
    content = "".join(pieces).encode(encoding, "replace")
    try:
        report = parse_junit(content, "f")
    except HarnessError:
        return
    text = "".join(pieces)
    if report.cases and all(case.status.green for case in report.cases) and "<!--" not in text and "CDATA" not in text:
        assert "<failure>" not in text
        assert "<error/>" not in text


@given(st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    with contextlib.suppress(HarnessError):
        parse_junit(content, "f")

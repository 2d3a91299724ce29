"""A tolerant reader of JUnit XML, whoever wrote it, behind a strict door.

DOCTYPE, entities, huge files and bottomless nesting are refused. Everything else that real writers get wrong is read
for what it is worth: what cannot be known is unknown and never zero, and nothing that is not green becomes green.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from harness.errors import EvidenceError
from harness.files import read_limited
from harness.model import CaseStatus
from harness.units import parse_duration

SIZE_LIMIT = 256 << 20
DEPTH_LIMIT = 64
REASON_LIMIT = 2000
REPLACEMENT = "\ufffd"

_OUTCOMES = {
    "failure": CaseStatus.FAILED,
    "error": CaseStatus.ERROR,
    "skipped": CaseStatus.SKIPPED,
    "rerunFailure": CaseStatus.FAILED,
    "rerunError": CaseStatus.ERROR,
    "flakyFailure": CaseStatus.FLAKY,
    "flakyError": CaseStatus.FLAKY,
}
_SILENT = frozenset({"properties", "property", "system-out", "system-err", "attachments"})
_GREEN_WORDS = frozenset({"", "run", "passed", "pass", "success", "successful", "ok", "completed"})
_STATUS_WORDS = {
    **dict.fromkeys(("fail", "failed", "failure", "ko"), CaseStatus.FAILED),
    **dict.fromkeys(("error", "errored", "broken", "timeout", "crashed"), CaseStatus.ERROR),
    **dict.fromkeys(
        ("skipped", "skip", "disabled", "notrun", "not_run", "ignored", "suppressed", "pending", "todo"),
        CaseStatus.SKIPPED,
    ),
}
_BAD = (CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.UNKNOWN, CaseStatus.FLAKY)
# Worst first: of several outcomes of one case the first of these counts.
_WORST = (
    CaseStatus.ERROR,
    CaseStatus.FAILED,
    CaseStatus.UNKNOWN,
    CaseStatus.FLAKY,
    CaseStatus.SKIPPED,
    CaseStatus.XFAILED,
    CaseStatus.PASSED,
)
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_REFERENCE = re.compile(r"&#(x[0-9a-fA-F]{1,8}|[0-9]{1,10});")
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")
_ENCODING = re.compile(rb"""\A\s*<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_ENCODINGS = frozenset({"utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252", "utf-16"})


class JUnitCase(NamedTuple):
    """One case, all its appearances folded. ``seconds`` is that of the last one; ``listed`` counts them."""

    suite: tuple[str, ...]
    classname: str
    name: str
    status: CaseStatus
    seconds: float | None = None
    reason: str = ""
    listed: int = 1

    @property
    def node(self) -> str:
        """A stable id made of what the file says: suites, class and name, none said twice."""
        parts = list(self.suite)
        if self.classname and (not parts or parts[-1] != self.classname):
            parts.append(self.classname)
        return "::".join([*parts, self.name])


@dataclass
class JUnitReport:
    """All cases of a file, and every doubt about it."""

    cases: list[JUnitCase] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def read_junit(path: Path) -> JUnitReport:
    """Read a file. Raises ``EvidenceError`` where it is no JUnit XML, cut, or refused."""
    return parse_junit(read_limited(path, SIZE_LIMIT), str(path))


def parse_junit(content: bytes, name: str) -> JUnitReport:
    """Read the bytes of a file called ``name``."""
    report = JUnitReport()
    text = _decoded(content, name, report)
    if not text.strip():
        raise EvidenceError(f"{name}: the file is empty", "the writer died before it wrote anything")
    raw = _Collector(report, name)
    parser = DefusedXMLParser(target=raw, forbid_dtd=True)
    raw.listen_to(parser.parser)
    try:
        parser.feed(text)
        parser.close()
    except DefusedXmlException as error:
        raise EvidenceError(f"{name}: a DOCTYPE or entity is refused ({error})", "JUnit XML needs neither") from error
    except ParseError as error:
        raise EvidenceError(f"{name}: not well-formed XML: {error}", "the file was cut or is something else") from error
    report.cases = fold(raw.cases)
    return report


def _decoded(content: bytes, name: str, report: JUnitReport) -> str:
    """The file as text without its declaration and without characters that XML forbids (pytest ids hold some)."""
    encoding = next((codec for bom, codec in _BOMS if content.startswith(bom)), "")
    if not encoding:
        declared = _ENCODING.match(content[:200])
        try:
            encoding = codecs.lookup(declared[1].decode()).name if declared else "utf-8"
        except LookupError:
            encoding = declared[1].decode() if declared else "utf-8"
        if encoding not in _ENCODINGS:
            raise EvidenceError(
                f"{name}: encoding {encoding!r} is not read", f"known are {', '.join(sorted(_ENCODINGS))}"
            )
        if content[:4].count(0) == 2:
            encoding = "utf-16-le" if content[1] == 0 else "utf-16-be"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        report.doubts.append(f"{name}: bytes that are no {encoding} were replaced ({error.reason} at {error.start})")
        text = content.decode(encoding, "replace")
    text = _DECLARATION.sub("", text.removeprefix("\ufeff"), count=1)
    text = _ILLEGAL.sub(REPLACEMENT, text)
    return _REFERENCE.sub(_legal_reference, text)


def _legal_reference(match: re.Match[str]) -> str:
    number = int(match[1][1:], 16) if match[1].startswith("x") else int(match[1])
    if number > 0x10FFFF or _ILLEGAL.match(chr(number)):
        return REPLACEMENT
    return match[0]


@dataclass
class _Element:
    """What is kept of an element that says how something ended."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


class _Collector:
    """Takes what the parser meets; keeps the open suites and the open case, so memory does not grow with the file."""

    def __init__(self, report: JUnitReport, name: str) -> None:
        self.report = report
        self.file = name
        self.cases: list[JUnitCase] = []
        self.path: list[_Suite] = []
        self.names: tuple[str, ...] = ()  # of the open suites
        self.depth = 0
        self.case: dict[str, str] | None = None  # the attributes of the open case
        self.case_depth = 0
        self.children: list[_Element] = []
        self.open: _Element | None = None

    def listen_to(self, expat: Any) -> None:
        """Take elements from expat itself: ElementTree's layer between is Python, and a third of the time."""
        expat.ordered_attributes = False
        expat.StartElementHandler, expat.EndElementHandler = self.start, self.end

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise EvidenceError(f"{self.file}: elements nest deeper than {DEPTH_LIMIT}")
        if "}" in tag:
            tag = tag.rpartition("}")[2]
        if self.case is not None:
            if self.depth == self.case_depth + 1:  # only direct children speak for the case
                self.open = _Element(tag, attributes)
                self.children.append(self.open)
            return
        if self.depth == 1 and tag not in ("testsuites", "testsuite"):
            raise EvidenceError(f"{self.file}: the root element is <{tag}>; JUnit XML has <testsuites> or <testsuite>")
        if tag == "testcase":
            self.case, self.case_depth, self.children = attributes, self.depth, []
        elif tag in ("testsuite", "testsuites"):
            # Names of the root are tool names ("pytest tests", "jest tests"), not part of what a case is called.
            self._enter(_Suite(attributes.get("name", "").strip() if tag == "testsuite" else "", attributes))
        elif tag in ("error", "failure"):  # outside any case: the suite itself broke
            self.open = _Element(tag, attributes)

    def data(self, text: str) -> None:
        if self.open is not None and len(self.open.text) < REASON_LIMIT:
            self.open.text += text

    def end(self, tag: str) -> None:
        self.depth -= 1
        if self.case is not None:
            if self.depth == self.case_depth:
                self.open = None
            elif self.depth == self.case_depth - 1:
                self._case(self.case, self.children)
                self.case = None
            return
        tag = tag.rpartition("}")[2]
        if tag in ("testsuite", "testsuites"):
            self._suite_end(self.path[-1])
        elif self.open is not None and tag == self.open.tag:
            self.path[-1].bad += 1
            self.cases.append(self._suite_case(_OUTCOMES[tag], f"suite-level {tag}: {_words(self.open)}"))
            self.open = None

    def close(self) -> None:
        """The parser calls this at the end of the file."""

    def _enter(self, suite: _Suite) -> None:
        self.path.append(suite)
        self.names = tuple(suite.name for suite in self.path if suite.name)

    def _case(self, given: dict[str, str], children: list[_Element]) -> None:
        suite = self.path[-1]
        suite.seen += 1
        name = given.get("name", "").strip() or f"unnamed case {suite.seen}"
        status, reason = CaseStatus.PASSED, ""
        if children or "status" in given or "result" in given:  # nearly none of them, so asked first
            found = dict(reversed([*_statuses(given, children)]))  # of one status told twice the first reason counts
            status = next(worst for worst in _WORST if worst in found)
            reason = found[status]
            suite.bad += status in _BAD
        seconds = parse_duration(given.get("time") or given.get("duration"))
        classname = given.get("classname", "").strip()
        self.cases.append(JUnitCase(self.names, classname, name, status, seconds, reason[:REASON_LIMIT]))

    def _suite_end(self, suite: _Suite) -> None:
        """A header is never believed, but where it speaks of failures that are not listed, something is hidden."""
        stated = suite.stated("failures") + suite.stated("errors")
        label = "::".join(self.names) or "the file"
        if stated > 0 and suite.bad == 0:
            self.cases.append(
                self._suite_case(CaseStatus.UNKNOWN, f"the header states {stated} failures, none is listed")
            )
            suite.bad += 1
        elif suite.stated("tests") > 0 and suite.seen == 0:
            self.cases.append(
                self._suite_case(CaseStatus.UNKNOWN, f"the header states {suite.stated('tests')} cases, none is listed")
            )
        elif suite.tests_stated() and suite.stated("tests") != suite.seen:
            self.report.doubts.append(
                f"{label}: the header states {suite.stated('tests')} cases, {suite.seen} are listed"
            )
        self.path.pop()
        self.names = tuple(suite.name for suite in self.path if suite.name)
        if self.path:  # an outer suite's counts include those of the inner ones
            self.path[-1].seen += suite.seen
            self.path[-1].bad += suite.bad

    def _suite_case(self, status: CaseStatus, reason: str) -> JUnitCase:
        return JUnitCase(self.names, "", "(suite)", status, None, reason[:REASON_LIMIT])


class _Suite:
    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name = name
        self.seen = 0
        self.bad = 0
        self._attributes = attributes

    def tests_stated(self) -> bool:
        return "tests" in self._attributes

    def stated(self, count: str) -> int:
        text = self._attributes.get(count, "").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


def _statuses(given: dict[str, str], children: list[_Element]) -> Iterator[tuple[CaseStatus, str]]:
    """Every outcome a case claims, by child elements and by its status attributes; at least one."""
    for child in children:
        if child.tag == "skipped" and "xfail" in child.attributes.get("type", ""):
            yield CaseStatus.XFAILED, _words(child)
        elif child.tag in _OUTCOMES:
            yield _OUTCOMES[child.tag], _words(child)
        elif child.tag not in _SILENT:
            yield CaseStatus.UNKNOWN, f"it holds an element <{child.tag}> of unknown meaning"
    for attribute in ("status", "result"):
        word = given.get(attribute, "").strip().lower()
        if word in _STATUS_WORDS:
            yield _STATUS_WORDS[word], f"{attribute}={word}"
        elif word not in _GREEN_WORDS:
            yield CaseStatus.UNKNOWN, f"{attribute}={word!r} is of unknown meaning"
    if not any(child.tag in _OUTCOMES for child in children):
        yield CaseStatus.PASSED, ""


def _words(element: _Element) -> str:
    """Message, else the first line of text, else the type: never empty, so that a skip has its reason."""
    text = element.text.strip()
    first = text.splitlines()[0] if text else ""
    given = element.attributes
    return given.get("message", "").strip() or first or given.get("type", "").strip() or "no reason given"


def fold(cases: list[JUnitCase]) -> list[JUnitCase]:
    """One case an id: several appearances are tries in file order. Passing after a failure is flaky, never green."""
    table: dict[tuple[tuple[str, ...], str, str], list[JUnitCase]] = {}
    for case in cases:
        table.setdefault((case.suite, case.classname, case.name), []).append(case)
    return [_folded(tries) for tries in table.values()]


def _folded(tries: list[JUnitCase]) -> JUnitCase:
    last = tries[-1]
    if len(tries) == 1:
        return last
    earlier = [case.status for case in tries[:-1] if case.status not in (CaseStatus.PASSED, CaseStatus.SKIPPED)]
    if last.status is CaseStatus.PASSED and earlier:
        status, reason = CaseStatus.FLAKY, f"listed {len(tries)} times, once as {earlier[0]}"
    else:
        found = {case.status for case in tries}
        status = next(worst for worst in _WORST if worst in found)
        reason = next(case.reason for case in tries if case.status is status)
    return JUnitCase(last.suite, last.classname, last.name, status, last.seconds, reason, len(tries))


def pytest_address(node: str) -> tuple[str, str]:
    """The (classname, name) under which pytest's own XML lists a node id."""
    path, bracket, parameters = node.partition("[")
    file, *names = path.split("::")
    module = file.replace("/", ".").removesuffix(".py")
    if len(names) == 1:  # nearly all of them
        return module, names[0] + bracket + parameters
    names = [module, *names]
    return ".".join(names[:-1]), names[-1] + bracket + parameters

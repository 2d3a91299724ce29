"""``records.jsonl`` <-> words of the harness. Every error names the file and the line.

A line is one JSON object with ``schema`` and ``kind``. A schema this harness does not know is refused, not guessed at.
The last line may be cut when the process died while writing it; a cut line anywhere else is damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from harness.errors import EvidenceError
from harness.files import read_limited
from harness.model import Assume, Better, CaseResult, CaseStatus, IllegalRecord, Metric, Pairing, Samples, TokenControl

SCHEMA = 1
FILE_LIMIT = 1 << 30
DESELECTED = "deselected on the command line"
_Value = TypeVar("_Value")


class Line(msgspec.Struct, tag_field="kind", kw_only=True, forbid_unknown_fields=True):
    schema: int
    at: float | None = None  # CLOCK_MONOTONIC seconds: lies beside telemetry of the same machine


class ScopeStart(Line, tag="scope_start"):
    worker: str
    pid: int
    pytest: str


class ScopeEnd(Line, tag="scope_end"):
    worker: str
    exit_code: int


class Collected(Line, tag="collected"):
    nodes: tuple[str, ...]


class Deselected(Line, tag="deselected"):
    nodes: tuple[str, ...]


class CollectError(Line, tag="collect_error"):
    node: str
    reason: str


class CaseStart(Line, tag="case_start"):
    node: str
    group: str


class CaseEnd(Line, tag="case_end"):
    node: str
    outcome: Literal["passed", "failed", "error", "skipped", "xfailed", "interrupted", "unknown"]
    phases: dict[str, str]
    seconds: float | None
    reason: str
    reruns: int


class MetricLine(Line, tag="metric"):
    node: str
    name: str
    value: float
    unit: str
    better: Better
    assume: Assume


class SamplesLine(Line, tag="samples"):
    node: str
    name: str
    values: tuple[float, ...]
    unit: str
    better: Better
    control: str
    rounds: tuple[tuple[float, ...], ...]
    unfit: tuple[str, ...]
    pairing: Pairing | msgspec.UnsetType = msgspec.UNSET


class TokensLine(Line, tag="tokens"):
    node: str
    name: str
    sha256: str
    prompt_sha256: tuple[str, ...]
    finish: tuple[str, ...]
    tokens: int
    rounds: int
    acceptance_histogram: tuple[int, ...]


class UnfitLine(Line, tag="unfit"):
    node: str
    reason: str


class GroupLine(Line, tag="group"):
    node: str
    name: str


AnyLine = (
    ScopeStart
    | ScopeEnd
    | Collected
    | Deselected
    | CollectError
    | CaseStart
    | CaseEnd
    | MetricLine
    | SamplesLine
    | TokensLine
    | UnfitLine
    | GroupLine
)
_STATUS = {status.value: status for status in CaseStatus}
_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


@dataclass
class RecordSet:
    """All lines of one try of one scope, sorted out. ``cut`` is the number of a cut last line, else 0.

    ``exit_code`` is what pytest said that it ends with; ``None`` where it was killed before.
    """

    collected: dict[str, None] = field(default_factory=dict)
    deselected: dict[str, None] = field(default_factory=dict)
    collect_errors: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    ended: dict[str, list[CaseEnd]] = field(default_factory=dict)
    metrics: dict[tuple[str, str], MetricLine] = field(default_factory=dict)
    samples: dict[tuple[str, str], SamplesLine] = field(default_factory=dict)
    tokens: dict[tuple[str, str], TokensLine] = field(default_factory=dict)
    unfit: dict[str, list[str]] = field(default_factory=dict)
    exit_code: int | None = None
    cut: int = 0


def read_records(path: Path) -> RecordSet:
    """Read one file. Raises ``EvidenceError`` naming file and line."""
    return parse_records(read_limited(path, FILE_LIMIT), str(path))


def parse_records(content: bytes, name: str) -> RecordSet:
    """Sort out the lines of a records file called ``name``."""
    records = RecordSet()
    number = 0
    try:
        for line in _lines(content, name, records):
            number += 1
            if line.schema != SCHEMA:
                raise _Misplaced(f"schema {line.schema}, this harness reads {SCHEMA}")
            _take(records, line)
    except _Misplaced as error:
        raise EvidenceError(f"{name}, line {number}: {error}", "another harness wrote it, or it was edited") from None
    return records


class _Misplaced(ValueError):
    """A line that is sound by itself and does not fit those before it."""


def _lines(content: bytes, name: str, records: RecordSet) -> Iterable[AnyLine]:
    """All lines decoded at once where all are sound; one by one where they are not, to say which is not."""
    if b"\n\n" not in content and not content.startswith(b"\n"):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _decoder.decode_lines(content)
    return _lines_one_by_one(content, name, records)


def _lines_one_by_one(content: bytes, name: str, records: RecordSet) -> Iterator[AnyLine]:
    pieces = content.split(b"\n")
    for number, piece in enumerate(pieces, 1):
        if not piece and number == len(pieces):
            return
        try:
            yield _decoder.decode(piece)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if piece and number == len(pieces):  # no newline after it: the writer died here
                records.cut = number
                return
            what = str(error) if piece else "an empty line"
            raise EvidenceError(f"{name}, line {number}: {what}", "the file was cut or edited") from error


def _take(records: RecordSet, line: AnyLine) -> None:
    match line:  # the frequent ones first
        case CaseStart(node=node):
            records.open[node] = records.open.get(node, 0) + 1
            if line.group:
                records.groups[node] = line.group
        case CaseEnd(node=node):
            started = records.open.pop(node, 0)
            if not started:
                raise _Misplaced(f"{node} ended without having started")
            if started > 1:
                records.open[node] = started - 1
            if node in records.ended:
                records.ended[node].append(line)
            else:
                records.ended[node] = [line]
        case MetricLine():
            _once(records.metrics, (line.node, line.name), line)
        case SamplesLine():
            _once(records.samples, (line.node, line.name), line)
        case TokensLine():
            _once(records.tokens, (line.node, line.name), line)
        case UnfitLine():
            records.unfit.setdefault(line.node, []).append(line.reason)
        case GroupLine():
            records.groups[line.node] = line.name
        case Collected():
            records.collected.update(dict.fromkeys(line.nodes))
        case Deselected():
            records.deselected.update(dict.fromkeys(line.nodes))
        case CollectError():
            records.collect_errors.setdefault(line.node, line.reason)
        case ScopeEnd():
            if not line.worker:  # under xdist that of the controller, which every worker's goes into
                records.exit_code = line.exit_code
        case ScopeStart():
            pass


def _once(table: dict[tuple[str, str], _Value], key: tuple[str, str], value: _Value) -> None:
    if key in table:
        raise _Misplaced(f"{key[0]} states {key[1]!r} twice")
    table[key] = value


# ---- lines -> words -------------------------------------------------------------------------------------------------


def to_cases(records: RecordSet) -> tuple[CaseResult, ...]:
    """One result per case: what ended, what was open when the process died, what was collected and never started."""
    known = (records.collected, records.ended, records.open, records.collect_errors, records.deselected)
    nodes = dict.fromkeys(chain.from_iterable(known))
    return tuple(_case(records, node) for node in nodes)


def _case(records: RecordSet, node: str) -> CaseResult:
    group = records.groups.get(node, "") if records.groups else ""
    if records.open and node in records.open:
        return CaseResult(node, CaseStatus.CRASHED, None, "the process died while this case was open", group)
    ends = records.ended.get(node, [])
    if len(ends) == 1 and (only := ends[0]).outcome in _STATUS and not only.reruns:  # nearly all of them
        return CaseResult(node, _STATUS[only.outcome], only.seconds, only.reason, group)
    ends = [end for end in ends if end.outcome != "interrupted"]
    if ends:
        last = ends[-1]
        status, reason = CaseStatus(last.outcome), last.reason
        failed_before = any(end.outcome in ("failed", "error") for end in ends[:-1]) or last.reruns > 0
        if status is CaseStatus.PASSED and failed_before:
            status, reason = CaseStatus.FLAKY, f"passed only at try {len(ends) + last.reruns}"
        return CaseResult(node, status, last.seconds, reason, group)
    if node in records.collect_errors:
        return CaseResult(
            node, CaseStatus.ERROR, None, f"could not be collected: {records.collect_errors[node]}", group
        )
    if node in records.deselected:
        return CaseResult(node, CaseStatus.NOT_RUN, None, DESELECTED, group)
    return CaseResult(node, CaseStatus.NOT_RUN, None, "collected, never run: the process ended before", group)


def to_metrics(records: RecordSet) -> tuple[Metric, ...]:
    return tuple(
        Metric(line.node, line.name, line.value, line.unit, line.better, line.assume)
        for line in records.metrics.values()
    )


def to_tokens(records: RecordSet, name: str) -> tuple[TokenControl, ...]:
    """All token controls of the file called ``name``."""
    return tuple(_control(line, name) for line in records.tokens.values())


def _control(line: TokensLine, name: str) -> TokenControl:
    try:
        return TokenControl(
            line.node,
            line.name,
            line.sha256,
            line.prompt_sha256,
            line.finish,
            line.tokens,
            line.tokens / line.rounds if line.rounds else 0.0,
            line.acceptance_histogram,
        )
    except (IllegalRecord, OverflowError) as error:
        raise EvidenceError(f"{name}: {error}") from error


def to_samples(records: RecordSet, name: str) -> tuple[Samples, ...]:
    """All samples, each with what made its case or the whole process unfit, tied to its token hash."""
    return tuple(_samples(records, line, name) for line in records.samples.values())


def _samples(records: RecordSet, line: SamplesLine, name: str) -> Samples:
    unfit = [*records.unfit.get("", ()), *records.unfit.get(line.node, ()), *line.unfit]
    control = records.tokens.get((line.node, line.control))
    if line.control and control is None:
        raise EvidenceError(f"{name}: {line.node} {line.name}: there is no tokens record {line.control!r} of that case")
    try:
        return Samples(
            line.node,
            line.name,
            line.values,
            line.unit,
            line.better,
            line.control,
            control.sha256 if control else "",
            line.rounds,
            tuple(dict.fromkeys(unfit)),
            pairing=None if isinstance(line.pairing, msgspec.UnsetType) else line.pairing,
        )
    except IllegalRecord as error:
        raise EvidenceError(f"{name}: {error}") from error


# ---- words -> lines (foreign results, selftest) ---------------------------------------------------------------------


def encode_lines(lines: Iterable[AnyLine]) -> bytes:
    """Lines as the bytes of a records file."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

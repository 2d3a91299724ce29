"""The words of a verdict: what comparing two pieces of evidence says, and what the gate makes of it. Frozen records.

Like those of ``model.py`` they cannot be built when they would tell a lie (WORSE beside a reason not to compare).
Reading order is the order of the flow: ``CaseRow``, ``MetricRow``, ``Comparison``, then ``Policy``, ``GateDecision``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from harness.model import Better, CaseStatus, IllegalRecord, Origin


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A case known to fail, whose failure does not gate until ``expires`` (``YYYY-MM-DD``). It still runs."""

    node: str
    owner: str
    reason: str
    expires: str
    ticket: str = ""

    def __post_init__(self) -> None:
        if not (self.node and self.owner and self.reason):
            raise IllegalRecord(f"quarantine of {self.node or '?'}: node, owner and reason are all needed")


class CaseOutcome(StrEnum):
    UNCHANGED = "UNCHANGED"
    FIXED = "FIXED"
    BROKEN = "BROKEN"
    NEW = "NEW"
    MISSING = "MISSING"
    SKIPPED = "SKIPPED"
    FLAKY = "FLAKY"
    QUARANTINED = "QUARANTINED"


class MetricOutcome(StrEnum):
    SAME = "SAME"
    BETTER = "BETTER"
    WORSE = "WORSE"
    CHANGED = "CHANGED"  # an exact value with no better direction moved: a regression until it is accepted
    NEW = "NEW"
    MISSING = "MISSING"
    UNDECIDED = "UNDECIDED"
    INCOMPARABLE = "INCOMPARABLE"


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which base and head differ, and whether that forbids comparing times (``fatal``).

    A differing ``device_key`` forbids comparing anything. ``scope`` is empty where the fact holds for all scopes.
    """

    key: str
    base: str
    head: str
    fatal: bool
    reason: str
    scope: str = ""


NOT_COMPARABLE = "not comparable"  # begins the reason of a case whose base is of another device: it was not looked at


@dataclass(frozen=True, slots=True)
class CaseRow:
    scope: str
    node: str
    outcome: CaseOutcome
    base: CaseStatus | None
    head: CaseStatus | None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.outcome is CaseOutcome.MISSING and self.head is not None:
            raise IllegalRecord(f"{self.node} cannot be MISSING and {self.head}")
        fell = self.base is not None and self.base.green and self.head is not None and not self.head.green
        if self.outcome is CaseOutcome.UNCHANGED and fell:
            raise IllegalRecord(f"{self.node}: {self.base} -> {self.head} is not UNCHANGED")


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a ratio head/base, with how it was got (``method``) and its ``level``."""

    low: float
    high: float
    level: float
    method: str


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric, sample set or token control compared.

    ``base`` and ``head`` are the values shown: the median of samples; the tokens emitted per round for a token control,
    whose hashes stand in ``base_text``/``head_text``. ``notes`` are the doubts that travel with the number (footnotes),
    ``unfit`` what made head's process unfit for timing.
    """

    scope: str
    node: str
    name: str
    kind: str  # "metric", "samples" or "tokens"
    outcome: MetricOutcome
    unit: str = ""
    better: Better = Better.NEITHER
    base: float | None = None
    head: float | None = None
    base_n: int = 0
    head_n: int = 0
    base_text: str = ""
    head_text: str = ""
    ratio: float | None = None
    interval: Interval | None = None
    margin: float | None = None
    margin_source: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        judged = self.outcome in (MetricOutcome.BETTER, MetricOutcome.WORSE)
        if judged and (self.base is None or self.head is None):
            raise IllegalRecord(f"{self.node} {self.name}: {self.outcome} needs both values")
        needs_reason = (MetricOutcome.INCOMPARABLE, MetricOutcome.UNDECIDED, MetricOutcome.MISSING)
        if self.outcome in needs_reason and not self.reason:
            raise IllegalRecord(f"{self.node} {self.name}: {self.outcome} must say why")
        if self.unfit and self.outcome in (MetricOutcome.BETTER, MetricOutcome.WORSE, MetricOutcome.SAME):
            raise IllegalRecord(f"{self.node} {self.name}: {self.outcome} from a run unfit for timing: {self.unfit[0]}")
        if self.outcome is MetricOutcome.INCOMPARABLE and self.interval is not None:
            raise IllegalRecord(f"{self.node} {self.name}: INCOMPARABLE beside an interval")


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """One scope compared: how many cases each side has, and where head's results come from.

    ``None`` stands for a side that has no such scope. ``problem`` is head's (``ScopeEvidence.problem``).
    """

    scope: str
    base_cases: int | None
    head_cases: int | None
    head_passed: int
    origin: Origin
    problem: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Base against head, every row, in the order comparability, outcome, timing, coverage.

    ``base`` is empty where there was nothing to compare with. ``alarms`` are what somebody has to look at although it
    is no regression (a quarantined case that passes, a quarantine about to end).
    """

    base: str
    head: str
    base_digest: str
    head_digest: str
    differences: tuple[Difference, ...]
    scopes: tuple[ScopeRow, ...]
    cases: tuple[CaseRow, ...]
    metrics: tuple[MetricRow, ...]
    not_claimed: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


# ---- what the gate makes of it --------------------------------------------------------------------------------------


class ExitCode(IntEnum):
    OK = 0
    REGRESSION = 1
    USAGE = 2
    EVIDENCE_BROKEN = 3
    NOTHING_COMPARABLE = 4
    UNDECIDED = 5
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Policy:
    """What the gate lets pass. ``strict`` turns undecided rows into exit code 5."""

    strict: bool = False
    margin_floor: float = 0.03
    level: float = 0.95
    assume_comparable: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.margin_floor < 1 and 0 < self.level < 1):
            raise IllegalRecord(f"policy: margin {self.margin_floor} and level {self.level} are not between 0 and 1")


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The verdict: a code, and every reason for it, worst first. A code without a reason is only ever ``OK``."""

    code: ExitCode
    reasons: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.code is not ExitCode.OK and not self.reasons:
            raise IllegalRecord(f"exit code {self.code} without a reason")

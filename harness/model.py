"""The words of evidence: frozen records that cross from one stage to the next.

Nothing here opens a file, imports torch or decides anything. A record that would tell a lie cannot be built:
its ``__post_init__`` raises ``IllegalRecord`` with the reason.

Reading order is the order of the flow: what a suite wrote (``CaseResult`` .. ``TokenControl``), what one scope
amounts to (``ScopeEvidence``), what a bundle or a baseline amounts to (``Evidence``). ``verdict.py`` has the words for
what comparing two of them says.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

SCHEMA = 1
ROUNDING = 1e-9  # relative: a mean of float64 rounds may leave their range by some ulps, an edit does not stay there
_SHA256 = re.compile(r"[0-9a-f]{64}")
PYTEST_USAGE = 4  # the exit code of a pytest that refuses to run as asked


class IllegalRecord(ValueError):
    """A record that would claim something its own fields contradict."""


# ---- what a suite wrote ---------------------------------------------------------------------------------------------


class CaseStatus(StrEnum):
    """How one case ended. ``CRASHED``: its process died while it was open; ``NOT_RUN``: collected, never started."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    CRASHED = "crashed"
    FLAKY = "flaky"
    NOT_RUN = "not_run"
    UNKNOWN = "unknown"

    @property
    def green(self) -> bool:
        """Only a pass is green. A skip, an expected failure and an unknown are not."""
        return self is CaseStatus.PASSED


class Better(StrEnum):
    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Assume(StrEnum):
    """``EXACT``: any change of the value is a change (counts, hashes, register numbers). ``NOTHING``: it is noisy."""

    EXACT = "exact"
    NOTHING = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case of one scope. ``seconds`` is the call phase; ``None`` where it is not known (never 0 for unknown)."""

    node: str
    status: CaseStatus
    seconds: float | None = None
    reason: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        if not self.node:
            raise IllegalRecord("a case needs a node id")
        if self.status is CaseStatus.SKIPPED and not self.reason:
            raise IllegalRecord(f"{self.node}: a skip must say why")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise IllegalRecord(f"{self.node}: {self.seconds!r} is no duration in seconds")


@dataclass(frozen=True, slots=True)
class Metric:
    """One number that a case stated. ``assume`` decides how it is compared, ``better`` which way is worse."""

    node: str
    name: str
    value: float
    unit: str
    better: Better = Better.NEITHER
    assume: Assume = Assume.EXACT

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise IllegalRecord(f"{self.node} {self.name}: {self.value!r} is not a finite number")


@dataclass(frozen=True, slots=True)
class TokenControl:
    """What was generated while a time was taken: the proof that two times are about the same work.

    ``sha256`` is over the little-endian int32 token ids of all prompts in order; ``prompt_sha256`` of each one.
    ``finish`` has one reason per prompt (``stop`` or ``length``). ``acceptance_histogram[i]`` counts rounds that
    emitted ``i`` tokens.
    """

    node: str
    name: str
    sha256: str
    prompt_sha256: tuple[str, ...]
    finish: tuple[str, ...]
    tokens: int
    emitted_per_round: float
    acceptance_histogram: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = f"{self.node} {self.name}"
        if len(self.finish) != len(self.prompt_sha256):
            raise IllegalRecord(f"{where}: {len(self.prompt_sha256)} prompts and {len(self.finish)} finish reasons")
        odd = next((sha for sha in (self.sha256, *self.prompt_sha256) if not _SHA256.fullmatch(sha)), None)
        if odd is not None:
            raise IllegalRecord(f"{where}: {odd!r} is no SHA-256 in hex")
        if len(self.prompt_sha256) == 1 and self.prompt_sha256[0] != self.sha256:
            raise IllegalRecord(f"{where}: the hash of the only prompt is not that of all prompts")
        counts = (self.tokens, self.emitted_per_round, *self.acceptance_histogram)
        if not all(math.isfinite(count) and count >= 0 for count in counts):
            raise IllegalRecord(f"{where}: tokens, tokens a round or histogram below zero: {counts}")

    @property
    def natural_stop(self) -> bool:
        return bool(self.finish) and all(reason == "stop" for reason in self.finish)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Repeat i ran next to repeat i of the other side of ``session``, and both are judged as pairs.

    ``alpha`` is what this quantity may err over all looks, of which the last would come after ``most_pairs`` pairs;
    ``margin`` and where it comes from were fixed by the session. ``order`` says how base and head were interleaved, in
    words. ``control`` has log(later / earlier) of each control pair of one build; ``None`` where the control is in the
    order of the repeats themselves, base, head, head, base.
    """

    session: str
    alpha: float
    most_pairs: int
    margin: float
    margin_source: str
    order: str = ""
    control: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.session or not self.margin_source:
            raise IllegalRecord("a pairing names its session and where its margin comes from")
        if not (0 < self.alpha < 1 and self.margin > 0 and self.most_pairs > 0):
            raise IllegalRecord(
                f"pairing {self.session}: alpha {self.alpha}, margin {self.margin} or pairs out of range"
            )


@dataclass(frozen=True, slots=True)
class Samples:
    """Repeats of one noisy quantity; one number per repeat, and the raw rounds beside them.

    A latency is tied to the tokens it was measured on through ``control``, the ``TokenControl.name`` of the same
    node; ``token_sha256`` repeats that hash so that a baseline line stands alone. ``unfit`` lists what made the run
    unfit for timing (a profiler, a tracer, a debug build); a sample with a non-empty ``unfit`` is shown, never judged.
    ``aa_spread`` is what two runs of one commit differed by when this baseline was accepted (``|ratio - 1|``).
    ``pairing`` is given where every repeat has a partner on the other side of an A/B session.
    """

    node: str
    name: str
    values: tuple[float, ...]
    unit: str
    better: Better = Better.LOWER
    control: str = ""
    token_sha256: str = ""
    rounds: tuple[tuple[float, ...], ...] = ()
    unfit: tuple[str, ...] = ()
    aa_spread: float | None = None
    pairing: Pairing | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise IllegalRecord(f"{self.node} {self.name}: samples without a value")
        if not all(math.isfinite(value) for value in self.values):
            raise IllegalRecord(f"{self.node} {self.name}: a sample is not a finite number: {self.values!r}")
        if self.rounds and len(self.rounds) != len(self.values):
            raise IllegalRecord(
                f"{self.node} {self.name}: {len(self.values)} repeats but raw rounds of {len(self.rounds)}"
            )
        for value, rounds in zip(self.values, self.rounds, strict=False):  # without rounds there is nothing to hold
            slack = abs(value) * ROUNDING
            if not all(map(math.isfinite, rounds)) or not min(rounds, default=value) - slack <= value <= slack + max(
                rounds, default=value
            ):
                raise IllegalRecord(f"{self.node} {self.name}: {value!r} does not lie among its own rounds")
        if bool(self.control) != bool(self.token_sha256):
            raise IllegalRecord(f"{self.node} {self.name}: a token control has both a name and a hash")


# ---- what a scope, a bundle, a baseline amount to -------------------------------------------------------------------


class OriginKind(StrEnum):
    FRESH = "fresh"
    CARRIED = "carried"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where results come from: measured now, carried over from another bundle (its digest), or not run (why)."""

    kind: OriginKind = OriginKind.FRESH
    detail: str = ""

    def __post_init__(self) -> None:
        if self.kind is not OriginKind.FRESH and not self.detail:
            raise IllegalRecord(
                f"origin {self.kind} must say {'which bundle' if self.kind is OriginKind.CARRIED else 'why'}"
            )


@dataclass(frozen=True, slots=True)
class Track:
    """One quantity of ``source`` while a scope ran: (seconds since the first look, value in ``unit``) each."""

    quantity: str
    source: str
    unit: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ScopeEvidence:
    """All that one scope showed. ``argv`` is the exact command line of the pytest process that was run.

    ``problem`` says why the process as a whole is no clean run (died by a signal, collected nothing, timed out).
    ``environment`` is given only where this scope's facts are not those of the whole ``Evidence`` (a baseline, a
    carried or merged scope). ``notes`` are doubts that travel with the scope, ``doubts`` those among them that speak
    against its times: what the machine did meanwhile, as its counters tell.
    """

    scope: str
    origin: Origin = Origin()
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    seconds: float | None = None
    cases: tuple[CaseResult, ...] = ()
    metrics: tuple[Metric, ...] = ()
    samples: tuple[Samples, ...] = ()
    tokens: tuple[TokenControl, ...] = ()
    problem: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    tracks: tuple[Track, ...] = ()

    def __post_init__(self) -> None:
        if self.origin.kind is OriginKind.NOT_RUN and self.cases:
            raise IllegalRecord(f"scope {self.scope} is NOT_RUN and yet has {len(self.cases)} cases")
        status = {case.node: case.status for case in self.cases}
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise IllegalRecord(f"scope {self.scope}: {self.seconds!r} is no duration in seconds")
        if len(status) < len(self.cases):
            raise IllegalRecord(f"scope {self.scope} has {len(self.cases) - len(status)} cases twice")
        for sample in self.samples:
            if sample.node in status and not status[sample.node].green:
                raise IllegalRecord(f"{sample.node} is {status[sample.node]} and yet has a timing ({sample.name})")


@dataclass(frozen=True, slots=True)
class ScopeSummary:
    """What ``harness run`` says at once about one scope: how many cases ended how, and what went wrong as a whole."""

    scope: str
    origin: Origin
    exit_code: int | None
    seconds: float | None
    counts: dict[str, int]
    failed: tuple[str, ...] = ()
    problem: str = ""
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """A bundle or a baseline, read. ``label`` is what a report calls it, ``digest`` the SHA-256 of its manifest.

    ``environment`` is a flat allow-listed map (``cpu.model``, ``torch.version``, ...), strings throughout.
    """

    label: str
    device_key: str
    scopes: tuple[ScopeEvidence, ...]
    digest: str = ""
    created: str = ""
    commit: str = ""
    dirty_digest: str = ""
    native_sha256: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    not_claimed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [scope.scope for scope in self.scopes]
        if len(set(names)) < len(names):
            raise IllegalRecord(f"{self.label} has a scope twice: {', '.join(names)}")

    def scope(self, name: str) -> ScopeEvidence | None:
        """The scope called ``name``, or ``None``."""
        return next((scope for scope in self.scopes if scope.scope == name), None)

    def environment_of(self, scope: ScopeEvidence) -> dict[str, str]:
        """The facts that hold for ``scope``: its own where it has them, else those of the whole."""
        return scope.environment or self.environment

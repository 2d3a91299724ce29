"""Shards of one scope -> the scope, as if one process had run all its cases. Pure.

Several runners (a CI matrix) each ran a part of one scope. A case counts where it ran. Where several ran it, they must
agree: a failure beside a pass is FLAKY, two values of one exact figure are refused by name, times are never pooled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.comparability import JITTER, differences, said
from harness.errors import EvidenceError
from harness.model import Assume, CaseResult, CaseStatus, Metric, Samples, ScopeEvidence, TokenControl

NAMED = 3
ONE_SOURCE = ("device_key", "git.commit", "git.dirty_digest", "native.sha256")
_UNWELL = (CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.CRASHED)
# Of several outcomes of one case that no pass contradicts, the first of these counts.
_GRAVEST = (*reversed(_UNWELL), CaseStatus.UNKNOWN, CaseStatus.FLAKY, CaseStatus.XFAILED, CaseStatus.PASSED)


@dataclass(frozen=True)
class Shard:
    """What one runner showed of a scope, and the facts of its machine."""

    label: str
    scope: ScopeEvidence
    facts: dict[str, str]


def shard_label(number: int, digest: str) -> str:
    """What a shard is called: its place, and the bundle it was measured for."""
    return f"shard {number} (bundle {digest[:12]})"


def join_facts(maps: Sequence[dict[str, str]]) -> dict[str, str]:
    """The facts of all runners; one that is not the same everywhere lists what it was, jitter is the first one's."""
    joined = {}
    for key in dict.fromkeys(key for facts in maps for key in facts):
        values = list(dict.fromkeys(facts.get(key, "unknown") for facts in maps))
        joined[key] = values[0] if len(values) == 1 or key in JITTER else "several: " + "; ".join(values)
    return joined


def join_shards(shards: Sequence[Shard]) -> ScopeEvidence:
    """One scope out of its shards. Raises ``EvidenceError`` that names what two of them contradict each other in."""
    _check_machines(shards)
    cases, home, doubts = _joined_cases(shards)
    green = {node for node, case in cases.items() if case.status.green}
    _check_numbers(shards, green)
    scopes = [shard.scope for shard in shards]
    codes = [scope.exit_code for scope in scopes]
    return ScopeEvidence(
        scope=scopes[0].scope,
        argv=tuple(_commands(scopes)),
        exit_code=None if None in codes else max(code for code in codes if code is not None),
        seconds=max((scope.seconds for scope in scopes if scope.seconds is not None), default=None),
        cases=tuple(cases.values()),
        metrics=tuple(row for shard in shards for row in shard.scope.metrics if home.get(row.node) is shard),
        samples=tuple(
            row for shard in shards for row in shard.scope.samples if home.get(row.node) is shard and row.node in green
        ),
        tokens=tuple(row for shard in shards for row in shard.scope.tokens if home.get(row.node) is shard),
        problem="; ".join(f"{shard.label}: {shard.scope.problem}" for shard in shards if shard.scope.problem),
        notes=(*(_told(shard) for shard in shards), *doubts, *_notes(shards)),
        doubts=tuple(dict.fromkeys(doubt for scope in scopes for doubt in scope.doubts)),
        tracks=tuple(
            replace(track, source=f"{track.source}, shard {number}")
            for number, shard in enumerate(shards, 1)
            for track in shard.scope.tracks
        ),
    )


def _commands(scopes: Iterable[ScopeEvidence]) -> Iterable[str]:
    for number, scope in enumerate(scopes):
        yield from [";", *scope.argv] if number else scope.argv


def _told(shard: Shard) -> str:
    ran = sum(case.status is not CaseStatus.NOT_RUN for case in shard.scope.cases)
    return f"{shard.label}: {ran} cases run, pytest's exit code {shard.scope.exit_code}"


def _notes(shards: Sequence[Shard]) -> Iterable[str]:
    return (f"{shard.label}: {note}" for shard in shards for note in shard.scope.notes)


# ---- what may stand together ----------------------------------------------------------------------------------------


def _check_machines(shards: Sequence[Shard]) -> None:
    """Shards are of one source, device and library; those with times are of one kind of machine too."""
    first = shards[0]
    for other in shards[1:]:
        for key in ONE_SOURCE:
            one, two = first.facts.get(key, "unknown"), other.facts.get(key, "unknown")
            if one != two:
                raise EvidenceError(
                    f"scope {first.scope.scope}: {first.label} and {other.label} differ in {key}: {one} and {two}",
                    "shards of one scope are of one commit, one device and one native library",
                )
        timed = first.scope.samples or other.scope.samples
        fatal = next((row for row in differences(first.facts, other.facts) if row.fatal), None)
        if timed and fatal is not None:
            raise EvidenceError(
                f"scope {first.scope.scope} has times, and {first.label} and {other.label} are of two machines: "
                f"{said(fatal)}",
                "run a scope that takes times on one kind of machine",
            )


def _check_numbers(shards: Sequence[Shard], green: set[str]) -> None:
    """An exact figure, or what was generated, is the same wherever the case passed."""
    seen: dict[tuple[str, str, str], tuple[Shard, object]] = {}
    conflicts = []
    for shard in shards:
        rows: list[Metric | TokenControl] = [*shard.scope.metrics, *shard.scope.tokens]
        for row in rows:
            value = _exact(row)
            if value is None or row.node not in green:
                continue
            earlier, stated = seen.setdefault((type(row).__name__, row.node, row.name), (shard, value))
            if stated != value:
                conflicts.append(f"{row.node} {row.name}: {stated} in {earlier.label}, {value} in {shard.label}")
    if conflicts:
        raise EvidenceError(
            f"scope {shards[0].scope.scope}: {len(conflicts)} exact figures differ between shards: {_some(conflicts)}",
            "it depends on the machine or on chance; find out which before it is merged",
        )


def _exact(row: Metric | TokenControl) -> object:
    if isinstance(row, TokenControl):
        return row.sha256
    return (row.value, row.unit) if row.assume is Assume.EXACT else None


# ---- cases ----------------------------------------------------------------------------------------------------------


def _joined_cases(shards: Sequence[Shard]) -> tuple[dict[str, CaseResult], dict[str, Shard], list[str]]:
    """The word on every case, the shard its numbers come from, and what several shards said of one case."""
    told: dict[str, list[tuple[Shard, CaseResult]]] = {}
    for shard in shards:
        for case in shard.scope.cases:
            told.setdefault(case.node, []).append((shard, case))
    cases, home = {}, {}
    agreed: list[str] = []
    apart: list[str] = []
    for node, said_of_it in told.items():
        ran = [word for word in said_of_it if word[1].status is not CaseStatus.NOT_RUN]
        shard, case = ran[0] if ran else _least_asked(said_of_it)
        if len(ran) > 1:
            statuses = {word[1].status for word in ran}
            (agreed if len(statuses) == 1 else apart).append(node)
            shard, case = _judged(ran, statuses)
        cases[node], home[node] = case, shard
    doubts = []
    if agreed:
        doubts.append(f"{len(agreed)} cases were run by several shards, with one outcome: {_some(agreed)}")
    if apart:
        words = [f"{node} ({cases[node].reason or cases[node].status})" for node in apart]
        doubts.append(f"{len(apart)} cases were run by several shards, with several outcomes: {_some(words)}")
    timed = {samples.node for samples in _all_samples(shards)}
    doubts += [f"{node}: its times are those of {home[node].label} alone" for node in agreed if node in timed]
    return cases, home, doubts


def _all_samples(shards: Sequence[Shard]) -> Iterable[Samples]:
    return (samples for shard in shards for samples in shard.scope.samples)


def _least_asked(words: list[tuple[Shard, CaseResult]]) -> tuple[Shard, CaseResult]:
    """Of a case that nobody ran: the shard that was to run it and did not reach it, else any that deselected it."""
    return next((word for word in words if not word[1].reason.startswith("deselected")), words[0])


def _judged(ran: list[tuple[Shard, CaseResult]], statuses: set[CaseStatus]) -> tuple[Shard, CaseResult]:
    """What several runs of one case amount to, and whose numbers count."""
    unwell = next((word for word in ran if word[1].status in _UNWELL), None)
    passed = next((word for word in ran if word[1].status is CaseStatus.PASSED), None)
    if passed is not None and unwell is not None:
        reason = f"{unwell[1].status} in {unwell[0].label}, passed in {passed[0].label}: {unwell[1].reason}"
        return passed[0], replace(passed[1], status=CaseStatus.FLAKY, reason=reason)
    gravest = next((status for status in _GRAVEST if status in statuses), CaseStatus.SKIPPED)
    return next(word for word in ran if word[1].status is gravest)


def _some(names: Sequence[str]) -> str:
    return "; ".join(names[:NAMED]) + (f"; and {len(names) - NAMED} more" if len(names) > NAMED else "")

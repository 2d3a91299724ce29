"""The flow from a run folder (or from several bundles) to a sealed bundle: collect, compare, decide, write, rename."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import report
from harness.bag import Bag
from harness.bundle import CARRIED_MANIFEST, Bundle, Verdict, about_of, copy_scope, finish, put, put_common, unfinished
from harness.bundle import scope_of as scope_in
from harness.collect import collect, describe, scope_folders
from harness.compare import JUDGE, compare
from harness.environment import same_machine_facts
from harness.errors import UsageError
from harness.gate import decide
from harness.model import (
    Comparison,
    Evidence,
    GateDecision,
    Origin,
    OriginKind,
    Policy,
    Quarantine,
    ScopeEvidence,
)
from harness.report.document import Document
from harness.report.markdown import OVERFLOW_NAME
from harness.rundir import locked, new_run_id


@dataclass(frozen=True)
class Carried:
    """A scope taken over from an earlier bundle."""

    bundle: Bundle
    scope: str


@dataclass(frozen=True)
class SealRequest:
    """Where to seal, against what, by which rules. ``find_base`` is asked once the evidence knows its device."""

    out: Path
    find_base: Callable[[Evidence], Evidence | None]
    policy: Policy
    today: str
    quarantine: dict[str, Quarantine] = field(default_factory=dict)
    known_scopes: tuple[str, ...] = ()
    carried: tuple[Carried, ...] = ()
    parent: str = ""


@dataclass(frozen=True)
class Sealed:
    """What sealing gave: where the bundle is, its digest, and what it says."""

    place: Path
    digest: str
    evidence: Evidence
    comparison: Comparison
    decision: GateDecision
    document: Document


def seal_run(run: Path, request: SealRequest) -> Sealed:
    """Seal a finished run, alone with it; scopes it lacks may be carried over from earlier bundles."""
    scope_folders(run)  # say what is wrong with the folder before its lock is asked for
    with locked(run):
        evidence = collect(run, run.name, list(request.known_scopes))
        folders = {scope.scope: run / scope.scope for scope in evidence.scopes}
        return _seal(evidence, folders, run.name, request)


def seal_merged(bundles: Sequence[Bundle], request: SealRequest) -> Sealed:
    """One bundle out of partial ones, as several runners make them. Every scope is carried, with its proof."""
    carried = tuple(Carried(bundle, scope.scope) for bundle in bundles for scope in bundle.evidence.scopes)
    first = bundles[0].evidence
    for other in (bundle.evidence for bundle in bundles[1:]):
        if (other.commit, other.dirty_digest) != (first.commit, first.dirty_digest):
            raise UsageError(f"{first.label} and {other.label} are not of one source; only parts of one run are merged")
    evidence = describe("merged", max(b.evidence.created for b in bundles), first.environment, (), [])
    return _seal(evidence, {}, f"merged-{new_run_id()}", replace(request, carried=carried))


def bundle_name(evidence: Evidence, run: str) -> str:
    """``<run>-<device-key>-<commit>``: the same for the same run, so that a run cannot be sealed twice."""
    commit = evidence.commit[:10] if evidence.commit not in ("", "unknown") else "nocommit"
    return f"{run}-{evidence.device_key}-{commit}{'-dirty' if evidence.dirty_digest else ''}"


def _seal(fresh: Evidence, folders: dict[str, Path], run: str, request: SealRequest) -> Sealed:
    name = bundle_name(fresh, run)
    scopes = [*fresh.scopes, *(_carried_scope(carried, fresh, folders, request) for carried in request.carried)]
    described = describe(name, fresh.created, fresh.environment, tuple(scopes), list(request.known_scopes))
    base = request.find_base(described)
    comparison = compare(base, described, request.policy, request.quarantine, request.today)
    decision = decide(comparison, request.policy)
    document = report.build_document(comparison, decision, described, base)
    place = request.out / name
    with unfinished(place) as folder:
        for scope, source in folders.items():
            copy_scope(source, folder, scope)
        for carried in request.carried:
            _copy_carried(carried, folder)
        not_written = _put_reports(folder, document)
        about = about_of(described, name=name, run=run, parent=request.parent, not_written=not_written)
        verdict = Verdict(
            judge=JUDGE,
            policy=request.policy,
            today=request.today,
            quarantine=tuple(request.quarantine.values()),
            comparison=comparison,
            decision=decision,
        )
        put_common(folder, about, described, base, verdict)
        digest = finish(folder, place, about)
    # The report inside cannot hold the digest that covers it; the one shown now can.
    described, comparison = replace(described, digest=digest), replace(comparison, head_digest=digest)
    document = report.build_document(comparison, decision, described, base)
    return Sealed(place, digest, described, comparison, decision, document)


def _put_reports(folder: Path, document: Document) -> tuple[str, ...]:
    """Write every form of the report; without matplotlib there are no plots, and the bundle says so."""
    not_written: tuple[str, ...] = ()
    try:
        plots = report.draw_plots(document)
    except ImportError as error:
        plots, not_written = {}, (f"plots: {error}",)
    for name, content in plots.items():
        put(folder, f"plots/{name}", content)
    put(folder, "report.md", report.render_markdown(document).encode())
    if (overflow := report.markdown_overflow(document)) is not None:
        put(folder, OVERFLOW_NAME, overflow.encode())
    put(folder, "report.html", report.render_html(document, plots).encode())
    return not_written


def _carried_scope(carried: Carried, fresh: Evidence, folders: dict[str, Path], request: SealRequest) -> ScopeEvidence:
    source = carried.bundle.evidence
    if sum(other.scope == carried.scope for other in request.carried) > 1:
        raise UsageError(f"scope {carried.scope} is in two of the bundles", "a merged bundle takes each scope from one")
    if carried.scope in folders:
        raise UsageError(f"scope {carried.scope} was run now; it is not also carried over from {source.label}")
    scope = scope_in(carried.bundle, carried.scope)
    if scope.origin.kind is OriginKind.NOT_RUN:
        raise UsageError(f"scope {carried.scope} was not run in {source.label} either: {scope.origin.detail}")
    facts = source.environment_of(scope)
    origin = scope.origin if scope.origin.kind is OriginKind.CARRIED else Origin(OriginKind.CARRIED, source.digest)
    return replace(scope, origin=origin, environment={} if same_machine_facts(facts, fresh.environment) else facts)


def _copy_carried(carried: Carried, folder: Path) -> None:
    """The scope's files, and the manifest of the bundle they come from as proof that they are its files."""
    bag: Bag = carried.bundle.bag
    prefix = f"scopes/{carried.scope}/"
    for member in bag.members:
        path = member.removeprefix("data/")
        if path.startswith(prefix):
            put(folder, path, bag.read(path))
    if not bag.has(prefix + CARRIED_MANIFEST):
        put(folder, prefix + CARRIED_MANIFEST, (bag.folder / "manifest-sha256.txt").read_bytes())

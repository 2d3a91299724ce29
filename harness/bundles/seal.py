"""The flow from a run folder (or from several bundles) to a sealed bundle: collect, compare, decide, write, rename."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import report
from harness.bundles.bundle import PLOTS, Bundle, Verdict, about_of, copy_scope, finish, put, put_common, unfinished
from harness.bundles.carry import Carried, carried_scope, copy_carried
from harness.collect import collect, describe, scope_folders
from harness.compare import JUDGE, compare
from harness.errors import UsageError
from harness.gate import decide
from harness.model import Evidence
from harness.report.document import Document
from harness.report.markdown import OVERFLOW_NAME
from harness.rundir import locked, new_run_id
from harness.shards import join_facts
from harness.verdict import Comparison, GateDecision, Policy, Quarantine


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
    """One bundle out of partial ones, as several runners make them: scopes of their own, or shards of one scope.

    Every scope is carried, with its proof.
    """
    carried = tuple(Carried(bundle, scope.scope) for bundle in bundles for scope in bundle.evidence.scopes)
    first = bundles[0].evidence
    for other in (bundle.evidence for bundle in bundles[1:]):
        if (other.commit, other.dirty_digest) != (first.commit, first.dirty_digest):
            raise UsageError(f"{first.label} and {other.label} are not of one source; only parts of one run are merged")
    # What holds for the whole is what holds for its first scope, all runners of that one taken together.
    name = first.scopes[0].scope
    facts = join_facts([b.evidence.environment_of(scope) for b in bundles if (scope := b.evidence.scope(name))])
    evidence = describe("merged", max(b.evidence.created for b in bundles), facts, (), [])
    return _seal(evidence, {}, f"merged-{new_run_id()}", replace(request, carried=carried))


def bundle_name(evidence: Evidence, run: str) -> str:
    """``<run>-<device-key>-<commit>``: the same for the same run, so that a run cannot be sealed twice."""
    commit = evidence.commit[:10] if evidence.commit not in ("", "unknown") else "nocommit"
    return f"{run}-{evidence.device_key}-{commit}{'-dirty' if evidence.dirty_digest else ''}"


def _seal(fresh: Evidence, folders: dict[str, Path], run: str, request: SealRequest) -> Sealed:
    name = bundle_name(fresh, run)
    groups = _by_scope(request.carried, fresh)
    scopes = [*fresh.scopes, *(carried_scope(group, fresh.environment) for group in groups)]
    described = describe(name, fresh.created, fresh.environment, tuple(scopes), list(request.known_scopes))
    base = request.find_base(described)
    comparison = compare(base, described, request.policy, request.quarantine, request.today)
    decision = decide(comparison, request.policy)
    document = report.build_document(comparison, decision, described, base)
    place = request.out / name
    with unfinished(place) as folder:
        for scope, source in folders.items():
            copy_scope(source, folder, scope)
        for group in groups:
            copy_carried(group, folder)
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
    parts, not_written = report_parts(document)
    for path, content in parts.items():
        put(folder, path, content)
    return not_written


def report_parts(document: Document, *, drawn: bool = True) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Every form of the report by its path in a bundle, and what could not be made; ``drawn``: with plots."""
    not_made: tuple[str, ...] = ()
    try:
        plots = report.draw_plots(document) if drawn else {}
    except ImportError as error:
        plots, not_made = {}, (f"plots: {error}",)
    parts = {f"{PLOTS}{name}": content for name, content in plots.items()}
    parts["report.md"] = report.render_markdown(document).encode()
    if (overflow := report.markdown_overflow(document)) is not None:
        parts[OVERFLOW_NAME] = overflow.encode()
    parts["report.html"] = report.render_html(document, plots).encode()
    return parts, not_made


def _by_scope(carried: Sequence[Carried], fresh: Evidence) -> list[list[Carried]]:
    """What is carried, scope by scope; what was run now is not carried over too."""
    groups: dict[str, list[Carried]] = {}
    for one in carried:
        if fresh.scope(one.scope) is not None:
            raise UsageError(f"scope {one.scope} was run now; it is not also carried over from {one.bundle.about.name}")
        groups.setdefault(one.scope, []).append(one)
    return list(groups.values())

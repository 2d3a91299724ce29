"""Evidence: what was run on what, so that a reader can repeat it, and every row that the comparison holds."""

from __future__ import annotations

import shlex

from harness.model import Evidence, ScopeEvidence
from harness.report.document import Block, Cell, CellKind, Fact, Facts, Line, Section, Table, Tone
from harness.report.sections import rows as shared
from harness.report.sections.changes import differences_table
from harness.report.sections.resources import resources
from harness.report.words import count, seconds, visible
from harness.verdict import CaseOutcome, CaseRow, Comparison, MetricOutcome, MetricRow

_JUNIT = "junit.xml of each scope in the bundle lists every case"


def section(comparison: Comparison, head: Evidence, base: Evidence | None) -> Section:
    """Identity of both sides, commands, differences of environment, exact metrics, kernel resources, all cases."""
    blocks: list[Block] = [Facts("Identity", _identity(comparison, head, base))]
    commands = [scope for scope in head.scopes if scope.argv]
    if commands:
        blocks.append(
            shared.table("commands", "Exact commands of head", ("Scope", "Command"), commands, _command_cells)
        )
    tolerated = [difference for difference in comparison.differences if not difference.fatal]
    if tolerated:
        blocks.append(differences_table("tolerated", "Differences that do not forbid comparing", tolerated))
    blocks += resources(head, base)
    exact = [row for row in comparison.metrics if row.kind == "metric"]
    if exact:
        blocks.append(_exact_table(exact))
    blocks.append(_environment(head, base))
    if comparison.cases:
        blocks.append(_cases_table(comparison, head))
    return Section("evidence", "Evidence", _lead(comparison, head), tuple(blocks), (_brief(comparison, head),))


def _lead(comparison: Comparison, head: Evidence) -> str:
    dirty = (
        f" The work tree held changes that no commit has (digest {visible(head.dirty_digest[:12])}): the commit alone "
        "does not rebuild what was measured."
    )
    return (
        f"{count(len(comparison.cases), 'case')} and {count(len(comparison.metrics), 'metric')} in the comparison, "
        f"measured at commit {visible(head.commit[:12]) or 'unknown'} under {visible(head.device_key)}."
        f"{dirty if head.dirty_digest else ''}"
    )


def _identity(comparison: Comparison, head: Evidence, base: Evidence | None) -> tuple[Fact, ...]:
    facts = [
        Fact("Head", visible(head.label)),
        Fact("Head manifest SHA-256", _or_not_recorded(comparison.head_digest or head.digest), code=True),
        Fact("Head commit", _or_not_recorded(head.commit), code=True),
        Fact("Head work tree", f"changed, digest {visible(head.dirty_digest)}" if head.dirty_digest else "clean"),
        Fact("Head native library SHA-256", _or_not_recorded(head.native_sha256), code=True),
        Fact("Head measured at", _or_not_recorded(head.created)),
        Fact("Base", visible(base.label) if base else "none"),
    ]
    if base:
        facts += [
            Fact("Base manifest SHA-256", _or_not_recorded(comparison.base_digest or base.digest), code=True),
            Fact("Base commit", _or_not_recorded(base.commit), code=True),
            Fact("Base device key", visible(base.device_key)),
            Fact("Base native library SHA-256", _or_not_recorded(base.native_sha256), code=True),
            Fact("Base measured at", _or_not_recorded(base.created)),
        ]
    return tuple(facts)


def _or_not_recorded(value: str) -> str:
    return visible(value) or "not recorded"


def _command_cells(scope: ScopeEvidence) -> tuple[Cell, ...]:
    return shared.text(scope.scope), shared.code(shlex.join(scope.argv))


def _environment(head: Evidence, base: Evidence | None) -> Table:
    of_base = base.environment if base else {}
    keys = sorted(head.environment.keys() | of_base.keys())

    def cells(key: str) -> tuple[Cell, ...]:
        there, here = of_base.get(key, "—"), head.environment.get(key, "—")
        moved = bool(base) and there != here
        return shared.code(key), shared.text(there, Tone.QUIET), shared.text(here, Tone.DOUBT if moved else Tone.PLAIN)

    return shared.table(
        "environment",
        "Environment, allow-listed keys",
        ("Key", "Base", "Head"),
        keys,
        cells,
        rest="environment.json in the bundle",
        folded=True,
    )


def _exact_table(exact: list[MetricRow]) -> Table:
    worst_first = sorted(exact, key=lambda row: row.outcome in (MetricOutcome.SAME, MetricOutcome.NEW))

    def cells(row: MetricRow) -> tuple[Cell, ...]:
        return (
            shared.metric_outcome(row),
            shared.node(shared.metric_label(row)),
            shared.measured(row.base, row.unit),
            shared.measured(row.head, row.unit),
            shared.text("" if row.better.value == "neither" else f"{row.better.value} is better", Tone.QUIET),
        )

    caption = "Exact metrics: any change of the value is a change"
    return shared.table(
        "exact",
        caption,
        ("Outcome", "Case and metric", "Base", "Head", "Direction"),
        worst_first,
        cells,
        row_header=1,
        folded=True,
    )


def _cases_table(comparison: Comparison, head: Evidence) -> Table:
    took = {(scope.scope, case.node): case.seconds for scope in head.scopes for case in scope.cases}
    worst_first = sorted(comparison.cases, key=lambda row: row.outcome is CaseOutcome.UNCHANGED)

    def cells(row: CaseRow) -> tuple[Cell, ...]:
        base, head_status = shared.case_sides(row)
        lasted = took.get((row.scope, row.node))
        return (
            shared.case_outcome(row),
            shared.text(row.scope),
            shared.node(row.node),
            shared.text(base, Tone.QUIET),
            shared.text(head_status),
            Cell(seconds(lasted), CellKind.NUMBER, sort=lasted),
        )

    columns = ("Outcome", "Scope", "Case", "Base", "Head", "Call took")
    return shared.table("cases", "Every case", columns, worst_first, cells, row_header=2, rest=_JUNIT, folded=True)


def _brief(comparison: Comparison, head: Evidence) -> Line:
    manifest = visible((comparison.head_digest or head.digest)[:12]) or "not sealed"
    native = visible(head.native_sha256[:12]) or "not recorded"
    commit = visible(head.commit[:12]) or "unknown"
    return Line("", f"manifest {manifest}, native library {native}, commit {commit}", Tone.QUIET)

"""All that a comparison knows about some rows, in plain sentences. Pure."""

from __future__ import annotations

from harness.comparability import said
from harness.verdict import NOT_COMPARABLE, CaseRow, Comparison, MetricRow


def explain(comparison: Comparison, part: str) -> str:
    """Every row whose ``node name`` contains ``part``; says so when there is none."""
    cases = [row for row in comparison.cases if part in row.node]
    numbers = [row for row in comparison.metrics if part in f"{row.node} {row.name}"]
    if not cases and not numbers:
        total = f"{len(comparison.cases)} cases and {len(comparison.metrics)} numbers"
        return f"no row of this comparison contains {part!r}; it has {total}"
    lines = [line for row in cases for line in _case(row)]
    lines += [line for row in numbers for line in _number(row)]
    facts = [
        f"  {'forbids comparing times' if row.fatal else 'tolerated'}: {said(row)}" for row in comparison.differences
    ]
    if numbers and facts:
        lines += ["facts in which the two sides differ:", *facts]
    return "\n".join(lines)


def _case(row: CaseRow) -> list[str]:
    before = "not compared" if row.reason.startswith(NOT_COMPARABLE) else row.base or "absent"
    states = f"{before} at base, {row.head or 'absent'} at head"
    return [f"{row.node}", f"  {row.outcome}: {states}", *([f"  {row.reason}"] if row.reason else [])]


def _number(row: MetricRow) -> list[str]:
    lines = [f"{row.node} {row.name} ({row.kind})", f"  {row.outcome}" + (f": {row.reason}" if row.reason else "")]
    lines.append(
        f"  base {row.base} (n {row.base_n}), head {row.head} (n {row.head_n}) {row.unit}, better {row.better}"
    )
    if row.base_text or row.head_text:
        lines.append(f"  hash at base {row.base_text or 'none'}, at head {row.head_text or 'none'}")
    if row.ratio is not None:
        lines.append(f"  head/base {row.ratio:.4f}")
    if row.interval is not None:
        span = f"{row.interval.low:.4f} to {row.interval.high:.4f} at {row.interval.level:.1%}"
        lines.append(f"  interval {span} ({row.interval.method})")
    if row.margin is not None:
        lines.append(f"  margin {row.margin:.1%}: {row.margin_source}")
    return lines + [f"  note: {note}" for note in row.notes]

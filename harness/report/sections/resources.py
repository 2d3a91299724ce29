"""What each device kernel takes, as the compiler reports it: one panel per resource, one bar per kernel."""

from __future__ import annotations

from typing import TypeAlias

from harness.model import Evidence
from harness.report.document import Cell, CellKind, Figure, ResourceBar, ResourcePanel, Resources
from harness.report.sections import rows as shared
from harness.report.sections.figures import TWIN
from harness.report.words import count, number, percent, shortened, visible

# How the kernel suite names them: a metric "<kernel> <resource>" in this unit -> the words for it.
RESOURCES = {
    ("registers", "register/thread"): "Registers per thread",
    ("shared", "B/block"): "Shared memory, B per block",
    ("spills", "B/thread"): "Spills, B per thread",
    ("resident warps", "warp/SM"): "Resident warps an SM",
    ("V100 floor", "us/call, predicted"): "V100 floor of one call, us (prediction)",
}
# More bars than this are a wall; the table below the picture has all of them.
BARS = 24
_LONGEST_NAME = 30

Values: TypeAlias = dict[tuple[str, str], float]  # (kernel, resource)


def resources(head: Evidence, base: Evidence | None) -> list[Figure]:
    """Kernels that moved first, then those that spill, then the hungriest for registers; nothing where none is told."""
    of_head, of_base = _values(head), _values(base)
    kernels = sorted(dict.fromkeys(kernel for kernel, _ in of_head), key=lambda kernel: _rank(kernel, of_head, of_base))
    if not kernels:
        return []
    shown = [(name, words) for (name, _), words in RESOURCES.items() if any(known == name for _, known in of_head)]
    panels = tuple(ResourcePanel(words, _bars(name, kernels[:BARS], of_head, of_base)) for name, words in shown)
    moved = sum(_moved(kernel, of_head, of_base) for kernel in kernels)
    spilling = sum(of_head.get((kernel, "spills"), 0) > 0 for kernel in kernels)
    alt = (
        f"{count(len(kernels), 'device kernel')}: {f'{number(moved)} changed against the base, ' if base else ''}"
        f"{number(spilling)} {'spills' if spilling == 1 else 'spill'} registers. "
        f"{'The first ' + number(BARS) + ' are drawn: changed' if len(kernels) > BARS else 'Changed'} first, "
        "then spilling, then by registers."
    )

    def cells(kernel: str) -> tuple[Cell, ...]:
        return (
            shared.code(kernel),
            *(_cell(of_head.get((kernel, name)), of_base.get((kernel, name))) for name, _ in shown),
        )

    columns = ("Kernel", *(words for _, words in shown))
    twin = shared.table("kernel-resources-figures", TWIN, columns, kernels, cells)
    return [Figure("kernel-resources", "What each device kernel takes", alt, Resources(panels), twin)]


def _values(evidence: Evidence | None) -> Values:
    found: Values = {}
    for scope in evidence.scopes if evidence else ():
        for metric in scope.metrics:
            for name, unit in RESOURCES:
                if metric.unit == unit and metric.name.endswith(f" {name}"):
                    found[metric.name.removesuffix(f" {name}"), name] = metric.value
    return found


def _moved(kernel: str, head: Values, base: Values) -> bool:
    return any(head.get((kernel, name)) != base[kernel, name] for name, _ in RESOURCES if (kernel, name) in base)


def _rank(kernel: str, head: Values, base: Values) -> tuple[bool, float, float, str]:
    spills, registers = head.get((kernel, "spills"), 0), head.get((kernel, "registers"), 0)
    return not _moved(kernel, head, base), -spills, -registers, kernel


def _bars(name: str, kernels: list[str], head: Values, base: Values) -> tuple[ResourceBar, ...]:
    return tuple(
        ResourceBar(shortened(visible(kernel), _LONGEST_NAME), head[kernel, name], base.get((kernel, name)))
        for kernel in kernels
        if (kernel, name) in head
    )


def _cell(head: float | None, base: float | None) -> Cell:
    if head is None:
        return shared.whole(None)
    change = percent(head / base) if base else "from zero"
    moved = "" if base is None or base == head else f" (base {number(base)}, {change})"
    return Cell(f"{number(head)}{moved}", CellKind.NUMBER, sort=head)

"""``python -m engine admission``: the admission table of the reference model, or of one number of ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from engine.linear.admission import Admitted, Refused, admission_table

SIZES = (1, 2, 4, 8)


def admission_command(arguments: Sequence[str]) -> int:
    """Print which projection is stored how wide on each rank, which kernel it takes, and why others were refused."""
    parser = argparse.ArgumentParser(prog="python -m engine admission", description=admission_command.__doc__)
    parser.add_argument("--tp", type=int, metavar="N", help="one number of ranks; default: 1, 2, 4 and 8")
    parser.add_argument("--fp16-logits", action="store_true", help="as if the FP32 flag of the head were off")
    options = parser.parse_args(arguments)
    if options.tp is not None and options.tp < 1:
        parser.error(f"tp is {options.tp}; allowed: 1, 2, 4 and further powers of two")
    sizes = SIZES if options.tp is None else (options.tp,)
    for line in table_lines(admission_table(sizes=sizes, fp32_logits=not options.fp16_logits)):
        print(line)
    return 0


def table_lines(rows: Sequence[Admitted | Refused]) -> list[str]:
    """The table in markdown."""
    lines = ["| projection | TP | width of a rank | physical | k | kernel | note |", "|---|--:|--:|--:|--:|---|---|"]
    for row in rows:
        if isinstance(row, Refused):
            cells: tuple[object, ...] = ("", "", "", "refused", f"{row.rule}: {row.seen}; allowed: {row.allowed}")
        else:
            cells = (row.logical_n, row.physical_n, row.k, str(row.kernel), "; ".join(row.notes))
        lines.append("| " + " | ".join(str(cell) for cell in (row.projection, row.tp, *cells)) + " |")
    return lines


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"admission": admission_command}

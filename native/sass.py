"""The machine code of every kernel: which matrix products and which widths of memory access it uses.

    python -m native.sass [--out DIR]

Needs a disassembler that knows sm_70: CUDA 12's `nvdisasm`, on PATH or in the `triton` package of that time (3.6 and
before). It is optional: without one the build records why there is no instruction mix. CUDA 13's refuses sm_70.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from native.built import DEFAULT_OUT, read_record

PACKAGED = "backends/nvidia/bin/nvdisasm"
_KERNEL = re.compile(r"^\.text\.(?P<name>\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(?P<op>[A-Z][\w.]*)")
_WIDTH = re.compile(r"\.(?:U\.)?(?P<bits>8|16|32|64|128)\b")
# Instructions of a newer card's tensor cores and copy engines, by their SASS names.
LATER = re.compile(r"^(?:HMMA\.(?!884)|IMMA|BMMA|DMMA|QGMMA|HGMMA|LDSM|LDGSTS|UTMA|SYNCS|REDUX)")
MEMORY = ("LDG", "STG", "LDS", "STS", "LDL", "STL")


def find_disassembler() -> str | None:
    """Path of a `nvdisasm`: the one on PATH, else the `triton` package's; None where there is none."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return found
    spec = importlib.util.find_spec("triton")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / PACKAGED
        if path.is_file():
            return str(path)
    return None


def instruction_mix(listing: str) -> dict[str, dict[str, int]]:
    """Counts by kernel from `nvdisasm -c`: every instruction, matrix products (``HMMA.884``), and loads and stores of
    global, shared and local memory by bits per thread (``LDG.128``). An unrolled instruction counts as often as it is
    written, one in a loop once."""
    mixes: dict[str, Counter[str]] = {}
    current: Counter[str] | None = None
    for line in listing.splitlines():
        kernel = _KERNEL.match(line)
        if kernel:
            current = mixes.setdefault(kernel["name"], Counter())
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction is None or current is None:
            continue
        op = instruction["op"]
        current["instructions"] += 1
        base = op.split(".", 1)[0]
        if base in MEMORY:
            width = _WIDTH.search(op)
            current[f"{base}.{width['bits'] if width else 32}"] += 1
        elif base == "HMMA":
            current[".".join(op.split(".")[:2])] += 1
        if LATER.match(op):
            current[f"later than SM70: {op}"] += 1
    return {name: dict(sorted(mix.items())) for name, mix in mixes.items()}


def disassemble(folder: Path) -> dict[str, dict[str, int]] | str:
    """`instruction_mix` of every cubin in ``folder``, or the reason why there is none."""
    tool = find_disassembler()
    if tool is None:
        return "no nvdisasm on PATH or in a triton package (an optional tool)"
    mixes: dict[str, dict[str, int]] = {}
    for cubin in sorted(folder.glob("*.cubin")):
        done = subprocess.run([tool, "-c", str(cubin)], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return f"{tool} refused {cubin.name}: {lines[0] if lines else f'exit status {done.returncode}'}"
        mixes.update(instruction_mix(done.stdout))
    return mixes


def as_table(mixes: Mapping[str, Mapping[str, int]]) -> str:
    """A markdown table: one kernel per line, matrix products and the widths of its global loads and stores."""
    columns = ("instructions", "HMMA.884", "LDG.128", "LDG.64", "LDG.32", "LDG.16", "LDG.8", "STG.128", "LDL.32")
    lines = [f"| kernel | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, mix in sorted(mixes.items()):
        lines.append(f"| {name} | {' | '.join(str(mix.get(column, 0)) for column in columns)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table; exit status 2 where nothing can be disassembled, 1 where a kernel needs a newer card."""
    parser = argparse.ArgumentParser(prog="python -m native.sass", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="a build (default: %(default)s)")
    folder = parser.parse_args(argv).out
    if read_record(folder) is None:
        print(f"no build in {folder}: run python -m native.build", file=sys.stderr)
        return 2
    mixes = disassemble(folder / "device")
    if isinstance(mixes, str):
        print(mixes, file=sys.stderr)
        return 2
    print(as_table(mixes))
    later = {name: [op for op in mix if op.startswith("later")] for name, mix in mixes.items()}
    for name, ops in later.items():
        for op in ops:
            print(f"{name}: {op}", file=sys.stderr)
    return 1 if any(later.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

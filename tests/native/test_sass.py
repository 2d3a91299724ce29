"""Counting instructions in a listing, finding the optional tool, and what is said where there is none."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from native import sass

LISTING = """
.text.one:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT.SYS R4, [R2] ;
        /*0020*/                   LDG.E.SYS R4, [R2] ;
        /*0030*/                   LDS.U.128 R8, [R3] ;
        /*0040*/                   HMMA.884.F32.F32.STEP0 R8, R4, R6, R8 ;
        /*0050*/                   HMMA.884.F32.F32.STEP1 R8, R4, R6, R8 ;
.text.two:
        /*0000*/                   LDG.E.U.16.SYS R4, [R2] ;
        /*0010*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0020*/                   LDSM.16.M88.4 R8, [R4] ;
"""


def test_instructions_are_counted_by_kernel() -> None:
    one, two = (sass.instruction_mix(LISTING)[name] for name in ("one", "two"))
    assert one == {"instructions": 6, "LDG.128": 1, "LDG.32": 1, "LDS.128": 1, "HMMA.884": 2}
    assert two["LDG.16"] == 1
    assert two["later than SM70: HMMA.16816.F32"] == 1
    assert two["later than SM70: LDSM.16.M88.4"] == 1


def test_a_table_has_a_line_a_kernel() -> None:
    lines = sass.as_table(sass.instruction_mix(LISTING)).splitlines()
    assert lines[2].startswith("| one | 6 | 2 | 1 | 0 | 1 |")
    assert len(lines) == 4


def test_without_the_tool_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert sass.find_disassembler() is None
    assert "optional" in str(sass.disassemble(tmp_path))


def test_a_tool_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho 'unknown architecture' >&2\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _name: str(tool))
    (tmp_path / "image.cubin").write_bytes(b"\0")
    assert sass.disassemble(tmp_path) == f"{tool} refused image.cubin: unknown architecture"


def test_a_build_that_is_not_there_is_code_two(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert sass.main(["--out", str(tmp_path)]) == 2
    assert "run python -m native.build" in capsys.readouterr().err

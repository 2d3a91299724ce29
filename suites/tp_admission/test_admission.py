"""The admission table, exhaustively for the reference model, and every rule at its edge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.linear.admission import (
    Admitted,
    LinearKernel,
    Projection,
    Refused,
    Split,
    admission_table,
    admit,
    reference_projections,
)
from suites.recording import Record

# Worked by hand from the model's shapes: local width, then the next multiple of 32; None where TP cannot cut the heads.
WIDTHS: dict[tuple[str, int], tuple[int, int] | None] = {
    ("attention qkv", 1): (14336, 14336),
    ("attention qkv", 2): (7168, 7168),
    ("attention qkv", 4): (3584, 3584),
    ("attention qkv", 8): None,
    ("attention out", 1): (5120, 5120),
    ("attention out", 2): (5120, 5120),
    ("attention out", 4): (5120, 5120),
    ("attention out", 8): (5120, 5120),
    ("gdn in", 1): (16480, 16480),
    ("gdn in", 2): (8240, 8256),
    ("gdn in", 4): (4120, 4128),
    ("gdn in", 8): (2060, 2080),
    ("gdn out", 1): (5120, 5120),
    ("gdn out", 2): (5120, 5120),
    ("gdn out", 4): (5120, 5120),
    ("gdn out", 8): (5120, 5120),
    ("mlp gate up", 1): (34816, 34816),
    ("mlp gate up", 2): (17408, 17408),
    ("mlp gate up", 4): (8704, 8704),
    ("mlp gate up", 8): (4352, 4352),
    ("mlp down", 1): (5120, 5120),
    ("mlp down", 2): (5120, 5120),
    ("mlp down", 4): (5120, 5120),
    ("mlp down", 8): (5120, 5120),
    ("lm head", 1): (248320, 248320),
    ("lm head", 2): (124160, 124160),
    ("lm head", 4): (62080, 62080),
    ("lm head", 8): (31040, 31040),
}
BY_NAME = {projection.name: projection for projection in reference_projections()}


@pytest.mark.parametrize(("name", "tp"), WIDTHS, ids=[f"{name.replace(' ', '-')}-tp{tp}" for name, tp in WIDTHS])
def test_reference_model_widths(name: str, tp: int, record: Record) -> None:
    record.group("admission")
    answer = admit(BY_NAME[name], tp, fp32_logits=True)
    expected = WIDTHS[name, tp]
    if expected is None:
        assert isinstance(answer, Refused)
        assert answer.rule == "tp divides the heads of every section"
    else:
        assert isinstance(answer, Admitted), str(answer)
        assert (answer.logical_n, answer.physical_n) == expected
        record.metric("physical width", answer.physical_n, "columns")


def test_the_table_has_every_row_once(record: Record) -> None:
    record.group("admission")
    rows = [(row.projection, row.tp) for row in admission_table()]
    assert rows == list(WIDTHS)


@pytest.mark.parametrize("local", range(1, 130))
def test_physical_width_is_the_next_multiple_of_32(local: int, record: Record) -> None:
    """Found by counting up, not by the formula."""
    record.group("admission")
    expected = local
    while expected % 32:
        expected += 1
    answer = admit(Projection("p", local, 512, "nvfp4", Split.COLUMN), 1)
    assert isinstance(answer, Admitted)
    assert answer.physical_n == expected


EDGES: dict[str, tuple[Projection, int, str]] = {
    "tp-3": (Projection("p", 96, 512, "nvfp4", Split.COLUMN), 3, "tp is a power of two"),
    "width-odd-under-tp2": (Projection("p", 33, 512, "nvfp4", Split.COLUMN), 2, "tp divides the cut width"),
    "k-odd-under-tp2": (Projection("p", 32, 513, "nvfp4", Split.ROW), 2, "tp divides the cut width"),
    "section-odd": (
        Projection("p", 64, 512, "nvfp4", Split.COLUMN, sections=(31, 33)),
        2,
        "tp divides every fused section",
    ),
    "group-unknown": (Projection("p", 32, 512, "awq_int4", Split.COLUMN, group=16), 1, "group is one of the format's"),
    "k-not-of-group": (
        Projection("p", 32, 528, "awq_int4", Split.COLUMN, group=32),
        1,
        "k is a multiple of the group",
    ),
    "k-not-of-tile": (Projection("p", 32, 520, "fp16", Split.COLUMN), 1, "k is a multiple of the kernel's k-tile"),
    "interleaved-padded": (
        Projection("p", 48, 512, "nvfp4", Split.COLUMN, interleaved_gate_up=True),
        1,
        "no padding under the interleaved gate/up layout",
    ),
}


@pytest.mark.parametrize(("projection", "tp", "rule"), EDGES.values(), ids=EDGES)
def test_each_rule_refuses_by_name(projection: Projection, tp: int, rule: str, record: Record) -> None:
    record.group("admission")
    answer = admit(projection, tp)
    assert isinstance(answer, Refused)
    assert answer.rule == rule
    assert answer.seen in str(answer)
    assert answer.allowed in str(answer)


def test_an_older_card_is_refused(record: Record) -> None:
    record.group("admission")
    answer = admit(BY_NAME["gdn in"], 2, (6, 1))
    assert isinstance(answer, Refused)
    assert answer.rule == "capability"


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("flag", [False, True], ids=["flag-off", "flag-on"])
def test_fp32_head_from_the_flag_alone_at_tp_2_and_4(tp: int, flag: bool, record: Record) -> None:
    record.group("fp32 head")
    answer = admit(BY_NAME["lm head"], tp, fp32_logits=flag)
    assert isinstance(answer, Admitted)
    assert (answer.kernel is LinearKernel.FP32_HEAD) == (flag and tp in (2, 4))
    assert bool(answer.notes) == (answer.kernel is not LinearKernel.FP32_HEAD)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_small_m_kernel_is_promoted_at_tp_4_alone(tp: int, record: Record) -> None:
    record.group("small m")
    answer = admit(BY_NAME["mlp gate up"], tp)
    assert isinstance(answer, Admitted)
    assert (answer.kernel is LinearKernel.SMALL_M) == (tp == 4)
    if tp != 4:
        assert "promoted at TP 4 alone" in answer.notes[0]


def test_small_m_kernel_needs_k_of_64(record: Record) -> None:
    record.group("small m")
    answer = admit(replace(BY_NAME["mlp gate up"], k=5120 + 32), 4)
    assert isinstance(answer, Admitted)
    assert answer.kernel is LinearKernel.PACKED


def test_unknown_format_names_the_known_ones(record: Record) -> None:
    record.group("admission")
    with pytest.raises(ValueError, match="weight format 'int3' is not known; allowed: awq_int4"):
        admit(Projection("p", 32, 512, "int3", Split.COLUMN), 1)


def test_sections_must_sum_to_the_width(record: Record) -> None:
    record.group("admission")
    with pytest.raises(ValueError, match="sum to 96, not to n = 100"):
        Projection("p", 100, 512, "nvfp4", Split.COLUMN, sections=(32, 64))

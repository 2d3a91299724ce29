"""What the precision of the LM head does to sampling, on real rows of SmolLM2 that were chosen to be hard.

Per row: does the nucleus hold the same ids as in fp64, and how far apart are the two distributions. Top-k is 20, the
temperature 1; top-p is the one of TOP_PS at which the row is hardest. The reference has the same hidden states and
weights as the head it judges, and sums them in fp64.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import numpy as np
import pytest

from suites.oracles import sampling as oracle
from suites.recording import Record
from suites.sampling import heads
from suites.targets import Target

pytestmark = pytest.mark.group("head precision")

TOP_K = 20
TOP_PS = tuple(float(np.float32(p)) for p in (0.6, 0.7, 0.8, 0.9, 0.95))
HARD, PLAIN = 24, 8
# A nucleus whose edge is nearer to p than this is not decided by fp32 logits: their error moves shares by about 1e-6.
LEAST_MARGIN = 1e-5
# TV <= the largest logit error. fp32 sums of 576 products of SmolLM2 are off by about 5e-6; the dense head may add in
# any order, which is worth a factor of ten.
LARGEST_TV = {"candidate": 1e-5, "dense": 1e-4}


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Real rows, each with its top-p, and what fp64 makes of them; ``own`` is fp64 for the engine's head."""

    hidden: heads.F32
    weight: heads.F32
    exact: heads.F64
    top_p: tuple[float, ...]
    margins: tuple[float, ...]
    engine: heads.RealRows
    own: heads.F64


@dataclass(frozen=True, slots=True)
class RowReport:
    """One row of one head beside fp64."""

    missing: tuple[int, ...]
    extra: tuple[int, ...]
    tv: float
    logit_error: float

    @property
    def support_equal(self) -> bool:
        return not self.missing and not self.extra


def _report(logits: heads.F32, exact: heads.F64, top_p: float) -> RowReport:
    reference, ranking = oracle.rank(exact, TOP_K), oracle.rank(logits, TOP_K)
    expected, seen = reference.kept_ids(top_p), ranking.kept_ids(top_p)
    tv = oracle.total_variation(reference.probabilities(top_p, len(logits)), ranking.probabilities(top_p, len(logits)))
    kept = sorted(expected)
    error = float(np.abs(logits[kept].astype(np.float64) - exact[kept]).max())
    return RowReport(tuple(sorted(expected - seen)), tuple(sorted(seen - expected)), tv, error)


def _reports(logits: heads.F32, chosen: Chosen) -> list[RowReport]:
    return [_report(*row) for row in zip(logits, chosen.exact, chosen.top_p, strict=True)]


def _may_differ(exact: heads.F64, top_p: float, report: RowReport, error: float) -> bool:
    """Whether logits that are off by up to ``error`` explain another nucleus: its edge, or a swap of near tokens."""
    if oracle.rank(exact, TOP_K).edge_margin(top_p) <= error:
        return True
    gaps = [exact[gone] - exact[came] for gone in report.missing for came in report.extra]
    return bool(gaps) and max(gaps) <= 2 * error


def _hardest(row: heads.F32 | heads.F64) -> tuple[float, float]:
    """The margin and the top-p at which the row is hardest but still decided."""
    ranking = oracle.rank(row, TOP_K)
    decided = [(margin, p) for p in TOP_PS if (margin := ranking.edge_margin(p)) >= LEAST_MARGIN]
    return min(decided)


@functools.cache
def _chosen(model: str) -> Chosen:
    with pytest.MonkeyPatch.context() as patch:
        rows = heads.real_rows(model, patch)
    order = np.argsort([_hardest(row)[0] for row in rows.engine_logits], kind="stable")
    rest = order[2 * HARD :]
    candidates = np.concatenate([order[: 2 * HARD], rest[:: len(rest) // PLAIN][:PLAIN]])
    hidden = rows.hidden[candidates].astype(np.float16).astype(np.float32)
    weight = rows.weight.astype(np.float16).astype(np.float32)
    exact = heads.exact_logits(hidden, weight)
    margins = np.array([_hardest(row) for row in exact])
    hard = np.argsort(margins[: 2 * HARD, 0], kind="stable")[:HARD]
    picked = np.concatenate([hard, np.arange(2 * HARD, len(candidates))])
    engine = heads.RealRows(rows.hidden[candidates[picked]], rows.weight, rows.engine_logits[candidates[picked]])
    return Chosen(
        hidden[picked],
        weight,
        exact[picked],
        tuple(float(p) for p in margins[picked, 1]),
        tuple(float(margin) for margin in margins[picked, 0]),
        engine,
        heads.exact_logits(engine.hidden, engine.weight),
    )


@pytest.fixture
def chosen(native_library: str, record: Record) -> Chosen:
    """The HARD rows whose nucleus edge is nearest to p among all that the engine computed, and PLAIN others."""
    try:
        from engine.config import read_environment
        from engine.model.weights_gguf import default_model_path

        model = str(read_environment(os.environ).model or default_model_path())
    except (ModuleNotFoundError, ValueError) as missing:
        record.not_run(str(missing))
    return _chosen(model)


def test_rows_are_many_and_hard(chosen: Chosen, record: Record) -> None:
    """24 rows whose nucleus edge is within 0.001 of p, 8 others, no two the same."""
    hard = chosen.margins[:HARD]
    assert len(np.unique(chosen.hidden, axis=0)) == HARD + PLAIN
    assert min(hard) >= LEAST_MARGIN
    assert max(hard) < 1e-3
    record.metric("rows", HARD + PLAIN, "rows", better="higher")
    record.metric("largest margin of the hard rows", max(hard), "1", exact=False)


@pytest.mark.parametrize("head", ["candidate", "dense"])
def test_fp32_heads_keep_every_nucleus(chosen: Chosen, targets: tuple[Target, ...], record: Record, head: str) -> None:
    for target in targets:
        if head == "dense":
            logits = heads.dense_logits(target, chosen.hidden, chosen.weight)
        else:
            coarse = heads.fp16_logits(chosen.hidden, chosen.weight)
            logits = heads.candidate_logits(target, chosen.hidden, chosen.weight, coarse)
        reports = _reports(logits, chosen)
        for index, report in enumerate(reports):
            what = f"{target.name} {head}: row {index}, p {chosen.top_p[index]:.2f}, margin {chosen.margins[index]:.2e}"
            assert report.support_equal, f"{what}: missing {report.missing}, extra {report.extra}"
            assert report.tv <= LARGEST_TV[head], f"{what}: TV {report.tv:.3e}, allowed {LARGEST_TV[head]:.0e}"
        if target.name == "cpu":
            record.metric("rows with the same nucleus", len(reports), "rows", better="higher")
            record.metric("largest TV", max(report.tv for report in reports), "1", better="lower", exact=False)
            worst = max(report.logit_error for report in reports)
            record.metric("largest logit error", worst, "1", better="lower", exact=False)


def test_fp16_head_loses_a_nucleus(chosen: Chosen, record: Record) -> None:
    """The control: rows that no head could fail would show nothing."""
    reports = _reports(heads.fp16_logits(chosen.hidden, chosen.weight), chosen)
    lost = [index for index, report in enumerate(reports) if not report.support_equal]
    assert lost, "FP16 logits kept every nucleus: the rows have no power"
    record.metric("rows with another nucleus", len(lost), "rows")
    record.metric("largest TV", max(report.tv for report in reports), "1", exact=False)
    record.metric("median TV", float(np.median([report.tv for report in reports])), "1", exact=False)


def test_engines_own_head(chosen: Chosen, record: Record) -> None:
    """The head that the engine runs on a CPU: Q8_0 weights and 16-bit fixed-point activations, fp32 logits.

    TV is at most the largest logit error, which half a step of every activation bounds; a nucleus may differ only where
    its margin is smaller than that, or by tokens that are within two such errors of each other and changed places.
    """
    bound = heads.fixed_point_bound(chosen.engine.hidden, chosen.engine.weight)
    reports = [_report(*row) for row in zip(chosen.engine.engine_logits, chosen.own, chosen.top_p, strict=True)]
    for index, report in enumerate(reports):
        assert report.logit_error <= bound[index], (
            f"row {index}: logit error {report.logit_error}, bound {bound[index]}"
        )
        if report.support_equal:
            assert report.tv <= bound[index], f"row {index}: TV {report.tv}"
        else:
            assert _may_differ(chosen.own[index], chosen.top_p[index], report, bound[index]), (
                f"row {index}: missing {report.missing}, extra {report.extra}, bound {bound[index]}"
            )
    record.metric(
        "rows with the same nucleus", sum(report.support_equal for report in reports), "rows", better="higher"
    )
    record.metric("largest TV", max(report.tv for report in reports), "1", better="lower", exact=False)
    worst = max(report.logit_error for report in reports)
    record.metric("largest logit error", worst, "1", better="lower", exact=False)

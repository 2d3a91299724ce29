"""The head over ranks: the dtype and the values of what comes out, not the flag that asked for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.errors import InputError
from engine.linear.admission import Projection, Split
from engine.parallel.group import Alone
from engine.parallel.head import ParallelHead, best, logits_dtype, merge
from engine.parallel.plan import VocabSplit
from suites.oracles.collectives import best_candidates
from suites.oracles.judge import assert_bits_equal
from suites.recording import Record
from suites.tp_admission import jobs
from suites.tp_admission.on_ranks import on_ranks

HIDDEN = 64
VOCAB = 192
COUNT = 20
LM_HEAD = Projection("lm head", VOCAB, HIDDEN, "fp16_head", Split.COLUMN)


def _head(vocab: int, seed: int = 3) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float16]]:
    """Activations that FP16 holds too [3, H], and a head [V, H] with rows that occur twice, so that logits tie."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3, HIDDEN)).astype(np.float16).astype(np.float32)
    weight = rng.normal(size=(vocab, HIDDEN)).astype(np.float16)
    for low, high in ((1, vocab - 1), (5, vocab // 2 + 3), (vocab // 4, vocab // 2)):
        weight[high] = weight[low]
    return x, weight


def _one_rank(x: npt.NDArray[np.float32], weight: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """Float32 logits of the whole head on one rank: every logit is one product, in one order, wherever its row lies."""
    from engine.ops.functional import dense_logits

    logits: npt.NDArray[np.float32] = dense_logits(torch.from_numpy(x), torch.from_numpy(weight)).numpy()
    return logits


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("flag", [False, True], ids=["flag-off", "flag-on"])
def test_the_dtype_of_the_logits_follows_from_flag_and_size(size: int, flag: bool, record: Record) -> None:
    record.group("fp32 head")
    expected = torch.float32 if flag and size in (2, 4) else torch.float16
    assert logits_dtype(LM_HEAD, size, fp32_logits=flag) == expected


@pytest.mark.parametrize("weight_format", ["fp32", "gguf_q8_0"])
def test_a_head_of_another_format_has_fp32_logits_always(weight_format: str, record: Record) -> None:
    record.group("fp32 head")
    head = Projection("lm head", VOCAB, HIDDEN, weight_format, Split.COLUMN)
    assert {logits_dtype(head, size, fp32_logits=False) for size in (1, 2, 4)} == {torch.float32}


def test_a_head_that_is_not_admitted_is_refused(record: Record) -> None:
    record.group("fp32 head")
    with pytest.raises(InputError, match=r"lm head at TP 2: tp divides the cut width: saw 191 % 2 = 1"):
        logits_dtype(Projection("lm head", 191, HIDDEN, "fp16_head", Split.COLUMN), 2, fp32_logits=True)


@pytest.mark.parametrize("size", [2, 4])
def test_fp32_logits_of_real_ranks(size: int, native_library: str, record: Record) -> None:
    """From the flag alone: float32, and bit for bit the logits of one rank; candidates with ties by lower id."""
    record.group("fp32 head")
    x, weight = _head(VOCAB)
    expected = _one_rank(x, weight)
    values, ids, ties = best_candidates(expected, COUNT)
    for answer in on_ranks(size, jobs.head_answer, x, weight, COUNT, True, "cpu"):
        assert answer.dtype == "torch.float32"
        assert_bits_equal(answer.dense, expected, f"dense logits at TP {size}")
        assert_bits_equal(answer.values, values, f"candidates at TP {size}")
        assert_bits_equal(answer.ids, ids, f"candidate ids at TP {size}")
        assert answer.cuts_a_tie.tolist() == ties
    collapsed = sum(len(set(row.tolist())) - len(set(row.astype(np.float16).tolist())) for row in expected)
    record.metric("distinct FP32 logits that are one in FP16", collapsed, "logits")


@pytest.mark.parametrize("size", [2, 4])
def test_without_the_flag_logits_are_fp16_and_say_so(size: int, native_library: str, record: Record) -> None:
    record.group("fp32 head")
    x, weight = _head(VOCAB)
    for answer in on_ranks(size, jobs.head_answer, x, weight, COUNT, False, "cpu"):
        assert answer.dtype == "torch.float16"
        assert_bits_equal(answer.dense, _one_rank(x, weight).astype(np.float16), f"FP16 logits at TP {size}")


def test_64_logits_that_fp16_cannot_tell_apart(native_library: str, record: Record) -> None:
    """x = (1, 2^-12, 0 ...), rows (1, i / 64, 0 ...): FP32 tells all 64 apart, FP16 sees one value."""
    record.group("fp32 head")
    x = np.zeros((1, HIDDEN), np.float32)
    x[0, :2] = (1.0, 2.0**-12)
    weight = np.zeros((64, HIDDEN), np.float16)
    weight[:, 0] = 1.0
    weight[:, 1] = np.arange(64) / 64
    for flag, distinct in ((True, 64), (False, 1)):
        for answer in on_ranks(2, jobs.head_answer, x, weight, 16, flag, "cpu"):
            assert len(set(answer.dense[0].tolist())) == distinct
            # Best first with FP32; with FP16 all tie, and the lowest ids come first.
            assert answer.ids[0].tolist() == (list(range(63, 47, -1)) if flag else list(range(16)))
            assert bool(answer.cuts_a_tie[0]) is not flag


@pytest.mark.parametrize("size", [2, 4])
def test_a_vocabulary_that_tp_does_not_divide(size: int, native_library: str, record: Record) -> None:
    """Rows that fill up the last share are zero: their logits are not seen, though all real ones are negative."""
    record.group("fp32 head")
    x, weight = _head(99)
    x, weight = np.abs(x), -np.abs(weight)
    expected = _one_rank(x, weight)
    values, ids, _ = best_candidates(expected, COUNT)
    for answer in on_ranks(size, jobs.head_answer, x, weight, COUNT, True, "cpu"):
        assert_bits_equal(answer.dense, expected, f"dense logits at TP {size}")
        assert_bits_equal(answer.values, values, f"candidates at TP {size}")
        assert_bits_equal(answer.ids, ids, f"candidate ids at TP {size}")


@pytest.mark.parametrize("distinct", [1, 3, 1000], ids=["all-tie", "many-ties", "few-ties"])
@pytest.mark.parametrize("count", [1, 2, 20, 96])
def test_the_best_of_a_row_by_value_then_column(count: int, distinct: int, record: Record) -> None:
    record.group("candidates")
    values = np.random.default_rng(count).integers(0, distinct, (4, 97)).astype(np.float32)
    expected_values, expected_ids, _ = best_candidates(values, count)
    got_values, got_ids = best(torch.from_numpy(values), count)
    assert_bits_equal(got_values.numpy(), expected_values, f"best {count}")
    assert_bits_equal(got_ids.numpy(), expected_ids, f"columns of the best {count}")


def test_candidates_by_hand(record: Record) -> None:
    """Two ranks of three: 7 and 2 tie for the best and the lower id leads; 3 and 9 tie across the cut."""
    record.group("candidates")
    values = torch.tensor([[5.0, 4.0, 1.0, 5.0, 4.0, 0.0]])
    ids = torch.tensor([[2, 3, 0, 7, 9, 8]])
    found = merge(values, ids, 3)
    assert found.ids.tolist() == [[2, 7, 3]]
    assert found.values.tolist() == [[5.0, 5.0, 4.0]]
    assert found.sentinel_ids.tolist() == [9]
    assert found.cuts_a_tie.tolist() == [True]
    assert merge(values, ids, 2).cuts_a_tie.tolist() == [False]


@pytest.mark.parametrize("count", [16, 20, 21])
def test_candidates_are_contiguous(count: int, native_library: str, record: Record) -> None:
    """A slice of a wider buffer is not, and a collective that needs contiguous memory breaks on it."""
    record.group("candidates")
    x, weight = _head(VOCAB)
    head = ParallelHead(Alone(), VocabSplit(VOCAB, 1), torch.from_numpy(weight), fp32_logits=True)
    found = head.candidates(torch.from_numpy(x), count)
    assert found.values.is_contiguous()
    assert found.ids.is_contiguous()
    assert found.values.shape == found.ids.shape == (3, count)


def test_refusals_of_the_head_name_what_was_seen(record: Record) -> None:
    record.group("fp32 head")
    weight = torch.zeros(VOCAB, HIDDEN, dtype=torch.float16)
    head = ParallelHead(Alone(), VocabSplit(VOCAB, 1), weight, fp32_logits=True)
    with pytest.raises(ValueError, match="192 candidates; allowed: 1 to 191"):
        head.candidates(torch.zeros(1, HIDDEN), VOCAB)
    with pytest.raises(ValueError, match="head of 191 rows; allowed: the 192 of a share"):
        ParallelHead(Alone(), VocabSplit(VOCAB, 1), weight[:191], fp32_logits=True)

"""Whole models over one, two and four real ranks: the same tokens, logits that differ by rounding alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.model.saved_shards import save_shards
from suites.checkpoints.hybrid import config_with_heads, fuse_projections, random_tensors, write_checkpoint
from suites.checkpoints.nvfp4 import quantise_file
from suites.oracles.judge import assert_bits_equal
from suites.recording import Record
from suites.tp_admission import jobs
from suites.tp_admission.jobs import ModelAnswer
from suites.tp_admission.lockstep import in_lockstep
from suites.tp_admission.on_ranks import on_ranks
from suites.tp_admission.smollm2 import smollm2_path

SIZES = (1, 2, 4)
LAYOUTS = ("sections", "groups", "nvfp4")
# The model that a layout is compared with: NVFP4 is another one, of the same sizes or a little wider.
ONE_RANK = {"sections": "sections", "groups": "sections", "nvfp4": "nvfp4"}
PROMPT = [5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 33, 12, 60, 61, 62, 5, 9, 7, 14, 15]
TOKENS = 12
WIDE = {"hidden_size": 64, "intermediate_size": 256, "linear_value_head_dim": 32}
# Rows of at most 256 float32 products through 4 layers, on logits of up to 20, rounded twice as often by either side.
# A packed product takes its inputs in fixed point, off by up to 2^-15 of the largest of 32: sums that differ in a last
# bit may step to the next code, in each of four products of a layer; on logits of up to 20.
HYBRID_ERROR = {"sections": 20 * 256 * 4 * 2.0**-24 * 2, "nvfp4": 20 * 2.0**-15 * 4 * 4}

Answers = dict[tuple[str, int], ModelAnswer]


@pytest.fixture(scope="module")
def hybrid_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One random hybrid model in both checkpoint layouts, and one in NVFP4, with heads that 4 divides.

    99 tokens, which no TP divides. The widths of the third are such that a quarter is whole k-tiles of 32.
    """
    folder = tmp_path_factory.mktemp("tp")
    tensors, config = random_tensors(times_heads=2), config_with_heads(2)
    fused = fuse_projections(tensors, times_heads=2)
    wide = random_tensors(hidden=64, inner=256, value_dim=32, times_heads=2)
    return {
        "sections": write_checkpoint(folder / "sections", tensors, config),
        "groups": write_checkpoint(folder / "groups", fused, config),
        "nvfp4": quantise_file(write_checkpoint(folder / "nvfp4", wide, config | WIDE)),
    }


def _hybrid_config(folder: Path, size: int) -> EngineConfig:
    # Logits of a row each for as many sequences as the prompt has tokens: one sequence may ask for them all.
    return EngineConfig(model=folder, tp=size, threads=1, max_sequences=len(PROMPT), kv_cache_tokens=256)


@pytest.fixture(scope="module")
def hybrid_answers(native_library: str, hybrid_folders: dict[str, Path]) -> Answers:
    """Rank 0's answer of every layout at every size; the followers have run as many forwards as rank 0 announced."""
    answers: Answers = {}
    for layout, folder in hybrid_folders.items():
        for size in SIZES:
            config = _hybrid_config(folder, size)
            first, *forwards = on_ranks(size, jobs.model_answer, config, PROMPT, TOKENS)
            # The prompt in one chunk, whose last row gives the first token, a round for each other token, the prompt.
            assert forwards == [1 + (TOKENS - 1) + 1] * (size - 1)
            answers[layout, size] = first
    return answers


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_hybrid_gives_the_tokens_of_one_rank(layout: str, size: int, hybrid_answers: Answers, record: Record) -> None:
    record.group("models")
    got = hybrid_answers[layout, size].token_ids
    assert got == hybrid_answers[ONE_RANK[layout], 1].token_ids
    record.tokens("hybrid", [got], ["length"], rounds=TOKENS - 1)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_hybrid_logits_differ_by_rounding_alone(
    layout: str, size: int, hybrid_answers: Answers, record: Record
) -> None:
    record.group("models")
    model = ONE_RANK[layout]
    error = np.abs(hybrid_answers[layout, size].logits - hybrid_answers[model, 1].logits).max()
    record.metric("largest logit difference from one rank", float(error), "logit", better="lower", exact=False)
    allowed = HYBRID_ERROR[model]
    assert 0 < error < allowed, f"{error} from one rank; allowed: below {allowed}, and no copy of its sums"


@pytest.mark.parametrize("size", [2, 4])
def test_fp32_logits_have_the_bits_of_an_ordered_reference_sum(
    size: int,
    hybrid_answers: Answers,
    hybrid_folders: dict[str, Path],
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Real ranks against the same ranks in one process, whose sums NumPy takes in rank order."""
    record.group("models")
    config = _hybrid_config(hybrid_folders["sections"], size)
    reference, *_ = in_lockstep(size, jobs.model_answer, config, PROMPT, TOKENS, monkeypatch=monkeypatch)
    got = hybrid_answers["sections", size]
    assert got.logits.dtype == np.float32
    assert_bits_equal(got.logits, reference.logits, f"logits of {size} real ranks")
    assert got.token_ids == reference.token_ids


@pytest.mark.parametrize("size", [2, 4])
def test_both_layouts_give_the_same_bits(size: int, hybrid_answers: Answers, record: Record) -> None:
    record.group("models")
    sections, groups = hybrid_answers["sections", size], hybrid_answers["groups", size]
    assert_bits_equal(groups.logits, sections.logits, f"logits of the other layout at TP {size}")


def test_a_folder_that_was_cut_before_gives_the_same_bits(
    hybrid_answers: Answers, hybrid_folders: dict[str, Path], tmp_path: Path, record: Record
) -> None:
    record.group("models")
    save_shards(hybrid_folders["sections"], tmp_path / "cut", 2)
    first, _ = on_ranks(2, jobs.model_answer, _hybrid_config(tmp_path / "cut", 2), PROMPT, TOKENS)
    assert_bits_equal(first.logits, hybrid_answers["sections", 2].logits, "logits of a folder that was cut before")


@pytest.mark.parametrize("size", [2, 4])
def test_batches_drafts_and_known_beginnings(size: int, hybrid_folders: dict[str, Path], record: Record) -> None:
    """Three sequences of unlike length, drafts by lookup, prefix reuse: all that an announcement has to carry."""
    record.group("models")
    prompts = [PROMPT, PROMPT[:9], [*PROMPT, *PROMPT]]
    answers = []
    for ranks in (1, size):
        config = EngineConfig(
            model=hybrid_folders["sections"],
            tp=ranks,
            threads=1,
            draft="lookup",
            lookup_min=1,
            draft_tokens=4,
            prefix_reuse=True,
            block_size=4,
            kv_cache_tokens=1024,
        )
        answers.append(on_ranks(ranks, jobs.batch_tokens, config, prompts, TOKENS)[0])
    assert answers[1] == answers[0]
    assert answers[0][:3] == answers[0][3:]


SMOLLM2_PROMPT = [1, 4093, 198, 2683, 1206, 281]
SMOLLM2_TOKENS = 6
# A product takes its inputs in fixed point, off by up to 2^-15 of the largest of 32: sums that differ in a last bit may
# step to the next code. 30 layers of four products and the head, independent of each other.
SMOLLM2_ERROR = 2.0**-15 * (30 * 4 + 1) ** 0.5


@pytest.fixture(scope="module")
def smollm2_answers() -> dict[int, ModelAnswer]:
    """By size, of the sizes that were asked for so far: a fixture of a module cannot end a case as NOT_RUN."""
    return {}


def _smollm2(answers: dict[int, ModelAnswer], size: int, path: Path) -> ModelAnswer:
    """Heads are padded from 3 to 4 KV groups where TP asks for it."""
    if size not in answers:
        config = EngineConfig(model=path, tp=size, pad_heads=True, threads=1, max_model_len=64)
        answers[size] = on_ranks(size, jobs.model_answer, config, SMOLLM2_PROMPT, SMOLLM2_TOKENS)[0]
    return answers[size]


@pytest.mark.parametrize("size", [2, 4])
def test_smollm2_gives_the_tokens_of_one_rank(
    size: int, native_library: str, smollm2_answers: dict[int, ModelAnswer], record: Record
) -> None:
    record.group("models")
    path = smollm2_path(record)
    one, many = (_smollm2(smollm2_answers, ranks, path) for ranks in (1, size))
    assert many.token_ids == one.token_ids
    whole, logits = one.logits, many.logits
    relative = float(np.linalg.norm(logits - whole) / np.linalg.norm(whole))
    record.metric("relative L2 of the logits against one rank", relative, "ratio", better="lower", exact=False)
    assert 0 < relative < SMOLLM2_ERROR, f"{relative} from one rank; allowed: below {SMOLLM2_ERROR}"
    record.tokens("SmolLM2", [many.token_ids], ["length"], rounds=SMOLLM2_TOKENS - 1)

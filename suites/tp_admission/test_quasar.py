"""The carried model over ranks: NVFP4 projections of unaligned widths, a recurrent state, and its draft on rank 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.model.bundled import quasar_tiny_draft_path, quasar_tiny_path
from engine.model.checkpoint import Checkpoint
from engine.model.hybrid_config import read_hybrid_config
from engine.model.hybrid_weights import load_tables, load_whole_tables
from engine.model.saved_shards import save_shards
from engine.model.tokenizer_hf import tokenizer_from_folder
from suites.oracles import tolerance
from suites.oracles.judge import assert_bits_equal
from suites.recording import Record
from suites.tp_admission import jobs
from suites.tp_admission.on_ranks import on_ranks
from suites.tp_admission.same_tokens import same_tokens

pytestmark = pytest.mark.group("quasar-tiny")

QUESTIONS = ["What is water made of?", "List three fruits and their colors."]
TOKENS = 48
PRODUCTS = 4 * 8 + 1  # four in a row in each of 8 layers, and the head


def quasar_config(device: str, *, drafted: bool = False, sequences: int = 96) -> Callable[[int], EngineConfig]:
    """From a number of ranks to the carried model over them, FP32 logits; ``drafted``: its draft proposes.

    Logits of a row each for ``sequences``: one sequence may ask for as many as its text has tokens.
    """

    def make(ranks: int) -> EngineConfig:
        return EngineConfig(
            model=quasar_tiny_path(),
            draft="dflash2" if drafted else "none",
            draft_model=quasar_tiny_draft_path() if drafted else None,
            device=device,
            threads=1,
            tp=ranks,
            fp32_logits=True,
            max_model_len=256,
            kv_cache_tokens=1024,
            max_sequences=sequences,
        )

    return make


def quasar_prompt() -> list[int]:
    """The first question in the model's chat template."""
    tokenizer = tokenizer_from_folder(quasar_tiny_path(), read_hybrid_config(quasar_tiny_path()).vocab_size)
    return tokenizer.encode(tokenizer.chat_prompt([{"role": "user", "content": QUESTIONS[0]}]))


@pytest.mark.parametrize("size", [2, 4])
def test_the_tokens_of_one_rank(size: int, native_library: str, record: Record) -> None:
    gap = partial(tolerance.logit_gap, products=PRODUCTS)
    same_tokens(quasar_config("cpu"), size, quasar_prompt(), TOKENS, gap, record, "cpu")


@pytest.mark.parametrize("size", [2, 4])
def test_a_draft_model_changes_no_token(size: int, native_library: str, record: Record) -> None:
    """Rank 0 drafts and announces, all ranks verify: the tokens of the same ranks without drafts, to the last."""
    plain, drafted = (
        on_ranks(size, jobs.chat_texts, quasar_config("cpu", drafted=wanted, sequences=1)(size), QUESTIONS, TOKENS)[0]
        for wanted in (False, True)
    )
    assert [text.token_ids for text in drafted] == [text.token_ids for text in plain]
    assert [text.finish for text in drafted] == [text.finish for text in plain]
    accepted = [sum(text.accepted) for text in drafted]
    record.metric("drafts accepted", sum(accepted), "tokens", better="higher", exact=False)
    assert min(accepted) > 0, f"drafts accepted in each reply: {accepted}; allowed: more than none"


@pytest.mark.parametrize("form", ["whole", "cut"])
def test_the_draft_sees_the_whole_vocabulary(form: str, tmp_path: Path, record: Record) -> None:
    """Embedding and head of rank 0's draft, out of a whole folder or one that is cut for two ranks: every row."""
    folder, cut = quasar_tiny_path(), tmp_path / "cut"
    if form == "cut":
        save_shards(folder, cut, 2)
    config = read_hybrid_config(folder)
    with Checkpoint(folder) as checkpoint:
        expected = load_tables(checkpoint, config)
    got = load_whole_tables(cut if form == "cut" else folder, config, 2)
    for name, table, wanted in zip(("embedding", "head"), got, expected, strict=True):
        assert table.dtype == torch.float16
        assert_bits_equal(table.numpy(), wanted.numpy(), name)
    assert (got[0] is got[1]) == config.tied

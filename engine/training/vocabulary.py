"""The small byte-level BPE of quasar-tiny, trained on its own text, in Hugging Face's files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.training.sizes import CHAT_TEMPLATE, IM_END, SPECIALS
from engine.training.text import Conversation


def train(texts: Iterable[str], size: int) -> Tokenizer:
    """Exactly ``size`` ids: the special tokens, the 256 bytes, merges. Raises ``ValueError`` for too little text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(name, special=True) for name in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} tokens; {size} are needed: give more text")
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """``tokenizer.json`` and what belongs beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "eos_token": SPECIALS[IM_END],
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def question_text(question: str) -> str:
    """A question in the chat template, up to the assistant's first word."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def encode(tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> list[tuple[list[int], list[int]]]:
    """Token ids of each question (as the engine would give it) and of its answer with the end token."""
    questions = tokenizer.encode_batch_fast([question_text(one.question) for one in conversations])
    answers = tokenizer.encode_batch_fast([one.answer for one in conversations])
    return [(question.ids, [*answer.ids, IM_END]) for question, answer in zip(questions, answers, strict=True)]

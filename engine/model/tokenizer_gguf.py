"""A tokenizer rebuilt from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from engine.errors import ModelFileError
from engine.model.tokenizer import ChatTokenizer, TokenizerParts, is_byte_level

T = TypeVar("T")

# GGUF token types: 1 normal, 3 control, 4 user defined.
_CONTROL = 3
_USER_DEFINED = 4

# Ends a text where ``eos`` ends a turn; a model may emit either.
_END_OF_TEXT = "<|endoftext|>"

# The split before the GPT-2 split, of the kind that the model was trained with, by `tokenizer.ggml.pre`.
_FIRST_SPLITS: Mapping[str, Callable[[], list[Any]]] = {
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True)],
    "gpt-2": list,
}


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> ChatTokenizer:
    """Rebuild the tokenizer; ``source`` names the file in errors.

    Raises ``ModelFileError`` for another kind of tokenizer and for metadata that is missing or contradicts itself.
    """
    read = _Metadata(metadata, source)
    kind, split = read.one("tokenizer.ggml.model", str), read.one("tokenizer.ggml.pre", str)
    if kind != "gpt2" or split not in _FIRST_SPLITS:
        raise ModelFileError(
            f"{source}: tokenizer {kind!r} with pre-tokenizer {split!r}; "
            f"allowed: 'gpt2' (byte-level BPE) with one of {sorted(_FIRST_SPLITS)}"
        )
    tokens, types = read.many("tokenizer.ggml.tokens", str), read.many("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise ModelFileError(f"{source}: {len(types)} token types for {len(tokens)} tokens")
    eos = read.one("tokenizer.ggml.eos_token_id", int)
    if not 0 <= eos < len(tokens):
        raise ModelFileError(f"{source}: eos_token_id is {eos}; the vocabulary has {len(tokens)} tokens")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [_pair(merge, vocabulary, source) for merge in read.many("tokenizer.ggml.merges", str)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*_FIRST_SPLITS[split](), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    control = frozenset(token_id for token_id, number in enumerate(types) if number == _CONTROL)
    literal = frozenset(token_id for token_id, number in enumerate(types) if number == _USER_DEFINED)
    for token_id, token in enumerate(tokens):
        if token_id not in control and token_id not in literal and not is_byte_level(token):
            raise ModelFileError(f"{source}: token {token_id} is {token!r}, which is no byte-level text")
    tokenizer.add_special_tokens(
        [AddedToken(tokens[token_id], special=token_id in control) for token_id in sorted(control | literal)]
    )
    return ChatTokenizer(
        TokenizerParts(
            tokenizer=tokenizer,
            tokens=tokens,
            control_ids=control,
            literal_ids=literal,
            eos_token_ids=frozenset({eos, vocabulary.get(_END_OF_TEXT, eos)}),
            eos_token=tokens[eos],
            chat_template=metadata.get("tokenizer.chat_template"),
            source=source,
        )
    )


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Reads what a tokenizer cannot do without."""

    values: Mapping[str, Any]
    source: str

    def one(self, key: str, kind: type[T]) -> T:
        value = self.values.get(key)
        if not isinstance(value, kind):
            raise ModelFileError(f"{self.source}: {key} is {value!r}; a tokenizer needs a {kind.__name__} there")
        return value

    def many(self, key: str, kind: type[T]) -> list[T]:
        values = self.one(key, list)
        if not all(isinstance(value, kind) for value in values):
            raise ModelFileError(f"{self.source}: {key} does not hold {kind.__name__} throughout; the file is damaged")
        return values


def _pair(merge: str, vocabulary: Mapping[str, int], source: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
        raise ModelFileError(f"{source}: merge {merge!r} does not join two tokens into a third; the file is damaged")
    return left, right

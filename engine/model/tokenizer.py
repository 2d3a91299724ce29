"""Text to tokens and back, rebuilt from the metadata of a GGUF file.

The model's vocabulary is a byte-level BPE: every token stands for bytes, and a character may need several tokens. Text
that is streamed therefore goes through ``TextStream``, which holds bytes back until they are whole characters.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import InputError, ModelFileError

T = TypeVar("T")

# GGUF token types: 1 normal, 3 control, 4 user defined. Control tokens have no text of their own.
_CONTROL = 3
_USER_DEFINED = 4

# Ends a text where ``eos`` ends a turn; a model may emit either.
_END_OF_TEXT = "<|endoftext|>"

# The GPT-2 split behind a first split of the kind that the model was trained with, by `tokenizer.ggml.pre`.
_FIRST_SPLITS: Mapping[str, Callable[[], list[Any]]] = {
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True)],
    "gpt-2": list,
}


class ChatTokenizer:
    """A byte-level BPE tokenizer with the model's chat template.

    ``eos_token_ids`` end a reply by nature: the end of the assistant's turn, and the end of a text.
    """

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        """Rebuild from GGUF metadata; ``source`` names the file in errors. Raises ``ModelFileError``."""
        read = _Metadata(metadata, source)
        kind, split = read.one("tokenizer.ggml.model", str), read.one("tokenizer.ggml.pre", str)
        if kind != "gpt2" or split not in _FIRST_SPLITS:
            raise ModelFileError(
                f"{source}: tokenizer {kind!r} with pre-tokenizer {split!r}; "
                f"allowed: 'gpt2' (byte-level BPE) with one of {sorted(_FIRST_SPLITS)}"
            )
        self._tokens = read.many("tokenizer.ggml.tokens", str)
        merges = read.many("tokenizer.ggml.merges", str)
        types = read.many("tokenizer.ggml.token_type", int)
        if len(types) != len(self._tokens):
            raise ModelFileError(f"{source}: {len(types)} token types for {len(self._tokens)} tokens")
        vocabulary = {token: token_id for token_id, token in enumerate(self._tokens)}
        self._tokenizer = Tokenizer(models.BPE(vocabulary, [_pair(merge, vocabulary, source) for merge in merges]))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*_FIRST_SPLITS[split](), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        named = [token_id for token_id, type_number in enumerate(types) if type_number in (_CONTROL, _USER_DEFINED)]
        self._tokenizer.add_special_tokens(
            [AddedToken(self._tokens[token_id], special=types[token_id] == _CONTROL) for token_id in named]
        )
        self._control_ids = frozenset(token_id for token_id in named if types[token_id] == _CONTROL)
        self._user_defined_ids = frozenset(named) - self._control_ids
        eos = read.one("tokenizer.ggml.eos_token_id", int)
        if not 0 <= eos < len(self._tokens):
            raise ModelFileError(f"{source}: eos_token_id is {eos}; the vocabulary has {len(self._tokens)} tokens")
        self.eos_token_ids = frozenset({eos, vocabulary.get(_END_OF_TEXT, eos)})
        self._eos_token = self._tokens[eos]
        self._template = metadata.get("tokenizer.chat_template")
        self._source = source

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self._tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; the names of control tokens in it become those tokens, as the template needs.

        A byte that the vocabulary has no token for is left out, as the model's own tokenizer does. SmolLM2 lacks a few
        control characters and the first bytes of planes that Unicode has not assigned.
        """
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of whole ``token_ids``; control tokens have none, bytes that are no UTF-8 become U+FFFD."""
        stream = TextStream(self)
        return stream.push(token_ids) + stream.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; none for a control token. Raises ``InputError`` for an unknown id."""
        if not 0 <= token_id < len(self._tokens):
            raise InputError(f"token id {token_id}; allowed: 0 to {len(self._tokens) - 1}")
        if token_id in self._control_ids:
            return b""
        if token_id in self._user_defined_ids:
            return self._tokens[token_id].encode()
        return bytes(_BYTE_OF_CHARACTER[character] for character in self._tokens[token_id])

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render ``messages`` (role, content) with the model's chat template, up to the assistant's first word.

        The template comes out of the model file, so it runs in jinja2's sandbox. Raises ``ModelFileError`` for a
        model without a template or a template that fails.
        """
        from jinja2 import TemplateError  # a fifth of a second, for chat prompts alone
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if self._template is None:
            raise ModelFileError(f"{self._source}: the model has no chat template; give the prompt as it is (--raw)")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            template = environment.from_string(self._template)
            return template.render(messages=list(messages), add_generation_prompt=True, eos_token=self._eos_token)
        except TemplateError as error:
            raise ModelFileError(f"{self._source}: the chat template failed: {error}") from error


class TextStream:
    """Turns tokens into text as they come, never half a character."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that ``token_ids`` complete."""
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, token_ids)))

    def finish(self) -> str:
        """What is left when no token follows: U+FFFD for a character that stayed incomplete, else nothing."""
        return self._decoder.decode(b"", final=True)


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


def _byte_characters() -> dict[str, int]:
    """The GPT-2 alphabet: each byte has a printable character of its own."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()

"""Text to tokens and back, for byte-level BPE vocabularies, with the model's chat template.

Every token stands for bytes, and a character may need several tokens. Text that is streamed therefore goes through
``TextStream``, which holds bytes back until they are whole characters.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from engine.errors import InputError, ModelFileError


@dataclass(frozen=True, slots=True, eq=False)
class TokenizerParts:
    """What a model's files say about its tokens. ``source`` names the file in errors."""

    tokenizer: Tokenizer
    tokens: Sequence[str]  # by id, in the byte-level alphabet
    control_ids: frozenset[int]  # no text of their own
    literal_ids: frozenset[int]  # added tokens whose text is what it says
    eos_token_ids: frozenset[int]  # end a reply by nature: of the assistant's turn, or of a text
    eos_token: str
    chat_template: str | None
    source: str


class ChatTokenizer:
    """A byte-level BPE tokenizer with the model's chat template."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self.eos_token_ids = parts.eos_token_ids

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self._parts.tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; the names of control tokens in it become those tokens, as the template needs.

        A byte that the vocabulary has no token for is left out, as the model's own tokenizer does; SmolLM2 lacks a few
        control characters and the first bytes of planes that Unicode has not assigned. Raises ``InputError`` for a
        string with lone surrogates (bytes that were no UTF-8).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is no Unicode text: {error}") from error
        return self._parts.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of whole ``token_ids``; control tokens have none, bytes that are no UTF-8 become U+FFFD."""
        stream = TextStream(self)
        return stream.push(token_ids) + stream.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; none for a control token. Raises ``InputError`` for an unknown id."""
        parts = self._parts
        if not 0 <= token_id < len(parts.tokens):
            raise InputError(f"token id {token_id}; allowed: 0 to {len(parts.tokens) - 1}")
        if token_id in parts.control_ids:
            return b""
        if token_id in parts.literal_ids:
            return parts.tokens[token_id].encode()
        return bytes(_BYTE_OF_CHARACTER[character] for character in parts.tokens[token_id])

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render ``messages`` (role, content) with the model's chat template, up to the assistant's first word.

        The template comes out of the model's files, so it runs in jinja2's sandbox. Raises ``ModelFileError`` for a
        model without a template or a template that fails.
        """
        from jinja2 import TemplateError  # a fifth of a second, for chat prompts alone
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        parts = self._parts
        if parts.chat_template is None:
            raise ModelFileError(f"{parts.source}: the model has no chat template; give the prompt as it is (--raw)")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            template = environment.from_string(parts.chat_template)
            return template.render(messages=list(messages), add_generation_prompt=True, eos_token=parts.eos_token)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:  # what its code may raise
            raise ModelFileError(f"{parts.source}: the chat template failed: {error}") from error


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


def is_byte_level(token: str) -> bool:
    """Whether every character of ``token`` stands for a byte."""
    return _CHARACTERS.issuperset(token)


def _byte_characters() -> dict[str, int]:
    """The GPT-2 alphabet: each byte has a printable character of its own."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_characters()
_CHARACTERS = frozenset(_BYTE_OF_CHARACTER)

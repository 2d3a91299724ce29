"""A tokenizer out of a Hugging Face model folder: ``tokenizer.json`` and what its neighbours say about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.errors import ModelFileError
from engine.model.tokenizer import ChatTokenizer, TokenizerParts, is_byte_level


def tokenizer_from_folder(folder: Path, vocab_size: int) -> ChatTokenizer:
    """Load the tokenizer of a model with ``vocab_size`` logits; ids that it pads its vocabulary with have no text.

    Raises ``ModelFileError`` for a tokenizer that is missing, damaged, not byte-level or larger than the model's.
    """
    path = folder / "tokenizer.json"
    described = _json(path)
    if (described.get("decoder") or {}).get("type") != "ByteLevel":
        raise ModelFileError(f"{path}: decoder {described.get('decoder')!r}; allowed: ByteLevel")
    # The library raises a bare Exception for a file that it cannot make sense of; that it is JSON is known by now.
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelFileError(f"{path}: not a tokenizer: {error}") from error
    added = tokenizer.get_added_tokens_decoder()
    control = frozenset(token_id for token_id, token in added.items() if token.special)
    literal = frozenset(added) - control
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if size > vocab_size:
        raise ModelFileError(
            f"{path}: the tokenizer has {size} ids, the model {vocab_size}; they do not belong together"
        )
    tokens = [tokenizer.id_to_token(token_id) or "" for token_id in range(vocab_size)]
    for token_id, token in enumerate(tokens):
        if token_id not in added and not is_byte_level(token):
            raise ModelFileError(f"{path}: token {token_id} is {token!r}, which is no byte-level text")
    settings = _json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    eos_ids = _eos_ids(folder, tokenizer, settings)
    if not eos_ids or not all(0 <= token_id < size for token_id in eos_ids):
        raise ModelFileError(f"{folder}: end tokens {sorted(eos_ids)}; allowed: at least one of the {size} ids")
    return ChatTokenizer(
        TokenizerParts(
            tokenizer=tokenizer,
            tokens=tokens,
            control_ids=control,
            literal_ids=literal,
            eos_token_ids=eos_ids,
            eos_token=tokens[min(eos_ids)],
            chat_template=_template(folder, settings),
            source=str(folder),
        )
    )


def _eos_ids(folder: Path, tokenizer: Tokenizer, settings: dict[str, Any]) -> frozenset[int]:
    """All that the files call an end: the configs' ids and the tokenizer's own token."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            stated = _json(folder / name).get("eos_token_id")
            several = stated if isinstance(stated, list) else [] if stated is None else [stated]
            if any(type(token_id) is not int for token_id in several):
                raise ModelFileError(
                    f"{folder / name}: eos_token_id is {stated!r}; allowed: a token id or a list of them"
                )
            ids.update(several)
    own = settings.get("eos_token")
    token = own.get("content") if isinstance(own, dict) else own
    if token is not None and not isinstance(token, str):
        raise ModelFileError(f"{folder / 'tokenizer_config.json'}: eos_token is {own!r}; allowed: the text of a token")
    token_id = tokenizer.token_to_id(token) if token else None
    return frozenset(ids if token_id is None else ids | {token_id})


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such file; the model folder is incomplete") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds {type(value).__name__}; allowed: a JSON object")
    return value

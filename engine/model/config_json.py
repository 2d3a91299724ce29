"""What every ``config.json`` of a Hugging Face style folder is read with: its architecture, then field after field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of one config with the file that they came from, so that an error can name it."""

    path: Path
    values: Mapping[str, Any]

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.values.get(key, default)
        if type(value) is not int or value < 1:
            raise ModelFileError(f"{self.path}: {key} is {value!r}; allowed: a whole number above 0")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise ModelFileError(f"{self.path}: {key} is {value!r}; allowed: a number above 0")
        return float(value)

    def multiple(self, key: str, value: int, other_key: str, other: int) -> None:
        """Refuse ``value`` unless ``other`` divides it."""
        if value % other:
            raise ModelFileError(f"{self.path}: {key} {value} over {other_key} {other}; allowed: a multiple")


def read_config_json(folder: Path, architectures: tuple[str, ...], hint: str = "") -> ConfigFields:
    """Read ``folder/config.json`` of one of ``architectures``, the fields that concern RoPE among the others.

    The architecture string decides what a checkpoint is. Raises ``ModelFileError`` for a file that is missing or no
    JSON object, and for any other architecture; ``hint`` is added to that message.
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(f"{folder}: no config.json; give a Hugging Face model folder or a .gguf file") from error
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path}: holds {type(raw).__name__}; a config is a JSON object")
    named = raw.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in architectures:
        raise ModelFileError(f"{path}: architectures {named!r}; allowed: one of {', '.join(architectures)}{hint}")
    text = raw.get("text_config", raw)
    # Newer configs keep what concerns RoPE in a record of its own.
    fields = ConfigFields(path, {**text, **(text.get("rope_parameters") or {})})
    if fields.values.get("rope_scaling") is not None or fields.values.get("rope_type", "default") != "default":
        seen = fields.values.get("rope_scaling") or fields.values.get("rope_type")
        raise ModelFileError(f"{path}: RoPE scaling {seen!r}; allowed: none")
    if fields.values.get("hidden_act", "silu") != "silu":
        raise ModelFileError(f"{path}: hidden_act {fields.values['hidden_act']!r}; allowed: 'silu'")
    return fields

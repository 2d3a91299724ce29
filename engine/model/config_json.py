"""What every ``config.json`` of a Hugging Face style folder is read with: its architecture, then field after field."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError

_MAX_SIZE = 2**31 - 1  # an index of a token, a channel or a position is an int32
_MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of one config with the file that they came from, so that an error can name it."""

    path: Path
    values: Mapping[str, Any]

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0 that tensors can be made of."""
        value = self.values.get(key, default)
        if type(value) is not int or not 1 <= value <= _MAX_SIZE:
            raise ModelFileError(f"{self.path}: {key} is {value!r}; allowed: a whole number from 1 to {_MAX_SIZE}")
        return value

    def layers(self) -> int:
        """How many layers there are: a list is made of them before any tensor is looked for."""
        count = self.size("num_hidden_layers")
        if count > _MAX_LAYERS:
            raise ModelFileError(f"{self.path}: num_hidden_layers is {count}; allowed: 1 to {_MAX_LAYERS}")
        return count

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
            raise ModelFileError(f"{self.path}: {key} is {value!r}; allowed: a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false, and no word that reads like one."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise ModelFileError(f"{self.path}: {key} is {value!r}; allowed: true or false")
        return value

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
    except (FileNotFoundError, NotADirectoryError) as error:
        wanted = f"give a Hugging Face model folder ({' or '.join(architectures)}) or, as the target, a .gguf file"
        missing = "no config.json" if folder.exists() else "no such folder"
        raise ModelFileError(f"{folder}: {missing}; {wanted}") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}; allowed: a file of JSON") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path}: holds {type(raw).__name__}; a config is a JSON object")
    named = raw.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in architectures:
        raise ModelFileError(f"{path}: architectures {named!r}; allowed: one of {', '.join(architectures)}{hint}")
    text = _object(path, "text_config", raw.get("text_config", raw))
    # Newer configs keep what concerns RoPE in a record of its own.
    rope = _object(path, "rope_parameters", text.get("rope_parameters") or {})
    fields = ConfigFields(path, {**text, **rope})
    if fields.values.get("rope_scaling") is not None or fields.values.get("rope_type", "default") != "default":
        seen = fields.values.get("rope_scaling") or fields.values.get("rope_type")
        raise ModelFileError(f"{path}: RoPE scaling {seen!r}; allowed: none")
    if fields.values.get("hidden_act", "silu") != "silu":
        raise ModelFileError(f"{path}: hidden_act {fields.values['hidden_act']!r}; allowed: 'silu'")
    return fields


def _object(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: {key} is {value!r}; allowed: a JSON object")
    return value

"""The arms and prompts as data: read, checked, frozen."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Arm:
    """How the engine is run while its rounds are timed. Temperature 0 is greedy."""

    name: str
    prompts: str
    threads: int
    draft: Literal["none", "lookup"]
    draft_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int


def load_arms(path: Path = HERE / "arms.toml") -> dict[str, Arm]:
    """Every arm by name. An unknown or missing key is an error."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
    defaults = tables.pop("defaults")
    return {name: _arm(name, {**defaults, **table}, path) for name, table in tables.items()}


def load_prompts(name: str, path: Path = HERE / "prompts.toml") -> dict[str, str]:
    """The prompts of one set, by their short names."""
    sets: dict[str, dict[str, str]] = tomllib.loads(path.read_text())
    if name not in sets:
        raise ValueError(f"{path.name} has no prompt set {name!r}; it has {', '.join(sets)}")
    return sets[name]


def _arm(name: str, values: dict[str, Any], path: Path) -> Arm:
    known = {field.name for field in fields(Arm)} - {"name"}
    if values.keys() != known:
        wrong = ", ".join(sorted(values.keys() ^ known))
        raise ValueError(f"{path.name} [{name}]: missing or unknown: {wrong}; an arm has {', '.join(sorted(known))}")
    return Arm(name=name, **values)

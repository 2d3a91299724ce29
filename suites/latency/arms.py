"""The arms and prompts as data: read, checked, frozen.

Arms of one model and device share a process, which costs seconds to start: it makes one engine after the other, each
for all the arms that want it. A repeat of each of them is still a process of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
ARMS_FILE = HERE / "arms.toml"


@dataclass(frozen=True, slots=True)
class Arm:
    """How the engine is run while its rounds are timed. Temperature 0 is greedy; ``model`` "" is the usual one.

    Paths (``model``, ``draft_model``) are relative to the repository's root. ``fp32_logits`` is the precision of the
    head, ``context_pipeline`` and ``context_kv_graph`` the draft context's options, as in ``EngineConfig``.
    ``control`` names the arm whose tokens this one must emit before its times may stand beside that arm's; "" where it
    is its own control. ``batch`` prompts are generated at a time. ``tp`` ranks share the model, on CUDA a GPU each.
    """

    name: str
    model: str
    prompts: str
    threads: int
    device: str
    draft: Literal["none", "lookup", "dflash2", "dflash2+lookup"]
    draft_model: str
    draft_tokens: int
    rejection: str
    kv_cache_dtype: str
    fp32_logits: bool
    context_pipeline: bool
    context_kv_graph: bool
    cuda_graphs: bool
    tp: int
    pad_heads: bool
    batch: int
    control: str
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int


def load_arms(path: Path = ARMS_FILE) -> dict[str, Arm]:
    """Every arm by name. An unknown or missing key is an error."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
    defaults = tables.pop("defaults")
    arms = {name: _arm(name, {**defaults, **table}, path) for name, table in tables.items()}
    for arm in arms.values():
        if arm.control and arm.control not in arms:
            raise ValueError(
                f"{path.name} [{arm.name}]: control {arm.control!r} is no arm; there are {', '.join(arms)}"
            )
    return arms


ENGINE_FIELDS = (
    "model",
    "threads",
    "device",
    "draft",
    "draft_model",
    "draft_tokens",
    "rejection",
    "kv_cache_dtype",
    "fp32_logits",
    "context_pipeline",
    "context_kv_graph",
    "cuda_graphs",
    "tp",
    "pad_heads",
)


def engine_of(arm: Arm) -> tuple[Any, ...]:
    """What the engine is made from; arms that agree in it can share one."""
    return tuple(getattr(arm, name) for name in ENGINE_FIELDS)


def groups(arms: Mapping[str, Arm]) -> tuple[tuple[str, ...], ...]:
    """The arms that share a process, in the order in which they stand."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, arm in arms.items():
        found.setdefault((arm.model, arm.device), []).append(name)
    return tuple(map(tuple, found.values()))


def gpus_needed(arm: Arm) -> int:
    """How many CUDA devices ``arm`` takes."""
    return 0 if arm.device == "cpu" else arm.tp


def runnable(arms: Mapping[str, Arm], gpus: int) -> dict[str, Arm]:
    """The arms for which a machine with ``gpus`` CUDA devices has enough of them."""
    return {name: arm for name, arm in arms.items() if gpus_needed(arm) <= gpus}


def by_engine(arms: Iterable[Arm]) -> list[list[Arm]]:
    """The arms of one process by the engine they want, in the order in which each is first wanted."""
    found: dict[tuple[Any, ...], list[Arm]] = {}
    for arm in arms:
        found.setdefault(engine_of(arm), []).append(arm)
    return list(found.values())


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

"""The included SM70 engine. `engine.llm.LLM.step` is the round loop; `python -m engine --help` is the command line.

Importing the package costs nothing: the names below load torch and the model code when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import EngineConfig as EngineConfig
    from engine.errors import InputError as InputError
    from engine.llm import LLM as LLM
    from engine.request import SamplingParams as SamplingParams
    from engine.result import GenerationResult as GenerationResult

_HOMES = {
    "LLM": "engine.llm",
    "EngineConfig": "engine.config",
    "GenerationResult": "engine.result",
    "InputError": "engine.errors",
    "SamplingParams": "engine.request",
}

__all__ = ["LLM", "EngineConfig", "GenerationResult", "InputError", "SamplingParams"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

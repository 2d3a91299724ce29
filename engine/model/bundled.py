"""Where the model that the repository carries lies: quasar-tiny, a hybrid target and its DFlash2 draft."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelFileError

QUASAR_TINY = "quasar-tiny"

_MODELS = Path(__file__).resolve().parents[2] / "models"


def quasar_tiny_path() -> Path:
    """Folder of the target: config, NVFP4 weights, tokenizer. Raises ``ModelFileError`` where it is not there."""
    return _part("target")


def quasar_tiny_draft_path() -> Path:
    """Folder of the DFlash2 draft. Raises ``ModelFileError`` where it is not there."""
    return _part("draft")


def _part(name: str) -> Path:
    folder = _MODELS / QUASAR_TINY / name
    if not (folder / "config.json").is_file():
        raise ModelFileError(
            f"no {QUASAR_TINY} {name} in {folder}; it is part of the repository: check it out, or train it with "
            "`python -m engine.training`"
        )
    return folder

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


def model_path(given: Path | None) -> Path | None:
    """What ``given`` means: the carried model where it is its name, otherwise the path that it is."""
    return quasar_tiny_path() if given is not None and str(given) == QUASAR_TINY else given


def draft_path(model: Path | None) -> Path | None:
    """The draft that was made for ``model``: the carried one, for the carried model alone."""
    is_carried = model is not None and model.resolve() == (_MODELS / QUASAR_TINY / "target").resolve()
    return quasar_tiny_draft_path() if is_carried else None


def _part(name: str) -> Path:
    folder = _MODELS / QUASAR_TINY / name
    if not (folder / "config.json").is_file():
        raise ModelFileError(
            f"no {QUASAR_TINY} {name} in {folder}; it is part of the repository: check it out, or train it with "
            "`python -m engine.training`"
        )
    return folder

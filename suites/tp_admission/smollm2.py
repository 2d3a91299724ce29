"""Where the real model is: SM70_MODEL, or the package that carries it."""

from __future__ import annotations

import os
from pathlib import Path

from engine.config import read_environment
from engine.errors import ModelFileError
from engine.model.weights_gguf import default_model_path
from suites.recording import Record


def smollm2_path(record: Record) -> Path:
    """The GGUF file; ends the case as NOT_RUN where there is none."""
    try:
        return read_environment(os.environ).model or default_model_path()
    except ModelFileError as missing:
        record.not_run(str(missing))

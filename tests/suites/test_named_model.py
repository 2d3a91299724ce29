"""A model that somebody names and that is not there ends a run before its first case."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.conftest import _refuse_an_absent_model


def test_a_model_that_is_not_there_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SM70_MODEL", str(tmp_path / "absent.gguf"))
    with pytest.raises(pytest.UsageError, match=r"absent\.gguf', where there is nothing; name a GGUF file"):
        _refuse_an_absent_model()
    monkeypatch.setenv("SM70_MODEL", str(tmp_path))
    _refuse_an_absent_model()
    monkeypatch.delenv("SM70_MODEL")
    _refuse_an_absent_model()

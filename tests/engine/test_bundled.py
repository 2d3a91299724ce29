from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.model import bundled


def test_the_name_stands_for_the_carried_model_and_its_draft() -> None:
    model = bundled.model_path(Path("quasar-tiny"))
    assert model == bundled.quasar_tiny_path()
    assert bundled.draft_path(model) == bundled.quasar_tiny_draft_path()


def test_other_paths_are_what_they_are(tmp_path: Path) -> None:
    assert bundled.model_path(None) is None
    assert bundled.model_path(tmp_path) == tmp_path
    assert bundled.draft_path(tmp_path) is None
    assert bundled.draft_path(None) is None


def test_together_they_stay_below_twelve_megabytes() -> None:
    files = [path for path in bundled.quasar_tiny_path().parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 12_000_000


def test_a_checkout_without_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "_MODELS", tmp_path)
    with pytest.raises(ModelFileError, match=r"no quasar-tiny target in .*; it is part of the repository"):
        bundled.quasar_tiny_path()

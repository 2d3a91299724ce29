"""Finding the native library, and refusing what is not it or is too old."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from native import loader


@pytest.fixture(autouse=True)
def fresh_loader() -> Iterator[None]:
    """The loader keeps one library a process; each case starts and ends without one."""
    loader.library.cache_clear()
    yield
    loader.library.cache_clear()


class _FakeLibrary:
    """Answers like a library whose only op is ``rms_norm_cpu`` at capability 2."""

    def sm70_capability(self, op: ctypes.c_char_p) -> int:
        return 2 if op.value == b"rms_norm_cpu" else 0


def test_the_usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(loader.LIBRARY_VARIABLE, raising=False)
    assert loader.library_path() == loader.DEFAULT_LIBRARY
    assert loader.DEFAULT_LIBRARY.parts[-3:] == ("artifacts", "native", "libsm70.so")


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(tmp_path / "other.so"))
    assert loader.library_path() == tmp_path / "other.so"


def test_a_missing_library_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(loader.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(loader, "DEFAULT_LIBRARY", tmp_path / "libsm70.so")
    with pytest.raises(loader.NativeLibraryError, match=r"^native library not built: run python -m native.build$"):
        loader.library()
    with pytest.raises(loader.NativeLibraryError, match="native library not built"):
        loader.library_sha256()


def test_a_missing_library_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(tmp_path / "gone.so"))
    with pytest.raises(loader.NativeLibraryError, match=r"SM70_NATIVE_LIBRARY=.*gone.so.*python -m native.build"):
        loader.library()


def test_what_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not an object file")
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(broken))
    with pytest.raises(loader.NativeLibraryError, match=r"cannot load .*broken.so.*rebuild: python -m native.build"):
        loader.library()


def test_somebody_elses_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(Path("/").glob("lib*/x86_64-linux-gnu/libm.so.6"), None)
    if other is None:
        pytest.skip("no libm.so.6 where it usually lies")
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(other))
    with pytest.raises(loader.NativeLibraryError, match="is not the native library: it has no sm70_capability"):
        loader.library()


def test_capabilities_are_numbers_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "library", _FakeLibrary)
    assert loader.capability("rms_norm_cpu") == 2
    assert loader.capability("no_such_op") == 0
    assert isinstance(loader.require("rms_norm_cpu", 2), _FakeLibrary)


@pytest.mark.parametrize(
    ("op", "number", "said"),
    [
        ("rms_norm_cpu", 3, "rms_norm_cpu needs capability 3, .* has capability 2: rebuild: python -m native.build"),
        ("linear_cpu", 1, "linear_cpu needs capability 1, .* does not have it: rebuild: python -m native.build"),
    ],
    ids=["too old", "absent"],
)
def test_a_library_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, op: str, number: int, said: str) -> None:
    monkeypatch.setattr(loader, "library", _FakeLibrary)
    with pytest.raises(loader.NativeLibraryError, match=said):
        loader.require(op, number)

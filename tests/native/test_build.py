"""The native build: what it makes, what it leaves alone, and what it says when it cannot."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from native import build, built, files, loader
from native.toolchain import BuildError, CudaPackages, find_compiler, find_cuda_packages

NO_COMPILER = "no C\\+\\+17 compiler: looked for CXX, c\\+\\+ .*g\\+\\+ .*clang\\+\\+ .*; install g\\+\\+ or set CXX"


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> str:
    """As if a CUDA package were missing: only the host half is built, which is quick."""
    reason = "package nvidia-cuda-nvrtc-cu12 is not installed"
    monkeypatch.setattr(build, "find_cuda_packages", lambda: reason)
    return reason


def test_device_images_are_built_embedded_and_recorded(native_tree: Path, tmp_path: Path) -> None:
    if not isinstance(find_cuda_packages(), CudaPackages):
        pytest.skip("the CUDA packages are not installed")
    said: list[str] = []
    record = build.build(tmp_path / "out", progress=said.append)
    library = tmp_path / "out" / built.LIBRARY_NAME
    assert record["library_sha256"] == files.sha256(library)
    assert record["source_digest"] == build.source_digest()
    assert [image["name"] for image in record["device_images"]] == ["rms_norm"]
    assert {row["kernel"] for row in record["kernels"]} == {"rms_norm_f16", "rms_norm_any_f16"}
    assert all(row["registers"] > 0 and row["max_threads"] == 256 for row in record["kernels"])
    assert record["capabilities"] == {"rms_norm_cuda": 1}
    assert "-ffp-contract=off" in record["flags"]["capability.cpp"]
    assert any(line.startswith("device image 1/1: rms_norm.cu") for line in said)
    cubin = (tmp_path / "out" / "device" / "rms_norm.cubin").read_bytes()
    assert cubin in library.read_bytes()
    assert b".target sm_70" in library.read_bytes()


def test_a_second_call_touches_nothing_and_is_quick(native_tree: Path, tmp_path: Path, no_packages: str) -> None:
    first = build.build(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    said: list[str] = []
    started = time.perf_counter()
    assert build.build(tmp_path, progress=said.append) == first
    assert time.perf_counter() - started < 2.0  # hashing, not compiling; 0.1 s on a quiet machine
    assert said == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_without_the_packages_the_host_library_is_built(native_tree: Path, tmp_path: Path, no_packages: str) -> None:
    said: list[str] = []
    record = build.build(tmp_path, progress=said.append)
    assert record["device_images"] == f"not built ({no_packages})"
    assert record["kernels"] == []
    assert f"device images: not built ({no_packages})" in said
    assert (tmp_path / built.LIBRARY_NAME).is_file()


def test_a_changed_source_is_rebuilt(native_tree: Path, tmp_path: Path, no_packages: str) -> None:
    first = build.build(tmp_path)
    source = native_tree / "cuda" / "made_launch.cpp"
    source.write_text(source.read_text().replace('"rms_norm_cuda", 1', '"rms_norm_cuda", 2'))
    second = build.build(tmp_path)
    assert second["source_digest"] != first["source_digest"]
    assert second["capabilities"] == {"rms_norm_cuda": 2}


def test_a_damaged_library_is_rebuilt(native_tree: Path, tmp_path: Path, no_packages: str) -> None:
    first = build.build(tmp_path)
    library = tmp_path / built.LIBRARY_NAME
    library.write_bytes(library.read_bytes()[:-1])
    assert build.build(tmp_path)["library_sha256"] == first["library_sha256"] == files.sha256(library)


def test_a_broken_source_keeps_the_library_in_place(native_tree: Path, tmp_path: Path, no_packages: str) -> None:
    first = build.build(tmp_path)
    (native_tree / "cpu" / "broken.cpp").write_text("int broken( {\n")
    with pytest.raises(BuildError, match=r"did not compile(?s:.*)broken.cpp"):
        build.build(tmp_path)
    assert files.sha256(tmp_path / built.LIBRARY_NAME) == first["library_sha256"]
    assert built.read_record(tmp_path) == first


def test_an_interruption_keeps_the_library_in_place(
    native_tree: Path, tmp_path: Path, no_packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.build(tmp_path)

    def interrupt(_library: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "inspect_library", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build.build(tmp_path, force=True)
    assert files.sha256(tmp_path / built.LIBRARY_NAME) == first["library_sha256"]
    assert not list(tmp_path.glob(".*.tmp"))


def test_an_interruption_between_library_and_record_is_noticed(
    native_tree: Path, tmp_path: Path, no_packages: str
) -> None:
    build.build(tmp_path)
    (tmp_path / built.RECORD_NAME).unlink()
    said: list[str] = []
    build.build(tmp_path, progress=said.append)
    assert said
    assert built.read_record(tmp_path) is not None


def test_a_full_disk_is_named_before_the_build(
    native_tree: Path, tmp_path: Path, no_packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=2**20))
    with pytest.raises(BuildError, match=r"no room in .*: 1 MiB free, the build needs 96 MiB"):
        build.build(tmp_path / "out")


def test_a_disk_that_fills_up_is_named(
    native_tree: Path, tmp_path: Path, no_packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build, "write_if_changed", full)
    with pytest.raises(BuildError, match="disk full while building in "):
        build.build(tmp_path / "out")
    assert not (tmp_path / "out" / built.LIBRARY_NAME).exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"cannot build in .*file"):
        build.build(tmp_path / "file" / "out")


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=NO_COMPILER):
        find_compiler()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("/no/such/compiler", "CXX='/no/such/compiler' is not an executable"),
        ("/bin/false", "CXX='/bin/false' failed on a C\\+\\+17 program: exit status 1"),
        ("g++ -O2", "holds 2 words; set CXX to one compiler path, without flags"),
    ],
    ids=["missing", "broken", "flags"],
)
def test_a_wrong_cxx_is_named(asked: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", asked)
    with pytest.raises(BuildError, match=said):
        find_compiler()


def test_the_compiler_that_cxx_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    path = shutil.which("c++")
    if path is None:
        pytest.skip("no c++ here")
    monkeypatch.setenv("CXX", path)
    compiler = find_compiler()
    assert (compiler.path, compiler.source) == (path, "CXX")


def test_command_line(native_tree: Path, tmp_path: Path, no_packages: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert build.main(["--out", str(out), "--print-record"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["library_sha256"] == files.sha256(out / built.LIBRARY_NAME)
    assert "native: host library: compile and link" in printed.err
    (native_tree / "cpu" / "broken.cpp").write_text("#error planted\n")
    assert build.main(["--out", str(out)]) == 1
    assert "planted" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        build.main(["--jobs", "0"])
    assert usage.value.code == 2


def test_an_interrupted_command_says_what_is_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "build", interrupt)
    assert build.main(["--out", str(tmp_path)]) == 130
    assert "the library in place is the one from before" in capsys.readouterr().err


def test_the_built_library_answers_the_loader(
    native_tree: Path, tmp_path: Path, no_packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.build(tmp_path)
    monkeypatch.setenv(loader.LIBRARY_VARIABLE, str(tmp_path / built.LIBRARY_NAME))
    loader.library.cache_clear()
    try:
        assert loader.capability("rms_norm_cuda") == 1
        assert loader.library_sha256() == files.sha256(tmp_path / built.LIBRARY_NAME)
    finally:
        loader.library.cache_clear()

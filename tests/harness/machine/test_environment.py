from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.machine import environment, gitstate, gpus
from harness.machine.gpus import Gpu
from tests.harness.conftest import harness_environment

V100 = Gpu(0, "GPU-aaa", "Tesla V100-SXM2-32GB", (7, 0), 32510)
H200 = Gpu(0, "GPU-bbb", "NVIDIA H200", (9, 0), 143771)


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, check=True, env=harness_environment(), capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("cards", "key"),
    [
        ([V100] * 4, "sm70-v100sxm2-32g-x4"),
        ([Gpu(0, "u", "Tesla V100-PCIE-16GB", (7, 0), 16160)], "sm70-v100pcie-16g-x1"),
        ([H200], "sm90-h200-ptx70-x1"),
        ([Gpu(0, "u", "Tesla T4", (7, 5), 15360)], "sm75-t4-ptx70-x1"),
        ([Gpu(0, "u", "NVIDIA A100-SXM4-80GB", (8, 0), 81920)] * 2, "sm80-a100sxm4-80g-ptx70-x2"),
        ([Gpu(0, "u", "NVIDIA GeForce RTX 4090", (8, 9), 24564)], "sm89-rtx4090-ptx70-x1"),
    ],
)
def test_device_keys(cards: list[Gpu], key: str) -> None:
    assert environment.device_key(cards, "") == key


def test_no_gpu_and_an_unreadable_gpu_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert environment.device_key([], "no NVIDIA driver on this machine") == "cpu-x86-64"
    assert environment.device_key([], "a driver is loaded, but NVML: version mismatch") == "unknown-gpu-x86-64"


def test_visible_devices_are_chosen_as_cuda_does() -> None:
    cards = [Gpu(i, f"GPU-{i}{i}", "x", (7, 0), 1) for i in range(4)]
    assert gpus.choose(cards, None) == cards
    assert gpus.choose(cards, "2,0") == [cards[2], cards[0]]
    assert gpus.choose(cards, "GPU-33") == [cards[3]]
    assert gpus.choose(cards, "1,-1,2") == [cards[1]]
    assert gpus.choose(cards, "1,1") == [cards[1]]
    assert gpus.choose(cards, "") == []
    assert gpus.choose(cards, "9") == []


def test_smi_rows() -> None:
    rows = [f"{index}, GPU-{index}b, Tesla V100-SXM2-32GB, 7.0, 32510, 580.95.05" for index in range(2)]
    cards, facts = gpus.parse_smi("\n".join(rows))
    assert [card.capability for card in cards] == [(7, 0), (7, 0)]
    assert facts == {"gpu.driver": "580.95.05"}
    assert gpus.parse_smi("Failed to initialize NVML\n")[1]["gpu.reason"].startswith("a driver is loaded")


def test_only_listed_variables_are_read() -> None:
    environ = {
        "VLLM_SM70_DFLASH2_FP32_LOGITS": "1",
        "OMP_NUM_THREADS": "2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "GITHUB_TOKEN": "ghp_x",
        "VLLM_API_KEY": "hunter2",
        "NCCL_SECRET": "hunter2",
        "PATH": "/bin",
        "SM70_LONG": "x" * 1000,
    }
    facts = environment.variables(environ)
    assert set(facts) == {"env.VLLM_SM70_DFLASH2_FP32_LOGITS", "env.OMP_NUM_THREADS", "env.SM70_LONG"}
    assert facts["env.SM70_LONG"].endswith("... (1000 characters)")


def test_this_machine(tmp_path: Path) -> None:
    facts = environment.write_environment(tmp_path / "environment.json", tmp_path)
    assert json.loads((tmp_path / "environment.json").read_text()) == facts
    assert facts["device_key"]
    assert facts["cpu.model"]
    assert facts["git.commit"] == "unknown"
    assert facts["git.reason"] == "this folder is no git work tree"
    assert facts["native.reason"].startswith("no library at libsm70.so")
    assert list(facts) == sorted(facts)


@pytest.mark.parametrize(
    ("cpuinfo", "signature"),
    [
        ("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\n", "family 25 model 1 stepping 1"),
        ("cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\n", "family 26 model 2 stepping 1"),
        ("CPU architecture: 8\nCPU part\t: 0xd40\nCPU revision\t: 1\n", "family 8 model 0xd40 stepping 1"),
        ("model name\t: something else\n", None),
    ],
)
def test_generations_of_one_model_name_differ(
    cpuinfo: str, signature: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_read", lambda path: cpuinfo if path == "/proc/cpuinfo" else "")
    assert environment.cpu_facts().get("cpu.signature") == signature


def test_native_library_and_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SM70_NATIVE_LIBRARY", raising=False)
    folder = tmp_path / "artifacts" / "native"
    folder.mkdir(parents=True)
    (folder / "libsm70.so").write_bytes(b"library")
    digest = environment.native_facts(tmp_path)["native.sha256"]
    assert environment.native_facts(tmp_path)["native.reason"] == "no build.json beside the library"
    record = {"library_sha256": digest, "compiler": {"version": "c++ 12"}}
    (folder / "build.json").write_text(json.dumps(record))
    assert environment.native_facts(tmp_path) == {"native.sha256": digest, "native.compiler": "c++ 12"}
    (folder / "libsm70.so").write_bytes(b"changed")
    assert "was built or changed since" in environment.native_facts(tmp_path)["native.reason"]
    (folder / "build.json").write_text("{")
    assert environment.native_facts(tmp_path)["native.reason"].startswith("build.json cannot be read")


def test_git_states(project: Path) -> None:
    clean = gitstate.git_facts(project / "suites")
    assert clean == {"git.commit": git(project, "rev-parse", "HEAD"), "git.detached": "no", "git.dirty": "no"}
    git(project, "checkout", "-q", "--detach")
    assert gitstate.git_facts(project)["git.detached"] == "yes"
    (project / "new.txt").write_text("one")
    first = gitstate.git_facts(project)
    assert first["git.dirty"] == "yes"
    (project / "new.txt").write_text("two")
    second = gitstate.git_facts(project)
    assert first["git.dirty_digest"] != second["git.dirty_digest"]
    (project / "new.txt").write_text("one")
    assert gitstate.git_facts(project) == first
    (project / "new.txt").unlink()
    (project / "suites" / "green" / "test_green.py").write_text("changed")
    assert gitstate.git_facts(project)["git.dirty"] == "yes"


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert gitstate.git_facts(tmp_path)["git.reason"] == "the repository has no commit yet"


def test_a_work_tree_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git refuses it; we say so and do not override it."""
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    facts = gitstate.git_facts(tmp_path)
    assert facts["git.commit"] == "unknown"
    assert "safe.directory" in facts["git.reason"]


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gitstate.git_facts(tmp_path)["git.commit"] == "unknown"
    assert shutil.which("git") is None


def test_submodules_are_recorded(project: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "file").write_text("x")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "inner")
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "third_party/inner")
    git(project, "commit", "-qm", "submodule")
    facts = gitstate.git_facts(project)
    assert facts["git.submodule.third_party/inner"] == git(inner, "rev-parse", "HEAD")
    assert facts["git.dirty"] == "no"
    (project / "third_party" / "inner" / "file").write_text("y")
    assert gitstate.git_facts(project)["git.dirty"] == "yes"

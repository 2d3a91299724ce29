"""Ranks that somebody else starts, and interrupts: real processes, one reply, one exit code."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suites.checkpoints.hybrid import config_with_heads, random_tensors, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180


@pytest.fixture(scope="module")
def reply(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of a reply over two ranks that does not end by itself."""
    config = config_with_heads(2) | {"max_position_embeddings": 16384}
    folder = write_checkpoint(tmp_path_factory.mktemp("cli"), random_tensors(times_heads=2), config)
    never_ends = ["--ban-ids", str(config["eos_token_id"])]
    return ["-m", "engine", "--tp", "2", "--threads", "1", *never_ends, "--model", str(folder), "abc"]


def test_torchrun_gives_the_reply_once(reply: list[str]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *reply, "--max-tokens", "5"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("5 tokens") == 1


@pytest.mark.parametrize("everyone", [True, False], ids=["terminal", "launcher-alone"])
def test_an_interrupt_shows_the_figures_so_far(reply: list[str], everyone: bool) -> None:
    command = [sys.executable, *reply, "--max-tokens", "16000"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        run.stdout.read(1)
        (os.killpg if everyone else os.kill)(run.pid, signal.SIGINT)
        said, errors = run.communicate(timeout=SECONDS)
    assert (run.returncode, errors) == (130, "")
    assert said.rstrip().endswith("aborted")


@pytest.mark.parametrize(
    ("out", "code", "said"), [("| head -c 1", 0, ""), ("> /dev/full", 1, "error: the output cannot be written: ")]
)
def test_output_that_goes_nowhere_ends_every_rank(reply: list[str], out: str, code: int, said: str) -> None:
    command = f"{shlex.join([sys.executable, *reply, '--max-tokens', '16000'])} {out}; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert (ended.returncode, ended.stderr[: len(said) or None]) == (code, said)
    assert len(ended.stderr.splitlines()) == bool(said)


def test_an_interrupt_while_the_ranks_start_is_one_line(reply: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, *reply],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        while len(children.read_text().split()) < 2:  # the fork server, which imports the model code
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=SECONDS)
    assert (run.returncode, errors) == (130, "\ninterrupted before the first token\n")

"""Ranks started by the command line: what cannot be used is one message and exit code 2; a killed rank ends the run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli import main
from engine.errors import InputError
from engine.model.saved_shards import rank_file, save_shards
from engine.parallel.launch import END_SECONDS, HOST, RankFailed
from suites.checkpoints.hybrid import CONFIG, config_with_heads, random_tensors, write_checkpoint
from suites.recording import Record
from suites.tp_admission import jobs
from suites.tp_admission.on_ranks import on_ranks
from suites.tp_admission.smollm2 import smollm2_path

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0  # torch is imported and a small model loaded, on a machine that may be busy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid model with heads for four ranks, and room for a reply that is not over before a rank is killed."""
    config = config_with_heads(2) | {"max_position_embeddings": 16384}
    return write_checkpoint(tmp_path_factory.mktemp("launch"), random_tensors(times_heads=2), config)


def _refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that the command says before it leaves with exit code 2."""
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, "--threads", "1", "--max-tokens", "2", "abc"])
    said = capfd.readouterr()
    assert (leaving.value.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("tp", ["0", "3", "1024"])
def test_tp_that_is_no_power_of_two(tp: str, capfd: pytest.CaptureFixture[str], record: Record) -> None:
    record.group("bad input")
    assert f"tp is {tp}; allowed: 1, 2, 4 and further powers of two" in _refusal(capfd, "--tp", tp)


def test_a_port_in_use(folder: Path, capfd: pytest.CaptureFixture[str], record: Record) -> None:
    record.group("bad input")
    line = _refusal(capfd, "--tp", "2", "--port", "99999", "--model", str(folder))
    assert "port is 99999; allowed: 1 to 65535, or 0 for a free one" in line
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        line = _refusal(capfd, "--tp", "2", "--port", str(port), "--model", str(folder))
    assert f"port {port} of {HOST} cannot be used: Address already in use" in line


def test_another_world_size(
    folder: Path, capfd: pytest.CaptureFixture[str], record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.group("bad input")
    monkeypatch.setenv("WORLD_SIZE", "4")
    line = _refusal(capfd, "--tp", "2", "--model", str(folder))
    assert "WORLD_SIZE is 4 and --tp asks for 2 ranks" in line


@pytest.mark.parametrize("tp", ["2", "4"])
def test_heads_that_tp_does_not_divide(tp: str, capfd: pytest.CaptureFixture[str], record: Record) -> None:
    record.group("bad input")
    model = smollm2_path(record)
    line = _refusal(capfd, "--tp", tp, "--model", str(model))
    assert f"9 query heads over 3 KV heads at TP {tp}: {tp} does not divide 3" in line
    assert "--pad-heads (groups of zero heads up to 4, 33 % more attention)" in line


def test_recurrent_heads_that_tp_does_not_divide(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], record: Record
) -> None:
    """Two key heads of Gated DeltaNet cannot be padded: a state of zeros would be one all the same."""
    record.group("bad input")
    config = CONFIG | {"num_key_value_heads": 4}
    model = write_checkpoint(tmp_path / "model", random_tensors(), config)
    line = _refusal(capfd, "--tp", "4", "--model", str(model))
    assert "gdn in at TP 4: tp divides the heads of every section: saw heads (2, 2, 6, 6, 6, 6)" in line


def test_a_checkpoint_saved_for_another_layout(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], record: Record
) -> None:
    record.group("bad input")
    save_shards(folder, tmp_path / "cut", 2)
    line = _refusal(capfd, "--tp", "4", "--model", str(tmp_path / "cut"))
    assert "was saved for TP 2, this run is TP 4; allowed: --tp 2, or the folder that it was cut from" in line


def test_a_missing_shard(folder: Path, tmp_path: Path, record: Record) -> None:
    """Rank 1 alone misses its file. In a process of its own, so that whatever a rank says would be seen as well."""
    record.group("bad input")
    save_shards(folder, tmp_path / "cut", 2)
    missing = tmp_path / "cut" / rank_file(1, 2)
    missing.unlink()
    command = [sys.executable, "-m", "engine", "--tp", "2", "--threads", "1", "--model", str(tmp_path / "cut"), "abc"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_SECONDS)
    said = "a shard is missing: python -m engine split makes all of them"
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"error: rank 1: {missing}: no such file; {said}\n"


@pytest.mark.parametrize(
    ("ranks", "message"),
    [((0, 1), "said by rank 0"), ((1,), "rank 1: said by rank 1")],
    ids=["all-ranks", "one-rank"],
)
def test_what_ranks_cannot_use_is_said_once(ranks: tuple[int, ...], message: str, record: Record) -> None:
    record.group("bad input")
    with pytest.raises(InputError) as refused:
        on_ranks(2, jobs.refuse, ranks, InputError)
    assert str(refused.value) == message


def test_an_error_of_ours_keeps_its_traceback_and_its_rank(record: Record) -> None:
    """Rank 0 fails too, in the collective that rank 1 left; the rank that began it is in the message."""
    record.group("killed rank")
    with pytest.raises(RankFailed, match="KeyError: 'said by rank 1'") as failed:
        on_ranks(2, jobs.refuse, (1,), KeyError)
    assert failed.value.rank == 1


@pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (4, 0), (4, 3)])
def test_a_killed_rank_ends_the_run(size: int, victim: int, tmp_path: Path, record: Record) -> None:
    """A real SIGKILL while all ranks add up numbers: the rank is named, and no process of a rank is left."""
    record.group("killed rank")
    began: list[float] = []

    def kill() -> None:
        while len(list(tmp_path.glob("*.at-work"))) < size:
            time.sleep(0.01)
        began.append(time.monotonic())
        os.kill(int((tmp_path / f"{victim}.at-work").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(RankFailed, match=f"rank {victim} was killed by SIGKILL; the run was ended") as failed:
        on_ranks(size, jobs.add_without_end, tmp_path)
    seconds = time.monotonic() - began[0]
    assert failed.value.rank == victim
    assert seconds < END_SECONDS, f"{seconds:.1f} s until the run ended; allowed: {END_SECONDS}"
    left = [path.read_text() for path in tmp_path.iterdir() if Path(f"/proc/{path.read_text()}").exists()]
    assert left == []
    record.metric("seconds from the kill to the end", seconds, "s", better="lower", exact=False)


def test_a_killed_rank_ends_the_command(folder: Path, record: Record) -> None:
    """The same in the middle of a reply: one line that names the rank, exit code 1, nobody of the session left."""
    record.group("killed rank")
    with _running(folder, 4) as (run, ranks):
        began = time.monotonic()
        os.kill(ranks[3], signal.SIGKILL)
        _, said = run.communicate(timeout=START_SECONDS)
        seconds = time.monotonic() - began
        assert run.returncode == 1
        assert "error: rank 3 was killed by SIGKILL; the run was ended" in said
        assert seconds < END_SECONDS, f"{seconds:.1f} s until the command ended; allowed: {END_SECONDS}"
        assert _left_of(run) == {}


def test_a_killed_launcher_leaves_no_rank_behind(folder: Path, record: Record) -> None:
    record.group("killed rank")
    with _running(folder, 2) as (run, _):
        began = time.monotonic()
        os.kill(run.pid, signal.SIGKILL)
        run.wait(START_SECONDS)
        while left := _left_of(run):
            seconds = time.monotonic() - began
            assert seconds < END_SECONDS, f"{left} run {seconds:.1f} s after their launcher was killed"
            time.sleep(0.05)


@contextlib.contextmanager
def _running(folder: Path, size: int) -> Iterator[tuple[subprocess.Popen[str], dict[int, int]]]:
    """The command line in a session of its own, in the middle of a long reply, and the process id of each rank."""
    command = [sys.executable, "-m", "engine", "--tp", str(size), "--model", str(folder), "--threads", "1"]
    with subprocess.Popen(
        [*command, "--max-tokens", "16000", "--ban-ids", str(CONFIG["eos_token_id"]), "abc"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.read(1), run.communicate()[1]  # the first token came: all ranks are at work
            ranks = {int(name.split()[1]): pid for pid, name in _left_of(run).items() if name.startswith("rank ")}
            assert sorted(ranks) == list(range(size))
            yield run, ranks
        finally:
            for pid in _left_of(run):
                os.kill(pid, signal.SIGKILL)


def _left_of(run: subprocess.Popen[str]) -> dict[int, str]:
    """Processes of the run's session that still live, with what they call themselves; zombies are dead."""
    left = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended while we looked
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                state, _, _, session = rest.split()[:4]
                if int(session) == run.pid and state != "Z":
                    left[int(entry.name)] = name
    return left

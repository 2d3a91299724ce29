"""The diagnostic commands as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.cli import main
from suites.checkpoints.hybrid import random_tensors, write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("hybrid"), random_tensors())


def test_replay_says_that_all_is_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "ab cd", "--model", str(folder), "--rounds", "3", "--draft-tokens", "4"]) == 0
    said = capsys.readouterr().out
    assert "3 rounds of 4 drafts, accepted" in said
    assert "commit and continue equals replay from scratch: 27 tensors, bit for bit" in said


def test_replay_as_a_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "ab", "--model", str(folder), "--rounds", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["failed_round"] is None
    assert len(record["accepted"]) == record["rounds"] == 2


def test_a_difference_is_exit_code_1(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.diagnostics import replay
    from engine.diagnostics.snapshot import Difference

    found = Difference("layer 2 recurrent state", (1, 3), 0.5, 0.25, 4, 9, 0.25)
    monkeypatch.setattr(replay, "first_difference", lambda one, other: found)
    assert main(["replay", "ab", "--model", str(folder), "--rounds", "2"]) == 1
    said = capsys.readouterr().out
    assert "round 0 differs; layer 2 recurrent state: 4 of 9 elements differ, first at [1, 3]: 0.5 against 0.25" in said


def test_drift_names_the_first_tensor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["drift", "ab cd", "--model", str(folder), "--tokens", "4", "--switch", "kv-cache-dtype=float16"]
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert "9 forced tokens, two processes, with kv-cache-dtype=float16" in said
    assert "first difference: layer 3 keys" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drift", "--switch", "speed=9"], "switch 'speed=9'; allowed: NAME=VALUE with NAME of kv_cache_dtype"),
        (["drift", "--switch", "threads=x"], "switch 'threads=x'; allowed: threads with a whole number"),
        (["drift", "--model", "/no/such.gguf"], "error: /no/such.gguf: no such file; give a .gguf file"),
        (["drift", "--tokens", "0"], "tokens is 0; allowed: 1 or more"),
        (["drift", "--temperature", "nan"], "temperature is nan; allowed: 0 (greedy) or a finite number above 0"),
        (["replay", "--rounds", "0"], "rounds is 0; allowed: 1 or more"),
        (["replay", "--draft-tokens", "0"], "draft-tokens is 0; allowed: 1 or more"),
        (["admission", "--tp", "0"], "tp is 0; allowed: 1, 2, 4 and further powers of two"),
    ],
)
def test_what_means_nothing_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    model = [] if arguments[0] == "admission" or "--model" in arguments else ["--model", str(folder)]
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, *model])
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err

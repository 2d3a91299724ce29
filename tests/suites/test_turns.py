"""Workers that take turns: real ones with a small random model, and the pipe's rules with none."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.llm import LLM
from harness.ab.repeat import Launch
from harness.ab.together import run_together
from suites.checkpoints.llama import LlamaSizes, write_random_llama
from suites.latency import turns
from suites.latency.repeats import ROOT
from suites.latency.turns import STEPS, Turns


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_the_turn_is_handed_on_behind_every_second_step() -> None:
    (come, hand), (seen, go) = os.pipe(), os.pipe()
    one = Turns(come, go, Clock())
    os.write(hand, b"tttt")
    for _ in range(2 * STEPS + 1):
        one.next()
    assert [begin for begin, _ in one.waits] == [1.0, 3.0, 5.0]
    assert os.read(seen, 10) == b"tt"  # the first turn came from outside, two were handed on
    os.close(hand)
    one.leave()
    assert os.read(seen, 10) == b"t"
    assert os.read(seen, 10) == b""  # closed: the other side sees the end
    os.close(seen)


@pytest.mark.parametrize("gone", ["before", "while it has the turn"])
def test_a_side_whose_other_side_is_gone_goes_on_alone(gone: str) -> None:
    (come, hand), (seen, go) = os.pipe(), os.pipe()
    one = Turns(come, go, Clock())
    if gone != "before":
        os.write(hand, b"t")
        one.next()
    os.close(hand)
    os.close(seen)
    for _ in range(5):
        one.next()
    assert one.alone == (5 if gone == "before" else 5 - (STEPS - 1))
    one.leave()


def test_what_is_queued_on_a_card_ends_inside_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every step, the first of a process too: the card is waited for, then the turn goes on."""
    done: list[str] = []
    monkeypatch.setattr(LLM, "step", lambda self: done.append("step"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("card"))
    (come, hand), (seen, go) = os.pipe(), os.pipe()
    one = Turns(come, go)
    monkeypatch.setattr(one, "next", lambda: done.append("turn"))
    turns.plant(one)
    for _ in range(2):
        LLM.step(None)  # type: ignore[arg-type]
    assert done == ["card", "turn", "step"] * 2
    for descriptor in (come, hand, seen, go):
        os.close(descriptor)


@pytest.mark.parametrize("text", ["3", "3,x", "1,2,3", "-1,2"])
def test_descriptors_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="give two file descriptors, IN,OUT"):
        turns.parse(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = LlamaSizes(layers=1, hidden=128, inner=256)
    return write_random_llama(tmp_path_factory.mktemp("model") / "small.gguf", sizes)


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The arms of the power study, cut short."""
    file = tmp_path_factory.mktemp("arms") / "arms.toml"
    text = (ROOT / "suites" / "latency" / "power.toml").read_text()
    assert "max_tokens = 400" in text
    file.write_text(text.replace("max_tokens = 400", "max_tokens = 12"))
    return str(file)


@pytest.fixture
def environment(model: Path) -> dict[str, str]:
    return {**os.environ, "SM70_MODEL": str(model), "OMP_NUM_THREADS": "1"}


def test_two_workers_take_turns_and_say_what_one_alone_says(environment: dict[str, str], arms: str) -> None:
    worker = (sys.executable, "-m", "suites.latency.worker", "--arms-file", arms)
    launches = [Launch(side, ROOT, worker, environment, timeout_s=120) for side in ("base", "head")]
    made = [repeats["small"] for _, repeats in run_together(launches, ["small"], ["001", "001"])]
    alone = subprocess.run([*worker, "small"], cwd=ROOT, env=environment, capture_output=True, check=True)
    tokens = [run["token_ids"] for run in json.loads(alone.stdout)[0]["runs"]]
    assert all([list(prompt.token_ids) for prompt in one.prompts] == tokens for one in made)
    assert all(one.turns >= len(one.rounds) / STEPS for one in made)
    assert [one.alone for one in made] == [0, 0]
    # On the host's clock, no more than a turn of one side passes without a step of the other.
    order = sorted((at, side) for side, one in enumerate(made) for prompt in one.prompts for at in prompt.at)
    assert max(len(list(same)) for _, same in itertools.groupby(order, lambda step: step[1])) <= STEPS


def test_forks_of_a_server_take_turns_and_a_failure_is_told(environment: dict[str, str], arms: str) -> None:
    command = [sys.executable, "-m", "suites.latency.serve", "--arms-file", arms]
    asked: list[dict[str, Any]] = [
        {"arms": ["small"], "delays": [0]},
        {"arms": ["small"], "delays": [0, 5]},
        {"arms": ["small"], "delays": [0, "x"]},
    ]
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    said = subprocess.run(command, cwd=ROOT, env=environment, input=lines, capture_output=True, text=True, check=True)
    one, two, broken = map(json.loads, said.stdout.splitlines())
    assert "turns" not in one[0][0]
    assert [answer[0]["turns"]["alone"] for answer in two] == [0, 0]
    assert [answer[0]["unfit"] for answer in two][1] == ["planted delay: 5 % of each round"]
    assert broken[1] == {"failed": 1}
    assert broken[0][0]["turns"]["alone"] > 0  # the other went on alone

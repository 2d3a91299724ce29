"""Two processes that take turns: what one that dies, ends early or takes no turns does to the other."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.ab.errors import RepeatError
from harness.ab.repeat import Launch, parse
from harness.ab.together import run_together
from harness.ab.waits import Waits

SIDE = """\
import json, os, sys, time
come, go = map(int, sys.argv[sys.argv.index("--turns") + 1].split(","))
waits, stamps, mine = [], [], False
for step in range({steps}):
    began = time.perf_counter()
    if mine:
        try:
            os.write(go, b"t")
        except BrokenPipeError:
            come = os.open("/dev/null", os.O_RDONLY)
    mine = bool(os.read(come, 1))
    waits.append([began, time.perf_counter()])
    if step == {dies_at}:
        os.kill(os.getpid(), 9)
    time.sleep(0.002)
    stamps.append(time.perf_counter())
run = {{"prompt": "p", "token_ids": list(range({steps})), "finish": "stop", "arrival_ts": waits[0][0] - 0.001,
       "token_ts": stamps, "emitted": [1] * ({steps} - 1)}}
turns = {{"turns": {{"steps": 1, "waits": waits, "alone": 0}}}} if {says} else {{}}
print(json.dumps([{{"arm": "fast", "runs": [run], "unfit": [], **turns}}]))
"""


def side(name: str, folder: Path, steps: int = 6, dies_at: int = -1, says: bool = True) -> Launch:
    code = SIDE.format(steps=steps, dies_at=dies_at, says=says)
    return Launch(name, folder, (sys.executable, "-S", "-c", code), dict(os.environ), timeout_s=30.0)


def test_only_one_of_both_runs_at_a_time(tmp_path: Path) -> None:
    made = run_together([side("base", tmp_path), side("head", tmp_path)], ["fast"], ["001", "001"])
    base, head = (repeats["fast"].prompts[0] for _, repeats in made)
    order = sorted([(at, "b") for at in base.at] + [(at, "h") for at in head.at])
    assert "".join(name for _, name in order) == "bh" * 6
    # On its own clock a round is a step long; on the host's it has the other side's step in it.
    assert all(2 <= one < two for one, two in zip(base.round_ms, _host_ms(base.at), strict=True))
    assert made[0][1]["fast"].turns == 6


def _host_ms(at: tuple[float, ...]) -> list[float]:
    return [1000 * (later - sooner) for sooner, later in itertools.pairwise(at)]


@pytest.mark.parametrize("died", ["base", "head"])
def test_one_that_dies_lets_the_other_go_on_and_is_named(died: str, tmp_path: Path) -> None:
    launches = [side(name, tmp_path, dies_at=3 if name == died else -1) for name in ("base", "head")]
    with pytest.raises(RepeatError, match=rf"repeat 004 of {died}: (?s:.*) died of SIGKILL") as error:
        run_together(launches, ["fast"], ["004", "004"])
    assert error.value.crashed


def test_one_that_has_less_to_do_lets_the_other_finish_alone(tmp_path: Path) -> None:
    made = run_together([side("base", tmp_path, steps=3), side("head", tmp_path)], ["fast"], ["001", "001"])
    assert [len(repeats["fast"].rounds) for _, repeats in made] == [2, 5]


def test_one_that_took_no_turns_or_cannot_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepeatError, match="repeat 001 of head: it took no turns"):
        run_together([side("base", tmp_path), side("head", tmp_path, says=False)], ["fast"], ["001", "001"])
    nowhere = Launch("head", tmp_path, ("/no/such/python",), {})
    with pytest.raises(RepeatError, match="repeat 001 of head: cannot start"):
        run_together([side("base", tmp_path), nowhere], ["fast"], ["001", "001"])


def printed(**about: Any) -> bytes:
    run = {
        "prompt": "p",
        "token_ids": [5, 6, 7, 8],
        "finish": "stop",
        "arrival_ts": 1.0,
        "token_ts": [2.0, 3.0, 4.0, 5.0],
        "emitted": [1, 1, 1],
    }
    turns = {"steps": 1, "waits": [[1.2, 1.7], [2.1, 2.6], [3.1, 3.6], [4.25, 4.5]], "alone": 0}
    return json.dumps([{"arm": "fast", "runs": [run], "unfit": [], "turns": {**turns, **about}}]).encode()


def test_waits_are_taken_out_of_the_times() -> None:
    found = parse(printed(), "r", "f")["fast"]
    assert found.rounds == pytest.approx([500.0, 500.0, 750.0])
    assert found.first_token_ms == pytest.approx(500.0)
    assert found.prompts[0].at == (2.0, 3.0, 4.0, 5.0)
    assert found.turns == 4


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"waits": [[1.2, 1.7], [1.6, 2.6]]}, "no stretches of time one after the other"),
        ({"waits": [[1.7, 1.2]]}, "no stretches of time"),
        ({"waits": [[1.2, float("nan")]]}, "no stretches of time"),
        ({"waits": [[1.2, 1.7], [2.9, 3.2]]}, "something happened at 3.0 s, while the other side had its turn"),
        ({"waits": [[1.2, 1.7], [2.1, 2.6], [4.1, 4.6]]}, "no turn was handed on in 1 rounds from round 2 on"),
        ({"steps": "x"}, "not what a worker prints"),
    ],
    ids=["overlap", "backwards", "nan", "inside", "missing", "type"],
)  # fmt: skip
def test_waits_that_cannot_be_are_refused(about: dict[str, Any], said: str) -> None:
    with pytest.raises(RepeatError, match=said):
        parse(printed(**about), "repeat 3 of head", "f")


def test_rounds_after_the_last_turn_need_none() -> None:
    waits = Waits([(1.2, 1.7), (2.1, 2.6)], "r")
    waits.check_rounds((2.0, 3.0, 4.0, 5.0), "p")
    assert [round(waits.left_out(at), 6) for at in (1.0, 2.0, 3.0, 4.0)] == [1.0, 1.5, 2.0, 3.0]

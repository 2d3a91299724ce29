"""One worker process: what it printed is checked, and each way to fail says what happened."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.ab.errors import RepeatError
from harness.ab.repeat import Launch, parse, run_repeat, run_worker

RUN = {
    "prompt": "p",
    "token_ids": [5, 6, 7],
    "finish": "stop",
    "arrival_ts": 1.0,
    "token_ts": [2.0, 2.5, 3.5],
    "emitted": [1, 1],
}


def printed(**about: Any) -> bytes:
    return json.dumps([{"arm": "fast", "runs": [{**RUN, **about}], "unfit": []}]).encode()


def launch(code: str, tmp_path: Path, **about: Any) -> Launch:
    return Launch("head", tmp_path, (sys.executable, "-c", code), dict(os.environ), **about)


def test_first_token_and_prefill_are_outside_the_round() -> None:
    found = parse(printed(), "r", "f")["fast"]
    assert found.rounds == [500.0, 1000.0]
    assert found.round_ms == 750.0
    assert found.first_token_ms == 1000.0


def test_an_old_worker_prints_one_object() -> None:
    assert set(parse(json.dumps({"arm": "a", "runs": [RUN], "unfit": []}).encode(), "r", "f")) == {"a"}


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"token_ts": [2.0, 1.5, 3.5]}, "the clock did not move forwards: 1.5 s after 2.0 s in prompt 'p'"),
        ({"arrival_ts": 2.0}, "the clock did not move forwards"),
        ({"token_ts": [2.0, float("nan"), 3.5]}, "a time that is no number"),
        ({"token_ts": [2.0, 3.5]}, "do not add up"),
        ({"emitted": [2, 1]}, "do not add up"),
        ({"emitted": [], "token_ts": [2.0], "token_ids": [5]}, "no round after a first token"),
        ({"token_ids": "abc"}, "not what a worker prints"),
    ],
    ids=["backwards", "instant", "nan", "stamps", "tokens", "no-round", "type"],
)
def test_what_cannot_be_is_refused(about: dict[str, Any], said: str) -> None:
    with pytest.raises(RepeatError, match=said):
        parse(printed(**about), "repeat 3 of head", "f")


@pytest.mark.parametrize("answer", [b"", b"3", b"[]x", b'{"arm": "fast"}'])
def test_an_answer_that_is_no_worker_s(answer: bytes) -> None:
    with pytest.raises(RepeatError, match="repeat 3 of head: its answer is not what a worker prints"):
        parse(answer, "repeat 3 of head", "f")


def test_another_arm_than_was_asked_for(tmp_path: Path) -> None:
    code = f"print({printed().decode()!r})"
    with pytest.raises(RepeatError, match="arms fast were answered; slow were asked for"):
        run_repeat(launch(code, tmp_path), ["slow"], "001")
    assert run_repeat(launch(code, tmp_path), ["fast"], "001")[1]["fast"].source == "001-fast.json"


def test_a_worker_that_dies_hangs_or_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RepeatError, match=r"ended with exit code 3:\nCUDA error: device lost") as error:
        run_worker(launch("import sys; sys.exit(sys.stderr.write('CUDA error: device lost') and 3)", tmp_path), [], "r")
    assert error.value.crashed
    with pytest.raises(RepeatError, match="died of SIGKILL"):
        run_worker(launch("import os; os.kill(os.getpid(), 9)", tmp_path), [], "r")
    with pytest.raises(RepeatError, match=r"no answer after 0\.2 s"):
        run_worker(launch("import time; time.sleep(60)", tmp_path, timeout_s=0.2), [], "r")
    with pytest.raises(RepeatError, match="cannot start /no/such/python"):
        run_worker(Launch("head", tmp_path, ("/no/such/python",), {}), [], "r")


def test_it_runs_on_the_cores_it_is_given_and_we_stay_where_we_were(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    assert json.loads(run_worker(launch(code, tmp_path, cores=(core,)), [], "r")) == [core]
    assert os.sched_getaffinity(0) == before
    with pytest.raises(RepeatError, match=r"cannot run on cores \[4095\]"):
        run_worker(launch(code, tmp_path, cores=(4095,)), [], "r")
    assert os.sched_getaffinity(0) == before

"""The power study: trials with a worker that answers at once, the rivals' rules, resuming, rates and the picture."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.ab.errors import RepeatError
from harness.errors import EvidenceError
from harness.power.page import FIGURE, build_power_document
from harness.power.rivals import mann_whitney, mean_threshold
from harness.power.study import TRIALS, Result, Study, append, machine_line, next_trials, read_study, result_line
from harness.power.summary import OURS, accuracy_of, rates, targets_of
from harness.power.trial import OutOfTime, Setup, run_trial
from harness.power.workers import OneEach, workers
from harness.report import render_html
from harness.report.plots import draw

WORKER = """\
import contextlib, json, os, random, sys
delay = float(os.environ["SM70_PLANT_DELAY"])
noise = random.Random(os.getpid())
at, stamps = 10.0, [10.0]
for _ in range(20):
    at += 0.001 * (1 + delay / 100) * noise.gauss(1, 0.002)
    stamps.append(at)
run = {"prompt": "p", "token_ids": list(range(21)), "finish": "stop", "arrival_ts": 9.9, "token_ts": stamps,
       "emitted": [1] * 20}
unfit = [f"planted delay: {delay} % of each round"] + ([os.environ["WATCHED"]] if "WATCHED" in os.environ else [])
turns = {}
if "--turns" in sys.argv:
    come, go = map(int, sys.argv[-1].split(","))
    os.read(come, 1)
    with contextlib.suppress(BrokenPipeError):
        os.write(go, b"t")
    turns = {"turns": {"steps": 2, "waits": [[9.0, 9.8]], "alone": 21}}
print(json.dumps([{"arm": sys.argv[1], "runs": [run], **turns, "unfit": unfit}]))
"""


SERVER = """\
import contextlib, io, json, os, runpy, sys
for line in sys.stdin:
    request = json.loads(line)
    answers = []
    for delay in request["delays"]:
        os.environ["SM70_PLANT_DELAY"] = str(delay)
        sys.argv = ["worker.py", *request["arms"]]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path("worker.py")
        answer = json.loads(said.getvalue())
        if len(request["delays"]) == 2:
            answer[0]["turns"] = {"steps": 2, "waits": [[9.0, 9.8]], "alone": 21}
        answers.append({"failed": -9} if delay == 13 else answer)
    print(json.dumps(answers), flush=True)
"""


@pytest.fixture
def lane(tmp_path: Path) -> OneEach:
    (tmp_path / "worker.py").write_text(WORKER)
    return OneEach(tmp_path, (), dict(os.environ), (sys.executable, "-S", "worker.py"))


SETUP = Setup("small")


def result(delay: int, index: int, ours: str = "SAME", rival: str = "~") -> Result:
    runs = (1.0, 1.1)
    return Result(
        delay, index, ours, 1 + delay / 100, None, None, 0.01, 8, "SAME", rival, 0.5, "~", runs, runs, runs, runs, runs,
        runs, 1.0, (4,),
    )  # fmt: skip


def test_a_trial_judges_the_same_cost_by_three_rules(lane: OneEach) -> None:
    found = run_trial(SETUP, lane, 5, 0, ())
    assert (found.ours, found.pairs) == ("WORSE", 8)
    assert found.ratio == pytest.approx(1.05, abs=0.01)
    assert len(found.base) == len(found.head) == len(found.paired_base) == len(found.log_ratios) == 8
    assert run_trial(SETUP, lane, 0, 0, ()).ours == "SAME"


def test_only_the_planted_delay_is_excused(lane: OneEach) -> None:
    watched = replace(lane, environment={**os.environ, "WATCHED": "sys.setprofile holds a hook"})
    with pytest.raises(EvidenceError, match=r"unfit for timing: sys\.setprofile"):
        run_trial(SETUP, watched, 0, 0, ())


def test_a_trial_that_runs_out_of_time_does_not_count(lane: OneEach) -> None:
    with pytest.raises(OutOfTime):
        run_trial(replace(SETUP, deadline=SETUP.clock() - 1), lane, 0, 0, ())
    stop = threading.Event()
    stop.set()
    with pytest.raises(OutOfTime):
        run_trial(replace(SETUP, stop=stop), lane, 0, 0, ())


def test_forks_of_a_server_give_the_same_kind_of_trial(lane: OneEach, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    argv = (sys.executable, "-S", "server.py")
    with workers(tmp_path, (min(os.sched_getaffinity(0)),), dict(os.environ), forked=True, argv=argv) as forks:
        assert run_trial(SETUP, forks, 5, 0, ()).ours == "WORSE"
        with pytest.raises(RepeatError, match="repeat 001 of head: the forked worker ended with -9"):
            forks.repeats(("base", "head"), ("small",), ("001", "001"), (0, 13))


def test_the_rivals_rules() -> None:
    base = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05]
    assert mann_whitney(base, [value + 0.1 for value in base]) == "slower"
    assert mann_whitney(base, [value - 0.1 for value in base]) == "faster"
    assert mann_whitney(base[:3], [value + 0.1 for value in base[:3]]) == "~"  # three a side: p is 0.1 at least
    assert mean_threshold(base, [value * 1.04 for value in base]) == "~"
    assert mean_threshold(base, [value * 1.06 for value in base]) == "slower"


def test_a_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    order = next_trials([])
    assert len(order) == sum(TRIALS.values())
    assert order[:5] == [(0, 0), (2, 0), (0, 1), (3, 0), (0, 2)]
    assert order[-20:] == [(5, index) for index in range(20)]
    path = tmp_path / "results.jsonl"
    append(path, machine_line({"cpu.model": "x", "cpu.mhz": "7"}))
    append(path, result_line(result(0, 0)))
    with path.open("a") as stream:
        stream.write('{"schema": 2, "kind": "tri')
    study = read_study(path)
    assert study == Study(({"cpu.model": "x"},), (result(0, 0),))
    assert (0, 0) not in next_trials(study.results)
    sound = path.read_bytes()
    for damage in (b"\xff\xfe\n", b"[]\n", b"[" * 100_000 + b"\n"):
        path.write_bytes(damage + sound)
        with pytest.raises(EvidenceError, match="line 1: not a line of a power study"):
            read_study(path)
    path.write_bytes(b"nonsense\n" + sound)
    with pytest.raises(EvidenceError, match="line 1: not a line of a power study"):
        read_study(path)


def test_rates_targets_and_picture() -> None:
    quiet = [result(0, i) for i in range(39)] + [result(0, 39, "BETTER", "faster")]
    found = [result(2, i, "WORSE" if i < 17 else "UNDECIDED") for i in range(20)]
    missed = [result(3, i, "WORSE" if i < 18 else "UNDECIDED", "slower") for i in range(20)]
    study = Study((), tuple(quiet + found + missed))
    rows = rates(study)
    ours = {rate.delay: rate for rate in rows if rate.rule == OURS}
    assert (ours[0].alarms, ours[2].alarms, ours[3].alarms) == (1, 17, 18)
    assert ours[0].low < 1 / 40 < ours[0].high
    assert [str(target).rpartition(": ")[2] for target in targets_of(study)] == ["met", "met", "MISSED", "met"]
    few = Study((), tuple(quiet[:5]))
    assert str(targets_of(few)[0]) == "0 %: false alarms: not shown, 5 of 40 trials"
    assert targets_of(few)[0].met is None
    slow = Study((), (replace(quiet[0], seconds=91.0),))
    assert str(targets_of(slow)[-1]) == "one trial: 91 to 91 s, target <= 90 s: MISSED"


def test_how_far_trials_lay_from_what_was_planted() -> None:
    right = result(2, 0, "WORSE")
    wrong = replace(right, ours="UNDECIDED", ratio=1.03, head=(1.2, 1.3), pairs=24, seconds=100.0)
    first, looks, noise = accuracy_of(Study((), (right, wrong)))
    # Base's runs are 1.0 and 1.1: a mean of 1.05, which head's 1.25 is 19.05 % above.
    assert first == (
        "2 %: ours lies +0.0 to +1.0 points off (median +0.5), the ratio of means -2 to +17; 1 undecided; "
        "1 to 100 s, 1 over 90 s"
    )
    assert looks == "1 of 2 trials ended at the first look, after 8 pairs"
    assert noise.startswith("of the median trial: pairs differ by 5.0 % (standard deviation)")
    assert noise.endswith("lie 10 % apart")


def test_a_study_is_a_page_with_its_picture() -> None:
    study = Study(({"cpu.model": "<x>"},), tuple(result(delay, i) for delay in TRIALS for i in range(3)))
    document = build_power_document(study, rates(study), targets_of(study))
    assert document.verdict.word == "Targets not shown yet"
    plots = draw(document)
    assert plots == draw(document)
    assert b"trials with an alarm" in plots[f"{FIGURE}.svg"]
    page = render_html(document, plots)
    assert "Alarms by planted delay" in page
    assert "&lt;x&gt;" in page
    assert "<x>" not in page


def test_results_are_small_json_lines() -> None:
    assert len(json.dumps(result_line(result(5, 3)))) < 1000

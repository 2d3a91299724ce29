"""The parts around the timed process: arms as data, the worker's failures, the benchmark's arithmetic."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from suites.latency import bench_llama_cpp as bench
from suites.latency import delay, gpus, repeats
from suites.latency.arms import ARMS_FILE, by_engine, gpus_needed, groups, load_arms, load_prompts, runnable
from suites.latency.repeats import run_worker, waiting_workers


def test_arms_take_defaults_and_override_them() -> None:
    arms = load_arms()
    assert arms["greedy-plain"].draft == "none"
    assert arms["greedy-lookup"].draft == "lookup"
    assert {arm.prompts for arm in arms.values() if not arm.model and arm.device == "cpu"} == {"short_chat"}
    assert len(load_prompts("short_chat")) == 3


@pytest.mark.parametrize("line", ["tempratur = 1.0", ""], ids=["unknown", "missing"])
def test_an_arm_with_a_wrong_key_is_an_error(tmp_path: Path, line: str) -> None:
    file = tmp_path / "arms.toml"
    file.write_text(f'[defaults]\nprompts = "short_chat"\n\n[only]\n{line}\n')
    with pytest.raises(ValueError, match=r"arms.toml \[only\]: missing or unknown: .*an arm has"):
        load_arms(file)


def test_an_unknown_prompt_set_is_an_error() -> None:
    with pytest.raises(ValueError, match="no prompt set 'long'; it has short_chat"):
        load_prompts("long")


def test_arms_of_one_model_share_a_process_and_those_alike_an_engine() -> None:
    arms = load_arms()
    shared = groups(arms)
    assert sorted(arm for group in shared for arm in group) == sorted(arms)
    assert all(len({(arms[name].model, arms[name].device) for name in group}) == 1 for group in shared)
    engines = [[arm.name for arm in alike] for alike in by_engine(arms[name] for name in shared[0])]
    assert engines == [["greedy-plain", "sampled-plain", "greedy-batch"], ["greedy-lookup", "sampled-lookup"]]


def test_an_arm_needs_a_gpu_for_each_of_its_ranks() -> None:
    arms = load_arms()
    assert {name: needed for name, arm in arms.items() if (needed := gpus_needed(arm))} == {
        "smollm2-gpu": 1,
        "smollm2-two-gpus": 2,
    }
    assert set(arms) - set(runnable(arms, 1)) == {"smollm2-two-gpus"}
    assert set(arms) - set(runnable(arms, 0)) == {"smollm2-gpu", "smollm2-two-gpus"}


def test_a_control_must_be_an_arm(tmp_path: Path) -> None:
    file = tmp_path / "arms.toml"
    file.write_text(ARMS_FILE.read_text().replace('control = "greedy-plain"', 'control = "greedy-plane"'))
    with pytest.raises(ValueError, match="control 'greedy-plane' is no arm; there are greedy-plain"):
        load_arms(file)


def test_a_worker_lists_its_arms_without_loading_anything() -> None:
    here = runnable(load_arms(), gpus.count())
    listed = run_worker(["--list"])
    assert listed["groups"] == [list(group) for group in groups(here)]
    assert listed["turns"] == [name for name, arm in here.items() if arm.tp == 1]
    with pytest.raises(AssertionError, match="greedy-plain, quasar-plain want different models"):
        run_worker(["greedy-plain", "quasar-plain"])


@pytest.mark.parametrize("text", ["-1", "101", "three", "nan"])
def test_a_delay_that_is_no_share_of_a_round_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="per cent from 0 to 100"):
        delay.asked_for({delay.VARIABLE: text})


def test_a_planted_delay_stretches_a_step_by_its_share() -> None:
    ticks = iter([0.0, 10.0, 12.0, 12.01, 12.05, 12.07])  # made, began, held at 12, then 12.06 is far enough
    stretch = delay.Stretch(0.03, lambda: next(ticks))
    stretch.begin()
    stretch.hold()
    assert next(ticks, None) is None
    assert delay.asked_for({}) == 0.0
    assert delay.asked_for({delay.VARIABLE: "2.5"}) == 2.5


def test_a_failing_worker_is_quoted() -> None:
    with pytest.raises(AssertionError, match=r"ended with 2:\n(.|\n)*invalid choice: 'no-such-arm'"):
        run_worker(["no-such-arm"])


def test_a_worker_that_cannot_get_ready_is_quoted() -> None:
    with (
        pytest.raises(AssertionError, match=r"--wait no-such-arm ended with 2:\n(.|\n)*invalid choice: 'no-such-arm'"),
        waiting_workers([["no-such-arm"]]),
    ):
        pytest.fail("a worker without an arm became ready")


def test_a_late_worker_says_who_wants_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "SECONDS_ALLOWED", 0.01)
    with pytest.raises(AssertionError, match=r"did not end within 0\.01 s; [\d.]+ processes want \d+ processors"):
        run_worker(["greedy-plain"])


def test_a_worker_that_waits_takes_no_time_and_measures_nothing_unasked() -> None:
    command = [sys.executable, "-m", "suites.latency.worker", "--wait", "greedy-plain"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        stat = Path(f"/proc/{worker.pid}/stat")
        while (at := stat.read_text().rpartition(") ")[2].split())[0] != "S":
            pass
        time.sleep(0.5)
        then = stat.read_text().rpartition(") ")[2].split()
        assert (then[0], then[11:13]) == ("S", at[11:13])  # asleep, and neither of its clocks has moved
        printed, said = worker.communicate()  # closes its input
    assert (worker.returncode, printed) == (1, "")
    assert "has gone without asking" in said


def test_turns_alternate_after_one_unrecorded_call_of_each() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return len(calls)

    ours, theirs = bench.interleave(lambda: side("a"), lambda: side("b"), 4)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab" + "ba"
    assert (ours, theirs) == ([3, 6, 7, 10], [4, 5, 8, 9])


def test_ratio_is_above_one_where_ours_is_better() -> None:
    rate = bench.Row("decode", 1, "token/s", [300.0], [150.0], higher_is_better=True)
    time = bench.Row("verify", 1, "ms", [3.0], [6.0], higher_is_better=False)
    assert (rate.ratio, time.ratio) == (2.0, 2.0)


def test_spread_is_half_the_interquartile_range_over_the_median() -> None:
    assert bench.spread([10.0, 10.0]) == 0.0
    assert bench.spread([8.0, 9.0, 10.0, 11.0, 12.0]) == pytest.approx(0.15)


def test_the_table_names_cost_of_eight_rows_and_both_sides() -> None:
    rows = [
        bench.Row(f"verify {count} rows", 2, "ms", [3.0 * count**0.5], [6.0 * count], higher_is_better=False)
        for count in (1, 8)
    ]
    about = {side: {"version": "v", "resident_mib": 200.0, "build": "b"} for side in ("ours", "theirs")}
    table = bench.show(rows, about)
    assert "8 rows cost, in rows of one, 2 threads: ours 2.83, theirs 8.00" in table
    assert "theirs: v, 200 MiB resident, b" in table


def test_a_worker_that_dies_is_named() -> None:
    side = bench.Side([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="worker ended with 3"):
        side.call("decode")
    side.close()


def test_help_says_what_is_measured() -> None:
    command = [sys.executable, "-m", "suites.latency.bench_llama_cpp", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "interleaved in one run" in " ".join(done.stdout.split())

"""Foreign results: what each tool's file tells becomes ours, what it does not tell stays unknown."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.commands.exchange import FORMS as COMMAND_FORMS
from harness.errors import EvidenceError, HarnessError, UsageError
from harness.ingest import FORMS, ingest_files
from harness.ingest.foreign import Foreign, case_name, number, to_lines
from harness.model import ScopeEvidence
from harness.records import encode_lines, parse_records, to_cases, to_metrics, to_samples
from tests.harness.conftest import call_here
from tests.harness.ingest.tool_outputs import GOOGLE, HYPERFINE, NVBENCH, PYTEST_BENCHMARK, VLLM_LATENCY, VLLM_SERVE


def ingest(*data: Any, form: str = "auto", names: tuple[str, ...] = ()) -> Foreign:
    names = names or tuple(f"r{i}/run={i}.json" for i in range(len(data)))
    files = [(Path(name), json.dumps(one).encode()) for name, one in zip(names, data, strict=True)]
    return ingest_files(files, form)


def as_scope(foreign: Foreign) -> ScopeEvidence:
    records = parse_records(encode_lines(to_lines(foreign)), "r")
    cases = to_cases(records)
    green = {case.node for case in cases if case.status.green}
    samples = tuple(sample for sample in to_samples(records, "r") if sample.node in green)
    return ScopeEvidence("s", cases=cases, metrics=to_metrics(records), samples=samples)


def statuses(foreign: Foreign) -> dict[str, str]:
    return {case.node: case.status.value for case in as_scope(foreign).cases}


def times(foreign: Foreign) -> dict[str, tuple[tuple[float, ...], str]]:
    return {f"{s.node} {s.name}": (s.values, s.unit) for s in as_scope(foreign).samples}


def test_vllm_latency_iterations_are_rounds_and_files_are_repeats() -> None:
    found = ingest(
        VLLM_LATENCY, {**VLLM_LATENCY, "latencies": [2.0, 2.2]}, names=("a/llama_run1.json", "b/llama_run2.json")
    )
    assert found.tool == "vllm-latency"
    (samples,) = as_scope(found).samples
    assert (samples.node, samples.values, samples.unit) == ("vllm latency::llama", (1.5, 2.1), "s")
    assert samples.rounds == ((1.4, 1.5, 1.6), (2.0, 2.2))
    assert statuses(ingest({"avg_latency": 1.0, "latencies": []})) == {"vllm latency::r0": "unknown"}


def test_vllm_serve() -> None:
    found = ingest(VLLM_SERVE)
    assert times(found) == {
        "vllm serve::r0 median_ttft": ((29.0,), "ms"),
        "vllm serve::r0 median_tpot": ((6.0,), "ms"),
        "vllm serve::r0 request_throughput": ((8.3,), "request/s"),
        "vllm serve::r0 output_throughput": ((166.0,), "token/s"),
    }
    assert {sample.name: sample.better.value for sample in as_scope(found).samples} == {
        "median_ttft": "lower",
        "median_tpot": "lower",
        "request_throughput": "higher",
        "output_throughput": "higher",
    }
    assert found.facts["workload.request_rate"] == "inf"
    for completed in (97, 99):  # of 100
        unfinished = ingest({**VLLM_SERVE, "completed": completed})
        assert statuses(unfinished) == {"vllm serve::r0": "failed"}
        assert times(unfinished) == {}
    assert statuses(ingest({**VLLM_SERVE, "completed": None})) == {"vllm serve::r0": "unknown"}


def test_pytest_benchmark() -> None:
    found = ingest(PYTEST_BENCHMARK)
    assert times(found) == {"t.py::test_a time": ((2.0,), "s")}
    assert found.facts["cpu.model"] == "Xeon 6148"
    assert found.facts["git.commit"] == "abc"
    assert "host.name" not in found.facts


def test_google_benchmark() -> None:
    found = ingest(GOOGLE)
    assert statuses(found) == {"B/8": "passed", "C": "failed", "D": "skipped", "E": "passed"}
    scope = as_scope(found)
    values = {sample.node: (sample.values, sample.unit, sample.rounds) for sample in scope.samples}
    assert values == {"B/8": ((11.0,), "us", ((10.0, 12.0),)), "E": ((5.0,), "ns", ((5.0,),))}
    assert scope.samples[0].unfit == ("the benchmark library is a debug build",)
    every: Any = GOOGLE["benchmarks"]
    silent = [{key: value for key, value in row.items() if key != "time_unit"} for row in every]
    assert {unit for _, unit in times(ingest({**GOOGLE, "benchmarks": silent})).values()} == {"ns"}  # as the tool means
    assert [(metric.name, metric.value, metric.assume.value) for metric in scope.metrics] == [
        ("bytes_per_second", 1e9, "")
    ]


def test_hyperfine_times_are_processes() -> None:
    found = ingest(HYPERFINE)
    assert statuses(found) == {"sleep 1": "passed", "x [n=4]": "failed"}
    assert times(found) == {"sleep 1 time": ((1.0, 1.01), "s")}
    (reason,) = [case.reason for case in as_scope(found).cases if case.reason]
    assert reason == "1 of its runs ended with exit code 3"


def test_nvbench_typed_strings() -> None:
    found = ingest(NVBENCH)
    assert statuses(found) == {"copy[Elements=1024]": "passed", "copy": "skipped", "copy[T=F16]": "unknown"}
    assert times(found) == {"copy[Elements=1024] gpu_time": ((1.25e-05,), "s")}
    assert found.facts["gpu.names"] == "Tesla V100-SXM2-32GB"
    median = {"tag": "nv/cold/time/gpu/median", "data": [{"name": "value", "type": "float64", "value": "1.2e-05"}]}
    both = copy.deepcopy(NVBENCH)
    both["benchmarks"][0]["states"][0]["summaries"].append(median)  # type: ignore[index]
    assert times(ingest(both)) == {"copy[Elements=1024] gpu_time": ((1.2e-05,), "s")}


# JUnit dialects, each as its writer writes it, lie in ``dialects/``.
DIALECTS = {
    "pytest": {"pytest::t::a": "error"},
    "gtest": {"Math::Add": "passed", "Math::Sub": "failed", "Math::DISABLED_Mul": "skipped"},
    "ctest": {"Linux-c++::a::a": "passed", "Linux-c++::b::b": "failed", "Linux-c++::c::c": "skipped"},
    "surefire": {"com.Foo::bar": "passed", "com.Foo::baz": "flaky"},
    "jest": {"math::math adds::math adds": "passed", "math::math subs::math subs": "failed"},
    "go-junit-report": {"pkg/a::TestA": "passed", "pkg/a::TestB": "failed"},
    "catch2": {"tests::tests.global::throws": "error"},
    "nose": {"nosetests::nose.failure.Failure::runTest": "error"},
    "bazel": {"//a:b:://a:b": "error"},
}


def dialect_bytes(name: str) -> bytes:
    return Path(__file__).with_name("dialects").joinpath(f"{name}.xml").read_bytes()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_junit_dialects(dialect: str) -> None:
    text = dialect_bytes(dialect).decode()
    for content in (text.encode(), text.replace("\n", "\r\n").encode("utf-8-sig")):
        found = ingest_files([(Path("f.xml"), content)], "auto")
        assert found.tool == "junit"
        assert statuses(found) == DIALECTS[dialect]


def test_surefire_s_thousands_and_gtest_s_bare_point() -> None:
    surefire = ingest_files([(Path("f"), dialect_bytes("surefire"))], "junit")
    assert [case.seconds for case in surefire.cases] == [1234.5, 0.0]
    gtest = ingest_files([(Path("f"), dialect_bytes("gtest"))], "junit")
    assert [case.seconds for case in gtest.cases] == [0.001, 0.0, 0.0]


def test_the_same_case_in_two_files_is_two_tries() -> None:
    failed = b'<testsuite name="s"><testcase name="a"><failure/></testcase></testsuite>'
    passed = b'<testsuite name="s"><testcase name="a"/></testsuite>'
    assert statuses(ingest_files([(Path("1"), failed), (Path("2"), passed)], "auto")) == {"s::a": "flaky"}
    assert statuses(ingest_files([(Path("1"), passed), (Path("2"), failed)], "auto")) == {"s::a": "failed"}


def test_files_that_contradict_are_doubted() -> None:
    found = ingest(VLLM_SERVE, {**VLLM_SERVE, "num_prompts": 90, "completed": 90}, names=("a/x.json", "b/x.json"))
    assert found.doubts == ["vllm serve::x: requests is 100 in one file and 90 in another"]
    other = json.loads(json.dumps(PYTEST_BENCHMARK))
    other["machine_info"]["cpu"]["count"] = 40
    found = ingest(PYTEST_BENCHMARK, other)
    assert found.facts["cpu.count"] == "unknown"
    assert found.doubts == ["cpu.count differs between the files"]


@pytest.mark.parametrize(
    ("data", "form", "says"),
    [
        ({"a": 1}, "auto", "not the result of a tool that is known here"),
        ([1], "auto", "a JSON object is expected, found list"),
        (VLLM_SERVE, "hyperfine", "not a result of hyperfine"),
        ({"machine_info": {}, "benchmarks": []}, "auto", "with nothing in it"),
    ],
)
def test_refused(data: Any, form: str, says: str) -> None:
    with pytest.raises(EvidenceError, match=says):
        ingest(data, form=form)


def test_mixed_tools_are_refused() -> None:
    with pytest.raises(UsageError, match="is of hyperfine, the first file of vllm-serve"):
        ingest(VLLM_SERVE, HYPERFINE)
    with pytest.raises(UsageError, match="no file"):
        ingest_files([], "auto")
    with pytest.raises(EvidenceError, match="neither XML nor JSON"):
        ingest_files([(Path("f"), b"hello")], "auto")


def test_nan_and_infinity_are_not_known() -> None:
    text = json.dumps(VLLM_SERVE).replace("29.0", "NaN").replace("166.0", "Infinity").replace("8.3", '"inf"')
    found = ingest_files([(Path("x.json"), text.encode())], "auto")
    assert times(found) == {"vllm serve::x median_tpot": ((6.0,), "ms")}
    for value in ("inf", "nan", True, None, [1], 10**400, "1" * 100):
        assert number(value) is None
    assert number(" 1.5 ") == 1.5


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/b/llama.json", "llama"),
        ("a/b/run=3.json", "b"),
        ("a/llama_run3.json", "llama"),
        ("a/llama-repeat-12.json", "llama"),
        ("a/llama_tp4.json", "llama_tp4"),
        ("run1.json", "run1"),
    ],
)
def test_names_of_files_without_names(path: str, name: str) -> None:
    assert case_name(Path(path)) == name


def test_forms_of_the_command_line_are_those_of_the_readers() -> None:
    assert COMMAND_FORMS == FORMS


leaves = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=6)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)


values = st.recursive(leaves, nested)
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "vllm-latency": VLLM_LATENCY,
    "vllm-serve": VLLM_SERVE,
    "pytest-benchmark": PYTEST_BENCHMARK,
    "google-benchmark": GOOGLE,
    "nvbench": NVBENCH,
    "hyperfine": HYPERFINE,
}


@given(st.sampled_from(sorted(SHAPES)), st.data())
def test_only_documented_errors_leave_the_readers(shape: str, data: st.DataObject) -> None:
    """A real file with any value replaced by any other at any depth."""
    spoilt = json.loads(json.dumps(SHAPES[shape]))
    at: Any = spoilt
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], (dict, list)) or data.draw(st.booleans()):
            at[key] = data.draw(values)
            break
        at = at[key]
    content = json.dumps(spoilt).encode()
    with contextlib.suppress(HarnessError):
        as_scope(ingest_files([(Path("x.json"), content)], "auto"))


@given(st.binary(max_size=100))
def test_any_bytes(content: bytes) -> None:
    with contextlib.suppress(HarnessError):
        as_scope(ingest_files([(Path("x"), content)], "auto"))


# ---- end to end -----------------------------------------------------------------------------------------------------


def sealed_ingest(root: Path, run: str, data: list[Any], *options: str) -> Path:
    paths = []
    for i, one in enumerate(data):
        path = root / f"{run}-src" / f"serve_run{i}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(one))
        paths.append(str(path))
    done = call_here(root, "ingest", *paths, "--scope", "serving", "--run-dir", run, *options)
    assert done.code == 0, done.err
    assert call_here(root, "seal", run, "--against", "none", "--out", "out").code == 0
    return next((root / "out").glob(f"{run}-*"))


def test_two_foreign_runs_are_compared_on_a_person_s_word(tmp_path: Path) -> None:
    slow = [{**VLLM_SERVE, "median_ttft_ms": 40.0 + i} for i in range(6)]
    fast = [{**VLLM_SERVE, "median_ttft_ms": 29.0 + 0.1 * i} for i in range(6)]  # five quantities share one allowance
    base, head = sealed_ingest(tmp_path, "base", fast), sealed_ingest(tmp_path, "head", slow)
    unknown = call_here(tmp_path, "compare", str(base), str(head))
    assert unknown.code == 4
    told = call_here(tmp_path, "compare", str(base), str(head), "--format", "json")
    reasons = json.loads(told.out)["decision"]["reasons"]
    seen, todo = reasons[0].split("; ")
    assert seen == "nothing is comparable: device_key is unknown at base, unknown at head"
    assert todo == "ingest with --device-key, or judge with --assume-comparable"
    assumed = call_here(tmp_path, "compare", str(base), str(head), "--assume-comparable", "--format", "json")
    assert assumed.code == 1
    rows = {row["name"]: row["outcome"] for row in json.loads(assumed.out)["comparison"]["metrics"]}
    assert rows["median_ttft"] == "WORSE"
    assert rows["median_tpot"] == "SAME"
    assert call_here(tmp_path, "verify", str(head)).code == 0
    refused = call_here(tmp_path, "accept", str(head), "--reason", "x")
    assert "its commit is unknown" in refused.err


def test_facts_a_person_states(tmp_path: Path) -> None:
    bundle = sealed_ingest(tmp_path, "R", [VLLM_SERVE], "--device-key", "sm70-v100-x1", "--fact", "cpu.model=Xeon")
    environment = json.loads((bundle / "data" / "environment.json").read_text())
    assert environment["ingest.stated"] == "cpu.model, device_key"
    assert environment["device_key"] == "sm70-v100-x1"
    assert "give KEY=VALUE" in call_here(tmp_path, "ingest", "x", "--scope", "s", "--fact", "x").err
    assert "is no scope name" in call_here(tmp_path, "ingest", "x", "--scope", "S!").err
    assert call_here(tmp_path, "ingest", "absent", "--scope", "s").code == 2


def test_a_killed_ingestion_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text('<testsuite name="s"><testcase name="a"/></testsuite>')
    assert call_here(tmp_path, "ingest", "x.xml", "--scope", "unit", "--run-dir", "R").code == 0
    (tmp_path / "R" / "unit" / "scope.json").unlink()  # it is written last
    refused = call_here(tmp_path, "seal", "R", "--against", "none")
    assert "-m harness ingest FILE --scope unit --run-dir R" in refused.err
    assert call_here(tmp_path, "ingest", "x.xml", "--scope", "unit", "--run-dir", "R").code == 0
    assert call_here(tmp_path, "seal", "R", "--against", "none").code == 0


def test_records_must_follow_from_the_kept_sources(tmp_path: Path) -> None:
    sealed_ingest(tmp_path, "R", [VLLM_SERVE])
    records = tmp_path / "R" / "serving" / "records.jsonl"
    records.write_text(records.read_text().replace("29.0", "19.0"))
    done = call_here(tmp_path, "seal", "R", "--against", "none", "--out", "other")
    assert done.code == 3
    assert "does not follow from the files in source/" in done.err

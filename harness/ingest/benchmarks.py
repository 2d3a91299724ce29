"""Readers of benchmark JSON. Each takes one parsed file and adds to a ``Foreign``; none trusts a key to be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.ingest.foreign import Foreign, case_name, middle, number, numbers, rows, table, text
from harness.model import Better, CaseStatus

_LOWER, _HIGHER = Better.LOWER, Better.HIGHER


# ---- vllm bench -----------------------------------------------------------------------------------------------------


def is_vllm_latency(data: dict[str, Any]) -> bool:
    return "avg_latency" in data and "latencies" in data


def vllm_latency(data: dict[str, Any], path: Path, into: Foreign) -> None:
    """``vllm bench latency``: iterations of one process are the rounds of one replicate. It records no machine."""
    node = f"vllm latency::{case_name(path)}"
    latencies = numbers(data.get("latencies"))
    if not latencies:
        into.case(node, CaseStatus.UNKNOWN, "the file holds no latency")
        return
    into.case(node)
    into.sample(node, "latency", middle(latencies), "s", _LOWER, latencies)


def is_vllm_serve(data: dict[str, Any]) -> bool:
    return "request_throughput" in data and ("median_ttft_ms" in data or "mean_ttft_ms" in data)


def vllm_serve(data: dict[str, Any], path: Path, into: Foreign) -> None:
    """``vllm bench serve``: medians and throughputs, one replicate per file; unfinished requests are a failure."""
    node = f"vllm serve::{case_name(path)}"
    done, asked = number(data.get("completed")), number(data.get("num_prompts"))
    if done is None or asked is None:
        into.case(node, CaseStatus.UNKNOWN, "the file does not say how many requests completed")
    elif done < asked:
        into.case(node, CaseStatus.FAILED, f"{done:g} of {asked:g} requests completed")
    else:
        into.case(node)
    for quantity in ("ttft", "tpot", "itl", "e2el"):
        if (value := number(data.get(f"median_{quantity}_ms"))) is not None:
            into.sample(node, f"median_{quantity}", value, "ms", _LOWER)
    for quantity, unit in (("request_throughput", "request/s"), ("output_throughput", "token/s")):
        if (value := number(data.get(quantity))) is not None:
            into.sample(node, quantity, value, unit, _HIGHER)
    into.metric(node, "requests", asked, "request", exact=True)
    into.metric(node, "input_tokens", number(data.get("total_input_tokens")), "token", exact=True)
    into.metric(node, "output_tokens", number(data.get("total_output_tokens")), "token", exact=False)
    for key in ("model_id", "backend", "request_rate", "max_concurrency"):
        into.fact(f"workload.{key}", data.get(key))


# ---- pytest-benchmark -----------------------------------------------------------------------------------------------


def is_pytest_benchmark(data: dict[str, Any]) -> bool:
    return "machine_info" in data and "benchmarks" in data


def pytest_benchmark(data: dict[str, Any], path: Path, into: Foreign) -> None:
    """pytest-benchmark: rounds of one process; it does know its machine and commit."""
    machine, commit = table(data.get("machine_info")), table(data.get("commit_info"))
    cpu = table(machine.get("cpu"))
    into.fact("cpu.model", text(cpu.get("brand_raw")) or text(cpu.get("brand")))
    into.fact("cpu.count", cpu.get("count"))
    into.fact("python.version", machine.get("python_version"))
    into.fact("python.implementation", machine.get("python_implementation"))
    into.fact("os.system", machine.get("system"))
    into.fact("os.kernel", machine.get("release"))
    into.fact("git.commit", commit.get("id"))
    if commit.get("dirty"):
        into.fact("git.dirty", "yes")
    for row in rows(data.get("benchmarks")):
        node = text(row.get("fullname")) or text(row.get("name"), "unnamed")
        stats = table(row.get("stats"))
        raw = numbers(stats.get("data"))
        into.case(node)
        value = number(stats.get("median"))
        into.sample(node, "time", middle(raw) if value is None else value, "s", _LOWER, raw)


# ---- Google Benchmark -----------------------------------------------------------------------------------------------

_GOOGLE_KEYS = frozenset(
    {
        "name",
        "run_name",
        "family_index",
        "per_family_instance_index",
        "run_type",
        "repetitions",
        "repetition_index",
        "threads",
        "iterations",
        "real_time",
        "cpu_time",
        "time_unit",
        "aggregate_name",
        "aggregate_unit",
        "label",
        "error_occurred",
        "error_message",
        "skipped",
        "skip_message",
        "big_o",
        "rms",
        "cpu_coefficient",
        "real_coefficient",
    }
)


def is_google_benchmark(data: dict[str, Any]) -> bool:
    context = data.get("context")
    return isinstance(context, dict) and "benchmarks" in data and ("num_cpus" in context or "executable" in context)


def google_benchmark(data: dict[str, Any], path: Path, into: Foreign) -> None:
    """Google Benchmark: repetitions are rounds; percent and complexity rows are no times; errors are failures."""
    context = table(data.get("context"))
    into.fact("cpu.count", context.get("num_cpus"))
    into.fact("cpu.mhz", context.get("mhz_per_cpu"))
    if context.get("cpu_scaling_enabled") is True:
        into.fact("cpu.governor", "scaling")
    if context.get("library_build_type") == "debug":
        into.unfit.setdefault("", []).append("the benchmark library is a debug build")
    repeats: dict[str, list[dict[str, Any]]] = {}
    medians: dict[str, dict[str, Any]] = {}
    for row in rows(data.get("benchmarks")):
        name = text(row.get("run_name")) or text(row.get("name"), "unnamed")
        if row.get("error_occurred") is True:
            into.case(name, CaseStatus.FAILED, text(row.get("error_message"), "no reason given"))
        elif row.get("skipped") is True:
            into.case(name, CaseStatus.SKIPPED, text(row.get("skip_message"), "no reason given"))
        elif row.get("run_type", "iteration") == "iteration" and "big_o" not in row and "rms" not in row:
            repeats.setdefault(name, []).append(row)
        elif row.get("aggregate_name") == "median":
            medians[name] = row
    for name, found in repeats.items():
        _google_row(into, name, found)
    for name, row in medians.items():
        if name not in repeats:
            _google_row(into, name, [row])


def _google_row(into: Foreign, name: str, found: list[dict[str, Any]]) -> None:
    unit = text(found[0].get("time_unit"), "ns")
    times = [value for row in found if (value := number(row.get("real_time"))) is not None]
    into.case(name)
    into.sample(name, "real_time", middle(times), unit, _LOWER, times)
    for key, value in found[-1].items():
        if key not in _GOOGLE_KEYS:
            into.metric(name, key, number(value), "1", exact=False)


# ---- hyperfine ------------------------------------------------------------------------------------------------------


def is_hyperfine(data: dict[str, Any]) -> bool:
    results = rows(data.get("results"))
    return bool(results) and all("command" in row and "mean" in row for row in results)


def hyperfine(data: dict[str, Any], path: Path, into: Foreign) -> None:
    """hyperfine: every time is a process of its own, so each is a replicate. A non-zero exit code is a failure."""
    for row in rows(data.get("results")):
        node = text(row.get("command"), "unnamed command")
        parameters = ", ".join(f"{key}={value}" for key, value in sorted(table(row.get("parameters")).items()))
        node = f"{node} [{parameters}]" if parameters else node
        codes = row.get("exit_codes")
        bad = [code for code in codes if code != 0] if isinstance(codes, list) else []
        if bad:
            into.case(node, CaseStatus.FAILED, f"{len(bad)} of its runs ended with exit code {bad[0]}")
        else:
            into.case(node)
        times = numbers(row.get("times"))
        for value in times:
            into.sample(node, "time", value, "s", _LOWER)
        if not times:
            into.sample(node, "time", number(row.get("median")), "s", _LOWER)


# ---- NVBench --------------------------------------------------------------------------------------------------------


def is_nvbench(data: dict[str, Any]) -> bool:
    return "devices" in data and "benchmarks" in data and any("states" in row for row in rows(data["benchmarks"]))


def nvbench(data: dict[str, Any], path: Path, into: Foreign) -> None:
    """NVBench: one state per case, its cold GPU time a replicate; numbers come as typed strings."""
    devices = {str(device.get("id")): device for device in rows(data.get("devices"))}
    into.fact("gpu.names", ", ".join(text(device.get("name"), "unnamed") for device in devices.values()))
    for bench in rows(data.get("benchmarks")):
        for state in rows(bench.get("states")):
            _nvbench_state(text(bench.get("name"), "unnamed"), state, len(devices) > 1, into)


def _nvbench_state(bench: str, state: dict[str, Any], several: bool, into: Foreign) -> None:
    axes = [f"{text(axis.get('name'))}={axis.get('value')}" for axis in rows(state.get("axis_values"))]
    if several:
        axes.append(f"device={state.get('device')}")
    node = f"{bench}[{', '.join(axes)}]" if axes else bench
    if state.get("is_skipped") is True:
        into.case(node, CaseStatus.SKIPPED, text(state.get("skip_reason"), "no reason given"))
        return
    values = {text(row.get("tag")): _nvbench_value(row) for row in rows(state.get("summaries"))}
    tags = [f"nv/cold/time/gpu/{kind}" for kind in ("median", "mean")]
    value = next((values[tag] for tag in tags if values.get(tag) is not None), None)
    if value is None:
        into.case(node, CaseStatus.UNKNOWN, "the state holds no cold GPU time")
        return
    into.case(node)
    into.sample(node, "gpu_time", value, "s", _LOWER)
    into.metric(node, "samples", values.get("nv/cold/sample_size"), "1", exact=False)


def _nvbench_value(summary: dict[str, Any]) -> float | None:
    data = {text(entry.get("name")): entry.get("value") for entry in rows(summary.get("data"))}
    return number(data.get("value"))


READERS = {
    "vllm-latency": (is_vllm_latency, vllm_latency),
    "vllm-serve": (is_vllm_serve, vllm_serve),
    "pytest-benchmark": (is_pytest_benchmark, pytest_benchmark),
    "google-benchmark": (is_google_benchmark, google_benchmark),
    "nvbench": (is_nvbench, nvbench),
    "hyperfine": (is_hyperfine, hyperfine),
}

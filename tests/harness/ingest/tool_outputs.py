"""What other tools write, a short example of each: the JSON that `harness ingest` reads."""

from __future__ import annotations

VLLM_LATENCY = {"avg_latency": 1.5, "latencies": [1.4, 1.5, 1.6], "percentiles": {"10": 1.4, "99": 1.6}}
VLLM_SERVE = {
    "date": "20260101-000000",
    "backend": "vllm",
    "model_id": "m",
    "num_prompts": 100,
    "request_rate": "inf",
    "duration": 12.0,
    "completed": 100,
    "total_input_tokens": 1000,
    "total_output_tokens": 2000,
    "request_throughput": 8.3,
    "output_throughput": 166.0,
    "mean_ttft_ms": 30.0,
    "median_ttft_ms": 29.0,
    "p99_ttft_ms": 90.0,
    "median_tpot_ms": 6.0,
    "median_itl_ms": None,
}
PYTEST_BENCHMARK = {
    "machine_info": {
        "node": "box",
        "machine": "x86_64",
        "python_version": "3.11.7",
        "system": "Linux",
        "release": "6.1",
        "cpu": {"brand_raw": "Xeon 6148", "count": 20},
    },
    "commit_info": {"id": "abc", "dirty": True},
    "benchmarks": [
        {
            "group": None,
            "name": "test_a",
            "fullname": "t.py::test_a",
            "stats": {"min": 1.0, "max": 3.0, "median": 2.0, "data": [1.0, 2.0, 3.0], "ops": 0.5, "iterations": 1},
        }
    ],
    "version": "5.1.0",
}
GOOGLE = {
    "context": {"executable": "./b", "num_cpus": 8, "library_build_type": "debug", "cpu_scaling_enabled": True},
    "benchmarks": [
        {"name": "B/8", "run_name": "B/8", "run_type": "iteration", "repetition_index": 0, "iterations": 100,
         "real_time": 10.0, "cpu_time": 9.0, "time_unit": "us", "bytes_per_second": 1e9},
        {"name": "B/8", "run_name": "B/8", "run_type": "iteration", "repetition_index": 1, "iterations": 100,
         "real_time": 12.0, "cpu_time": 9.0, "time_unit": "us", "bytes_per_second": 1e9},
        {"name": "B/8_mean", "run_name": "B/8", "run_type": "aggregate", "aggregate_name": "mean", "real_time": 11.0,
         "time_unit": "us"},
        {"name": "B/8_cv", "run_name": "B/8", "run_type": "aggregate", "aggregate_name": "cv", "real_time": 0.1,
         "aggregate_unit": "percentage", "time_unit": "us"},
        {"name": "B_BigO", "run_name": "B", "run_type": "aggregate", "aggregate_name": "BigO", "real_coefficient": 1.0},
        {"name": "C", "run_name": "C", "run_type": "iteration", "error_occurred": True, "error_message": "boom"},
        {"name": "D", "run_name": "D", "skipped": True, "skip_message": "no GPU"},
        {"name": "E_median", "run_name": "E", "run_type": "aggregate", "aggregate_name": "median", "real_time": 5.0,
         "time_unit": "ns"},
    ],
}  # fmt: skip
HYPERFINE = {
    "results": [
        {"command": "sleep 1", "mean": 1.0, "stddev": None, "median": 1.0, "times": [1.0, 1.01], "exit_codes": [0, 0]},
        {"command": "x", "mean": 1.0, "median": 1.0, "times": [1.0], "exit_codes": [3], "parameters": {"n": "4"}},
    ]
}
NVBENCH = {
    "meta": {"version": {}},
    "devices": [{"id": 0, "name": "Tesla V100-SXM2-32GB", "sm_version": 700}],
    "benchmarks": [
        {
            "name": "copy",
            "states": [
                {
                    "device": 0,
                    "axis_values": [{"name": "Elements", "type": "int64", "value": "1024"}],
                    "is_skipped": False,
                    "summaries": [
                        {"tag": "nv/cold/sample_size", "data": [{"name": "value", "type": "int64", "value": "300"}]},
                        {
                            "tag": "nv/cold/time/gpu/mean",
                            "data": [{"name": "value", "type": "float64", "value": "1.25e-05"}],
                        },
                    ],
                },
                {"device": 0, "axis_values": [], "is_skipped": True, "skip_reason": "too large"},
                {"device": 0, "axis_values": [{"name": "T", "value": "F16"}], "is_skipped": False, "summaries": None},
            ],
        }
    ],
}

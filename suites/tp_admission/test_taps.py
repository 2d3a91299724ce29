"""Diagnostic taps own what they give back, in every form that code runs in; replicas count once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model.graphs import collector_held_off
from engine.parallel import tap as taps
from engine.parallel.tap import TapFile, parse_name, samples, write_tap
from suites.recording import Record
from suites.targets import Target
from suites.tp_admission import jobs
from suites.tp_admission.on_ranks import on_ranks


def test_a_tap_in_eager_code_owns_its_storage(record: Record) -> None:
    record.group("taps")
    x = torch.arange(4.0)
    out = taps.tap(x)
    assert torch.equal(out, x)
    out.zero_()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_tap_keeps_its_schema(record: Record) -> None:
    """Not aliasing, not mutating, and the traced form has the same shape: torch's own check of a custom operator."""
    record.group("taps")
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.sm70.tap.default, (torch.randn(3, 5),), test_utils=checks)


def test_a_traced_function_may_use_the_tapped_and_the_live_tensor(record: Record) -> None:
    """Were the tap its input, the compiler could write the second product over what was tapped from the first."""
    record.group("taps")

    def layer(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        live = x * 2
        saved = taps.tap(live)
        live.add_(1)
        return saved, live

    x = torch.randn(8)
    saved, live = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(saved, x * 2)
    assert torch.equal(live, x * 2 + 1)


def test_a_tap_in_a_captured_graph_owns_its_storage(gpu: Target, record: Record) -> None:
    record.group("taps")
    x = torch.ones(16, device=gpu.name)
    taps.tap(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with collector_held_off(), torch.cuda.graph(graph):
        out = taps.tap(x)
    for value in (1.0, -2.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(out, x)
        out.zero_()
        assert bool((x == value).all())


@pytest.mark.parametrize("size", [2, 4])
def test_files_of_real_ranks_carry_the_rank_and_replicas_count_once(size: int, tmp_path: Path, record: Record) -> None:
    """Two steps of one replicated and one sharded tensor: 4 ranks write 16 files, which are 2 + 8 samples.

    Each rank's environment says that it is rank 0.
    """
    record.group("taps")
    assert on_ranks(size, jobs.write_taps, tmp_path, {"RANK": "0"}) == list(range(size))
    files = list(tmp_path.iterdir())
    assert len(files) == 2 * 2 * size
    found = samples(files)
    assert [(sample.name, sample.step, len(sample.files)) for sample in found if sample.name == "hidden"] == [
        ("hidden", 0, size),
        ("hidden", 1, size),
    ]
    assert [len(sample.files) for sample in found if sample.name == "heads"] == [1] * (2 * size)
    record.metric("samples", len(found), "samples")


def test_a_second_file_of_the_same_name_is_refused(tmp_path: Path, record: Record) -> None:
    """Four ranks that all believe to be rank 0 cannot pass for four samples, nor for one."""
    record.group("taps")
    file = TapFile("hidden", 0, 0, 4)
    write_tap(tmp_path, file, torch.zeros(2))
    with pytest.raises(FileExistsError):
        write_tap(tmp_path, file, torch.ones(2))


def test_names_of_taps(tmp_path: Path, record: Record) -> None:
    record.group("taps")
    file = TapFile("layer.3.hidden", 12, 1, 4)
    assert str(file) == "layer.3.hidden.step-000012.rank-1-of-4.npy"
    assert parse_name(str(file)) == file
    with pytest.raises(ValueError, match=r"hidden\.npy: no tap wrote this"):
        parse_name("hidden.npy")
    one, other = TapFile("hidden", 0, 0, 2), TapFile("hidden", 0, 1, 4)
    paths = [write_tap(tmp_path, name, torch.zeros(1)) for name in (one, other)]
    with pytest.raises(ValueError, match="of 4 ranks, another file of that step of 2"):
        samples(paths)

"""Ranks on GPUs of their own, joined by NCCL: the cases of gloo again, graphs with collectives in them, whole models.

A case says NOT_RUN where the machine has fewer GPUs than it needs ranks. With one rank NCCL is there and moves nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InputError
from engine.ops.functional import dense_logits
from engine.parallel.launch import END_SECONDS, RankFailed
from suites.checkpoints.hybrid import config_with_heads, random_tensors, write_checkpoint
from suites.oracles import tolerance
from suites.oracles.collectives import best_candidates, ordered_sum
from suites.oracles.judge import assert_bits_equal
from suites.recording import Record
from suites.tp_admission import jobs, nccl_jobs
from suites.tp_admission.on_ranks import on_ranks
from suites.tp_admission.same_tokens import Gap, same_tokens
from suites.tp_admission.smollm2 import smollm2_path
from suites.tp_admission.test_models import PROMPT, SMOLLM2_PROMPT
from suites.tp_admission.test_quasar import QUESTIONS, quasar_config, quasar_prompt

pytestmark = pytest.mark.group("nccl")

SIZES = (1, 2, 4)
MORE = (2, 4)
TOKENS = 48
SMOLLM2_TOKENS = 64
START_SECONDS = 60.0
"""Processes, CUDA contexts, NCCL and kernels from PTX, at most."""

# As in `suites.kernels.engine_pairs`, and a partial sum rounded to float16 before it is added, twice a layer.
ROUNDINGS_A_LAYER = 12
HYBRID_LAYERS, SMOLLM2_LAYERS, QUASAR_LAYERS = 4, 30, 8


def _gap(layers: int) -> Gap:
    """What float16 may close, by the largest logit; either side has its own roundings."""
    return lambda largest: tolerance.half_logit_gap(largest, 2 * ROUNDINGS_A_LAYER * layers)


def require_gpus(count: int, record: Record) -> None:
    """End the case as NOT_RUN where there are fewer CUDA devices."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < count:
        record.not_run(f"needs {count} CUDA devices, there are {there}")


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_over_gpus_has_the_bits_of_the_ordered_reference(
    size: int, dtype: type[np.generic], record: Record
) -> None:
    require_gpus(size, record)
    rng = np.random.default_rng(size)
    parts = (rng.normal(size=(size, 3, 40)) * 2.0 ** rng.integers(-6, 6, (size, 3, 40))).astype(dtype)
    hidden = rng.normal(size=(3, 40)).astype(dtype)
    for rank, got in enumerate(on_ranks(size, jobs.summed, parts, hidden, "cuda", device="cuda")):
        assert_bits_equal(got, ordered_sum(parts, hidden), f"sum on GPU {rank} of {size}")


@pytest.mark.parametrize("size", SIZES)
def test_captured_collectives_read_their_inputs_at_replay(size: int, record: Record) -> None:
    """One graph of a sum and a gather, replayed eight times: the bits of the ordered reference each time."""
    require_gpus(size, record)
    rng = np.random.default_rng(10 + size)
    parts = rng.normal(size=(8, size, 5, 64)).astype(np.float16)
    hidden = rng.normal(size=(8, 5, 64)).astype(np.float16)
    columns = rng.normal(size=(8, size, 5, 33)).astype(np.float32)
    for rank, got in enumerate(on_ranks(size, nccl_jobs.replayed_collectives, parts, hidden, columns, device="cuda")):
        for step in range(8):
            expected = ordered_sum(parts[step], hidden[step])
            assert_bits_equal(got.sums[step], expected, f"replay {step} on GPU {rank}: sum")
            together = np.concatenate(list(columns[step]), axis=1)
            assert_bits_equal(got.columns[step], together, f"replay {step} on GPU {rank}: columns")


@pytest.mark.parametrize("size", MORE)
def test_fp32_head_over_gpus_is_the_head_of_one(size: int, record: Record) -> None:
    """Local dense logits and best candidates, merged: float32, the bits of one rank on one GPU, ties by lower id."""
    require_gpus(size, record)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 64)).astype(np.float16).astype(np.float32)
    weight = rng.normal(size=(192, 64)).astype(np.float16)
    weight[190], weight[99] = weight[1], weight[5]
    expected = dense_logits(torch.from_numpy(x).cuda().half(), torch.from_numpy(weight).cuda()).cpu().numpy()
    values, ids, ties = best_candidates(expected, 20)
    for answer in on_ranks(size, jobs.head_answer, x, weight, 20, True, "cuda", device="cuda"):
        assert answer.dtype == "torch.float32"
        assert_bits_equal(answer.dense, expected, f"dense logits over {size} GPUs")
        assert_bits_equal(answer.values, values, f"candidates over {size} GPUs")
        assert_bits_equal(answer.ids, ids, f"candidate ids over {size} GPUs")
        assert answer.cuts_a_tie.tolist() == ties


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads that four ranks can share, of a size that the routing policy knows."""
    tensors = random_tensors(times_heads=2, attention=(4, 2, 64))
    return write_checkpoint(tmp_path_factory.mktemp("nccl"), tensors, config_with_heads(2) | {"head_dim": 64})


def _hybrid_config(folder: Path, size: int, *, graphs: bool = True) -> EngineConfig:
    return EngineConfig(model=folder, tp=size, device="cuda", cuda_graphs=graphs, max_sequences=80, kv_cache_tokens=512)


@pytest.mark.parametrize("size", MORE)
def test_hybrid_over_gpus_gives_the_tokens_of_one(size: int, hybrid: Path, record: Record) -> None:
    require_gpus(size, record)
    same_tokens(partial(_hybrid_config, hybrid), size, PROMPT, TOKENS, _gap(HYBRID_LAYERS), record, "cuda")


@pytest.mark.parametrize("size", SIZES)
def test_graphs_with_collectives_change_no_token(size: int, hybrid: Path, record: Record) -> None:
    """Every rank replays as often as rank 0 does; eager rounds give the same tokens."""
    require_gpus(size, record)
    captured = on_ranks(size, nccl_jobs.graph_answer, _hybrid_config(hybrid, size), PROMPT, TOKENS, device="cuda")
    eager_config = _hybrid_config(hybrid, size, graphs=False)
    eager = on_ranks(size, nccl_jobs.graph_answer, eager_config, PROMPT, TOKENS, device="cuda")
    assert captured[0].token_ids == eager[0].token_ids
    # The first token comes from prefill, the first round runs eagerly, the second is captured and replayed at once.
    assert [answer.replayed for answer in captured] == [TOKENS - 2] * size
    assert [answer.replayed for answer in eager] == [0] * size


@pytest.mark.parametrize("size", MORE)
def test_smollm2_over_gpus_gives_the_tokens_of_one(size: int, record: Record) -> None:
    """Q4_1 and Q8_0 shares, heads padded where TP asks for it."""
    require_gpus(size, record)
    path = smollm2_path(record)

    def make(ranks: int) -> EngineConfig:
        return EngineConfig(model=path, tp=ranks, pad_heads=True, device="cuda", max_model_len=128, max_sequences=80)

    same_tokens(make, size, SMOLLM2_PROMPT, SMOLLM2_TOKENS, _gap(SMOLLM2_LAYERS), record, "cuda")


@pytest.mark.parametrize("size", MORE)
def test_quasar_over_gpus_gives_the_tokens_of_one(size: int, record: Record) -> None:
    """The trained hybrid model with NVFP4 weights, in graphs with the sums in them."""
    require_gpus(size, record)
    same_tokens(quasar_config("cuda"), size, quasar_prompt(), SMOLLM2_TOKENS, _gap(QUASAR_LAYERS), record, "cuda")


@pytest.mark.parametrize("size", MORE)
def test_a_draft_model_over_gpus_accepts_as_on_one(size: int, record: Record) -> None:
    """Rank 0 drafts, all ranks verify: the reply of one GPU, with drafts accepted in it."""
    require_gpus(size, record)
    make = quasar_config("cuda", drafted=True)
    same_tokens(make, size, quasar_prompt(), SMOLLM2_TOKENS, _gap(QUASAR_LAYERS), record, "cuda")
    (first, *_) = on_ranks(size, jobs.chat_texts, make(size), QUESTIONS, SMOLLM2_TOKENS, device="cuda")
    accepted = [sum(text.accepted) for text in first]
    record.metric("drafts accepted", sum(accepted), "tokens", better="higher", exact=False)
    assert min(accepted) > 0, f"drafts accepted in each reply: {accepted}; allowed: more than none"


@pytest.mark.parametrize("size", MORE)
def test_a_killed_rank_ends_the_run_with_its_name(size: int, tmp_path: Path, record: Record) -> None:
    """The others wait for it in NCCL, where nothing can be raised: the launcher ends them, and none is left."""
    require_gpus(size, record)
    began = time.monotonic()
    with pytest.raises(RankFailed, match=f"rank {size - 1} was killed by SIGKILL"):
        on_ranks(size, nccl_jobs.die_in_a_collective, size - 1, str(tmp_path), device="cuda")
    ended = time.monotonic()
    killed = max(path.stat().st_mtime for path in tmp_path.iterdir())
    assert ended - began < START_SECONDS + END_SECONDS
    assert time.time() - killed < END_SECONDS + 5.0  # the first sum sets up NCCL behind the files
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(pids) == size
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists(), f"process {pid} of a rank is still there"


def test_more_ranks_than_gpus_are_refused(record: Record) -> None:
    """Before anybody waits for anybody, in one sentence."""
    there = torch.cuda.device_count()
    allowed = f"--tp {there}" if there else "--device cpu"
    with pytest.raises(InputError, match=f"{there + 2} ranks need .* this machine has {there}; allowed: {allowed}"):
        on_ranks(there + 2, jobs.group_rank, {}, device="cuda")


# Asks the driver: torch would take each worker seconds to say the same.
WORKER_CASE = """
import ctypes, pathlib, time, pytest

@pytest.mark.parametrize("number", [0, 1])
def test_worker(number):
    driver, count, uuid = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert count.value == 1
    assert driver.cuDeviceGetUuid(uuid, 0) == 0
    folder = pathlib.Path(__file__).parent
    (folder / f"{number}.uuid").write_text(bytes(uuid).hex())
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.uuid"))) < 2:
        assert time.monotonic() < deadline, "the other worker never came"
        time.sleep(0.05)
"""


def test_workers_hold_different_gpus_at_once(tmp_path: Path, record: Record) -> None:
    """Two xdist workers of one session: each sees one GPU, another one, while both are there."""
    require_gpus(2, record)
    case = tmp_path / "test_worker.py"
    case.write_text(WORKER_CASE)
    plugins = ("-p", "xdist.plugin", "-p", "harness.pytest_plugin")
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", *plugins, str(case)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # others' plugins may import torch
    ran = subprocess.run(argv, env=alone, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert len({path.read_text() for path in tmp_path.glob("*.uuid")}) == 2

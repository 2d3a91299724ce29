"""A model on a device: where its tensors live, and the engine over the emulated SM70 kernels beside the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import InputError
from engine.model.buffers import PADDED_SEQUENCE, RowInputs, StagedInputs
from engine.model.device import HOST, ModelDevice, open_device
from engine.ops.functional import pack_int4
from native import emulation
from native.cuda_bindings import launch
from suites.kernels.engine_pairs import PROMPT, SMALL_HEADS, engine, greedy, hybrid_folder, judged_by_cpu
from suites.tp_admission import nccl_jobs
from suites.tp_admission.lockstep import in_lockstep


@pytest.fixture(scope="module")
def emulated() -> Iterator[None]:
    """Inside, "cuda" is the emulation."""
    with launch.emulated(emulation.build()):
        yield


@pytest.fixture(scope="module")
def model() -> Path:
    return hybrid_folder(SMALL_HEADS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu'; allowed: cpu, cuda, cuda:N"),
        (
            {"device": "cuda", "kv_cache_dtype": "float32"},
            "kv-cache-dtype is 'float32'; allowed on CUDA: auto",
        ),
    ],
)
def test_settings_that_no_device_takes(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        EngineConfig(**wrong)  # type: ignore[arg-type]


def test_a_card_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"device is 'cuda:99', there is .*; allowed here: cpu"):
        open_device("cuda:99")


def test_auto_cache_follows_the_device() -> None:
    assert EngineConfig().cache_format == "float32"
    assert EngineConfig(device="cuda").cache_format == "float16"
    assert EngineConfig(device="cuda", kv_cache_dtype="fp8_e4m3").cache_format == "fp8_e4m3"


def test_inputs_on_the_host_are_the_devices_own() -> None:
    """On the CPU there is one memory; nothing overlaps, and a fresh forward has no rows."""
    staged = StagedInputs(5, 3, 2, 4, torch.device("cpu"))
    assert (staged.host.initial_slots == PADDED_SEQUENCE).all()
    for number, name in enumerate(RowInputs.__dataclass_fields__):
        getattr(staged.host, name).fill_(number)
    for number, name in enumerate(RowInputs.__dataclass_fields__):
        assert (getattr(staged.device, name) == number).all()
    assert staged.device.first(2).token_ids.data_ptr() == staged.device.token_ids.data_ptr()


def test_weights_take_the_dtype_of_their_device() -> None:
    kernels = ModelDevice(torch.device("cpu"), torch.float16)
    matrix = torch.eye(4)
    assert HOST.matrix(matrix).dtype == torch.float32
    assert kernels.matrix(matrix).dtype == torch.float16
    assert kernels.vector(torch.ones(4)).dtype == torch.float32
    codes, zeros = torch.zeros(32, 32, dtype=torch.uint8), torch.zeros(32, 1, dtype=torch.uint8)
    packed = pack_int4(codes, torch.ones(32, 1, dtype=torch.float16), zeros)
    moved = kernels.weight(packed)
    assert type(moved) is type(packed)


def test_tokens_on_the_kernels_are_the_cpus(model: Path, emulated: None) -> None:
    """Where the CPU would have gone on otherwise, its two logits are as close as float16 activations may bring them."""
    llm = engine(model, "cuda")
    assert llm.runner.device.runs_kernels
    others = judged_by_cpu(model, 4, PROMPT, greedy(llm, 16))
    assert all(seen.gap < seen.allowed for seen in others), others
    assert len(others) <= 2
    assert llm.runner.attention.routes() == {"decode_scalar": 15, "prefill_paged": 1}


def test_two_ranks_on_the_kernels_give_the_tokens_of_one(
    model: Path, emulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks as threads of this process; sums are the oracle's."""

    def config(size: int) -> EngineConfig:
        return EngineConfig(model=model, tp=size, device="cuda", max_sequences=40, kv_cache_tokens=256)

    (one,) = in_lockstep(1, nccl_jobs.text_answer, config(1), list(PROMPT), 8, monkeypatch=monkeypatch)
    many, *_ = in_lockstep(2, nccl_jobs.text_answer, config(2), list(PROMPT), 8, monkeypatch=monkeypatch)
    assert many.token_ids == one.token_ids
    assert (many.logits != one.logits).any(), "the second rank took no part"

"""Who runs an op: every refusal with its reason, and no fallback."""

from __future__ import annotations

import pytest

from engine.ops.dispatch import Dispatch, DispatchError, Refusal, Runner, Situation, decide

LIBRARY = {"rms_norm_cpu": 1, "rms_norm_cuda": 2}


def _situation(
    device: str,
    *,
    capabilities: dict[str, int] | None = None,
    card: tuple[int, int] | None = None,
    kernels_on: str = "cuda",
) -> Situation:
    library = LIBRARY if capabilities is None else capabilities
    return Situation("rms_norm", device, library, card, kernels_on)


def test_the_cpu_runs_the_cpu_op() -> None:
    assert decide(_situation("cpu")) == Dispatch(
        Runner.NATIVE_CPU, (Refusal(Runner.NATIVE_CUDA, "its tensors are on cpu"),)
    )


@pytest.mark.parametrize("card", [(7, 0), (9, 0)])
def test_cuda_runs_the_cuda_op(card: tuple[int, int]) -> None:
    chosen = decide(_situation("cuda", card=card))
    assert chosen.runner is Runner.NATIVE_CUDA
    assert chosen.refused[0] == Refusal(Runner.NATIVE_CPU, "its tensors are on cuda")


def test_emulated_kernels_own_the_cpu_tensors() -> None:
    assert decide(_situation("cpu", kernels_on="cpu")).runner is Runner.NATIVE_CUDA


@pytest.mark.parametrize(
    ("situation", "said"),
    [
        (_situation("cuda", capabilities={"rms_norm_cpu": 1}), "the library has no rms_norm_cuda; rebuild"),
        (_situation("cpu", capabilities={}), "the library has no rms_norm_cpu; rebuild"),
        (_situation("cuda", card=(6, 1)), "the card has compute capability 6.1, 7.0 is the oldest"),
        (_situation("xpu"), "its tensors are on xpu"),
    ],
    ids=["no cuda op", "no cpu op", "old card", "other device"],
)
def test_nothing_takes_the_place_of_what_cannot_run(situation: Situation, said: str) -> None:
    with pytest.raises(DispatchError, match=f"no implementation of rms_norm may run on {situation.device}: ") as error:
        decide(situation)
    assert said in str(error.value)

"""The name of the KV cache's format: the alias alone moves, and only where the published rule says so."""

from __future__ import annotations

from itertools import product
from typing import NoReturn

import pytest

from engine.routing.kv_dtype import BACKENDS_OTHER, BACKENDS_SM70, Codec, backend_priority, codec_of, resolve_kv_dtype
from engine.routing.request import Capability, Platform
from suites.oracles import routing as oracle
from suites.recording import Record

pytestmark = pytest.mark.group("routing: KV dtype")

NAMES = ("auto", "float16", "bfloat16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "int8")
CARDS: tuple[Capability, ...] = ((6, 1), (7, 0), (7, 2), (7, 5), (8, 0), (9, 0))


class Asked:
    """A capability that counts how often it was asked."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability
        self.times = 0

    def __call__(self) -> Capability:
        self.times += 1
        return self.capability


def _never() -> NoReturn:
    raise AssertionError("the capability was asked where it cannot matter")


def test_the_alias_means_e5m2_on_sm70() -> None:
    assert resolve_kv_dtype("fp8", Platform.CUDA, True, lambda: (7, 0)) == "fp8_e5m2"


@pytest.mark.parametrize(
    "capability", [(6, 1), (7, 2), (7, 5), (8, 0), (9, 0)], ids=lambda card: f"{card[0]}.{card[1]}"
)
def test_the_alias_stands_on_other_cards(capability: Capability) -> None:
    assert resolve_kv_dtype("fp8", Platform.CUDA, True, lambda: capability) == "fp8"


@pytest.mark.parametrize("name", NAMES)
def test_no_capability_is_asked_with_the_backend_off(name: str) -> None:
    """And the name stands, ``fp8`` too: elsewhere it has another meaning."""
    assert resolve_kv_dtype(name, Platform.CUDA, False, _never) == name


@pytest.mark.parametrize("name", NAMES)
def test_no_capability_is_asked_without_cuda(name: str) -> None:
    assert resolve_kv_dtype(name, Platform.CPU, True, _never) == name


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fp8"])
def test_explicit_names_stand_on_sm70(name: str) -> None:
    """A name that says what it is, is never rewritten; the device need not even be asked."""
    assert resolve_kv_dtype(name, Platform.CUDA, True, _never) == name


@pytest.mark.parametrize("checkpoint", ["fp8_e4m3", "fp8_e5m2", "float16", "fp8"])
def test_auto_takes_what_the_checkpoint_states(checkpoint: str) -> None:
    assert resolve_kv_dtype("auto", Platform.CUDA, True, _never, checkpoint=checkpoint) == checkpoint


@pytest.mark.parametrize("name", [name for name in NAMES if name != "auto"])
def test_an_explicit_name_wins_over_the_checkpoint(name: str) -> None:
    resolved = resolve_kv_dtype(name, Platform.CUDA, True, lambda: (7, 5), checkpoint="fp8_e4m3")
    assert resolved == name


def test_everything_against_the_oracle(record: Record) -> None:
    """Every name, card, switch, platform and checkpoint: the resolved name, and how often the device was asked."""
    cases = 0
    for name, card, backend, cuda, checkpoint in product(
        NAMES, CARDS, (True, False), (True, False), (None, "fp8_e4m3")
    ):
        asked = Asked(card)
        resolved = resolve_kv_dtype(
            name, Platform.CUDA if cuda else Platform.CPU, backend, asked, checkpoint=checkpoint
        )
        told = f"{name} on {card}, backend {backend}, cuda {cuda}, checkpoint {checkpoint}"
        assert resolved == oracle.stored_name(
            name, cuda=cuda, backend=backend, capability=card, checkpoint=checkpoint
        ), told
        may_ask = oracle.asks_capability(name, cuda=cuda, backend=backend, checkpoint=checkpoint)
        assert asked.times == may_ask, f"asked {asked.times} times for {told}"
        cases += 1
    record.metric("resolutions", cases, "cases")


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("auto", Codec.PLAIN),
        ("float16", Codec.PLAIN),
        ("bfloat16", Codec.PLAIN),
        ("fp8", Codec.E4M3),
        ("fp8_e4m3", Codec.E4M3),
        ("fp8_e5m2", Codec.E5M2),
        ("int8", None),
    ],
)
def test_what_a_name_decodes_as(name: str, codec: Codec | None) -> None:
    """An ``fp8`` that reaches storage unresolved means E4M3."""
    assert codec_of(name) is codec


@pytest.mark.parametrize("capability", CARDS, ids=lambda card: f"{card[0]}.{card[1]}")
def test_backends_by_card(capability: Capability) -> None:
    wanted = BACKENDS_SM70 if capability == (7, 0) else BACKENDS_OTHER
    assert backend_priority(Platform.CUDA, True, lambda: capability) == wanted


def test_the_sm70_backend_hides_the_stock_one() -> None:
    """The stock kernel does not exist for this card, so it must not be in the list that is tried."""
    assert BACKENDS_SM70[:2] == ("FLASH_ATTN_V100", "TRITON")
    assert "FLASH_ATTN" not in BACKENDS_SM70
    assert BACKENDS_OTHER[:3] == ("FLASH_ATTN", "FLASHINFER", "TRITON")
    assert "FLASH_ATTN_V100" not in BACKENDS_OTHER


@pytest.mark.parametrize("platform", Platform, ids=str)
def test_backends_with_the_switch_off_ask_no_device(platform: Platform) -> None:
    assert backend_priority(platform, False, _never) == BACKENDS_OTHER

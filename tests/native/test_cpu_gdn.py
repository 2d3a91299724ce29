"""Gated DeltaNet on the CPU against its twin in fp64: recurrence, chunks, state slots, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine.ops import functional, reference
from tests.native.cpu_paths import assert_same_bits, same_on_every_path


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of these lengths from these slots; ``kept`` names the slot of every token."""

    lengths: tuple[int, ...]
    initial: tuple[int, ...]
    kept: tuple[int, ...]
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 32
    value_dim: int = 24

    def build(self) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(sum(self.lengths))
        tokens, states = sum(self.lengths), 12

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw)

        return {
            "q": random(tokens, self.key_heads, self.key_dim),
            "k": random(tokens, self.key_heads, self.key_dim),
            "v": random(tokens, self.value_heads, self.value_dim),
            "log_decay": -random(tokens, self.value_heads).abs() * 0.3,
            "beta": random(tokens, self.value_heads).sigmoid(),
            "state": random(states, self.value_heads, self.value_dim, self.key_dim),
            "initial_slots": integers(*self.initial),
            "slots": integers(*self.kept),
            "query_start": integers(0, *torch.tensor(self.lengths).cumsum(0).tolist()),
        }


def last_only(lengths: tuple[int, ...], slots: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(slot if t == n - 1 else -1 for n, slot in zip(lengths, slots, strict=True) for t in range(n))


VERIFY = Batch((8, 2, 3), (10, -1, 11), (0, 1, 2, 3, 4, 5, 6, 7, -1, -1, 8, -1, 9))
ODD = Batch((3,), (1,), (-1, 5, -1), key_heads=1, value_heads=3, key_dim=20, value_dim=5)
LENGTHS = (130, 64, 1, 65)
PREFILL = Batch(LENGTHS, (0, 1, -1, 3), last_only(LENGTHS, (4, 1, -1, 6)), value_dim=40)


def run(op: Callable[..., torch.Tensor], arguments: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    state = arguments["state"].clone()
    return op(**(arguments | {"state": state})), state


def fp64(op: Callable[..., torch.Tensor], arguments: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return run(op, {name: t.double() if t.is_floating_point() else t for name, t in arguments.items()})


def assert_close(seen: torch.Tensor, exact: torch.Tensor, tokens: int) -> None:
    """Each token rounds state and output about dk + 8 times; decays keep errors from growing past their sum."""
    allowed = tokens**0.5 * 64 * 2.0**-24 * exact.abs().max()
    assert (seen.double() - exact).abs().max() <= allowed


@pytest.mark.parametrize("batch", [VERIFY, ODD, PREFILL], ids=["verify", "odd", "prefill"])
def test_recurrence_against_fp64_on_every_path(batch: Batch) -> None:
    arguments = batch.build()
    out, state = same_on_every_path(lambda: run(functional.gdn_recurrent, arguments))
    exact_out, exact_state = fp64(reference.gdn_recurrent, arguments)
    assert_close(out, exact_out, max(batch.lengths))
    assert_close(state, exact_state, max(batch.lengths))


@pytest.mark.parametrize("strong", [1.0, 60.0], ids=["usual decay", "decay that underflows"])
def test_chunks_are_the_recurrence(strong: float) -> None:
    arguments = PREFILL.build()
    arguments["log_decay"] *= strong
    out, state = same_on_every_path(lambda: run(functional.gdn_chunk, arguments))
    for twin in (reference.gdn_recurrent, reference.gdn_chunk):
        exact_out, exact_state = fp64(twin, arguments)
        assert_close(out, exact_out, 130)
        assert_close(state, exact_state, 130)


def test_slots_keep_each_drafted_position_and_touch_nothing_else() -> None:
    arguments = VERIFY.build()
    out, state = run(functional.gdn_recurrent, arguments)
    assert (out[8:10] == 0).all(), "rows of a padded sequence are zero"
    assert_same_bits(state[10:], arguments["state"][10:], "slots that no token names")
    # Going on from the slot of the fourth token gives the bits of having gone on without a stop.
    tail = {name: arguments[name][4:8] for name in ("q", "k", "v", "log_decay", "beta")}
    rest = tail | {"state": state, "initial_slots": integers(3), "query_start": integers(0, 4)}
    again, _ = run(functional.gdn_recurrent, rest | {"slots": integers(-1, -1, -1, -1)})
    assert_same_bits(again, out[4:8], "resumed")


def test_the_initial_slot_may_be_written_too() -> None:
    batch = Batch((5,), (2,), (-1, 2, -1, -1, 2))
    arguments = batch.build()
    elsewhere = arguments | {"slots": integers(-1, 4, -1, -1, 5)}
    out, state = run(functional.gdn_recurrent, arguments)
    expected, other = run(functional.gdn_recurrent, elsewhere)
    assert_same_bits(out, expected, "output")
    assert_same_bits(state[2], other[5], "the last state")


def conv(batch: Batch = VERIFY, channels: int = 37) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(channels)
    tokens = sum(batch.lengths)
    places = {name: value for name, value in batch.build().items() if "slots" in name or name == "query_start"}
    return places | {
        "x": torch.randn(tokens, channels + 5, generator=draw)[:, 2 : 2 + channels],
        "weight": torch.randn(channels, 4, generator=draw),
        "state": torch.randn(12, 3, channels, generator=draw),
    }


@pytest.mark.parametrize("channels", [1, 16, 37, 100])
@pytest.mark.parametrize("batch", [VERIFY, PREFILL], ids=["verify", "prefill"])
def test_convolution_against_fp64_and_its_state_exactly(batch: Batch, channels: int) -> None:
    arguments = conv(batch, channels)
    out, state = same_on_every_path(lambda: run(functional.gdn_conv, arguments))
    exact, _ = fp64(reference.gdn_conv, arguments)
    # Four products and sums of numbers below 5 each, then SiLU, whose slope is at most 1.1.
    assert (out.double() - exact).abs().max() <= 1.1 * 8 * 100 * 2.0**-24
    assert_same_bits(state, run(reference.gdn_conv, arguments)[1], "state")


def test_gates_against_fp64_from_one_end_of_softplus_to_the_other() -> None:
    a = torch.linspace(-100, 100, 4000).view(400, 10)
    arguments = (a, a.flip(0), torch.linspace(-3, 3, 10), torch.linspace(-1, 1, 10))
    log_decay, beta = same_on_every_path(lambda: functional.gdn_gates(*arguments))
    wide = [t.double() for t in arguments]
    # The sum a + dt_bias is rounded to float32 first; at -80 that alone moves exp of it by 40 units.
    exact = -wide[2].exp() * torch.nn.functional.softplus((arguments[0] + arguments[3]).double(), threshold=1000)
    # exp of a_log and of the argument, a sum, a quotient, ten series terms, two products: 2 + 2 + 6 units at most.
    assert ((log_decay.double() - exact).abs() <= 12 * 2.0**-24 * exact.abs() + 2e-37).all()
    sigmoid = wide[1].sigmoid()
    assert ((beta.double() - sigmoid).abs() <= 5 * 2.0**-24 * sigmoid + 2e-37).all()
    assert (log_decay <= 0).all()


@pytest.mark.parametrize("dim", [1, 16, 24, 128])
def test_gated_norm_against_fp64(dim: int) -> None:
    wide = torch.randn(5, 3 * dim + 7)
    x, z, weight = wide[:, : 3 * dim].view(5, 3, dim), torch.randn(5, 3, dim) * 4, torch.randn(dim)
    (out,) = same_on_every_path(lambda: (functional.gdn_gated_rms_norm(x, z, weight, 1e-6),))
    exact = reference.gdn_gated_rms_norm(x.double(), z.double(), weight.double(), 1e-6)
    assert ((out.double() - exact).abs() <= (dim / 32 + 14) * 2.0**-23 * exact.abs() + 1e-37).all()


def recurrent(**changes: Any) -> Callable[[], object]:
    return lambda: functional.gdn_recurrent(**(VERIFY.build() | changes))


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("initial_slots[1] is 12, allowed -1 (padding) to 11", recurrent(initial_slots=integers(10, 12, 11))),
    ("initial_slots[0] is -2, allowed", recurrent(initial_slots=integers(-2, 0, 11))),
    ("slots[2] is 12, allowed -1 (not kept) to 11", recurrent(slots=integers(0, 1, 12, *range(10)))),
    ("query_start: runs from 0 to 12, need 0 to the 13 rows", recurrent(query_start=integers(0, 8, 10, 12))),
    ("query_start[2] is 7 after 8, need ascending", recurrent(query_start=integers(0, 8, 7, 13))),
    ("slots: saw dtype torch.int64", recurrent(slots=torch.zeros(13, dtype=torch.int64))),
    ("v: saw 3 value heads over 2 key heads", recurrent(v=torch.zeros(13, 3, 24))),
    ("state: saw shape (12, 4, 24, 16), need [any, 4, 24, 32]", recurrent(state=torch.zeros(12, 4, 24, 16))),
    ("log_decay: saw shape (13, 2), need [13, 4]", recurrent(log_decay=torch.zeros(13, 2))),
    ("the heads of a token must lie together", recurrent(q=torch.zeros(13, 2, 40)[:, :, :32])),
    (
        "slots[0] is 0: in chunks only the last token of a sequence may keep its state",
        lambda: functional.gdn_chunk(**VERIFY.build()),
    ),
    (
        "weight: saw shape (37, 3), need [37, 4]",
        lambda: functional.gdn_conv(**(conv() | {"weight": torch.zeros(37, 3)})),
    ),
    (
        "eps: saw 0.0",
        lambda: functional.gdn_gated_rms_norm(torch.zeros(1, 1, 8), torch.zeros(1, 1, 8), torch.ones(8), 0.0),
    ),
]


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message[:40] for message, _ in REFUSED])
def test_refused_with_what_was_seen_and_what_is_allowed(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()

"""The counter-based generator: published answers, one stream a purpose, the same numbers one by one and in a tensor."""

from __future__ import annotations

import pytest
import torch

from engine.sampling import random
from engine.sampling.random import Purpose

ONES = 0xFFFF_FFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    """The known-answer vectors published with the generator."""
    assert random.philox4x32(counter, key) == words


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**63 + 5])
def test_a_tensor_has_the_bits_of_its_single_numbers(seed: int) -> None:
    positions = [0, 7, 2**32 - 1, 2**32, 2**40 + 3]
    together = random.random_bits_tensor([seed] * len(positions), positions, Purpose.RECOVER)
    assert [bits & (2**64 - 1) for bits in together.tolist()] == [
        random.random_bits(seed, position, Purpose.RECOVER) for position in positions
    ]


def test_positions_together_are_positions_one_by_one() -> None:
    positions = [0, 1, 5, 2**32 - 1, 2**32, 2**40]
    together = random.random_bits_at(9, torch.tensor(positions), Purpose.RECOVER)
    single = random.random_bits_tensor([9] * len(positions), positions, Purpose.RECOVER)
    assert torch.equal(together, single)


def test_every_part_of_the_key_changes_the_number() -> None:
    numbers = {
        random.random_bits(seed, position, purpose, index)
        for seed in (1, 2, (1 << 40) + 1)  # equal to the first in the low word
        for position in (0, 1, 1 << 40)
        for purpose in Purpose
        for index in (0, 1)
    }
    assert len(numbers) == 3 * 3 * 4 * 2


@pytest.mark.parametrize(("bits", "expected"), [(0, 2.0**-53), (2**64 - 1, 1 - 2.0**-53), (1 << 63, 0.5 + 2.0**-53)])
def test_uniform_is_open_at_both_ends(monkeypatch: pytest.MonkeyPatch, bits: int, expected: float) -> None:
    monkeypatch.setattr(random, "random_bits", lambda *key: bits)
    assert random.uniform(0, 0, Purpose.ACCEPT) == expected
    assert 0 < expected < 1

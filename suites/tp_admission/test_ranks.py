"""Who a process is, what ranks add up, and that rank 0's forwards reach the others whole."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InputError
from engine.model.followers import Announcement, parse
from engine.model.runner import SequenceRows
from engine.parallel.rank import current_rank, started_ranks
from engine.state.sequence import Reservation
from engine.state.slots import StateRows
from suites.oracles.collectives import ordered_sum
from suites.oracles.judge import assert_bits_equal
from suites.recording import Record
from suites.tp_admission import jobs
from suites.tp_admission.on_ranks import on_ranks

STALE = {"RANK": "0", "LOCAL_RANK": "0"}


@pytest.mark.parametrize("rank", range(4))
def test_the_group_knows_better_than_a_stale_environment(rank: int, record: Record) -> None:
    record.group("rank")
    assert current_rank(rank, STALE) == rank


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, 0), ({"LOCAL_RANK": "2"}, 2), ({"RANK": "3", "LOCAL_RANK": "1"}, 3)],
    ids=["nothing-set", "local-rank", "rank-wins"],
)
def test_before_there_is_a_group_the_environment_says(environment: dict[str, str], rank: int, record: Record) -> None:
    record.group("rank")
    assert current_rank(None, environment) == rank


def test_a_rank_that_is_no_number_is_refused(record: Record) -> None:
    record.group("rank")
    with pytest.raises(InputError, match="RANK is 'first'; allowed: a whole number"):
        current_rank(None, {"RANK": "first"})


@pytest.mark.parametrize("asked", [1, 2])
def test_another_world_size_is_refused(asked: int, record: Record) -> None:
    record.group("rank")
    assert not started_ranks(asked, {})
    assert started_ranks(asked, {"WORLD_SIZE": str(asked)}) == (asked > 1)
    with pytest.raises(InputError, match=f"WORLD_SIZE is 4 and --tp asks for {asked} ranks"):
        started_ranks(asked, {"WORLD_SIZE": "4"})


@pytest.mark.parametrize("size", [2, 4])
def test_real_ranks_tell_who_they_are(size: int, record: Record) -> None:
    record.group("rank")
    assert on_ranks(size, jobs.group_rank, STALE) == [(rank, rank) for rank in range(size)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_sum_over_ranks_has_the_bits_of_the_ordered_reference(
    size: int, dtype: type[np.generic], record: Record
) -> None:
    """Values of both signs and 12 binades: another order of adding gives other bits."""
    record.group("ordered sum")
    rng = np.random.default_rng(size)
    parts = (rng.normal(size=(size, 3, 40)) * 2.0 ** rng.integers(-6, 6, (size, 3, 40))).astype(dtype)
    hidden = rng.normal(size=(3, 40)).astype(dtype)
    expected = ordered_sum(parts, hidden)
    for rank, got in enumerate(on_ranks(size, jobs.summed, parts, hidden, "cpu")):
        assert_bits_equal(got, expected, f"sum on rank {rank} of {size}")
    if size == 4 and dtype is np.float32:
        assert (ordered_sum(parts[::-1], hidden) != expected).any(), "the data cannot tell one order from another"


def test_an_announcement_survives_the_way(record: Record) -> None:
    record.group("followers")
    recurrent = SequenceRows((7, 8), Reservation(3, (19, 20), StateRows(4, (-1, 5))), (1, 2), 1)
    plain = SequenceRows((9,), Reservation(0, (32,), None), (2,), 0)
    sent = Announcement((recurrent, plain), prefill=True)
    assert parse(sent.integers()) == sent


def test_followers_hear_what_rank_0_tells(record: Record) -> None:
    """Announcements that fit into one message, that just do, that just do not, and that take a long second one."""
    record.group("followers")
    rows = [list(range(7, 7 + length)) for length in (1, 254, 255, 256, 257, 3, 4000)]
    assert on_ranks(2, jobs.heard, rows) == [rows, rows]


@pytest.mark.parametrize("change", [lambda flat: flat[:-1], lambda flat: [*flat, 0]], ids=["cut-short", "one-more"])
def test_a_damaged_announcement_is_refused(change: object, record: Record) -> None:
    record.group("followers")
    assert callable(change)
    flat = Announcement((SequenceRows((9,), Reservation(0, (32,), None), (2,), 0),), prefill=False).integers()
    with pytest.raises(ValueError, match="announcement"):
        parse(change(flat))

"""Graph capture: which length decides, which sizes are captured, what a persistent buffer holds, what padding reads."""

from __future__ import annotations

import inspect
from itertools import product

import pytest

from engine.routing import Route, RouteRequest
from engine.routing.capture import (
    DFLASH2_WIDTH,
    MTP_WIDTH,
    captured_size,
    check_capacity,
    plain_capture_sizes,
    speculative_capture_sizes,
)
from engine.routing.layout import expand_rows, kv_axis
from engine.routing.plan import sequence_hint, smallq_hint
from suites.oracles import routing as oracle
from suites.routing.axes import call, check

pytestmark = pytest.mark.group("routing: capture")

STATIC, CAPACITY, LONGEST = 30000, 50000, 1025


def _hinted(*, capturing: bool, static: bool, capacity: bool) -> RouteRequest:
    return call(
        "decode",
        1,
        LONGEST,
        capturing=capturing,
        static_hint=STATIC if static else None,
        workspace_capacity=CAPACITY if capacity else None,
    )


@pytest.mark.parametrize(
    ("static", "capacity", "tokens", "source"),
    [
        (True, True, STATIC, "static hint"),
        (True, False, STATIC, "static hint"),
        (False, True, CAPACITY, "workspace capacity"),
        (False, False, LONGEST, "longest sequence"),
    ],
    ids=["both", "static", "capacity", "neither"],
)
def test_captured_precedence(static: bool, capacity: bool, tokens: int, source: str) -> None:
    """Static hint, then workspace capacity, then the longest sequence: lengths under capture are dummies."""
    hint = sequence_hint(_hinted(capturing=True, static=static, capacity=capacity))
    assert (hint.tokens, hint.source) == (tokens, source)


@pytest.mark.parametrize(("static", "capacity"), list(product((True, False), repeat=2)))
def test_eager_precedence(static: bool, capacity: bool) -> None:
    """The host knows the longest sequence; what a graph was sized for does not matter."""
    hint = sequence_hint(_hinted(capturing=False, static=static, capacity=capacity))
    assert (hint.tokens, hint.source) == (LONGEST, "longest sequence")


def test_the_metadata_hint_counts_as_the_longest_sequence() -> None:
    assert sequence_hint(call("decode", 1, 1025, max_seq_hint=2000)).tokens == 2000


@pytest.mark.parametrize(
    ("capturing", "capacity", "tokens"),
    [(True, 4096, 4096), (True, None, 768), (False, 4096, 768), (True, 512, 768)],
)
def test_small_q_precedence(capturing: bool, capacity: int | None, tokens: int) -> None:
    request = call("verify", 5, 768, capturing=capturing, workspace_capacity=capacity)
    assert smallq_hint(request).tokens == tokens


@pytest.mark.parametrize(("static", "route"), [(8192, "scalar"), (16383, "scalar"), (16384, "xqa"), (262144, "xqa")])
def test_the_captured_route_follows_the_static_hint(static: int, route: str) -> None:
    """All capture calls have length 1. Were that or the capacity to decide, every graph would hold the same route."""
    request = call("decode", 1, 1, kv_dtype="fp8_e5m2", capturing=True, static_hint=static, workspace_capacity=262144)
    assert check(request).route == f"decode_{route}"


@pytest.mark.parametrize("static", [8192, 16384])
def test_a_replay_serves_any_length_up_to_its_envelope(static: int) -> None:
    """One graph, all lengths: the route and the launch are the captured ones, the kernel reads the length itself."""
    plan = check(call("decode", 1, 1, capturing=True, static_hint=static)).plan
    assert plan is not None
    for length in (1, 127, 2049, 4097, static):
        plan.check_replay(length)


@pytest.mark.parametrize("q_len", [2, 5, 8, 16])
def test_captured_small_q_needs_persistent_rows(q_len: int) -> None:
    captured = call("verify", q_len, q_len, capturing=True)
    assert check(captured).route is Route.SMALLQ_SCALAR
    refused = check(call("verify", q_len, q_len, capturing=True, persistent_rows=False))
    assert refused.refused_by is not None
    assert refused.refused_by.rule == "capture.persistent_rows"


@pytest.mark.parametrize("max_num_seqs", [*range(1, 20), 32, 64, 256])
def test_plain_sizes(max_num_seqs: int) -> None:
    assert plain_capture_sizes(max_num_seqs) == oracle.plain_captures(max_num_seqs)


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (12, [1, 2, 4, 8, 12]), (256, [1, 2, 4, 8, 16])],
)
def test_plain_sizes_as_published(max_num_seqs: int, sizes: list[int]) -> None:
    assert plain_capture_sizes(max_num_seqs) == sizes


@pytest.mark.parametrize("width", [MTP_WIDTH, DFLASH2_WIDTH], ids=["mtp", "dflash2"])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 4, 5, 7, 8, 11, 12, 16, 17, 32, 256])
def test_speculative_sizes(max_num_seqs: int, width: int) -> None:
    sizes = speculative_capture_sizes(max_num_seqs, width)
    assert sizes == oracle.speculative_captures(max_num_seqs, width)
    assert all(size % width == 0 for size in sizes)


@pytest.mark.parametrize(("max_num_seqs", "sizes"), [(1, [5]), (32, [5, 10, 15, 20, 30, 40, 60, 80])])
def test_mtp_sizes_as_published(max_num_seqs: int, sizes: list[int]) -> None:
    assert speculative_capture_sizes(max_num_seqs, MTP_WIDTH) == sizes


def test_sizes_do_not_know_tensor_parallelism() -> None:
    """Every rank must capture the same list, so nothing about ranks may enter it."""
    for function in (plain_capture_sizes, speculative_capture_sizes):
        assert set(inspect.signature(function).parameters) <= {"max_num_seqs", "width"}


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_of_nothing_raise(size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plain_capture_sizes(size)
    with pytest.raises(ValueError, match="at least 1"):
        speculative_capture_sizes(4, size)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (4, 4), (12, 12), (13, None)])
def test_the_smallest_graph_that_holds_the_rows(rows: int, size: int | None) -> None:
    assert captured_size(rows, plain_capture_sizes(12)) == size


@pytest.mark.parametrize("needed", [3, 4])
def test_a_buffer_that_holds_enough(needed: int) -> None:
    check_capacity("small-q rows", needed, 4)


def test_a_buffer_never_grows() -> None:
    with pytest.raises(RuntimeError, match="5 needed, persistent buffer capacity is 4"):
        check_capacity("small-q rows", 5, 4)


@pytest.mark.parametrize(
    ("queries", "lengths", "graph", "rows", "owner"),
    [
        ((4,), (4,), None, (1, 2, 3, 4), (0, 0, 0, 0)),
        ((4,), (8,), None, (5, 6, 7, 8), (0, 0, 0, 0)),
        ((3, 2, 0), (8, 7, 0), 6, (6, 7, 8, 6, 7, 0), (0, 0, 0, 1, 1, -1)),
        ((5,), (65536,), 5, (65532, 65533, 65534, 65535, 65536), (0,) * 5),
        ((1, 1), (300, 17), 4, (300, 17, 0, 0), (0, 1, -1, -1)),
        ((), (), 2, (0, 0), (-1, -1)),
    ],
    ids=["capture", "replay", "padded", "long", "decode", "empty"],
)
def test_expanded_rows(
    queries: tuple[int, ...],
    lengths: tuple[int, ...],
    graph: int | None,
    rows: tuple[int, ...],
    owner: tuple[int, ...],
) -> None:
    """Prefix + 1 up to prefix + q for each request; padded rows have length 0 and no request."""
    expanded = expand_rows(queries, lengths, graph)
    assert expanded.lengths == rows
    assert expanded.owner == owner


def test_a_dummy_length_under_its_rows_raises() -> None:
    """Length 1 with 8 rows would give rows of length -6 .. 1, and every replay after it NaN."""
    with pytest.raises(ValueError, match="1 tokens and 8 query rows"):
        expand_rows((8,), (1,))


def test_rows_that_exceed_their_graph_raise() -> None:
    with pytest.raises(ValueError, match="7 rows do not fit into a graph of 6"):
        expand_rows((4, 3), (9, 9), 6)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5, 2, 16, 1, 256), 1),
        ((2, 5, 16, 1, 256), 0),
        ((2, 2, 16, 1, 256), 1),
        ((2, 2, 2, 2, 2), 1),
        ((1, 2, 784, 4, 128), 1),
        ((2, 1, 784, 4, 128), 0),
    ],
    ids=["engine", "kv_first", "two_blocks", "all_two", "one_block", "kv_first_one_block"],
)
def test_axis_of_keys_and_values(shape: tuple[int, ...], axis: int) -> None:
    """With two blocks both axes have two entries; the engine's own layout wins."""
    assert kv_axis(shape) == axis


@pytest.mark.parametrize("shape", [(5, 3, 16, 1, 256), (2, 16, 1, 256), (5, 2, 16, 1, 256, 1), ()])
def test_other_shapes_are_no_cache(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="KV cache of shape"):
        kv_axis(shape)

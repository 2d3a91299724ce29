"""How a KV length is cut: the published sizes, and the three counts that must cover each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from engine.routing import PartitionPlan, Route, RouteRequest, decide
from engine.routing.plan import GROUPED_SPLITS, GROUPED_TILE
from suites.routing.axes import call, check

pytestmark = pytest.mark.group("routing: partitions")

E5M2, E4M3 = "fp8_e5m2", "fp8_e4m3"


def _plan(request: RouteRequest) -> PartitionPlan:
    plan = check(request).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("dtype", "page", "size"),
    [
        ("auto", 784, 256),
        ("auto", 783, 1024),
        ("auto", 800, 1024),
        ("auto", 16, 1024),
        (E5M2, 256, 256),
        (E5M2, 255, 1024),
        (E5M2, 1568, 256),
        (E5M2, 1616, 256),
        (E5M2, 1617, 1024),
        (E5M2, 240, 1024),
        (E5M2, 16, 1024),
        (E4M3, 1568, 64),
        (E4M3, 1648, 64),
        (E4M3, 3296, 64),
        (E4M3, 16, 1024),
    ],
)
def test_aligned_pages(dtype: str, page: int, size: int) -> None:
    """One row, six heads on one: the page decides. At 64K everything else gets 1024, so a missed rule shows."""
    assert _plan(call("decode", 1, 65536, kv_dtype=dtype, page_size=page)).size == size


@pytest.mark.parametrize(
    "axes",
    [
        {"num_seqs": 2},
        {"query_rows": 2},
        {"q_heads": 8},
        {"q_heads": 12, "kv_heads": 4},
        {"head_dim": 128},
        {"aligned_page_partition": False},
    ],
    ids=["two_sequences", "padded", "group_8", "group_3", "head_dim", "rolled_back"],
)
def test_aligned_pages_are_for_one_shape(axes: dict[str, Any]) -> None:
    assert _plan(call("decode", 1, 65536, kv_dtype=E5M2, page_size=1616, **axes)).size == 1024


@pytest.mark.parametrize("size", [64, 128, 256, 512, 1024])
def test_an_explicit_size_wins(size: int) -> None:
    for request in (
        call("decode", 1, 65536, kv_dtype=E4M3, page_size=1568, partition_size=size),
        call("verify", 5, 65536, kv_dtype=E5M2, page_size=1616, grouped_verify=False, partition_size=size),
        call("verify", 5, 768, partition_hint=256, partition_size=size),
    ):
        assert _plan(request).size == size


@pytest.mark.parametrize(("kv_len", "size"), [(1, 256), (32767, 256), (32768, 1024), (32769, 1024), (262144, 1024)])
def test_default_size(kv_len: int, size: int) -> None:
    assert _plan(call("decode", 1, kv_len)).size == size


def test_the_static_hint_gives_the_default_size_under_capture() -> None:
    assert _plan(call("decode", 1, 1, capturing=True, static_hint=32768)).size == 1024


@pytest.mark.parametrize(
    ("axes", "size"),
    [
        ({}, 1024),
        ({"mtp5_partition_size": 256}, 256),
        ({"mtp5_partition_size": 512}, 512),
        ({"mtp5_dual_cta": False}, 256),
        ({"q_len": 4}, 256),
        ({"q_len": 6}, 256),
        ({"page_size": 1615}, 256),
        ({"page_size": 1617}, 256),
        ({"q_heads": 8}, 256),
        ({"q_heads": 12, "kv_heads": 2}, 1024),
    ],
)
def test_mtp5_on_two_blocks(axes: dict[str, Any], size: int) -> None:
    """Five rows, page 1616, six heads a KV head, E5M2. At 16K the default is 256, so a rule that slips in shows."""
    request = {"q_len": 5, "page_size": 1616, **axes}
    plan = _plan(call("verify", request.pop("q_len"), 16384, kv_dtype=E5M2, grouped_verify=False, **request))
    assert plan.size == size


def test_a_context_bucket_keeps_its_size_and_its_scalar_rows() -> None:
    decision = check(
        call(
            "verify",
            5,
            768,
            kv_dtype=E5M2,
            page_size=1616,
            capturing=True,
            workspace_capacity=4096,
            partition_hint=256,
            grouped_verify=False,
        )
    )
    assert decision.route is Route.SMALLQ_SCALAR
    assert decision.plan is not None
    plan = decision.plan
    assert (plan.size, plan.actual, plan.launch, plan.workspace) == (256, 3, 16, 16)


@pytest.mark.parametrize("kv_len", [1, 255, 256, 257, 4096, 4097, 262144])
def test_eager_launches_what_the_length_needs(kv_len: int) -> None:
    """Not what the capacity allows: 1024 blocks once ran where 17 work."""
    plan = _plan(call("decode", 1, kv_len, workspace_capacity=262144))
    needed = -(-kv_len // plan.size)
    assert (plan.actual, plan.launch) == (needed, needed)
    assert plan.workspace == 262144 // plan.size


@pytest.mark.parametrize("static", [1025, 16384, 262144])
def test_a_capture_launches_its_whole_envelope(static: int) -> None:
    plan = _plan(call("decode", 1, 1, capturing=True, static_hint=static, workspace_capacity=262144))
    assert plan.actual == 1
    assert plan.launch == -(-static // plan.size)


def test_a_longer_sequence_stops_a_replay() -> None:
    """Never truncated: the check is before the launch and names both lengths."""
    plan = _plan(call("decode", 1, 1, capturing=True, static_hint=4096))
    plan.check_replay(4096)
    with pytest.raises(RuntimeError, match=r"4097 tokens.*4096 tokens"):
        plan.check_replay(4097)


@pytest.mark.parametrize(
    "counts", [(2, 1, 4), (1, 5, 4), (0, 1, 1), (3, 2, 1)], ids=lambda counts: "-".join(map(str, counts))
)
def test_a_plan_that_does_not_cover_is_not_built(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cut short"):
        PartitionPlan(256, *counts, reason="test")


@pytest.mark.parametrize("kv_len", [8, 31, 32, 33, 1032, 2560, 2561, 32768, 262144])
def test_grouped_verify_in_whole_tiles_and_few_splits(kv_len: int) -> None:
    plan = _plan(call("verify", 8, kv_len, kv_dtype=E4M3, missing_tokens=True))
    assert plan.size % GROUPED_TILE == 0
    assert plan.actual <= GROUPED_SPLITS
    assert plan.actual * plan.size >= kv_len > (plan.actual - 1) * plan.size


@pytest.mark.parametrize("kv_len", [32768, 65536, 131072, 256000])
def test_split_prefill_in_three(kv_len: int) -> None:
    decision = check(call("prefill", 4096, kv_len))
    assert decision.route is Route.PREFILL_GATHER_SPLIT_KV
    assert decision.plan is not None
    assert decision.plan.actual == decision.plan.workspace == 3
    assert decision.plan.size % 64 == 0
    assert decision.plan.size * 3 >= kv_len


def test_sizes_do_not_depend_on_the_count_of_kv_heads() -> None:
    """A rank's share of the heads changes with tensor parallelism; how the keys are cut must not."""
    plans = [
        _plan(call("decode", 1, 65536, kv_dtype=E5M2, page_size=1616, q_heads=6 * heads, kv_heads=heads))
        for heads in (1, 2, 4)
    ]
    assert all(one == other for one, other in pairwise(plans))


def test_routes_without_partitions_have_no_plan() -> None:
    for request in (call("prefill", 512, 2048), call("prefill", 512, 512), call("profile", 1, 1)):
        assert decide(request).plan is None

"""Ways in which a routing policy goes wrong that a glance at one decision passes over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from suites.defects import Defect

_THRESHOLDS = "suites/routing/test_thresholds.py::test_edge"
_CAPTURE = "suites/routing/test_capture.py"
_REFUSALS = "suites/routing/test_refusals.py"
_EXECUTION = "suites/routing/test_execution.py"
_HANDOVER = "suites/routing/test_handover.py"
_KV_DTYPE = "suites/routing/test_kv_dtype.py"
_PARTITIONS = "suites/routing/test_partitions.py"

Function = Callable[..., Any]


def _one_more(original: Function) -> Function:
    """``>`` where ``>=`` is meant: the length on the edge is sent the slow way."""
    return lambda request: original(request) + (1 if original(request) else 0)


def _longest_sequence_always(original: Function) -> Function:
    """The hint of the capture's own dummy lengths, where the graph's capacity is meant."""

    def hint(request: Any) -> Any:
        from engine.routing.plan import Hint

        return Hint(request.max_seq, "longest sequence")

    return hint


def _last_row_admits_all(original: Function) -> Function:
    """The plain twin takes whatever nothing else takes, and nobody is asked."""

    def first_failing(row: Any, request: Any, answers: dict[str, bool] | None = None) -> Any:
        return None if str(row.route) == "declared_fallback" else original(row, request, answers)

    return first_failing


def _expanded_table(original: Function) -> Function:
    """The q-expanded rows, persistent or of this call, go to the kernel that wants the request's own."""

    def grouped_rows(call: Any) -> Any:
        from engine.ops.persistent_rows import PersistentRows

        if call.rows is not None:
            return call.rows.view(call.q.shape[0])
        own = PersistentRows(call.q.shape[0], call.block_table.shape[1], call.q.device)
        return own.refresh(call.query_lens, call.lengths, call.block_table)

    return grouped_rows


def _first_axis_of_two(original: Function) -> Function:
    """Axis 0 is asked first, so a cache of two blocks is read as keys and values of one."""

    def kv_axis(shape: Sequence[int]) -> int:
        return 0 if len(shape) == 5 and shape[0] == 2 else original(shape)

    return kv_axis


def _alias_for_all_fp8(original: Function) -> Function:
    """Every FP8 name is taken for the alias."""

    def resolve(asked: str, *arguments: Any, **options: Any) -> Any:
        return original("fp8" if asked.startswith("fp8") else asked, *arguments, **options)

    return resolve


def _capability_first(original: Function) -> Function:
    """The device is asked before it is known whether the answer matters."""

    def sm70_backend(platform: Any, backend: bool, capability: Callable[[], Any]) -> Any:
        seen = capability()
        return original(platform, backend, lambda: seen)

    return sm70_backend


def _whole_capacity(original: Function) -> Function:
    """A launch is planned for the capacity, not for the length."""
    return lambda request: max(original(request), request.workspace_capacity or 0)


DEFECTS = (
    Defect(
        name="routing-threshold-off-by-one",
        description="XQA decode begins one token after its threshold",
        scope="routing",
        owner="engine.routing.kernel_rules",
        attribute="decode_xqa_min",
        spoil=_one_more,
        must_go_red=(
            f"{_THRESHOLDS}[xqa.decode_length-E5M2-16384]",
            f"{_THRESHOLDS}[xqa.decode_length-G_4-32768]",
            f"{_CAPTURE}::test_the_captured_route_follows_the_static_hint[16384-xqa]",
        ),
    ),
    Defect(
        name="routing-capture-hint-for-capacity",
        description="under capture the dummy length decides, so every graph holds the short route",
        scope="routing",
        owner="engine.routing.kernel_rules",
        attribute="sequence_hint",
        spoil=_longest_sequence_always,
        must_go_red=(
            f"{_CAPTURE}::test_the_captured_route_follows_the_static_hint[16384-xqa]",
            f"{_CAPTURE}::test_the_captured_route_follows_the_static_hint[262144-xqa]",
            f"{_THRESHOLDS}[xqa.decode_length-capacity_of_a_capture-16384]",
        ),
    ),
    Defect(
        name="routing-silent-fallback",
        description="what no kernel serves runs on the plain twin without being allowed to",
        scope="routing",
        owner="engine.routing.table",
        attribute="first_failing",
        spoil=_last_row_admits_all,
        must_go_red=(
            f"{_REFUSALS}::test_an_inadmissible_layer_raises[alibi-decode]",
            f"{_REFUSALS}::test_an_inadmissible_layer_raises[head_dim_80-prefill]",
            f"{_REFUSALS}::test_a_stop_has_no_fallback",
            f"{_HANDOVER}::test_a_refused_call_runs_nothing",
        ),
    ),
    Defect(
        name="routing-expanded-table-to-grouped",
        description="grouped verify is handed the q-expanded table instead of the request's own",
        scope="routing",
        owner="engine.ops.attention_routes",
        attribute="grouped_rows",
        spoil=_expanded_table,
        must_go_red=(
            f"{_HANDOVER}::test_grouped_verify_reads_the_requests_own_table",
            f"{_EXECUTION}::test_small[grouped_verify]",
        ),
    ),
    Defect(
        name="routing-axis-guess",
        description="a cache of two blocks is split along the block axis",
        scope="routing",
        owner="engine.ops.attention_call",
        attribute="kv_axis",
        spoil=_first_axis_of_two,
        must_go_red=(
            f"{_HANDOVER}::test_keys_and_values_of_one_allocation[2]",
            f"{_HANDOVER}::test_attention_over_two_blocks",
        ),
    ),
    Defect(
        name="routing-alias-rewrites-explicit",
        description="fp8_e4m3, asked for by name, becomes fp8_e5m2",
        scope="routing",
        owner="engine.routing.kv_dtype",
        attribute="resolve_kv_dtype",
        spoil=_alias_for_all_fp8,
        must_go_red=(
            f"{_KV_DTYPE}::test_explicit_names_stand_on_sm70[fp8_e4m3]",
            f"{_KV_DTYPE}::test_everything_against_the_oracle",
        ),
    ),
    Defect(
        name="routing-capability-asked-when-off",
        description="the device is asked for its capability although the backend is switched off",
        scope="routing",
        owner="engine.routing.kv_dtype",
        attribute="sm70_backend",
        spoil=_capability_first,
        must_go_red=(
            f"{_KV_DTYPE}::test_no_capability_is_asked_with_the_backend_off[fp8]",
            f"{_KV_DTYPE}::test_no_capability_is_asked_without_cuda[fp8]",
            f"{_KV_DTYPE}::test_backends_with_the_switch_off_ask_no_device",
            f"{_KV_DTYPE}::test_everything_against_the_oracle",
        ),
    ),
    Defect(
        name="routing-launch-by-capacity",
        description="an eager decode launches what its workspace holds, not what the length needs",
        scope="routing",
        owner="engine.routing.plan",
        attribute="envelope",
        spoil=_whole_capacity,
        must_go_red=(f"{_PARTITIONS}::test_eager_launches_what_the_length_needs[256]",),
    ),
)

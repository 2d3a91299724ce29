"""How the attention layers of a forward are served: by the one CPU op, or through the routing policy on SM70."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Protocol

import torch

from engine.errors import InputError
from engine.model.buffers import RowInputs
from engine.ops import bound
from engine.ops.attention_call import AttentionCall, RouteCounters
from engine.ops.attention_routes import execute
from engine.ops.bound import Step
from engine.ops.persistent_rows import PersistentRows
from engine.routing import SM70, Decision, Overrides, Phase, Platform, Route, RouteRefused, RouteRequest, decide
from engine.state.paged_kv import PagedKVCache

_SMALL_Q = (Route.SMALLQ_XQA, Route.SMALLQ_SCALAR)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Query rows and KV lengths of the sequences of a forward, in order; each length counts its query rows."""

    phase: Phase
    query_lens: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def captured_by(self) -> tuple[Phase, int, int, int]:
        """Phase, sequences, rows and most rows of a sequence: what a graph fixes. Kernels read the rest as it is."""
        return self.phase, len(self.query_lens), sum(self.query_lens), max(self.query_lens)


class Attention(Protocol):
    """Serves every attention layer of a model; they all have one shape."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph may hold it."""

    def begin(self, shape: BatchShape, block_table: torch.Tensor, *, capturing: bool = False) -> None:
        """Before the layers of a forward run (or are captured): what that forward is."""

    def count_replay(self, layers: int) -> None:
        """A captured forward ran: its ``layers`` attention layers did what the last `begin` decided."""

    def routes(self) -> Mapping[str, int]:
        """How often a layer took each route, by name; empty where nothing is routed."""

    def layer(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: RowInputs, *, out: torch.Tensor
    ) -> Step:
        """Attention of ``query`` [T, Hq, D] over one layer's cache into ``out`` [T, Hq, D]."""


class DirectAttention:
    """The native CPU op, which serves every shape itself."""

    capturable = False

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def begin(self, shape: BatchShape, block_table: torch.Tensor, *, capturing: bool = False) -> None:
        """See `Attention`; the op reads all of it from its inputs."""

    def count_replay(self, layers: int) -> None:
        """See `Attention`; there is one way only, and nothing to count."""

    def routes(self) -> Mapping[str, int]:
        """See `Attention`."""
        return {}

    def layer(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: RowInputs, *, out: torch.Tensor
    ) -> Step:
        """See `Attention`."""
        places = (inputs.block_table, inputs.seq_lens, inputs.query_start)
        return bound.paged_attention(query, keys, values, *places, scale=self._scale, out=out)


class RoutedAttention:
    """Asks the policy once a forward and carries its decision out in every layer; ``counters`` tell what ran.

    The policy is asked about SM70 on every card: the kernels are SM70's, and a newer card runs the same code from its
    PTX. Keys and values reach the cache before attention and are nowhere else, so prefill reads the cache too.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        *,
        query_heads: int,
        scale: float,
        max_sequences: int,
        max_blocks: int,
        max_model_len: int,
        overrides: Overrides,
    ) -> None:
        """Raises ``InputError`` where the policy has no route for the shape at all."""
        keys = cache.keys(0)
        self.counters = RouteCounters()
        self._query_heads = query_heads
        self._scale = scale
        self._kv_dtype = cache.name
        self._keys = keys
        self._max_model_len = max_model_len
        self._overrides = overrides
        self._rows = PersistentRows(max_sequences * overrides.smallq_max_q, max_blocks, keys.device)
        self._decision: Decision | None = None
        self._captured: dict[tuple[Phase, int, int, int], Decision] = {}
        self._shape = BatchShape(Phase.DECODE, (1,), (1,))
        # Where only the plain twin serves the shape, by a declared fallback, it may not be captured: it reads lengths.
        self.capturable = decide(self._request(self._shape, capturing=True)).route is not None
        try:
            decide(self._request(self._shape, capturing=False)).require()
        except RouteRefused as refused:
            raise InputError(f"{refused}; run this model with --device cpu") from refused

    def begin(self, shape: BatchShape, block_table: torch.Tensor, *, capturing: bool = False) -> None:
        """See `Attention`. Raises ``RouteRefused``; ``RuntimeError`` for a sequence longer than a capture covers."""
        decision = self._captured.get(shape.captured_by) if capturing else None
        if decision is None:
            decision = decide(self._request(shape, capturing=capturing))
        route = decision.require()
        if capturing:
            # Made for whatever length a replay may bring, so it holds for the next one.
            self._captured[shape.captured_by] = decision
        if capturing and decision.plan is not None:
            decision.plan.check_replay(max(shape.lengths))
        if route in _SMALL_Q:
            self._rows.refresh(shape.query_lens, shape.lengths, block_table[: len(shape.lengths)])
        self._decision, self._shape = decision, shape

    def count_replay(self, layers: int) -> None:
        """See `Attention`."""
        assert self._decision is not None  # a replay follows a `begin`
        self.counters.increment(self._decision.require(), layers)

    def routes(self) -> Mapping[str, int]:
        """See `Attention`."""
        return self.counters.by_name()

    def layer(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: RowInputs, *, out: torch.Tensor
    ) -> Step:
        """See `Attention`."""

        def attend() -> None:
            assert self._decision is not None  # `begin` comes first
            count = len(self._shape.lengths)
            call = AttentionCall(
                q=query,
                k_cache=keys,
                v_cache=values,
                block_table=inputs.block_table[:count],
                seq_lens=inputs.seq_lens[:count],
                query_start=inputs.query_start[: count + 1],
                query_lens=self._shape.query_lens,
                lengths=self._shape.lengths,
                scale=self._scale,
                out=out,
                rows=self._rows if self._decision.route in _SMALL_Q else None,
            )
            execute(self._decision, call, self.counters)

        return attend

    def _request(self, shape: BatchShape, *, capturing: bool) -> RouteRequest:
        q_len, kv_len = max(shape.query_lens), max(shape.lengths)
        _, page_size, kv_heads, head_dim = self._keys.shape
        return RouteRequest(
            platform=Platform.CUDA,
            capability=SM70,
            kv_asked=self._kv_dtype,
            kv_dtype=self._kv_dtype,
            phase=shape.phase,
            head_dim=head_dim,
            q_heads=self._query_heads,
            kv_heads=kv_heads,
            scale=self._scale,
            num_seqs=len(shape.lengths),
            q_len=q_len,
            kv_len=q_len if capturing else kv_len,
            query_rows=sum(shape.query_lens),
            prefix=capturing or any(map(int.__ne__, shape.query_lens, shape.lengths)),
            missing_tokens=True,
            page_size=page_size,
            stride_elements=_power_of_two(self._keys.stride()[:2]),
            capturing=capturing,
            static_hint=self._max_model_len if capturing else None,
            workspace_capacity=self._max_model_len if capturing else None,
            max_model_len=self._max_model_len,
            overrides=self._overrides,
        )


def _power_of_two(strides: Sequence[int]) -> int:
    """The largest power of two that divides every stride."""
    common = gcd(*strides)
    return common & -common

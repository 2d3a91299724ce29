"""The tensors of one attention call, held against the description that was routed; and the counters of what ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.ops.persistent_rows import PersistentRows
from engine.routing import Codec, Phase, Route, RouteRequest, codec_of
from engine.routing.layout import kv_axis

CACHE_DTYPES: dict[Codec, tuple[torch.dtype, ...]] = {
    Codec.PLAIN: (torch.float16, torch.float32),
    Codec.E4M3: (torch.float8_e4m3fn,),
    Codec.E5M2: (torch.float8_e5m2,),
}


class RouteCounters:
    """How often each route ran to its end. One object a model (or a test), passed in: nothing here is global."""

    def __init__(self) -> None:
        self._counts: Counter[Route] = Counter()

    def increment(self, route: Route, times: int = 1) -> None:
        """A route ran to its end, ``times`` times."""
        self._counts[route] += times

    def __getitem__(self, route: Route) -> int:
        return self._counts[route]

    def by_name(self) -> Mapping[str, int]:
        """Every route that ran, by name."""
        return {str(route): count for route, count in sorted(self._counts.items())}


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of ``B`` sequences with ``T`` query rows.

    - ``q`` [T, Hq, D]; ``k_cache``, ``v_cache`` [num_blocks, block_size, Hkv, D], strided views are fine.
    - ``block_table`` int32 [B, max_blocks], ``seq_lens`` int32 [B], ``query_start`` int32 [B + 1]: the requests' own.
    - ``query_lens``, ``lengths``: the same lengths as the host knows them; dummies under capture.
    - ``k``, ``v`` [T, Hkv, D]: keys and values of this call, for prefill without a prefix.
    - ``k_scale``, ``v_scale``: what a decoded FP8 code is multiplied by; 1 where the cache holds numbers.
    - ``rows``: persistent buffers for q-expanded tables; without them each call makes its own.
    - ``alibi_slopes`` [Hq], ``softcap``, ``sinks`` [Hq]: only the plain twin knows them.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start: torch.Tensor
    query_lens: tuple[int, ...]
    lengths: tuple[int, ...]
    scale: float
    k_scale: float = 1.0
    v_scale: float = 1.0
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    out: torch.Tensor | None = None
    rows: PersistentRows | None = None
    alibi_slopes: torch.Tensor | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    @property
    def block_size(self) -> int:
        """Token slots of a page."""
        return self.k_cache.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    def output(self) -> torch.Tensor:
        """Where the result goes."""
        return torch.empty_like(self.q) if self.out is None else self.out


def split_kv_cache(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as views of one allocation, [num_blocks, 2, block_size, Hkv, D] or [2, num_blocks, ...]."""
    keys, values = cache.unbind(kv_axis(tuple(cache.shape)))
    return keys, values


def check_call(request: RouteRequest, call: AttentionCall) -> None:
    """Raise ``ValueError`` where the tensors are not those that were described: the decision would not be theirs."""
    codec = codec_of(request.kv_dtype)
    pairs: list[tuple[str, object, object]] = [
        ("head_dim", request.head_dim, call.q.shape[2]),
        ("q_heads", request.q_heads, call.q.shape[1]),
        ("kv_heads", request.kv_heads, call.k_cache.shape[2]),
        ("page_size", request.page_size, call.block_size),
        ("num_seqs", request.num_seqs, call.block_table.shape[0]),
        ("alibi", request.alibi, call.alibi_slopes is not None),
        ("softcap", request.softcap, call.softcap is not None),
        ("sinks", request.sinks, call.sinks is not None),
        ("scale", request.scale, call.scale),
    ]
    if request.phase is not Phase.PROFILE:
        pairs.append(("q_len", request.q_len, max(call.query_lens, default=0)))
        if not request.capturing:
            pairs.append(("kv_len", request.kv_len, max(call.lengths, default=0)))
    for name, described, seen in pairs:
        if described != seen:
            raise ValueError(f"the decision was made for {name} {described}, the tensors have {seen}: decide again")
    if codec is not None and call.k_cache.dtype not in CACHE_DTYPES[codec]:
        allowed = ", ".join(map(str, CACHE_DTYPES[codec]))
        raise ValueError(f"KV dtype {request.kv_dtype} is stored as {allowed}; the cache is {call.k_cache.dtype}")
    sequences = call.block_table.shape[0]
    if (len(call.query_lens), len(call.lengths)) != (sequences, sequences):
        raise ValueError(
            f"{len(call.query_lens)} query lengths and {len(call.lengths)} lengths for {sequences} sequences"
        )

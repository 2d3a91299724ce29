"""For each kernel one call that its V100 floor is stated for: the shapes of a 27B hybrid model's rank of four.

Floors are predictions from the data sheet (see `native.floors`), stated beside what the compiler reports and never
compared with a time of another card. A kernel that only prepares or finishes another's work shares that op's floor.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from native import floors
from native.floors import Floor

CONTEXT, PAGE_HEADS = 32768, 1  # keys of a long sequence; KV heads of a rank
HIDDEN, WIDTH = 5120, 17408  # of the model; of its MLP
VOCABULARY, ROWS = 151936, 8
_BITS = {"f16": 16.0, "q4_1": 5.0, "q8_0": 8.5, "int4": 4.25, "nvfp4": 4.5}


def _attention(match: re.Match[str]) -> Floor:
    dim, tiles, cache = int(match["dim"]), int(match["tiles"]), match["cache"]
    queries = {1: 1, 3: 8, 4: 8}[tiles]  # decode; grouped verification
    return floors.paged_attention(queries, CONTEXT, 6, PAGE_HEADS, dim, kv_bytes=2 if cache == "f16" else 1)


def _linear(match: re.Match[str]) -> Floor:
    return floors.linear(8 * int(match["tiles"]), WIDTH, HIDDEN, _BITS[match["format"]])


def _sampling(match: re.Match[str]) -> Floor:
    return floors.sampling_pass(ROWS, VOCABULARY, writes=match["step"] in ("apply", "masses"))


_CALLS: tuple[tuple[str, str, Callable[[re.Match[str]], Floor]], ...] = (
    (
        r"paged_attention_d(?P<dim>\d+)_m(?P<tiles>\d)_(?P<cache>f16|fp8)",
        "32768 keys, 6 heads over 1; 1 row (m1) or 8 rows (m3, m4)",
        _attention,
    ),
    (
        r"paged_attention_reduce",
        "8 rows, 6 heads of 256, 128 partitions",
        lambda _: floors.attention_reduce(ROWS, 6, 256, 128),
    ),
    (r"linear_(?P<format>f16|q4_1|q8_0|int4|nvfp4)(?:_any|_small)?_m(?P<tiles>\d)", "17408 x 5120, 8 m rows", _linear),
    (r"rms_norm(?:_any)?_f16", "8 x 5120", lambda _: floors.rms_norm(ROWS, HIDDEN)),
    (r"silu_mul(?:_vector)?_f16", "8 x 17408", lambda _: floors.silu_mul(ROWS, WIDTH)),
    (r"embedding_f16", "8 of 5120", lambda _: floors.embedding(ROWS, HIDDEN)),
    (r"embedding_q8_0", "8 of 5120", lambda _: floors.embedding(ROWS, HIDDEN, 8.5)),
    (r"candidate_logits_f16", "8 rows, 64 ids, 5120", lambda _: floors.candidate_logits(ROWS, 64, HIDDEN)),
    (r"fp8_(?:encode|decode)", "8 x 5120", lambda _: floors.fp8_codec(ROWS * HIDDEN)),
    (r"kv_store", "8 tokens, 6 heads over 1 of 256", lambda _: floors.rope_store_kv(ROWS, 6, 1, 256)),
    (r"gdn_conv", "8 tokens, 2560 channels", lambda _: floors.gdn_conv(ROWS, 2560)),
    (r"gdn_gates", "8 tokens, 12 heads", lambda _: floors.gdn_gates(ROWS, 12)),
    (r"gdn_gated_rms_norm", "8 tokens, 12 heads of 128", lambda _: floors.gated_rms_norm(ROWS, 12, 128)),
    (r"gdn_recurrent", "8 tokens, 4 and 12 heads of 128", lambda _: floors.gdn_recurrent(ROWS, 4, 12, 128, 128)),
    (
        r"gdn_chunk_(?:prepare|scan)",
        "2048 tokens, 4 and 12 heads of 128, both kernels",
        lambda _: floors.gdn_chunk(2048, 4, 12, 128, 128),
    ),
    (r"sampling_(?P<step>scan|plan|finish|apply|draw|masses)", "8 rows of 151936, one pass", _sampling),
)


def kernel_floor(kernel: str) -> tuple[Floor, str]:
    """The floor of ``kernel`` and the call it is stated for.

    Raises:
        ValueError: no call is stated for such a kernel; add one here.
    """
    for pattern, call, floor in _CALLS:
        match = re.fullmatch(pattern, kernel)
        if match is not None:
            return floor(match), call
    raise ValueError(f"kernel {kernel}: no call is stated for its floor; add one to native/kernel_floors.py")

"""The least time a V100 can need for each op: bytes over 900 GB/s or operations over 125 TFLOP/s, whichever is more.

A prediction from the data sheet, never a measurement, and never to be compared with a time of another card. Bytes are
those that must cross the memory: inputs read once, outputs written once. Launch and latency make a run slower.
"""

from __future__ import annotations

from dataclasses import dataclass

from native.resources import V100, Card

HALF, FLOAT, INT32, INT64 = 2, 4, 4, 8


@dataclass(frozen=True, slots=True)
class Floor:
    """What one call moves and computes. ``tensor_ops`` and ``fp32_ops`` count a multiply-add as two."""

    op: str
    bytes_moved: int
    tensor_ops: int = 0
    fp32_ops: int = 0
    label: str = "prediction for a V100, not measured"

    def seconds(self, card: Card = V100) -> float:
        """The longest of memory, tensor-core and FP32 time."""
        return max(
            self.bytes_moved / card.bytes_per_second,
            self.tensor_ops / card.tensor_flops,
            self.fp32_ops / card.fp32_flops,
        )

    def bound(self, card: Card = V100) -> str:
        """Which of the three it is: memory, tensor or fp32."""
        times = {
            "memory": self.bytes_moved / card.bytes_per_second,
            "tensor": self.tensor_ops / card.tensor_flops,
            "fp32": self.fp32_ops / card.fp32_flops,
        }
        return max(times, key=lambda name: times[name])


def rms_norm(rows: int, width: int) -> Floor:
    """FP16 rows in and out, an FP32 weight."""
    return Floor("rms_norm", 2 * rows * width * HALF + width * FLOAT, fp32_ops=4 * rows * width)


def silu_mul(rows: int, width: int) -> Floor:
    """``width``: of the output; twice as much is read."""
    return Floor("silu_mul", 3 * rows * width * HALF, fp32_ops=6 * rows * width)


def linear(m: int, n: int, k: int, weight_bits: float, *, out_bytes: int = HALF, residual: bool = False) -> Floor:
    """``weight_bits``: of one weight with its share of the scales: FP16 16, Q4_1 5, Q8_0 8.5, NVFP4 4.5."""
    activations = m * k * HALF + m * n * out_bytes * (2 if residual else 1)
    return Floor("linear", round(n * k * weight_bits / 8) + activations, tensor_ops=2 * m * n * k)


def paged_attention(
    query_rows: int,
    keys: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    kv_bytes: int = HALF,
    sequences: int = 1,
) -> Floor:
    """Each of ``sequences`` has ``query_rows`` rows that see ``keys`` keys; its cache is read once for all of them."""
    cache = 2 * keys * kv_heads * head_dim * kv_bytes
    rows = 2 * query_rows * query_heads * head_dim * HALF
    work = 4 * query_rows * keys * query_heads * head_dim
    return Floor("paged_attention", sequences * (cache + rows), tensor_ops=sequences * work)


def causal_prefill(tokens: int, query_heads: int, kv_heads: int, head_dim: int, *, kv_bytes: int = HALF) -> Floor:
    """A prompt of ``tokens`` from empty: half of the square is seen."""
    moved = 2 * tokens * kv_heads * head_dim * kv_bytes + 2 * tokens * query_heads * head_dim * HALF
    return Floor("causal_prefill", moved, tensor_ops=2 * tokens * (tokens + 1) * query_heads * head_dim)


def store_kv(tokens: int, kv_heads: int, head_dim: int, *, kv_bytes: int = HALF) -> Floor:
    """Keys and values read as FP16 and written to the cache."""
    return Floor("store_kv", 2 * tokens * kv_heads * head_dim * (HALF + kv_bytes) + tokens * INT64)


def rope_store_kv(tokens: int, query_heads: int, kv_heads: int, head_dim: int, *, kv_bytes: int = HALF) -> Floor:
    """Queries read, turned and written; keys and values read and written to the cache."""
    queries = 2 * tokens * query_heads * head_dim * HALF
    table = tokens * head_dim * FLOAT
    moved = queries + table + store_kv(tokens, kv_heads, head_dim, kv_bytes=kv_bytes).bytes_moved
    return Floor("rope_store_kv", moved, fp32_ops=3 * tokens * (query_heads + kv_heads) * head_dim)


def embedding(tokens: int, width: int, weight_bits: float = 16) -> Floor:
    """One row of the table a token."""
    return Floor("embedding", round(tokens * width * (weight_bits / 8 + HALF)) + tokens * INT64)


def candidate_logits(rows: int, candidates: int, k: int) -> Floor:
    """An FP16 row of the head for each candidate, FP32 products."""
    moved = rows * candidates * (k * HALF + INT64 + FLOAT) + rows * k * HALF
    return Floor("candidate_logits", moved, fp32_ops=2 * rows * candidates * k)


def fp8_codec(count: int, wide_bytes: int = HALF) -> Floor:
    """Encode or decode ``count`` numbers."""
    return Floor("fp8_codec", count * (1 + wide_bytes))


def gdn_conv(tokens: int, channels: int, *, states: int = 1) -> Floor:
    """Four taps; ``states``: rows of history read or written, three a slot."""
    moved = 2 * tokens * channels * HALF + channels * 4 * FLOAT + states * 3 * channels * HALF
    return Floor("gdn_conv", moved, fp32_ops=8 * tokens * channels)


def gdn_recurrent(
    tokens: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, *, states_moved: int = 2
) -> Floor:
    """``states_moved``: FP32 states read or written (one read, and one write a kept position)."""
    state = value_heads * value_dim * key_dim
    inputs = tokens * (2 * key_heads * key_dim + 2 * value_heads * value_dim) * HALF + 2 * tokens * value_heads * FLOAT
    return Floor("gdn_recurrent", states_moved * state * FLOAT + inputs, fp32_ops=7 * tokens * state)


def gdn_chunk(tokens: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, chunk: int = 64) -> Floor:
    """The chunked form: its products, and W, U and P written once and read once."""
    per_head = tokens * (chunk * (2 * key_dim + value_dim) + 3 * key_dim * value_dim + chunk * (chunk + value_dim) // 2)
    scratch = 2 * tokens * value_heads * (key_dim + value_dim + chunk) * FLOAT
    plain = gdn_recurrent(tokens, key_heads, value_heads, key_dim, value_dim)
    return Floor("gdn_chunk", plain.bytes_moved + scratch, fp32_ops=2 * value_heads * per_head)


def gated_rms_norm(tokens: int, heads: int, head_dim: int) -> Floor:
    """Two FP16 inputs, one output."""
    count = tokens * heads * head_dim
    return Floor("gdn_gated_rms_norm", 3 * count * HALF + head_dim * FLOAT, fp32_ops=10 * count)


def gdn_gates(tokens: int, heads: int) -> Floor:
    """Two FP16 inputs per head, two FP32 outputs, and the two weights of each head."""
    return Floor("gdn_gates", tokens * heads * (2 * HALF + 2 * FLOAT) + 2 * heads * FLOAT, fp32_ops=20 * tokens * heads)


def attention_reduce(rows: int, heads: int, head_dim: int, partitions: int) -> Floor:
    """FP32 partial sums with their maximum and weight read once, FP16 rows written."""
    moved = rows * heads * (partitions * (head_dim + 2) * FLOAT + head_dim * HALF)
    return Floor("paged_attention_reduce", moved, fp32_ops=2 * rows * heads * partitions * head_dim)


def sampling_pass(rows: int, width: int, *, writes: bool) -> Floor:
    """One pass over FP32 logits; ``writes``: they are written as well."""
    return Floor("sampling", rows * width * FLOAT * (2 if writes else 1))

"""Every native CPU op, bound: ``bind_<op>`` checks its arguments once and returns a `Call` over fixed buffers.

Calling the `Call` runs the op. `Program` runs a list of them with one native call. The checks raise ``ValueError``
naming what was seen and what is allowed; a library that is missing or too old raises `NativeLibraryError`.
"""

from __future__ import annotations

from native.bindings.attention import bind_paged_attention
from native.bindings.call import Call, Program
from native.bindings.fp8 import bind_fp8_decode, bind_fp8_encode
from native.bindings.gdn import (
    bind_gdn_chunk,
    bind_gdn_conv,
    bind_gdn_gated_rms_norm,
    bind_gdn_gates,
    bind_gdn_recurrent,
)
from native.bindings.kv_store import bind_rope_store_kv, bind_store_kv
from native.bindings.linear import (
    bind_embedding_dense,
    bind_embedding_q8_0,
    bind_linear_f16,
    bind_linear_f32,
    bind_linear_q4_1,
    bind_linear_q8_0,
)
from native.bindings.linear_packed import bind_candidate_logits, bind_linear_int4, bind_linear_nvfp4
from native.bindings.norm import bind_rms_norm, bind_silu_mul
from native.bindings.runtime import best_isa, isa, set_isa, set_threads, threads

__all__ = [
    "Call",
    "Program",
    "best_isa",
    "bind_candidate_logits",
    "bind_embedding_dense",
    "bind_embedding_q8_0",
    "bind_fp8_decode",
    "bind_fp8_encode",
    "bind_gdn_chunk",
    "bind_gdn_conv",
    "bind_gdn_gated_rms_norm",
    "bind_gdn_gates",
    "bind_gdn_recurrent",
    "bind_linear_f16",
    "bind_linear_f32",
    "bind_linear_int4",
    "bind_linear_nvfp4",
    "bind_linear_q4_1",
    "bind_linear_q8_0",
    "bind_paged_attention",
    "bind_rms_norm",
    "bind_rope_store_kv",
    "bind_silu_mul",
    "bind_store_kv",
    "isa",
    "set_isa",
    "set_threads",
    "threads",
]

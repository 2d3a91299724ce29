"""Every CUDA op of the native library: the functions of `engine.ops.functional`, on float16 CUDA tensors.

An op launches on torch's current stream of the tensors' device and does not synchronise; once `load` ran, ops may be
captured in a CUDA graph. Wrong arguments raise ``ValueError`` naming what was seen and what is allowed; a library that
is missing or too old, and an error of the driver, raise ``RuntimeError``.
"""

from __future__ import annotations

from native.cuda_bindings.attention import AttentionPlan, paged_attention, plan_attention
from native.cuda_bindings.elementwise import embedding_dense, embedding_q8_0, silu_mul
from native.cuda_bindings.faults import raise_on_fault
from native.cuda_bindings.fp8 import fp8_decode, fp8_encode
from native.cuda_bindings.gdn import gdn_chunk, gdn_conv, gdn_gated_rms_norm, gdn_gates, gdn_recurrent
from native.cuda_bindings.head import candidate_logits, dense_logits
from native.cuda_bindings.kv_store import rope_store_kv, store_kv
from native.cuda_bindings.launch import capabilities, device_type, load
from native.cuda_bindings.linear import linear_f16, linear_int4, linear_nvfp4, linear_q4_1, linear_q8_0
from native.cuda_bindings.norm import rms_norm
from native.cuda_bindings.packed import PackedInt4, PackedNvfp4, pack_awq, pack_int4, pack_nvfp4

__all__ = [
    "AttentionPlan",
    "PackedInt4",
    "PackedNvfp4",
    "candidate_logits",
    "capabilities",
    "dense_logits",
    "device_type",
    "embedding_dense",
    "embedding_q8_0",
    "fp8_decode",
    "fp8_encode",
    "gdn_chunk",
    "gdn_conv",
    "gdn_gated_rms_norm",
    "gdn_gates",
    "gdn_recurrent",
    "linear_f16",
    "linear_int4",
    "linear_nvfp4",
    "linear_q4_1",
    "linear_q8_0",
    "load",
    "pack_awq",
    "pack_int4",
    "pack_nvfp4",
    "paged_attention",
    "plan_attention",
    "raise_on_fault",
    "rms_norm",
    "rope_store_kv",
    "silu_mul",
    "store_kv",
]

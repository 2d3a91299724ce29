"""The environment variables of the routing policy: read in one function, once, into a frozen record.

An invalid value raises and names what is allowed; an unset variable means the published default. The record travels in
every request and into the evidence, so a decision can be repeated without the environment it was made in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from engine.errors import InputError

PARTITION_SIZES = (64, 128, 256, 512, 1024)
MTP5_PARTITION_SIZES = (256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Overrides:
    """One field a variable; ``VARIABLES`` says which. Lengths are tokens."""

    backend: bool = True
    allow_fallback: bool = False
    reference_prefill: bool = False
    smallq_max_q: int = 16
    smallq_xqa: bool = True
    smallq_xqa_min_seq: int = 4096
    decode_xqa: bool = True
    fp8_xqa_min_seq: int = 16384
    q4_xqa_min_seq: int = 32768
    e4m3_batch_xqa: bool = False
    partition_size: int | None = None
    aligned_page_partition: bool = True
    mtp5_dual_cta: bool = True
    mtp5_partition_size: int = 1024
    grouped_verify: bool = True
    grouped_min_model_len: int = 32768
    gather_dense: bool = True
    gather_min_q: int = 4096
    gather_min_kv: int = 8192
    exact_dense: bool = True
    split_kv: bool = True
    split_kv_min_kv: int = 32768
    split_kv_q8000: bool = False
    gqa_prefill: bool = True
    fp8_bridge: bool = True


DEFAULT_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class Variable:
    """How a variable is spelt, what it may hold, and how its text becomes a value (``ValueError`` where it cannot)."""

    field: str
    name: str
    allowed: str
    parse: Callable[[str], Any]


def _flag(text: str) -> bool:
    return {"0": False, "1": True, "false": False, "true": True}[text.strip().lower()]


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _one_of(sizes: tuple[int, ...]) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value not in sizes:
            raise ValueError(text)
        return value

    return parse


def _flag_variable(field: str, name: str) -> Variable:
    return Variable(field, name, "0, 1, false or true", _flag)


def _count_variable(field: str, name: str) -> Variable:
    return Variable(field, name, "a whole number of at least 1", _count)


def _size_variable(field: str, name: str, sizes: tuple[int, ...]) -> Variable:
    return Variable(field, name, f"one of {', '.join(map(str, sizes))}", _one_of(sizes))


VARIABLES: tuple[Variable, ...] = (
    _flag_variable("backend", "VLLM_SM70_FLASH_ATTN_V100"),
    _flag_variable("allow_fallback", "VLLM_FLASH_V100_ALLOW_TRITON_FALLBACK"),
    _flag_variable("reference_prefill", "VLLM_FLASH_V100_PREFILL_USE_TRITON"),
    _count_variable("smallq_max_q", "VLLM_FLASH_V100_SMALLQ_DECODE_MAX_Q"),
    _flag_variable("smallq_xqa", "VLLM_FLASH_V100_SMALLQ_DECODE_USE_XQA"),
    _count_variable("smallq_xqa_min_seq", "VLLM_FLASH_V100_SMALLQ_DECODE_XQA_MIN_SEQ_LEN"),
    _flag_variable("decode_xqa", "VLLM_FLASH_V100_DECODE_USE_XQA"),
    _count_variable("fp8_xqa_min_seq", "VLLM_FLASH_V100_DECODE_FP8_XQA_MIN_SEQ_LEN"),
    _count_variable("q4_xqa_min_seq", "VLLM_FLASH_V100_DECODE_XQA_Q4_MIN_SEQ_LEN"),
    _flag_variable("e4m3_batch_xqa", "VLLM_FLASH_V100_E4M3_BATCH_XQA"),
    _size_variable("partition_size", "VLLM_FLASH_V100_DECODE_PARTITION_SIZE", PARTITION_SIZES),
    _flag_variable("aligned_page_partition", "VLLM_FLASH_V100_XQA_G6_P1024_SAWTOOTH"),
    _flag_variable("mtp5_dual_cta", "VLLM_FLASH_V100_XQA_MTP5_DUAL_CTA"),
    _size_variable("mtp5_partition_size", "VLLM_FLASH_V100_XQA_MTP5_PARTITION_SIZE", MTP5_PARTITION_SIZES),
    _flag_variable("grouped_verify", "VLLM_FLASH_V100_DFLASH2_GROUPED_VERIFY"),
    _count_variable("grouped_min_model_len", "VLLM_FLASH_V100_DFLASH2_GROUPED_VERIFY_MIN_MODEL_LEN"),
    _flag_variable("gather_dense", "VLLM_FLASH_V100_PREFILL_GATHER_DENSE"),
    _count_variable("gather_min_q", "VLLM_FLASH_V100_PREFILL_GATHER_DENSE_MIN_Q"),
    _count_variable("gather_min_kv", "VLLM_FLASH_V100_PREFILL_GATHER_DENSE_MIN_KV"),
    _flag_variable("exact_dense", "VLLM_FLASH_V100_FA2_D256_PREFILL"),
    _flag_variable("split_kv", "VLLM_FLASH_V100_PREFILL_DENSE_SPLITKV3"),
    _count_variable("split_kv_min_kv", "VLLM_FLASH_V100_PREFILL_DENSE_SPLITKV3_MIN_KV"),
    _flag_variable("split_kv_q8000", "VLLM_FLASH_V100_PREFILL_DENSE_SPLITKV3_Q8000_EXPERIMENTAL"),
    _flag_variable("gqa_prefill", "VLLM_FLASH_V100_PREFILL_D256_GQA_ARCH_128K_EXPERIMENTAL"),
    _flag_variable("fp8_bridge", "VLLM_FLASH_V100_FP8_PREFILL_BRIDGE"),
)
"""Every variable of the policy, in the order of the table."""

_NAMES = {variable.field: variable.name for variable in VARIABLES}


def variable_of(field: str) -> str:
    """The environment variable of an ``Overrides`` field."""
    return _NAMES[field]


def read_overrides(environ: Mapping[str, str]) -> Overrides:
    """The overrides that an environment asks for; call it once, at start, with ``os.environ``.

    Raises ``InputError`` naming the variable, the value seen and the values allowed.
    """
    values: dict[str, Any] = {}
    for variable in VARIABLES:
        text = environ.get(variable.name)
        if text is None:
            continue
        try:
            values[variable.field] = variable.parse(text)
        except (ValueError, KeyError) as error:
            default = getattr(DEFAULT_OVERRIDES, variable.field)
            unset = "no explicit size" if default is None else str(int(default))
            raise InputError(
                f"{variable.name}={text!r}: allowed is {variable.allowed}; unset it for the default ({unset})"
            ) from error
    return Overrides(**values)


def overrides_record(overrides: Overrides) -> dict[str, bool | int]:
    """What differs from the defaults, by variable name: what a bundle records."""
    return {
        variable_of(item.name): getattr(overrides, item.name)
        for item in fields(overrides)
        if getattr(overrides, item.name) != getattr(DEFAULT_OVERRIDES, item.name)
    }

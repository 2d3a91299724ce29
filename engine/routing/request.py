"""What a routing decision is asked about: one frozen description of one attention call on SM70. No tensors, no torch.

Lengths are token counts; heads are those local to a rank; a window of ``(left, right)`` uses -1 for "no limit".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.routing.overrides import DEFAULT_OVERRIDES, Overrides

Capability = tuple[int, int]
SM70: Capability = (7, 0)
NO_WINDOW = (-1, -1)


class Platform(StrEnum):
    """Whose code answers. ``CPU`` is the CPU twin, which stands in for SM70: it is asked no capability."""

    CUDA = "cuda"
    CPU = "cpu"


class Phase(StrEnum):
    """``PROFILE``: a sizing run without metadata. ``VERIFY``: prefill-shaped rows that check a drafter's proposal."""

    PROFILE = "profile"
    PREFILL = "prefill"
    VERIFY = "verify"
    DECODE = "decode"


class Attention(StrEnum):
    """What attends to what: a sequence to itself so far, to all of itself, or to another one."""

    DECODER = "decoder"
    ENCODER = "encoder"
    CROSS = "cross"


class Workspace(StrEnum):
    """A buffer that a route needs beside the cache; allocating it may fail."""

    GATHER = "gather"
    GQA = "gqa"
    SPLIT_KV = "split_kv"
    BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class NativeCapabilities:
    """What the loaded native library advertises. 0 or ``False``: absent, so the route is refused, never called.

    ``grouped_max_q``: largest number of query rows that the grouped verify kernel takes (8 in old libraries, 16 now).
    """

    paged: bool = True
    xqa: bool = True
    xqa_e4m3: bool = True
    grouped_max_q: int = 16
    grouped_e4m3: bool = True
    bridge: bool = True
    dense_exact: bool = True
    dense_split_kv: bool = True
    dense_gqa: bool = True


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """Every axis that the policy looks at. Building one that contradicts itself raises ``ValueError``.

    - ``kv_asked`` is the option as typed; ``kv_dtype`` the name that storage uses (see ``kv_dtype.resolve_kv_dtype``).
    - ``kv_len`` is the longest KV length of this call, query rows included; under capture it is a dummy.
    - ``max_seq_hint`` defaults to ``kv_len``; ``static_hint`` and ``workspace_capacity`` exist where a graph or a
      workspace was sized for more; see ``plan.sequence_hint`` for who wins.
    - ``stride_elements``: the largest power of two that divides block and token stride of the cache, in elements.
    - ``query_rows``: rows of q with padding; defaults to ``num_seqs * q_len`` (an upper bound for ragged batches).
    - ``missing_tokens``: the metadata expects more tokens than the K/V tensors of this call hold.
    - ``partition_hint``: an explicit partition size of a context bucket.
    - ``persistent_rows``: the q-expanded block table and lengths live in buffers that outlive this call.
    - ``one_pass``: grouped verify reads the cache once; two passes are the numerical oracle of that kernel.
    """

    platform: Platform = Platform.CUDA
    capability: Capability | None = SM70
    kv_asked: str = "auto"
    kv_dtype: str = "auto"
    phase: Phase = Phase.DECODE
    attention: Attention = Attention.DECODER
    draft: bool = False
    alibi: bool = False
    softcap: bool = False
    sinks: bool = False
    head_dim: int = 256
    q_heads: int = 6
    kv_heads: int = 1
    scale: float = 0.0625
    causal: bool = True
    window: tuple[int, int] = NO_WINDOW
    num_seqs: int = 1
    q_len: int = 1
    kv_len: int = 1
    query_rows: int = 0
    prefix: bool = True
    missing_tokens: bool = False
    page_size: int = 16
    stride_elements: int = 256
    out_contiguous: bool = True
    cu_seqlens_int32: bool = True
    capturing: bool = False
    persistent_rows: bool = True
    max_seq_hint: int | None = None
    static_hint: int | None = None
    workspace_capacity: int | None = None
    max_model_len: int = 262144
    partition_hint: int | None = None
    one_pass: bool = True
    out_of_memory: tuple[Workspace, ...] = ()
    native: NativeCapabilities = field(default_factory=NativeCapabilities)
    overrides: Overrides = DEFAULT_OVERRIDES

    def __post_init__(self) -> None:
        for name in ("head_dim", "q_heads", "kv_heads", "num_seqs", "q_len", "kv_len", "page_size", "stride_elements"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} is {value}; it counts something that is there, so it is at least 1")
        if self.q_heads % self.kv_heads != 0:
            raise ValueError(
                f"{self.q_heads} query heads over {self.kv_heads} KV heads: each KV head needs whole groups"
            )
        if min(self.window) < -1:
            raise ValueError(f"window {self.window}: -1 means no limit, smaller values mean nothing")
        if self.phase is Phase.DECODE and self.q_len != 1:
            raise ValueError(f"phase decode with q_len {self.q_len}: a decode call has one query row per sequence")
        if self.kv_len < self.q_len:
            raise ValueError(
                f"kv_len {self.kv_len} is shorter than q_len {self.q_len}; query rows are the last positions of their "
                f"sequence, so a capture dummy needs a length of at least q_len"
            )
        if self.phase in (Phase.PREFILL, Phase.VERIFY) and not self.prefix and self.kv_len != self.q_len:
            raise ValueError(f"no prefix, but kv_len {self.kv_len} is longer than q_len {self.q_len}")
        if self.query_rows and self.query_rows < self.num_seqs:
            raise ValueError(f"{self.query_rows} query rows for {self.num_seqs} sequences; padding only adds rows")

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q_heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Query rows of the call, padded rows included."""
        return self.query_rows or self.num_seqs * self.q_len

    @property
    def max_seq(self) -> int:
        """The host's own idea of the longest sequence."""
        return self.kv_len if self.max_seq_hint is None else self.max_seq_hint

    @property
    def windowed(self) -> bool:
        """Whether a row sees less than all keys."""
        return self.window != NO_WINDOW

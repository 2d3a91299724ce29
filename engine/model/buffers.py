"""What a forward reads: allocated once, filled in place, never moved, so that calls can be bound to it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch

PADDED_SEQUENCE = -1


@dataclass(frozen=True, slots=True, eq=False)
class TensorRows:
    """A record of tensors that all have the same number of rows."""

    def first(self, rows: int) -> Self:
        """The same memory, cut to ``rows`` rows."""
        return replace(self, **{field.name: getattr(self, field.name)[:rows] for field in fields(self)})


@dataclass(frozen=True, slots=True, eq=False)
class RowInputs:
    """Integers that place T rows of up to B sequences, and name the rows whose logits are wanted.

    A sequence that a forward does not use has no rows: its ``query_start`` repeats, its ``seq_lens`` is 0 and its
    ``initial_slots`` is -1. The last two fields matter to recurrent layers alone.
    """

    slot_mapping: torch.Tensor  # int64 [T]
    head_rows: torch.Tensor  # int64 [logit rows]: which of the T rows they are
    token_ids: torch.Tensor  # int32 [T]
    positions: torch.Tensor  # int32 [T]
    block_table: torch.Tensor  # int32 [B, max_blocks]
    seq_lens: torch.Tensor  # int32 [B]
    query_start: torch.Tensor  # int32 [B + 1]
    initial_slots: torch.Tensor  # int32 [B]: the recurrent state before a sequence's rows
    state_slots: torch.Tensor  # int32 [T]: where the state after each row goes

    def first(self, rows: int) -> RowInputs:
        """The same memory, cut to ``rows`` rows; what belongs to sequences stays whole."""
        return RowInputs(
            slot_mapping=self.slot_mapping[:rows],
            head_rows=self.head_rows,
            token_ids=self.token_ids[:rows],
            positions=self.positions[:rows],
            block_table=self.block_table,
            seq_lens=self.seq_lens,
            query_start=self.query_start,
            initial_slots=self.initial_slots,
            state_slots=self.state_slots[:rows],
        )


class StagedInputs:
    """Row inputs where the host writes them and where the device reads them; on the CPU both are the same memory.

    Each side is one block of memory, so that a forward costs one copy. The host's side is pinned: the copy waits for
    nothing, and the host writes again only once the last copy has left.
    """

    def __init__(
        self, max_rows: int, max_logit_rows: int, max_sequences: int, max_blocks: int, device: torch.device
    ) -> None:
        """Inputs of no rows at all."""
        shapes = {
            "slot_mapping": (max_rows,),
            "head_rows": (max_logit_rows,),
            "token_ids": (max_rows,),
            "positions": (max_rows,),
            "block_table": (max_sequences, max_blocks),
            "seq_lens": (max_sequences,),
            "query_start": (max_sequences + 1,),
            "initial_slots": (max_sequences,),
            "state_slots": (max_rows,),
        }
        count = sum(_num_bytes(name, shape) for name, shape in shapes.items())
        apart = device.type == "cuda"
        self._host = torch.zeros(count, dtype=torch.uint8, pin_memory=apart)
        self._device = torch.zeros(count, dtype=torch.uint8, device=device) if apart else self._host
        self.host, self.device = _cut(self._host, shapes), _cut(self._device, shapes)
        self.host.slot_mapping.fill_(-1)
        self.host.initial_slots.fill_(PADDED_SEQUENCE)
        self.host.state_slots.fill_(-1)
        self._left = torch.cuda.Event() if apart else None  # type: ignore[no-untyped-call]

    def wait_until_writable(self) -> None:
        """Until the last copy has left the host's side."""
        if self._left is not None:
            self._left.synchronize()

    def upload_no_sync(self) -> None:
        """The host's side to the device, on its current stream."""
        if self._left is not None:
            self._device.copy_(self._host, non_blocking=True)
            self._left.record()


_WIDE = ("slot_mapping", "head_rows")  # int64: first in memory, so that everything is aligned


def _num_bytes(name: str, shape: tuple[int, ...]) -> int:
    return (8 if name in _WIDE else 4) * torch.Size(shape).numel()


def _cut(memory: torch.Tensor, shapes: dict[str, tuple[int, ...]]) -> RowInputs:
    views: dict[str, torch.Tensor] = {}
    start = 0
    for field in fields(RowInputs):
        shape = shapes[field.name]
        end = start + _num_bytes(field.name, shape)
        views[field.name] = memory[start:end].view(torch.int64 if field.name in _WIDE else torch.int32).view(shape)
        start = end
    return RowInputs(**views)

"""Bad values that only a kernel can see (a block, a slot, an id): recorded on the device, raised here when asked."""

from __future__ import annotations

import torch

# Kinds of native/cuda/faults.h -> the sentence for {where}, {index} and {value}.
_SENTENCES = {
    1: "block_table: entry {index} of sequence {where} is {value}, which is not a block of the cache",
    2: "seq_lens: sequence {where} has length {value}, more than its block table can hold",
    3: "slot_mapping: token {where} has slot {value}, which is neither -1 (PAD) nor a slot of the cache",
    4: "positions: token {where} has position {value}, which the cos_sin table does not reach",
    5: "ids: row {where}, column {index} is {value}, which is not a row of the table",
    6: "slots: sequence {where}, token {index} (-1: initial) has slot {value}, which is neither -1 (PAD) nor a state",
    7: "slots: sequence {where}, token {index} names slot {value}, but this op keeps no state there; pass -1",
}

_buffers: dict[torch.device, torch.Tensor] = {}


def buffer(device: torch.device) -> torch.Tensor:
    """int32 [4] on ``device`` where kernels record the first value that cannot be: kind, where, index, value.

    One a device for the life of the process: captured launches keep its address.
    """
    found = _buffers.get(device)
    if found is None:
        found = _buffers[device] = torch.zeros(4, dtype=torch.int32, device=device)
    return found


def raise_on_fault(device: torch.device) -> None:
    """Raise if a kernel on ``device`` met a value that cannot be since the last call. Synchronises; not for captures.

    The kernel read or wrote nothing at that place, so nothing is damaged; its output is not to be used.

    Raises:
        ValueError: naming what was seen and where. The record is cleared.
    """
    seen = buffer(device)
    kind, where, index, value = seen.tolist()
    if kind == 0:
        return
    seen.zero_()
    raise ValueError(_SENTENCES[kind].format(where=where, index=index, value=value))

"""All that a new sequence draws from: KV blocks, recurrent states where the model has them, known prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.state.blocks import BlockPool
from engine.state.prefix import PrefixIndex
from engine.state.sequence import SequenceState
from engine.state.slots import RecurrentSlots


@dataclass(frozen=True, slots=True, eq=False)
class CachePools:
    """The pools of one engine. ``states`` is None without recurrent layers, ``prefixes`` without prefix reuse."""

    blocks: BlockPool
    states: BlockPool | None = None
    prefixes: PrefixIndex | None = None

    @property
    def prefill_multiple(self) -> int:
        """Where chunks of a prompt should end: after a full block, if the recurrent state there is worth keeping."""
        return self.blocks.block_size if self.states is not None and self.prefixes is not None else 1

    def sequence(self, prompt_token_ids: Sequence[int]) -> SequenceState:
        """A sequence that has begun nothing."""
        recurrent = RecurrentSlots(self.states) if self.states is not None else None
        return SequenceState(prompt_token_ids, self.blocks, self.prefixes, recurrent)

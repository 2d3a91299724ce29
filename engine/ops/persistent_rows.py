"""Buffers that a captured graph knows by address: the q-expanded block table and lengths of small-q rows.

They are made once and refilled before every replay; they never move and never grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.ops.placement import upload_no_sync
from engine.routing.capture import check_capacity
from engine.routing.layout import expand_rows


@dataclass(frozen=True, slots=True)
class Rows:
    """Small-q rows as decode sequences: views of buffers. Padded rows have length 0 and an all-zero table row."""

    block_table: torch.Tensor  # int32 [rows, max_blocks]
    seq_lens: torch.Tensor  # int32 [rows]
    query_start: torch.Tensor  # int32 [rows + 1]


class PersistentRows:
    """Room for ``max_rows`` rows of ``max_blocks`` blocks on one device."""

    def __init__(self, max_rows: int, max_blocks: int, device: torch.device | str = "cpu") -> None:
        self.block_table = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self.query_start = torch.arange(max_rows + 1, dtype=torch.int32, device=device)

    def refresh(
        self,
        query_lens: Sequence[int],
        lengths: Sequence[int],
        block_table: torch.Tensor,
        graph_rows: int | None = None,
    ) -> Rows:
        """Fill the buffers for these requests, padded to ``graph_rows``, and return the rows in use.

        ``block_table``: int32 [B, blocks], the requests' own. Raises ``RuntimeError`` where a buffer is too small,
        before anything is written; ``ValueError`` where a length is shorter than its rows or the rows exceed the graph.
        """
        expanded = expand_rows(query_lens, lengths, graph_rows)
        rows, blocks = len(expanded.owner), block_table.shape[1]
        check_capacity("small-q rows", rows, self.block_table.shape[0])
        check_capacity("small-q blocks per row", blocks, self.block_table.shape[1])
        live = sum(owner >= 0 for owner in expanded.owner)
        owners = upload_no_sync(expanded.owner[:live], torch.long, block_table.device)
        self.block_table[:rows].zero_()
        self.block_table[:live, :blocks].copy_(block_table[owners])
        self.seq_lens[:rows].copy_(upload_no_sync(expanded.lengths, torch.int32, self.seq_lens.device))
        return self.view(rows)

    def view(self, rows: int) -> Rows:
        """The first ``rows`` rows: the same addresses at capture and at every replay."""
        return Rows(self.block_table[:rows], self.seq_lens[:rows], self.query_start[: rows + 1])

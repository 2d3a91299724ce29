"""Tokenised conversations on the device, sorted by length, and batches of equal tokens drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from engine.training.sizes import PAD

_STEP = 32
_LONGEST = 512
_PACKED = 1024
_PACKED_SHARE = 0.1
NO_LABEL = -100


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """N texts of one padded length, and which of their tokens a model is to predict."""

    token_ids: torch.Tensor  # int16 [N, T]
    predicted: torch.Tensor  # bool [N, T]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some texts."""

    token_ids: torch.Tensor  # int64 [B, T]
    labels: torch.Tensor  # int64 [B, T]: the next token, `NO_LABEL` where none is to be predicted

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What a loss is called with."""
        return self.token_ids, self.labels


class Batches:
    """Draws batches of about ``tokens`` tokens; each text is as likely as its length is long."""

    def __init__(self, encoded: Sequence[tuple[list[int], list[int]]], device: str, *, packed: bool = True) -> None:
        """``packed``: a tenth of the tokens also come as long rows of several conversations."""
        buckets: dict[int, list[tuple[list[int], list[int]]]] = {}
        for pair in encoded:
            length = len(pair[0]) + len(pair[1])
            if length <= _LONGEST:
                buckets.setdefault(-(-length // _STEP) * _STEP, []).append(pair)
        self._rows = [_rows([[pair] for pair in pairs], length) for length, pairs in sorted(buckets.items())]
        if packed:
            long = _pack(encoded[: max(1, int(len(encoded) * _PACKED_SHARE))])
            if long:
                self._rows.append(_rows(long, _PACKED))
        self._rows = [Rows(rows.token_ids.to(device), rows.predicted.to(device)) for rows in self._rows]
        self._shares = torch.tensor([float(rows.token_ids.numel()) for rows in self._rows])
        self.num_tokens = int(sum(int(rows.predicted.sum()) for rows in self._rows))
        self._generator = torch.Generator().manual_seed(0)
        self._device = device

    def draw(self, tokens: int) -> Batch:
        """A batch from one bucket, at least one text."""
        rows = self._rows[int(torch.multinomial(self._shares, 1, generator=self._generator))]
        count, length = rows.token_ids.shape
        picked = torch.randint(count, (max(1, tokens // length),), generator=self._generator).to(self._device)
        return batch_of(rows, picked)

    def in_order(self, tokens: int) -> list[Batch]:
        """Every text once, bucket after bucket."""
        found = []
        for rows in self._rows:
            count, length = rows.token_ids.shape
            size = max(1, tokens // length)
            found += [batch_of(rows, torch.arange(at, min(at + size, count))) for at in range(0, count, size)]
        return found


def batch_of(rows: Rows, picked: torch.Tensor) -> Batch:
    """The texts at ``picked``."""
    token_ids = rows.token_ids[picked].long()
    following = torch.roll(token_ids, -1, dims=1)
    labels = following.masked_fill(~torch.roll(rows.predicted[picked], -1, dims=1), NO_LABEL)
    labels[:, -1] = NO_LABEL
    return Batch(token_ids, labels)


def _rows(texts: Sequence[Sequence[tuple[list[int], list[int]]]], length: int) -> Rows:
    pieces = [piece for pairs in texts for pair in pairs for piece in pair]  # question, answer, question, …
    sizes = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    flat = np.fromiter(chain.from_iterable(pieces), dtype=np.int16, count=int(sizes.sum()))
    of_text = np.array([sum(len(piece) for pair in pairs for piece in pair) for pairs in texts])
    row = np.repeat(np.arange(len(texts)), of_text)
    column = np.arange(len(flat)) - np.repeat(of_text.cumsum() - of_text, of_text)
    token_ids = np.full((len(texts), length), PAD, dtype=np.int16)
    token_ids[row, column] = flat
    predicted = np.zeros((len(texts), length), dtype=np.bool_)
    predicted[row, column] = np.repeat(np.arange(len(pieces)) % 2 == 1, sizes)
    return Rows(torch.from_numpy(token_ids), torch.from_numpy(predicted))


def _pack(encoded: Sequence[tuple[list[int], list[int]]]) -> list[list[tuple[list[int], list[int]]]]:
    """Conversations one after another, as many as fit into a long row."""
    packed: list[list[tuple[list[int], list[int]]]] = []
    row: list[tuple[list[int], list[int]]] = []
    used = 0
    for question, answer in encoded:
        size = len(question) + len(answer)
        if size > _PACKED:
            continue
        if used + size > _PACKED:
            packed.append(row)
            row, used = [], 0
        row.append((question, answer))
        used += size
    return packed

"""Draws text from a model for thousands of prompts at once: a finished row takes the next prompt at once.

One step feeds one token to every row, wherever each row stands: a row inside its prompt is fed the prompt's next token,
a row after it is fed what was drawn. A step decides nothing on the host, so that on a GPU it is one CUDA graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.model.graphs import collector_held_off

# Steps whose tokens stay on the device before they are copied out.
_STEPS_KEPT = 64


class RowModel(Protocol):
    """A decoder with a cache row for each of B sequences."""

    first_position: int
    """Where prompts start: after a prefix that all rows share and that is in the cache already."""

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] after ``tokens`` int64 [B] at ``positions``; a row at ``first_position`` is fresh."""


@dataclass(frozen=True, slots=True)
class Law:
    """How the next token is drawn. ``top_k`` 0 keeps everything; ``greedy_rows``: the first rows take the best."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    greedy_rows: int = 0

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        """int64 [B] out of [B, V]."""
        if self.top_k:
            scores, ids = (logits.float() / self.temperature).topk(self.top_k, dim=-1)
            before = scores.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1)
            before[:, 0] = 0.0
            scores = scores.masked_fill(before >= self.top_p, -torch.inf)
            drawn = ids.gather(1, _race(scores, 1.0)[:, None])[:, 0]
        else:
            drawn = _race(logits, self.temperature)
        if self.greedy_rows:
            drawn[: self.greedy_rows] = logits[: self.greedy_rows].argmax(dim=-1)
        return drawn


def _race(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    """A draw from the softmax of ``scores`` [B, N] over ``temperature``, in as few passes as may be."""
    noise = torch.empty_like(scores, dtype=torch.float32).exponential_().log_()
    return noise.sub_(scores, alpha=1 / temperature).argmin(dim=-1)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A finished sequence: which prompt, which row, and the drawn tokens without the end token."""

    prompt: int
    row: int
    token_ids: list[int]


class DecodeLoop:
    """Rows over a model and a list of prompts. Prompts are taken in order, from the start again when all are used."""

    def __init__(
        self, model: RowModel, prompts: list[list[int]], rows: int, *, limit: int, end: int, law: Law, device: str
    ) -> None:
        """``limit``: position at which a sequence is given up; ``end``: the token that ends one."""
        longest = max(map(len, prompts))
        table = torch.zeros(len(prompts), longest, dtype=torch.int64)
        for index, prompt in enumerate(prompts):
            table[index, : len(prompt)] = torch.tensor(prompt)
        self._model, self._law, self._limit, self._end = model, law, limit, end
        self._first = model.first_position
        self._prompts = table.to(device)
        self._lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._prompt = torch.arange(rows, device=device) % len(prompts)
        self._next = torch.full((), rows, dtype=torch.int64, device=device)
        self._tokens = self._prompts[self._prompt, 0].clone()
        self._positions = torch.full((rows,), self._first, dtype=torch.int64, device=device)
        self._out = torch.full((_STEPS_KEPT, rows), -1, dtype=torch.int32, device=device)
        self._out_prompt = torch.zeros((_STEPS_KEPT, rows), dtype=torch.int32, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._device = device

    @torch.no_grad()
    def step(self) -> None:
        """One token for every row; everything is updated in place."""
        logits = self._model.step(self._tokens, self._positions)
        drawn = self._law.draw(logits)
        following = self._positions + 1
        inside = following - self._first < self._lengths[self._prompt]
        column = (following - self._first).clamp(max=self._prompts.shape[1] - 1)
        token = torch.where(inside, self._prompts[self._prompt, column], drawn)
        ended = ~inside & ((token == self._end) | (following >= self._limit))
        self._out.index_copy_(0, self._at, torch.where(inside, -1, token).int()[None])
        self._out_prompt.index_copy_(0, self._at, self._prompt.int()[None])
        self._at.copy_((self._at + 1) % _STEPS_KEPT)
        order = (self._next + ended.cumsum(0) - 1) % len(self._lengths)
        self._next += ended.sum()
        self._prompt.copy_(torch.where(ended, order, self._prompt))
        self._positions.copy_(torch.where(ended, self._first, following))
        self._tokens.copy_(torch.where(ended, self._prompts[self._prompt, 0], token))

    def run(self, seconds: float, steps: int | None = None) -> tuple[list[Drawn], int]:
        """Step for ``seconds`` (or ``steps``); returns the finished sequences and the number of drawn tokens."""
        advance = self._graph() if self._device == "cuda" else self.step
        tokens: list[npt.NDArray[np.int32]] = []
        prompts: list[npt.NDArray[np.int32]] = []
        started, done = time.monotonic(), 0
        self._at.zero_()
        while time.monotonic() - started < seconds and (steps is None or done < steps):
            for _ in range(_STEPS_KEPT):
                advance()
            done += _STEPS_KEPT
            tokens.append(self._out.cpu().numpy().copy())
            prompts.append(self._out_prompt.cpu().numpy().copy())
        return cut(np.concatenate(tokens), np.concatenate(prompts), self._end)

    def _graph(self) -> Callable[[], None]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with collector_held_off(), torch.cuda.graph(graph):
            self.step()
        replay: Callable[[], None] = graph.replay
        return replay


def cut(tokens: npt.NDArray[np.int32], prompts: npt.NDArray[np.int32], end: int) -> tuple[list[Drawn], int]:
    """Part what was written, [steps, rows] each (-1: inside a prompt), into the sequences that ended by themselves."""
    found: list[Drawn] = []
    for row in range(tokens.shape[1]):
        line, owner = tokens[:, row], prompts[:, row]
        inside = line < 0
        starts = np.flatnonzero(inside & ~np.concatenate(([False], inside[:-1])))
        for last in np.flatnonzero(line == end):
            begun = np.searchsorted(starts, last, side="right")
            if begun == 0:
                continue  # its prefix was written before this run
            text = line[starts[begun - 1] : last]
            found.append(Drawn(int(owner[last]), row, text[text >= 0].tolist()))
    return found, int((tokens >= 0).sum())

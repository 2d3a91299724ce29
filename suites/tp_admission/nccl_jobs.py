"""What ranks do on GPUs: functions of a module, so that another process can be told to run them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.graphs import collector_held_off
from engine.model.runner import SequenceRows
from engine.parallel.collectives import Collectives
from engine.parallel.group import Group
from engine.request import SamplingParams

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A captured sum and a captured gather on one rank, replayed after their inputs changed in place."""

    sums: tuple[F16, ...]
    columns: tuple[F32, ...]


def replayed_collectives(group: Group, parts: F16, hidden: F16, columns: F32) -> Replayed:
    """Capture a sum of ``parts`` [steps, size, M, H] on top of ``hidden`` [steps, M, H] and a gather of ``columns``
    [steps, size, M, W] once, and replay both for every step."""
    collectives = Collectives(group)
    mine, total = torch.zeros(parts.shape[2:], dtype=torch.float16), torch.zeros(hidden.shape[1:], dtype=torch.float16)
    local = torch.zeros(columns.shape[2:], dtype=torch.float32)
    mine, total, local = mine.cuda(), total.cuda(), local.cuda()
    gathered = torch.zeros(local.shape[0], group.size * local.shape[1], device="cuda")
    add, gather = collectives.add_sum(mine, total), collectives.gather_columns(local, gathered)
    add()  # NCCL sets up its channels at the first call, which no graph may hold
    gather()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with collector_held_off(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        add()
        gather()
    sums, seen = [], []
    for step in range(len(parts)):
        mine.copy_(torch.from_numpy(parts[step, group.rank].copy()))
        total.copy_(torch.from_numpy(hidden[step].copy()))
        local.copy_(torch.from_numpy(columns[step, group.rank].copy()))
        graph.replay()
        sums.append(total.cpu().numpy().copy())
        seen.append(gathered.cpu().numpy().copy())
    return Replayed(tuple(sums), tuple(seen))


@dataclass(frozen=True, slots=True, eq=False)
class TextAnswer:
    """Greedy tokens after a prompt, and the logits after every token of a text [T, V]."""

    token_ids: tuple[int, ...]
    logits: F32


def text_answer(
    group: Group, config: EngineConfig, prompt: list[int], count: int, text: tuple[int, ...] = ()
) -> TextAnswer | int:
    """``count`` tokens, then the logits of ``text`` (the prompt and those tokens where it is empty) in one forward."""
    llm = LLM(config, group)
    if group.rank:
        return llm.follow()
    tokens = tuple(llm.generate(prompt, SamplingParams(max_tokens=count, stop_token_ids=())).token_ids)
    told = text or (*prompt, *tokens)
    sequence = llm.pools.sequence(told)
    rows = sequence.reserve(len(told), all_stay=True)
    batch = [SequenceRows(told, rows, sequence.block_table, len(told))]
    logits = llm.runner.forward(batch, prefill=True).cpu().numpy().copy()
    llm.close()
    return TextAnswer(tokens, logits)


@dataclass(frozen=True, slots=True)
class GraphAnswer:
    """Tokens of a model over GPUs, and how often its rounds came from a graph."""

    token_ids: tuple[int, ...]
    replayed: int


def graph_answer(group: Group, config: EngineConfig, prompt: list[int], count: int) -> GraphAnswer:
    """Generate on rank 0; every rank tells how often it replayed."""
    llm = LLM(config, group)
    tokens: tuple[int, ...] = ()
    if group.rank:
        llm.follow()
    else:
        tokens = tuple(llm.generate(prompt, SamplingParams(max_tokens=count, stop_token_ids=())).token_ids)
        llm.close()
    graphs = llm.runner.graphs
    return GraphAnswer(tokens, 0 if graphs is None else graphs.replayed)


def die_in_a_collective(group: Group, victim: int, pids: str) -> None:
    """Every rank writes its process id into the folder ``pids``; then ``victim`` is killed while the others add."""
    (Path(pids) / str(group.rank)).write_text(str(os.getpid()))
    mine, total = torch.ones(4, 8, device="cuda"), torch.zeros(4, 8, device="cuda")
    add = Collectives(group).add_sum(mine, total)
    add()
    torch.cuda.synchronize()
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    add()
    torch.cuda.synchronize()

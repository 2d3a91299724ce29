"""What ranks do in cases: functions of a module, so that another process can be told to run them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.config import EngineConfig
from engine.llm import LLM
from engine.model.followers import Leader, hear
from engine.model.runner import SequenceRows
from engine.parallel.collectives import Collectives
from engine.parallel.group import Group
from engine.parallel.head import ParallelHead
from engine.parallel.plan import VocabSplit
from engine.request import SamplingParams

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ModelAnswer:
    """What rank 0 of a model gave: greedy tokens, and the logits after every prompt token [T, V]."""

    token_ids: tuple[int, ...]
    logits: F32


def model_answer(group: Group, config: EngineConfig, prompt: list[int], count: int) -> ModelAnswer | int:
    """Generate ``count`` tokens, then the prompt's logits in one forward; on a follower the number of forwards."""
    llm = LLM(config, group)
    if group.rank:
        return llm.follow()
    settings = SamplingParams(max_tokens=count, stop_token_ids=())
    result = llm.generate(prompt, settings)
    sequence = llm.pools.sequence(prompt)
    rows = sequence.reserve(len(prompt), all_stay=True)
    batch = [SequenceRows(prompt, rows, sequence.block_table, len(prompt))]
    logits = llm.runner.forward(batch, prefill=True).cpu().numpy().copy()
    llm.close()
    return ModelAnswer(tuple(result.token_ids), logits)


@dataclass(frozen=True, slots=True)
class ChatText:
    """One chat prompt's greedy reply: its tokens, why it ended, and how many drafts each round accepted."""

    token_ids: tuple[int, ...]
    finish: str
    accepted: tuple[int, ...]


def chat_texts(group: Group, config: EngineConfig, prompts: list[str], count: int) -> list[ChatText] | int:
    """Greedy replies of up to ``count`` tokens, one by one; on a follower the number of forwards."""
    llm = LLM(config, group)
    if group.rank:
        return llm.follow()
    results = [llm.generate(llm.chat_prompt(prompt), SamplingParams(max_tokens=count)) for prompt in prompts]
    llm.close()
    return [
        ChatText(tuple(result.token_ids), str(result.finish_reason), tuple(emitted - 1 for emitted in result.emitted))
        for result in results
    ]


def summed(group: Group, parts: npt.NDArray[np.generic], hidden: npt.NDArray[np.generic], device: str) -> F32:
    """Row-parallel sum of ``parts`` [size, M, H], of which each rank holds its own, on top of ``hidden`` [M, H]."""
    mine = torch.from_numpy(parts[group.rank].copy()).to(device)
    total = torch.from_numpy(hidden.copy()).to(device)
    add = Collectives(group).add_sum(mine, total)
    add()
    return total.cpu().numpy()


@dataclass(frozen=True, slots=True, eq=False)
class HeadAnswer:
    """Dense logits as they left the head, and the candidates."""

    dtype: str
    dense: npt.NDArray[np.generic]
    values: F32
    ids: npt.NDArray[np.int64]
    cuts_a_tie: npt.NDArray[np.bool_]


def head_answer(
    group: Group, x: F32, weight: npt.NDArray[np.float16], count: int, fp32_logits: bool, device: str
) -> HeadAnswer:
    """The head of ``weight`` [V, H] over the ranks: every rank answers, and all must agree."""
    vocab = VocabSplit(len(weight), group.size)
    rows = vocab.rows(group.rank)
    share = torch.zeros(vocab.local, weight.shape[1], dtype=torch.float16)
    share[: rows.count] = torch.from_numpy(weight[rows.start : rows.stop].copy())
    head = ParallelHead(group, vocab, share.to(device), fp32_logits=fp32_logits)
    activations = torch.from_numpy(x).to(device, torch.float32 if device == "cpu" else torch.float16)
    dense, found = head.dense(activations), head.candidates(activations, count)
    return HeadAnswer(
        str(dense.dtype),
        dense.cpu().numpy(),
        found.values.cpu().numpy(),
        found.ids.cpu().numpy(),
        found.cuts_a_tie.cpu().numpy(),
    )


def write_taps(group: Group, folder: Path, environment: dict[str, str]) -> int:
    """One replicated tensor and one sharded one, as a diagnosis of two steps would write them; who this process is."""
    from engine.parallel.tap import TapFile, tap, write_tap

    _, rank = group_rank(group, environment)
    for step in range(2):
        replicated = tap(torch.full((4,), float(step)))
        sharded = tap(torch.full((4,), float(10 * step + rank)))
        write_tap(folder, TapFile("hidden", step, rank, group.size), replicated)
        write_tap(folder, TapFile("heads", step, rank, group.size), sharded)
    return rank


def group_rank(group: Group, environment: dict[str, str]) -> tuple[int, int]:
    """The rank of the group, and what this process calls itself while the environment says otherwise."""
    import torch.distributed as dist

    from engine.parallel.rank import current_rank

    return group.rank, current_rank(dist.get_rank() if dist.is_initialized() else None, environment)


def add_without_end(group: Group, folder: Path) -> None:
    """Sums over the ranks until somebody ends it; a file in ``folder`` says who is at work."""
    add = Collectives(group).add_sum(torch.ones(2, 8), torch.zeros(2, 8))
    add()
    started = folder / f"{group.rank}.starting"
    started.write_text(str(os.getpid()))
    started.rename(folder / f"{group.rank}.at-work")  # whole when it is there
    while True:
        add()


def batch_tokens(group: Group, config: EngineConfig, prompts: list[list[int]], count: int) -> list[tuple[int, ...]]:
    """Several prompts together, and all of them once more, when their beginnings are known."""
    llm = LLM(config, group)
    if group.rank:
        llm.follow()
        return []
    settings = SamplingParams(max_tokens=count, stop_token_ids=())
    results = [*llm.generate_batch(prompts, settings), *llm.generate_batch(prompts, settings)]
    llm.close()
    failed = [result.error for result in results if result.error is not None]
    if failed:  # no tokens would equal no tokens
        raise RuntimeError(f"{len(failed)} of {len(results)} requests failed: {failed[0]}")
    return [tuple(result.token_ids) for result in results]


def heard(group: Group, rows: list[list[int]]) -> list[list[int]]:
    """Rank 0 tells ``rows`` one by one, then dismisses the others; what each of these heard until then."""
    if group.rank:
        return list(iter(partial(hear, group), None))
    leader = Leader(group)
    for row in rows:
        leader.tell(row)
    leader.dismiss()
    return rows


def refuse(group: Group, ranks: tuple[int, ...], kind: type[Exception]) -> int:
    """Raise ``kind`` on ``ranks``; the others wait for them in a collective."""
    if group.rank in ranks:
        raise kind(f"said by rank {group.rank}")
    group.all_gather(torch.zeros(group.size, 1), torch.zeros(1))
    return group.rank

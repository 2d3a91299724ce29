"""What the target and the draft minimise."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as torch_functional

from engine.training.batches import NO_LABEL, Batch, Batches
from engine.training.draft import Blocks, Draft
from engine.training.target import Target

# A draft's later positions count less: they are reached less often.
_POSITION_DECAY = 0.85
# Of the draft's loss: what the head's own scores must say without the lattice, so that its best 16 hold the token.
_UNARY_SHARE = 0.4
# The law that drafts are verified under; distilled from, so that no probability goes to what is cut off.
_TOP_K, _TOP_P = 20, 0.95


def target_loss(target: Target, batches: Batches, tokens: int, *, quantised: bool) -> Callable[[], torch.Tensor]:
    """A step's loss: cross entropy of the next token, over answers alone."""

    def loss() -> torch.Tensor:
        if quantised:
            target.quantise()
        return cross_entropy(target, batches.draw(tokens))

    return loss


def cross_entropy(target: Target, batch: Batch, scale: float = 1.0) -> torch.Tensor:
    """Mean nats a predicted token, of logits times ``scale``."""
    logits, _ = target(batch.token_ids)
    return torch_functional.cross_entropy(
        scale * logits.flatten(0, 1).float(), batch.labels.flatten(), ignore_index=NO_LABEL
    )


@torch.no_grad()
def held_out_loss(target: Target, batches: list[Batch]) -> float:
    """Nats a predicted token over all of ``batches``."""
    total, count = 0.0, 0
    for batch in batches:
        predicted = int((batch.labels != NO_LABEL).sum())
        if predicted:
            total += float(cross_entropy(target, batch)) * predicted
            count += predicted
    return total / count


def cut_law(logits: torch.Tensor) -> torch.Tensor:
    """Probabilities [..., V] after top-k and top-p, float32."""
    best, ids = logits.float().topk(_TOP_K, dim=-1)
    probs = best.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    kept = probs.masked_fill(before >= _TOP_P, 0.0)
    kept = kept / kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, ids, kept)


def draft_loss(
    draft: Draft, target: Target, batches: Batches, tokens: int, *, generator: torch.Generator
) -> Callable[[], torch.Tensor]:
    """A step's loss: the target's own law at every drafted position, given the true predecessor."""
    config = draft.config
    embedding = target.embed_tokens.weight.detach()
    decay = _POSITION_DECAY ** torch.arange(config.max_drafts, device=embedding.device)

    def loss() -> torch.Tensor:
        batch = batches.draw(tokens)
        length = batch.token_ids.shape[1]
        with torch.no_grad():
            logits, taps = target(batch.token_ids, config.target_layer_ids)
            first = int(torch.randint(1, config.block_size + 1, (1,), generator=generator))
            anchors = torch.arange(first, length - config.block_size + 1, config.block_size, device=embedding.device)
            blocks = Blocks.at(anchors, config.block_size, length)
            before = blocks.positions[:, :-1]  # the target's rows that predict the drafted positions
            wanted = cut_law(logits[:, before])
            predecessors = batch.token_ids[:, before]
            weights = (batch.labels[:, before] != NO_LABEL) * decay
        hidden = draft(batch.token_ids, torch.cat(taps, dim=-1), embedding, blocks)
        unary = torch_functional.linear(hidden, embedding)
        edges = unary + draft.candidate_selector(hidden, predecessors)
        both = _against(edges, wanted) + _UNARY_SHARE * _against(unary, wanted)
        return (both * weights).sum() / weights.sum().clamp(min=1)

    return loss


def _against(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross entropy of a whole law, [...]."""
    return -(wanted * scores.float().log_softmax(dim=-1)).sum(dim=-1)


@torch.no_grad()
def expected_acceptance(draft: Draft, target: Target, batches: list[Batch]) -> tuple[float, float]:
    """Tokens a round that a draft would give at T = 1 and greedily, from each position's agreement: an estimate.

    The mean over blocks of the sum of products of ``sum min(target, draft)`` along the text (and of equal argmax), plus
    the one token that every round emits.
    """
    config = draft.config
    embedding = target.embed_tokens.weight.detach()
    sums, blocks_seen = torch.zeros(2, device=embedding.device), 0
    for batch in batches:
        length = batch.token_ids.shape[1]
        logits, taps = target(batch.token_ids, config.target_layer_ids)
        anchors = torch.arange(1, length - config.block_size + 1, 5, device=embedding.device)
        blocks = Blocks.at(anchors, config.block_size, length)
        before = blocks.positions[:, :-1]
        wanted, predecessors = cut_law(logits[:, before]), batch.token_ids[:, before]
        hidden = draft(batch.token_ids, torch.cat(taps, dim=-1), embedding, blocks)
        unary = torch_functional.linear(hidden, embedding)
        edges = (unary + draft.candidate_selector(hidden, predecessors)).float()
        ids = unary.topk(config.selector_top_k, dim=-1).indices
        offered = torch.zeros_like(edges).scatter_(-1, ids, edges.gather(-1, ids).softmax(dim=-1))
        overlap = torch.minimum(offered, wanted).sum(dim=-1)
        best = ids.gather(-1, edges.gather(-1, ids).argmax(dim=-1, keepdim=True))[..., 0]
        agree = (best == logits[:, before].argmax(dim=-1)).float()
        real = (batch.labels[:, before] != NO_LABEL).all(dim=-1)
        for index, chance in enumerate((overlap, agree)):
            sums[index] += (chance.cumprod(dim=-1).sum(dim=-1) * real).sum()
        blocks_seen += int(real.sum())
    means = 1 + sums / max(1, blocks_seen)
    return float(means[0]), float(means[1])

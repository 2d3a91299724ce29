"""What the target and the draft minimise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as torch_functional

from engine.training.batches import NO_LABEL, Batch
from engine.training.draft import Blocks, Draft
from engine.training.target import Target

# A draft's later positions count less: they are reached less often.
_POSITION_DECAY = 0.85
# Of the draft's loss: what the head's own scores must say without the lattice, so that its best 16 hold the token.
_UNARY_SHARE = 0.4
# What an accepted token more is worth, in nats.
_ACCEPTED_SHARE = 0.5
# The law that drafts are verified under; distilled from, so that no probability goes to what is cut off.
_TOP_K, _TOP_P = 20, 0.95


def target_loss(target: Target, *, quantised: bool) -> Callable[..., torch.Tensor]:
    """A step's loss over a batch's tokens and labels: cross entropy of the next token, over answers alone."""

    def loss(token_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if quantised:
            target.quantise()
        return cross_entropy(target, Batch(token_ids, labels))

    return loss


def cross_entropy(target: Target, batch: Batch, scale: float = 1.0) -> torch.Tensor:
    """Mean nats a predicted token, of logits times ``scale``."""
    logits, _ = target(batch.token_ids)
    return torch_functional.cross_entropy(
        scale * logits.flatten(0, 1).float(), batch.labels.flatten(), ignore_index=NO_LABEL
    )


@torch.no_grad()
def held_out_loss(target: Target, batches: list[Batch], scale: float = 1.0) -> float:
    """Nats a predicted token over all of ``batches``, of logits times ``scale``."""
    total, count = 0.0, 0
    for batch in batches:
        predicted = int((batch.labels != NO_LABEL).sum())
        if predicted:
            total += float(cross_entropy(target, batch, scale)) * predicted
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


@torch.no_grad()
def cut_entropy(target: Target, batches: list[Batch], scale: float) -> float:
    """Mean entropy of `cut_law` of the logits times ``scale``, nats an answer's token."""
    total, count = 0.0, 0
    for batch in batches:
        law = cut_law(scale * target(batch.token_ids)[0][batch.labels != NO_LABEL])
        total -= float(torch.special.xlogy(law, law).sum())
        count += len(law)
    return total / count


@dataclass(frozen=True, slots=True, eq=False)
class Drafted:
    """What a draft says at the drafted positions of N blocks of every text, and what it should have said."""

    wanted: torch.Tensor  # float32 [B, N, K, V]: the target's law, as drafts are verified under it
    best: torch.Tensor  # int64 [B, N, K]: the target's most likely token
    counted: torch.Tensor  # bool [B, N, K]: positions of answers
    unary: torch.Tensor  # [B, N, K, V]: scores without a predecessor
    edges: torch.Tensor  # float32 [B, N, K, V]: scores after the text's own predecessor
    candidates: torch.Tensor  # int64 [B, N, K, C]: what the lattice keeps

    def offered(self) -> torch.Tensor:
        """The law that the engine draws from, over the candidates: float32 [B, N, K, C]."""
        return self.edges.gather(-1, self.candidates).softmax(dim=-1)

    def overlap(self) -> torch.Tensor:
        """The chance that a drafted token is accepted, sum of min(target, draft): float32 [B, N, K]."""
        return torch.minimum(self.offered(), self.wanted.gather(-1, self.candidates)).sum(dim=-1)

    def agreement(self) -> torch.Tensor:
        """Whether the draft's best candidate is the target's: float32 [B, N, K]."""
        scores = self.edges.gather(-1, self.candidates)
        best = self.candidates.gather(-1, scores.argmax(dim=-1, keepdim=True))[..., 0]
        return (best == self.best).float()


def drafted(draft: Draft, target: Target, batch: Batch, anchors: torch.Tensor) -> Drafted:
    """Blocks of a draft at ``anchors`` int64 [N] of every text; only the draft's part has gradients."""
    config = draft.config
    embedding = target.embed_tokens.weight.detach()
    with torch.no_grad():
        logits, taps = target(batch.token_ids, config.target_layer_ids)
        blocks = Blocks.at(anchors, config.block_size, batch.token_ids.shape[1])
        before = blocks.positions[:, :-1]  # the target's rows that predict the drafted positions
        behind = logits[:, before]
    hidden = draft(batch.token_ids, torch.cat(taps, dim=-1), embedding, blocks)
    unary = torch_functional.linear(hidden, embedding)
    return Drafted(
        wanted=cut_law(behind),
        best=behind.argmax(dim=-1),
        counted=batch.labels[:, before] != NO_LABEL,
        unary=unary,
        edges=(unary + draft.candidate_selector(hidden, batch.token_ids[:, before])).float(),
        candidates=unary.detach().topk(config.selector_top_k, dim=-1).indices,
    )


def draft_loss(draft: Draft, target: Target) -> Callable[..., torch.Tensor]:
    """A step's loss over a batch's tokens, labels and the first anchor int64 [] (1 to the block's size).

    Cross entropy against the target's law at every drafted position, less accepted tokens per round: the products of
    `Drafted.overlap` along a block are its chances of getting that far.
    """
    config = draft.config
    decay = _POSITION_DECAY ** torch.arange(config.max_drafts, device=target.embed_tokens.weight.device)

    def loss(token_ids: torch.Tensor, labels: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        starts = torch.arange(0, token_ids.shape[1] - config.block_size, config.block_size, device=first.device)
        seen = drafted(draft, target, Batch(token_ids, labels), first + starts)
        weights = seen.counted * decay
        both = _against(seen.edges, seen.wanted) + _UNARY_SHARE * _against(seen.unary, seen.wanted)
        accepted = _reached(seen.overlap() * seen.counted).sum() / seen.counted[..., 0].sum().clamp(min=1)
        return (both * weights).sum() / weights.sum().clamp(min=1) - _ACCEPTED_SHARE * accepted

    return loss


def _reached(chances: torch.Tensor) -> torch.Tensor:
    """The expected number of accepted drafts [...] of blocks whose positions are accepted with ``chances`` [..., K].

    Written out, because the gradient of ``cumprod`` asks the host whether there is a zero.
    """
    so_far, total = torch.ones_like(chances[..., 0]), torch.zeros_like(chances[..., 0])
    for chance in chances.unbind(dim=-1):
        so_far = so_far * chance
        total = total + so_far
    return total


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
    device = target.embed_tokens.weight.device
    sums, blocks_seen = torch.zeros(2, device=device), 0
    for batch in batches:
        anchors = torch.arange(1, batch.token_ids.shape[1] - config.block_size + 1, 5, device=device)
        seen = drafted(draft, target, batch, anchors)
        real = seen.counted.all(dim=-1)
        for index, chances in enumerate((seen.overlap(), seen.agreement())):
            sums[index] += (_reached(chances) * real).sum()
        blocks_seen += int(real.sum())
    means = 1 + sums / max(1, blocks_seen)
    return float(means[0]), float(means[1])

"""FlashInfer's sampler as arms of the benchmark, where it is installed (timed with version 0.7.4).

It answers other questions than ours do: masking keeps exactly k entries and leaves open which of a tie; drawing tries
again until a token lies inside (rejection), so it never has the set of ids. Each arm is called in its fastest form:
one k and one p for the batch as plain numbers, and a fixed seed, so that nothing waits and a graph can hold it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

Work = Callable[[torch.Tensor], torch.Tensor]

MASK = "flashinfer mask"
DRAW = "flashinfer draw"


def installed() -> bool:
    """Whether FlashInfer can be imported; its kernels are compiled at the first call."""
    return importlib.util.find_spec("flashinfer") is not None


def arms(top_k: int, top_p: float) -> dict[str, Work]:
    """Arms by name, each from logits ``[rows, vocab]`` that it only reads; ``top_k`` 0 and ``top_p`` 1 are off.

    ``MASK``: masked logits for top-k alone, else the probabilities renormalised within the nucleus; not there where
    nothing is cut. ``DRAW``: one id a row.
    """
    from flashinfer import sampling

    def mask(logits: torch.Tensor) -> torch.Tensor:
        masked: torch.Tensor = sampling.top_k_mask_logits(logits, top_k) if top_k else logits
        if top_p == 1.0:
            return masked
        renormalised: torch.Tensor = sampling.top_p_renorm_probs(masked.softmax(dim=-1), top_p)
        return renormalised

    def draw(logits: torch.Tensor) -> torch.Tensor:
        ids: torch.Tensor
        if top_k:
            ids = sampling.top_k_top_p_sampling_from_logits(
                logits, top_k, top_p, filter_apply_order="top_k_first", seed=0, offset=0
            )
        elif top_p != 1.0:
            ids = sampling.top_p_sampling_from_probs(logits.softmax(dim=-1), top_p, seed=0, offset=0)
        else:
            ids = sampling.sampling_from_logits(logits, seed=0, offset=0)
        return ids

    return {DRAW: draw} if not top_k and top_p == 1.0 else {MASK: mask, DRAW: draw}


def check(top_k: int, top_p: float, logits: torch.Tensor, expected: int, slack: int) -> None:
    """Asks each arm once about ``logits``, whose first row keeps ``expected`` ids: it keeps as many, give or take
    ``slack``, and in that row it draws an id that fewer larger entries stand before.

    Raises:
        AssertionError: an arm did something else than it is timed for.
    """
    found = {name: work(logits) for name, work in arms(top_k, top_p).items()}
    if MASK in found:
        kept = found[MASK][0]
        counted = int((kept.isfinite() & (kept != 0)).sum())
        if abs(counted - expected) > slack:
            raise AssertionError(f"{MASK} keeps {counted} ids, the cut {expected}")
    drawn = logits.gather(1, found[DRAW].to(torch.int64).unsqueeze(1))
    larger = int((logits > drawn)[0].sum())
    if larger >= expected + slack:
        raise AssertionError(f"{DRAW} drew an id behind {larger} larger ones where {expected} are kept")

"""Rejection sampling: which drafted tokens stay, and the one token that follows them.

A drafted token stays with probability min(1, target / draft). The first that does not is replaced by a token of the
residual, max(target - draft, 0); if all stay, the bonus token comes from the target. What is emitted then follows the
target's law exactly, whatever the draft. A greedy request is the same rule with all target mass on the arg max.
"""

from __future__ import annotations

from engine.sampling.random import Purpose
from engine.steps.records import Acceptance, LastToken, Noise, Proposal, Verification


def reject(proposal: Proposal, verification: Verification, noise: Noise) -> Acceptance:
    """Judge ``proposal`` against the target.

    The accept, recover and bonus numbers are independent of each other and of what drafted the tokens. Raises
    ``ValueError`` when the rows are not one more than the drafts.
    """
    drafts = len(proposal.token_ids)
    if len(verification.target_laws) != drafts + 1:
        raise ValueError(f"{len(verification.target_laws)} target rows for {drafts} drafts; allowed: {drafts + 1}")
    for step, token_id in enumerate(proposal.token_ids):
        position = verification.first_position + step
        target_law, draft_law = verification.target_laws[step], proposal.draft_laws[step]
        if not _accepts(target_law.probability(token_id), draft_law.probability(token_id), noise, position):
            recovered = target_law.residual(draft_law).draw(noise.bits(position, Purpose.RECOVER))
            return Acceptance(proposal.token_ids[:step], recovered, LastToken.RECOVERED)
    bonus = verification.target_laws[drafts].draw(noise.bits(verification.first_position + drafts, Purpose.TARGET))
    return Acceptance(proposal.token_ids, bonus, LastToken.BONUS)


def _accepts(target_prob: float, draft_prob: float, noise: Noise, position: int) -> bool:
    """u < target / draft without the division, u strictly between 0 and 1: a token without target mass never stays, and
    one that the target likes at least as much as the draft does needs no number.
    """
    return target_prob >= draft_prob or noise.uniform(position, Purpose.ACCEPT) * draft_prob < target_prob

"""Ways in which speculative decoding goes wrong: most of them only lower acceptance, or move the law a little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from suites.defects import Defect

_LAW = "suites/spec_decode/test_output_law.py"
_LOOKUP = "suites/spec_decode/test_conditional_lookup.py"
_REJECTION = "suites/spec_decode/test_rejection.py"
_DRAFT = "suites/spec_decode/test_draft_model.py"
_PIPELINE = "suites/spec_decode/test_context_pipeline.py"
_REPLAY = "suites/spec_decode/test_state_replay.py"

_PAIR = "suites/spec_decode/test_trained_pair.py"
_TOKENS = "suites/spec_decode/test_same_tokens.py"
_TRANSACTION = "suites/spec_decode/test_transaction.py"

Function = Callable[..., Any]


def _agreeing_tokens_become_sure(original: Function) -> Function:
    def fuse(drafted: Any, match: Any, settings: Any) -> Any:
        from engine.steps.records import PointLaw

        fused = original(drafted, match, settings)
        if match is None or not settings.weak <= match.length < settings.strong:
            return fused
        pairs = zip(fused.token_ids, match.continuation, strict=False)
        agree = next((step for step, (one, other) in enumerate(pairs) if one != other), len(match.continuation))
        if agree < settings.agree:
            return fused
        sure = [PointLaw(token) for token in fused.token_ids[:agree]]
        return type(fused)(fused.token_ids, (*sure, *fused.draft_laws[len(sure) :]))

    return fuse


def _recovers_with_the_drafts_number(original: Function) -> Function:
    class Sharing:
        def __init__(self, noise: Any) -> None:
            self._noise = noise

        def bits(self, position: int, purpose: Any) -> int:
            bits: int = self._noise.bits(position, type(purpose).DRAFT if purpose.name == "RECOVER" else purpose)
            return bits

        def uniform(self, position: int, purpose: Any) -> float:
            uniform: float = self._noise.uniform(position, purpose)
            return uniform

    return lambda proposal, verification, noise: original(proposal, verification, Sharing(noise))


def _accepts_by_the_targets_mass(_original: Function) -> Function:
    """As if every draft had been sure: min(1, p / q) becomes p."""

    def accepts(target_prob: float, draft_prob: float, noise: Any, position: int) -> bool:
        from engine.sampling.random import Purpose

        return bool(noise.uniform(position, Purpose.ACCEPT) < target_prob)

    return accepts


def _taps_the_layer_before(original: Function) -> Function:
    return lambda self, layer, hidden: original(self, layer + 1, hidden)


def _k_rows(original: Function) -> Function:
    return lambda self, rows: original(self, rows - 1 if rows > 1 else rows)


def _every_row_stays(original: Function) -> Function:
    return lambda self, batch, kept: original(self, batch, [len(one.token_ids) for one in batch])


def _whatever_is_prepared(original: Function) -> Function:
    def store_context(self: Any, batch: Sequence[Any], kept: Sequence[int]) -> None:
        self._computed = batch
        original(self, batch, kept)

    return store_context


def _over_all_rows(original: Function) -> Function:
    """The rows of a forward as one block, however many blocks there are."""

    def convolve(self: Any, x: Any, coefficients: Any, base: Any, side: int) -> Any:
        from dataclasses import replace

        own, self.config = self.config, replace(self.config, block_size=len(x))
        try:
            return original(self, x, coefficients, base, side)
        finally:
            self.config = own

    return convolve


def _all_but_the_last_slot(original: Function) -> Function:
    def build_lattice(*arguments: Any) -> Any:
        lattice = original(*arguments)
        lattice.scores[:, -1] = 0
        return lattice

    return build_lattice


def _never_erases(_original: Function) -> Function:
    return lambda self, slot: None


def _goes_on_from_the_last_row(original: Function) -> Function:
    def commit(self: Any, rows: int) -> None:
        written = len(self._open.write) if self._open is not None else rows
        original(self, written if rows else rows)

    return commit


def _drafts_with_the_number_that_accepts(original: Function) -> Function:
    class Sharing:
        def __init__(self, noise: Any) -> None:
            self._noise = noise

        def bits(self, position: int, purpose: Any) -> int:
            bits: int = self._noise.bits(position, type(purpose).ACCEPT if purpose.name == "DRAFT" else purpose)
            return bits

    return lambda ids, masses, position, width, noise: original(ids, masses, position, width, Sharing(noise))


def _first_rows_of_the_lattice(original: Function) -> Function:
    def walk(candidate_ids: Any, masses: Any, *rest: Any) -> Any:
        return original(candidate_ids, masses[:, :1].repeat(masses.shape[1], axis=1), *rest)

    return walk


def _defect(name: str, description: str, owner: str, attribute: str, spoil: Function, *must_go_red: str) -> Defect:
    return Defect(name, description, "spec_decode", owner, attribute, spoil, must_go_red)


DEFECTS = (
    _defect(
        "spec-draft-law-rewritten",
        "the tokens that chose a weak match are recorded as point masses",
        "engine.steps.fusion",
        "fuse",
        _agreeing_tokens_become_sure,
        f"{_LOOKUP}::test_the_published_frequencies[by-agreement]",
        f"{_LOOKUP}::test_the_law_is_the_targets[by-agreement-published]",
        f"{_LOOKUP}::test_the_law_is_the_targets[by-agreement-q.9-p.9]",
        f"{_LAW}::test_two_tokens_with_a_lookup[weak-1-block]",
        f"{_LAW}::test_two_tokens_with_a_lookup[weak-pair-1-tail]",
    ),
    _defect(
        "spec-shared-noise",
        "the recovered token is drawn with the number that drew the draft",
        "engine.steps.reject",
        "reject",
        _recovers_with_the_drafts_number,
        f"{_LAW}::test_two_tokens[residual-of-two-dense-1]",
        f"{_LAW}::test_two_tokens[residual-of-two-sparse-2]",
        f"{_REJECTION}::test_noise_shared_by_draft_and_recovery_would_show",
        f"{_REJECTION}::test_the_first_mismatch_ends_the_round",
    ),
    _defect(
        "spec-drafts-with-the-accepting-number",
        "a token is drafted with the number that then accepts or rejects it",
        "engine.steps.lattice",
        "walk",
        _drafts_with_the_number_that_accepts,
        f"{_DRAFT}::test_a_drafted_token_has_the_draft_number_of_its_own_position",
    ),
    _defect(
        "spec-accepts-without-the-draft",
        "a draft stays with the target's probability, whatever law it was drawn from",
        "engine.steps.reject",
        "_accepts",
        _accepts_by_the_targets_mass,
        f"{_LAW}::test_two_tokens[published-triple-dense-1]",
        f"{_LAW}::test_two_tokens[equal-sparse-2]",
        f"{_REJECTION}::test_all_stay_when_the_target_likes_them_as_much[7-dense]",
        f"{_REJECTION}::test_the_count_of_drawn_drafts_follows_the_overlap",
        f"{_TOKENS}::test_the_sampled_law_is_the_targets[dflash2]",
    ),
    _defect(
        "spec-tap-off-by-one",
        "a tap reads the stream that enters its layer instead of the one that leaves it",
        "engine.model.taps:Taps",
        "behind",
        _taps_the_layer_before,
        f"{_DRAFT}::test_a_draft_is_that_of_fp64[as-published]",
        f"{_DRAFT}::test_a_tap_that_is_off_by_one_would_show",
        f"{_PAIR}::test_taps_one_layer_off_cost_rounds",
    ),
    _defect(
        "spec-k-for-k-plus-1",
        "a round gets blocks for its drafts and none for the anchor's row",
        "engine.state.sequence:SequenceState",
        "blocks_missing",
        _k_rows,
        f"{_TRANSACTION}::test_a_round_has_its_k_plus_1_rows_at_every_offset",
        f"{_DRAFT}::test_a_block_has_room_for_its_last_mask",
    ),
    _defect(
        "spec-rejected-rows-stored",
        "the context of rejected rows is stored with that of the accepted ones",
        "engine.model.draft_runner:DraftRunner",
        "store_context",
        _every_row_stays,
        f"{_PIPELINE}::test_features_do_not_depend_on_what_is_accepted",
    ),
    _defect(
        "spec-stale-batch",
        "a context that was prepared for another batch is stored for this one",
        "engine.model.draft_runner:DraftRunner",
        "store_context",
        _whatever_is_prepared,
        f"{_PIPELINE}::test_a_stale_batch_is_never_stored",
    ),
    _defect(
        "spec-convolution-over-the-forward",
        "the convolution runs over all rows of a forward instead of the trained block",
        "engine.model.dflash2:DFlash2",
        "_convolve",
        _over_all_rows,
        f"{_DRAFT}::test_neighbours_do_not_change_a_draft",
    ),
    _defect(
        "spec-last-slot-unwritten",
        "the scores of the last slot of the lattice are never written",
        "engine.model.selector",
        "build_lattice",
        _all_but_the_last_slot,
        f"{_DRAFT}::test_a_draft_is_that_of_fp64[as-published]",
        f"{_DRAFT}::test_a_draft_is_that_of_fp64[block-of-4]",
        f"{_DRAFT}::test_the_last_slot_of_the_lattice_is_written",
    ),
    _defect(
        "spec-stale-candidates",
        "a slot of the candidate cache is written without being erased",
        "engine.state.candidates:CandidateCache",
        "_erase",
        _never_erases,
        f"{_DRAFT}::test_a_slot_is_erased_before_it_is_written[(16, 1)]",
        f"{_DRAFT}::test_the_candidate_cache_holds_the_proposal_and_nothing_else",
    ),
    _defect(
        "spec-contiguous-state-commit",
        "the recurrent state after the last written row is kept, not that after the last accepted one",
        "engine.state.slots:RecurrentSlots",
        "commit",
        _goes_on_from_the_last_row,
        f"{_REPLAY}::test_random_patterns",
        f"{_TRANSACTION}::test_what_is_not_committed_goes_back[4-3]",
    ),
    _defect(
        "spec-walk-forgets-the-token-in-front",
        "every token of a block is drawn from the first row of its slot",
        "engine.steps.lattice",
        "walk",
        _first_rows_of_the_lattice,
        f"{_DRAFT}::test_the_realised_rows_are_the_laws",
        f"{_DRAFT}::test_greedy_takes_the_best_of_each_realised_row",
    ),
)

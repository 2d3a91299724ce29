from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.run import SeedNoise
from engine.state.candidates import NO_CANDIDATE, CandidateCache
from engine.steps.lattice import lattice_masses, walk
from engine.steps.records import Fault, Proposal

IDS = np.array([[30, 7, 12], [4, 30, 9]])
# Position 1 depends on the token before it: after 30 comes 4, after 7 comes 30, after 12 comes 9.
SCORES = torch.tensor(
    [[[[1.0, 2.0, 0.0]] * 3, [[9.0, -9.0, -9.0], [-9.0, 9.0, -9.0], [-9.0, -9.0, 9.0]]]],
)


def drawn(temperature: float, seed: int, scores: torch.Tensor = SCORES) -> Proposal:
    walked = walk(IDS, lattice_masses(scores, [temperature])[0], 5, 2, SeedNoise(seed))
    assert isinstance(walked, Proposal)
    return walked


def test_greedy_takes_the_best_of_each_realised_row() -> None:
    proposal = drawn(0.0, seed=1)
    assert proposal.token_ids == (7, 30)
    assert all(law.probability(token) == 1 for token, law in zip(proposal.token_ids, proposal.draft_laws, strict=True))


def test_the_recorded_law_is_the_row_of_the_realised_predecessor() -> None:
    follows = {30: 4, 7: 30, 12: 9}
    seen = set()
    for seed in range(60):
        first, second = drawn(1.0, seed).draft_laws
        token = drawn(1.0, seed).token_ids[0]
        seen.add(token)
        assert first.token_ids.tolist() == [7, 12, 30]
        # The weights are integers of 40 bits: see `fixed_point_mass`.
        assert first.probs == pytest.approx(np.exp([2, 0, 1]) / np.exp([2, 0, 1]).sum(), rel=2**-28)
        assert second.probability(follows[token]) > 0.999999
    assert seen == {7, 12, 30}


def test_temperature_divides_the_scores() -> None:
    law = drawn(2.0, seed=0).draft_laws[0]
    assert law.probs == pytest.approx(np.exp([1, 0, 0.5]) / np.exp([1, 0, 0.5]).sum(), rel=2**-28)


def test_blocks_have_their_own_temperatures() -> None:
    both = lattice_masses(torch.cat((SCORES, SCORES)), [0.0, 1.0])
    assert np.array_equal(both[0], lattice_masses(SCORES, [0.0])[0])
    assert np.array_equal(both[1], lattice_masses(SCORES, [1.0])[0])


def test_a_narrower_walk_is_the_beginning_of_the_whole_one() -> None:
    whole, narrow = drawn(1.0, seed=3), walk(IDS, lattice_masses(SCORES, [1.0])[0], 5, 1, SeedNoise(3))
    assert isinstance(narrow, Proposal)
    assert narrow.token_ids == whole.token_ids[:1]


def test_scores_that_are_not_finite_are_a_fault() -> None:
    spoilt = SCORES.clone()
    spoilt[0, 1] = torch.nan
    walked = walk(IDS, lattice_masses(spoilt, [1.0])[0], 5, 2, SeedNoise(1))
    assert walked == Fault("the draft model's scores of position 6 are not finite")


def row(*pairs: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([token for token, _ in pairs]), np.array([prob for _, prob in pairs])


def test_a_slot_is_erased_before_it_is_written() -> None:
    cache = CandidateCache(slots=2, steps=3, width=4)
    assert cache.read(0) == []
    cache.write(0, [row((1, 0.5), (2, 0.25), (9, 0.25)), row((3, 0.5), (4, 0.5))])
    cache.write(1, [row((8, 1.0))])
    cache.write(0, [row((7, 1.0))])
    (only,) = cache.read(0)
    assert (only[0].tolist(), only[1].tolist()) == ([7], [1.0])
    assert (cache.token_ids[0] != NO_CANDIDATE).sum() == 1
    assert cache.probs[0].sum() == 1
    assert [ids.tolist() for ids, _ in cache.read(1)] == [[8]]

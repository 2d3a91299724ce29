from __future__ import annotations

import pytest
import torch

from engine.training import e4m3, text
from engine.training.batches import NO_LABEL, Batches
from engine.training.decode_attention import decode_attention
from engine.training.decode_loop import Law
from engine.training.losses import cut_law


def test_a_stored_matrix_is_stored_as_itself_and_gradients_pass() -> None:
    matrix = torch.randn(5, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    once = e4m3.as_stored(matrix)
    assert torch.equal(e4m3.as_stored(once.detach()), once.detach())
    assert not torch.equal(once, matrix)
    once.sum().backward()  # type: ignore[no-untyped-call]
    assert matrix.grad is not None
    assert torch.equal(matrix.grad, torch.ones_like(matrix))


def test_a_row_attends_to_what_it_holds_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(*shape, generator=generator) for shape in ((3, 4, 16), (3, 2, 9, 16), (3, 2, 9, 16))
    )
    positions = torch.tensor([0, 4, 8])
    seen = decode_attention(query, keys, values, positions, 0.25)
    for row, last in enumerate(positions.tolist()):
        held = slice(0, last + 1)
        for head in range(4):
            weights = (keys[row, head // 2, held] @ query[row, head] * 0.25).softmax(dim=0)
            # Sums of at most 16 float32 products of a few units.
            torch.testing.assert_close(
                seen[row, head], weights @ values[row, head // 2, held], rtol=0, atol=16 * 2.0**-22
            )


@pytest.mark.parametrize("law", [Law(0.5), Law(1.0, 20, 0.95)])
def test_a_law_draws_by_its_probabilities(law: Law) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 50)
    count = 200_000
    drawn = torch.bincount(law.draw(logits.expand(count, 50)), minlength=50) / count
    wanted = cut_law(logits)[0] if law.top_k else (logits[0] / law.temperature).softmax(dim=0)
    # Five standard deviations of a share.
    assert bool(((drawn - wanted).abs() <= 5 * (wanted * (1 - wanted) / count).sqrt() + 1e-9).all())


def test_rows_hold_each_text_and_predict_its_answer() -> None:
    batches = Batches([([5, 6, 7], [8, 2]), ([9], [10, 11, 2])], "cpu", packed=False)
    (batch,) = batches.in_order(64)
    assert batch.token_ids[:, :6].tolist() == [[5, 6, 7, 8, 2, 0], [9, 10, 11, 2, 0, 0]]
    assert batch.labels[:, :5].tolist() == [
        [NO_LABEL, NO_LABEL, 8, 2, NO_LABEL],
        [10, 11, 2, NO_LABEL, NO_LABEL],
    ]
    assert batches.num_tokens == 5


def test_sound_replies_are_kept_once() -> None:
    table = [b"one ", b"two ", b"three ", b"four ", b"five ", b"six "]
    whole = list(range(6))
    drawn = [("q", whole), ("q", whole), ("q", [0, 1]), ("q", [0] * 40)]
    assert text.decoded(drawn, table) == [text.Conversation("q", "one two three four five six")]

"""What must hold before a time may be recorded: the text ended by itself, and every repeat did the same work."""

from __future__ import annotations

from collections.abc import Sequence

from suites.latency import figures
from suites.latency.figures import Runs


def require_natural_stop(runs: Runs) -> None:
    """Every prompt ended with the model's own end token; AssertionError names the first that did not."""
    for run in runs:
        if run.finish != "stop":
            raise AssertionError(
                f"prompt {run.prompt!r} ended by {run.finish!r} after {len(run.token_ids)} tokens; a timed one must "
                "end by 'stop': raise max_tokens of the arm or choose another prompt"
            )


def require_same_tokens(repeats: Sequence[Runs], what: str) -> str:
    """Every repeat emitted the same ids; gives their hash. AssertionError names the first token that differs."""
    hashes = [figures.tokens_sha256(runs) for runs in repeats]
    for index, (runs, digest) in enumerate(zip(repeats, hashes, strict=True)):
        if digest != hashes[0]:
            raise AssertionError(f"{what} {index} against 0: {_first_difference(repeats[0], runs)}")
    return hashes[0]


def _first_difference(expected: Runs, actual: Runs) -> str:
    for left, right in zip(expected, actual, strict=True):
        for position, (one, other) in enumerate(zip(left.token_ids, right.token_ids, strict=False)):
            if one != other:
                return f"prompt {left.prompt!r}, token {position}: {other}, not {one}"
        if len(left.token_ids) != len(right.token_ids):
            return f"prompt {left.prompt!r}: {len(right.token_ids)} tokens, not {len(left.token_ids)}"
    return "the hashes differ but no token does"

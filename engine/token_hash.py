"""The token control: one hash that two runs must share before their times may be compared."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable


def tokens_sha256(token_ids: Iterable[int]) -> str:
    """SHA-256 in hex over the token ids as little-endian int32, in order. The hash of no tokens is SHA-256 of nothing.

    Raises ``OverflowError`` for an id that is no int32.
    """
    ids = array("i", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return hashlib.sha256(ids.tobytes()).hexdigest()

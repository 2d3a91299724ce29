from __future__ import annotations

import hashlib
import struct

import pytest

from engine.token_hash import tokens_sha256


def test_is_sha256_over_little_endian_int32() -> None:
    assert tokens_sha256([1, 2, 49151]) == hashlib.sha256(struct.pack("<3i", 1, 2, 49151)).hexdigest()
    assert tokens_sha256([]) == hashlib.sha256(b"").hexdigest()


def test_what_is_no_int32_is_refused() -> None:
    with pytest.raises(OverflowError):
        tokens_sha256([2**31])

"""A case with timings tied to tokens. The times are made up, so that tests do not depend on the machine."""

import os
import sys
from typing import Any

FAULT = os.environ.get("FIXTURE_FAULT", "")
FACTOR = float(os.environ.get("FIXTURE_FACTOR", "1"))


def test_decode(record: Any) -> None:
    if FAULT == "trace":
        sys.setprofile(lambda *_: None)
    ids = [[1, 2, 3, 4], [5, 6, 7]]
    record.tokens("greedy", ids, ["length" if FAULT == "length" else "stop", "stop"], rounds=6)
    values = [FACTOR * value for value in (10.0, 10.1, 10.2)]
    record.samples("round_ms", values, "ms", control="greedy", rounds=[[value] * 3 for value in values])
    sys.setprofile(None)

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EvidenceError, HarnessError
from harness.quarantine import MOST, parse_quarantine, read_quarantine

ENTRY = '[[case]]\nnode = "n"\nowner = "me"\nreason = "driver bug"\nsince = 2026-06-01\nexpires = 2026-06-20\n'


def test_entries(tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text(ENTRY + 'ticket = "#1"\n')
    entry = read_quarantine(tmp_path / "q.toml")["n"]
    assert (entry.owner, entry.reason, entry.expires, entry.ticket) == ("me", "driver bug", "2026-06-20", "#1")
    assert read_quarantine(tmp_path / "absent.toml") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("case = 3", "only [[case]] tables"),
        ("[other]\n", "only [[case]] tables"),
        ("[[case]\n", "q: "),
        (ENTRY + ENTRY, "n is listed twice"),
        (ENTRY.replace("2026-06-20", "2026-07-20"), "an entry lasts 0 to 30 days"),
        (ENTRY.replace("2026-06-20", "2026-05-20"), "an entry lasts 0 to 30 days"),
        (ENTRY.replace("2026-06-20", '"soon"'), "'soon' is no date"),
        (ENTRY.replace('owner = "me"\n', ""), "node, owner and reason are all needed"),
        (ENTRY + "extra = 1\n", "fields are"),
        (ENTRY.replace('"me"', "7"), "are strings"),
        ("".join(ENTRY.replace('"n"', f'"n{i}"') for i in range(MOST + 1)), "at most 20 are allowed"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        parse_quarantine(text.encode(), "q")
    assert says in str(caught.value)


@given(st.binary(max_size=80) | st.text(alphabet='[]case="\n-=0123456789.', max_size=80).map(str.encode))
def test_only_documented_errors_leave_the_reader(content: bytes) -> None:
    try:
        parse_quarantine(content, "q")
    except HarnessError:
        return


@given(st.integers(0, 30))
def test_any_length_up_to_the_limit(days: int) -> None:
    end = date(2026, 6, 1) + timedelta(days=days)
    assert parse_quarantine(ENTRY.replace("2026-06-20", end.isoformat()).encode(), "q")["n"].expires == end.isoformat()

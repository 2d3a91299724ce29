"""Follows the record files of a running scope: how many cases are done, which one is open. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class ScopeProgress:
    """Counts so far. ``open_cases`` is what would be named as crashed if the process died now."""

    scope: str
    total: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    open_cases: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Cases that ended, however."""
        return len(self.outcomes)

    @property
    def failed(self) -> list[str]:
        """Node ids of the cases that went red so far."""
        return [node for node, outcome in self.outcomes.items() if outcome in ("failed", "error")]


class RecordTail:
    """Reads what was appended to ``records*.jsonl`` of a folder since the last call."""

    def __init__(self, folder: Path, scope: str) -> None:
        self.folder = folder
        self.progress = ScopeProgress(scope)
        self._offsets: dict[Path, int] = {}
        self._collected: set[str] = set()

    def read(self) -> ScopeProgress:
        """Take in the new whole lines and give the state so far."""
        for path in sorted(self.folder.glob("records*.jsonl")):
            with path.open("rb") as stream:
                stream.seek(self._offsets.get(path, 0))
                chunk = stream.read()
            whole, newline, _ = chunk.rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                self._take(line)
        return self.progress

    def _take(self, line: bytes) -> None:
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:  # told with file and line when the evidence is read; progress only counts
            return
        state, node = self.progress, str(record.get("node", ""))
        match record.get("kind"):
            case "collected":
                self._collected.update(record["nodes"])
                state.total = len(self._collected)
            case "case_start":
                state.open_cases.append(node)
            case "case_end":
                if record["outcome"] != "interrupted":
                    state.outcomes[node] = str(record["outcome"])
                if node in state.open_cases:
                    state.open_cases.remove(node)

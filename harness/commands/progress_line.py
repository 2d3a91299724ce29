"""One line about a running scope, rewritten on a terminal and repeated now and then in a log. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable
from shutil import get_terminal_size

from harness.model import OriginKind, ScopeSummary
from harness.progress import ScopeProgress

QUIET_EVERY_S = 15.0  # without a terminal, progress is a line now and then


class ProgressLine:
    """One line that follows a running scope, rewritten on a terminal, repeated now and then in a log."""

    def __init__(self, terminal: bool, tell: Callable[[str], None]) -> None:
        self.terminal = terminal
        self.tell = tell
        self.started = self.last = time.monotonic()
        self.scope = ""

    def show(self, state: ScopeProgress) -> None:
        """Called a few times a second."""
        now = time.monotonic()
        if state.scope != self.scope:
            self.scope, self.started, self.last = state.scope, now, now - (0.0 if self.terminal else QUIET_EVERY_S)
        if not self.terminal and now - self.last < QUIET_EVERY_S:
            return
        self.last = now
        failed = f", {len(state.failed)} failed" if state.failed else ""
        current = f"  {state.open_cases[-1]}" if state.open_cases else ""
        done = f"{state.done}/{state.total} cases" if state.total else "looking for its cases"
        text = f"{state.scope}: {done}{failed}, {now - self.started:.0f} s{current}"
        if self.terminal:
            width = get_terminal_size().columns - 1
            self.tell(f"\r\x1b[K{text[:width]}")
        else:
            self.tell(text + "\n")

    def end(self, summary: ScopeSummary) -> None:
        """Replace the line by what the scope came to."""
        self.clear()
        if summary.origin.kind is OriginKind.NOT_RUN:
            self.tell(f"{summary.scope}: not run: {summary.origin.detail}\n")
            return
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.counts.items())) or "no case"
        seconds = f" in {summary.seconds:.1f} s" if summary.seconds is not None else ""
        self.tell(f"{summary.scope}: {counts}{seconds}{'' if summary.fresh else ' (finished earlier)'}\n")

    def clear(self) -> None:
        if self.terminal:
            self.tell("\r\x1b[K")

"""What all our tests share."""

from __future__ import annotations

import signal

# Started in the background, a shell's children ignore interrupts, and so would every child that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

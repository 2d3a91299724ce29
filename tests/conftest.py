"""What all our tests share."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A busy machine is no bug of the code under test.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# Started in the background, a shell's children ignore interrupts, and so would every child that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""How the fork server of a run ends. Imported there, last of what it preloads, and nowhere else.

It has nothing to write when it ends, and to take an interpreter apart that has torch in it costs seconds of a busy
machine: so long it would stay as a process of a run that is over.
"""

from __future__ import annotations

import atexit
import os

_SERVER = os.getpid()


def _leave() -> None:
    if os.getpid() == _SERVER:  # its ranks leave through here too, with exit codes of their own
        os._exit(0)


atexit.register(_leave)

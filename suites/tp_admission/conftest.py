"""What the scope of real ranks starts early."""

from __future__ import annotations

import pytest

from engine.parallel.launch import start_fork_server


@pytest.fixture(scope="session", autouse=True)
def _model_code_is_imported_meanwhile() -> None:
    """By the fork server, beside the first cases: the first that starts ranks need not wait for all of it."""
    start_fork_server()

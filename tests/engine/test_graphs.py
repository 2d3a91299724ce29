"""What a capture must be kept from."""

from __future__ import annotations

import gc
import weakref

from engine.model.graphs import collector_held_off


class _Cycle:
    """An object that only the cyclic collector can free."""

    def __init__(self) -> None:
        self.itself = self


def test_no_cyclic_garbage_is_collected_inside() -> None:
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        with collector_held_off():
            alive = weakref.ref(_Cycle())
            kept = [_Cycle() for _ in range(1000)]  # far more allocations than the collector waits for
            assert alive() is not None
        assert gc.isenabled()
        del kept
        gc.collect()
        assert alive() is None
    finally:
        gc.set_threshold(*before)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_held_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

"""The integer weights: how far they are from exp, and that the largest is exact."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ops import sampling as ops
from suites.recording import Record
from suites.sampling.cutting import on_device
from suites.targets import Target, array

pytestmark = pytest.mark.group("mass")

RELATIVE = 2.0**-28
ABSOLUTE = 2.0**-41


def test_error_of_the_weights(targets: tuple[Target, ...], record: Record) -> None:
    """Each weight is within 2**-28 of itself and 2**-41 of the largest: the bound that every band is made from.

    exp in fp64 (long double where it is wider) is the reference; 200,000 distances over the whole range, dense and in
    powers of two, so that every part of the polynomial's interval is met.
    """
    distance = np.concatenate([np.linspace(0, 30, 150_001), np.geomspace(1e-9, 30, 49_999)]).astype(np.float32)
    logits = (-distance)[None]
    exact = np.exp(-distance.astype(np.longdouble))
    for target in targets:
        on = on_device(target, logits)
        weights = array(ops.sampling_masses(on, ops.sampling_plan(on)))[0].astype(np.longdouble) / 2.0**40
        share = np.abs(weights - exact) / (RELATIVE * exact + ABSOLUTE)
        worst = int(share.argmax())
        assert share[worst] <= 1, (
            f"{target.name}: exp({-distance[worst]!r}) is {weights[worst]!r}, should be {exact[worst]!r}; "
            f"{float(share[worst]):.3f} of the allowed error"
        )
        if target.name == "cpu":
            record.metric("largest share of the bound", round(float(share[worst]), 4), "1", better="lower")


def test_largest_weighs_exactly_one(targets: tuple[Target, ...]) -> None:
    for target in targets:
        on = on_device(target, np.array([[-3e38, 7.25, 7.25]], dtype=np.float32))
        assert array(ops.sampling_masses(on, ops.sampling_plan(on))).tolist() == [[0, 2**40, 2**40]]


def test_weights_never_rise_with_the_distance(targets: tuple[Target, ...]) -> None:
    """Not needed by any rule, but a kink would be a wrong coefficient."""
    logits = -np.linspace(0, 3, 400_000, dtype=np.float32)[None]
    for target in targets:
        on = on_device(target, logits)
        assert (np.diff(array(ops.sampling_masses(on, ops.sampling_plan(on)))[0]) <= 0).all()

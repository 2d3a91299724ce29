"""How far an implementation may be from an oracle, and the source of each bound.

The bounds are worst-case forward error bounds of floating-point arithmetic (N. J. Higham, *Accuracy and Stability of
Numerical Algorithms*, chapters 2-4), computed per element from the data of the case. They hold for every order of
summation, with or without fused multiply-add, so one bound serves every implementation. None was chosen to make a case
pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from suites.oracles.arrays import F64
from suites.oracles.attention import Attended

EXP_ULPS = 2.0


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Units of rounding: of the accumulator, and of what is stored afterwards (0: stored as accumulated).

    ``floor`` is half the spacing of the stored format's subnormals: the absolute error that no relative bound covers.
    """

    name: str
    accumulate: float
    store: float
    floor: float


FP32 = Arithmetic("fp32", accumulate=2.0**-24, store=0.0, floor=2.0**-149)
# The tensor cores of SM70 align and truncate, so one addition may lose a whole unit in the last place, not half of one.
MMA_STORED_FP16 = Arithmetic("m8n8k4 fp32 stored as fp16", accumulate=2.0**-23, store=2.0**-11, floor=2.0**-25)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``limit`` per element, and the sentence that says where it comes from."""

    limit: F64
    source: str


def gamma(operations: float | F64, unit: float) -> F64:
    """``n u / (1 - n u)``: the bound of n roundings in a row."""
    product = np.asarray(operations, dtype=np.float64) * unit
    if np.any(product >= 1):
        raise ValueError(f"{np.max(np.asarray(operations))} roundings of {unit} leave no correct digit")
    out: F64 = product / (1 - product)
    return out


def _stored(error: F64, value: F64, arithmetic: Arithmetic) -> F64:
    return error + arithmetic.store * (np.abs(value) + error) + arithmetic.floor


def dot(value: F64, magnitude: F64, terms: int, arithmetic: Arithmetic = FP32, extra: int = 0) -> Tolerance:
    """Sums of ``terms`` products with absolute values summing to ``magnitude``; ``extra`` roundings decode a weight."""
    limit = _stored(gamma(terms + extra, arithmetic.accumulate) * magnitude, value, arithmetic)
    return Tolerance(limit, f"gamma({terms} + {extra}) * sum|a||b| in {arithmetic.name}")


def fixed_point(tolerance: Tolerance, x: F64, weight: F64, *, group: int = 32, bits: int = 15) -> Tolerance:
    """Widen ``tolerance`` of ``x [M, K] @ weight [N, K].T`` for activations held in fixed point.

    Every ``group`` inputs share a power-of-two step that leaves ``bits`` bits for the largest of them, so each input is
    off by at most half a step: 2**-bits of the largest magnitude of its group (of 2**-112 in a smaller group).
    """
    largest = np.abs(x).reshape(x.shape[0], -1, group).max(axis=-1)
    half_step = np.maximum(largest, 2.0**-112) * 2.0**-bits  # [M, K / group]
    held = np.abs(weight).reshape(weight.shape[0], -1, group).sum(axis=-1)  # [N, K / group]
    limit = tolerance.limit + half_step @ held.T
    return Tolerance(limit, f"{tolerance.source} + inputs in {bits} bits of the largest of {group}")


def logit_gap(largest: float, products: int, *, group: int = 32, bits: int = 15) -> float:
    """Gap between two logits that fixed-point inputs of ``products`` products in a row may close.

    An input's step is at most 2**(1 - bits) of its group's largest, which is at most sqrt(group) times the group's root
    mean square; rounding leaves step / sqrt(12) of it. Independent errors of all products add as squares, and both
    logits may move. ``largest``: the magnitude that a relative error of the last hidden state multiplies.
    """
    relative = 2.0 ** (1 - bits) * np.sqrt(group / 12) * np.sqrt(products)
    return float(2 * relative * largest)


def half_logit_gap(largest: float, roundings: int) -> float:
    """Gap between two logits that activations in float16 may close, ``roundings`` of them in a row.

    A rounding moves a number by at most 2**-11 of itself, by 2**-11 / sqrt(3) in the root mean square; independent ones
    add as squares, and both logits may move. ``largest``: as for `logit_gap`.
    """
    return float(2 * 2.0**-11 * np.sqrt(roundings / 3) * largest)


def rms_norm(value: F64, width: int, arithmetic: Arithmetic = FP32) -> Tolerance:
    """Squares do not cancel and the root halves their relative error; 8u for 1/n, eps, a 2-ulp root and products."""
    relative = gamma(width + 3, arithmetic.accumulate) / 2 + 8 * arithmetic.accumulate
    limit = _stored(relative * np.abs(value), value, arithmetic)
    return Tolerance(limit, f"(gamma({width} + 3)/2 + 8u) |y| in {arithmetic.name}")


def silu_mul(value: F64, gate_up: F64, arithmetic: Arithmetic = FP32) -> Tolerance:
    """A 2-ulp exp (4u), one sum, one quotient, two products; where exp overflows, sigmoid < 2**-126 may become 0."""
    gate, up = np.split(gate_up, 2, axis=-1)
    relative = gamma(2 * EXP_ULPS + 4, arithmetic.accumulate)
    lost = np.where(gate < -80, np.abs(gate * up) * 2.0**-126, 0.0)
    limit = _stored(relative * np.abs(value) + lost, value, arithmetic)
    return Tolerance(limit, f"gamma(2*{EXP_ULPS:g} + 4) |y| + |gate up| 2^-126 below gate -80, in {arithmetic.name}")


def rotate(value: F64, magnitude: F64, arithmetic: Arithmetic = FP32) -> Tolerance:
    """Two products and one sum; where ``magnitude`` is 0 the element only passes through and must be exact."""
    limit = _stored(gamma(2, arithmetic.accumulate) * magnitude, value, arithmetic)
    limit = np.where(magnitude > 0, limit, 0.0)
    return Tolerance(limit, f"gamma(2) (|a cos| + |b sin|) in {arithmetic.name}; pass-through exact")


def attention(
    attended: Attended,
    head_dim: int,
    arithmetic: Arithmetic = FP32,
    *,
    half_weights: bool = False,
) -> Tolerance:
    """Softmax attention in any tiling.

    A score is off by at most gamma(D + 2) scale sum|q||k| plus two roundings of its size; that exponent error, the exp
    and the running sums perturb every probability by a relative e; numerator and denominator make 2e / (1 - e).
    ``half_weights``: a weight (largest 1) is rounded to fp16 before it meets v, as tensor cores need: 2**-11 of itself,
    or 2**-25 where it is subnormal.
    """
    unit = arithmetic.accumulate
    exponent = gamma(head_dim + 2, unit) * attended.score_magnitude + 4 * unit * attended.score
    relative = np.expm1(np.minimum(exponent, 1.0)) + 2 * EXP_ULPS * unit + gamma(2 * attended.keys + 4, unit)
    if half_weights:
        relative = relative + 2.0**-11
    if np.any(relative >= 0.5):
        raise ValueError("scores are too large for this bound to say anything: use smaller inputs")
    error = (2 * relative / (1 - relative))[..., None] * attended.spread
    if half_weights:
        error = error + 2.0**-25 * attended.values
    limit = _stored(error, attended.out, arithmetic)
    return Tolerance(np.where(attended.keys[..., None] > 0, limit, 0.0), f"softmax forward error in {arithmetic.name}")


def delta_rule(
    out: F64, states: F64, initial: F64, values: F64, key_dim: int, arithmetic: Arithmetic = FP32
) -> tuple[Tolerance, Tolerance]:
    """Bounds of the gated delta rule's output ``[T, Hv, dv]`` and states ``[T, Hv, dv, dk]``, by norms of state rows.

    One step is S <- decay S (I - beta k k^T) + beta v k^T with |k| <= 1, beta and decay <= 1: it carries an error of
    the state on without growing it and adds gamma(2 dk + 16) (2 |S| + 2 |v|) of its own (normalising k and q, two dot
    products, the exp, the update). An output is S q with |q| <= dk^-1/2 and one more dot product. The chunked form does
    the same sums in another order and solves a unit triangular system of 64 rows, gamma(64) more.
    """
    before = np.concatenate([initial[None], states[:-1]])
    rows = np.maximum(np.linalg.norm(before, axis=-1), np.linalg.norm(states, axis=-1))
    own = gamma(2 * key_dim + 16 + 64, arithmetic.accumulate) * (2 * rows + 2 * np.abs(values))
    carried = np.cumsum(own, axis=0)
    error = (carried + gamma(2 * key_dim + 16, arithmetic.accumulate) * rows) * key_dim**-0.5
    source = f"norms of {key_dim}-wide state rows, errors of all steps added, in {arithmetic.name}"
    state_limit = np.broadcast_to(carried[..., None] + arithmetic.floor, states.shape)
    return Tolerance(_stored(error, out, arithmetic), source), Tolerance(np.array(state_limit), source)


def exact(value: F64) -> Tolerance:
    """No difference at all."""
    return Tolerance(np.zeros_like(value), "exact")


def cast(tolerance: Tolerance, value: F64, unit: float, floor: float) -> Tolerance:
    """One more rounding with ``unit`` (and subnormal ``floor``) of a bounded value, e.g. into an fp16 cache."""
    limit = tolerance.limit + unit * (np.abs(value) + tolerance.limit) + floor
    return Tolerance(limit, f"{tolerance.source}, then rounded with unit {unit:g}")

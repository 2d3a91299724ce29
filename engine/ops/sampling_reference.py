"""Plain torch twins of the sampling ops: the cutoffs, written row by row as they are defined.

Readable first. Each function has the name, the signature and, bit for bit, the answer of its native twin in
`engine.ops.sampling`; none of them is meant to be fast.

**The set that stays.** `x` is a row after division by its temperature. Top-k keeps every entry that is at least the
k-th largest (threshold top-k, ties included). Top-p then walks the survivors by (value descending, id descending) and
keeps an entry while the mass ahead of it is below `top_p` times the mass of *all* survivors; the first always stays.

**Keys.** Values are compared as order-preserving uint32 keys of their bits (-0 counted as +0), so a cutoff is a bit
pattern that occurs in the row, never something that went through exp and log.

**Mass.** The weight of an entry is `round(2**40 * exp(x - max))`, an integer. Integer sums have no order, so every
implementation, batch size and thread count makes the same decision. `fixed_point_mass` states its error.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from fractions import Fraction
from math import ceil, isfinite

import torch
from torch import Tensor

MASS_BITS = 40
"""The largest entry of a row weighs 2**40: a row of 2**22 entries still sums below 2**62."""

KEY_NEGATIVE_INFINITY = 0x007F_FFFF
KEY_POSITIVE_INFINITY = 0xFF80_0000
KEY_NAN = 0xFFFF_FFFF

LOG2_E = float.fromhex("0x1.71547652b82fep+0") * 2.0**32
"""log2(e) in units of 2**-32, one fp64 constant shared by every implementation."""

EXP2_COEFFICIENTS = (2147483648, 1488522236, 515882469, 119193747, 20652244, 2856024, 319744, 24275)
"""2**31 times the coefficients of the polynomial for 2**-f on [0, 1), with alternating signs."""


class PlanColumn(IntEnum):
    """Columns of a plan row, int32 each; keys are uint32 bit patterns."""

    THRESHOLD = 0
    """Key of the k-th largest value; 0 where top-k is off."""
    CUT = 1
    """Entries with a key below this one go, above it stay."""
    FIRST_TIE = 2
    """Among the entries equal to the cut, those with this id or a higher one stay; 0 where all of them do."""
    FLAGS = 3
    """`RowFlag` bits."""


class RowFlag(IntFlag):
    """What a plan says about its row beyond the cutoffs. A row with any of `FAULT` is never cut and never sampled."""

    NAN = 1
    POSITIVE_INFINITY = 2
    NOTHING_FINITE = 4
    BAD_PARAMETER = 8
    GREEDY = 16
    FAULT = NAN | POSITIVE_INFINITY | NOTHING_FINITE | BAD_PARAMETER


def ordered_keys(values: Tensor) -> Tensor:
    """Order-preserving keys of fp32 `values`, int64 in [0, 2**32). -0 and +0 share a key; any NaN has the top one."""
    canonical = torch.where(values == 0, torch.zeros_like(values), values)
    bits = canonical.contiguous().view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
    keys = torch.where(bits >= 0x8000_0000, 0xFFFF_FFFF - bits, bits + 0x8000_0000)
    return torch.where(torch.isnan(values), torch.full_like(keys, KEY_NAN), keys)


def fixed_point_mass(values: Tensor, maximum: float) -> Tensor:
    """`round(2**40 * exp(values - maximum))` as int64, for fp32 `values` that are at most `maximum`.

    Only IEEE operations that round once and integer arithmetic, so the bits are the same on every machine.
    The relative error is below 2**-28 (polynomial and truncation, checked over the whole fraction by the suite), the
    absolute error below 2**-41 of the largest weight (the rounding to 40 bits); -inf weighs nothing.
    """
    distance = maximum - values.to(torch.float64)
    scaled = torch.round(torch.clamp(distance * LOG2_E, max=63 * 2.0**32)).to(torch.int64)
    whole = scaled >> 32
    fraction = scaled & 0xFFFF_FFFF
    power = torch.full_like(fraction, EXP2_COEFFICIENTS[-1])
    for coefficient in reversed(EXP2_COEFFICIENTS[:-1]):
        power = coefficient - ((fraction * power) >> 32)
    return (((power << (MASS_BITS - 30)) >> whole) + 1) >> 1


def after_temperature(row: Tensor, temperature: float | None) -> Tensor:
    """The fp32 row that all cutoffs are defined on; temperature 0 marks a greedy row, whose values stay."""
    if temperature is None or temperature == 0:
        return row
    # A tensor on the row's device: by a host number, torch's CUDA division multiplies by the reciprocal.
    return row / torch.full((), temperature, dtype=torch.float32, device=row.device)


def _fault(keys: Tensor, top_p: float, temperature: float) -> RowFlag:
    if not (0 < top_p <= 1) or not (isfinite(temperature) and temperature >= 0):
        return RowFlag.BAD_PARAMETER
    top = int(keys.max())
    if top == KEY_NAN:
        return RowFlag.NAN
    if top == KEY_POSITIVE_INFINITY:
        return RowFlag.POSITIVE_INFINITY
    return RowFlag.NOTHING_FINITE if top == KEY_NEGATIVE_INFINITY else RowFlag(0)


def _plan_row(row: Tensor, top_k: int, top_p: float, temperature: float) -> tuple[int, int, int, int]:
    row = after_temperature(row, temperature)
    keys = ordered_keys(row)
    flags = _fault(keys, top_p, temperature)
    if flags or temperature == 0:
        return 0, 0, 0, int(flags or RowFlag.GREEDY)
    width = row.shape[0]
    threshold = int(torch.topk(keys, top_k).values[-1]) if 0 < top_k < width else 0
    if top_p == 1:
        return threshold, threshold, 0, 0
    ids = torch.nonzero(keys >= threshold).flatten()
    # One integer a candidate: the key, then the id. No two are equal, so the order does not hang on the sort.
    order = torch.sort((keys[ids] << 31) | ids, descending=True).values
    ids = order & 0x7FFF_FFFF
    masses = fixed_point_mass(row[ids], float(row[ids[0]]))
    before = torch.cumsum(masses, 0) - masses
    limit = ceil(Fraction(top_p) * int(masses.sum()))
    count = max(1, int((before < limit).sum()))
    cut = int(order[count - 1] >> 31)
    split = count < len(order) and int(order[count] >> 31) == cut
    return threshold, cut, int(ids[count - 1]) if split else 0, 0


def _column(values: Tensor | None, rows: int, default: float) -> list[float]:
    return [default] * rows if values is None else [float(value) for value in values.tolist()]


def sampling_plan(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Reads `logits` f32 [B, V] and says per row what stays: int32 [B, 4], see `PlanColumn`.

    `top_k` i32 [B] (0 and below, V and above: off), `top_p` f32 [B] (1: off), `temperature` f32 [B] (0: greedy).
    """
    rows = logits.shape[0]
    settings = zip(_column(top_k, rows, 0), _column(top_p, rows, 1), _column(temperature, rows, 1), strict=True)
    plan = [_plan_row(logits[row], int(k), p, t) for row, (k, p, t) in enumerate(settings)]
    # uint32 patterns into int32 columns
    signed = torch.tensor(plan, dtype=torch.int64, device=logits.device).reshape(rows, len(PlanColumn)).to(torch.int32)
    return signed if out is None else out.copy_(signed)


def kept(row: Tensor, plan_row: Tensor) -> Tensor:
    """Which entries of a row after temperature stay, bool [V]."""
    keys = ordered_keys(row)
    cut = int(plan_row[PlanColumn.CUT]) & 0xFFFF_FFFF
    ids = torch.arange(row.shape[0], device=row.device)
    return (keys > cut) | ((keys == cut) & (ids >= int(plan_row[PlanColumn.FIRST_TIE])))


def sampling_apply(
    logits: Tensor, plan: Tensor, temperature: Tensor | None = None, *, mask_value: float = -torch.inf
) -> Tensor:
    """Divides by temperature and puts `mask_value` where the plan removes, in place; returns `logits` itself.

    Rows that are greedy or at fault are not touched.
    """
    for index, t in enumerate(_column(temperature, logits.shape[0], 1)):
        if int(plan[index, PlanColumn.FLAGS]):
            continue
        row = after_temperature(logits[index], t)
        logits[index] = torch.where(kept(row, plan[index]), row, mask_value)
    return logits


def sampling_cut(
    logits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
    *,
    mask_value: float = -torch.inf,
    out: Tensor | None = None,
) -> Tensor:
    """`sampling_plan`, then `sampling_apply` of that plan; returns the plan."""
    plan = sampling_plan(logits, top_k, top_p, temperature, out=out)
    sampling_apply(logits, plan, temperature, mask_value=mask_value)
    return plan


def _row_masses(row: Tensor, plan_row: Tensor, temperature: float, excluded: int) -> Tensor:
    """Integer weights [V] of one row; all zero for a row at fault, one-hot on the lowest maximum for a greedy one."""
    flags = RowFlag(int(plan_row[PlanColumn.FLAGS]))
    masses = torch.zeros(row.shape[0], dtype=torch.int64, device=row.device)
    if flags & RowFlag.FAULT:
        return masses
    keys = ordered_keys(row)
    if flags & RowFlag.GREEDY:
        masses[int(torch.nonzero(keys == keys.max())[0])] = 1 << MASS_BITS
    else:
        row = after_temperature(row, temperature)
        stays = kept(row, plan_row)
        masses[stays] = fixed_point_mass(row[stays], float(row.max()))
    if excluded >= 0:
        masses[excluded] = 0
    return masses


def sampling_masses(
    logits: Tensor, plan: Tensor, temperature: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Integer weights i64 [B, V] of what the plan keeps; divided by their row sum they are the target distribution.

    `logits` before or after `sampling_apply` (then without `temperature`). A row at fault weighs nothing.
    """
    out = torch.empty(logits.shape, dtype=torch.int64, device=logits.device) if out is None else out
    for index, t in enumerate(_column(temperature, logits.shape[0], 1)):
        out[index] = _row_masses(logits[index], plan[index], t, -1)
    return out


def sampling_weigh(
    logits: Tensor,
    plan: Tensor,
    token_ids: Tensor,
    temperature: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Weight of `token_ids` i64 [B] and total weight of each row: i64 [B, 2], without making the whole row."""
    rows = logits.shape[0]
    out = torch.empty((rows, 2), dtype=torch.int64, device=logits.device) if out is None else out
    for index, t in enumerate(_column(temperature, rows, 1)):
        masses = _row_masses(logits[index], plan[index], t, -1)
        out[index, 0] = masses[int(token_ids[index])]
        out[index, 1] = masses.sum()
    return out


def sampling_draw(
    logits: Tensor,
    plan: Tensor,
    random_bits: Tensor,
    temperature: Tensor | None = None,
    *,
    excluded: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One token per row, i64 [B]: the first id whose cumulative weight exceeds `bits * total / 2**64`.

    `random_bits` i64 [B] are 64 random bits per row; greedy rows ignore them. `excluded` i64 [B] removes one id a row
    (-1: none) after the cutoffs, for the residual of a point-mass proposal. A row with nothing to draw gives -1.
    """
    rows = logits.shape[0]
    out = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    without = [-1] * rows if excluded is None else [int(token) for token in excluded.tolist()]
    for index, t in enumerate(_column(temperature, rows, 1)):
        masses = _row_masses(logits[index], plan[index], t, without[index])
        total = int(masses.sum())
        pick = ((int(random_bits[index]) & (2**64 - 1)) * total) >> 64
        out[index] = int((torch.cumsum(masses, 0) <= pick).sum()) if total else -1
    return out


def sampling_sample(
    logits: Tensor,
    random_bits: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    temperature: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`sampling_plan`, then `sampling_draw` by that plan; returns both."""
    plan = sampling_plan(logits, top_k, top_p, temperature)
    return plan, sampling_draw(logits, plan, random_bits, temperature)

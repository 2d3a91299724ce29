"""A history as a CSV table (RFC 4180), by pandas: one line per point, or one line per series and one column per bundle.

Types are stated, never guessed: a digest of digits stays a digest.
"""

from __future__ import annotations

import pandas as pd

from harness.trends.history import History, Series

SERIES = ("device_key", "scope", "node", "name", "kind", "unit")
BUNDLE = ("created", "bundle", "digest", "commit")
POINT = ("value", "low", "high", "n", "left_out", "break", "step")
COLUMNS = (*SERIES, *BUNDLE, *POINT)
_NUMBERS = {"value": "float64", "low": "float64", "high": "float64", "n": "int64", "place": "int64"}


def points(history: History) -> pd.DataFrame:
    """One row per point in the order of the history: ``COLUMNS``, and ``place``, its index among the bundles."""
    rows = [_row(history, series, at) for series in history.series for at in range(len(series.points))]
    columns = [*COLUMNS, "place"]
    types = {column: _NUMBERS.get(column, "object") for column in columns}
    return pd.DataFrame(rows, columns=columns).astype(types)


def _row(history: History, series: Series, at: int) -> tuple[str | float, ...]:
    point = series.points[at]
    bundle = history.bundles[point.bundle]
    return (
        *(series.device_key, series.scope, series.node, series.name, series.kind, series.unit),
        *(bundle.created, bundle.label, bundle.digest, bundle.commit),
        *(point.value, point.low, point.high, point.n, point.left_out),
        next((broken.reason for broken in series.breaks if broken.at == at), ""),
        next((step.outcome.value for step in series.steps if step.at == at), ""),
        point.bundle,
    )


def to_csv(history: History) -> str:
    """One line per point."""
    return _csv(points(history).drop(columns="place"))


def to_wide_csv(history: History) -> str:
    """One line per series, one column per bundle, oldest first. A point that takes no part in judging leaves a gap."""
    table = points(history)
    judged = table[table["left_out"] == ""]
    wide = judged.pivot(index=list(SERIES), columns="place", values="value")
    wide = wide.reindex(columns=range(len(history.bundles)))
    wide.columns = pd.Index([f"{bundle.created} {bundle.label}" for bundle in history.bundles])
    return _csv(wide.reset_index())


def _csv(table: pd.DataFrame) -> str:
    texts = table.select_dtypes(exclude="number").columns
    safe = table.assign(**{column: table[column].map(_no_formula) for column in texts})
    return safe.to_csv(index=False, lineterminator="\r\n")


def _no_formula(text: str) -> str:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text

"""What each change of a point is worth on its own, as far as the runs of a search can tell."""

import math
from collections.abc import Sequence

import numpy as np

from autotune.records import RunRecord, Scalar, Values
from autotune.results import Change
from autotune.space.knob import Label, same_scalar
from autotune.space.space import Space

_RIDGE = 0.05
"""Shrinks effects that few runs support; about one run's noise at the usual spread."""


def changes_worth(records: Sequence[RunRecord], today: Values, point: Values, space: Space) -> list[Change]:
    """Splits a point's speed over today's among its changes.

    A main-effects model of ln throughput, one coefficient for each value that some run had instead of today's, fitted
    by ridge regression over all comparable runs. Changes that were only ever made together share one coefficient.

    Args:
        records: Runs measured under like conditions.
        today: Values of today's point.
        point: Values of the point to explain.
        space: Gives the labels.

    Returns:
        One change for each knob that differs, grouped ones next to each other, largest worth first.
    """
    changed = [path for path in point if path in today and not same_scalar(point[path], today[path])]
    runs = [(record.values, measured) for record in records if (measured := record.comparable)]
    runs = [(values, measured) for values, measured in runs if set(values) == set(today)]
    columns = _columns([values for values, _ in runs], today)
    log_speed = np.array([math.log(measured.speed) for _, measured in runs])
    coefficients = _ridge(columns, log_speed)

    groups: dict[tuple[bool, ...], list[str]] = {}
    for path in changed:
        column = tuple(same_scalar(values[path], point[path]) for values, _ in runs)
        groups.setdefault(column, []).append(path)
    rated = []
    for column, paths in groups.items():
        known = [coefficients.get((path, _key(point[path]))) for path in paths] if any(column) else [None]
        effect = sum(c for c in known if c is not None)
        rated.append((None if None in known else math.exp(effect), paths))
    rated.sort(key=lambda item: -(item[0] or 0.0))
    return [
        Change(
            path=path,
            old=today[path],
            new=point[path],
            worth=worth,
            group=number,
            label=_label(space, path),
            effective_batch=_effective_batch(space, path, today[path], point[path]),
        )
        for number, (worth, paths) in enumerate(rated)
        for path in paths
    ]


def _columns(points: Sequence[Values], today: Values) -> dict[tuple[str, str], np.ndarray]:
    """An indicator for each (knob, value other than today's) that some run had."""
    seen = sorted(
        {(path, _key(v)) for values in points for path, v in values.items() if not same_scalar(v, today[path])}
    )
    return {(path, key): np.array([float(_key(values[path]) == key) for values in points]) for path, key in seen}


def _key(value: Scalar) -> str:
    return f"{type(value).__name__}:{value}"


def _ridge(columns: dict[tuple[str, str], np.ndarray], target: np.ndarray) -> dict[tuple[str, str], float]:
    if not columns or not target.size:
        return {}
    design = np.column_stack([np.ones_like(target), *columns.values()])
    penalty = math.sqrt(_RIDGE) * np.eye(design.shape[1])
    penalty[0, 0] = 0.0  # the level itself is not shrunk
    solution, *_ = np.linalg.lstsq(
        np.vstack([design, penalty]), np.concatenate([target, np.zeros(design.shape[1])]), rcond=None
    )
    return dict(zip(columns, solution[1:].tolist(), strict=True))


def _effective_batch(space: Space, path: str, old: Scalar, new: Scalar) -> str:
    knob = next((knob for knob in space.knobs if knob.path == path), None)
    if knob is None or knob.batch is None or knob.label is not Label.BATCH:
        return ""
    return knob.batch.change(old, new) if isinstance(old, int) and isinstance(new, int) else ""


def _label(space: Space, path: str) -> str:
    return next((knob.label.value for knob in space.knobs if knob.path == path), Label.UNKNOWN.value)

"""Effect of each single change of a point, estimated from the trials of a search."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.records import Scalar, TrialRecord, Values
from autotune.results import Change, MovedKey, Ratio
from autotune.space.knob import Knob, Label, is_number, same_scalar
from autotune.space.space import Space
from autotune.study.contrasts import speed_ratios


def changes_worth(
    records: Sequence[TrialRecord],
    baseline: Values,
    point: Values,
    space: Space,
    *,
    sd: float,
    whole: Ratio | None = None,
    is_rated: bool = True,
) -> list[Change]:
    """Rate each change of a point by the point's speed over its speed with that change taken back.

    Changes that were only ever made together form one group, and are taken back together; so is with a change what does
    not work without it.

    Args:
        records: Trials measured under like conditions.
        baseline: Knob values of the baseline.
        point: Knob values of the point to explain.
        space: The present space; gives the labels, and what does not work without what.
        sd: Standard deviation of ln throughput between trials of one point.
        whole: Speed of the point over the baseline's, which all its changes together are worth, from the confirming
            pairs; None if there were too few.
        is_rated: Whether to rate them at all, for which a model is fitted.

    Returns:
        One change for each knob that differs, members of a group next to each other, largest effect first.
    """
    changed = [path for path in point if path in baseline and not same_scalar(point[path], baseline[path])]
    trials = [(record.values, math.log(measured.speed)) for record in records if (measured := record.comparable)]
    trials = [(values, speed) for values, speed in trials if set(values) == set(baseline) and _can_be_told(values)]
    if not (_can_be_told(baseline) and _can_be_told(point)):
        trials = []
    groups: dict[tuple[bool, ...], list[str]] = {}
    for path in changed:
        column = tuple(same_scalar(values[path], point[path]) for values, _ in trials)
        groups.setdefault(column, []).append(path)

    # Where no trial had a change, or every one, nothing shows what it is worth.
    shown = {column: paths for column, paths in groups.items() if any(column) and not all(column)}
    worths: dict[tuple[bool, ...], Ratio] = {}
    if shown and is_rated:
        tried = _tried_space(baseline, [point, *(values for values, _ in trials)], space)
        without = [_taken_back(point, paths, tried) for paths in shown.values()]
        ratios = speed_ratios(trials, point, without, tried, sd=sd)
        for column, left, ratio in zip(shown, without, ratios, strict=True):
            worths[column] = whole if whole and not tried.changes(left) else ratio
    rated = [(worths.get(column), paths) for column, paths in groups.items()]
    rated.sort(key=lambda item: -(item[0].ratio if item[0] else 0.0))
    return [
        Change(
            path=path,
            old=baseline[path],
            new=point[path],
            worth=worth,
            group=number,
            label=_label(space, path),
            effective_batch=_effective_batch(space, path, baseline[path], point[path]),
        )
        for number, (worth, paths) in enumerate(rated)
        for path in paths
    ]


def with_moved_keys(changes: Iterable[Change], space: Space) -> list[Change]:
    """Return changes of points of a space with the further keys that change along."""
    knobs = {knob.path: knob for knob in space.knobs}
    found = []
    for change in changes:
        old, new = (knobs[change.path].keys(value) for value in (change.old, change.new))
        along = tuple(
            MovedKey(path=path, old=old[path], new=new[path])
            for path in knobs[change.path].paths[1:]
            if not same_scalar(old[path], new[path])
        )
        found.append(replace(change, along=along))
    return found


def _can_be_told(values: Values) -> bool:
    """Return False if one of the values is not even the same as itself, as NaN is."""
    return all(same_scalar(value, value) for value in values.values())


def _tried_space(baseline: Values, points: Sequence[Values], space: Space) -> Space:
    """Return the space of the values that were tried, with the baseline of the search.

    The present space may lack some of them: its domains depend on what the config holds now.
    """
    present = {knob.path: knob for knob in space.knobs}
    return Space(
        knobs=tuple(
            _tried_knob(path, today, [values[path] for values in points], present.get(path))
            for path, today in baseline.items()
        )
    )


def _tried_knob(path: str, baseline: Scalar, values: Iterable[Scalar], present: Knob | None) -> Knob:
    choices = [baseline]
    for value in values:
        if not any(same_scalar(value, known) for known in choices):
            choices.append(value)
    numbers = [choice for choice in choices if isinstance(choice, int | float) and is_number(choice)]
    ordered = len(numbers) == len(choices)
    return Knob(
        path=path,
        choices=tuple(sorted(numbers) if ordered else choices),
        ordered=ordered,
        baseline=baseline,
        label=Label.UNKNOWN,
        kind=present.kind if present else None,
        inert_under=present.inert_under if present else None,
    )


def _taken_back(point: Values, paths: Iterable[str], space: Space) -> Values:
    """Return a point without some of its changes, and without those that do not work then."""
    left = {**point, **{path: space.baseline[path] for path in paths}}
    while (why := space.why_infeasible(left)) and (others := list(space.changes(left))):
        fewer = [{**left, path: space.baseline[path]} for path in others]
        left = next((values for values in fewer if space.why_infeasible(values) != why), fewer[0])
    return left


def _effective_batch(space: Space, path: str, old: Scalar, new: Scalar) -> str:
    knob = next((knob for knob in space.knobs if knob.path == path), None)
    if knob is None or knob.batch is None or knob.label is not Label.BATCH:
        return ""
    return knob.batch.change(old, new) if isinstance(old, int) and isinstance(new, int) else ""


def _label(space: Space, path: str) -> str:
    return next((knob.label.value for knob in space.knobs if knob.path == path), Label.UNKNOWN.value)

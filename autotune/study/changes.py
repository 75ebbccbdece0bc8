"""Effect of each single change of a point, estimated from the trials of a search."""

import math
from collections.abc import Sequence

from autotune.records import Scalar, TrialRecord, Values
from autotune.results import Change
from autotune.sampler.main_effects import Sample, main_effects
from autotune.space.knob import Label, same_scalar
from autotune.space.space import Space


def changes_worth(
    records: Sequence[TrialRecord], baseline: Values, point: Values, space: Space, *, sd: float
) -> list[Change]:
    """Split a point's speedup over the baseline among its changes by their main effects on ln throughput.

    Changes that were only ever made together form one group with one common effect.

    Args:
        records: Trials measured under like conditions.
        baseline: Knob values of the baseline.
        point: Knob values of the point to explain.
        space: Source of the labels.
        sd: Standard deviation of ln throughput between trials of one point.

    Returns:
        One change for each knob that differs, members of a group next to each other, largest effect first.
    """
    changed = [path for path in point if path in baseline and not same_scalar(point[path], baseline[path])]
    trials = [(record.values, measured) for record in records if (measured := record.comparable)]
    trials = [(values, measured) for values, measured in trials if set(values) == set(baseline)]
    samples = [Sample(values=values, mean=math.log(measured.speed)) for values, measured in trials]
    effects = main_effects(samples, baseline, sd)

    groups: dict[tuple[bool, ...], list[str]] = {}
    for path in changed:
        column = tuple(same_scalar(values[path], point[path]) for values, _ in trials)
        groups.setdefault(column, []).append(path)
    rated = []
    for column, paths in groups.items():
        own = [
            effect.mean for effect in effects if effect.path in paths and same_scalar(effect.choice, point[effect.path])
        ]
        rated.append((math.exp(math.fsum(own)) if any(column) else None, paths))
    rated.sort(key=lambda item: -(item[0] or 0.0))
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


def _effective_batch(space: Space, path: str, old: Scalar, new: Scalar) -> str:
    knob = next((knob for knob in space.knobs if knob.path == path), None)
    if knob is None or knob.batch is None or knob.label is not Label.BATCH:
        return ""
    return knob.batch.change(old, new) if isinstance(old, int) and isinstance(new, int) else ""


def _label(space: Space, path: str) -> str:
    return next((knob.label.value for knob in space.knobs if knob.path == path), Label.UNKNOWN.value)

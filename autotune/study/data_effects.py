"""Effects of config changes on the training data, from the samples seen in trials.

These override what the key's name suggests.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from autotune.records import DataEffect, DataFinding, Scalar, TrialRecord, Values
from autotune.space.catalog import traits_of
from autotune.space.knob import Label
from autotune.space.space import Space

_FOUND = {DataEffect.DIFFERENT: Label.DATA, DataEffect.BATCH: Label.BATCH}


def label_found(effect: DataEffect) -> Label | None:
    """Return the label of a change with this effect; None if the key's name decides."""
    return _FOUND.get(effect)


def labelled(space: Space, records: Iterable[TrialRecord]) -> Space:
    """Return the space with values labelled by what their trials showed.

    Blames the fewest knobs that explain all differing trials: never a change that also occurs with the same data; then
    by frequency, share of differing comparisons, and effect on batching.
    """
    found = [(trial.data.effect, _changed(trial, space)) for trial in records if trial.data is not None]
    cleared = {one for effect, changed in found if effect is DataEffect.SAME for one in changed.items()}
    relabelled: dict[tuple[str, Scalar], Label] = {}
    for effect, label in _FOUND.items():
        trials = [changed for one, changed in found if one is effect]
        compared = Counter(one for other, changed in found if other in _FOUND for one in changed.items())
        differing = Counter(one for changed in trials for one in changed.items())
        left = [
            changed
            for changed in trials
            if not any(space.knob(path).label_of(value) is label for path, value in changed.items())
        ]
        while left := [changed for changed in left if changed]:
            suspects = [{one for one in changed.items() if one not in cleared} or changed.items() for changed in left]
            times = Counter(path for some in suspects for path, _ in some)
            share: dict[str, float] = {}
            for one in chain(*suspects):
                share[one[0]] = max(share.get(one[0], 0.0), differing[one] / compared[one])
            blamed = max(times, key=lambda path: (times[path], share[path], traits_of(space.knob(path)).on_data))
            hit = [changed for changed, some in zip(left, suspects, strict=True) if blamed in dict(some)]
            relabelled |= {(blamed, changed[blamed]): label for changed in hit}
            left = [changed for changed in left if changed not in hit]
    return replace(space, relabelled=relabelled) if relabelled else space


def _changed(trial: TrialRecord, space: Space) -> Values:
    return space.changes(trial.values) if trial.values.keys() == space.baseline.keys() else {}


def finding_of(trials: Sequence[TrialRecord], point: str) -> DataFinding | None:
    """Return what is known of a point's data: a difference in any trial, else the best evidence."""
    own = [trial.data for trial in trials if trial.point == point and trial.data is not None]
    order = (DataEffect.DIFFERENT, DataEffect.BATCH, DataEffect.SAME, DataEffect.UNVERIFIED)
    return min(own, key=lambda one: order.index(one.effect), default=None)

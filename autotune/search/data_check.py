"""Check of what trials train on: each is compared with those of today's config, in the same search."""

from math import prod

from autotune.measure.data import TrialData, compare_data
from autotune.records import NOT_COMPARED, DataFinding, Purpose, TrialRecord
from autotune.space.knob import Label
from autotune.space.space import Space
from autotune.trial.execution import TrialSpec

_MOST = 8  # trials of today's config


class DataCheck:
    """What trials of today's config were seen to train on, and how others compare with that.

    Args:
        baseline: Name of today's point.
    """

    def __init__(self, baseline: str) -> None:
        self._baseline = baseline
        self._known: dict[str, list[TrialData]] = {}  # by point

    def learn(self, record: TrialRecord, data: TrialData) -> None:
        """Take the data of one more trial: those of today's config are what others are compared with."""
        known = self._known.setdefault(record.point, [])
        if record.comparable and len(known) < (_MOST if record.point == self._baseline else 1):
            known.append(data)

    def finding(self, trial: TrialSpec, space: Space, data: TrialData) -> DataFinding | None:
        """Return how the data of a trial compare with today's; None for today's own, and where nothing can be said."""
        point, today = space.name(trial.values), self._known.get(self._baseline)
        is_other = point != self._baseline and (trial.purpose not in NOT_COMPARED or trial.purpose is Purpose.VALIDATE)
        if not is_other or not today or trial.warms_up:
            return None
        changed = [(space.knob(path), value) for path, value in space.changes(trial.values).items()]
        made_up_for = (
            value / knob.baseline
            for knob, value in changed
            if knob.batch and knob.label is Label.SAME_TRAINING
            if isinstance(value, int) and isinstance(knob.baseline, int)
        )
        return compare_data(
            today,
            data,
            self._known.get(point, ()),
            may_freeze=any(knob.settling or knob.kind is None for knob, _ in changed),
            accumulated=prod(made_up_for),
        )

"""Check of what trials train on: each is compared with those of today's config, in the same search."""

from dataclasses import replace
from math import prod

from autotune.measure.data import TrialData, compare_data
from autotune.records import NOT_COMPARED, DataEffect, DataFinding, Purpose, TrialRecord
from autotune.space.catalog import traits_of
from autotune.space.knob import Label
from autotune.space.space import Space
from autotune.trial.execution import TrialSpec
from autotune.trial.outcome import LossComparison, Losses, compare_losses

_MOST = 8  # trials of today's config


class DataCheck:
    """What trials of today's config were seen to train on, and how others compare with that.

    Args:
        baseline: Name of today's point.
    """

    def __init__(self, baseline: str) -> None:
        self._baseline = baseline
        self._known: dict[str, list[TrialData]] = {}  # by point
        self._losses: list[Losses] = []  # of today's config

    def learn(self, record: TrialRecord, data: TrialData, losses: Losses) -> None:
        """Take the data of one more trial: those of today's config are what others are compared with."""
        known, is_today = self._known.setdefault(record.point, []), record.point == self._baseline
        if record.comparable and len(known) < (_MOST if is_today else 1):
            known.append(data)
            self._losses += [losses] if is_today else []

    def finding(self, trial: TrialSpec, space: Space, data: TrialData, losses: Losses) -> DataFinding | None:
        """Return how the data of a trial compare with today's; None for today's own, and where nothing can be said.

        Where the samples do not tell, its losses may. Of changes that do not touch the data, only what speaks against
        them is said.
        """
        point, today = space.name(trial.values), self._known.get(self._baseline)
        is_other = point != self._baseline and (trial.purpose not in NOT_COMPARED or trial.purpose is Purpose.VALIDATE)
        if not is_other or not today or trial.warms_up:
            return None
        changed = [(space.knob(path), value) for path, value in space.changes(trial.values).items()]
        made_up_for = (
            value / knob.baseline
            for knob, value in changed
            if knob.batch and knob.label_of(value) is Label.SAME_TRAINING
            if isinstance(value, int) and isinstance(knob.baseline, int)
        )
        finding = compare_data(
            today,
            data,
            self._known.get(point, ()),
            may_freeze=any(knob.settling or knob.kind is None for knob, _ in changed),
            accumulated=prod(made_up_for),
        )
        if finding.effect in (DataEffect.SAME, DataEffect.UNVERIFIED) and all(
            knob.label_of(value) is Label.SAME_TRAINING and not knob.batch for knob, value in changed
        ):
            finding = _with_losses(finding, compare_losses(self._losses, losses))
        may_touch_data = any(traits_of(knob).on_data or knob.kind is None for knob, _ in changed)
        return finding if may_touch_data or finding.effect is not DataEffect.UNVERIFIED else None


def _with_losses(finding: DataFinding, compared: LossComparison | None) -> DataFinding:
    """Return a finding with what losses show: they are equal where the training is the same."""
    if compared is not None and compared.are_alike:
        return replace(finding, evidence=f"{finding.evidence}; its loss matches")
    if finding.effect is DataEffect.UNVERIFIED and compared is not None and compared.is_far_above:
        return DataFinding(DataEffect.DIFFERENT, str(compared))
    return finding

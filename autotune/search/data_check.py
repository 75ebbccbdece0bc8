"""Check of trials' samples against those of baseline trials of the same search."""

from dataclasses import replace
from math import prod

from autotune.measure.data import TrialData, compare_data
from autotune.records import NOT_COMPARED, DataEffect, DataFinding, Purpose, TrialRecord
from autotune.space.catalog import traits_of
from autotune.space.knob import Label
from autotune.space.space import Space
from autotune.trial.execution import TrialSpec
from autotune.trial.outcome import LossComparison, Losses, compare_losses

_MOST = 8  # baseline trials


class DataCheck:
    """Data of baseline trials, to compare with other trials."""

    def __init__(self, baseline: str) -> None:
        self._baseline = baseline
        self._known: dict[str, list[TrialData]] = {}  # by point
        self._losses: list[Losses] = []  # of baseline trials

    def learn(self, record: TrialRecord, data: TrialData, losses: Losses) -> None:
        known, is_baseline = self._known.setdefault(record.point, []), record.point == self._baseline
        if record.comparable and len(known) < (_MOST if is_baseline else 1):
            known.append(data)
            self._losses += [losses] if is_baseline else []

    def finding(self, trial: TrialSpec, space: Space, data: TrialData, losses: Losses) -> DataFinding | None:
        """Compare the data of a trial with the baseline's, and its losses if samples are inconclusive.

        Changes that do not touch the data get negative findings only.
        """
        point, baseline_data = space.name(trial.values), self._known.get(self._baseline)
        is_other = point != self._baseline and (trial.purpose not in NOT_COMPARED or trial.purpose is Purpose.VALIDATE)
        if not is_other or not baseline_data or trial.warms_up:
            return None
        changed = [(space.knob(path), value) for path, value in space.changes(trial.values).items()]
        compensation = (
            value / knob.baseline
            for knob, value in changed
            if knob.batch and knob.label_of(value) is Label.SAME_TRAINING
            if isinstance(value, int) and isinstance(knob.baseline, int)
        )
        finding = compare_data(
            baseline_data,
            data,
            self._known.get(point, ()),
            may_freeze=any(knob.settling or knob.kind is None for knob, _ in changed),
            accumulated=prod(compensation),
        )
        if finding.effect in (DataEffect.SAME, DataEffect.UNVERIFIED) and all(
            knob.label_of(value) is Label.SAME_TRAINING and not knob.batch for knob, value in changed
        ):
            finding = _with_losses(finding, compare_losses(self._losses, losses))
        may_touch_data = any(traits_of(knob).on_data or knob.kind is None for knob, _ in changed)
        return finding if may_touch_data or finding.effect is not DataEffect.UNVERIFIED else None


def _with_losses(finding: DataFinding, compared: LossComparison | None) -> DataFinding:
    """Return a finding updated by the losses."""
    if compared is not None and compared.are_similar:
        return replace(finding, evidence=f"{finding.evidence}; its loss matches")
    if finding.effect is DataEffect.UNVERIFIED and compared is not None and compared.is_far_above:
        return DataFinding(DataEffect.DIFFERENT, str(compared))
    return finding

"""Findings of regular trials other than speed, and the resulting cautions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from autotune.clock import Clock
from autotune.config.schema import ENV
from autotune.events import OnRemark, no_remark
from autotune.files import read_beginning
from autotune.measure.cycles import Series
from autotune.measure.data import TrialData, compare_data
from autotune.records import (
    CALLS_MADE,
    CODE,
    CONFIGS_OPENED,
    NOT_COMPARED,
    DataEffect,
    DataFinding,
    Ending,
    Purpose,
    RankMeasurement,
    Scalar,
    TrialRecord,
    Values,
)
from autotune.sampler.importance import (
    knobs_by_effect,
    printed_the_same,
    printed_values,
    same_batch,
)
from autotune.sampler.observations import Observation
from autotune.search.gpus import visible_to
from autotune.search.problem import Problem
from autotune.space.catalog import batch_count, is_global, is_per_device, traits_of
from autotune.space.knob import Label, key_name
from autotune.space.space import Space
from autotune.trial.execution import TrialSpec
from autotune.trial.folders import TrialFolder
from autotune.trial.outcome import LossComparison, Losses, compare_losses
from autotune.trial.protection import TRIALS_LOOKED_AROUND, SideEffects, is_called_a_checkpoint

_NO_LOSS = (
    "the loss of today's config is NaN or infinite, so losses do not count against other values: only speed is "
    "compared. Check whether that training is meant to learn"
)


class Findings:
    """Findings of one search, created before its first trial.

    Attributes:
        unused: Knobs that the trainer ignores, with the evidence.
        baseline_losses: Of the first comparable baseline trial.
        baseline_has_no_loss: Whether the baseline's losses are NaN or infinite.
    """

    def __init__(self, problem: Problem, clock: Clock, remark: OnRemark = no_remark) -> None:
        self._problem = problem
        self._side_effects = SideEffects(problem.trainer, clock, is_called_a_checkpoint)
        self._checked_trials = 0
        self._samples_differ = False
        self.cautions: list[str] = []
        self._unreached: dict[str, str] = {}
        self._printed: list[tuple[Values, Mapping[str, frozenset[str]]]] = []
        self.unused: dict[str, str] = {}
        self.baseline_losses: Losses | None = None
        self.baseline_has_no_loss = False
        self.remark = remark

    def check_side_effects(self, number: int) -> bool:
        """Report files that a first trial left outside its folder; return whether they seem to be a cache."""
        if self._checked_trials >= TRIALS_LOOKED_AROUND:
            return False
        self._checked_trials += 1
        if side_effect := self._side_effects.since_then(f"trial {number}"):
            self.add_caution(side_effect.sentence)
        return side_effect is not None and side_effect.fills_a_cache

    def check_late_side_effects(self) -> None:
        """Check for files of later trials, e.g. of a best model."""
        if self._checked_trials < TRIALS_LOOKED_AROUND:
            return
        if seen := self._side_effects.since_then("the later trials", looks_for_cache=False):
            self.add_caution(seen.sentence)

    def learn(self, record: TrialRecord, losses: Losses, stdout: Path, *, samples: Series | None, space: Space) -> None:
        """Add a trial, with the samples per step of its steady window if seen."""
        if record.purpose is Purpose.BASELINE and losses.are_no_numbers and not self.baseline_has_no_loss:
            self.baseline_has_no_loss = True
            self.add_caution(_NO_LOSS)
        self._unreached |= untunable_knobs([record], space)
        if not record.comparable:
            return
        if record.purpose is Purpose.BASELINE and self.baseline_losses is None:
            self.baseline_losses = losses
        if samples is not None:
            self._compare_batch_size(record.values, samples, record.comparable.ranks)
        self._printed.append((record.values, printed_values(_head(stdout), space)))

    def recall(self, records: Iterable[TrialRecord], space: Space) -> None:
        """Freeze knobs that earlier trials of this code ignored or failed with."""
        self._unreached |= untunable_knobs(records, space)
        self.unused |= self._unreached

    def unread_knobs(self, values: Values, folder: TrialFolder, space: Space) -> tuple[str, ...]:
        """Return the knobs of a trial whose call or config was never reached."""
        made = _head(folder.stdout.with_name(CALLS_MADE)).splitlines()
        has_copy = not self._problem.settings.are_opened_by_name or folder.stdout.with_name(CONFIGS_OPENED).exists()
        return tuple(
            path
            for path in space.changes(values)
            if (path.startswith(CODE) and path not in made) or not (has_copy or path.startswith((CODE, ENV)))
        )

    def find_unused(
        self, trials: Iterable[TrialRecord], observations: Mapping[str, Observation], *, space: Space, sd: float
    ) -> bool:
        """Return whether the trials show a new knob that the trainer ignores."""
        printed, seen = printed_the_same(self._printed, space), same_batch(trials, space)
        if not (printed.keys() | seen.keys() | self._unreached.keys()) - self.unused.keys():
            return False  # the usual case: skip fitting the effects
        used, without_effect = knobs_by_effect(observations, space, sd)
        evidence = {path: why for path, why in printed.items() if path in without_effect}
        evidence |= {path: why for path, why in seen.items() if path not in used}
        found = {path: why for path, why in {**evidence, **self._unreached}.items() if path not in self.unused}
        check = "it is kept fixed from now on. Check whether a flag or another key overrides it"
        for path, why in found.items():
            self.add_caution(f"{path}: {why}; {check}")
        self.unused.update(found)
        return bool(found)

    def _compare_batch_size(self, values: Values, samples: Series, ranks: Sequence[RankMeasurement]) -> None:
        path, size = self._problem.batch_key, self._problem.batch_size(values)
        if path is None or size is None or self._samples_differ:
            return
        config = {**self._problem.settings.scalars, **self._problem.space.keys(values)}
        devices = max(1, len(ranks), len(visible_to(self._problem, values).uuids))
        nodes = max(1, len({rank.node for rank in ranks}))
        if sentence := batch_size_mismatch(path, size, samples, config=config, devices=devices, nodes=nodes):
            self._samples_differ = True
            self.add_caution(sentence)

    def add_caution(self, sentence: str) -> None:
        """Tell the user once, and add a caution to the answer."""
        if sentence not in self.cautions:
            self.cautions.append(sentence)
            self.remark(sentence)


def untunable_knobs(records: Iterable[TrialRecord], space: Space) -> dict[str, str]:
    """Return knobs that a trial did not reach, or an error names, with the evidence."""
    found = {}
    for record in records:
        for path in sorted(record.conditions.unheeded):
            without = "that call" if path.startswith(CODE) else "opening the config"
            found[path] = f"trial {record.number} trained without {without}"
        for path in space.changes(record.values) if record.ending is Ending.CRASHED else ():
            if path.startswith(CODE) and path.rpartition(".")[2] in record.detail:
                found[path] = f"trial {record.number} failed with it: {record.detail}"
    return found


def _head(path: Path) -> str:
    # of what a trainer prints: its configuration comes first
    return read_beginning(path, 1 << 16).decode("utf-8", "replace")


# Check of the samples per step against the config's batch size.


def batch_size_mismatch(
    path: str, size: float, samples: Series, *, config: Mapping[str, Scalar], devices: int, nodes: int = 1
) -> str | None:
    """Return a sentence if the samples per step contradict the config's batch size.

    Varying batches, a smaller last one, and multiples or parts by devices, nodes or accumulation are fine.
    """
    held = float(np.median(samples))
    # Samples of steps that are only seen together are means, which include smaller last batches.
    is_last_batch = size / 2 < held < size
    # share of the steps that need the same number of samples
    if size in samples or is_last_batch or np.mean(samples == held) < 0.5:
        return None
    accumulated = batch_count(path, config).accumulated
    parts = {1, devices, nodes, devices // nodes}
    if "node" in key_name(path):  # launchers may also start several of their nodes on one
        parts |= {many for many in range(1, devices + 1) if devices % many == 0}
    factors = {many * times for many in parts for times in (1, accumulated)}
    expected = {size * factor for factor in factors} | {size / factor for factor in factors}
    part_of_a_whole = is_global(path) and (size / held).is_integer()
    sum_of_parts = is_per_device(path) and (held / size).is_integer()
    if held in expected or part_of_a_whole or sum_of_parts:
        return None
    return (
        f"{path} is {size:g}, but each step had {held:g} samples, and speed counts those. Check whether a flag or "
        "another key overrides it, or whether it counts something other than the samples of a step"
    )


# Check of trials' samples against those of baseline trials of the same search.


_MOST_BASELINE_DATA = 8  # trials


class DataCheck:
    """Data of baseline trials, to compare with other trials."""

    def __init__(self, baseline: str) -> None:
        self._baseline = baseline
        self._known: dict[str, list[TrialData]] = {}  # by point
        self._losses: list[Losses] = []  # of baseline trials

    def learn(self, record: TrialRecord, data: TrialData, losses: Losses) -> None:
        known, is_baseline = self._known.setdefault(record.point, []), record.point == self._baseline
        if record.comparable and len(known) < (_MOST_BASELINE_DATA if is_baseline else 1):
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
        kept = [(knob, value) for knob, value in changed if knob.label_of(value) is Label.SAME_TRAINING]
        sizes = ((knob.baseline, value) for knob, value in kept if knob.batch)
        compensation = (new / old for old, new in sizes if isinstance(old, int) and isinstance(new, int))
        may_freeze = any(knob.settling or knob.kind is None for knob, _ in changed)
        known, accumulated = self._known.get(point, ()), prod(compensation)
        finding = compare_data(baseline_data, data, known, may_freeze=may_freeze, accumulated=accumulated)
        is_same = all(knob.label_of(value) is Label.SAME_TRAINING and not knob.batch for knob, value in changed)
        if is_same and finding.effect in (DataEffect.SAME, DataEffect.UNVERIFIED):
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

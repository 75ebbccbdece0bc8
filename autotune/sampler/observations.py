"""What the record says about each point: its level, relative to one reference run of the study."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.records import DISTURBED, Ending, Measurement, TrialRecord, Validity, Values
from autotune.sampler.failure_attribution import ATTRIBUTIONS, Attribution
from autotune.score import Objective, ln_score, ln_speed
from autotune.space.space import Space
from autotune.statistics import pooled_variance

TYPICAL_CV = 0.08
"""Spread of ln throughput between trials of one config, as seen on unlike machines; the start of every estimate."""

_TYPICAL_CV_TRIALS = 4.0  # how many degrees of freedom that experience is worth


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A point and what its trials showed.

    Attributes:
        name: Name of the point.
        values: Its knob values.
        scores: ln score of each comparable trial, relative to the reference.
        ln_speeds: The same of the speed.
        rough_scores: The same of trials with too few steps to be compared: they tell the slow from the fast.
        endings: How its trials that gave no number at all ended.
        durations_s: How long each of its trials took.
        host_memory_bytes: Most memory that a comparable trial took; None if not known.
        gpu_memory_bytes: Most memory that was in use on the GPU that was fullest; None if not known.
        gpu_memory_total_bytes: What that GPU has; None if not known.
    """

    name: str
    values: Values
    scores: tuple[float, ...] = ()
    ln_speeds: tuple[float, ...] = ()
    rough_scores: tuple[float, ...] = ()
    endings: tuple[Ending, ...] = ()
    durations_s: tuple[float, ...] = ()
    host_memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None

    @property
    def mean(self) -> float:
        """Mean ln score; minus infinity if no trial is comparable."""
        return fmean(self.scores) if self.scores else -math.inf

    @property
    def trials(self) -> int:
        """How often it was run."""
        return len(self.scores) + len(self.rough_scores) + len(self.endings)


class Observations(Mapping[str, Observation]):
    """The level of each point of a space, in the order in which the points were first run.

    Runs of points of an earlier, wider domain, or with knobs that are no longer searched, are left out (those whose
    keys that move along held something else are none of this space, see `of_space`). So is a
    point's first trial that by no fault of the point says nothing about it: it was ended by somebody, or it did not
    tell what is looked for. A second one counts as one without numbers, else the point would be tried for ever.

    Args:
        space: What may vary now.
        objective: What is looked for.
        records: The trials so far, oldest first.
        inert: Knobs that the trainer does not heed: runs that differ in them alone are runs of one point.
    """

    def __init__(
        self, space: Space, objective: Objective, records: Iterable[TrialRecord] = (), *, inert: Collection[str] = ()
    ) -> None:
        self._space = space
        self._as_today = {path: value for path, value in space.today.items() if path in inert}
        self._objective = objective
        self._today = space.name(space.today)
        self._reference: Measurement | None = None
        self._observations: dict[str, Observation] = {}
        self._forgiven: set[str] = set()
        for record in records:
            self.add(record)

    def __getitem__(self, name: str) -> Observation:
        observation = self._observations[name]
        return self._held_to_speed(observation) if self._objective.by_utilization else observation

    def __iter__(self) -> Iterator[str]:
        return iter(self._observations)

    def __len__(self) -> int:
        return len(self._observations)

    def add(self, record: TrialRecord) -> None:
        """Takes one more trial; one that was disturbed says nothing about its point."""
        if record.validity in DISTURBED:
            return
        values = {path: self._as_today.get(path, value) for path, value in record.values.items()}
        told = record.comparable
        measured = told if told and self._objective.is_told_by(told) else None
        if measured and self._reference is None:
            self._reference = measured  # the study's first: the unit in which levels are counted never moves
        if not self._space.contains(values):
            return
        name = self._space.name(values)
        rough = record.measurement if record.validity is Validity.NOT_STEADY else None
        is_mute = told is not None and measured is None  # the driver said nothing for a while
        blameless = is_mute or (not measured and not rough and ATTRIBUTIONS[record.ending] is Attribution.NOTHING)
        if blameless and name not in self._forgiven:
            self._forgiven.add(name)
            return
        known = self._observations.get(name)
        if known is None:
            known = Observation(name=name, values=values)
        known = replace(known, durations_s=(*known.durations_s, record.duration_s))
        if measured and self._reference:
            score = ln_score(measured, self._reference, self._objective)
            fullest = measured.fullest_gpu
            known = replace(
                known,
                scores=(*known.scores, score),
                ln_speeds=(*known.ln_speeds, ln_speed(measured, self._reference)),
                host_memory_bytes=_largest(known.host_memory_bytes, measured.peak_memory_bytes),
                gpu_memory_bytes=_largest(
                    known.gpu_memory_bytes, fullest.peak_memory_bytes if fullest else measured.gpu_memory_bytes
                ),
                gpu_memory_total_bytes=fullest.memory_total_bytes if fullest else known.gpu_memory_total_bytes,
            )
        elif rough and self._reference:
            known = replace(known, rough_scores=(*known.rough_scores, ln_speed(rough, self._reference)))
        else:
            known = replace(known, endings=(*known.endings, record.ending))
        self._observations[name] = known

    def _held_to_speed(self, observation: Observation) -> Observation:
        """A point as it counts where speed is not in the score, but today's must be kept.

        Of a trial with too few steps only its speed is known: it tells something where that is below today's.
        """
        today = self._observations.get(self._today)
        if today is None or not today.scores:
            return replace(observation, rough_scores=())
        behind = [self._objective.penalty(0.0, rough - fmean(today.ln_speeds)) for rough in observation.rough_scores]
        penalty = 0.0
        if observation.scores:
            penalty = self._objective.penalty(
                observation.mean - today.mean, fmean(observation.ln_speeds) - fmean(today.ln_speeds)
            )
        return replace(
            observation,
            scores=tuple(score - penalty for score in observation.scores),
            rough_scores=tuple(today.mean - loss for loss in behind if loss > 0.0),
        )


def of_space(records: Iterable[TrialRecord], space: Space) -> list[TrialRecord]:
    """The trials of points of this space, keys that move along with a knob included.

    A config may have been edited in a key that moves with a knob: the same values were another point then.
    """
    return [record for record in records if space.is_named(record.point, record.values)]


def _largest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def between_trial_variance_of(records: Iterable[TrialRecord], objective: Objective) -> tuple[float, float]:
    """Variance of ln score between trials of one point over a whole record, and its degrees of freedom.

    Points are told apart by their names alone, so that the answer depends on the record and on nothing else: not on
    what the config's file or its domains say by now.
    """
    reference: Measurement | None = None
    scores: dict[str, list[float]] = {}
    for record in records:
        measured = record.comparable
        if measured and objective.is_told_by(measured):
            reference = reference or measured
            scores.setdefault(record.point, []).append(ln_score(measured, reference, objective))
    return pooled_variance(list(scores.values()))


def between_trial_variance(observations: Mapping[str, Observation]) -> tuple[float, float]:
    """Variance of ln score between trials of one point, from this study's repeats alone, and its degrees of freedom."""
    return pooled_variance([observation.scores for observation in observations.values()])


def expected_trial_sd(observations: Mapping[str, Observation]) -> float:
    """Standard deviation of ln score between trials of one point: the study's repeats, pulled towards experience."""
    return _expected_sd(*between_trial_variance(observations))


def expected_speed_sd(observations: Mapping[str, Observation]) -> float:
    """The same of ln speed, which need not be in the score."""
    return _expected_sd(*pooled_variance([observation.ln_speeds for observation in observations.values()]))


def expected_sd_of(records: Iterable[TrialRecord], objective: Objective) -> float:
    """The same of some trials, points told apart by their names alone."""
    return _expected_sd(*between_trial_variance_of(records, objective))


def _expected_sd(variance: float, df: float) -> float:
    return math.sqrt((_TYPICAL_CV_TRIALS * TYPICAL_CV**2 + df * variance) / (_TYPICAL_CV_TRIALS + df))


def best_observation(observations: Mapping[str, Observation]) -> Observation | None:
    """The point with the best mean score; None if none gave numbers."""
    return max(
        (observation for observation in observations.values() if observation.scores),
        key=lambda observation: observation.mean,
        default=None,
    )

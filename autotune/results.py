"""Result of a search: the recommended point beside the baseline, and the certainty of the comparison."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from autotune.records import GpuFigures, Scalar, Validation, Values
from autotune.stage_times import PipelineTimes

_TRAINS_OTHERWISE = ("batch", "precision")  # labels of `space.knob`


class Verdict(StrEnum):
    """Verdict of a search."""

    BETTER = "better"
    NO_CHANGE = "no_change"
    NO_BASELINE = "no_baseline"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % confidence interval; 1.0 means no difference.

    Attributes:
        ratio: The ratio.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class PooledGpu:
    """One GPU over all comparable trials of a point; `metrics.GPU_METRICS` describes its numbers.

    Utilization and what is derived from it are None as long as too little of it was seen; `text` says how much is
    missing.

    Attributes:
        figures: Figures over all trials.
        scored: Whether it is one that the score looks at.
        text: Its utilization for people: ``2-40 % cyclic, period 2.1 s``, ``not enough yet: 34 of 60 driver samples``
            or ``not measured``.
        verdict: ``flat``, ``cyclic``, ``bursty`` or ``drift``.
        meaning: Usual cause of that pattern, and its usual remedy.
        samples: Number of driver windows, over all trials.
        p10: Utilization that at least a tenth of the time covered is at or below.
        duty_fraction: Share of this time at the high level; None also where the two levels are as good as one.
        low: The lower of the two levels between which utilization moves.
        high: The upper one.
        period_s: Length of a cycle; None unless the verdict is ``cyclic``.
        energy_per_sample_j: Energy that this GPU drew for each sample.
        role: Its work, ``data`` or ``model``, where the config gives them a GPU each.
        reference: Utilization that is stated for a GPU of that role, least and most; None without one.
        against_reference: Whether its utilization is ``below``, ``within`` or ``above`` that; None if it is not known.
    """

    figures: GpuFigures
    scored: bool
    text: str
    role: str | None = None
    reference: tuple[float, float] | None = None
    against_reference: str | None = None
    verdict: str | None = None
    meaning: str | None = None
    samples: int = 0
    p10: float | None = None
    duty_fraction: float | None = None
    low: float | None = None
    high: float | None = None
    period_s: float | None = None
    energy_per_sample_j: float | None = None

    def value(self, name: str) -> Any:
        """Return a field of this record or of its figures by its name."""
        return getattr(self.figures if hasattr(self.figures, name) else self, name)


@dataclass(frozen=True, kw_only=True)
class PooledGpus:
    """GPUs of a point over all its comparable trials.

    Attributes:
        devices: The GPUs in the order in which the trials see them.
        utilization: Mean utilization of the scored ones; None unless it is known of each.
        effective_utilization: Share of what the GPUs have shown to be able to do that training really uses; None while
            the study does not know that. Above 1 by as much as the study's limit, a lower bound, is too low.
    """

    devices: tuple[PooledGpu, ...]
    utilization: float | None = None
    effective_utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of the comparison: a point, its pooled metrics by name, and its GPUs; None where none was measured.

    A trainer with a pipeline over two devices also has the times of its two stages.

    Attributes:
        point: Its name, see `space.point_name`: values alone do not say what the keys hold that move along.
        values: Value of each knob, by its key path.
        metrics: Its numbers, by the names of `metrics.METRICS`.
        gpus: Its GPUs.
        stages: Times of the two stages of a pipeline over two devices.
    """

    point: str
    values: Values
    metrics: Mapping[str, float | None] | None
    gpus: PooledGpus | None = None
    stages: PipelineTimes | None = None


@dataclass(frozen=True, kw_only=True)
class MovedKey:
    """Key that changes along with a knob.

    Attributes:
        path: Its path.
        old: Value in today's config.
        new: Value in the point.
    """

    path: str
    old: Scalar
    new: Scalar


@dataclass(frozen=True, kw_only=True)
class Change:
    """One knob that a point changes against today's config, and what that is worth.

    Attributes:
        path: Key path of the knob.
        old: Value in today's config.
        new: Value in the point.
        worth: Speed of the point over its speed with this change taken back, or its whole group, and what does not work
            without it; None where no trial shows it.
        group: Changes with the same number were only ever made together, so the trials cannot tell them apart.
        label: What it means for training: ``same training``, ``batch``, ``precision`` or ``unknown``.
        effective_batch: What it makes of the effective batch, in words; empty where it leaves that alone.
        along: Further keys that change with it; empty also where the config's present knobs do not tell.
    """

    path: str
    old: Scalar
    new: Scalar
    worth: Ratio | None
    group: int
    label: str
    effective_batch: str = ""
    along: tuple[MovedKey, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeyChange:
    """Key of a config that a set of changes writes.

    Attributes:
        path: Its path.
        old: Value that it was judged against; None also where that is not known.
        new: Value that is written, which may be the old one: the whole point was judged.
        label: What the change means for training, as of `Change`.
    """

    path: str
    old: Scalar
    new: Scalar
    label: str


@dataclass(frozen=True, kw_only=True)
class ChangeSet:
    """Changes to a config as they were judged: all that `apply`, the daemon and its page ever write.

    Attributes:
        study: Name of the study.
        search: Name of the search that judged them.
        point: Name of the point.
        keys: Every key that the point sets.
        document: Hash of the training that the config describes, knobs left out; None where it is not on record.
        code: Digests of the trainer's files, see `TrialRecord.code`.
        speedup: Confirmed speed over that of the config as it was; None where it was not confirmed.
        allowed: Kinds of change of the training that the user had allowed that search.
    """

    study: str
    search: str
    point: str
    keys: tuple[KeyChange, ...]
    document: str | None
    code: Mapping[str, str]
    speedup: Ratio | None
    allowed: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Name by which it is asked for again: a hash of all that it holds."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def values(self) -> dict[str, Scalar]:
        """The values that are written, by key."""
        return {key.path: key.new for key in self.keys}


class Learning(StrEnum):
    """Judgement of a race: how fast a config learns, beside today's."""

    FASTER = "faster"
    SLOWER = "slower"
    ALIKE = "alike"
    UNKNOWN = "cannot be told"
    MEMORISES = "memorises: not comparable"

    @property
    def is_safe(self) -> bool:
        """True if the race has shown that it does not learn more slowly."""
        return self in (Learning.FASTER, Learning.ALIKE)


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """Difference of two losses, that of today's config subtracted, with its 97.5 % confidence interval.

    Attributes:
        today: Mean loss of today's config.
        other: Mean loss of the other.
        low: Lower end of the interval of their difference.
        high: Upper end.
    """

    today: float
    other: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """True if the interval leaves out zero."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, kw_only=True)
class Raced:
    """Comparison of a config with today's by their losses, after equal time of training.

    Attributes:
        learning: Judgement.
        at_equal_time: Losses after equal time; None where they cannot be compared.
        at_equal_samples: Losses after equally many samples; None where steps do not tell them.
        held_out: Losses of evaluations after equal time, which then decide; None where not all trainings came to two.
        after_s: Time after which its losses are compared; None for that of the race.
        why: Reason for which it cannot be told, or is not comparable, one clause; empty where the interval says it.
        learning_speed: Time that today's config takes to a loss over the time that this one takes to it; None where
            neither came to the other's, or that is no learning.
        needed_s: Training time after which a race would tell what this one leaves open; None where it would not, or
            there is nothing left open.
        diverged: Whether a training of it ended with losses that are no numbers.
        evaluation_losses: Mean loss of the latest evaluations, of today's config and of this one; None where not all
            trainings came to one.
    """

    learning: Learning
    at_equal_time: LossDifference | None = None
    at_equal_samples: LossDifference | None = None
    held_out: LossDifference | None = None
    after_s: float | None = None
    why: str = ""
    learning_speed: float | None = None
    needed_s: float | None = None
    diverged: bool = False
    evaluation_losses: tuple[float, float] | None = None

    @property
    def deciding(self) -> LossDifference | None:
        """Losses that decide: those of evaluations where they are known."""
        return self.at_equal_time if self.held_out is None else self.held_out


@dataclass(frozen=True, kw_only=True)
class Race:
    """Race of an answer against today's config.

    Attributes:
        winner: How the answer came out.
        scaled: How it came out with the learning rate scaled with the batch; None where that was not raced.
        trained_s: Time that all of its trainings took from their first steps.
        pairs: Number of rounds.
        checkpoint: Name of the checkpoint that the trainings went on from; empty where they began from scratch.
        why_unknown: Reason for which the losses cannot be compared, one clause; empty if they can.
        learning_rate_key: Key of the config that holds the learning rate; empty where none was scaled.
        learning_rate: The scaled learning rate; None where none was.
        cautions: What the race shows besides, one sentence each.
    """

    winner: Raced
    scaled: Raced | None = None
    trained_s: float
    pairs: int
    checkpoint: str = ""
    why_unknown: str = ""
    learning_rate_key: str = ""
    learning_rate: float | None = None
    cautions: tuple[str, ...] = ()

    @property
    def proposed_rate(self) -> tuple[str, float] | None:
        """Key and value of the learning rate that is proposed with the answer; None where none is.

        It learns as fast as today's config at least; and where the answer does so with the rate as it is, its loss is
        lower than the answer's by more than can be chance.
        """
        if self.scaled is None or self.learning_rate is None or not self.scaled.learning.is_safe:
            return None
        if self.winner.learning.is_safe and not self._is_lower_when_scaled():
            return None
        return self.learning_rate_key, self.learning_rate

    def _is_lower_when_scaled(self) -> bool:
        winner, scaled = self.winner.deciding, self.scaled.deciding if self.scaled else None
        return winner is not None and scaled is not None and scaled.high < winner.other - winner.today


@dataclass(frozen=True, kw_only=True)
class BrokenPoint:
    """Point that was confirmed, and broke in its validation trial.

    Attributes:
        changes: Its values, as far as they differ from those of the baseline.
        speedup: Its speed over the baseline's, from the confirming pairs; None if these were too few.
        validation: Findings of the validation trial.
    """

    changes: Values
    speedup: Ratio | None
    validation: Validation


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of a search, worked out from the record alone.

    Attributes:
        search: Name of the search by whose trials it stands.
        is_apart: Whether it answers a narrower question than the study's own answer, so that `apply` has to be told its
            name.
        baseline: Today's config.
        best: The answer; equals the baseline if nothing better was confirmed.
        candidate: What was tried against today's config and not found better.
        speedup: Speed of the best (or the candidate) over today's, from the confirming pairs.
        score_ratio: The same for the score, steadiness included.
        smallest_gain: The smallest gain that the confirmation could have shown, e.g. 0.05; None without one.
        same_training: The best point that leaves the training itself unchanged, with its speed ratio.
        trials: Number of trials of this search.
        outcomes: How often each ending came in this search.
        changes: What the best (or candidate) changes.
        gain_of_ten_minutes: How much faster the best point would get on average in ten more minutes of searching, e.g.
            0.02; None if that is not known (the answer was read from the record).
        objective: What was searched for, as the config names it: the score is made of that.
        why_no_gpu: Why utilization is not measured on this machine; None if it is.
        validation: Findings of the validation trial of the best (or candidate); None if there was none.
        race: How the best (or candidate) learns, beside today's config; None where that was not raced.
        why_not_raced: Reason for which an answer that changes the batch or the precision was not raced; empty else.
        confirmed_on: Host of each machine whose pairs compared the best (or candidate) with today's config.
        broken: Points that were confirmed before it, and broke in their validation trials.
        cautions: What was found on the way that the reader of the answer should know, one sentence each.
    """

    verdict: Verdict
    why: str
    baseline: Side | None
    best: Side | None
    candidate: Side | None
    speedup: Ratio | None
    score_ratio: Ratio | None
    smallest_gain: float | None
    same_training: tuple[Side, float] | None
    trials: int
    outcomes: Mapping[str, int]
    changes: Sequence[Change]
    gain_of_ten_minutes: float | None = None
    objective: str = "effective_utilization"
    why_no_gpu: str | None = None
    validation: Validation | None = None
    race: Race | None = None
    why_not_raced: str = ""
    confirmed_on: tuple[str, ...] = ()
    broken: tuple[BrokenPoint, ...] = ()
    cautions: tuple[str, ...] = ()
    search: str = ""
    is_apart: bool = False

    @property
    def may_learn_more_slowly(self) -> bool:
        """True if it changes the batch or the precision, and no race has shown that it learns as fast.

        Also true of what is called the same training, if its race shows that it memorises.
        """
        learning = self.race.winner.learning if self.race else Learning.UNKNOWN
        is_doubtful = changes_training(change.label for change in self.changes) and not learning.is_safe
        return is_doubtful or learning is Learning.MEMORISES


def changes_training(labels: Iterable[str]) -> bool:
    """Return whether changes of these labels make another batch, or another precision.

    What is faster then may learn more slowly.
    """
    return any(label in _TRAINS_OTHERWISE for label in labels)

"""Confirmation of a finalist against the baseline, in interleaved pairs."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from autotune.measure.score import FEWEST_PAIRS, LEAST_PAIRS, LEAST_SCORE_GAIN, LEAST_SPEED, Judgement, pairs_needed
from autotune.records import TrialRecord, Validity
from autotune.sampler.importance import INDISTINGUISHABLE
from autotune.sampler.observations import Observation, expected_speed_sd
from autotune.search.schedule import (
    CAUTION,
    MOST_FOR_CONFIRMING,
    PAIRS_WITH_TIME_TO_SPARE,
    Outcome,
    expected_trial_s,
    is_expensive,
    shortest_trial_s,
)
from autotune.space.space import Space
from autotune.study.answer import has_failed
from autotune.study.noise import LEAST_DF

MOST_PAIRS = 24
"""A gain that needs more pairs to be seen is not worth their time."""

CLOSE = 1.35
"""Ratio of upper to lower end of an interval that is narrow enough."""

_MOST_FOR_CLOSENESS = 8

_FAR_BETTER = math.log(1.1)
"""Gain over a point with long windows, in ln score, that is worth short ones."""

_FAR_SLOWER = 0.8
"""Share of the baseline's speed below which two pairs suffice: exploring missed the point's stalls."""


def pair_order(pairs: int, rng: random.Random, arms: int = 2) -> Iterator[tuple[int, int]]:
    """Yield (pair, arm) in ABBA or ABCCBA order, which cancels a steady drift, with a randomised start."""
    order = list(range(arms))
    if arms > 2:
        rng.shuffle(order)
    elif rng.random() >= 0.5:
        order.reverse()
    for pair in range(pairs):
        yield from ((pair, arm) for arm in (order if pair % 2 == 0 else reversed(order)))


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Next trial of a confirmation.

    Attributes:
        arm: 0 is the baseline, 1 the finalist.
        is_first: Whether its point runs for the first time.
        done: Valid trials, including this one.
    """

    pair: int
    arm: int
    is_first: bool
    done: int


class Confirmation:
    """Running confirmation: chooses trials and decides when to stop.

    Attributes:
        outcome: None while undecided.
    """

    def __init__(self, plan: "ConfirmationPlan", rng: random.Random) -> None:
        self._plan = plan
        self._order = pair_order(2 * plan.most_pairs, rng, plan.arms)
        self._turn: Arm | None = None
        self._done = 0  # trials of valid pairs
        self._spoiled: set[int] = set()  # pairs with a trial that was not steady
        self._has_run: set[int] = set()
        self._speeds: dict[int, list[float]] = {}
        self.outcome: Outcome | None = None

    def next(self) -> Arm | None:
        """Return the next trial; None once decided."""
        following = ((pair, arm) for pair, arm in self._order if pair not in self._spoiled)
        if self.outcome or (found := next(following, None)) is None:
            return None
        pair, arm = found
        self._done += 1
        self._turn = Arm(pair=pair, arm=arm, is_first=arm not in self._has_run, done=self._done)
        self._has_run.add(arm)
        return self._turn

    def add(self, record: TrialRecord) -> None:
        turn, plan = self._turn, self._plan
        assert turn is not None, "`next` is called before each trial"
        if record.validity is Validity.NOT_STEADY and not has_failed(record):
            self._spoiled.add(turn.pair)
            self._done -= 1 + (self._done - 1) % plan.arms
        elif not record.comparable:
            self.outcome = Outcome.FAILED if turn.arm and has_failed(record) else Outcome.ENDED
        else:
            self._speeds.setdefault(turn.arm, []).append(record.comparable.speed)
            if self._done == 2 * plan.arms and fmean(self._speeds[1]) < _FAR_SLOWER * fmean(self._speeds[0]):
                self.outcome = Outcome.FAR_SLOWER
            elif self._done == plan.arms * plan.most_pairs:
                self.outcome = Outcome.MEASURED

    @property
    def is_look(self) -> bool:
        is_whole = self._turn is not None and self._turn.pair not in self._spoiled
        return self.outcome is None and is_whole and self._plan.is_look(self._done)

    def look(self, judgements: Sequence[Judgement | None]) -> None:
        """Interim analysis: stop if further pairs would hardly change the verdicts against the points to beat."""
        if all(map(self._plan.is_decided_by, judgements)):
            self.outcome = Outcome.MEASURED


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Point predicted to beat the baseline.

    Attributes:
        gain: In ln score, by the model.
        speed_gain: In ln speed, by its own trials, if known.
        speed_sd: SD of ln speed between trials of one point.
    """

    observation: Observation
    gain: float
    speed_gain: float | None
    speed_sd: float


def better_than_baseline(
    observations: Mapping[str, Observation], believed: Mapping[str, float], space: Space
) -> list[Candidate]:
    """Return the points predicted to beat a measured baseline, best first.

    Points indistinguishable from the best are ranked by fewest changes, then least processes, prefetching and batch.

    Args:
        believed: Predicted ln score of each measured point.
    """
    baseline = space.name(space.baseline)
    if baseline not in believed:
        return []
    baselines, speed_sd = observations[baseline].ln_speeds, expected_speed_sd(observations)

    def candidate(name: str, gain: float) -> Candidate:
        speeds = observations[name].ln_speeds
        speed_gain = fmean(speeds) - fmean(baselines) if speeds and baselines else None
        return Candidate(observation=observations[name], gain=gain, speed_gain=speed_gain, speed_sd=speed_sd)

    gains = {name: belief - believed[baseline] for name, belief in believed.items()}
    least = max(gains.values()) - INDISTINGUISHABLE

    def rank(candidate: Candidate) -> tuple[bool, int, float, float]:
        if candidate.gain < least:
            return True, 0, 0.0, -candidate.gain
        values = candidate.observation.values
        return False, len(space.changes(values)), space.resource_demand(values), -candidate.gain

    return sorted((candidate(name, gain) for name, gain in gains.items() if gain > 0), key=rank)


def pairs_wanted(candidate: Candidate, sd: float, pair_length_s: float, *, budget_s: float) -> int:
    """Return the pairs that probably show the gain and rule out a loss of speed, within a share of the budget."""
    if candidate.gain <= math.log(LEAST_SCORE_GAIN):
        return LEAST_PAIRS
    fitting = int(MOST_FOR_CONFIRMING * budget_s / pair_length_s)
    most = max(LEAST_PAIRS, min(MOST_PAIRS, fitting))
    needed = partial(_pairs_needed, is_expensive(pair_length_s, budget_s), at_most=most)
    pairs = needed(candidate.gain, sd)
    if candidate.speed_gain is None:
        return pairs
    return max(pairs, needed(candidate.speed_gain, candidate.speed_sd, least=LEAST_SPEED))


def _pairs_needed(sequential: bool, gain: float, sd: float, **options: Any) -> int:
    # The judgement's prior; with fewer degrees of freedom two pairs would never show a gain.
    prior_df = LEAST_DF if sequential else 0.0
    return pairs_needed(gain, math.sqrt(2) * sd, prior_df=prior_df, sequential=sequential, **options)


@dataclass(frozen=True, kw_only=True)
class ConfirmationBasis:
    """Inputs for the size of a confirmation.

    Attributes:
        sd: SD of ln score between trials of one point.
        wished_window_s: Window that shows what a GPU does; 0 if none is measured.
        look_s: Additional time for a finalist's first trial.
    """

    trials: Sequence[TrialRecord]
    baseline: str
    sd: float
    usual_window_s: float
    wished_window_s: float
    least_window_s: float
    min_steps: int
    look_s: float
    budget_s: float
    further: tuple[str, ...] = ()

    @property
    def arms(self) -> int:
        return 2 + len(self.further)

    def pair_s(self, candidate: Candidate) -> float:
        return sum(expected_trial_s(self.trials, point) for point in self._points(candidate))

    def hurried_pairs_s(self, candidate: Candidate) -> float:
        """Predict the length of the fewest pairs with the shortest windows."""
        least_s, min_steps = self.least_window_s, self.min_steps
        points = self._points(candidate)
        trials_s = (shortest_trial_s(self.trials, one, least_s=least_s, min_steps=min_steps) for one in points)
        return FEWEST_PAIRS * sum(trials_s)

    def _points(self, candidate: Candidate) -> list[str]:
        return [self.baseline, candidate.observation.name, *self.further]

    def pairs_wanted(self, candidate: Candidate) -> int:
        return pairs_wanted(candidate, self.sd, self.pair_s(candidate), budget_s=self.budget_s)

    def pairs_to_be_close(self, candidate: Candidate) -> int:
        """Return the pairs that probably also narrow a just relevant gain to `CLOSE`."""
        sequential = is_expensive(self.pair_s(candidate), self.budget_s)
        gain = math.log(LEAST_SCORE_GAIN) + math.log(CLOSE) / 2.0
        close = _pairs_needed(sequential, gain, self.sd, power=0.5, at_most=_MOST_FOR_CLOSENESS)
        return max(self.pairs_wanted(candidate), close)

    def least_s(self, candidate: Candidate) -> float:
        return min(LEAST_PAIRS, self.pairs_wanted(candidate)) * self.pair_s(candidate)


@dataclass(frozen=True, kw_only=True)
class ConfirmationPlan:
    """Size of a confirmation.

    Attributes:
        longer_s: Additional time per trial; negative if time is short.
        sequential: Whether it stops once decided.
        further_pairs: Additional pairs if these are inconclusive.
    """

    candidate: Candidate
    pairs: int
    sequential: bool
    usual_trial_s: float
    usual_window_s: float
    longer_s: float
    arms: int = 2
    further_pairs: int = 0

    @property
    def trial_s(self) -> float:
        return self.usual_trial_s + self.longer_s

    def rest_s(self, done: int) -> float:
        return (self.arms * self.most_pairs - done) * self.trial_s

    @property
    def most_pairs(self) -> int:
        return self.pairs + self.further_pairs

    @property
    def planned_pairs(self) -> int | None:
        """The most pairs if it may stop earlier; None for a fixed number."""
        return self.most_pairs if self.sequential or self.further_pairs else None

    def extended(self, left_s: float) -> "ConfirmationPlan":
        """Add all further pairs that fit, if they at least double it."""
        most = int(left_s / CAUTION / (self.arms * self.trial_s))
        further = most - most % 2 - self.pairs
        return replace(self, further_pairs=further) if further >= self.pairs else self

    def is_look(self, done: int) -> bool:
        pairs, odd = divmod(done, self.arms)
        is_last = pairs >= self.most_pairs or self.planned_pairs is None
        return not (is_last or odd) and pairs in looks(FEWEST_PAIRS if self.sequential else self.pairs, pairs)

    def is_decided_by(self, judgement: Judgement | None) -> bool:
        if judgement is None or not judgement.is_conclusive:
            return False
        if judgement.better:
            return judgement.pairs >= self.pairs or judgement.speed.high <= CLOSE * judgement.speed.low
        is_steadiness_known = judgement.steadier or not judgement.may_be_steadier
        return is_steadiness_known and judgement.is_futile(self.most_pairs)


def looks(first: int, most: int) -> list[int]:
    """Return the numbers of pairs to analyse after: whole ABBA rounds, e.g. 2, 4, 6, 10, 16."""
    found = [first]
    while (following := found[-1] + 2 * math.ceil(found[-1] / 4)) <= most:
        found.append(following)
    return found


def affordable(better: Sequence[Candidate], basis: ConfirmationBasis, *, left_s: float) -> Candidate | None:
    """Return the first candidate whose confirmation fits, with a margin if possible."""
    fits = (one for caution in (CAUTION, 1.0) for one in better if caution * basis.least_s(one) <= left_s)
    return next(fits, None)


def plan_confirmation(
    better: Sequence[Candidate], basis: ConfirmationBasis, *, left_s: float, may_be_cut: bool = False
) -> ConfirmationPlan | None:
    """Plan the confirmation of the first candidate that fits, else two pairs, if possible.

    A far better one gets two pairs with shorter windows if that fits instead.

    Args:
        may_be_cut: Whether no stage follows, so that a sequential plan may be optimistic.
    """
    # Two pairs sometimes show a gain, and the time has no other use.
    hurried_s = left_s / CAUTION
    left_s -= basis.look_s
    fits_twice = (one for one in better if FEWEST_PAIRS * basis.pair_s(one) <= left_s)
    finalist = affordable(better, basis, left_s=left_s) or next(fits_twice, None)
    if finalist is None:
        return None
    faster = (one for one in better if one.gain > finalist.gain + _FAR_BETTER)
    if fitting := [one for one in faster if basis.hurried_pairs_s(one) <= hurried_s]:
        return plan_hurried(fitting, basis, left_s=left_s)
    most = int(left_s / basis.pair_s(finalist))
    even = most - most % 2
    if may_be_cut and is_expensive(basis.pair_s(finalist), basis.budget_s):
        even += 2
    pairs = min(max(basis.pairs_to_be_close(finalist), PAIRS_WITH_TIME_TO_SPARE), even)
    return _plan(finalist, pairs, basis, left_s=left_s)


def plan_hurried(better: Sequence[Candidate], basis: ConfirmationBasis, *, left_s: float) -> ConfirmationPlan | None:
    """Plan the fewest pairs, with shortened windows, of the first candidate that fits."""
    finalist = next((one for one in better if basis.hurried_pairs_s(one) <= left_s), None)
    if finalist is None:
        return None
    trials = FEWEST_PAIRS * basis.arms
    shortest_s = basis.hurried_pairs_s(finalist) / trials
    missing_s = max(0.0, basis.usual_window_s - basis.least_window_s)
    spare_s = max(0.0, left_s / (CAUTION * trials) - shortest_s)
    return ConfirmationPlan(
        candidate=finalist,
        pairs=FEWEST_PAIRS,
        sequential=True,
        usual_trial_s=shortest_s + missing_s,
        usual_window_s=basis.usual_window_s,
        longer_s=min(0.0, spare_s - missing_s),
        arms=basis.arms,
    )


def reserved_s(better: Sequence[Candidate], basis: ConfirmationBasis, *, left_s: float, closely: bool = False) -> float:
    """Return the time to keep from exploring to confirm the best candidate, 0 if two pairs do not fit."""
    if not better or better[0].gain <= math.log(LEAST_SCORE_GAIN):
        return 0.0
    if affordable(better, basis, left_s=left_s - basis.look_s) is None:
        twice_s = (FEWEST_PAIRS * basis.pair_s(better[0]) + basis.look_s, basis.hurried_pairs_s(better[0]))
        return next((needed_s for needed_s in twice_s if needed_s <= left_s), 0.0)
    best, most_s = better[0], min(left_s, MOST_FOR_CONFIRMING * basis.budget_s)
    pairs = basis.pairs_wanted(best)
    if closely:
        fitting = int(most_s / CAUTION / basis.pair_s(best))
        pairs = max(pairs, min(basis.pairs_to_be_close(best), fitting - fitting % 2))
    return CAUTION * _plan(best, pairs, basis, left_s=math.inf).rest_s(0) + basis.look_s


def least_needed_s(better: Sequence[Candidate], basis: ConfirmationBasis) -> float:
    """Return the time of the shortest possible confirmation."""
    return min(basis.hurried_pairs_s(candidate) for candidate in better)


def _plan(candidate: Candidate, pairs: int, basis: ConfirmationBasis, *, left_s: float) -> ConfirmationPlan:
    trial_s, usual_s = basis.pair_s(candidate) / basis.arms, basis.usual_window_s
    most_s = min(left_s / CAUTION, MOST_FOR_CONFIRMING * basis.budget_s)
    spare_s = most_s / (basis.arms * pairs) - trial_s
    window_s = max(usual_s, min(basis.wished_window_s, usual_s + spare_s))
    return ConfirmationPlan(
        candidate=candidate,
        pairs=pairs,
        sequential=is_expensive(basis.arms * trial_s, basis.budget_s),
        usual_trial_s=trial_s,
        usual_window_s=usual_s,
        longer_s=window_s - usual_s,
        arms=basis.arms,
    )

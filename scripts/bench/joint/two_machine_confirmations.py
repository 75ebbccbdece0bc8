"""Simulated confirmations on two machines: how often they say "better", and how often the interval holds.

Two machines of one class, up to 20 % apart, have made ten trials of a joint search, each its own baseline among them.
Then both confirm the same point, each by pairs of its own, and are judged together as a search does it, from records.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np

from autotune.measure.score import FEWEST_PAIRS, LEAST_PAIRS, THROUGHPUT, Judgement
from autotune.records import MACHINE, PAIRS_PLANNED, Ending, Measurement, Purpose, TrialRecord, Validity
from autotune.search.confirm import pair_order
from autotune.study.answer import judged_finalists
from scripts.bench.confirmation import NOISES, Noise
from scripts.bench.joint.simulated_site import site
from scripts.bench.markdown import markdown_table
from scripts.bench.resumable import in_processes

PAIRS = (4, 12)
GAINS: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.1, 0.1), (0.2, 0.2), (0.1, 0.0))
"""True gains of the candidate on the two machines."""

_SEARCH = "s"
_BASELINE, _CANDIDATE = "a", "z"
_POINTS = ("abcad", "aebfc")  # of the trials before the pairs, on each machine
_TRIAL_S = 6.0


@dataclass(frozen=True, kw_only=True)
class PairVerdict:
    """Verdict on one confirmation.

    Attributes:
        better: Whether it says so.
        holds: Whether its interval holds the true ratio of each machine.
        pairs: Number of pairs that it took on each machine.
    """

    better: bool
    holds: bool
    pairs: int


def confirmed_on_two(
    noise: Noise, seed: int, gains: tuple[float, float], *, pairs: int, sequential: bool
) -> PairVerdict:
    """Simulate one confirmation, and judge it as a search does.

    Args:
        noise: Noise of the trials.
        seed: Seed of the noise, the machines, and the order of the pairs.
        gains: True gain of the candidate on each machine, e.g. 0.1.
        pairs: Number of pairs on each machine, the most of a sequential confirmation.
        sequential: Whether it stops as soon as it is sure.
    """
    before, halves = _trials(noise, seed, gains, pairs=pairs, sequential=sequential)
    judgement: Judgement | None = None
    for count in range(FEWEST_PAIRS if sequential else pairs, pairs + 1, FEWEST_PAIRS):
        records = [*before, *halves[: 4 * count]]
        judged = judged_finalists(records, _SEARCH, THROUGHPUT)
        judgement = judged[-1][1] if judged else None
        if judgement and (judgement.better or (LEAST_PAIRS <= count < pairs and judgement.is_futile(pairs))):
            break
    if judgement is None:
        return PairVerdict(better=False, holds=True, pairs=count)
    ratio = judgement.score
    holds = all(ratio.low <= 1.0 + gain <= ratio.high for gain in gains)
    return PairVerdict(better=judgement.better, holds=holds, pairs=count)


def report_on_two_machines(*, confirmations: int, seed: int, jobs: int) -> str:
    """Return how honest and how powerful confirmations on two machines are, as Markdown.

    Args:
        confirmations: Number of confirmations under each noise.
        seed: Seed of the first of them.
        jobs: Number of processes.
    """
    kinds = list(product(NOISES, PAIRS, (False, True)))
    make = partial(_row, seeds=range(seed, seed + confirmations))
    rows = sorted(in_processes(make, list(enumerate(kinds)), jobs), key=lambda row: row[0])
    heads = [f'"better" at {_gain(gains)}' for gains in GAINS]
    heads = ["noise", "pairs on each", *heads, "interval holds on both", "pairs taken"]
    return markdown_table(heads, (cells for _, cells in rows))


def _row(placed: tuple[int, tuple[str, int, bool]], seeds: range) -> tuple[int, list[str]]:
    """Return the cells of one kind of confirmation, and its place in the table."""
    place, (noise, pairs, sequential) = placed
    by_gain = [
        [confirmed_on_two(NOISES[noise], seed, gains, pairs=pairs, sequential=sequential) for seed in seeds]
        for gains in GAINS
    ]
    better = [f"{fmean(verdict.better for verdict in verdicts):.1%}" for verdicts in by_gain]
    holds = [f"{fmean(verdict.holds for verdict in verdicts):.1%}" for verdicts in by_gain]
    taken = [f"{fmean(verdict.pairs for verdict in verdicts):.1f}" for verdicts in by_gain]
    kind = "as soon as sure" if sequential else "fixed"
    return place, [noise, f"{pairs}, {kind}", *better, ", ".join(holds), ", ".join(taken)]


def _trials(
    noise: Noise, seed: int, gains: tuple[float, float], *, pairs: int, sequential: bool
) -> tuple[list[TrialRecord], list[TrialRecord]]:
    """Return the records before the confirmation, and those of its pairs, in the order of their ends."""
    before: list[TrialRecord] = []
    halves: list[list[TrialRecord]] = []
    for machine, gain, points in zip(site(seed, 2), gains, _POINTS, strict=True):
        drawn = iter(noise(np.random.default_rng((seed, machine.number))) + math.log(machine.speed))
        make = _Records(machine=machine.name, planned_pairs=pairs if sequential else None)
        for place, point in enumerate(points):
            purpose = Purpose.EXPLORE if place else Purpose.BASELINE
            before.append(make.record(point, purpose, float(next(drawn))))
        some = []
        for pair, arm in pair_order(pairs, random.Random(f"{seed} order {machine.number}")):
            ln_speed = float(next(drawn)) + (math.log1p(gain) if arm else 0.0)
            point = _CANDIDATE if arm else _BASELINE
            some.append(make.record(point, Purpose.CONFIRM, ln_speed, pair=pair))
        halves.append(some)
    return before, list(_whole_pairs_in_turn(*halves))


def _whole_pairs_in_turn(one: Sequence[TrialRecord], other: Sequence[TrialRecord]) -> Iterator[TrialRecord]:
    for place in range(0, len(one), 2):
        yield from (*one[place : place + 2], *other[place : place + 2])


@dataclass(frozen=True, kw_only=True)
class _Records:
    """Maker of the records of one machine."""

    machine: str
    planned_pairs: int | None

    def record(self, point: str, purpose: Purpose, ln_speed: float, *, pair: int | None = None) -> TrialRecord:
        planned = {} if pair is None or self.planned_pairs is None else {PAIRS_PLANNED: self.planned_pairs}
        return TrialRecord(
            number=0,
            search=_SEARCH,
            point=point,
            values={"point": point},
            purpose=purpose,
            pair=pair,
            ending=Ending.STOPPED,
            validity=Validity.GOOD,
            ended_utc="2026-01-01T00:00:00+00:00",
            duration_s=_TRIAL_S,
            measurement=Measurement(
                window_s=2.0,
                steps=40,
                samples_per_s=100.0 * math.exp(ln_speed),
                cv=None,
                step_p50_s=0.05,
                step_p95_s=0.05,
                data_wait_fraction=None,
                first_step_s=1.0,
            ),
            conditions={MACHINE: self.machine, "host": self.machine, **planned},
        )


def _gain(gains: tuple[float, float]) -> str:
    one, other = gains
    return f"{one:+.0%}" if one == other else f"{one:+.0%} and {other:+.0%}"

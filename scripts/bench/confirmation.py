"""Benchmark of the confirmation: how often it says "better", and how often its interval holds, on simulated trials.

Before the pairs, a search has made ten trials, some of them repeats. The judgement is the product's own, from records.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.measure.cycles import Series
from autotune.measure.score import FEWEST_PAIRS, LEAST_PAIRS, THROUGHPUT, judge
from autotune.records import Ending, Measurement, Purpose, TrialRecord, Validity
from autotune.search.confirm import looks, pair_order
from autotune.study.noise import pair_noise
from scripts.bench.results import Commands, markdown_table

PAIRS = (4, 6, 12)
GAINS = (0.0, 0.05, 0.1, 0.2)
_LARGE_GAINS = (0.0, 0.5, 1.0)
_TRIAL_S = 6.0
_POINTS = "abcadebfca"  # of the trials before the pairs: one of them has three, two have two
_EXTENDED = (6, 54)  # pairs before the first look, and at most
_MOST_PAIRS = max(*PAIRS, *_EXTENDED)
_TRIALS = len(_POINTS) + 2 * _MOST_PAIRS

Noise = Callable[[np.random.Generator], Series]
"""Draws the ln noise of all trials of a search, six seconds apart."""


def _normal(rng: np.random.Generator) -> Series:
    return rng.normal(0.0, 0.08, _TRIALS)


def _bimodal(rng: np.random.Generator) -> Series:
    return rng.choice([-0.075, 0.075], _TRIALS) + rng.normal(0.0, 0.028, _TRIALS)


def _outliers(rng: np.random.Generator) -> Series:
    return rng.normal(0.0, 0.04, _TRIALS) + math.log(0.6) * (rng.random(_TRIALS) < 0.1)


def _autocorrelated(rng: np.random.Generator) -> Series:
    kept = math.exp(-_TRIAL_S / 120.0)
    level, levels = rng.normal(0.0, 0.08), []
    for step in rng.normal(0.0, 0.08 * math.sqrt(1.0 - kept**2), _TRIALS):
        levels.append(level)
        level = kept * level + step
    return np.array(levels) + rng.normal(0.0, 0.03, _TRIALS)


def _phases(rng: np.random.Generator) -> Series:
    """Draw phases of three minutes, two in five of the time, in which the machine is slower."""
    ends, begins = _TRIAL_S / 180.0, 13.0 * _TRIAL_S / 3600.0
    is_slow, phases = rng.random() < begins / (begins + ends), []
    for chance in rng.random(_TRIALS):
        phases.append(is_slow)
        is_slow = chance >= ends if is_slow else chance < begins
    return math.log(0.85) * np.array(phases) + rng.normal(0.0, 0.03, _TRIALS)


def _heavy_tails(rng: np.random.Generator) -> Series:
    return rng.standard_t(3, _TRIALS) * 0.08 / math.sqrt(3.0)


def _wide(rng: np.random.Generator) -> Series:
    return rng.normal(0.0, 0.2, _TRIALS)


def _grows(rng: np.random.Generator) -> Series:
    return rng.normal(0.0, np.where(np.arange(_TRIALS) < len(_POINTS), 0.04, 0.12), _TRIALS)


NOISES: Mapping[str, Noise] = {
    "normal, 8 %": _normal,
    "bimodal, 8 %": _bimodal,
    "10 % of trials at 0.6x": _outliers,
    "autocorrelated over 2 minutes": _autocorrelated,
    "bimodal over minutes": _phases,
    "Student's t with 3 df, 8 %": _heavy_tails,
}
"""Noises under which a confirmation is to keep its promise."""

HARSH_NOISES: Mapping[str, Noise] = {"normal, 20 %": _wide, "4 % until the pairs, then 12 %": _grows}
"""Noises that are harsher than that."""


@dataclass(frozen=True, kw_only=True)
class SimulatedSearch:
    """Trials of a search in which nothing is faster than the baseline yet.

    Attributes:
        baseline: ln speed of the baseline's trial of each pair.
        candidate: The same of the candidate's, without any gain.
        noise: What the pairs are pooled with: by whether they are fewer than four.
    """

    others: Sequence[TrialRecord]
    baseline: Sequence[float]
    candidate: Sequence[float]
    noise: Mapping[bool, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one confirmation.

    Attributes:
        better: True if it says so.
        holds: True if its interval holds the true ratio.
    """

    better: bool
    holds: bool
    pairs: int


def simulate(noise: Noise, seed: int, *, repeats: bool = True) -> SimulatedSearch:
    """Simulate the trials of one search, those of a confirmation with the most pairs included.

    Args:
        seed: Seed of the noise, and of the order of the pairs.
        repeats: False for a search that has repeated no trial.
    """
    drawn = noise(np.random.default_rng(seed))
    before, rest = drawn[: len(_POINTS)], iter(drawn[len(_POINTS) :])
    points = _POINTS if repeats else "abcdefghij"
    others = [_record(point, float(value)) for point, value in zip(points, before, strict=True)]
    sides: dict[bool, list[float]] = {True: [], False: []}
    for _, arm in pair_order(_MOST_PAIRS, random.Random(seed)):
        sides[arm == 0].append(float(next(rest)))
    return SimulatedSearch(
        others=others,
        baseline=sides[True],
        candidate=sides[False],
        noise={
            few: pair_noise(others, "s", THROUGHPUT, pairs=FEWEST_PAIRS if few else LEAST_PAIRS)
            for few in (False, True)
        },
    )


def judged(search: SimulatedSearch, gain: float, pairs: int, *, first: int | None) -> Verdict:
    """Judge as a search does it.

    Args:
        gain: True gain of the candidate, e.g. 0.1.
        pairs: Number of pairs, the most of a sequential confirmation.
        first: Pairs after which a sequential one is judged for the first time; None where their number is fixed.
    """
    trials = [
        (_measurement(one), _measurement(math.log1p(gain) + other))
        for one, other in zip(search.baseline[:pairs], search.candidate[:pairs], strict=True)
    ]
    for count in sorted({*(looks(first, pairs) if first else ()), pairs}):
        variance, df = search.noise[count < LEAST_PAIRS]
        judgement = judge(
            trials[:count],
            prior_variance=variance,
            prior_df=df,
            objective=THROUGHPUT,
            planned_pairs=pairs if first else None,
        )
        is_futile = LEAST_PAIRS <= count < pairs and judgement.is_futile(pairs)
        if judgement.better or is_futile:
            break
    ratio = judgement.score
    return Verdict(better=judgement.better, holds=ratio.low <= 1.0 + gain <= ratio.high, pairs=count)


def benchmark_confirmation(*, searches: int, seed: int) -> str:
    """Judge simulated confirmations and return how honest, how powerful and how long they are, as Markdown.

    Args:
        seed: Seed of the first of them.
    """
    seeds = range(seed, seed + searches)
    rows, without_repeats = [], []
    for name, noise in {**NOISES, **HARSH_NOISES}.items():
        simulated = [simulate(noise, one) for one in seeds]
        rows += [[name, str(pairs), *_cells(simulated, pairs, GAINS, (None, FEWEST_PAIRS))] for pairs in PAIRS]
        first, most = _EXTENDED
        rows += [[name, f"{first}, then {most}", *_cells(simulated, most, GAINS, (first,))]]
        simulated = [simulate(noise, one, repeats=False) for one in seeds]
        without_repeats += [
            [name, str(pairs), *_cells(simulated, pairs, _LARGE_GAINS, (FEWEST_PAIRS,))]
            for pairs in (FEWEST_PAIRS, LEAST_PAIRS)
        ]
    return "\n\n".join(
        (
            f"{searches} searches under each noise, seed {seed}. Two figures: with a fixed number of pairs, and "
            "sequential; one where further pairs follow while they can decide. Of intervals the least and the most "
            "over the gains.",
            markdown_table(_heads(GAINS), rows),
            "## Sequential, in a search that has repeated no trial",
            markdown_table(_heads(_LARGE_GAINS), without_repeats),
        )
    )


def _heads(gains: Sequence[float]) -> list[str]:
    shown = [f"{gain:+.0%}" for gain in gains]
    better = [f'"better" at {gain}' for gain in shown]
    return ["noise", "pairs, at most", *better, "interval holds", f"pairs at {', '.join(shown)}"]


def _cells(
    simulated: Sequence[SimulatedSearch], pairs: int, gains: Sequence[float], kinds: Sequence[int | None]
) -> list[str]:
    """Return the cells of a row, with a figure for each kind of confirmation: pairs before its first look, if any."""
    verdicts = [[[judged(search, gain, pairs, first=kind) for search in simulated] for gain in gains] for kind in kinds]
    better = [" / ".join(_share(of[index], "better") for of in verdicts) for index in range(len(gains))]
    return [*better, " / ".join(map(_holds, verdicts)), _mean_pairs(verdicts[-1])]


def _share(verdicts: Sequence[Verdict], what: str) -> str:
    return f"{sum(getattr(verdict, what) for verdict in verdicts) / len(verdicts):.1%}"


def _holds(by_gain: Sequence[Sequence[Verdict]]) -> str:
    """Return the least and the most share of intervals that hold, over the gains."""
    shares = sorted({_share(verdicts, "holds") for verdicts in by_gain}, key=lambda share: float(share[:-1]))
    return shares[0] if len(shares) == 1 else f"{shares[0]} to {shares[-1]}"


def _mean_pairs(by_gain: Sequence[Sequence[Verdict]]) -> str:
    return ", ".join(f"{sum(verdict.pairs for verdict in verdicts) / len(verdicts):.1f}" for verdicts in by_gain)


def _measurement(ln_speed: float) -> Measurement:
    return Measurement(
        window_s=2.0,
        steps=40,
        samples_per_s=100.0 * math.exp(ln_speed),
        cv=None,
        step_p50_s=0.05,
        step_p95_s=0.05,
        data_wait_fraction=None,
        first_step_s=1.0,
    )


def _record(point: str, ln_speed: float) -> TrialRecord:
    return TrialRecord(
        number=0,
        search="s",
        point=point,
        values={"point": point},
        purpose=Purpose.EXPLORE,
        ending=Ending.STOPPED,
        validity=Validity.GOOD,
        ended_utc="2026-01-01T00:00:00+00:00",
        duration_s=_TRIAL_S,
        measurement=_measurement(ln_speed),
    )


def add_confirmation(commands: Commands) -> None:
    """Add the parser of ``confirmation``."""
    parser = commands.add_parser("confirmation", help="judge simulated confirmations, and compare with the truth")
    parser.add_argument("--searches", type=int, default=2000, help="under each noise (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(
        run=lambda given: print(benchmark_confirmation(searches=given.searches, seed=given.seed), end="")
    )

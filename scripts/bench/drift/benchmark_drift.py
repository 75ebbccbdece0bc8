"""False alarms, delays and named causes of the tests for drift, on simulated trainings."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.daemon.drift import PaceWindow, Slowdown, StartCheck, Turn
from autotune.daemon.training_folder import ConfirmedSpeed, prediction_interval
from scripts.bench.drift.pace_noise import WINDOW_S, PaceNoise, between_trainings, hours
from scripts.bench.drift.staged_causes import found_cause, staged_case
from scripts.bench.markdown import markdown_table

_WINDOWS_A_DAY = 86400 / WINDOW_S
_SLOWER_BY = (0.05, 0.10, 0.20)
_STARTS_SLOWER_BY = (0.0, 0.10, 0.20, 0.30)
_HORIZON_H = 24
_START_WINDOWS = 40
_TRIAL_WINDOWS = 4


def benchmark_drift(*, trainings: int, delays: int, starts: int, cases: int) -> None:
    """Print all figures.

    Args:
        trainings: Trainings that nothing happens to.
        delays: Trainings that become slower, for each size.
        starts: Trainings that are compared with what was confirmed, for each size.
        cases: Staged causes.
    """
    _false_alarms(trainings)
    _delays(delays)
    _starts(starts)
    _causes(cases)


def poisson_upper_bound(count: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper bound of a Poisson mean after so many events: the mean with P(X ≤ count) = 1 - level.

    Args:
        count: Events that were seen.
        confidence: Level, 0..1.
    """
    low, high = 0.0, 10.0 * (count + 5)
    for _ in range(100):
        middle = (low + high) / 2
        terms = np.cumsum(np.log(np.arange(1, count + 1)))
        chance = np.exp(-middle) + sum(np.exp(k * np.log(middle) - middle - terms[k - 1]) for k in range(1, count + 1))
        low, high = (middle, high) if chance > 1.0 - confidence else (low, middle)
    return high


def _alarm_windows(paces: Sequence[float]) -> list[int]:
    """Return the windows in which the test says that a training has become slower."""
    test, alarms = Slowdown(), []
    for place, pace in enumerate(paces):
        change = test.add(place * WINDOW_S, WINDOW_S, pace)
        if change is not None and change.turn is Turn.SLOWER:
            alarms.append(place)
    return alarms


def _false_alarms(trainings: int) -> None:
    windows = alarms = 0
    for seed in range(trainings):
        rng = np.random.default_rng([seed, 3])
        noise, count = PaceNoise.draw(rng), int(hours(rng) * 3600 / WINDOW_S)
        alarms += len(_alarm_windows(noise.windows(rng, count).tolist()))
        windows += count
    days = windows / _WINDOWS_A_DAY
    bound = poisson_upper_bound(alarms)
    print(
        f"{trainings} trainings that nothing happens to, {days:.0f} days: {alarms} false alarms, "
        f"{30 * alarms / days:.2f} in 30 days (95 % upper bound {30 * bound / days:.2f})\n",
        flush=True,
    )


def _delays(trainings: int) -> None:
    rows = []
    for size in _SLOWER_BY:
        delays_min, before = [], 0
        for seed in range(trainings):
            rng = np.random.default_rng([seed, 5])
            noise, at = PaceNoise.draw(rng), int(rng.uniform(0.5, 8.0) * 360)
            paces = noise.windows(rng, at + _HORIZON_H * 360)
            paces[at:] -= np.log1p(-size)
            alarms = _alarm_windows(paces.tolist())
            before += sum(alarm < at for alarm in alarms)
            after = [alarm for alarm in alarms if alarm >= at]
            delays_min.append((after[0] - at) * WINDOW_S / 60 if after else np.inf)
        known = np.asarray(delays_min)
        middle, late = (float(np.quantile(known, q, method="higher")) for q in (0.5, 0.9))
        rows.append(
            [
                f"{size:.0%}",
                _minutes(middle),
                _minutes(late),
                f"{(known <= 60).mean():.0%}",
                f"{(known < np.inf).mean():.0%}",
            ]
        )
    heads = ("slower by", "median delay", "90th percentile", "found in an hour", f"in {_HORIZON_H} hours")
    print(markdown_table(heads, rows) + "\n", flush=True)


def _minutes(delay: float) -> str:
    return f"over {_HORIZON_H} h" if delay == np.inf else f"{delay:.0f} min"


def _starts(trainings: int) -> None:
    """Print how often the first minutes are said to be slow, by how slow they are."""
    rows = []
    for size in _STARTS_SLOWER_BY:
        said = 0
        for seed in range(trainings):
            rng = np.random.default_rng([seed, 11])
            noise = replace(PaceNoise.draw(rng), first_epoch=0.0)  # where it fills a cache, the check begins after it
            check = StartCheck(_confirmed(rng, noise))
            level = float(between_trainings(rng, 1)[0]) + np.log1p(-size)
            for place, pace in enumerate(noise.windows(rng, _START_WINDOWS)):
                said += check.add(_start_window(place, float(pace) - level)) is not None
        rows.append([f"{size:.0%}", f"{said / trainings:.1%}"])
    print(markdown_table(("slower than confirmed by", "said to be slow"), rows) + "\n", flush=True)


def _confirmed(rng: np.random.Generator, noise: PaceNoise) -> ConfirmedSpeed:
    """Return what a study of ordinary size has confirmed for a point of speed 1, from trials of 20 s each."""

    def trials(count: int) -> list[float]:
        return [
            float(level - np.log(np.exp(noise.windows(rng, _TRIAL_WINDOWS)[-2:]).mean()))
            for level in between_trainings(rng, count)
        ]

    own = trials(int(rng.integers(4, 9)))
    others = [trials(int(rng.integers(1, 9))) for _ in range(12)]
    interval = prediction_interval(own, [own, *others])
    assert interval is not None
    mean, half, count = interval
    return ConfirmedSpeed(
        samples_per_s=float(np.exp(mean)), low=float(np.exp(-half)), high=float(np.exp(half)), trials=count
    )


def _start_window(place: int, pace: float) -> PaceWindow:
    return PaceWindow(
        process="1.0",
        t0_s=place * WINDOW_S,
        t1_s=(place + 1) * WINDOW_S,
        steps=50,
        train_s=WINDOW_S,
        samples=WINDOW_S / float(np.exp(pace)),
    )


def _causes(cases: int) -> None:
    right, found, wrong = 0, 0, Counter[str]()
    for seed in range(cases):
        case = staged_case(seed)
        is_found, cause = found_cause(case)
        found += is_found
        named = cause.kind if cause else None
        if is_found and named is case.cause:
            right += 1
        elif is_found:
            wrong[f"{case.cause or 'nothing to see'} taken for {named or 'unknown'}"] += 1
    print(f"{cases} staged slowdowns of 12 to 50 %: {found} found in 3 hours, the cause right in {right} of these")
    for text, count in wrong.most_common():
        print(f"  {count} x {text}")

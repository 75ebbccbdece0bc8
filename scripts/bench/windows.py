"""Benchmark of the measuring window: the speed that it tells of training that stops and goes, and how sure it is of it.

Each sequence of steps is drawn from a process of known speed, begins anywhere in its rhythm, and with a few steps that
are slower. A trial looks at it for a fixed time, or as the first trial of a search does: until it is sure.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from autotune.measure.cycles import Series
from autotune.measure.window import Window, steady_window
from autotune.records import TraineeEvent
from scripts.bench.results import Commands, markdown_table

_FIRST_S, _LONGEST_S = 60.0, 240.0
_WARM_UP_STEPS = 4


class Process(NamedTuple):
    """Steps of one training.

    Attributes:
        durations_s: Time of each of very many steps.
        mean_s: Their expected time.
        beat_s: Time of its longest rhythm; 0 without one.
    """

    durations_s: Series
    mean_s: float
    beat_s: float = 0.0


Draw = Callable[[np.random.Generator], Process]


def _computing(rng: np.random.Generator, cv: float | None = None) -> Process:
    """Draw steps of one kind, with noise that lasts for a few of them."""
    step_s, cv, kept = 10 ** rng.uniform(-2, -0.7), cv or rng.uniform(0.03, 0.25), rng.uniform(0.0, 0.6)
    noise = _kept_noise(rng, int(1.5 * _LONGEST_S / step_s), kept, level=0.0)
    sd = math.sqrt(math.log1p(cv**2))
    return Process(step_s * np.exp(sd * noise - sd**2 / 2.0), step_s)


def _kept_noise(rng: np.random.Generator, count: int, kept: float, *, level: float) -> Series:
    """Draw a first-order autoregressive series with variance 1."""
    noise = np.empty(count)
    for index, new in enumerate(rng.normal(0.0, math.sqrt(1.0 - kept**2), count)):
        level = noise[index] = kept * level + new
    return noise


def _stalled(rng: np.random.Generator, shape: str) -> Process:
    """Draw computing with a stall every beat, which takes a tenth to three fifths of the time."""
    quick = _computing(rng, cv=rng.uniform(0.02, 0.15))
    beat_s, share = 10 ** rng.uniform(math.log10(0.5), math.log10(60.0)), rng.uniform(0.1, 0.6)
    every = max(3, round(beat_s * (1.0 - share) / quick.mean_s))
    stall_s = every * quick.mean_s * share / (1.0 - share)
    steps, begin = len(quick.durations_s), rng.integers(every)
    place = (np.arange(steps) + begin) % every
    extra = np.zeros(steps)
    if shape == "one long step":
        extra[place == 0] = stall_s * rng.normal(1.0, 0.05, int((place == 0).sum()))
    elif shape == "several slow steps":
        length = min(every - 1, max(2, every // 10))
        extra[place < length] = stall_s / length
    elif shape == "at random":
        struck = rng.random(steps) < 1.0 / every
        extra[struck] = stall_s * rng.uniform(0.5, 1.5, int(struck.sum()))
    elif shape == "ever slower":
        extra = stall_s * 2.0 * place / (every * (every - 1))
    return Process(quick.durations_s + extra, quick.mean_s + stall_s / every, every * quick.mean_s + stall_s)


def _bursts(rng: np.random.Generator) -> Process:
    """Draw a loader whose workers finish together: as many quick steps as there are workers, and a wait."""
    quick = _computing(rng, cv=0.1)
    workers, wait_s = int(rng.integers(2, 17)), quick.mean_s * rng.uniform(4.0, 40.0)
    place = (np.arange(len(quick.durations_s)) + rng.integers(workers)) % workers
    waits = np.where(place == 0, wait_s * rng.lognormal(-0.005, 0.1, len(place)), 0.0)
    return Process(quick.durations_s + waits, quick.mean_s + wait_s / workers, workers * quick.mean_s + wait_s)


def _epoch_ends(rng: np.random.Generator) -> Process:
    """Draw such a loader that begins anew with each epoch."""
    bursts = _bursts(rng)
    epoch_s, end_s = 10 ** rng.uniform(0.3, 1.5), rng.uniform(0.3, 3.0)
    every = max(20, round(epoch_s / bursts.mean_s))
    place = (np.arange(len(bursts.durations_s)) + rng.integers(every)) % every
    ends = np.where(place == 0, end_s * rng.lognormal(-0.005, 0.1, len(place)), 0.0)
    return Process(bursts.durations_s + ends, bursts.mean_s + end_s / every, every * bursts.mean_s + end_s)


def _heavy_tails(rng: np.random.Generator) -> Process:
    steps = _computing(rng, cv=0.05)
    tail, share = rng.uniform(2.2, 3.5), rng.uniform(0.05, 0.3)
    late = np.where(rng.random(len(steps.durations_s)) < share, rng.pareto(tail, len(steps.durations_s)), 0.0)
    return Process(steps.durations_s * (1.0 + late), steps.mean_s * (1.0 + share / (tail - 1.0)))


def _wanders(rng: np.random.Generator, levels: Callable[[int, float], Series]) -> Process:
    steps = _computing(rng, cv=0.1)
    factors = levels(len(steps.durations_s), steps.mean_s)
    return Process(steps.durations_s * factors, steps.mean_s)


def _drift(rng: np.random.Generator) -> Process:
    """Draw steps whose pace wanders by a few percent within some seconds."""
    lasts_s, sd = rng.uniform(1.0, 8.0), rng.uniform(0.02, 0.08)

    def levels(count: int, step_s: float) -> Series:
        wandering = _kept_noise(rng, count, math.exp(-step_s / lasts_s), level=rng.normal())
        return np.asarray(np.exp(sd * wandering - sd**2 / 2.0))

    return _wanders(rng, levels)


def _throttling(rng: np.random.Generator) -> Process:
    """Draw a device that is slower, by a tenth to a half, for a part of each period."""
    slower, period_s, share = rng.uniform(1.1, 1.5), rng.uniform(1.0, 20.0), rng.uniform(0.2, 0.8)

    def levels(count: int, step_s: float) -> Series:
        every = max(10, round(period_s / step_s))
        is_slow = (np.arange(count) + rng.integers(every)) % every < share * every
        mean = float(np.mean(np.where(np.arange(every) < share * every, slower, 1.0)))
        return np.asarray(np.where(is_slow, slower, 1.0) / mean)

    return _wanders(rng, levels)


def _two_phases(rng: np.random.Generator) -> Process:
    """Draw training that begins at another speed: with full buffers, or while something is compiled."""
    other, lasts_s = rng.choice([rng.uniform(0.3, 0.7), rng.uniform(1.4, 4.0)]), rng.uniform(0.2, 1.5)

    def levels(count: int, step_s: float) -> Series:
        factors = np.ones(count)
        factors[: round(lasts_s / step_s)] = other
        return factors

    return _wanders(rng, levels)


_SHAPES = ("one long step", "several slow steps", "at random", "ever slower")
PROCESSES: Mapping[str, Draw] = {
    "computing": _computing,
    **{f"stalls: {shape}": partial(_stalled, shape=shape) for shape in _SHAPES},
    "stalls: bursts of a loader": _bursts,
    "ends of epochs, in bursts": _epoch_ends,
    "heavy tails": _heavy_tails,
    "drift": _drift,
    "throttling": _throttling,
    "two phases": _two_phases,
}
"""Processes of each class."""


class Seen(NamedTuple):
    """What a trial tells of one sequence.

    Attributes:
        off: ln of the speed that it tells over the true one.
        holds: Whether its 95 % interval holds the true one.
        half_width: Half-width of that, as ln.
        took_s: Time from the first step.
    """

    off: float
    holds: bool
    half_width: float
    took_s: float


def look(process: Process, rng: np.random.Generator, after_s: Sequence[float], sure: float) -> Seen | None:
    """Return what a trial tells that ends once it is sure enough, after one of these times; None without a window.

    Args:
        after_s: Times at which it may end, measured from its first step; with the step, or cycle, that is under way.
        sure: Half-width of the interval that is enough, as ln.
    """
    slower = np.ones(len(process.durations_s))
    slower[:_WARM_UP_STEPS] = np.sort(rng.uniform(1.0, 2.0, _WARM_UP_STEPS))[::-1]
    ends_s = np.concatenate(([0.0], np.cumsum(process.durations_s * slower)))
    seen = None
    for limit_s in after_s:
        window, last_s = _window(ends_s, limit_s)
        if window is None:
            continue
        off = math.log(window.samples_per_s(None) * process.mean_s)
        half_width = 2.0 * window.speed_error()
        seen = Seen(off, abs(off) <= half_width, half_width, last_s)
        if seen.half_width <= sure:
            return seen
    return seen


def _window(ends_s: Series, limit_s: float) -> tuple[Window | None, float]:
    """Return the window of a trial that is asked to end after some time, and when it does."""
    last = int(np.searchsorted(ends_s, limit_s)) + 1
    most = int(np.searchsorted(ends_s, 2.0 * limit_s)) + 1
    while True:
        events = [TraineeEvent(kind="step", t_s=float(t_s), stream="1.0") for t_s in ends_s[:last]]
        window = steady_window(events)
        if window is None or window.t1_s >= limit_s or last >= most:
            return window, float(ends_s[last - 1])
        last += max(1, last // 200)


def _run(arguments: argparse.Namespace) -> None:
    rows = []
    everywhere: list[Seen] = []
    times_s = [arguments.seconds] if arguments.seconds else [_FIRST_S * 1.4**index for index in range(5)]
    for number, (name, draw) in enumerate(PROCESSES.items()):
        seen = []
        for repeat in range(arguments.sequences):
            rng = np.random.default_rng((arguments.seed, number, repeat))
            found = look(draw(rng), rng, times_s, arguments.sure / 100.0)
            if found is not None:
                seen.append(found)
        rows.append(_row(name, seen))
        print(rows[-1], flush=True)
        everywhere += seen
    rows.append(_row("all", everywhere))
    print(
        markdown_table(
            ("steps", "error: median", "p95", "interval holds", "its half-width", "took: median", "p95"), rows
        )
    )


def _row(name: str, seen: Sequence[Seen]) -> tuple[str, ...]:
    offs = np.abs([one.off for one in seen])
    took_s = np.array([one.took_s for one in seen])
    return (
        name,
        f"{np.median(offs):.2%}",
        f"{np.quantile(offs, 0.95):.1%}",
        f"{np.mean([one.holds for one in seen]):.0%} of {len(seen)}",
        f"{np.median([one.half_width for one in seen]):.1%}",
        f"{np.median(took_s):.1f} s",
        f"{np.quantile(took_s, 0.95):.0f} s",
    )


def add_windows(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("windows", help="speed and interval of steps of known speed, by class")
    parser.add_argument("--sequences", type=int, default=18, help="of each class (18)")
    parser.add_argument("--seconds", type=float, help="length of each trial; else as long as it takes to be sure")
    parser.add_argument("--sure", type=float, default=1.5, help="half-width that is sure enough, in %% (1.5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(run=_run)

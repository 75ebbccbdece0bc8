"""Grid of batch sizes and workers: one short trial of plain training for each pair."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.diagnose.profile_trials import ProfileTrials, TrialRequest
from autotune.errors import ConfigError
from autotune.measure.window import steady_window
from autotune.records import Scalar, TraineeEvent
from autotune.search.problem import Problem
from autotune.space.catalog import known_knob
from autotune.space.knob import Knob


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Trial of a pair.

    Attributes:
        samples_per_s: Throughput; None if there was none.
        waiting_fraction: Share of the time in which the step waited for a batch; None if not seen.
        variation: Standard deviation of a step's time as a part of its mean; None likewise.
        relative_sd: Uncertainty of the throughput as a part of it, from its own trial alone.
        why_not: Reason that there is no throughput; None if there is.
    """

    values: Mapping[str, Scalar]
    samples_per_s: float | None
    waiting_fraction: float | None
    variation: float | None
    relative_sd: float | None
    why_not: str | None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Trials of all pairs.

    Attributes:
        cells: The trials, in the order in which they were made; today's pair is the first.
        recommended: Values to take; None if no trial gave numbers.
    """

    cells: tuple[Cell, ...]
    recommended: Mapping[str, Scalar] | None
    sentence: str


def profile_grid(problem: Problem, trials: ProfileTrials, tell: Callable[[str], object]) -> Grid:
    """Make a trial of each pair of a batch size and a number of workers.

    Args:
        tell: Called with a sentence before each.

    Raises:
        ConfigError: The config has neither such key among its knobs.
        AutotuneError: A trial cannot be made.
    """
    batch, workers = _knob(problem, "batch_size"), _knob(problem, "workers")
    knobs = [knob for knob in (batch, workers) if knob is not None]
    if not knobs:
        raise ConfigError(
            "no key of this config is known as a batch size or a number of workers",
            where=str(problem.config_path),
            remedy="List them under knobs: in the autotune: section, by names such as batch_size and num_workers.",
        )
    pairs: list[dict[str, Scalar]] = [{}]
    for knob in knobs:
        pairs = [{**pair, knob.path: value} for pair in pairs for value in values_of(knob, os.cpu_count() or 1)]
    cells = []
    for number, pair in enumerate(pairs, start=1):
        tell(f"Trial {number} of {len(pairs)}: {', '.join(f'{key}={value}' for key, value in pair.items())}")
        cells.append(_cell(problem, trials, pair, number))
    return grid(cells)


def grid(cells: Sequence[Cell]) -> Grid:
    """Return what trials come to: of those about as fast as the fastest, the one that comes first.

    Args:
        cells: The trials; for each batch size from today's away, for each number of workers from today's away.
    """
    measured = [cell for cell in cells if cell.samples_per_s]
    if not measured:
        return Grid(cells=tuple(cells), recommended=None, sentence="No trial gave a throughput.")
    fastest = max(measured, key=_speed)
    best = next(cell for cell in measured if _speed(cell) >= _speed(fastest) * (1.0 - _margin(cell, fastest)))
    today = cells[0]
    if best is today:
        sentence = "Today's values stay: no other pair is faster by more than chance does in trials this short."
    else:
        named = ", ".join(f"{key}={value}" for key, value in best.values.items())
        gain = f", {_speed(best) / _speed(today):.2f}x today's" if _speed(today) else ""
        sentence = (
            f"Take {named}: {_speed(best):.4g} samples/s{gain}. One short trial each; autotune search confirms "
            "such a gain in pairs."
        )
    return Grid(cells=tuple(cells), recommended=dict(best.values), sentence=sentence)


def _speed(cell: Cell) -> float:
    return cell.samples_per_s or 0.0


def _margin(cell: Cell, fastest: Cell) -> float:
    """Return the share by which one may be slower than the fastest and count as fast."""
    sd = math.hypot(cell.relative_sd or 0.0, fastest.relative_sd or 0.0)
    return max(0.03, 2.0 * sd)  # nobody pays for less with more workers, or another training


def values_of(knob: Knob, cores: int) -> list[Scalar]:
    """Return the values of a knob to try: today's, and those next to it that are not absurd."""
    today = knob.index(knob.baseline) or 0
    near = sorted(range(len(knob.choices)), key=lambda place: (abs(place - today), -place))
    most = 2 * cores if knob.kind == "workers" else math.inf
    fit = [place for place in near if place == today or not _is_beyond(knob.choices[place], most)]
    return [knob.choices[place] for place in fit[:3]]


def _is_beyond(value: Scalar, most: float) -> bool:
    return isinstance(value, int) and value > most


def _knob(problem: Problem, kind: str) -> Knob | None:
    for knob in problem.space.knobs:
        row = known_knob(knob.path, knob.baseline)
        if (knob.kind or (row.kind if row else None)) == kind:
            return knob
    return None


def _cell(problem: Problem, trials: ProfileTrials, pair: Mapping[str, Scalar], number: int) -> Cell:
    values = {**problem.space.baseline, **pair}
    trial = trials.make(
        TrialRequest(
            label=f"grid{number}",
            values=values,
            is_over=_is_over,
            window_of=lambda _folder, events: steady_window(events),
            longest_s=40.0,
        )
    )
    window = trial.window
    if window is None or trial.trouble is not None:
        why = trial.trouble.message if trial.trouble else "too few steps were seen"
        return Cell(
            values=dict(pair), samples_per_s=None, waiting_fraction=None, variation=None, relative_sd=None, why_not=why
        )
    trial.folder.delete()
    waits_s = None if window.waits_s is None else float(np.nansum(window.waits_s))
    return Cell(
        values=dict(pair),
        samples_per_s=window.samples_per_s(problem.batch_size(values)),
        waiting_fraction=None if waits_s is None else min(1.0, waits_s / window.time_s),
        variation=float(window.durations_s.std(ddof=1) / window.durations_s.mean()),
        relative_sd=math.sqrt(window.within_variance_s() / window.time_s),
        why_not=None,
    )


def _is_over(_folder: Path, events: Sequence[TraineeEvent], _now_s: float) -> bool:
    window = steady_window(events)
    return window is not None and window.time_s >= 5.0 and window.steps >= 20

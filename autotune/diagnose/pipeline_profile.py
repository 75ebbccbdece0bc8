"""Profile of a trainer's input pipeline, in a trial made for it: the loader alone, and the waits in training."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from autotune.diagnose.findings import percent
from autotune.diagnose.profile_trials import MadeTrial, ProfileTrials, TrialRequest
from autotune.errors import ConfigError, TrialError
from autotune.files import read_beginning
from autotune.measure.cycles import Series
from autotune.measure.utilization import period_of
from autotune.measure.window import Window, main_stream, steady_window
from autotune.records import Scalar, TraineeEvent, TrialPhase
from autotune.search.problem import Problem
from autotune.space.catalog import known_knob, row_of, traits_of
from autotune.space.knob import Knob
from autotune.stage_times import PipelineTimes

VARIABLE = "AUTOTUNE_PROFILE_STAGES"
_PLAIN_S, _PLAIN_STEPS = 12.0, 30  # where there are no phases


@dataclass(frozen=True, kw_only=True)
class PipelineProfile:
    """Profile of an input pipeline.

    Attributes:
        batch_samples: Samples in a batch; None if that is not known.
        loading: Times of batches that the loader gave alone, with no step beside it; None if it could not be.
        why_no_loading: Reason for that; None if it could.
        waits: Waits of the training for its batches; None if they are not seen.
        replayed: Times of steps on batches that are kept: without loading; None if they could not be kept.
        idle_fraction: Share of the training's time in which the step waited for a batch; None if that is not seen.
        gain_if_free: Speed of training on kept batches as a multiple of the training's; None if not known.
        loading_stages: Times of the stages of loading an example, where the trainer wraps them; empty where not.
        stages: Times of a pipeline's two stages, over two devices; None without.
        gpu_utilization: Share of the training's time in which a GPU was busy; None if not known.
    """

    batch_samples: float | None
    loading: BatchTimes | None
    why_no_loading: str | None
    waits: BatchTimes | None
    steps: BatchTimes
    replayed: BatchTimes | None
    idle_fraction: float | None
    gain_if_free: float | None
    loading_stages: tuple[LoadingStage, ...]
    stages: PipelineTimes | None
    gpu_utilization: float | None
    sentence: str


def profile_pipeline(problem: Problem, trials: ProfileTrials) -> PipelineProfile:
    """Profile the input pipeline of a trainer with today's values.

    Raises:
        TrialError: The trainer made too few steps.
        AutotuneError: The trial cannot be made.
    """
    trial = trials.make(
        TrialRequest(
            label="pipeline",
            values=problem.space.baseline,
            environment={"AUTOTUNE_PHASE_S": "2", "AUTOTUNE_PHASE_CHUNK_S": "0", VARIABLE: "1"},
            is_over=_is_over,
            window_of=_measured,
            longest_s=60.0,  # from the first step on
        )
    )
    if trial.trouble is not None:
        raise trial.trouble
    profile = pipeline_profile(trial, phased_events(trial.events))
    trial.folder.delete()
    return profile


def pipeline_profile(trial: MadeTrial, found: PhasedEvents) -> PipelineProfile:
    """Return the profile that the events of a trial make.

    Raises:
        TrialError: There are too few steps.
    """
    steps = batch_times([window.durations_s for window in found.train])
    if steps is None:
        raise TrialError(
            "too few steps were seen to profile the pipeline",
            where=str(trial.folder.path),
            remedy="The trial needs some hundred steps: see that the config does not end the training before.",
        )
    loading, replayed = batch_times(found.loads_s), batch_times([window.durations_s for window in found.replay])
    waits_s = [np.nan_to_num(window.waits_s) for window in found.train if window.waits_s is not None]
    idle = None
    if len(waits_s) == len(found.train):
        idle = min(1.0, float(sum(map(np.sum, waits_s))) / sum(window.time_s for window in found.train))
    samples = [window.samples.mean() for window in found.train if window.samples is not None]
    unseen = found.why_no_load or "the trainer ended before, or its loader is not seen"
    measurement, stages = trial.measurement, read_loading_stages(trial.folder.path / FILE)
    return PipelineProfile(
        batch_samples=float(np.mean(samples)) if samples else found.load_samples,
        loading=loading,
        why_no_loading=None if loading else unseen,
        waits=batch_times(waits_s) if idle is not None else None,
        steps=steps,
        replayed=replayed,
        idle_fraction=idle,
        gain_if_free=steps.mean_ms / replayed.mean_ms if replayed and replayed.mean_ms else None,
        loading_stages=stages,
        stages=measurement.stages if measurement else None,
        gpu_utilization=measurement.gpu_utilization if measurement else None,
        sentence=_sentence(steps, loading, replayed, idle, stages),
    )


def _sentence(
    steps: BatchTimes,
    loading: BatchTimes | None,
    replayed: BatchTimes | None,
    idle: float | None,
    stages: Sequence[LoadingStage],
) -> str:
    share = percent(idle or 0.0)
    if loading is None and idle is not None:
        return f"The step waits {share} of the time; how fast the loader is alone was not measured."
    if loading is None:
        return "Neither waits nor the loader alone can be seen with this trainer."
    computing_ms = min(replayed.mean_ms, steps.mean_ms) if replayed else steps.mean_ms * (1.0 - (idle or 0.0))
    rates = (
        f"alone, the loader gives {1000.0 / loading.mean_ms:.3g} batches/s and the steps take "
        f"{1000.0 / computing_ms:.3g} batches/s"
    )
    if computing_ms < 0.9 * loading.mean_ms:  # rate of the loader as a part of the steps' below which it is the limit
        said = "Loading is the limit"
    elif idle is not None and idle >= 0.05:  # share of the time from which on waiting is worth a word
        said = "Loading is fast enough on its own, and not beside the steps, or not evenly"
    else:
        said = "The loader keeps up"
    if idle is None:
        return f"{said}: {rates}."
    waits = f"the step waits {share} of the time, {60.0 * idle:.3g} s of each minute"
    said = f"{said}: {rates}, and {waits}."
    if idle < 0.05:
        return said
    if first := max(stages, default=None, key=lambda stage: stage.fraction):
        without_ms = max(computing_ms, loading.mean_ms * (1.0 - first.fraction))
        said = (
            f"{said} Mend {first.name} first, {percent(first.fraction)} of loading: at most "
            f"{steps.mean_ms / without_ms:.2f}x."
        )
    return f"{said} If loading cost nothing: {steps.mean_ms / computing_ms:.2f}x."


def _is_over(_folder: Path, events: Sequence[TraineeEvent], now_s: float) -> bool:
    """Return whether all phases were gone through often enough, or there are none and plain training was seen."""
    changes = [event for event in events if event.kind == "phase"]
    if changes:
        alone = now_s - changes[-1].t_s > _PLAIN_S  # all others were left out
        return alone or phased_events(events).cycles >= 3
    steps = [event for event in events if event.kind == "step"]
    return len(steps) > _PLAIN_STEPS and now_s - steps[0].t_s > _PLAIN_S


def _measured(_folder: Path, events: Sequence[TraineeEvent]) -> Window | None:
    windows = phased_events(events).train
    return max(windows, key=lambda window: window.time_s) if windows else steady_window(events)


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """Cycle in the times of successive batches.

    Attributes:
        slow_ms: Mean time of the slowest place in it.
        others_ms: Mean time of the other places.
    """

    batches: float
    slow_ms: float
    others_ms: float


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Spread of the times of batches.

    Attributes:
        variation: Standard deviation as a part of the mean; None where that is 0.
        cycle: Cycle that they go in; None if none was found.
    """

    batches: int
    mean_ms: float
    sd_ms: float
    min_ms: float
    max_ms: float
    median_ms: float
    p95_ms: float
    p99_ms: float
    variation: float | None
    cycle: Cycle | None


def batch_times(stretches_s: Sequence[Series]) -> BatchTimes | None:
    """Return the spread of times; None if there are fewer than two.

    Args:
        stretches_s: Times of successive batches in seconds, in stretches between which others came.
    """
    stretches_ms = [1000.0 * stretch for stretch in stretches_s if len(stretch)]
    if sum(len(stretch) for stretch in stretches_ms) < 2:
        return None
    all_ms = np.concatenate(stretches_ms)
    mean_ms, sd_ms = float(all_ms.mean()), float(all_ms.std(ddof=1))
    median_ms, p95_ms, p99_ms = (float(value) for value in np.percentile(all_ms, (50, 95, 99)))
    variation = sd_ms / mean_ms if mean_ms > 0 else None
    return BatchTimes(
        batches=len(all_ms),
        mean_ms=mean_ms,
        sd_ms=sd_ms,
        min_ms=float(all_ms.min()),
        max_ms=float(all_ms.max()),
        median_ms=median_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        variation=variation,
        cycle=_cycle(stretches_ms) if variation is not None and variation >= 0.1 else None,
    )


def _cycle(stretches_ms: Sequence[Series]) -> Cycle | None:
    long_enough = [stretch for stretch in stretches_ms if len(stretch) >= 24]
    if not long_enough:
        return None
    rows = []
    for stretch in long_enough:
        # quantile above which times count as this one: a single long batch is no cycle
        clipped = np.minimum(stretch, max(np.quantile(stretch, 0.98), 3.0 * np.median(stretch)))
        rows.append(clipped - clipped.mean())
    batches = period_of(rows)
    if batches is None or batches < 2.0 - 0.1:
        return None
    longest = int(np.argmax([len(row) for row in rows]))
    row = rows[longest]
    means, place = _by_place(row, batches)
    # share of the variance that the place in the cycle explains, beyond what it does by chance: bursts may peak at some
    # lag by chance
    by_chance = (len(means) - 1) / (len(row) - 1)
    if (float(means[place].var() / row.var()) - by_chance) / (1.0 - by_chance) < 0.3:
        return None
    means, _ = _by_place(long_enough[longest], batches)
    slowest = int(means.argmax())
    return Cycle(batches=batches, slow_ms=float(means[slowest]), others_ms=float(np.delete(means, slowest).mean()))


def _by_place(row: Series, batches: float) -> tuple[Series, NDArray[np.intp]]:
    whole = round(batches)  # a period of 8 may be found to be 7.98, and would drift
    # of the period, as far as it may be off a whole number of batches
    exact = whole if abs(batches - whole) <= 0.03 * batches else batches
    place = np.asarray(np.floor(np.arange(len(row)) % exact), dtype=np.intp)
    return np.array([row[place == one].mean() for one in range(int(place.max()) + 1)]), place


@dataclass(frozen=True, kw_only=True)
class PhasedEvents:
    """Steps and loads of a trial.

    Attributes:
        replay: Steady windows of training on kept batches.
        loads_s: Time of each batch that was drawn without a step, by stretch, without those that were ready before.
        load_samples: Samples in these batches; None if not known.
        why_no_load: Reason that none was drawn; None if some were, or none is known.
        cycles: Number of stretches of training that are over.
    """

    train: tuple[Window, ...]
    replay: tuple[Window, ...]
    loads_s: tuple[Series, ...]
    load_samples: float | None
    why_no_load: str | None
    cycles: int


def phased_events(events: Sequence[TraineeEvent]) -> PhasedEvents:
    """Sort the events of a trial by phase; without phases all of it is training."""
    stream = main_stream(events)
    own = [event for event in events if event.stream == stream]
    stretches: list[tuple[TrialPhase, list[TraineeEvent]]] = [(TrialPhase.TRAIN, [])]
    for event in own:
        if event.kind == "phase" and event.phase is not None:
            stretches.append((event.phase, []))
        stretches[-1][1].append(event)
    has_phases = len(stretches) > 1
    # What comes before the first phase is the warm-up.
    counted = stretches[1:] if has_phases else stretches
    loads = [[one for one in within if one.kind == "load"] for phase, within in counted if phase is TrialPhase.LOAD]
    known = [one.samples / one.batches for load in loads for one in load if one.samples is not None and one.batches]
    reasons = [event.text for event in own if event.kind == "unphased" and event.text]
    return PhasedEvents(
        train=_windows(counted, TrialPhase.TRAIN),
        replay=_windows(counted, TrialPhase.REPLAY),
        loads_s=tuple(times for times in (_batches_s(load) for load in loads) if len(times)),
        load_samples=float(np.mean(known)) if known else None,
        why_no_load=next((reason for reason in reasons if reason.startswith("load")), reasons[-1] if reasons else None),
        cycles=sum(phase is TrialPhase.TRAIN for phase, _ in counted[:-1]) if has_phases else 0,
    )


def _windows(stretches: Sequence[tuple[TrialPhase, list[TraineeEvent]]], phase: TrialPhase) -> tuple[Window, ...]:
    return tuple(window for one, within in stretches if one is phase and (window := steady_window(within)) is not None)


def _batches_s(loads: Sequence[TraineeEvent]) -> Series:
    known = [(load.duration_s, load.batches) for load in loads if load.duration_s is not None and load.batches]
    each_s = np.array([duration_s / batches for duration_s, batches in known for _ in range(batches)])
    drawn_s = np.cumsum(each_s)
    # of the drawing in a phase: what was ready before goes at once
    return np.asarray(each_s[drawn_s > 0.15 * drawn_s[-1:].sum()])


FILE = "loading_stages.json"
VERSION = 1


class _Sums(msgspec.Struct, frozen=True):
    """Sums of the calls of a stage, as a trainer writes them."""

    calls: Annotated[int, Meta(ge=1, le=10**12)]
    busy_s: Annotated[float, Meta(ge=0.0, le=1e9)]


class _Stages(msgspec.Struct, frozen=True):
    v: Literal[1]
    stages: Annotated[dict[Annotated[str, Meta(pattern="^[a-z][a-z ]{0,30}$")], _Sums], Meta(max_length=32)]


@dataclass(frozen=True, kw_only=True)
class LoadingStage:
    """Stage of loading an example.

    Attributes:
        mean_ms: Mean time of one, on the worker that did it.
    """

    name: str
    examples: int
    mean_ms: float
    fraction: float


def read_loading_stages(path: Path) -> tuple[LoadingStage, ...]:
    """Return the stages in a file, in the order of their first call; empty if there is no file, or it holds rubbish."""
    try:
        stages = msgspec.json.decode(read_beginning(path, 1 << 16), type=_Stages).stages
    except ValueError:
        return ()
    all_s = sum(stage.busy_s for stage in stages.values())
    return tuple(
        LoadingStage(
            name=name,
            examples=stage.calls,
            mean_ms=1000.0 * stage.busy_s / stage.calls,
            fraction=stage.busy_s / all_s if all_s else 0.0,
        )
        for name, stage in stages.items()
    )


# Grid of batch sizes and workers: one short trial of plain training for each pair.


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
    batch, workers = _knob(problem, "samples"), _knob(problem, "workers")
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
    sd = math.hypot(cell.relative_sd or 0.0, fastest.relative_sd or 0.0)
    return max(0.03, 2.0 * sd)  # nobody pays for less with more workers, or another training


def values_of(knob: Knob, cores: int) -> list[Scalar]:
    """Return the values of a knob to try: today's, and those next to it that are not absurd."""
    today = knob.index(knob.baseline) or 0
    near = sorted(range(len(knob.choices)), key=lambda place: (abs(place - today), -place))
    most = 2 * cores if traits_of(knob).counts == "workers" else math.inf
    fit = [place for place in near if place == today or not _is_beyond(knob.choices[place], most)]
    return [knob.choices[place] for place in fit[:3]]


def _is_beyond(value: Scalar, most: float) -> bool:
    return isinstance(value, int) and value > most


def _knob(problem: Problem, counts: str) -> Knob | None:
    for knob in problem.space.knobs:
        row = row_of(knob) or known_knob(knob.path, knob.baseline)
        if row is not None and row.counts == counts:
            return knob
    return None


def _cell(problem: Problem, trials: ProfileTrials, pair: Mapping[str, Scalar], number: int) -> Cell:
    values = {**problem.space.baseline, **pair}
    trial = trials.make(
        TrialRequest(
            label=f"grid{number}",
            values=values,
            is_over=_is_long_enough,
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


def _is_long_enough(_folder: Path, events: Sequence[TraineeEvent], _now_s: float) -> bool:
    window = steady_window(events)
    return window is not None and window.time_s >= 5.0 and window.steps >= 20

"""Checks of the environment of a training: other processes, throttling, memory, settings in force."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

from autotune.clock import format_duration
from autotune.config.keys import scalar_text
from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, capitalized, issue, percent
from autotune.events import Event, TrialProgress
from autotune.measure.phases import without
from autotune.measure.probe import MemorySeries
from autotune.measure.ranks import straggler
from autotune.measure.window import growth_bytes_per_s
from autotune.records import Machine, Measurement, Ratio, Scalar, TraineeEvent, TrialRecord, Validity
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob
from autotune.space.space import Space

# The machine: other processes, throttled clocks, memory.


class BusyReadings:
    """Readings of the CPU time of all processes during trials; a consumer of events."""

    def __init__(self, now_s: Callable[[], float], busy_s: Callable[[], float | None]) -> None:
        self._now_s = now_s
        self._busy_s = busy_s
        self._readings: list[tuple[float, float]] = []  # time, CPU time until then

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialProgress) and (busy_s := self._busy_s()) is not None:
            self._readings.append((self._now_s(), busy_s))

    def foreign_cores(self, t0_s: float, t1_s: float, own_cores: float | None) -> float | None:
        """Return the mean number of cores used by other processes than the trial; None if unknown."""
        inside = [reading for reading in self._readings if t0_s <= reading[0] <= t1_s]
        if len(inside) < 2 or own_cores is None:
            return None
        (begin_s, before_s), (end_s, after_s) = inside[0], inside[-1]
        return max(0.0, (after_s - before_s) / (end_s - begin_s) - own_cores) if end_s > begin_s else None


def judge_ranks(measurement: Measurement) -> CheckResult:
    """Judge whether the ranks of a training wait for one of them."""
    found, count = straggler(measurement.ranks), len(measurement.ranks)
    if found is None:
        return CheckResult(check="ranks", sentence=f"None of the {count} ranks delays the others." if count else "")
    sentence = f"{capitalized(found.sentence)}."
    remedy = (
        "Give that rank as much data and as many cores as the others: check its shard, its disk and its node."
        if found.waits_for_data
        else "Check the other work of that rank (logs, checkpoints, evaluation), and its node."
    )
    numbers = {"time_fraction": found.excess, "rank_fraction": found.fraction, "others_fraction": found.others}
    numbers["is_input"] = float(found.waits_for_data)
    bound = without(found.excess, 0.3 * found.excess)
    return CheckResult(
        check="ranks",
        issues=(issue("ranks", sentence, remedy, numbers=numbers, bound=bound, limit=Limit.STRAGGLER),),
    )


def judge_neighbours(
    foreign_cores: Sequence[float], machine_cores: float, own_cores: float | None, trials: Sequence[TrialRecord]
) -> CheckResult:
    """Judge whether other processes or throttling slowed the trials down."""
    issues = []
    # less may be a desktop, a monitor, or this program itself
    if foreign_cores and median(foreign_cores) > 0.25 * machine_cores:
        issues.append(_on_the_cpu(median(foreign_cores), machine_cores, own_cores))
    issues += _on_the_gpus(trials)
    if not issues and not foreign_cores:
        return CheckResult(check="neighbours", why_not="the CPU time of other processes is unknown here")
    return CheckResult(check="neighbours", issues=tuple(issues))


def _on_the_cpu(foreign: float, cores: float, own: float | None) -> Issue:
    is_short = own is not None and own + foreign > 0.9 * cores
    most = cores / (cores - foreign) if foreign < cores else None
    need = "the trainer needs them too" if is_short else "the trainer does not need them"
    return issue(
        "neighbours",
        f"Other processes keep {foreign:.1f} of {cores:g} cores busy, and {need}: the measured speed is not that of an "
        "idle machine.",
        severity=Severity.WARNING if is_short else Severity.NOTE,
        numbers={"foreign_cores": foreign, "cores": cores},
        # upper bound: all of their time for the trainer, which may not scale so far
        bound=Ratio(ratio=most, low=1.0, high=most) if is_short and most else None,
        limit=Limit.NEIGHBOUR if is_short else None,
    )


def _on_the_gpus(trials: Sequence[TrialRecord]) -> list[Issue]:
    """Return issues of disturbed trials, else of other load and throttling of the GPUs; at most two."""
    issues = []
    for validity, limit in ((Validity.CONTAMINATED, Limit.NEIGHBOUR), (Validity.THROTTLED, Limit.THROTTLING)):
        spoiled = [trial for trial in trials if trial.validity is validity]
        if spoiled:
            sentence = f"{len(spoiled)} of {len(trials)} trials were disturbed: {spoiled[0].detail}."
            issues.append(issue("neighbours", sentence, numbers={"trials": float(len(spoiled))}, limit=limit))
    if issues:
        return issues
    for figures in (gpu.figures for trial in trials if trial.measurement for gpu in trial.measurement.gpus):
        found = partial(issue, "neighbours", place=figures.uuid)
        throttled, foreign = figures.throttled_fraction or 0.0, figures.foreign_fraction or 0.0
        if throttled > 0.05:  # of the readings
            share = percent(throttled)
            held = f"The clocks of {figures.name} are throttled by heat or a power brake for {share} of the time."
            issues.append(found(held, limit=Limit.THROTTLING))
        elif foreign > 0.05:  # of the time; the limit of `gpu.contamination` for trials
            used = f"Other processes use {figures.name} for {percent(foreign)} of the time."
            issues.append(found(used, limit=Limit.NEIGHBOUR))
    return issues[:2]


_NEARLY_FULL = 0.92  # above, an unusually large batch or a growing cache ends the training
_MUCH = 0.01  # of the memory, grown within a trial: more than warming up
_GIB = 1 << 30


def judge_memory(
    machine: Machine,
    measurement: Measurement | None,
    series: tuple[MemorySeries, MemorySeries],
    batches: Sequence[tuple[float, Measurement]],
) -> CheckResult:
    """Judge how much memory is left.

    Args:
        series: Memory of the host and of the fullest GPU over a longer trial.
        batches: Batch sizes with a measurement each, for the largest safe one.
    """
    if measurement is None:
        return CheckResult(check="memory-room", why_not="no trial has a measurement")
    gpu_total = measurement.fullest_gpu.memory_total_bytes if measurement.fullest_gpu else None
    largest = largest_batch(batches, gpu_total) if gpu_total else None
    # TensorFlow and JAX reserve all GPU memory: it is full only if it depends on the batch size.
    places = (
        ("The host's memory", measurement.peak_memory_bytes, machine.memory_bytes, series[0], True),
        ("The GPU's memory", measurement.gpu_memory_bytes, gpu_total, series[1], largest is not None),
    )
    issues, seen = [], []
    for what, peak, total, over_time, tells_full in places:
        if peak is None or not total:
            continue
        seen.append(f"{what} is used up to {peak / _GIB:.1f} of {total / _GIB:.1f} GiB.")
        growth = growth_bytes_per_s(over_time) or 0.0
        full_s = (total - peak) / growth if growth > 0 else math.inf
        found = partial(issue, "memory-room", limit=Limit.MEMORY)
        numbers = {"peak_bytes": float(peak), "peak_fraction": peak / total}
        if peak > _NEARLY_FULL * total and tells_full:
            sentence = f"{what} is nearly full: {percent(peak / total)} of {total / _GIB:.1f} GiB."
            remedy = "Use a smaller batch with gradient accumulation, or prefetch less."
            issues.append(found(sentence, remedy, numbers=numbers))
        elif full_s < 24 * 3600.0:
            sentence = (
                f"{what} grows by {growth * 60 / (1 << 20):.0f} MiB a minute: it would be full after "
                f"{format_duration(full_s)}."
            )
            # a few caches that still fill look the same in a short trial
            is_much = growth * (over_time[-1][0] - over_time[0][0]) > _MUCH * total
            severity = Severity.WARNING if is_much else Severity.NOTE
            remedy = (
                "Look for data kept from each step: losses with their graph, operations added to a graph in the loop, "
                "growing lists, an unlimited cache."
            )
            issues.append(found(sentence, remedy, severity=severity, numbers=numbers))
    if largest is not None:
        seen.append(f"The largest safe batch size is about {largest}.")
    if not seen:
        return CheckResult(check="memory-room", why_not="the memory in use is unknown")
    return CheckResult(check="memory-room", issues=tuple(issues), sentence=" ".join(seen))


def largest_batch(batches: Sequence[tuple[float, Measurement]], total_bytes: int) -> int | None:
    """Return the largest safe power-of-two multiple of the smallest batch, by a line through two trials.

    None if unknown, or if memory does not depend on the batch size, e.g. because the framework reserves it all.
    """
    known = sorted((batch, one.gpu_memory_bytes) for batch, one in batches if one.gpu_memory_bytes is not None)
    if len(known) < 2:
        return None
    (small, least), (large, most) = known[0], known[-1]
    slope = (most - least) / (large - small) if large > small else 0.0
    if slope <= 0:
        return None
    limit = small + (_NEARLY_FULL * total_bytes - least) / slope
    return int(small * 2 ** math.floor(math.log2(limit / small))) if limit >= small else None


# Settings in force in the trainer's process against the config: threads, precision, eager mode, devices.


def judge_in_force(events: Sequence[TraineeEvent], space: Space, machine: Machine) -> CheckResult:
    """Judge whether the settings in the trainer's process, reported by a trial in phases, match the config."""
    reported = [event.settings for event in events if event.kind == "in_force" and event.settings]
    if not reported:
        return CheckResult(check="in-force", why_not="no framework in the trainer's process reported its settings")
    settings = reported[-1]
    issues = []
    gpus = [settings[name] for name in ("tensorflow.gpus", "torch.gpus") if name in settings]
    if machine.gpus and gpus and not any(gpus):
        name = machine.gpus[0].name
        unused = f"{name} is present, but the trainer's framework uses no GPU: it trains on the CPU."
        issues.append(issue("in-force", unused, severity=Severity.ERROR, limit=Limit.STEP))
    for knob in space.knobs:
        for there in _differences(knob, settings):
            sentence = f"{knob.path}: {scalar_text(knob.baseline)} is not in force: {there}."
            limit = Limit.HOST if knob.kind == "graph_mode" else None
            issues.append(issue("in-force", sentence, place=knob.path, limit=limit))
    reports = ", ".join(f"{name} {scalar_text(value)}" for name, value in settings.items())
    return CheckResult(check="in-force", issues=tuple(issues), sentence=f"{reports}.")


def _differences(knob: Knob, settings: Mapping[str, Scalar]) -> Iterator[str]:
    """Yield reported settings that differ from a knob's current value."""
    value = knob.baseline
    for name in traits_of(knob).reported_as:
        there = settings.get(name)
        if isinstance(value, int) and value > 0 and there is not None and there != value:
            yield f"{name} is {scalar_text(there)}"
    policy, half = settings.get("keras.precision"), ("mixed_float16", "mixed_bfloat16")
    if knob.kind == "precision" and isinstance(value, str) and policy is not None:
        # A trainer may cast itself; the reverse never happens by accident.
        if value == "float32" and policy in half:
            yield f"Keras' policy is {scalar_text(policy)}"
        elif value in half and policy != value:
            yield f"Keras' policy is {scalar_text(policy)}; the trainer may cast itself"
    if knob.kind == "graph_mode" and value is True and settings.get("tensorflow.runs_eagerly") is True:
        yield "TensorFlow runs functions eagerly, op by op"

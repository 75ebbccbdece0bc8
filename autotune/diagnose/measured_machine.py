"""Check of neighbours: what others did on the CPU and the GPUs during the trials, and whether clocks were held down."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.clock import format_duration
from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, percent
from autotune.events import Event, TrialProgress
from autotune.measure.probe import MemorySeries
from autotune.measure.window import growth_bytes_per_s
from autotune.messages import Message, _, listed
from autotune.records import GpuMeasurement, Machine, Measurement, Ratio, TrialRecord, Validity

NEIGHBOURS = "neighbours"


@dataclass(frozen=True, kw_only=True)
class BusyReading:
    """CPU time of all processes up to a moment.

    Attributes:
        busy_s: See `measure.cpu_load.BusyCpu.busy_s`.
    """

    t_s: float
    busy_s: float


class BusyReadings:
    """Readings of the machine's CPU time while trials go on; a consumer of events.

    Args:
        busy_s: Returns the CPU time of all processes; None where the kernel does not tell it.
    """

    def __init__(self, now_s: Callable[[], float], busy_s: Callable[[], float | None]) -> None:
        self._now_s = now_s
        self._busy_s = busy_s
        self._readings: list[BusyReading] = []

    def __call__(self, event: Event) -> None:
        """Take a reading with each sign of life of a trial."""
        if isinstance(event, TrialProgress) and (busy_s := self._busy_s()) is not None:
            self._readings.append(BusyReading(t_s=self._now_s(), busy_s=busy_s))

    def foreign_cores(
        self, t0_s: float, t1_s: float, own_cores: Callable[[float, float], float | None]
    ) -> float | None:
        """Return the cores that others kept busy between two times, on average; None if that is not known.

        Args:
            own_cores: Returns the cores that the trial kept busy between two times.
        """
        inside = [reading for reading in self._readings if t0_s <= reading.t_s <= t1_s]
        if len(inside) < 2 or inside[-1].t_s <= inside[0].t_s:
            return None
        first, last = inside[0], inside[-1]
        own = own_cores(first.t_s, last.t_s)
        if own is None:
            return None
        return max(0.0, (last.busy_s - first.busy_s) / (last.t_s - first.t_s) - own)


def judge_neighbours(
    foreign_cores: Sequence[float], machine_cores: float, own_cores: float | None, trials: Sequence[TrialRecord]
) -> CheckResult:
    """Judge whether others, or heat, have slowed the trials down.

    Args:
        foreign_cores: Cores that others kept busy during each trial.
        own_cores: Cores that training kept busy; None if that is not known.
    """
    issues = []
    # of the machine's cores: below it a desktop, a monitor, or this program itself
    if foreign_cores and median(foreign_cores) > 0.25 * machine_cores:
        issues.append(_on_the_cpu(median(foreign_cores), machine_cores, own_cores))
    issues += _on_the_gpus(trials)
    why_not = "" if foreign_cores else _("the CPU time of others is not known here")
    return CheckResult(check=NEIGHBOURS, issues=tuple(issues), why_not="" if issues else why_not)


def _on_the_cpu(foreign: float, cores: float, own: float | None) -> Issue:
    wanted = None if own is None else own + foreign
    is_short = wanted is not None and wanted > 0.9 * cores
    wants = _("the trainer wants them too")
    costs = wants if is_short else _("the trainer leaves them free")
    return Issue(
        check=NEIGHBOURS,
        severity=Severity.WARNING if is_short else Severity.NOTE,
        sentence=_(
            "Other processes keep {foreign:.1f} of {cores:g} cores busy, and {costs}: what is measured now is not the "
            "speed of an idle machine.",
            foreign=foreign,
            cores=cores,
            costs=costs,
        ),
        numbers={"foreign_cores": foreign, "cores": cores},
        # At most as if all their time were the trainer's: it may not scale so far.
        bound=Ratio(ratio=cores / (cores - foreign), low=1.0, high=cores / (cores - foreign))
        if is_short and foreign < cores
        else None,
        limit=Limit.NEIGHBOUR if is_short else None,
    )


def _on_the_gpus(trials: Sequence[TrialRecord]) -> list[Issue]:
    issues = []
    for validity, limit in ((Validity.CONTAMINATED, Limit.NEIGHBOUR), (Validity.THROTTLED, Limit.THROTTLING)):
        spoiled = [trial for trial in trials if trial.validity is validity]
        if spoiled:
            issues.append(
                Issue(
                    check=NEIGHBOURS,
                    severity=Severity.WARNING,
                    sentence=_(
                        "{spoiled} of {trials} trials were disturbed: {detail}.",
                        spoiled=len(spoiled),
                        trials=len(trials),
                        detail=spoiled[0].detail,
                    ),
                    numbers={"trials": float(len(spoiled))},
                    limit=limit,
                )
            )
    if not issues:
        issues += [issue for gpu in _devices(trials) if (issue := _on_one(gpu))]
    return issues[:2]


def _devices(trials: Sequence[TrialRecord]) -> list[GpuMeasurement]:
    return [gpu for trial in trials if trial.measurement for gpu in trial.measurement.gpus]


def _on_one(gpu: GpuMeasurement) -> Issue | None:
    figures = gpu.figures
    if (figures.throttled_fraction or 0.0) > 0.05:  # of the readings
        return Issue(
            check=NEIGHBOURS,
            severity=Severity.WARNING,
            sentence=_(
                "Heat or a power brake holds the clocks of {gpu} down for {share} of the time.",
                gpu=figures.name,
                share=percent(figures.throttled_fraction or 0.0),
            ),
            place=figures.uuid,
            limit=Limit.THROTTLING,
        )
    if (figures.foreign_fraction or 0.0) > 0.05:  # of the time; as `gpu.contamination` has it for trials
        return Issue(
            check=NEIGHBOURS,
            severity=Severity.WARNING,
            sentence=_(
                "Other processes use {gpu} for {share} of the time.",
                gpu=figures.name,
                share=percent(figures.foreign_fraction or 0.0),
            ),
            place=figures.uuid,
            limit=Limit.NEIGHBOUR,
        )
    return None


# Check of memory: whether that of the host or of a GPU is nearly full, and the largest batch that would be safe.


MEMORY_ROOM = "memory-room"
_NEARLY_FULL = 0.92  # of the memory: an odd batch, or a cache that grows, ends the training
_GIB = 1 << 30


def judge_memory(
    machine: Machine,
    measurement: Measurement | None,
    series: tuple[MemorySeries, MemorySeries],
    batches: Sequence[tuple[float, Measurement]],
) -> CheckResult:
    """Judge how much room the memory leaves.

    Args:
        measurement: Numbers of a trial of today's config; None if there are none.
        series: Memory of the host, and of the fullest GPU, over a longer trial.
        batches: Batch sizes with the numbers of a trial of each, for the largest that is safe.
    """
    if measurement is None:
        return CheckResult(check=MEMORY_ROOM, why_not=_("no trial gave numbers"))
    gpu = measurement.fullest_gpu
    gpu_total = gpu.memory_total_bytes if gpu else None
    places = [
        (_("The host's memory"), measurement.peak_memory_bytes, machine.memory_bytes, series[0]),
        (_("The GPU's memory"), measurement.gpu_memory_bytes, gpu_total, series[1]),
    ]
    largest = largest_batch(batches, gpu_total) if gpu_total else None
    issues, seen = [], []
    for what, peak, total, over_time in places:
        if peak is None or not total:
            continue
        seen.append(
            _(
                "{what} is used up to {peak:.1f} of {total:.1f} GiB.",
                what=what,
                peak=peak / _GIB,
                total=total / _GIB,
            )
        )
        growth = growth_bytes_per_s(over_time) or 0.0
        full_s = (total - peak) / growth if growth > 0 else math.inf
        # TensorFlow and JAX take all of a GPU's memory at once: it is full only if it depends on the batch.
        may_be_reserved = total == gpu_total and largest is None
        if peak > _NEARLY_FULL * total and not may_be_reserved:
            full = _(
                "{what} is nearly full: {share} of {total:.1f} GiB.",
                what=what,
                share=percent(peak / total),
                total=total / _GIB,
            )
            issues.append(_issue(full, peak))
        elif full_s < 24 * 3600.0:
            grows = _(
                "{what} grows by {growth:.0f} MiB a minute: it would be full after {time}.",
                what=what,
                growth=growth * 60 / (1 << 20),
                time=format_duration(full_s),
            )
            issues.append(_issue(grows, peak))
    if largest is not None:
        seen.append(_("The largest batch that is safe is about {batch}.", batch=largest))
    if not seen:
        return CheckResult(check=MEMORY_ROOM, why_not=_("the memory in use is not known"))
    return CheckResult(check=MEMORY_ROOM, issues=tuple(issues), sentence=listed(" ", seen))


def largest_batch(batches: Sequence[tuple[float, Measurement]], total_bytes: int) -> int | None:
    """Return the largest safe power-of-two multiple of the smallest batch, by a line through two trials.

    Args:
        batches: Batch sizes with the numbers of a trial of each; two at least are needed.

    Returns:
        None where it is not known, or memory does not depend on the batch, as where a framework takes it all.
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


def _issue(sentence: Message, peak_bytes: int) -> Issue:
    return Issue(
        check=MEMORY_ROOM,
        severity=Severity.WARNING,
        sentence=sentence,
        numbers={"peak_bytes": float(peak_bytes)},
        limit=Limit.MEMORY,
    )

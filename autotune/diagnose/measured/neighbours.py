"""Check of neighbours: what others did on the CPU and the GPUs during the trials, and whether clocks were held down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity
from autotune.diagnose.messages.message import said
from autotune.diagnose.wording import percent
from autotune.events import Event, TrialProgress
from autotune.records import GpuMeasurement, TrialRecord, Validity
from autotune.results import Ratio

CHECK = "neighbours"

_MUCH_CPU = 0.25  # of the machine's cores: below it a desktop, a monitor, or this program itself
_MUCH_GPU = 0.05  # of the time; as `gpu.contamination` has it for trials
_THROTTLED = 0.05  # of the readings


@dataclass(frozen=True, kw_only=True)
class BusyReading:
    """CPU time of all processes up to a moment.

    Attributes:
        t_s: The moment.
        busy_s: See `measure.cpu_load.BusyCpu.busy_s`.
    """

    t_s: float
    busy_s: float


class BusyReadings:
    """Readings of the machine's CPU time while trials go on; a consumer of events.

    Args:
        now_s: Returns the time.
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
            t0_s: Begin.
            t1_s: End.
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
        machine_cores: Cores that there are.
        own_cores: Cores that training kept busy; None if that is not known.
        trials: The trials.
    """
    issues = []
    if foreign_cores and median(foreign_cores) > _MUCH_CPU * machine_cores:
        issues.append(_on_the_cpu(median(foreign_cores), machine_cores, own_cores))
    issues += _on_the_gpus(trials)
    why_not = "" if foreign_cores else said("neighbours.unknown", "the CPU time of others is not known here")
    return CheckResult(check=CHECK, issues=tuple(issues), why_not="" if issues else why_not)


def _on_the_cpu(foreign: float, cores: float, own: float | None) -> Issue:
    """Return the issue of others on the CPU; they cost something only where the cores are all in use."""
    wanted = None if own is None else own + foreign
    is_short = wanted is not None and wanted > 0.9 * cores
    wants = said("neighbours.wants", "the trainer wants them too")
    costs = wants if is_short else said("neighbours.leaves", "the trainer leaves them free")
    return Issue(
        check=CHECK,
        severity=Severity.WARNING if is_short else Severity.NOTE,
        sentence=said(
            "neighbours.cpu",
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
                    check=CHECK,
                    severity=Severity.WARNING,
                    sentence=said(
                        "neighbours.disturbed",
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
    if (figures.throttled_fraction or 0.0) > _THROTTLED:
        return Issue(
            check=CHECK,
            severity=Severity.WARNING,
            sentence=said(
                "neighbours.throttled",
                "Heat or a power brake holds the clocks of {gpu} down for {share} of the time.",
                gpu=figures.name,
                share=percent(figures.throttled_fraction or 0.0),
            ),
            place=figures.uuid,
            limit=Limit.THROTTLING,
        )
    if (figures.foreign_fraction or 0.0) > _MUCH_GPU:
        return Issue(
            check=CHECK,
            severity=Severity.WARNING,
            sentence=said(
                "neighbours.gpu",
                "Other processes use {gpu} for {share} of the time.",
                gpu=figures.name,
                share=percent(figures.foreign_fraction or 0.0),
            ),
            place=figures.uuid,
            limit=Limit.NEIGHBOUR,
        )
    return None

"""Machines of a study: how much faster one is than another, and the trials of all on one scale.

Machines of one class differ by some percent. Their ln speeds are taken as the sum of a point's and a machine's, fitted
to all trials by least squares; a machine's part is shrunk towards nothing as long as few trials tell of it. Every
machine measures today's config, so all have a point in common.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from autotune.records import TrialRecord
from autotune.sampler.observations import TYPICAL_CV

_BETWEEN_SD = 0.2  # standard deviation of ln speed between machines of a class
_ROUNDS = 100
_PRECISE = 1e-6


def hosts_of(records: Iterable[TrialRecord]) -> dict[str, str]:
    """Return the host of each machine, for people; of machines whose hosts have one name, the machine's name too."""
    return hosts_told_apart((trial.machine, str(trial.conditions.get("host") or "?")) for trial in records)


def hosts_told_apart(machines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the host of each machine, for people, so that no two machines have the same.

    Args:
        machines: Pairs of a machine's name and its host's; a pair may come more than once.
    """
    hosts = dict(machines)
    machines_of = Counter(hosts.values())
    return {
        machine: f"{host} ({machine})" if machines_of[host] > 1 and machine else host for machine, host in hosts.items()
    }


def on_one_scale(records: Sequence[TrialRecord], reference: str | None = None) -> Sequence[TrialRecord]:
    """Return trials with the speeds that they would have had on one machine.

    Args:
        records: Trials of a study.
        reference: The machine; None for that of the first trial with numbers.

    Returns:
        The same trials where all were made on one machine.
    """
    offsets = machine_offsets(records)
    if len(offsets) < 2:
        return records
    unit = offsets.get(reference or "", next(iter(offsets.values())))
    return [_scaled(trial, math.exp(unit - offsets.get(trial.machine, unit))) for trial in records]


def machine_offsets(records: Sequence[TrialRecord]) -> dict[str, float]:
    """Return the ln speed of each machine, relative to their mean; those without comparable trials are left out."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for trial in records:
        if measured := trial.comparable:
            speeds.setdefault((trial.machine, trial.point), []).append(math.log(measured.speed))
    offsets = dict.fromkeys((machine for machine, _ in speeds), 0.0)
    if len(offsets) < 2:
        return offsets
    cells = [(machine, point, fmean(some), len(some)) for (machine, point), some in speeds.items()]
    pull = (TYPICAL_CV / _BETWEEN_SD) ** 2
    for _ in range(_ROUNDS):
        levels = _weighted([(point, mean - offsets[machine], count) for machine, point, mean, count in cells])
        rest = [(machine, mean - levels[point], count) for machine, point, mean, count in cells]
        new = _weighted([*rest, *((machine, 0.0, pull) for machine in offsets)])
        change = max(abs(new[machine] - offsets[machine]) for machine in offsets)
        offsets = {machine: new[machine] for machine in offsets}
        if change < _PRECISE:
            break
    return offsets


def _weighted(values: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """Return the weighted mean of the values of each name, from (name, value, weight)."""
    sums: dict[str, tuple[float, float]] = {}
    for name, value, weight in values:
        total, weights = sums.get(name, (0.0, 0.0))
        sums[name] = total + weight * value, weights + weight
    return {name: total / weights for name, (total, weights) in sums.items()}


def _scaled(trial: TrialRecord, factor: float) -> TrialRecord:
    """Return a trial as it would have been on a machine that is faster by a factor."""
    measured = trial.measurement
    if measured is None or factor == 1.0:
        return trial
    filled = measured.filled_samples_per_s
    return replace(
        trial,
        measurement=replace(
            measured,
            samples_per_s=measured.samples_per_s * factor,
            filled_samples_per_s=None if filled is None else filled * factor,
            step_p50_s=measured.step_p50_s / factor,
            step_p95_s=measured.step_p95_s / factor,
        ),
    )

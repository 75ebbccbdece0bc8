"""Last minute of a trial, ten times a second: how long the step under way takes, its wait, and how busy the GPU is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from autotune.files import read_beginning
from autotune.measure.gpu.records import BusyWindows, of_line
from autotune.trial.folders import TrialFolder
from autotune.trial.step_files import StepReader

PER_S = 10
LONGEST_S = 60
_MOST_BYTES = 8 << 20

Series = Sequence[float | None]


def step_series(folder: Path) -> dict[str, Series] | None:
    """Return the series of a trial that has ended, the oldest value first; None for what is not known.

    Returns:
        ``step_ms``, ``wait_ms`` and ``gpu`` (0 to 1, the mean of the GPUs that were watched), of one length, `PER_S`
        values a second; None where fewer than two steps are kept.
    """
    reader, events = StepReader(folder), []
    while more := reader.poll():
        events += [one for one in more if one.kind == "step"]
    streams = Counter(one.stream for one in events)
    steps = [one for one in events if one.stream == streams.most_common(1)[0][0]]
    if len(steps) < 2:
        return None
    end_s = steps[-1].t_s
    begin_s = max(steps[0].t_s, end_s - LONGEST_S)
    pairs = list(pairwise(steps))
    durations = [(one.t_s, two.t_s, 1000.0 * (two.t_s - one.t_s)) for one, two in pairs]
    waits = [(one.t_s, two.t_s, 1000.0 * two.wait_s) for one, two in pairs if two.wait_s is not None]
    busy = list(_busy(TrialFolder(folder).samples))
    return {
        "step_ms": _sampled(durations, begin_s, end_s),
        "wait_ms": _sampled(waits, begin_s, end_s),
        "gpu": _sampled(busy, begin_s, end_s),
    }


Stretch = tuple[float, float, float]
"""Beginning, end, and a value that holds in between."""


def _busy(samples: Path) -> Iterable[Stretch]:
    for line in read_beginning(samples, _MOST_BYTES).decode("utf-8", "replace").splitlines():
        if isinstance(record := of_line(line), BusyWindows):
            yield from ((end_s - length_s, end_s, busy) for end_s, length_s, busy in record.windows)


def _sampled(stretches: Iterable[Stretch], begin_s: float, end_s: float) -> Series:
    """Return the mean of the stretches over each tenth of a second."""
    count = max(1, round(PER_S * (end_s - begin_s)))
    sums, times = [0.0] * count, [0.0] * count
    for from_s, to_s, value in stretches:
        first, last = PER_S * (max(from_s, begin_s) - begin_s), PER_S * (min(to_s, end_s) - begin_s)
        for place in range(int(first), min(count, int(last) + 1)):
            share = min(last, place + 1.0) - max(first, float(place))
            if share > 1e-6:  # what is left of the arithmetic
                sums[place] += value * share
                times[place] += share
    return [float(f"{total / time:.3g}") if time else None for total, time in zip(sums, times, strict=True)]

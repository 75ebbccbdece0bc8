"""Check of memory: whether that of the host or of a GPU is nearly full, and the largest batch that would be safe."""

import math
from collections.abc import Sequence

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity
from autotune.diagnose.messages.message import Message, listed, said
from autotune.diagnose.wording import percent
from autotune.durations import format_duration
from autotune.measure.memory_growth import growth_bytes_per_s
from autotune.measure.probe import MemorySeries
from autotune.records import Machine, Measurement

CHECK = "memory-room"

_NEARLY_FULL = 0.92  # of the memory: an odd batch, or a cache that grows, ends the training
_FULL_WITHIN_S = 24 * 3600.0
_GIB = 1 << 30


def judge_memory(
    machine: Machine,
    measurement: Measurement | None,
    series: tuple[MemorySeries, MemorySeries],
    batches: Sequence[tuple[float, Measurement]],
) -> CheckResult:
    """Judge how much room the memory leaves.

    Args:
        machine: The machine.
        measurement: Numbers of a trial of today's config; None if there are none.
        series: Memory of the host, and of the fullest GPU, over a longer trial.
        batches: Batch sizes with the numbers of a trial of each, for the largest that is safe.
    """
    if measurement is None:
        return CheckResult(check=CHECK, why_not=said("memory-room.no-numbers", "no trial gave numbers"))
    gpu = measurement.fullest_gpu
    gpu_total = gpu.memory_total_bytes if gpu else None
    places = [
        (said("memory-room.host", "The host's memory"), measurement.peak_memory_bytes, machine.memory_bytes, series[0]),
        (said("memory-room.gpu", "The GPU's memory"), measurement.gpu_memory_bytes, gpu_total, series[1]),
    ]
    largest = largest_batch(batches, gpu_total) if gpu_total else None
    issues, seen = [], []
    for what, peak, total, over_time in places:
        if peak is None or not total:
            continue
        seen.append(
            said(
                "memory-room.used",
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
            full = said(
                "memory-room.full",
                "{what} is nearly full: {share} of {total:.1f} GiB.",
                what=what,
                share=percent(peak / total),
                total=total / _GIB,
            )
            issues.append(_issue(full, peak))
        elif full_s < _FULL_WITHIN_S:
            grows = said(
                "memory-room.grows",
                "{what} grows by {growth:.0f} MiB a minute: it would be full after {time}.",
                what=what,
                growth=growth * 60 / (1 << 20),
                time=format_duration(full_s),
            )
            issues.append(_issue(grows, peak))
    if largest is not None:
        seen.append(said("memory-room.batch", "The largest batch that is safe is about {batch}.", batch=largest))
    if not seen:
        return CheckResult(check=CHECK, why_not=said("memory-room.unknown", "the memory in use is not known"))
    return CheckResult(check=CHECK, issues=tuple(issues), sentence=listed(" ", seen))


def largest_batch(batches: Sequence[tuple[float, Measurement]], total_bytes: int) -> int | None:
    """Return the largest safe power-of-two multiple of the smallest batch, by a line through two trials.

    Args:
        batches: Batch sizes with the numbers of a trial of each; two at least are needed.
        total_bytes: Memory of the GPU.

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
        check=CHECK,
        severity=Severity.WARNING,
        sentence=sentence,
        numbers={"peak_bytes": float(peak_bytes)},
        limit=Limit.MEMORY,
    )

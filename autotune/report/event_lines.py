"""Lines of a search, one for each event, for the terminal and for log files."""

from collections.abc import Mapping

from autotune.durations import format_duration
from autotune.events import Event, IncumbentChanged, PhaseChanged, Remark, SearchStarted, TrialEnded, TrialStarted
from autotune.metrics import METRICS
from autotune.records import Ending, GpuRole, TrialRecord, Validity
from autotune.report.plain_text import changes_text

_QUIET = (Ending.COMPLETED, Ending.STOPPED)


def event_line(event: Event, elapsed_s: float) -> str | None:
    """Return the line for an event; None for events that need none.

    Args:
        event: The event.
        elapsed_s: Time since the search's process started.
    """
    stamp = f"[{format_duration(elapsed_s):>6}]"
    match event:
        case SearchStarted():
            found = f", {event.trials_found} earlier trials found" if event.trials_found else ""
            return (
                f"{stamp} study {event.study}: {len(event.baseline)} knobs, {event.points:,} combinations, "
                f"budget {format_duration(event.budget_s)}{found}; score: {event.measures}"
            )
        case TrialEnded():
            return f"{stamp} {trial_line(event)}"
        case Remark():
            return event.text
        case PhaseChanged():
            return f"{stamp} {event.phase}: {event.why}"
        case IncumbentChanged():
            return f"{stamp} best so far: {event.speedup:.2f}x today with {changes_text(event.changes)}"
        case _:
            return None


def gpu_text(trial: TrialRecord) -> str:
    """Return the GPU utilization of a trial, ``GPU 41 %``; empty where it was not measured.

    Where data and model have a GPU each it is that of both, ``data GPU 62 %, model GPU 91 %``.
    """
    gpus = trial.measurement.gpus if trial.measurement else ()
    by_role = {gpu.role: gpu.figures.utilization for gpu in gpus if gpu.role and gpu.figures.utilization is not None}
    if by_role:
        return roles_text(by_role)
    utilization = trial.measurement.gpu_utilization if trial.measurement else None
    return "" if utilization is None else f"GPU {100 * utilization:.0f} %"


def roles_text(utilization: Mapping[GpuRole, float]) -> str:
    """Return the utilization of the GPUs of data and model, the data's first."""
    return ", ".join(f"{role.value} GPU {100 * utilization[role]:.0f} %" for role in GpuRole if role in utilization)


def trial_line(event: TrialEnded) -> str:
    """Return the line of a finished trial: number, purpose, speed, GPU, notable ending, changes."""
    trial = event.trial
    measured = trial.measurement
    speed = METRICS["samples_per_s"].text(measured.samples_per_s) if measured else "no numbers"
    ratio = f"{event.speedup:.2f}x" if event.speedup is not None else ""
    words = [] if trial.ending in _QUIET else [trial.ending.value]
    if trial.validity is not Validity.GOOD and measured:
        words.append(trial.detail or trial.validity.value)
    ending = f" [{', '.join(words)}]" if words else ""
    gpu = f"  {gpu:>9}" if (gpu := gpu_text(trial)) else ""
    return (
        f"trial {trial.number:<3} {purpose_text(trial.purpose.value, trial.pair):<10} {speed:>10} {ratio:>6}"
        f" {format_duration(trial.duration_s):>6}{gpu}{ending}  {changes_text(event.changes)}"
    )


def purpose_text(purpose: str, pair: int | None) -> str:
    """Return ``explore``, or ``pair 3`` for a confirming trial; people count pairs from 1."""
    return purpose if pair is None else f"pair {pair + 1}"


def running_line(event: TrialStarted) -> str:
    """Return the line of the running trial."""
    return f"trial {event.number} {purpose_text(event.purpose.value, event.pair)}: {changes_text(event.changes)}"

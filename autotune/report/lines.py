"""Lines of the log file and the terminal: one for each event of a search."""

import re

from autotune.durations import format_duration
from autotune.events import Event, IncumbentChanged, PhaseChanged, Remark, SearchStarted, TrialEnded, TrialStarted
from autotune.metrics import METRICS
from autotune.records import Ending, Scalar, TrialRecord, Validity, Values

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
"""Control sequences of a terminal: colours, titles, cursor movements (ECMA-48)."""

_QUIET = (Ending.COMPLETED, Ending.STOPPED)


def value_text(value: Scalar) -> str:
    """Format a config value as YAML writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return plain(str(value))


def plain(text: str, longest: int = 200) -> str:
    """Turn text from outside (a trainer, a config, a record) into one line that cannot control the terminal."""
    line = "".join(character if character.isprintable() else " " for character in _ESCAPE.sub("", text))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def changes_text(changes: Values) -> str:
    """List the changes of a point: ``batch_size=32, cache=memory``; section names are left out where unambiguous."""
    names = [path.rpartition(".")[2] for path in changes]
    parts = []
    for path, value in changes.items():
        short = path.rpartition(".")[2]
        parts.append(f"{short if names.count(short) == 1 else path}={value_text(value)}")
    return ", ".join(parts) or "today's values"


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
                f"{stamp} study {event.study}: {len(event.today)} knobs, {event.points:,} combinations, "
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
    """Return the GPU utilization of a trial, ``GPU 41 %``; empty where it was not measured."""
    utilization = trial.measurement.gpu_utilization if trial.measurement else None
    return "" if utilization is None else f"GPU {100 * utilization:.0f} %"


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

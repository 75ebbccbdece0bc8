"""Events of a trial that was taken through phases, by phase."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.measure.window import Window, main_stream, steady_window
from autotune.records import TraineeEvent, TrialPhase
from autotune.statistics import Series

_FULL_BUFFERS = 0.15  # of the drawing in a phase: what was ready before goes at once


@dataclass(frozen=True, kw_only=True)
class PhasedEvents:
    """Steps and loads of a trial.

    Attributes:
        train: Steady windows of plain training.
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
    """Sort the events of a trial by phase; without phases all of it is training.

    Args:
        events: All events.
    """
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
    found = [steady_window(within) for one, within in stretches if one is phase]
    return tuple(window for window in found if window is not None)


def _batches_s(loads: Sequence[TraineeEvent]) -> Series:
    """Return the time of each batch that was drawn in one stretch, without those that were ready before."""
    known = [(load.duration_s, load.batches) for load in loads if load.duration_s is not None and load.batches]
    times = [(duration_s / batches, batches) for duration_s, batches in known]
    each_s = np.array([time_s for time_s, batches in times for _ in range(batches)])
    if not len(each_s):
        return each_s
    drawn_s = np.cumsum(each_s)
    return np.asarray(each_s[drawn_s > _FULL_BUFFERS * drawn_s[-1]])

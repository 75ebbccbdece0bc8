"""Pauses of a trial between its steps: evaluations, checkpoints and the ends of epochs."""

from collections.abc import Sequence

import numpy as np

from autotune.measure.window import LEAST_STEPS, Window, main_stream
from autotune.records import PAUSE_FIELDS, Pauses, TraineeEvent


def pauses_of(events: Sequence[TraineeEvent], window: Window, *, default_samples: float | None = None) -> Pauses | None:
    """Return the pauses of a trial after which training resumed.

    A pause costs what its step takes beyond the window's median step, including effects that no event reports, such as
    a restart of the loader. Pauses within the first steps are ignored, because their frequency is unknown.

    Args:
        default_samples: Samples per step if steps don't report them; None counts steps.
    """
    stream = main_stream(events)
    steps = [event for event in events if event.kind == "step" and event.stream == stream]
    ends_s = np.array([step.t_s for step in steps])
    usual_s = float(np.median(window.durations_s))
    counts, held = dict.fromkeys(PAUSE_FIELDS.values(), 0), set[int]()
    for event in events:
        if event.kind not in PAUSE_FIELDS or event.pid != steps[0].pid or not ends_s[0] <= event.t_s < ends_s[-1]:
            continue
        # at equal times, an epoch's end comes after the step before it, a pause before the end of its step
        place = int(np.searchsorted(ends_s, event.t_s, "right" if event.kind == "epoch_end" else "left"))
        if place > LEAST_STEPS:
            counts[PAUSE_FIELDS[event.kind]] += 1
            held.add(place)
    if not held:
        return None
    places = np.array(sorted(held))
    beyond_s = np.maximum(np.diff(ends_s)[places - 1] - usual_s, 0.0)
    in_window_s = np.maximum(window.durations_s[window.at_epoch_ends] - usual_s, 0.0)
    amounts = [step.samples or default_samples or 1.0 for step in steps[: places[-1] + 1]]
    return Pauses(
        time_s=float(beyond_s.sum()), samples=float(sum(amounts)), in_window_s=float(in_window_s.sum()), **counts
    )

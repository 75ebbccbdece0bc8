"""Liveness of a forked trial: what its watch sees before the first step."""

from collections.abc import Sequence
from pathlib import Path

from autotune.clock import VirtualClock
from autotune.records import Stop, TraineeEvent
from autotune.trial.folder import TrialFolder
from autotune.trial.warm import Liveness


def test_what_is_true_of_any_process_is_passed_on_before_the_first_step(tmp_path: Path) -> None:
    """That the trainer was launched, is observed, reports by itself or hides its steps; the rest waits for a step."""
    seen: list[str] = []

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        seen.extend(event.kind for event in events)
        return None

    liveness = Liveness(watch, TrialFolder(tmp_path), VirtualClock(), limit_s=60.0)
    kinds = ("launched", "start", "note", "unseen", "reporter", "eval")
    liveness([TraineeEvent(kind=kind, t_s=1.0, stream="1.0") for kind in kinds])
    assert seen == ["launched", "start", "unseen", "reporter"]
    liveness([TraineeEvent(kind="step", t_s=2.0, stream="1.0")])
    assert seen[4:] == ["note", "eval", "step"]

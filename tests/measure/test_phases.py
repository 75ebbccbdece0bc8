"""Tests of the speeds of a trial in phases, and of the bounds that follow."""

import pytest

from autotune.measure.phases import bounds_of, phased_trial
from autotune.records import TraineeEvent, TrialPhase

STREAM = "7.0"


def event(kind: str, t_s: float, **fields: object) -> TraineeEvent:
    """Return an event of the one stream."""
    return TraineeEvent(kind=kind, t_s=t_s, stream=STREAM, **fields)  # type: ignore[arg-type]


def a_trial(*, rounds: int, replay_s: float, load_s: float, train_s: float, samples: float | None = 4.0) -> list:
    """Return the events of a trial with steps and batches of these lengths, ten of each in a phase."""
    events, t_s = [event("step", 0.0, samples=samples)], 0.0
    for _ in range(rounds):
        for phase, each_s in ((TrialPhase.REPLAY, replay_s), (TrialPhase.LOAD, load_s), (TrialPhase.TRAIN, train_s)):
            events.append(event("phase", t_s, phase=phase))
            for _ in range(10):
                t_s += each_s
                if phase is TrialPhase.LOAD:
                    events.append(event("load", t_s, duration_s=each_s, batches=1, samples=samples))
                else:
                    events.append(event("step", t_s, samples=samples, wait_s=0.01))
    return [*events, event("phase", t_s, phase=TrialPhase.REPLAY)]


def no_cores(_t0_s: float, _t1_s: float) -> None:
    """Know nothing of the CPU."""


def test_each_phase_has_its_own_speed() -> None:
    """Samples per second while the data is free, of the loader alone, and of training."""
    (one, two) = phased_trial(a_trial(rounds=2, replay_s=0.1, load_s=0.2, train_s=0.4)).rounds[:2]
    assert one.speeds == pytest.approx({TrialPhase.REPLAY: 40.0, TrialPhase.LOAD: 20.0, TrialPhase.TRAIN: 10.0})
    assert two.speeds == pytest.approx(one.speeds)
    assert one.batch == 4.0
    assert one.wait_s == pytest.approx(0.01)


def test_bounds_are_the_ratios_to_training() -> None:
    """Free data would be four times as fast here, a free step twice."""
    bounds = bounds_of(phased_trial(a_trial(rounds=3, replay_s=0.1, load_s=0.2, train_s=0.4)), no_cores)
    assert bounds.free_data is not None
    assert bounds.free_step is not None
    assert bounds.free_data.ratio == pytest.approx(4.0)
    assert bounds.free_data.low < 4.0 < bounds.free_data.high
    assert bounds.free_step.ratio == pytest.approx(2.0)
    assert bounds.may_gain(on_step=True)


def test_steps_with_a_pause_are_left_out() -> None:
    """An evaluation in the middle of a phase is not the loader's fault."""
    events = a_trial(rounds=2, replay_s=0.1, load_s=0.2, train_s=0.4)
    steps = [one for one in events if one.kind == "step"]
    pause_s = steps[15].t_s - 0.01  # within the first training phase
    events = sorted([*events, event("eval", pause_s)], key=lambda one: one.t_s)
    assert phased_trial(events).rounds[0].speeds[TrialPhase.TRAIN] == pytest.approx(10.0)


def test_what_cannot_be_phased_says_why() -> None:
    """A trainer without phases has no bounds, and the reason."""
    events = [event("step", 0.1 * number) for number in range(30)]
    events.append(event("unphased", 3.0, text="its batches are fetched in C"))
    bounds = bounds_of(phased_trial(events), no_cores)
    assert bounds.free_data is None
    assert bounds.why_not == ("its batches are fetched in C",)
    assert bounds.may_gain(on_step=False), "what is not known may help"

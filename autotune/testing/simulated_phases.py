"""Simulated phases: a trial that trains, trains on the same batches again and again, and only loads, in turn."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.records import TraineeEvent, TrialPhase

_ORDER = (TrialPhase.REPLAY, TrialPhase.LOAD, TrialPhase.TRAIN)
_LEAST = 3  # steps, or batches, in a phase


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """Times of one batch in each phase, and the cores that are busy meanwhile.

    Attributes:
        train_s: Time of a step of training.
        wait_s: Time of that which it waits for data.
        replay_s: Time of a step with free data.
        load_s: Time of a batch of the loader alone.
        train_cores: Cores in use during training.
        replay_cores: Cores in use with free data.
        load_cores: Cores in use during loading.
    """

    train_s: float
    wait_s: float
    replay_s: float
    load_s: float
    train_cores: float = 1.0
    replay_cores: float = 1.0
    load_cores: float = 1.0

    def cores(self, phase: TrialPhase) -> float:
        return {
            TrialPhase.TRAIN: self.train_cores,
            TrialPhase.REPLAY: self.replay_cores,
            TrialPhase.LOAD: self.load_cores,
        }[phase]


def phased_events(
    times: PhaseTimes,
    *,
    samples: float,
    phase_s: float,
    start_s: float,
    stream: str,
    factor: Callable[[], float],
    begins: Callable[[float, TrialPhase], object],
) -> Iterator[TraineeEvent]:
    """Yield the events of a trial that is taken through phases, without end.

    Args:
        times: The trainer.
        samples: Samples in a batch.
        phase_s: Length of each phase.
        start_s: When the first step begins.
        stream: Name of its stream.
        factor: Returns the next step's time over the usual one.
        begins: Told when each phase begins.
    """
    t_s = start_s
    for _ in range(5):
        t_s += times.train_s * factor()
        yield TraineeEvent(kind="step", t_s=t_s, stream=stream, samples=samples, wait_s=times.wait_s)
    while True:
        for phase in _ORDER:
            begins(t_s, phase)
            yield TraineeEvent(kind="phase", t_s=t_s, stream=stream, phase=phase)
            until_s, made = t_s + phase_s, 0
            while t_s < until_s or made < _LEAST:
                if phase is TrialPhase.LOAD:
                    batches = max(1, round(0.25 / times.load_s))  # of loading, for each event
                    took_s = batches * times.load_s * factor()
                    t_s += took_s
                    made += batches
                    yield TraineeEvent(
                        kind="load",
                        t_s=t_s,
                        stream=stream,
                        samples=batches * samples,
                        batches=batches,
                        duration_s=took_s,
                    )
                else:
                    trains = phase is TrialPhase.TRAIN
                    t_s += (times.train_s if trains else times.replay_s) * factor()
                    made += 1
                    wait_s = times.wait_s if trains else 0.0
                    yield TraineeEvent(kind="step", t_s=t_s, stream=stream, samples=samples, wait_s=wait_s)

"""Window of a training's pace: sums over the steps of about 10 s."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PaceWindow:
    """Sums over the steps of one process between two times.

    Attributes:
        process: Name of the process and its loop, e.g. ``"4711.0"``.
        t0_s: Start, on the monotonic clock of the machine's boot.
        t1_s: End.
        steps: Steps whose time is training; steps that hold a pause are none of them.
        train_s: Time of these steps.
        samples: Samples in them; None if not known of all.
        work: Frames or tokens in them; None if not known of all.
        wait_fraction: Share of their time for which the loop waited for data; None if not known.
        epochs: Passes over the data that ended.
        pauses: Evaluations and checkpoints.
        pause_s: Time of the steps that were left out because of a pause.
        cpu_s: CPU time of the process meanwhile; None if not known.
    """

    process: str
    t0_s: float
    t1_s: float
    steps: int
    train_s: float
    samples: float | None = None
    work: float | None = None
    wait_fraction: float | None = None
    epochs: int = 0
    pauses: int = 0
    pause_s: float = 0.0
    cpu_s: float | None = None

    @property
    def ln_pace(self) -> float | None:
        """Logarithm of the seconds per unit of work: frames or tokens, else samples, else steps; None without steps."""
        if not self.steps or self.train_s <= 0.0:
            return None
        return math.log(self.train_s / (self.work or self.samples or self.steps))

    @property
    def unit(self) -> str:
        """Unit of work that `ln_pace` counts; paces of different units cannot be compared."""
        return "work" if self.work else "samples" if self.samples else "steps"

    def samples_per_s(self, samples_per_step: float | None) -> float | None:
        """Return the throughput; None without steps.

        Args:
            samples_per_step: Samples in a step where the steps do not say; None counts steps.
        """
        if not self.steps or self.train_s <= 0.0:
            return None
        return (self.samples or self.steps * (samples_per_step or 1.0)) / self.train_s

"""Simulated machines of one hardware class: how they differ, and what is wrong with one of them."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune.clock import Clock
from autotune.testing.simulated_runner import Training
from scripts.bench.simulation.scenarios import Scenario

SPREAD = 0.2
"""Most that a machine is slower or faster than the one of the scenario: the ln speeds are uniform between."""

_BROKEN = """Traceback (most recent call last):
  File "train.py", line 57, in <module>
    main()
OSError: [Errno 5] Input/output error: '/mnt/data/train-00017-of-00128.tfrecord'
"""


@dataclass(frozen=True, kw_only=True)
class SiteMachine:
    """One of several machines of one class.

    Attributes:
        number: Its number, from 0 on.
        speed: Its speed, as a factor on that of the scenario.
        fails_from_s: Time since the beginning from which on every trial on it fails at once; None if it works.
    """

    number: int
    speed: float
    fails_from_s: float | None = None

    @property
    def name(self) -> str:
        """Name in the conditions of its trials: 8 hexadecimal digits."""
        return f"{0x51A0000 + self.number:08x}"

    def trainer(self, one: Scenario, clock: Clock) -> Callable[[str], Training]:
        """Return the behaviour of a scenario's trainer on this machine.

        Args:
            one: The scenario.
            clock: The machine's clock, at its beginning.
        """
        usual = one.trainer(fresh_processes=False)
        breaks_s = math.inf if self.fails_from_s is None else clock.now_s() + self.fails_from_s

        def train(config_text: str) -> Training:
            training = usual(config_text)
            if clock.now_s() >= breaks_s:
                return replace(training, steps=0, exit_code=1, stderr=_BROKEN, loss=None)
            return _at_speed(training, self.speed)

        return train


def site(seed: int, machines: int, *, black_hole: bool = False) -> list[SiteMachine]:
    """Return the machines of one site; fewer machines are the first of more.

    Args:
        seed: Decides how fast each is.
        machines: Their number.
        black_hole: Whether one of them is a black hole: at once for even seeds, else after one to three minutes.
    """
    most = math.log1p(SPREAD)
    speeds = [math.exp(random.Random(f"{seed} speed {number}").uniform(-most, most)) for number in range(machines)]
    found = [SiteMachine(number=number, speed=speed) for number, speed in enumerate(speeds)]
    if black_hole:
        rng = random.Random(f"{seed} black hole")
        place, after_s = rng.randrange(machines), rng.uniform(60.0, 180.0)
        found[place] = replace(found[place], fails_from_s=after_s if seed % 2 else 0.0)
    return found


def _at_speed(training: Training, speed: float) -> Training:
    """Return the same training on a machine of another speed."""

    def scaled(time_s: float | None) -> float | None:
        return None if time_s is None else time_s / speed

    return replace(
        training,
        step_s=training.step_s / speed,
        start_s=training.start_s / speed,
        first_step_s=scaled(training.first_step_s),
        first_pass_step_s=scaled(training.first_pass_step_s),
        epoch_gap_s=training.epoch_gap_s / speed,
    )

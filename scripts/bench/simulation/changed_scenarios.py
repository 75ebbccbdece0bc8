"""Scenarios with one assumption of the simulator changed: a search that relies on it shows by how much."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.clock import VirtualClock
from autotune.records import Machine, Values
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space
from autotune.testing.simulated_runner import SimulatedRunner, Training
from autotune.trial.instruments import Instruments
from scripts.bench.landscape_statistics import Landscape, main_effects
from scripts.bench.simulation.nk_landscape import draw_components, landscape_at
from scripts.bench.simulation.scenarios import PATHS, Grid, Scenario


class Change(StrEnum):
    """Assumption that is changed."""

    WRONG_ADVICE = "wrong advice"  # an expert would try the slowest value of each knob first
    INTERACTIONS = "interactions twice as strong"  # what main effects leave over in ln speed counts twice
    OUTLIERS = "10 % of trials at 0.6x"
    SLOW_PHASES = "1.23x slower for minutes"  # three of every seven and a half, on average
    RUGGED = "as rugged as measured systems"  # interactions of four knobs at a time, on top of the pipeline's


_SLOW_SHARE, _SLOW_SPEED = 0.1, 0.6
_PHASES = {"throttles_per_h": 13.0, "throttled_s": 180.0, "throttled_speed": 1 / 1.23}
_STRENGTH = 2.0
# Set so that the medians of `scripts.bench.landscape_statistics` are those of 24 measured tables: 0.4 %, 8 %, 25 %.
_RUGGED_OTHERS, _RUGGED_SPREAD = 3, 0.045


@dataclass(frozen=True, kw_only=True)
class ChangedScenario:
    """Scenario with one assumption changed; see `Scenario` for what is not described here.

    Attributes:
        scenario: The scenario as it was.
        change: The changed assumption.
    """

    scenario: Scenario
    change: Change

    @property
    def seed(self) -> int:
        """Number of the scenario."""
        return self.scenario.seed

    @property
    def family(self) -> str:
        """Kind of bottleneck at the baseline."""
        return self.scenario.family

    @property
    def machine_name(self) -> str:
        """Name of the machine in tables."""
        return self.scenario.machine_name

    @property
    def machine(self) -> Machine:
        """Conditions that a search knows of."""
        return self.scenario.machine

    @property
    def config_text(self) -> str:
        """Text of the config, with the domains of its knobs."""
        return self.scenario.config_text

    def speed(self, values: Values) -> float:
        """Return the true samples per second of a point; 0.0 if it cannot run."""
        return self.scenario.speed(values) * self._factor(values)

    def best(self) -> tuple[Values, float]:
        """Return the fastest point and its speed."""
        if self._factors is None:
            return self.scenario.best()
        values = self.grid.at(int(np.argmax(self.grid.speeds)))
        return values, self.speed(values)

    @cached_property
    def grid(self) -> Grid:
        """All points with their true speeds."""
        grid = self.scenario.grid
        return grid if self._factors is None else replace(grid, speeds=grid.speeds * self._factors)

    def runner(self, clock: VirtualClock, *, seed: int, fresh_processes: bool) -> SimulatedRunner:
        """Return a runner of this trainer's trials."""
        drift = self.scenario.training.drift
        if self.change is Change.SLOW_PHASES:
            drift = replace(drift, **_PHASES)
        train = self.trainer(seed=seed, fresh_processes=fresh_processes)
        return SimulatedRunner(clock, train, seed=seed, drift=drift)

    def instruments(self, runner: SimulatedRunner) -> Instruments:
        """Return the instruments of one trial of that runner."""
        return self.scenario.instruments(runner)

    def advised(self, space: Space) -> Space:
        """Return the space as the search knows it, with other advice where that is changed."""
        if self.change is not Change.WRONG_ADVICE:
            return space
        return replace(space, knobs=tuple(self._misled(knob) for knob in space.knobs))

    def _misled(self, knob: Knob) -> Knob:
        """Return a knob that is advised to be turned to the slowest of its values, all else as in the baseline."""
        others = [choice for choice in knob.choices if not same_scalar(choice, knob.baseline)]
        runs = [choice for choice in others if self.speed({knob.path: choice}) > 0]
        if not knob.heuristic_values or not runs:
            return replace(knob, heuristic_values=())
        return replace(knob, heuristic_values=(min(runs, key=lambda choice: self.speed({knob.path: choice})),))

    def trainer(self, *, seed: int, fresh_processes: bool) -> Callable[[str], Training]:
        """Return the function from a config's text to the behaviour of one trial; for the arguments see `runner`."""
        train = self.scenario.trainer(fresh_processes=fresh_processes)
        rng = np.random.default_rng((seed, 1, 0))

        def changed(config_text: str) -> Training:
            training = train(config_text)
            speed = 1.0
            if self.change is Change.OUTLIERS and rng.random() < _SLOW_SHARE:
                speed = _SLOW_SPEED
            elif self._factors is not None:
                speed = self._factor(self.scenario.values(config_text))
            if speed == 1.0:
                return training
            first_s = training.first_pass_step_s
            return replace(
                training,
                step_s=training.step_s / speed,
                first_pass_step_s=None if first_s is None else first_s / speed,
            )

        return changed

    def _factor(self, values: Values) -> float:
        """Return the factor on the speed of a point."""
        if self._factors is None:
            return 1.0
        grid = self.scenario.grid
        baseline = {path: self.scenario.training.baseline[kind] for kind, path in PATHS.items()}
        row = 0
        for path, choices in grid.choices.items():
            value = values.get(path, baseline[path])
            place = next(number for number, choice in enumerate(choices) if same_scalar(choice, value))
            row = row * len(choices) + place
        return float(self._factors[row])

    @cached_property
    def _factors(self) -> NDArray[np.float64] | None:
        """Factor on the speed of each point of the grid, 1.0 where it cannot run; None if the truth is not changed."""
        if self.change not in (Change.INTERACTIONS, Change.RUGGED):
            return None
        grid = self.scenario.grid
        runs = grid.speeds > 0
        factors = np.ones(len(grid.speeds))
        if self.change is Change.INTERACTIONS:
            landscape = Landscape(positions=grid.positions[runs], logs=np.log(grid.speeds[runs]))
            left = landscape.logs - main_effects(landscape)
            factors[runs] = np.minimum(np.exp((_STRENGTH - 1.0) * left), math.exp(5.0))
        else:
            counts = [len(choices) for choices in grid.choices.values()]
            components = draw_components(np.random.default_rng((self.seed, 2, 0)), counts, others=_RUGGED_OTHERS)
            factors[runs] = np.exp(_RUGGED_SPREAD * landscape_at(components, grid.positions[runs]))
        return factors

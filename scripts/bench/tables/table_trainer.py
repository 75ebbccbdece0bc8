"""Trainer that behaves as a table says: the tuner sees steps, samples and endings, as of any other trainer.

Each point's steps take the same time and have as many samples as its throughput says, so that all trials that run are
equally long and a budget can be counted in trials. A combination that does not run crashes before its first step. Keys
are named by number: what a column is called tells the tuner's table of known knobs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.clock import VirtualClock
from autotune.config.document import Document
from autotune.records import Machine, Scalar, Values
from autotune.space.space import Space
from autotune.testing.simulated_probes import SimulatedHostProbe
from autotune.testing.simulated_runner import SimulatedRunner, Training
from autotune.trial.instruments import Instruments
from scripts.bench.tables.noise import NOISES
from scripts.bench.tables.table import Row, Table

_SECTION = "options"
_STEP_S = 0.25
_WINDOW_S = 3.0  # fixed, as trials that begin short and become longer would be no unit of a budget
_BEST_SAMPLES = 1000.0  # in a step of the best combination; tables have any unit
_MACHINE = Machine(cpu_cores=8, cpu_model="measured table", memory_bytes=64 << 30, cpu_bfloat16=False)
_CRASH = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
ValueError: this combination of options is not supported
"""


@dataclass(frozen=True, kw_only=True)
class TableTrainer:
    """Trainer of one table, with the config that a search begins with.

    Attributes:
        table: The table.
        start: Combination that the config holds.
        noise: Name of the noise.
        seed: Seed of noise and methods.
    """

    table: Table
    start: Row
    noise: str
    seed: int

    @property
    def machine(self) -> Machine:
        """Conditions that a search knows of."""
        return _MACHINE

    @cached_property
    def paths(self) -> Sequence[str]:
        """Key of each option."""
        return [f"{_SECTION}.option_{number}" for number in range(len(self.table.options))]

    @property
    def config_text(self) -> str:
        """The config, with the trainer's command and the domains of its knobs."""
        values = "".join(
            f"  {path.partition('.')[2]}: {_yaml(value)}\n" for path, value in zip(self.paths, self.start, strict=True)
        )
        domains = "".join(
            f"    {path}: [{', '.join(map(_yaml, option.choices))}]\n"
            for path, option in zip(self.paths, self.table.options, strict=True)
        )
        return f"""{_SECTION}:
{values}autotune:
  command: "{{python}} train.py --config {{config}}"
  objective: throughput
  trial: {{min_s: {_WINDOW_S}, max_s: {_WINDOW_S}}}
  knobs:
{domains}"""

    def regret(self, values: Values) -> float:
        """Return the share of the best throughput that a point leaves unused, 0..1."""
        return self.table.regret(self._row(values))

    def fails(self, config_text: str) -> bool:
        """Return whether a trial of this config does not run."""
        return self._config_row(config_text) not in self.table.throughputs

    def speed(self, values: Values) -> float:
        """Return the true throughput of a point in samples per second, 0.0 if it does not run."""
        return self._samples(self._row(values)) / _STEP_S

    def best(self) -> tuple[Values, float]:
        """Return the best point and its speed."""
        values = dict(zip(self.paths, self.table.best, strict=True))
        return values, self.speed(values)

    def runner(self, clock: VirtualClock, *, seed: int, fresh_processes: bool) -> SimulatedRunner:
        """Return a runner of this trainer's trials.

        Args:
            clock: Virtual clock, advanced by the runner.
            seed: Seed of the noise.
            fresh_processes: Makes no difference here.
        """
        noise = NOISES[self.noise]
        rng = np.random.default_rng((seed, 1, 0))

        def train(config_text: str) -> Training:
            # Drawn for every trial, so that what is slow does not depend on what ran before.
            slowed = noise.slow_speed if rng.random() < noise.slow_trials else 1.0
            samples = self._samples(self._config_row(config_text))
            if samples == 0:
                return Training(start_s=0.5, steps=0, exit_code=1, stderr=_CRASH)
            return Training(
                samples=samples,
                step_s=_STEP_S / slowed,
                start_s=0.5,
                first_step_s=2 * _STEP_S,
                noise=noise.spread,
                step_noise=0.04,
                autocorrelation=0.5,
            )

        return SimulatedRunner(clock, train, seed=seed, drift=noise.drift)

    def instruments(self, runner: SimulatedRunner) -> Instruments:
        """Return the instruments of one trial of that runner."""
        return Instruments(SimulatedHostProbe(runner), None)

    def advised(self, space: Space) -> Space:
        """Return the space as the search knows it: nobody has advice for options without names."""
        return space

    def _config_row(self, config_text: str) -> Row:
        section = Document.parse(config_text).data[_SECTION]
        return tuple(section[path.partition(".")[2]] for path in self.paths)

    def _row(self, values: Values) -> Row:
        return tuple(values[path] for path in self.paths)

    def _samples(self, row: Row) -> float:
        throughputs = self.table.throughputs
        return _BEST_SAMPLES * throughputs.get(row, 0.0) / throughputs[self.table.best]


def _yaml(value: Scalar) -> str:
    if isinstance(value, float):
        return np.format_float_positional(value, trim="0")  # 1e-05 is a text in YAML
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)

"""Table of a measured system, and a trainer that behaves as it says.

A file ``NAME.csv.gz``: a header, one row a combination, one column an option, the last column ``throughput`` (higher is
better). Options are ordered numbers unless the name of their column ends in ``:categorical``. A combination without a
row, or with a throughput of 0, does not run.

The tuner sees steps, samples and endings of the trainer, as of any other. Each point's steps take the same time and
have as many samples as its throughput says, so that all trials that run are equally long and a budget can be counted in
trials. A combination that does not run crashes before its first step. Keys are named by number: what a column is called
tells the tuner's table of known knobs nothing.

`USUAL` is the noise of the simulated trainings, whose spread was measured on real ones. The others are what such a
machine is not, at about the same spread: a tuner that expects the usual one must not break under them.
"""

import csv
import gzip
import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from autotune.clock import VirtualClock
from autotune.config.document import Document
from autotune.errors import ConfigError
from autotune.records import Machine, Scalar, Values
from autotune.trial.instruments import Instruments
from scripts.bench.simulated_runner import Drift, SimulatedHostProbe, SimulatedRunner, Training

SUFFIX = ".csv.gz"
_THROUGHPUT = "throughput"
_CATEGORICAL = ":categorical"
_REMEDY = "See scripts/bench/tables/table.py for the format."

Row = tuple[Scalar, ...]
"""Value of each option, in the order of the columns."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """Option of the system.

    Attributes:
        choices: All values in the table; ascending if they are ordered.
        ordered: True for numbers, False for categories, which are texts.
    """

    name: str
    choices: tuple[Scalar, ...]
    ordered: bool


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measured system.

    Attributes:
        name: Name of the file, without its suffix.
        digest: Hash of the content: results of another table of that name are no results of this one.
        options: Options, in the order of the columns.
        throughputs: Throughput of each combination that ran, above 0.
    """

    name: str
    digest: str
    options: Sequence[Option]
    throughputs: Mapping[Row, float]

    @property
    def combinations(self) -> int:
        """Number of combinations, with those that do not run."""
        return math.prod(len(option.choices) for option in self.options)

    @cached_property
    def best(self) -> Row:
        """Combination with the highest throughput."""
        return max(self.throughputs, key=lambda row: self.throughputs[row])

    @cached_property
    def lowest(self) -> Row:
        """Combination of the lowest values; the next one in the order of the columns that runs, if that does not."""
        places = [{choice: place for place, choice in enumerate(option.choices)} for option in self.options]
        return min(
            self.throughputs, key=lambda row: tuple(place[value] for place, value in zip(places, row, strict=True))
        )

    @cached_property
    def median(self) -> Row:
        """Combination with the median throughput, the lower of the two middle ones."""
        return sorted(self.throughputs, key=lambda row: self.throughputs[row])[(len(self.throughputs) - 1) // 2]

    def regret(self, row: Row) -> float:
        """Return the share of the best throughput that a combination leaves unused; 1.0 if it does not run."""
        return 1.0 - self.throughputs.get(row, 0.0) / self.throughputs[self.best]


def read_tables(folder: Path) -> list[Table]:
    """Read all tables of a folder, by name.

    Raises:
        ConfigError: There is none, or one of them cannot be used.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise ConfigError(
            f"there is no table ({SUFFIX}) in this folder", where=str(folder), remedy="Name the folder of the tables."
        )
    return [read_table(path) for path in paths]


def read_table(path: Path) -> Table:
    """Read and check one table.

    Raises:
        ConfigError: It cannot be read, or is no table; file and line are named.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"the table cannot be read: {error}", where=str(path), remedy=_REMEDY) from error
    lines = list(csv.reader(text.splitlines()))
    names = _options(lines[0] if lines else [], f"{path}:1")
    throughputs: dict[Row, float] = {}
    for number, cells in enumerate(lines[1:], start=2):
        where = f"{path}:{number}"
        if len(cells) != len(names) + 1:
            raise _wrong(f"{len(cells)} cells instead of {len(names) + 1}", where)
        row = tuple(_value(name, cell, where) for name, cell in zip(names, cells, strict=False))
        if row in throughputs:
            raise _wrong("this combination has a row already", where)
        throughputs[row] = _number(_THROUGHPUT, cells[-1], where)
        if throughputs[row] < 0:
            raise _wrong(f"{_THROUGHPUT} is {cells[-1]}, below 0", where)
    throughputs = {row: throughput for row, throughput in throughputs.items() if throughput > 0}
    if len(throughputs) < 2:
        raise _wrong("fewer than two combinations ran", str(path))
    return Table(
        name=path.name.removesuffix(SUFFIX),
        digest=hashlib.sha256(text.encode()).hexdigest()[:12],
        options=[_option(name, {row[column] for row in throughputs}) for column, name in enumerate(names)],
        throughputs=throughputs,
    )


def _options(header: Sequence[str], where: str) -> Sequence[str]:
    """Return the names of the columns of options."""
    if len(header) < 2 or header[-1] != _THROUGHPUT:
        raise _wrong(f"the header does not end in {_THROUGHPUT} after at least one option", where)
    if len(set(header)) < len(header):
        raise _wrong("two columns have the same name", where)
    return header[:-1]


def _option(name: str, values: set[Scalar]) -> Option:
    ordered = not name.endswith(_CATEGORICAL)
    choices = sorted(values, key=lambda value: value if isinstance(value, int | float) else str(value))
    return Option(name=name.removesuffix(_CATEGORICAL), choices=tuple(choices), ordered=ordered)


def _value(name: str, cell: str, where: str) -> Scalar:
    if name.endswith(_CATEGORICAL):
        return cell
    number = _number(name, cell, where)
    return int(number) if number.is_integer() else number


def _number(name: str, cell: str, where: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _wrong(f"{name} is {cell!r}, no number", where)
    return number


def _wrong(message: str, where: str) -> ConfigError:
    return ConfigError(message, where=where, remedy=_REMEDY)


_SPREAD = 0.08


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Kind of noise.

    Attributes:
        spread: Standard deviation of ln speed between trials of one point, in two modes.
        slow_trials: Share of the trials that something slows down as a whole ...
        drift: Drift of the machine; None for none.
    """

    spread: float
    slow_trials: float = 0.0
    slow_speed: float = 1.0
    drift: Drift | None = None


USUAL = "usual"

NOISES: Mapping[str, Noise] = {
    USUAL: Noise(spread=_SPREAD),
    "heavy-tailed": Noise(spread=0.04, slow_trials=0.1, slow_speed=0.6),
    # On average three minutes of every seven and a half are slow.
    "bimodal over minutes": Noise(
        spread=0.03, drift=Drift(throttles_per_h=13.0, throttled_s=180.0, throttled_speed=0.85)
    ),
    "autocorrelated": Noise(spread=0.03, drift=Drift(spread=_SPREAD, memory_s=120.0)),
}
"""Noises by their names in tables and on the command line."""


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
    """Trainer of one table, with the config that a search begins with."""

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

    def _config_row(self, config_text: str) -> Row:
        section = Document(config_text).data[_SECTION]
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

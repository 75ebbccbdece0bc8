"""Calibration of the simulator's model (`scripts.bench.simulation.pipeline_model`) against a measured trainer.

The reference trainer was measured over a grid of 48 points (`reference_grid.jsonl`, made with ``python -m scripts.bench
grid`` from values and knobs that its first line names). ``python -m scripts.bench calibrate`` fits the parameters
again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.records import Scalar
from scripts.bench.results import Commands
from scripts.bench.simulation.pipeline_model import MACHINES, Hardware, Options, Quantity, Workload, coded, predict

_GRID = Path(__file__).with_name("reference_grid.jsonl")
_KINDS = {
    "data.use_tf_native_loading": "native_loading",
    "data.cache": "cache",
    "data.bucket_by_length": "length_buckets",
    "data.batch_size": "batch_size",
    "data.num_workers": "workers",
}

REFERENCE = Workload(
    # Fitted.
    python_s=0.01256,
    native_s=0.00321,
    cached_share=0.00854,
    step_s=0.01219,
    graph_launch_s=0.00133,
    # Known: LJSpeech's longest clip lasts 10.1 s, the mean one 6.57 s; a spectrogram has 80 bands in float32.
    longest=1.54,
    dataset_samples=1000,
    sample_bytes=1.8e5,
    # Of no influence on this machine, or at this grid's values.
    locked_share=0.9,
    filling=0.0,
    eager_launch_s=0.1,
    xla_launch_s=0.005,
)
"""The reference trainer on `REFERENCE_HARDWARE`."""

REFERENCE_HARDWARE = MACHINES[0].hardware
FITTED = ("python_s", "native_s", "cached_share", "step_s", "graph_launch_s")
"""Parameters of `REFERENCE` that are fitted to the grid."""

_FIRST_GUESS = (0.01, 0.01, 0.5, 0.01, 0.01)
_OUTLIER = 0.1  # error of ln speed
_FITTING_STEPS = 60


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Measured points of the reference trainer.

    Attributes:
        trial_spread: Median over the points of the ratio of the fastest trial to the slowest.
    """

    options: Options
    samples_per_s: Quantity
    trials: int
    trial_spread: float

    def where(self, mask: NDArray[np.bool_]) -> "Grid":
        """Return the points selected by a mask."""
        kept = {kind: getattr(self.options, kind)[mask] for kind in _KINDS.values()}
        return replace(self, options=replace(self.options, **kept), samples_per_s=self.samples_per_s[mask])


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of predictions and measurements.

    Attributes:
        median_error: Median error of the prediction, relative to the measurement.
    """

    rank_correlation: float
    median_error: float
    worst_error: float


def read_grid() -> Grid:
    """Read the measured grid."""
    lines = _GRID.read_text(encoding="utf-8").splitlines()[1:]  # the first one says how it was measured
    speeds: dict[tuple[Scalar, ...], list[float]] = {}
    for line in map(json.loads, lines):
        speeds.setdefault(tuple(line["values"][path] for path in _KINDS), []).append(line["samples_per_s"])
    columns = np.array([[coded(value) for value in point] for point in speeds]).T
    return Grid(
        options=_options(dict(zip(_KINDS.values(), columns, strict=True)), prefetch=1),
        samples_per_s=np.exp([np.mean(np.log(found)) for found in speeds.values()]),
        trials=len(lines),
        trial_spread=float(np.median([max(found) / min(found) for found in speeds.values()])),
    )


def agreement(grid: Grid, workload: Workload, hardware: Hardware) -> Agreement:
    """Compare the model with the grid."""
    predicted = predict(grid.options, workload, hardware).samples_per_s
    errors = np.abs(predicted / grid.samples_per_s - 1.0)
    return Agreement(
        rank_correlation=float(np.corrcoef(_ranks(predicted), _ranks(grid.samples_per_s))[0, 1]),
        median_error=float(np.median(errors)),
        worst_error=float(errors.max()),
    )


def held_out_error(grid: Grid, hardware: Hardware) -> float:
    """Return the median relative error where each batch size is predicted from the others alone."""
    errors: list[float] = []
    for size in np.unique(grid.options.batch_size):
        held_out = grid.options.batch_size == size
        rest = grid.where(held_out)
        predicted = predict(rest.options, fit(grid.where(~held_out), hardware), hardware).samples_per_s
        errors += np.abs(predicted / rest.samples_per_s - 1.0).tolist()
    return float(np.median(errors))


def fit(grid: Grid, hardware: Hardware) -> Workload:
    """Return the parameters at which the model is nearest to the grid.

    Least squares of ln speed by Levenberg and Marquardt's method, over the logs of the parameters. The weights are
    Huber's: the machine was shared during a few of the trials, and these must not decide.
    """
    measured = np.log(grid.samples_per_s)

    def errors(logs: Quantity) -> Quantity:
        return np.log(predict(grid.options, _with_logs(logs), hardware).samples_per_s) - measured

    def loss(found: Quantity) -> float:
        size = np.abs(found)
        return float(np.where(size < _OUTLIER, size**2 / 2, _OUTLIER * (size - _OUTLIER / 2)).sum())

    logs = np.log(_FIRST_GUESS)
    now, damping = errors(logs), 0.01
    for _ in range(_FITTING_STEPS):
        slopes = np.stack([(errors(logs + 1e-4 * axis) - now) / 1e-4 for axis in np.eye(len(logs))], axis=1)
        weights = _OUTLIER / np.maximum(np.abs(now), _OUTLIER)
        normal = slopes.T @ (weights[:, None] * slopes)
        move = np.linalg.solve(normal + damping * np.eye(len(logs)), -slopes.T @ (weights * now))
        then = errors(logs + np.clip(move, -1.0, 1.0))
        if loss(then) < loss(now):
            logs, now, damping = logs + np.clip(move, -1.0, 1.0), then, damping / 3
        else:
            damping *= 3
    return _with_logs(logs)


def _with_logs(logs: Quantity) -> Workload:
    python_s, native_s, cached_share, step_s, graph_launch_s = np.exp(logs).tolist()
    return replace(
        REFERENCE,
        python_s=python_s,
        native_s=native_s,
        cached_share=cached_share,
        step_s=step_s,
        graph_launch_s=graph_launch_s,
    )


def calibrate() -> None:
    """Fit the parameters again and print them, with the agreement of model and measurements."""
    grid = read_grid()
    fitted = fit(grid, REFERENCE_HARDWARE)
    print(f"Reference trainer, {len(grid.samples_per_s)} points, {grid.trials} trials")
    for name in FITTED:
        print(f"  {name:15} {getattr(fitted, name):.5f}  (in use: {getattr(REFERENCE, name):.5f})")
    for words, workload in (("fitted", fitted), ("in use", REFERENCE)):
        found = agreement(grid, workload, REFERENCE_HARDWARE)
        print(
            f"  {words}: rank correlation {found.rank_correlation:.3f}, median error {found.median_error:.1%}, "
            f"worst {found.worst_error:.0%}"
        )
    print(f"  each batch size from the others: median error {held_out_error(grid, REFERENCE_HARDWARE):.1%}")
    print(f"  two trials of a point differ by a factor of {grid.trial_spread:.2f} (median)")


def _options(given: Mapping[str, Quantity], *, prefetch: float) -> Options:
    """Return options with a graph, sixteen workers and all else off, except those given."""
    others = dict.fromkeys(Options.__dataclass_fields__, np.asarray(0.0))
    others |= {"prefetch": np.asarray(prefetch), "graph_mode": np.asarray(1.0)}
    return Options(**{**others, "workers": np.asarray(16.0), "native_loading": np.asarray(1.0), **given})


def _ranks(values: Quantity) -> NDArray[np.float64]:
    """Return ranks, equal values with their mean rank."""
    _, groups, counts = np.unique(values.round(6), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[groups], dtype=float)


def add_calibrate(commands: Commands) -> None:
    """Add the parser of ``calibrate``."""
    parser = commands.add_parser(
        "calibrate", help="fit the simulated trainers to measured ones, and say how well they agree"
    )
    parser.set_defaults(run=lambda _arguments: calibrate())

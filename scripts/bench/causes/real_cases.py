"""Real cases: small trainers with exactly one cause of slowness each, and healthy ones.

Times are those of two cores. The names say how many times as fast the training is without the cause, where that was
the aim; what it is on another machine the diagnosis tells.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune.diagnose.findings import Limit, Verdict
from autotune.records import Scalar
from scripts.bench.causes.cases import HEALTHY, Case
from scripts.bench.causes.diagnosed_trainer import diagnose_trainer

_STEP: Mapping[str, Scalar] = {"batch_size": 64, "width": 512, "layers": 20}
"""Steps of 30 to 50 ms, half of which a larger batch shares: loading has to cost more than that, to be the limit."""

_SHORT_STEP: Mapping[str, Scalar] = {"batch_size": 256, "width": 256, "layers": 10}
"""Steps of 10 to 20 ms, bound by their arithmetic."""

_LONG_STEP: Mapping[str, Scalar] = {"batch_size": 256, "width": 512, "layers": 12}
"""Steps of 40 to 60 ms, whose time is in proportion to the batch."""

_SHARED_STEP: Mapping[str, Scalar] = {"batch_size": 64, "width": 384, "layers": 40}
"""Steps of 30 to 40 ms of few samples, which leave time to load them."""

_TURNS: Mapping[str, Scalar] = {"parallel": 0, "prefetch": 0}
"""Loading only when the step asks for it."""

_KERAS = "keras_fit"
_TORCH = "torch_loop"

_TORCH_STEP: Mapping[str, Scalar] = {"batch_size": 128, "width": 768, "layers": 12}
"""Steps of PyTorch of 40 to 60 ms, bound by their arithmetic."""


@dataclass(frozen=True)
class _Row:
    name: str
    cause: str
    limit: Limit
    recipe: Mapping[str, Scalar]
    trainer: str = "custom_loop"
    neighbours: int = 0
    also: frozenset[Limit] = frozenset()  # limits that are as true of it


_ROWS = (
    # The loader waits.
    _Row("slow-disk-1.5x", "slow disk", Limit.READING, {**_STEP, "load": "slow disk", "load_ms": 0.7}),
    _Row("slow-disk-3x", "slow disk", Limit.READING, {**_STEP, "load": "slow disk", "load_ms": 2.0}),
    _Row("throttled-file", "slow disk", Limit.READING, {**_STEP, "load": "throttled", "load_ms": 1.5}),
    _Row("slow-disk-keras", "slow disk", Limit.READING, {**_STEP, "load": "slow disk", "load_ms": 1.5}, _KERAS),
    # The loader computes.
    _Row("python-map-1.5x", "slow Python map", Limit.PREPARING, {**_STEP, "load": "python", "load_ms": 0.6}),
    _Row("python-map-3x", "slow Python map", Limit.PREPARING, {**_STEP, "load": "python", "load_ms": 2.0}),
    _Row("python-map-keras", "slow Python map", Limit.PREPARING, {**_STEP, "load": "python", "load_ms": 1.0}, _KERAS),
    _Row("py-function", "slow Python map", Limit.PREPARING, {**_STEP, "load": "py_function", "load_ms": 0.8}),
    _Row("generator", "slow generator", Limit.PREPARING, {**_STEP, "load": "generator", "load_ms": 1.2}),
    _Row("tensorflow-map", "slow TensorFlow map", Limit.PREPARING, {**_STEP, "load": "tensorflow", "load_ms": 2}),
    _Row("augmentation", "heavy augmentation", Limit.PREPARING, {**_STEP, "load": "augment", "amount": 5}),
    _Row(
        "augmentation-keras", "heavy augmentation", Limit.PREPARING, {**_STEP, "load": "augment", "amount": 8}, _KERAS
    ),
    _Row("decoding", "decoding by one worker", Limit.PREPARING, {**_STEP, "load": "decode", "amount": 320}),
    _Row("many-files", "many tiny files", Limit.PREPARING, {**_STEP, "load": "many files", "amount": 20}),
    # Loader and step take turns.
    _Row(
        "no-prefetch-disk-2x",
        "no prefetch",
        Limit.OVERLAP,
        {**_STEP, "load": "slow disk", "load_ms": 0.3, **_TURNS},
    ),
    _Row(
        "no-prefetch-disk-1.5x",
        "no prefetch",
        Limit.OVERLAP,
        {**_STEP, "layers": 40, "load": "slow disk", "load_ms": 0.1, **_TURNS},
    ),
    _Row(
        "no-prefetch-keras",
        "no prefetch",
        Limit.OVERLAP,
        {**_STEP, "load": "slow disk", "load_ms": 0.3, **_TURNS},
        _KERAS,
    ),
    # What a step takes whatever its batch.
    _Row("eager-loop", "eager loop", Limit.HOST, {"batch_size": 4, "width": 16, "layers": 60, "step": "eager"}),
    _Row("eager-keras", "eager loop", Limit.HOST, {"batch_size": 8, "width": 32, "layers": 8, "step": "eager"}, _KERAS),
    _Row("tiny-batch", "tiny batch", Limit.HOST, {"batch_size": 1, "width": 64, "layers": 30}),
    _Row("tiny-batch-keras", "tiny batch", Limit.HOST, {"batch_size": 2, "width": 64, "layers": 6}, _KERAS),
    _Row(
        "retracing-number",
        "retracing",
        Limit.HOST,
        {"batch_size": 8, "width": 64, "layers": 2, "step": "retracing"},
    ),
    _Row("retracing-wrapped", "retracing", Limit.HOST, {"batch_size": 8, "width": 64, "layers": 2, "step": "wrapped"}),
    _Row(
        "retracing-shapes", "retracing", Limit.HOST, {**_SHORT_STEP, "batch_size": 512, "layers": 2, "step": "shapes"}
    ),
    _Row(
        "metrics-one-by-one",
        "metrics read one by one",
        Limit.HOST,
        {"batch_size": 32, "width": 64, "layers": 4, "beside": "metrics", "amount": 50},
    ),
    # Time outside of steps.
    _Row(
        "validation-often",
        "validation too often",
        Limit.OUTSIDE,
        {**_SHORT_STEP, "beside": "validation", "every": 30, "amount": 40},
    ),
    _Row(
        "validation-keras",
        "validation too often",
        Limit.OUTSIDE,
        {**_SHORT_STEP, "beside": "validation", "every": 50, "amount": 70},
        _KERAS,
    ),
    _Row(
        "validation-slow",
        "slow validation",
        Limit.OUTSIDE,
        {**_SHORT_STEP, "beside": "validation", "every": 200, "amount": 600},
    ),
    _Row(
        "checkpoint-often",
        "checkpoint every few steps",
        Limit.OUTSIDE,
        {**_SHORT_STEP, "beside": "checkpoint", "every": 20, "amount": 100},
    ),
    _Row(
        "checkpoint-keras",
        "checkpoint every few steps",
        Limit.OUTSIDE,
        {**_SHORT_STEP, "beside": "checkpoint", "every": 20},
        _KERAS,
    ),
    # Slow steps that recur.
    _Row(
        "stall-1.5x",
        "stall every 25 steps",
        Limit.STALLS,
        {**_SHORT_STEP, "beside": "stall", "every": 25, "beside_ms": 200.0},
    ),
    _Row(
        "stall-3x",
        "stall every 25 steps",
        Limit.STALLS,
        {**_SHORT_STEP, "beside": "stall", "every": 25, "beside_ms": 800.0},
    ),
    _Row(
        "stall-keras",
        "stall every 25 steps",
        Limit.STALLS,
        {**_SHORT_STEP, "beside": "stall", "every": 40, "beside_ms": 400.0},
        _KERAS,
    ),
    _Row(
        "garbage", "garbage collection", Limit.STALLS, {**_SHORT_STEP, "beside": "garbage", "every": 25, "amount": 2000}
    ),
    _Row(
        "logging", "logging that blocks", Limit.STALLS, {**_SHORT_STEP, "beside": "logging", "every": 30, "amount": 200}
    ),
    _Row(
        "shuffle-refill",
        "shuffle buffer filled at each epoch",
        Limit.STALLS,
        {**_SHARED_STEP, "load": "slow disk", "load_ms": 0.1, "epoch_batches": 40, "shuffle": 2000},
    ),
    # Somebody else.
    _Row("neighbours-2", "neighbours on the CPU", Limit.NEIGHBOUR, _LONG_STEP, neighbours=2),
    _Row("neighbours-4-keras", "neighbours on the CPU", Limit.NEIGHBOUR, _SHORT_STEP, _KERAS, neighbours=4),
    _Row("leak", "memory leak", Limit.MEMORY, {**_SHORT_STEP, "beside": "leak", "every": 4, "amount": 1}),
    # Loaders of PyTorch.
    _Row(
        "torch-getitem",
        "slow Python in a dataset of PyTorch",
        Limit.PREPARING,
        {**_TORCH_STEP, "load": "python", "load_ms": 1.5, "parallel": 1},
        _TORCH,
    ),
    _Row(
        "torch-getitem-no-worker",
        "slow Python in a dataset of PyTorch",
        Limit.PREPARING,
        {**_TORCH_STEP, "load": "python", "load_ms": 1.5, "parallel": 0},
        _TORCH,
    ),
    _Row(
        "torch-worker-too-few",
        "one worker too few",
        Limit.READING,
        {**_TORCH_STEP, "load": "throttled", "load_ms": 0.8, "parallel": 1},
        _TORCH,
    ),
    _Row(
        "torch-throttled-file",
        "slow disk",
        Limit.READING,
        {**_TORCH_STEP, "load": "throttled", "load_ms": 3.0, "parallel": 2},
        _TORCH,
    ),
    _Row(
        "torch-no-worker",
        "no prefetch",
        Limit.OVERLAP,
        {**_TORCH_STEP, "load": "throttled", "load_ms": 0.3, "parallel": 0},
        _TORCH,
    ),
    # Nothing is wrong.
    _Row("healthy-5ms", HEALTHY, Limit.STEP, {"batch_size": 256, "width": 256, "layers": 3}),
    _Row("healthy-15ms", HEALTHY, Limit.STEP, _SHORT_STEP),
    _Row("healthy-40ms", HEALTHY, Limit.STEP, _LONG_STEP),
    _Row("healthy-100ms", HEALTHY, Limit.STEP, {"batch_size": 256, "width": 512, "layers": 20}),
    _Row("healthy-300ms", HEALTHY, Limit.STEP, {"batch_size": 512, "width": 512, "layers": 30}),
    _Row(
        "healthy-fetching",
        HEALTHY,
        Limit.STEP,
        {**_SHORT_STEP, "step": "fetching"},
        also=frozenset({Limit.NOT_SEEN}),  # its batches cannot be replaced, and the verdict says so
    ),
    _Row("healthy-noise", HEALTHY, Limit.STEP, {**_LONG_STEP, "jitter": 0.2}),
    _Row("healthy-shuffle", HEALTHY, Limit.STEP, {**_LONG_STEP, "shuffle": 64}),
    _Row(
        "healthy-evaluation",
        HEALTHY,
        Limit.STEP,
        {**_SHORT_STEP, "beside": "validation", "every": 500, "amount": 10},
    ),
    _Row("healthy-keras", HEALTHY, Limit.STEP, _SHORT_STEP, _KERAS),
    _Row("healthy-keras-100ms", HEALTHY, Limit.STEP, {"batch_size": 256, "width": 512, "layers": 20}, _KERAS),
    _Row(
        "healthy-keras-evaluation",
        HEALTHY,
        Limit.STEP,
        {**_SHORT_STEP, "beside": "validation", "every": 500, "amount": 10},
        _KERAS,
    ),
    _Row("healthy-torch", HEALTHY, Limit.STEP, {**_TORCH_STEP, "parallel": 0}, _TORCH),
    _Row("healthy-torch-worker", HEALTHY, Limit.STEP, {**_TORCH_STEP, "layers": 24, "parallel": 1}, _TORCH),
    _Row(
        "healthy-torch-workers",
        HEALTHY,
        Limit.STEP,
        {**_TORCH_STEP, "layers": 24, "load": "throttled", "load_ms": 0.8, "parallel": 4},
        _TORCH,
    ),
)


def real_cases(keep: Path | None, with_torch: str | None = None) -> Sequence[Case]:
    """Return all real cases.

    Args:
        keep: Folder for what each diagnosis finds, in a folder of the case's name; None for none.
        with_torch: Interpreter with PyTorch; without it those that need it say so.
    """
    return tuple(
        Case(
            name=row.name,
            cause=row.cause,
            expected=row.also | {row.limit},
            run=partial(_diagnosed, row, keep, with_torch),
            is_real=True,
            why_not="" if with_torch or row.trainer != _TORCH else "it needs an interpreter with PyTorch",
        )
        for row in _ROWS
    )


def _diagnosed(row: _Row, keep: Path | None, with_torch: str | None, budget_s: float) -> Verdict:
    return diagnose_trainer(
        row.trainer,
        row.recipe,
        python=with_torch if with_torch and row.trainer == _TORCH else sys.executable,
        budget_s=budget_s,
        neighbours=row.neighbours,
        keep=None if keep is None else keep / row.name,
    )

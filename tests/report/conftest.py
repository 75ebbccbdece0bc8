"""Records as a search makes them, for tests of how they are shown."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.events import TrialEnded
from autotune.metrics import values_of
from autotune.records import Change, GpuFigures, PooledGpu, PooledGpus, Ratio, SearchResult, Side, Values, Verdict
from tests.runs import MakeTrial, changed_gpu, measured

BASELINE: Values = {"data.batch_size": 8, "data.cache": "none", "train.xla": False}
BEST: Values = {"data.batch_size": 32, "data.cache": "memory", "train.xla": False}

MakeEnded = Callable[..., TrialEnded]
MakeResult = Callable[..., SearchResult]


def pooled_gpu(text: str, utilization: float | None, **changes: Any) -> PooledGpu:
    """One GPU over the trials of a point."""
    gpu = PooledGpu(
        figures=GpuFigures(uuid="GPU-0", name="NVIDIA H100", utilization=utilization),
        scored=True,
        text=text,
        verdict=None if utilization is None else text.split(" % ")[1].split(",")[0],
        meaning=None if utilization is None else f"what {text} means",
    )
    return changed_gpu(gpu, **changes)


def on_gpus(side: Side | None, *devices: PooledGpu, effective_utilization: float | None = None, **figures: Any) -> Side:
    """The same side of a comparison with GPUs; figures are those of its trials."""
    gpus = PooledGpus(devices=devices, effective_utilization=effective_utilization)
    return replace(side, metrics={**side.metrics, **figures}, gpus=gpus)


@pytest.fixture
def trial_ended(make_trial: MakeTrial) -> MakeEnded:
    """The event at the end of a trial that went well; fields of its record and of itself can be changed."""

    def make(*, changes: Any = None, speedup: float | None = 1.5, **fields: Any) -> TrialEnded:
        trial = make_trial(BEST, 61.5, **{"number": 3, "duration_s": 12.3, **fields})
        return TrialEnded(trial=trial, changes=changes or {}, speedup=speedup)

    return make


@pytest.fixture
def search_result() -> MakeResult:
    """The answer that another batch and a cache are twice as fast; any part can be changed."""
    baseline = Side(point="p", values=BASELINE, metrics=values_of(measured(50.0)))
    best = Side(point="p", values=BEST, metrics=values_of(measured(100.0)))
    cached = Side(point="p", values={**BASELINE, "data.cache": "memory"}, metrics=values_of(measured(70.0)))

    worth, cached_worth = Ratio(ratio=1.43, low=1.31, high=1.57), Ratio(ratio=1.4, low=1.25, high=1.57)
    batch = Change(path="data.batch_size", old=8, new=32, worth=worth, group=0, label="batch")
    batch = replace(batch, effective_batch="The effective batch changes from 8 to 32")
    cache = Change(path="data.cache", old="none", new="memory", worth=cached_worth, group=1, label="same training")

    def make(**changes: Any) -> SearchResult:
        fields: dict[str, Any] = {
            "verdict": Verdict.BETTER,
            "why": "confirmed by 4 interleaved pairs with today's config",
            "baseline": baseline,
            "best": best,
            "candidate": None,
            "speedup": Ratio(ratio=2.0, low=1.9, high=2.1),
            "score_ratio": Ratio(ratio=2.02, low=1.91, high=2.12),
            "smallest_gain": 0.05,
            "same_training": (cached, 1.4),
            "trials": 20,
            "outcomes": {"stopped": 19, "crashed": 1},
            "changes": (batch, cache),
        }
        return SearchResult(**{**fields, **changes})

    return make

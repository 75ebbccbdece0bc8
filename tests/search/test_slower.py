"""Training whose steps get slower as it goes on: both sides are compared over the same steps, in virtual time."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from autotune.events import Remark
from autotune.records import Purpose
from scripts.bench.simulated_runner import Training
from tests.search.simulated import Search, plain


def growing(config: Mapping[str, Any], *, doubles_in: float = 200.0) -> Training:
    """Take twice as long for a step after so many of them: what two workers gain, they gain of each step."""
    training = plain({"data": {**config["data"], "batch_size": 8}})
    step_s = 0.25 * training.step_s / (1.4 if config["data"]["num_workers"] == 2 else 1.0)

    def drawn(rng: np.random.Generator) -> Iterator[float]:
        for number in count():
            yield step_s * (1.0 + number / doubles_in) * rng.lognormal(0.0, 0.03)

    return replace(training, samples=8, drawn=drawn, epoch=None)


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_get_slower_are_compared_by_their_numbers(search: Search, seed: int) -> None:
    """The faster side makes more steps in the same time, and slower ones: as many are compared instead."""
    done = search(growing, budget_s=180.0, seed=seed)
    truth = 1.4 * 1.1
    speedup = done.answer.speedup
    assert speedup is not None
    assert speedup.low < truth < speedup.high
    assert speedup.ratio == pytest.approx(truth, rel=0.06)
    said = [event.text for event in done.events if isinstance(event, Remark)]
    assert any("Steps get slower during training" in text for text in said)
    assert any("all speeds are measured up to step " in text for text in done.answer.cautions)
    pairs = done.of(Purpose.CONFIRM)
    steps = {trial.measurement.steps for trial in pairs if trial.measurement}
    assert len(steps) == 1


def test_steady_training_is_not_said_to_get_slower(search: Search) -> None:
    """Noise is no growth."""
    done = search(plain, budget_s=120.0)
    assert not any("get slower" in event.text for event in done.events if isinstance(event, Remark))

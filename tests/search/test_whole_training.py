"""Speed of whole training beside that of its steps, in virtual time, where the truth is known."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.config.command import TypedOptions
from autotune.records import SearchResult
from autotune.report.answer import print_answer
from scripts.bench.simulated_runner import Training
from tests.search.simulated import Search, plain

SAMPLES = 1600  # in a pass
GAP_S, EVALUATION_S = 0.5, 2.0


def passing(config: Mapping[str, Any], *, passes: float = 1.0) -> Training:
    """Evaluate after each pass, and refill the pipeline; a pass has as many samples whatever the batch is."""
    training = plain(config)
    epoch = int(passes * SAMPLES / training.samples)
    evaluations = dict.fromkeys(range(epoch, 100 * epoch, epoch), "eval")
    return replace(training, epoch=epoch, epoch_gap_s=GAP_S, pauses=evaluations, pause_s=EVALUATION_S)


def truth(result: SearchResult, passes: float = 1.0) -> float:
    """Return how much faster a whole pass of the answer's is."""
    assert result.baseline is not None
    assert result.best is not None
    sides = []
    for side in (result.baseline, result.best):
        values = {path.partition(".")[2]: value for path, value in side.values.items()}
        training = passing({"data": values}, passes=passes)
        assert training.epoch
        sides.append(training.epoch * training.step_s + GAP_S + EVALUATION_S)
    return sides[0] / sides[1]


def screen(result: SearchResult) -> str:
    """Return what the user reads."""
    console = Console(width=200, color_system=None)
    with console.capture() as said:
        print_answer(console, result, typed=TypedOptions(config=Path("config.yaml")), elapsed_s=60.0)
    return said.get()


def test_whole_training_gains_less_than_its_steps(search: Search) -> None:
    """Evaluations take as long whatever the batch is, so the whole gains less, and the interval holds the truth."""
    result = search(passing, budget_s=300.0).answer
    assert result.speedup is not None
    assert result.whole is not None
    whole = result.whole.speedup
    assert whole is not None
    assert whole.low < truth(result) < whole.high < result.speedup.high
    assert whole.ratio == pytest.approx(truth(result), rel=0.08)
    assert result.whole.seen == ("epoch_ends", "evaluations")
    said = screen(result)
    assert f"Whole training, with ends of epochs and evaluations: about {whole.ratio:.2f}x" in said
    assert "Not covered: checkpoint or memory growth; `--validate 2m` covers them." in said


def test_where_no_pass_ends_that_is_said(search: Search) -> None:
    """Passes of an hour end in no trial: nothing is claimed of whole training."""
    result = search(lambda config: passing(config, passes=400.0), budget_s=300.0).answer
    assert result.speedup is not None
    assert result.whole is not None
    assert (result.whole.speedup, result.whole.seen) == (None, ())
    said = screen(result)
    assert "Whole training" not in said
    assert "Not covered: end of an epoch, evaluation, checkpoint or memory growth;" in said


def test_validation_shows_what_trials_do_not_come_to(search: Search) -> None:
    """A validation is long enough for two passes, and so the answer has a figure for the whole."""
    result = search(lambda config: passing(config, passes=6.0), budget_s=600.0, validate_s=90.0).answer
    assert result.whole is not None
    assert result.whole.speedup is not None
    assert result.whole.speedup.low < truth(result, 6.0) < result.whole.speedup.high
    assert "growth of memory" not in screen(result)

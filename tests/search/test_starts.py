"""Values that start slowly get the time that they need, or are not tried: what was too short is not tried again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autotune.records import Ending, Purpose, TrialRecord, Verdict
from autotune.search.schedule import start_times
from autotune.space.space import Space
from scripts.bench.simulated_runner import Training
from tests.runs import MakeTrial, knob
from tests.search.simulated import Search

CONFIG = """\
data: {batch_size: 16, num_workers: 1}
training: {torch_compile: false, channels_last: false}
autotune:
    command: "{python} train.py {config}"
    knobs:
        data.batch_size: [8, 16, 32, 64]
        data.num_workers: [1, 2, 4]
        training.torch_compile: [false, true]
        training.channels_last: [false, true]
"""


def compiling(start_s: float, *, gain: float = 1.6, cpu_cores: float = 1.0):
    """Return a trainer whose compiled step is that much faster, after a start of that length."""

    def train(config: Mapping[str, Any]) -> Training:
        batch, training = config["data"]["batch_size"], config["training"]
        step_s = (0.004 + 0.0005 * batch) / (gain if training["torch_compile"] else 1.0)
        step_s /= 1.1 if training["channels_last"] else 1.0
        start = 1.0 + (start_s if training["torch_compile"] else 0.0)
        return Training(samples=batch, step_s=step_s, start_s=start, noise=0.01, cpu_cores=cpu_cores)

    return train


SPACE = Space(knobs=(knob("compile", 0, 1), knob("threads", 1, 2), knob("batch", 8, 16, 32)))


@pytest.fixture
def trial(make_trial: MakeTrial):
    """Makes a trial of some changes: after so long it made its first step, or was cut off before that."""

    def made(
        start_s: float | None = None, cut_s: float = 0.0, ending: Ending = Ending.NEVER_STARTED, **changes: int
    ) -> TrialRecord:
        values = {**SPACE.baseline, **changes}
        if start_s is None:
            return make_trial(values, None, ending=ending, duration_s=cut_s)
        record = make_trial(values, 50.0)
        assert record.measurement is not None
        return replace(record, measurement=replace(record.measurement, first_step_s=start_s))

    return made


def test_a_value_is_as_slow_as_its_quickest_start(trial) -> None:
    """In a trial that was slower another value may be to blame."""
    starts = start_times([trial(2.0), trial(25.0, compile=1, threads=2), trial(2.5, threads=2)], SPACE)
    assert starts.needed_s(SPACE, {**SPACE.baseline, "threads": 2}) == 2.5
    assert starts.needed_s(SPACE, {**SPACE.baseline, "compile": 1, "batch": 32}) == 25.0
    assert starts.needed_s(SPACE, {**SPACE.baseline, "batch": 32}) == 2.0


def test_what_was_too_short_is_doubled_or_left(trial) -> None:
    """A value that has started since, or a trial that hung, says nothing of how long a start takes."""
    cut = [trial(2.0), trial(cut_s=20.0, compile=1, threads=2), trial(2.0, threads=2)]
    starts, compiled = start_times(cut, SPACE), {**SPACE.baseline, "compile": 1}
    assert starts.least_limit_s(SPACE, compiled) == 40.0
    assert starts.why_not(SPACE, compiled, 200.0) is None
    assert starts.why_not(SPACE, compiled, 100.0) == "compile: 1 takes more than 20s to start"
    assert [one.partition(";")[0] for one in starts.untried()] == [
        "compile: 1 was not measured, because it takes more than 20s to start"
    ]
    assert not start_times([*cut, trial(30.0, compile=1)], SPACE).waited_s
    assert not start_times([trial(cut_s=60.0, ending=Ending.HUNG, compile=1)], SPACE).waited_s


@pytest.mark.parametrize("cpu_cores", [1.0, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_start_is_waited_for(search: Search, seed: int, cpu_cores: float) -> None:
    """Five minutes, and 25 s for each start of what is 1.6 times as fast: both answers have it.

    One that idles meanwhile looks as if it hung: one trial waits for longer before that is said.
    """
    done = search(compiling(25.0, cpu_cores=cpu_cores), config=CONFIG, budget_s=300.0, seed=seed)
    assert sum(trial.ending is Ending.HUNG for trial in done.trials) <= 2
    assert Ending.HUNG not in done.tuner.failures  # it only took longer
    cut = [trial for trial in done.trials if trial.ending in (Ending.NEVER_STARTED, Ending.OBSERVER_MISSING)]
    assert len(cut) <= 2
    answer = done.answer
    assert answer.verdict is Verdict.BETTER
    assert answer.best is not None
    assert answer.same_training is not None
    compiled = {"training.torch_compile": True, "training.channels_last": True}
    assert {**answer.best.values, **compiled, "data.batch_size": 64} == answer.best.values
    assert {**answer.same_training[0].values, **compiled} == answer.same_training[0].values


def test_what_takes_too_long_is_named(search: Search) -> None:
    """It is not tried again and again, and the answer says which budget would do."""
    done = search(compiling(600.0), config=CONFIG, budget_s=300.0)
    tried = [one for one in done.trials if one.values["training.torch_compile"] and one.purpose is Purpose.EXPLORE]
    assert 1 <= len(tried) <= 2
    assert sum(trial.duration_s for trial in tried) < 100.0
    (said,) = [one for one in done.answer.cautions if "torch_compile" in one]
    assert said.startswith("training.torch_compile: True was not measured, because it takes more than ")


def test_a_budget_for_today_s_config_alone_names_one_that_is_enough(search: Search) -> None:
    """Nothing else was tried in it: with what is named, the same search finds the gain."""

    def slow(config: Mapping[str, Any]) -> Training:
        return replace(compiling(0.0)(config), start_s=20.0)

    short = search(slow, config=CONFIG, budget_s=40.0)
    assert "none can be confirmed in this search: " in short.said()
    assert "--budget 4m05s is enough" in short.said()
    short = short.answer
    assert (short.verdict, short.candidate) == (Verdict.NO_CHANGE, None)
    assert short.budget_enough_s is not None
    assert search(slow, config=CONFIG, budget_s=short.budget_enough_s, fresh=True).answer.verdict is Verdict.BETTER

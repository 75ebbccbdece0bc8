"""Overhead of the search between trials: choosing the next point and writing the record, by length of the record.

The record is filled with trials of random points of the config's space, every third a repeat, with additive effects of
the knobs on speed. Then the next trials are chosen and written one by one, each time with everything rebuilt from the
record, as after a restart.
"""

import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from autotune.clock import SystemClock
from autotune.records import Ending, Measurement, Purpose, TrialRecord, Validity, Values
from autotune.sampler.acquisition import Acquisition, heuristic_proposals
from autotune.sampler.feasibility import Feasibility
from autotune.sampler.observations import Observations, expected_trial_sd
from autotune.search.problem import Problem, open_problem
from autotune.study.record import StudyRecord
from scripts.bench.results import Commands

_TIMED = 15
_REPEATS = 0.33
_NOISE = 0.08


def time_choices(config: Path, lengths: Sequence[int], *, seed: int) -> None:
    """Print the time of one choice for records of these lengths.

    Args:
        lengths: Numbers of trials in the record, ascending.

    Raises:
        AutotuneError: The config cannot be used.
    """
    rng, clock = random.Random(seed), SystemClock()
    print("Medians, in milliseconds.")
    print(f"{'trials':>6} {'points':>7}  {'levels':>8} {'ask':>8} {'tell':>8} {'all':>8} {'slowest':>8}")
    with tempfile.TemporaryDirectory() as folder:
        problem = open_problem(config, command=None, state_dir=Path(folder))
        problem.state.create()
        study, acquisition = StudyRecord(problem.study, problem.storage), Acquisition(problem.space, seed)
        study.finish(study.begin({}, {}), _run(problem, problem.space.baseline, rng))
        for length in lengths:
            while len(study.records()) < length:
                known = study.records()
                values = rng.choice(known).values if rng.random() < _REPEATS else _anywhere(problem, rng)
                study.finish(study.begin({}, {}), _run(problem, values, rng))
            parts = []
            for _ in range(_TIMED):
                began_s = clock.now_s()
                observations = Observations(problem.space, problem.objective, study.records())
                rebuilt_s = clock.now_s()
                values = _choose(problem, observations, acquisition)
                chosen_s = clock.now_s()
                study.finish(study.begin({}, {}), _run(problem, values, rng))
                parts.append((rebuilt_s - began_s, chosen_s - rebuilt_s, clock.now_s() - chosen_s))
            whole = [sum(part) for part in parts]
            columns = [median(column) for column in (*zip(*parts, strict=True), whole)]
            cells = " ".join(f"{1e3 * seconds:8.1f}" for seconds in (*columns, max(whole)))
            print(f"{length:6d} {len(observations):7d}  {cells}")


def _choose(problem: Problem, observations: Observations, acquisition: Acquisition) -> Values:
    feasible = Feasibility(problem.space, observations, problem.machine, memory_margin=problem.limits.memory_margin)
    heuristic_values = heuristic_proposals(problem.space, observations, None, has_gpu=False, short_passes=True)
    acquisition.learn(observations, expected_trial_sd(observations))
    choice = acquisition.next_trial(
        problem.space.name(problem.space.baseline),
        next((values for values in heuristic_values if feasible.why_not(values) is None), None),
        feasible.why_not,
    )
    return choice.values if choice else problem.space.baseline


def _anywhere(problem: Problem, rng: random.Random) -> Values:
    return {knob.path: rng.choice(knob.choices) for knob in problem.space.knobs}


def _run(problem: Problem, values: Values, rng: random.Random) -> TrialRecord:
    score = sum(0.03 * number * index for number, index in enumerate(problem.space.indices(values)))
    measurement = Measurement(
        window_s=2.0,
        steps=20,
        samples_per_s=100.0 * math.exp(score + rng.gauss(0.0, _NOISE)),
        cv=0.1,
        step_p50_s=0.1,
        step_p95_s=0.12,
        data_wait_fraction=0.3,
        first_step_s=1.0,
        peak_memory_bytes=2**30,
    )
    return TrialRecord(
        number=0,
        search="benchmark",
        point=problem.space.name(values),
        values=values,
        purpose=Purpose.EXPLORE,
        ending=Ending.STOPPED,
        validity=Validity.GOOD,
        ended_utc="2030-01-01T00:00:00+00:00",
        duration_s=5.0 + rng.random(),
        measurement=measurement,
        conditions=problem.conditions,
    )


def add_choose(commands: Commands) -> None:
    """Add the parser of ``choose``."""
    parser = commands.add_parser(
        "choose", help="measure what one choice of the next trial takes, by length of the record"
    )
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 100, 300, 1000], help="lengths of the record")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(run=lambda given: time_choices(given.config, given.trials, seed=given.seed))

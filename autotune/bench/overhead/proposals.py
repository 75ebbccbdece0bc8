"""What the search itself adds to a run: choosing the next point and writing the record, by length of the record.

The record is filled with runs of random points of the config's own space, every third a repeat, with speeds that each
knob adds something to. Then the next runs are chosen and written one by one, each time with everything rebuilt from
the record, as after a restart.
"""

import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from autotune.clock import SystemClock
from autotune.records import Ending, Measurement, Purpose, RunRecord, Validity, Values
from autotune.sampler.acquisition import Allocator
from autotune.sampler.feasibility import Feasibility
from autotune.sampler.heuristics import advised
from autotune.sampler.observations import Levels, expected_run_sd
from autotune.search.problem import Setup, open_setup
from autotune.study.record import Study

_TIMED = 15
_REPEATS = 0.33
_NOISE = 0.08


def time_choices(config: Path, lengths: Sequence[int], *, seed: int) -> None:
    """Prints what one choice takes in records of these lengths.

    Args:
        config: The config whose space is searched.
        lengths: Runs in the record, ascending.
        seed: Draws the points.

    Raises:
        AutotuneError: The config cannot be used.
    """
    rng, clock = random.Random(seed), SystemClock()
    print("Medians, in milliseconds.")
    print(f"{'runs':>6} {'points':>7}  {'levels':>8} {'ask':>8} {'tell':>8} {'all':>8} {'slowest':>8}")
    with tempfile.TemporaryDirectory() as folder:
        setup = open_setup(config, command=None, state_dir=Path(folder))
        setup.state.create()
        study, allocator = Study(setup.study, setup.journal), Allocator(setup.space, seed)
        study.append(_run(setup, setup.space.today, rng))
        for length in lengths:
            while study.next_number < length:
                known = study.records()
                values = rng.choice(known).values if rng.random() < _REPEATS else _anywhere(setup, rng)
                study.append(_run(setup, values, rng))
            parts = []
            for _ in range(_TIMED):
                began_s = clock.now_s()
                levels = Levels(setup.space, setup.objective, study.records())
                rebuilt_s = clock.now_s()
                values = _choose(setup, levels, allocator)
                chosen_s = clock.now_s()
                study.append(_run(setup, values, rng))
                parts.append((rebuilt_s - began_s, chosen_s - rebuilt_s, clock.now_s() - chosen_s))
            whole = [sum(part) for part in parts]
            columns = [median(column) for column in (*zip(*parts, strict=True), whole)]
            cells = " ".join(f"{1e3 * seconds:8.1f}" for seconds in (*columns, max(whole)))
            print(f"{length:6d} {len(levels):7d}  {cells}")


def _choose(setup: Setup, levels: Levels, allocator: Allocator) -> Values:
    feasible = Feasibility(setup.space, levels, setup.machine, memory_margin=setup.limits.memory_margin)
    advice = advised(setup.space, levels, None, has_gpu=False, short_passes=True)
    allocator.learn(levels, expected_run_sd(levels))
    choice = allocator.next_run(
        setup.space.name(setup.space.today),
        next((values for values in advice if feasible.why_not(values) is None), None),
        feasible.why_not,
    )
    return choice.values if choice else setup.space.today


def _anywhere(setup: Setup, rng: random.Random) -> Values:
    return {knob.path: rng.choice(knob.choices) for knob in setup.space.knobs}


def _run(setup: Setup, values: Values, rng: random.Random) -> RunRecord:
    score = sum(0.03 * number * index for number, index in enumerate(setup.space.indices(values)))
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
    return RunRecord(
        number=0,
        search="benchmark",
        point=setup.space.name(values),
        values=values,
        purpose=Purpose.EXPLORE,
        ending=Ending.STOPPED,
        validity=Validity.GOOD,
        ended_utc="2030-01-01T00:00:00+00:00",
        duration_s=5.0 + rng.random(),
        measurement=measurement,
        conditions=setup.conditions,
    )

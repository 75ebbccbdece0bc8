"""Scenarios are as they say, what fails does so by its name, and the model agrees with a trainer that was measured."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.measure.window import WindowGoal
from autotune.records import Ending, Scalar, Stop, TraineeEvent, TrialPlan, Validity, Values
from autotune.search.gpus import request_for
from autotune.search.problem import Problem, open_problem
from autotune.space.space import Space
from autotune.testing.simulated_runner import Drift
from autotune.trial.execution import Execution, TrialTools, execute
from autotune.trial.outcome import ending_of
from autotune.trial.plan import plan_trial
from autotune.trial.stop_rule import TrialPolicy
from scripts.bench.simulation.calibration import (
    FITTED,
    REFERENCE,
    REFERENCE_HARDWARE,
    agreement,
    fit,
    held_out_error,
    read_grid,
)
from scripts.bench.simulation.scenarios import PATHS, Scenario, choices_of, null_scenario, pace_of, scenario


def test_the_model_ranks_the_reference_trainers_points() -> None:
    """Over 48 measured points it has the order nearly right, and the speeds as well as one trial would tell them."""
    grid = read_grid()
    assert (len(grid.samples_per_s), grid.trials) == (48, 96)
    found = agreement(grid, REFERENCE, REFERENCE_HARDWARE)
    assert found.rank_correlation >= 0.9
    assert found.median_error <= 0.15


def test_the_parameters_in_use_are_the_fitted_ones() -> None:
    """Fitting again gives what stands in the code."""
    fitted = fit(read_grid(), REFERENCE_HARDWARE)
    assert {name: getattr(fitted, name) for name in FITTED} == pytest.approx(
        {name: getattr(REFERENCE, name) for name in FITTED}, rel=0.01
    )


def test_points_that_were_not_fitted_are_predicted() -> None:
    """The parameters say something about the trainer, and not only about the points they were made from."""
    assert held_out_error(read_grid(), REFERENCE_HARDWARE) <= 0.15


SEEDS = range(32)
ONE_OF_EACH = range(16)

Open = Callable[[Scenario], Problem]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a scenario as a search would."""
    monkeypatch.chdir(tmp_path)

    def open_scenario(one: Scenario) -> Problem:
        Path("config.yaml").write_text(one.config_text)
        problem = open_problem(Path("config.yaml"), command=None, state_dir=tmp_path, machine=one.machine)
        problem.state.create()
        return problem

    return open_scenario


def quiet(one: Scenario) -> Scenario:
    """The scenario without noise, drift and accidents."""
    habits = replace(
        one.training.habits,
        noise=0.0,
        step_noise=0.0,
        long_steps=0.0,
        work_spread=0.0,
        warm_up=0.0,
        crash_chance=0.0,
        hang_chance=0.0,
    )
    return replace(one, training=replace(one.training, habits=habits, drift=Drift()))


def random_points(space: Space, count: int, seed: int = 0) -> list[Values]:
    """Some points of a space."""
    rng = random.Random(seed)
    return [{knob.path: rng.choice(knob.choices) for knob in space.knobs} for _ in range(count)]


def long_run(one: Scenario, plan: TrialPlan) -> float:
    """Samples per second over the whole second epoch of a run."""
    ends_s: list[float] = []
    samples = 0.0

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        nonlocal samples
        for event in events:
            if event.kind == "step" and len(ends_s) == 1:
                samples += event.samples or 0.0
            if event.kind == "epoch_end":
                ends_s.append(event.t_s)
        return Stop.ENOUGH if len(ends_s) >= 2 else None

    one.runner(VirtualClock(), seed=0, fresh_processes=True).run(plan, watch, math.inf)
    return samples / (ends_s[1] - ends_s[0])


def end_of(one: Scenario, plan: TrialPlan) -> Ending:
    """Return the ending of a trial that nobody stops before three minutes and three bad losses are over."""
    seen: list[TraineeEvent] = []
    clock = VirtualClock()
    trial_exit = one.runner(clock, seed=0, fresh_processes=True).run(plan, seen.extend, clock.now_s() + 180.0)
    return ending_of(replace(trial_exit, stop=trial_exit.stop and Stop.ENOUGH), seen)[0]


def executed(one: Scenario, problem: Problem, values: Values, *, fresh_processes: bool = True) -> Execution:
    """One trial of a point, measured as a search does."""
    clock = VirtualClock()
    runner = one.runner(clock, seed=0, fresh_processes=fresh_processes)
    return execute(
        problem.trainer,
        request_for(problem, values, name="run"),
        TrialPolicy(
            goal=WindowGoal(min_s=2.0, min_steps=10, target_s=2.0),
            settles=problem.space.settles(values),
            deadline_s=clock.now_s() + 1e6,
        ),
        TrialTools(runner=runner, instruments=one.instruments(runner), clock=clock),
    )


def at(one: Scenario, **kinds: Scalar) -> Values:
    """Today's point with some knobs turned, named by their kinds."""
    return {PATHS[kind]: kinds.get(kind, one.training.baseline[kind]) for kind in one.training.searched}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scenario_opens_and_its_knobs_are_known(opened: Open, seed: int) -> None:
    """A search finds every knob, knows what each means, and today's config runs."""
    one = scenario(seed)
    problem = opened(one)
    assert problem.skipped == ()
    assert {knob.path: knob.kind for knob in problem.space.knobs} == {
        PATHS[kind]: kind for kind in one.training.searched
    }
    assert 200 <= problem.space.size <= 50_000
    assert one.speed(problem.space.baseline) > 0.0
    assert one.speed(problem.space.baseline) == one.speed({})
    problem.require_runnable()


def test_any_sixteen_in_a_row_have_all_families_on_all_machines() -> None:
    """Averages over them weigh all families and machines alike."""
    for start in (0, 5, 1000):
        some = [scenario(seed) for seed in range(start, start + 16)]
        assert len({(one.family, one.machine_name) for one in some}) == 16


@pytest.mark.parametrize("seed", ONE_OF_EACH)
def test_the_truth_is_the_long_run_of_a_run(opened: Open, seed: int) -> None:
    """Samples per second of an epoch with warm caches are what `speed` says, for points of all kinds."""
    one = quiet(scenario(seed))
    problem = opened(one)
    points = [problem.space.baseline, one.best()[0], *random_points(problem.space, 8, seed)]
    running = [values for values in points if one.speed(values) > 0.0]
    assert len(running) >= 4
    for number, values in enumerate(running):
        shown = long_run(one, plan_trial(problem.trainer, problem.space.keys(values), trial=f"run-{number}"))
        assert shown == pytest.approx(one.speed(values), rel=0.01)


@pytest.mark.parametrize("seed", ONE_OF_EACH)
def test_a_search_measures_the_truth(opened: Open, seed: int) -> None:
    """The windows of the baseline and of the best point show the truth, within the error of a short window."""
    one = quiet(scenario(seed))
    problem = opened(one)
    for values in (problem.space.baseline, one.best()[0]):
        done = executed(one, problem, values)
        assert done.validity is Validity.GOOD
        assert done.measurement is not None
        assert done.measurement.samples_per_s == pytest.approx(one.speed(values), rel=0.1)
        done.folder.delete()


@pytest.mark.parametrize("seed", [2, 3, 7])
def test_the_best_is_the_best_of_all(opened: Open, seed: int) -> None:
    """Asked one by one, no point of the whole space is faster."""
    one = scenario(seed)
    space = opened(one).space
    assert space.size <= 2000
    every = (dict(zip(space.baseline, values, strict=True)) for values in product(*(k.choices for k in space.knobs)))
    values, speed = one.best()
    assert space.contains(values)
    assert speed == one.speed(values) == pytest.approx(max(map(one.speed, every)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_family_is_what_it_is_called(seed: int) -> None:
    """Today the loader is slower than the step, or the step than the loader, or a batch that lacks memory is best."""
    one = scenario(seed)
    pace = pace_of(one.training.baseline, one.training.workload, one.place)
    load_s, compute_s = float(pace.load_s), float(pace.compute_s)
    if one.family == "input-bound":
        assert load_s > compute_s
    elif one.family == "compute-bound":
        assert load_s < compute_s
    elif one.family == "memory-bound":
        hardware = one.place.hardware
        roomy = replace(
            hardware, memory_bytes=100 * hardware.memory_bytes, gpu_memory_bytes=100 * hardware.gpu_memory_bytes
        )
        unlimited = replace(one, place=replace(one.place, hardware=roomy))
        batches = choices_of("batch_size", one.training.baseline, one.place, one.training.workload)
        points = [{PATHS["batch_size"]: batch} for batch in batches]
        assert max(map(unlimited.speed, points)) > max(map(one.speed, points))
    else:
        assert 0.4 < load_s / compute_s < 2.5


@pytest.mark.parametrize("seed", [2, 6, 10, 14])
def test_memory_ends_at_an_edge(opened: Open, seed: int) -> None:
    """Up to some batch a trial goes on, beyond it ends by the name of the memory that it lacks."""
    one = quiet(scenario(seed))
    problem = opened(one)
    missing = Ending.OUT_OF_GPU_MEMORY if one.machine.gpus else Ending.OUT_OF_HOST_MEMORY
    batches = problem.space.knob(PATHS["batch_size"]).choices
    points = [at(one, batch_size=batch) for batch in batches]
    fits = [one.speed(values) > 0.0 for values in points]
    assert fits == sorted(fits, reverse=True)
    assert True in fits
    assert False in fits
    for number, values in enumerate(points):
        ending = end_of(one, plan_trial(problem.trainer, problem.space.keys(values), trial=f"run-{number}"))
        assert ending is (Ending.STOPPED if fits[number] else missing)


def test_combinations_that_do_not_train_end_by_their_names(opened: Open) -> None:
    """They crash or diverge, the truth about them is 0, and today's config is none of them."""
    endings: dict[Ending, int] = {}
    for seed in range(100):
        one = quiet(scenario(seed))
        for trap in one.training.traps:
            if set(trap.where) <= set(one.training.searched):
                values = at(one, **trap.where)
                assert one.speed(values) == 0.0
                ending = end_of(
                    one, plan_trial(opened(one).trainer, opened(one).space.keys(values), trial=f"run-{seed}")
                )
                endings[ending] = endings.get(ending, 0) + 1
    assert set(endings) >= {Ending.CRASHED, Ending.DIVERGED}
    assert set(endings) <= {Ending.CRASHED, Ending.DIVERGED, Ending.OUT_OF_GPU_MEMORY}


@pytest.mark.parametrize("seed", ONE_OF_EACH)
def test_the_probes_see_what_the_run_takes(opened: Open, seed: int) -> None:
    """Cores and memory are within the machine's; a GPU is seen where there is one, and only there."""
    one = quiet(scenario(seed))
    problem = opened(one)
    measurement = executed(one, problem, problem.space.baseline).measurement
    assert measurement is not None
    assert 0.0 < (measurement.cpu_cores or 0.0) <= one.machine.cpu_cores
    assert 0 < (measurement.peak_memory_bytes or 0) <= one.machine.memory_bytes
    if one.machine.gpus:
        assert 0.0 < (measurement.gpu_utilization or 0.0) <= 1.0
        assert 0 < (measurement.gpu_memory_bytes or 0) <= (one.machine.gpus[0].memory_bytes or 0)
    else:
        assert measurement.gpu_utilization is None
        assert measurement.gpu_memory_bytes is None


def test_where_knobs_do_nothing_all_points_are_one(opened: Open) -> None:
    """The truth, the trials and the best are today's, whatever is turned."""
    one = quiet(null_scenario(4))
    problem = opened(one)
    baseline = one.speed({})
    shown: Mapping[int, float] = {
        number: long_run(one, plan_trial(problem.trainer, problem.space.keys(values), trial=f"run-{number}"))
        for number, values in enumerate(random_points(problem.space, 5))
    }
    assert list(shown.values()) == pytest.approx([baseline] * 5, rel=0.01)
    assert one.best() == (problem.space.baseline, baseline)
    assert {one.speed(values) for values in random_points(problem.space, 50)} == {baseline}


def test_noise_is_as_seen_on_real_machines() -> None:
    """Runs of one point spread by 3 to 10 %, 8 % on average; some machines drift, some throttle, some do neither."""
    some = [scenario(seed).training for seed in range(200)]
    spreads = [training.habits.noise for training in some]
    assert 0.03 <= min(spreads) < max(spreads) <= 0.10
    assert sum(spreads) / len(spreads) == pytest.approx(0.08, abs=0.005)
    assert 0.2 < sum(training.drift == Drift() for training in some) / len(some) < 0.8
    assert any(training.drift.throttles_per_h for training in some)

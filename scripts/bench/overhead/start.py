"""Overhead of a trial's start and end, for fresh processes and for forks of a warm interpreter, in turn.

Each trial runs the baseline and is stopped at its 10th step after the first. Its time is divided into:

* *to main*: from the call that starts the trial until the first line of a small script (stamped_main.py), which then
  runs the trainer's own script or module. It is the same script for both kinds. The start of the warm interpreter is
  left out: two earlier trials, which do not count, cause it.
* *to first step*: from there until the trainer reports its first step, imports included unless they were made
  beforehand.
* *to the end*: from the decision to stop the trial until the last of its processes is reaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from autotune.clock import Clock, SystemClock
from autotune.errors import CommandError, TrialError
from autotune.records import Stop, TraineeEvent, TrialPlan
from autotune.search.problem import Problem, open_problem
from autotune.trial.execution import plan_trial
from autotune.trial.folders import TrialFolder
from autotune.trial.launch import Guard, ProcessRunner, Runner
from autotune.trial.python_command import python_command
from autotune.trial.warm import ZygoteRunner
from scripts.bench.results import Commands

_STAMPED_MAIN = Path(__file__).with_name("stamped_main.py")  # a script, not for importing
_STEPS = 11
_LONGEST_RUN_S = 120.0
_RUNS_TO_WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class _Times:
    to_main_s: float
    to_first_step_s: float
    to_end_s: float

    @property
    def overhead_s(self) -> float:
        """Overhead of the runner, without the trainer's own time."""
        return self.to_main_s + self.to_end_s


class _StopAfterSteps:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps: list[TraineeEvent] = []
        self.stopped_s: float | None = None

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        self.steps += (event for event in events if event.kind == "step")
        if self.stopped_s is None and len(self.steps) >= _STEPS:
            self.stopped_s = self._clock.now_s()
            return Stop.ENOUGH
        return None


def measure_start(config: Path, *, trials: int, state_dir: Path | None) -> None:
    """Measure both kinds of trials and print their times.

    Raises:
        AutotuneError: The config or its command cannot be used, or a trial ended before its 11th step.
    """
    problem = open_problem(config, command=None, state_dir=state_dir)
    problem.state.create()
    problem.require_runnable()
    clock = SystemClock()
    stamp = f"{clock.utc():%Y%m%dT%H%M%SZ}"
    with Guard() as one, Guard() as other:
        fresh, warm = ProcessRunner(one, clock), ZygoteRunner(other, clock, print)
        for number in range(_RUNS_TO_WARM_UP):
            _measure(problem, warm, clock, f"start-{stamp}-warm-up-{number}")
        times: dict[str, list[_Times]] = {"fresh": [], "warm": []}
        for number in range(trials):
            times["fresh"].append(_measure(problem, fresh, clock, f"start-{stamp}-fresh-{number:03d}"))
            times["warm"].append(_measure(problem, warm, clock, f"start-{stamp}-warm-{number:03d}"))
    print(f"median [least, most] of {trials} trials, in seconds")
    print(f"{'':<6}{'to main':>24}{'to first step':>24}{'to the end':>24}{'to main + to the end':>24}")
    for kind, measured in times.items():
        columns = (
            [time.to_main_s for time in measured],
            [time.to_first_step_s for time in measured],
            [time.to_end_s for time in measured],
            [time.overhead_s for time in measured],
        )
        print(f"{kind:<6}" + "".join(f"{_spread(column):>24}" for column in columns))
    print(f"{warm.fallbacks} forks were given up")


def _measure(problem: Problem, runner: Runner, clock: Clock, trial: str) -> _Times:
    plan = _stamped(plan_trial(problem.trainer, problem.space.keys(problem.space.baseline), trial=trial))
    folder = TrialFolder(plan.folder)
    watch = _StopAfterSteps(clock)
    asked_s = clock.now_s()
    ended = problem.trainer.run(runner, plan, watch, asked_s + _LONGEST_RUN_S)
    if watch.stopped_s is None:
        raise TrialError(
            f"the trial ended after {len(watch.steps)} steps",
            where=str(folder.stderr),
            remedy=f"It has to train for {_STEPS} steps; read what it said there.",
        )
    main_s = float((folder.path / "main_started").read_text(encoding="ascii"))
    folder.delete()
    return _Times(
        to_main_s=main_s - asked_s,
        to_first_step_s=watch.steps[0].t_s - main_s,
        to_end_s=ended.ended_s - watch.stopped_s,
    )


def _stamped(plan: TrialPlan) -> TrialPlan:
    command = python_command(plan.argv, cwd=plan.cwd, search_path=plan.env.get("PATH"))
    if command is None:
        raise CommandError(
            "the command is not one that a warm interpreter can carry out",
            where=" ".join(plan.argv),
            remedy="It has to be a Python script or module, started by python itself.",
        )
    what = ("-m", command.module) if command.module is not None else (command.script or "",)
    argv = (plan.argv[0], *command.options, str(_STAMPED_MAIN), *what, *command.arguments)
    return TrialPlan(
        trial_id=plan.trial_id, folder=plan.folder, argv=argv, cwd=plan.cwd, env=plan.env, config_text=plan.config_text
    )


def _spread(times: Sequence[float]) -> str:
    return f"{median(times):.3f} [{min(times):.3f}, {max(times):.3f}]"


def add_start(commands: Commands) -> None:
    """Add the parser of ``start``."""
    parser = commands.add_parser("start", help="measure what starting and stopping a trial takes, fresh and warm")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--state-dir", type=Path)
    parser.set_defaults(run=lambda given: measure_start(given.config, trials=given.trials, state_dir=given.state_dir))

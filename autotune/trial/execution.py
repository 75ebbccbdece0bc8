"""One trial, from its plan to its numbers: start, watch, stop, measure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from autotune.clock import Clock
from autotune.folders.trial_folder import RunFolder
from autotune.measure.probe import GpuUse
from autotune.measure.window import Window, WindowGoal
from autotune.process.launch import Runner
from autotune.records import Ending, Measurement, RunRecord, Scalar, Stop, TraineeEvent, Validity, Values
from autotune.search.gpus import run_gpus
from autotune.search.problem import Setup
from autotune.trial.instruments import Instruments
from autotune.trial.losses import Losses
from autotune.trial.outcome import Clues, ending_of
from autotune.trial.plan import plan_run
from autotune.trial.stop_rule import RunWatch

_MEASURED_ENDINGS = (Ending.COMPLETED, Ending.STOPPED, Ending.CRASHED, Ending.KILLED_BY_BUDGET, Ending.HUNG)
_UNHURT = (Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET)
_FOR_WANT_OF_A_GPU = (
    Ending.CRASHED,
    Ending.HUNG,
    Ending.NEVER_STARTED,
    Ending.NO_STEPS,
    Ending.OBSERVER_MISSING,
)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What a run did and showed.

    Attributes:
        ending: Why it ended.
        detail: One line on that.
        validity: Whether its numbers are fit to be compared.
        window: Its steady window; None if there is none.
        measurement: Its numbers; None if there are none.
        conditions: What they depend on that was seen during the run.
        duration_s: From the decision to make it until the last of its processes was gone, without the time that the
            runner took to get ready.
        saw_a_pass: Whether it came to the end of a pass over the data.
        stderr_tail: The last lines of its stderr.
        folder: Its folder.
        losses: How its loss went.
    """

    ending: Ending
    detail: str
    validity: Validity
    window: Window | None
    measurement: Measurement | None
    duration_s: float
    saw_a_pass: bool
    stderr_tail: str
    folder: RunFolder
    conditions: Mapping[str, Scalar] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)

    def close(self, record: RunRecord, *, keep_outputs: bool, is_over: Callable[[], bool] = lambda: False) -> None:
        """Leaves the record in the run's folder, and takes away what the trainer wrote into its outputs.

        Args:
            record: The run, as it stands in the record.
            keep_outputs: Whether they stay.
            is_over: Whether there is no more time for taking them away: thousands of folders take seconds.
        """
        self.folder.write_result(asdict(record))
        if not keep_outputs:
            self.folder.discard_outputs(is_over)


def execute(
    setup: Setup,
    runner: Runner,
    instruments: Instruments,
    clock: Clock,
    values: Values,
    *,
    run: str,
    goal: WindowGoal,
    settles: bool,
    filling: bool = False,
    deadline_s: float,
    give_up_s: float = math.inf,
    start_timeout_s: float | None = None,
    hopeless_below: float = 0.0,
    todays_losses: Losses | None = None,
    outruns_from: float = 0.0,
    progress: Callable[[int], None] = lambda _steps: None,
) -> Execution:
    """Makes one run of a point.

    Args:
        setup: What is tuned.
        runner: Makes the run.
        instruments: Watch it; closed with it.
        clock: Source of time.
        values: The point.
        run: Name of the run.
        goal: How long to measure.
        settles: Whether measuring starts only after one pass over the data.
        filling: Whether it would have to, but caches take too long to fill: it is measured while they are filled.
        deadline_s: When the run is killed if it still goes on.
        give_up_s: When it is stopped with whatever it has shown.
        start_timeout_s: How long its first step may take; None for the limit in the config.
        hopeless_below: Samples per second that at least one step has to reach, else the run is stopped early.
        todays_losses: How the loss of today's config went; None if that is not known.
        outruns_from: Samples per second that a run hardly makes which leaves no work out; 0 if that is not known.
        progress: Told the steps so far while it runs.

    Raises:
        AutotuneError: The run cannot be planned or started.
    """
    decided_s = clock.now_s()
    plan = plan_run(setup, values, run=run)
    watch = RunWatch(
        clock,
        goal=goal,
        settles=settles,
        start_timeout_s=setup.limits.start_timeout_s if start_timeout_s is None else start_timeout_s,
        started_s=decided_s,
        give_up_s=give_up_s,
        hopeless=lambda window: window.fastest_step_samples_per_s(setup.batch_size(values)) < hopeless_below,
        progress=progress,
        todays_losses=todays_losses,
    )
    setup.state.require_space()
    folder = setup.state.run(setup.study, run)
    folder.create(output_paths=setup.settings.moved_outputs(folder.outputs).values())
    with instruments:
        instruments.expect(plan.run_id, run_gpus(setup, values), folder.samples)

        def watched(events: Sequence[TraineeEvent]) -> Stop | None:
            instruments.watch(events)
            stop = watch(events)
            return Stop.GPU_LOST if instruments.why_lost else stop

        asked_s = clock.now_s()
        trial_exit = runner.run(plan, watched, deadline_s)
        window = watch.window()
        rate = window.samples_per_s(setup.batch_size(values)) if window else 0.0
        clues = Clues(
            stdout_tail=folder.stdout_tail(),
            gpu_memory_full=lambda: instruments.memory_is_full(trial_exit),
            outruns=0.0 < outruns_from < rate,
        )
        ending, detail = ending_of(trial_exit, watch.events, clues)
        if instruments.why_lost and ending in (Ending.GPU_LOST, *_FOR_WANT_OF_A_GPU):
            ending, detail = Ending.GPU_LOST, instruments.why_lost
        window = window if ending in _MEASURED_ENDINGS else None
        validity = _validity(goal, watch, window, ending)
        measurement, seen = None, GpuUse()
        if window:
            measurement, seen = instruments.measure(
                window,
                started_s=trial_exit.started_s,
                default_samples=setup.batch_size(values),
                filling=filling,
            )
    return Execution(
        ending=ending,
        detail="; ".join(part for part in (detail, seen.remark) if part),
        validity=seen.spoiled if seen.spoiled and validity is Validity.GOOD else validity,
        window=window,
        measurement=measurement,
        conditions=seen.conditions,
        # A warm interpreter that had to be made first is there for the next runs too.
        duration_s=clock.now_s() - decided_s - max(0.0, trial_exit.started_s - asked_s),
        saw_a_pass=watch.saw_a_pass,
        stderr_tail=trial_exit.stderr_tail,
        folder=folder,
        losses=watch.losses,
    )


def _validity(goal: WindowGoal, watch: RunWatch, window: Window | None, ending: Ending) -> Validity:
    if watch.is_cold and watch.steps and ending in _UNHURT:
        return Validity.COLD
    if watch.is_cold:
        return Validity.UNMEASURED
    if window and window.time_s >= goal.min_s and window.steps >= goal.min_steps:
        return Validity.GOOD
    return Validity.NOT_STEADY if watch.steps else Validity.UNMEASURED

"""The parts of `autotune search`: what is said before it, the record that it goes on with, and the search itself."""

from collections.abc import Iterable

from rich.console import Console

from autotune.clock import Clock
from autotune.commands.printing import say_aside
from autotune.commands.showing import failures, show_plan
from autotune.errors import AutotuneError, RunError
from autotune.events import Event
from autotune.gpu.collect.collector import GpuSampling
from autotune.process.guard import Guard
from autotune.process.orphans import sweep
from autotune.process.zygote import ZygoteRunner
from autotune.protect.checkpoints import Keepsakes
from autotune.report.answer import print_failures
from autotune.report.event_log import EventLog
from autotune.report.live import SearchDisplay
from autotune.results import SearchResult
from autotune.search.budget import Budget
from autotune.search.gpus import busy_remarks, remarks_on_gpus, require_free_gpus
from autotune.search.problem import Setup
from autotune.search.tuner import Tuner
from autotune.study.journal import set_aside
from autotune.study.record import Study
from autotune.trial.instruments import Instruments


def preview(console: Console, setup: Setup, budget_s: float, clock: Clock) -> None:
    """Shows what a search would do, and what could be in its way."""
    remarks = (*setup.state.remarks, *remarks_on_gpus(setup))
    show_plan(console, setup, budget_s)
    _print_all(console, (f"score: {setup.measures}", *remarks, *busy_remarks(setup, clock)))


def say_what_comes(console: Console, setup: Setup, budget_s: float) -> None:
    """Shows what a search is about to do."""
    remarks = (*setup.state.remarks, *remarks_on_gpus(setup))
    show_plan(console, setup, budget_s)
    _print_all(console, remarks)


def open_study(setup: Setup, console: Console, clock: Clock, *, fresh: bool, allow_busy_gpu: bool) -> Study:
    """Opens the record, and sees to it that nothing is in the way of its next runs.

    To be called by who holds the study.

    Args:
        setup: What is tuned.
        console: For what the user should know.
        clock: The machine's clock.
        fresh: Whether to start a new record.
        allow_busy_gpu: Whether the search goes on beside somebody else.

    Raises:
        StudyError: The record cannot be read or written.
        GpuError: Somebody else is on the GPU.
    """
    if fresh:
        set_aside(setup.journal, clock)
    study = Study(setup.study, setup.journal)
    if study.torn_bytes:
        console.print("The last run of an earlier search was cut off by a crash; all others are there.")
    if swept := sweep(setup.state.runs(setup.study), clock).killed:
        console.print(f"Ended {len(swept)} processes that an earlier search had left running.")
    if allow_busy_gpu:
        _print_all(console, (f"{remark}; the search goes on beside it." for remark in busy_remarks(setup, clock)))
    else:
        require_free_gpus(setup, clock)  # after the sweep: it may have been an earlier run of ours
    return study


class Searching:
    """A search with its display: what happens is shown, logged, and kept.

    Args:
        setup: What is tuned.
        study: The record.
        guard: Keeps the runs. Owned by the caller.
        budget: The wall.
        clock: The machine's clock.
        console: For the display.
        sampling: Watches the GPUs; None where none is used. Owned by the caller.
        keepsakes: Looks after the user's checkpoints. Owned by the caller.
        name: Of the search.
        seed: Makes its choices repeatable.
    """

    def __init__(
        self,
        setup: Setup,
        study: Study,
        guard: Guard,
        budget: Budget,
        clock: Clock,
        *,
        console: Console,
        sampling: GpuSampling | None,
        keepsakes: Keepsakes,
        name: str,
        seed: int,
    ) -> None:
        self._console = console
        self._sampling = sampling
        self._keepsakes = keepsakes
        self._runner = ZygoteRunner(guard, clock)
        self.display = SearchDisplay(console, clock, started_s=budget.started_s, budget_s=budget.budget_s)
        log = EventLog(setup.state.searches / f"{name}.events.jsonl", clock)
        self.tuner = Tuner(
            setup,
            study,
            self._runner,
            budget,
            clock,
            (log, self.display, keepsakes.after, self._say_remarks),
            name=name,
            seed=seed,
            instruments=lambda: Instruments.of_machine(clock, sampling),
        )

    def run(self) -> SearchResult:
        """Searches; see `Tuner.run`."""
        with self.display:
            try:
                result = self.tuner.run()
            except AutotuneError:
                if loss := self.settle():
                    say_aside(f"autotune: {loss}")
                print_failures(self._console, failures(self.tuner.failures, self.tuner.outcomes))
                raise
            if loss := self.settle():
                say_aside(f"autotune: {loss}")
            return result

    def settle(self) -> RunError | None:
        """Looks after what a run has done that ended without a word, and says what there is to say.

        Returns:
            What became of the user's files and cannot be put right; None if nothing did.
        """
        loss = self._keepsakes.loss("the last run")
        self._say_remarks()
        return loss

    def _say_remarks(self, _event: Event | None = None) -> None:
        sampling = (self._sampling.remarks,) if self._sampling else ()
        for remarks in (self._runner.remarks, self.tuner.remarks, self._keepsakes.remarks, *sampling):
            while remarks:
                self._console.print(remarks.popleft(), soft_wrap=True)


def _print_all(console: Console, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        console.print(sentence, soft_wrap=True)

"""Progress of a search: live on a terminal, one line per event in a file."""

from collections.abc import Mapping
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.clock import Clock, format_duration
from autotune.config.keys import counted
from autotune.events import (
    Event,
    IncumbentChanged,
    PhaseChanged,
    Remark,
    SearchStarted,
    TrialEnded,
    TrialProgress,
    TrialStarted,
)
from autotune.metrics import METRICS
from autotune.records import Ending, GpuRole, TrialRecord, Validity
from autotune.report.plain_text import changes_text, purpose_text, safe_text


class SearchDisplay:
    """Display of a search's events; plain lines if the console isn't a terminal."""

    def __init__(self, console: Console, clock: Clock, *, started_s: float, budget_s: float) -> None:
        self._console = console
        self._clock = clock
        self._started_s = started_s
        self._budget_s = budget_s
        self._phase = "starting"
        self._trials = 0
        self._gpu = ""  # of the last trial
        self._best: IncumbentChanged | None = None
        self._running: TrialStarted | None = None
        self._progress: TrialProgress | None = None
        self._live = Live(
            get_renderable=self._draw, console=console, refresh_per_second=4, transient=True, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case SearchStarted():
                self._phase, self._budget_s = "today's config", event.budget_s
            case TrialStarted():
                self._running, self._progress = event, None
            case TrialProgress():
                self._progress = event
            case TrialEnded():
                self._running, self._trials, self._gpu = None, self._trials + 1, gpu_text(event.trial)
            case IncumbentChanged(same_training=False):
                self._best = event
            case PhaseChanged():
                self._phase = event.phase
        line = event_line(event, self._elapsed_s())
        if line is not None:
            # On a terminal, lines of trials are cut at its width.
            is_trial = isinstance(event, TrialEnded | IncumbentChanged) and self._console.is_terminal
            text = Text(safe_text(line))  # Text would drop some control characters rather than show them
            self._console.print(text, no_wrap=True, overflow="ellipsis" if is_trial else None, soft_wrap=not is_trial)

    def _elapsed_s(self) -> float:
        return self._clock.now_s() - self._started_s

    def _draw(self) -> Group:
        elapsed_s = self._elapsed_s()
        left_s = max(0.0, self._budget_s - elapsed_s)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self._budget_s, completed=min(elapsed_s, self._budget_s), width=24),
            Text(f"{format_duration(elapsed_s)} of {format_duration(self._budget_s)}"),
            Text(f"{self._trials} trials" + (f", last {self._gpu}" if self._gpu else "")),
            Text(self._phase, style="bold"),
            Text(f"at most {format_duration(left_s)} left", style="dim"),
        )
        best = Text("best   ", style="dim")
        if self._best:
            best.append(f"{self._best.speedup:.2f}x today", style="bold green")
            best.append(f"  {changes_text(self._best.changes)}", style="default")
        else:
            best.append("none better than today's config yet", style="default")
        now = Text("now    ", style="dim")
        if self._running:
            event = self._running
            purpose = purpose_text(event.purpose.value, event.pair)
            now.append(f"trial {event.number} {purpose}: {changes_text(event.changes)}", style="default")
            if self._progress and self._progress.steps:
                now.append(f"  {counted(self._progress.steps, 'step')}", style="cyan")
                if self._progress.utilization:
                    now.append(f"  {roles_text(self._progress.utilization)}", style="cyan")
            elif self._progress:
                now.append(f"  starting, {format_duration(self._progress.elapsed_s)}", style="cyan")
        for line in (best, now):
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(Text(), bar, best, now)


# Lines of events.


def event_line(event: Event, elapsed_s: float) -> str | None:
    """Return an event's line, if any."""
    stamp = f"[{format_duration(elapsed_s):>6}]"
    match event:
        case SearchStarted():
            found = f", {event.trials_found} earlier trials found" if event.trials_found else ""
            score, _, unmeasured = event.measures.partition("; ")
            line = f"{stamp} study {event.study}{found}; score: {score}"
            return f"{line}\n{unmeasured}" if unmeasured else line
        case TrialEnded():
            return f"{stamp} {trial_line(event)}"
        case Remark():
            return event.text
        case PhaseChanged():
            return f"{stamp} {event.phase}: {event.why}"
        case IncumbentChanged():
            kind = ", training unchanged" if event.same_training else ""
            return f"{stamp} best so far{kind}: {event.speedup:.2f}x today's speed with {changes_text(event.changes)}"
    return None


def gpu_text(trial: TrialRecord) -> str:
    """Return GPU utilization: ``GPU 41 %``, or ``data GPU 62 %, model GPU 91 %``, or ""."""
    gpus = trial.measurement.gpus if trial.measurement else ()
    by_role = {gpu.role: gpu.figures.utilization for gpu in gpus if gpu.role and gpu.figures.utilization is not None}
    if by_role:
        return roles_text(by_role)
    utilization = trial.measurement.gpu_utilization if trial.measurement else None
    return "" if utilization is None else f"GPU {100 * utilization:.0f} %"


def roles_text(utilization: Mapping[GpuRole, float]) -> str:
    """Return utilization by role, data first."""
    return ", ".join(f"{role.value} GPU {100 * utilization[role]:.0f} %" for role in GpuRole if role in utilization)


_LONGEST_LINE = 90  # with the stamp, a trial's line fits into 100 columns


def trial_line(event: TrialEnded) -> str:
    """Return a finished trial's line."""
    trial = event.trial
    measured = trial.measurement
    speed = METRICS["samples_per_s"].text(measured.samples_per_s) if measured else "unmeasured"
    if trial.conditions.free_data_ratio is not None:
        speed = "in phases"  # some of them train on kept batches, or only load
    ratio = f"{event.speedup:.2f}x" if event.speedup is not None else ""
    words = [] if trial.ending in (Ending.COMPLETED, Ending.STOPPED) else [trial.ending.value]
    if trial.comparable and trial.ending is Ending.KILLED_BY_BUDGET:
        words = ["cut short"]  # measured for long enough
    if trial.validity is not Validity.GOOD and measured:
        words.append(trial.detail or trial.validity.value)
    ending = f" [{', '.join(words)}]" if words else ""
    gpu = f"  {gpu:>9}" if (gpu := gpu_text(trial)) else ""
    line = (
        f"trial {trial.number:<3} {purpose_text(trial.purpose.value, trial.pair):<10} {speed:>10} {ratio:>6}"
        f" {format_duration(trial.duration_s):>6}{gpu}{ending}  {changes_text(event.changes)}"
    )
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"

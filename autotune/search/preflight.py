"""Preflight: a short baseline trial that checks that steps are seen and the copy of the config is read."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from autotune.clock import Clock, format_duration
from autotune.config.command import names_config, takes_values
from autotune.config.hydra import ComposedDocument
from autotune.config.load import Settings
from autotune.config.outputs import path_of, unquoted, written_like
from autotune.errors import TrialError
from autotune.files import create_private
from autotune.measure.probe import TrialGpus
from autotune.records import CONFIGS_OPENED, Ending, Stop, TraineeEvent
from autotune.search.problem import Problem
from autotune.trial.error_text import one_line, quoted_output
from autotune.trial.execution import plan_trial
from autotune.trial.folders import TrialFolder, delete_tree
from autotune.trial.instruments import Instruments
from autotune.trial.launch import Runner
from autotune.trial.outcome import TrialEvidence, ending_of
from autotune.trial.stop_rule import UnseenSteps

_TIME_LIMIT_S = 60.0  # from the first step to the third
_REPORT_AFTER_S = 30.0  # without a step, after which the user is informed
_LONG_AGO_S = 1_000_000_000  # since the epoch: in 2001


class Reached(StrEnum):
    """Whether the trainer received the trial's config."""

    READ = "read"  # the copy was opened and read during the trial
    ON_THE_COMMAND_LINE = "on the command line"  # values are part of the command itself
    IN_THE_ENVIRONMENT = "in the environment"  # variables are all that varies
    IN_THE_CODE = "in the code"  # as arguments of the trainer's own calls
    NOT_READ = "not read"
    UNKNOWN = "unknown"  # the file system does not note when files are read


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Result of one short trial.

    Attributes:
        first_step_s: Since the start of the process; None without a step.
        rank_nodes: Node of each rank by its number; empty for a single process.
    """

    steps: int
    first_step_s: float | None
    reached: Reached
    ending: Ending
    detail: str
    stderr_tail: str
    folder: TrialFolder
    rank_nodes: Mapping[int, str]


def run_preflight(
    problem: Problem,
    runner: Runner,
    clock: Clock,
    *,
    name: str,
    with_section: bool = False,
    start_timeout_s: float | None = None,
    settings: Settings | None = None,
    wall_s: float = math.inf,
    tell: Callable[[str], object] = lambda _sentence: None,
) -> Preflight:
    """Run a baseline trial until a few steps were seen.

    Args:
        with_section: Whether its config contains the section; then one step is enough.
        start_timeout_s: Limit to the first step; None for the section's.
        settings: For this trial only; None for the problem's.
        wall_s: Deadline on `clock`.
        tell: Called with a sentence if the first step is late.
    """
    trainer = problem.trainer
    trainer = replace(trainer, settings=replace(settings or trainer.settings, keeps_section=with_section))
    plan = plan_trial(trainer, problem.space.keys(problem.space.baseline), trial=name)
    folder = trainer.make_folder(name)
    was_read = _backdate_access_time(folder.path / plan.config_name)
    with Instruments.of_machine(clock, None) as instruments:
        instruments.expect(plan.trial_id, TrialGpus(uuids=()), folder.samples)
        limit_s = problem.limits.start_timeout_s if start_timeout_s is None else start_timeout_s
        enough = 1 if with_section else 3

        def is_over(events: Sequence[TraineeEvent], now_s: float) -> bool:
            steps = _steps(events)
            return len(steps) >= enough or now_s - steps[0].t_s > _TIME_LIMIT_S

        def report(waited_s: float) -> None:
            tell(_waiting_message(folder, waited_s, limit_s))

        watch = TrialWatch(clock, instruments, limit_s, is_over, report)
        trial_exit = trainer.run(runner, plan, watch, min(wall_s, clock.now_s() + limit_s + 2 * _TIME_LIMIT_S))
    folder.discard_temporary()  # the rest stays, to diagnose a failure
    stdout = folder.stdout_tail()
    evidence = TrialEvidence(stdout_tail=stdout, why_not_started=watch.why_not_started)
    ending, detail = ending_of(trial_exit, watch.events, evidence)
    return Preflight(
        steps=len(_steps(watch.events)),
        first_step_s=None if watch.first_step_s is None else watch.first_step_s - trial_exit.started_s,
        reached=_reached(problem, folder, was_read),
        ending=ending,
        detail=detail,
        stderr_tail=quoted_output(trial_exit.stderr_tail, stdout),
        folder=folder,
        rank_nodes={event.rank.number: event.rank.node for event in watch.events if event.rank is not None},
    )


class TrialWatch:
    """Watch of a trial outside a search: stops it after enough steps, or if none can be expected.

    Args:
        is_over: Returns whether the events, with at least one step, suffice at that time.
        on_wait: Called once with the time without a step, if that is long.
    """

    def __init__(
        self,
        clock: Clock,
        instruments: Instruments,
        start_timeout_s: float,
        is_over: Callable[[Sequence[TraineeEvent], float], bool],
        on_wait: Callable[[float], object] = lambda _waited_s: None,
    ) -> None:
        self._clock = clock
        self._instruments = instruments
        self._start_timeout_s = start_timeout_s
        self._is_over = is_over
        self._on_wait = on_wait
        self._started_s = clock.now_s()
        self._unseen = UnseenSteps(instruments.cpu_cores, start_timeout_s)
        self._has_reported = False
        self.events: list[TraineeEvent] = []
        self.first_step_s: float | None = None
        self.why_not_started = ""

    def __call__(self, events: Sequence[TraineeEvent]) -> Stop | None:
        self._instruments.watch(events)
        self._unseen.note(events)
        self.events.extend(event for event in events if event.kind != "launched")
        if self.first_step_s is None:
            self.first_step_s = next((event.t_s for event in events if event.kind == "step"), None)
        now_s = self._clock.now_s()
        if self.first_step_s is not None:
            return Stop.ENOUGH if self._is_over(self.events, now_s) else None
        self.why_not_started = self._unseen.why(now_s)
        if self.why_not_started or now_s - self._started_s > self._start_timeout_s:
            return Stop.NEVER_STARTED
        if now_s - self._started_s > _REPORT_AFTER_S and not self._has_reported:
            self._has_reported = True
            self._on_wait(now_s - self._started_s)
        return None


def _steps(events: Sequence[TraineeEvent]) -> list[TraineeEvent]:
    return [event for event in events if event.kind == "step"]


def _waiting_message(folder: TrialFolder, waited_s: float, limit_s: float) -> str:
    lines = [line for line in f"{folder.stderr_tail()}\n{folder.stdout_tail()}".splitlines() if line]
    output = f"latest output: {one_line(lines[-1])}" if lines else "no output yet"
    limit = format_duration(limit_s)
    trains = "If it trains already, report its steps: from autotune.trainee import step"
    return f"No step after {format_duration(waited_s)}, waiting for up to {limit}; {output}. {trains}"


def _backdate_access_time(path: Path) -> Callable[[], bool | None]:
    """Backdate a file's access time so that the first read updates it (``relatime``); return a check for that.

    It returns None if the file system does not record reads. Writing the config keeps the access time.
    """
    trial = path.with_name("read.test")
    for one in (trial, path):
        create_private(one, b"?")
        os.utime(one, (_LONG_AGO_S, _LONG_AGO_S))
    trial.read_bytes()
    notes_reads, inode = trial.stat().st_atime > _LONG_AGO_S, path.stat().st_ino
    trial.unlink()

    def was_read() -> bool | None:
        try:
            status = path.stat()
        except FileNotFoundError:  # deleted by the trainer
            return None
        return status.st_atime > _LONG_AGO_S if notes_reads and status.st_ino == inode else None

    return was_read


def _reached(problem: Problem, folder: TrialFolder, was_read: Callable[[], bool | None]) -> Reached:
    alone = problem.settings.section.varies_environment_alone
    if problem.settings.are_opened_by_name and not alone:
        return Reached.READ if (folder.path / CONFIGS_OPENED).exists() else Reached.NOT_READ
    if not names_config(problem.command):
        if alone:
            return Reached.IN_THE_ENVIRONMENT
        is_composed = isinstance(problem.settings.trial_document, ComposedDocument)
        is_given = is_composed or takes_values(problem.command) or not problem.settings.code
        return Reached.ON_THE_COMMAND_LINE if is_given else Reached.IN_THE_CODE
    return {True: Reached.READ, False: Reached.NOT_READ, None: Reached.UNKNOWN}[was_read()]


@dataclass(frozen=True, kw_only=True)
class RelativeOutputs:
    """Result of a trial with relative output paths, by key: `written` by it, and `proposed` for the section."""

    written: Mapping[str, str]
    proposed: Mapping[str, str]
    trial: Preflight

    def __str__(self) -> str:
        return ", ".join(f"{key}: {value}" for key, value in self.written.items())

    def error(self, detail: str, *, where: str, go_on: str = "") -> TrialError:
        """Return the error for a trainer that crashed with absolute paths."""
        keys, values = ", ".join(self.proposed), ", ".join(f"{key}: {path}" for key, path in self.proposed.items())
        return TrialError(
            f"no step was seen with absolute paths for {keys} ({detail}); with {self} there were steps",
            where=where,
            remedy="The trainer may not accept absolute paths there. Give trials a relative one in the section, with a "
            f"unique name, such as:\n  redirect_except: [{keys}]\n  set: {{{values}}}\n"
            f"All trials then share it, and their files stay there.{go_on}",
        )


def try_relative_outputs(
    problem: Problem, runner: Runner, clock: Clock, *, name: str, wall_s: float = math.inf
) -> RelativeOutputs | None:
    """Run a baseline trial with relative output paths, and delete its outputs; None without such paths."""
    written, settings = _sibling_paths(problem, f"-{name}"), problem.settings
    if not written:
        return None
    redirected = tuple(key for key in settings.outputs.redirected if key not in written)
    section = msgspec.structs.replace(settings.section, fixed={**settings.section.fixed, **written})
    settings = replace(settings, section=section, outputs=replace(settings.outputs, redirected=redirected))
    with _delete_new_outputs(problem, written, name):
        trial = run_preflight(problem, runner, clock, name=name, settings=settings, wall_s=wall_s)
    return RelativeOutputs(written=written, proposed=_sibling_paths(problem, "-trials"), trial=trial)


def _sibling_paths(problem: Problem, tag: str) -> dict[str, str]:
    """Return sibling paths, with a tag in their names, of redirected keys with relative paths."""
    found = {}
    for key in problem.settings.outputs.redirected:
        leaf = problem.settings.trial_document.leaf(key)
        folder, slash, name = unquoted(leaf.text).rstrip("/").rpartition("/")
        stem, suffix = os.path.splitext(name)
        if leaf.why_fixed or leaf.text.startswith(("/", "~")) or "://" in leaf.text or name in ("", ".", ".."):
            continue
        found[key] = written_like(f"{folder}{slash}{stem}{tag}{suffix}", leaf.text)
    return found


@contextmanager
def _delete_new_outputs(problem: Problem, written: Mapping[str, str], name: str) -> Iterator[None]:
    """Delete a trial's files next to the user's outputs, by the tag in their names, and new folders."""
    bases = (problem.settings.folder, problem.config_path.absolute().parent)
    places = {place for text in written.values() for base in bases if (place := path_of(unquoted(text), base))}
    absent = {above for place in places for above in place.parents if not os.path.lexists(above)}
    try:
        yield
    finally:
        for place in places:
            with suppress(OSError):
                for left in [one for one in place.parent.iterdir() if name in one.name]:
                    delete_tree(left)
        for above in sorted(absent, key=lambda path: -len(path.parts)):
            with suppress(OSError):
                above.rmdir()

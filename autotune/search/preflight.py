"""Preflight: one short trial of today's config, to see that it shows steps and reads its copy of the config.

A second one, whose copy holds the section as well, shows whether the trainer takes a config with a key that is not its
own: the user's real training reads that file.
"""

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
_LONG_S = 30.0  # without a step, after which somebody who waits wants to know why
_LONG_AGO_S = 1_000_000_000  # since the epoch: in 2001


class Reached(StrEnum):
    """Certainty that the trial's config came to the trainer."""

    READ = "read"  # the copy was opened and read during the trial
    ON_THE_COMMAND_LINE = "on the command line"  # values are part of the command itself
    IN_THE_ENVIRONMENT = "in the environment"  # variables are all that varies
    NOT_READ = "not read"
    UNKNOWN = "unknown"  # the file system does not note when files are read


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Result of one short trial.

    Attributes:
        first_step_s: From the start of the process to the first of them; None if there was none.
        reached: Whether the config came to the trainer.
    """

    steps: int
    first_step_s: float | None
    reached: Reached
    ending: Ending
    detail: str
    stderr_tail: str
    folder: TrialFolder


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
    """Make one trial of today's config, until a few steps were seen.

    Args:
        with_section: Whether its copy of the config holds the section too; then it is over at its first step.
        start_timeout_s: Longest time to the first step; None for that of the section.
        settings: Settings of this trial alone; None for the problem's.
        wall_s: Time at which it is ended in any case, on that clock.
        tell: Called with a sentence if the first step is long in coming.

    Raises:
        AutotuneError: The trial cannot be planned or started.
    """
    trainer = problem.trainer
    trainer = replace(trainer, settings=replace(settings or trainer.settings, keeps_section=with_section))
    plan = plan_trial(trainer, problem.space.keys(problem.space.baseline), trial=name)
    folder = trainer.make_folder(name)
    was_read = _made_unread(folder.path / plan.config_name)
    with Instruments.of_machine(clock, None) as instruments:
        instruments.expect(plan.trial_id, TrialGpus(uuids=()), folder.samples)
        limit_s = problem.limits.start_timeout_s if start_timeout_s is None else start_timeout_s
        is_told, enough = False, 1 if with_section else 3

        def is_over(events: Sequence[TraineeEvent], now_s: float) -> bool:
            steps = _steps(events)
            return len(steps) >= enough or now_s - steps[0].t_s > _TIME_LIMIT_S

        def tell_once(waited_s: float) -> None:
            nonlocal is_told
            if waited_s > _LONG_S and not is_told:
                is_told = True
                tell(_so_far(folder, waited_s, limit_s))

        watch = TrialWatch(clock, instruments, limit_s, is_over, tell_once)
        trial_exit = trainer.run(runner, plan, watch, min(wall_s, clock.now_s() + limit_s + 2 * _TIME_LIMIT_S))
    folder.discard_temporary()  # the rest of it stays for who wants to know why it failed
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
    )


class TrialWatch:
    """Watch of a trial outside of a search: ends it when it has shown enough, or when no step of it will be seen.

    Args:
        start_timeout_s: Longest time to the first step.
        is_over: Returns whether the events so far, a step among them, are enough at that time.
        on_wait: Called with the time that has passed without a step, as long as one may come.

    Attributes:
        events: All that the trial has reported.
        first_step_s: Time of its first step; None as long as there is none.
        why_not_started: Reason why no step will be seen, for people; empty if one may come.
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
        self.events: list[TraineeEvent] = []
        self.first_step_s: float | None = None
        self.why_not_started = ""

    def __call__(self, news: Sequence[TraineeEvent]) -> Stop | None:
        self._instruments.watch(news)
        self._unseen.note(news)
        self.events.extend(event for event in news if event.kind != "launched")
        if self.first_step_s is None:
            self.first_step_s = next((event.t_s for event in news if event.kind == "step"), None)
        now_s = self._clock.now_s()
        if self.first_step_s is not None:
            return Stop.ENOUGH if self._is_over(self.events, now_s) else None
        self.why_not_started = self._unseen.why(now_s)
        if self.why_not_started or now_s - self._started_s > self._start_timeout_s:
            return Stop.NEVER_STARTED
        self._on_wait(now_s - self._started_s)
        return None


def _steps(events: Sequence[TraineeEvent]) -> list[TraineeEvent]:
    return [event for event in events if event.kind == "step"]


def _so_far(folder: TrialFolder, waited_s: float, limit_s: float) -> str:
    """Return a sentence on a trial that has made no step yet."""
    lines = [line for line in f"{folder.stderr_tail()}\n{folder.stdout_tail()}".splitlines() if line]
    said = f"its latest output: {one_line(lines[-1])}" if lines else "it has written nothing yet"
    limit = format_duration(limit_s)
    return f"No step was seen after {format_duration(waited_s)}, it is waited for up to {limit}; {said}"


def _made_unread(path: Path) -> Callable[[], bool | None]:
    """Make a file look unread for ages, so that the first read renews its access time; return what asks for that.

    Most file systems are mounted such that reads are noted once a day at most (``relatime``); that they are, is tried
    out. The runner writes the config into this very file, which leaves the access time alone.
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
        except FileNotFoundError:  # the trainer has cleared up
            return None
        return status.st_atime > _LONG_AGO_S if notes_reads and status.st_ino == inode else None

    return was_read


def _reached(problem: Problem, folder: TrialFolder, was_read: Callable[[], bool | None]) -> Reached:
    alone = problem.settings.section.varies_environment_alone
    if problem.settings.are_opened_by_name and not alone:
        return Reached.READ if (folder.path / CONFIGS_OPENED).exists() else Reached.NOT_READ
    if not names_config(problem.command):
        by_code = problem.settings.code and not takes_values(problem.command)
        return Reached.IN_THE_ENVIRONMENT if alone or by_code else Reached.ON_THE_COMMAND_LINE
    return {True: Reached.READ, False: Reached.NOT_READ, None: Reached.UNKNOWN}[was_read()]


@dataclass(frozen=True, kw_only=True)
class RelativeOutputs:
    """What a trial with relative output paths showed.

    Attributes:
        written: The keys with these paths, for people.
        proposed: The same keys, with paths for the section.
    """

    written: Mapping[str, str]
    proposed: Mapping[str, str]
    trial: Preflight

    def __str__(self) -> str:
        return ", ".join(f"{key}: {value}" for key, value in self.written.items())

    def error(self, detail: str, *, where: str, go_on: str = "") -> TrialError:
        """Return the error for a trainer that made steps in this trial, and crashed with absolute paths."""
        keys, values = ", ".join(self.proposed), ", ".join(f"{key}: {path}" for key, path in self.proposed.items())
        return TrialError(
            f"no step was seen where autotune had pointed {keys} into the trial's folder, by absolute paths "
            f"({detail}); there were steps with {self}",
            where=where,
            remedy="It may be that the trainer takes no absolute path there. Give trials a relative one in the "
            f"section, of a name that nothing else has, such as:\n  redirect_except: [{keys}]\n  set: {{{values}}}\n"
            f"All trials share it then, and what they write there stays.{go_on}",
        )


def try_relative_outputs(
    problem: Problem, runner: Runner, clock: Clock, *, name: str, wall_s: float = math.inf
) -> RelativeOutputs | None:
    """Make one trial of today's config with relative output paths, and delete what it leaves there.

    Args:
        wall_s: Time at which it is ended in any case, on that clock.

    Returns:
        What it showed; None where no key holds a relative path.
    """
    written = _beside(problem, f"-{name}")
    if not written:
        return None
    settings = problem.settings
    outputs = replace(
        settings.outputs, redirected=tuple(key for key in settings.outputs.redirected if key not in written)
    )
    section = msgspec.structs.replace(settings.section, fixed={**settings.section.fixed, **written})
    with _left_as_it_was(problem, written, name):
        trial = run_preflight(
            problem,
            runner,
            clock,
            name=name,
            settings=replace(settings, section=section, outputs=outputs),
            wall_s=wall_s,
        )
    return RelativeOutputs(written=written, proposed=_beside(problem, "-trials"), trial=trial)


def _beside(problem: Problem, tag: str) -> dict[str, str]:
    """Return the redirected keys that hold relative paths, each with a path beside it whose name has a tag more."""
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
def _left_as_it_was(problem: Problem, written: Mapping[str, str], name: str) -> Iterator[None]:
    """Delete what a trial has left beside the user's outputs, by the name in it, and the folders made for that."""
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

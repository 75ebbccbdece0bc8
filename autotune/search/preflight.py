"""Preflight: one short trial of today's config, to see that it shows steps and reads its copy of the config.

A second one, whose copy holds the section as well, shows whether the trainer takes a config with a key that is not its
own: the user's real training reads that file.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.clock import Clock
from autotune.files import create_private
from autotune.folders.trial_folder import TrialFolder
from autotune.problem.problem import Problem
from autotune.process.launch import Runner
from autotune.records import Ending, Stop, TraineeEvent
from autotune.settings.command import names_config
from autotune.trial.error_text import quoted_output
from autotune.trial.outcome import Evidence, ending_of
from autotune.trial.plan import plan_trial

_ENOUGH_STEPS = 3
_TIME_LIMIT_S = 60.0  # from the first step to the third
_LONG_AGO_S = 1_000_000_000  # since the epoch: in 2001


class Reached(StrEnum):
    """Certainty that the trial's config came to the trainer."""

    READ = "read"  # the copy was opened and read during the trial
    ON_THE_COMMAND_LINE = "on the command line"  # values are part of the command itself
    NOT_READ = "not read"
    UNKNOWN = "unknown"  # the file system does not note when files are read


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Result of one short trial.

    Attributes:
        steps: Steps that were seen.
        first_step_s: From the start of the process to the first of them; None if there was none.
        reached: Whether the config came to the trainer.
        ending: Why it ended.
        detail: One line on that.
        stderr_tail: The last lines of its stderr.
        folder: Its folder.
    """

    steps: int
    first_step_s: float | None
    reached: Reached
    ending: Ending
    detail: str
    stderr_tail: str
    folder: TrialFolder


def run_preflight(
    problem: Problem, runner: Runner, clock: Clock, *, name: str, with_section: bool = False
) -> Preflight:
    """Make one trial of today's config, until a few steps were seen.

    Args:
        problem: The config and the command.
        runner: Makes the trial.
        clock: Source of time.
        name: Name of the trial.
        with_section: Whether its copy of the config holds the section too; then it is over at its first step.

    Raises:
        AutotuneError: The trial cannot be planned or started.
    """
    trainer = problem.trainer
    trainer = replace(trainer, settings=replace(trainer.settings, keeps_section=with_section))
    enough_steps = 1 if with_section else _ENOUGH_STEPS
    plan = plan_trial(trainer, problem.space.keys(problem.space.baseline), trial=name)
    problem.state.require_space()
    folder = problem.state.run(problem.study, name)
    folder.create(output_paths=problem.settings.moved_outputs(folder.outputs).values())
    unread = _Unread(folder, plan.config_name)
    events: list[TraineeEvent] = []
    started_s = clock.now_s()
    start_timeout_s = problem.limits.start_timeout_s

    def watch(news: Sequence[TraineeEvent]) -> Stop | None:
        events.extend(event for event in news if event.kind != "launched")
        steps = [event for event in events if event.kind == "step"]
        if not steps:
            return Stop.NEVER_STARTED if clock.now_s() - started_s > start_timeout_s else None
        return Stop.ENOUGH if len(steps) >= enough_steps or clock.now_s() - steps[0].t_s > _TIME_LIMIT_S else None

    trial_exit = runner.run(plan, watch, started_s + start_timeout_s + 2 * _TIME_LIMIT_S)
    folder.discard_temporary()  # the rest of it stays for who wants to know why it failed
    stdout = folder.stdout_tail()
    ending, detail = ending_of(trial_exit, events, Evidence(stdout_tail=stdout))
    steps = [event for event in events if event.kind == "step"]
    return Preflight(
        steps=len(steps),
        first_step_s=steps[0].t_s - trial_exit.started_s if steps else None,
        reached=_reached(problem, unread),
        ending=ending,
        detail=detail,
        stderr_tail=quoted_output(trial_exit.stderr_tail, stdout),
        folder=folder,
    )


class _Unread:
    """The trial's copy of the config, made to look unread for ages: the first read renews its access time.

    Most file systems are mounted such that reads are noted once a day at most (``relatime``); that they are, is tried
    out. The runner writes the config into this very file, which leaves the access time alone.
    """

    def __init__(self, folder: TrialFolder, name: str) -> None:
        self._path = folder.path / name
        trial = folder.path / "read.test"
        for path in (trial, self._path):
            create_private(path, b"?")
            os.utime(path, (_LONG_AGO_S, _LONG_AGO_S))
        trial.read_bytes()
        self._notes_reads = trial.stat().st_atime > _LONG_AGO_S
        self._inode = self._path.stat().st_ino
        trial.unlink()

    def was_read(self) -> bool | None:
        """Return True if anybody has read it since; None if that cannot be known."""
        try:
            status = self._path.stat()
        except FileNotFoundError:  # the trainer has cleared up
            return None
        if not self._notes_reads or status.st_ino != self._inode:
            return None
        return status.st_atime > _LONG_AGO_S


def _reached(problem: Problem, unread: _Unread) -> Reached:
    if not names_config(problem.command):
        return Reached.ON_THE_COMMAND_LINE
    return {True: Reached.READ, False: Reached.NOT_READ, None: Reached.UNKNOWN}[unread.was_read()]

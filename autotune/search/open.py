"""Assembly of a search from its parts."""

import json
import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autotune.clock import Clock, SystemClock, format_duration
from autotune.config.command import split_command
from autotune.errors import ConfigError, StudyError
from autotune.events import Event, EventBus, OnEvent, OnRemark, TrialEnded, TrialProgress
from autotune.files import open_regular
from autotune.options import SearchOptions
from autotune.records import SearchResult
from autotune.sampler.config_sampler import SamplerChoice, require_sampler
from autotune.search.gpus import busy_remarks, remarks_on_gpus, require_free_gpus, watched_gpus
from autotune.search.neighbours import Neighbours
from autotune.search.parts import SearchParts
from autotune.search.problem import Problem, growth_remark, limited, open_problem
from autotune.search.real_trainings import keep_trainings
from autotune.search.schedule import Budget, why_no_time
from autotune.search.trainer_code import why_code_differs
from autotune.search.tuner import Tuner
from autotune.search.warm_start import KNOWN_POINTS, WarmStart, keep_profile, warm_start
from autotune.study.claims import Owner
from autotune.study.members import RECENT, Member, MemberPhase, Role, distinct_hosts
from autotune.study.record import StudyRecord
from autotune.study.storage.address import StorageKind
from autotune.study.storage.lock import sole_search
from autotune.trial.children import Lifeline
from autotune.trial.folders import delete_left
from autotune.trial.instruments import Instruments, Simulator, gpu_collector
from autotune.trial.launch import Guard, end_orphans
from autotune.trial.process_identity import is_gone, same_boot, this_process
from autotune.trial.protection import CheckpointBackups
from autotune.trial.warm import ZygoteRunner


@dataclass(frozen=True, kw_only=True)
class Session:
    """Role of this process in a search.

    Attributes:
        started_s: Monotonic start of its budget.
        as_long_as_others: Whether it takes over the budget of the search it joins.
    """

    started_s: float
    role: Role = Role.SEARCH
    as_long_as_others: bool = False
    lifeline: Lifeline | None = None


@dataclass(frozen=True, kw_only=True)
class OpenSearch:
    """Assembled search.

    Attributes:
        study: Record, locked on this machine.
        report_file_loss: Reports irreparable changes to the user's files in the last trial.
    """

    name: str
    study: StudyRecord
    tuner: Tuner
    report_file_loss: Callable[[], None]

    @property
    def search(self) -> str:
        return self.study.members.own.search if self.study.members.own else self.name

    def run(self) -> SearchResult:
        try:
            return self.tuner.run()
        finally:
            self.report_file_loss()


def tune(
    config: Path | str,
    *,
    budget_s: float = 1800.0,
    command: str | None = None,
    seed: int = 0,
    fresh: bool = False,
    same_training: bool = False,
    batch: str | None = None,
    exhaust: bool = False,
    allow_busy_gpu: bool = False,
    sampler: SamplerChoice = None,
    validate_s: float | None = None,
    race_s: float | None = None,
    warm_start: bool = True,
    state_dir: Path | str | None = None,
    storage: str | None = None,
    on_event: OnEvent = lambda _event: None,
) -> SearchResult:
    """Search the knobs of a config for faster training, and confirm the result: `autotune search` as a function.

    Runs short trainings and leaves the config unchanged. Prints nothing; messages go to `on_event`.

    Args:
        budget_s: Total time limit.
        command: Training command, with ``{config}`` for the config's path; None for the config's own.
        fresh: Whether to start a new record and archive the old one.
        same_training: Whether to vary only knobs that leave the training unchanged.
        batch: Largest effective batch relative to today's: a factor such as ``4x``, ``same``, or ``free``. None for
            that of the config, else the batches listed under ``knobs:``, else ``4x``.
        exhaust: Whether to use the whole budget, even with an early confirmed answer.
        allow_busy_gpu: Whether to search although another process uses the GPU.
        sampler: Any single-objective Optuna sampler, which sees the index of each value among its knob's choices; None
            for autotune's own.
        validate_s: Longest validation training of the best point and of today's config, through an epoch's end, an
            evaluation and a checkpoint if they occur; None for no validation.
        race_s: Time to train the best point and today's config alternately and compare their losses; 0 for no race.
            None for a fifth of a budget of 15 minutes or more if the answer changes the batch or the precision.
        warm_start: Whether to start with the best points of similar trainings; never with ``fresh``.
        state_dir: State folder; None derives it from the config.
        storage: ``journal:FOLDER``, ``sqlite:FILE``, ``postgresql://user@host/name``, or ``file:FILE`` with one of
            these, of mode 0600. None for ``AUTOTUNE_STORAGE``, else the config's, else journals in the state folder.
        on_event: Called with every event, in the caller's thread.

    Raises:
        AutotuneError: The search cannot start, or all trials failed.
    """
    clock = SystemClock()
    started_s = clock.now_s()
    problem = open_problem(
        Path(config),
        command=None if command is None else split_command(command, "command"),
        state_dir=None if state_dir is None else Path(state_dir),
        storage=storage,
    )
    options = SearchOptions(
        budget_s=budget_s,
        seed=seed,
        fresh=fresh,
        same_training=same_training,
        batch=batch,
        exhaust=exhaust,
        allow_busy_gpu=allow_busy_gpu,
        sampler=sampler,
        validate_s=validate_s,
        race_s=race_s,
        warm_start=warm_start,
    )
    problem = limited(problem, options)
    problem.require_runnable()
    with open_search(problem, options, Session(started_s=started_s), clock, on_event) as search:
        return search.run()


@contextmanager
def open_search(
    problem: Problem,
    options: SearchOptions,
    session: Session,
    clock: Clock,
    on_event: OnEvent,
    *,
    simulator: Simulator | None = None,
) -> Iterator[OpenSearch]:
    """Assemble a search; arguments and errors are those of `open_parts`."""
    opened = open_parts(problem, options, session, clock, on_event, simulator=simulator, joins=True)
    with opened as (parts, checkpoints):
        study = parts.study
        for text in problem.trap_remarks:
            parts.events.remark(text)
        tuner = Tuner(parts)

        def report_file_loss() -> None:
            if loss := checkpoints.loss("the last trial"):
                parts.events.remark(str(loss))

        try:
            yield OpenSearch(name=parts.name, study=study, tuner=tuner, report_file_loss=report_file_loss)
        finally:
            if (state := tuner.state).trials.own and not tuner.left_because:
                now = clock.utc().isoformat(timespec="seconds")
                keep_profile(problem, study, state.model.better(), state.model.sd, now)
            study.members.describe(phase=MemberPhase.LEFT, left_because=tuner.left_because)
        over_s = parts.budget.wall_s
        problem.state.prune(problem.study, protected=tuner.best_trials(), is_over=lambda: clock.now_s() > over_s)


@contextmanager
def open_parts(
    problem: Problem,
    options: SearchOptions,
    session: Session,
    clock: Clock,
    on_event: OnEvent,
    *,
    simulator: Simulator | None = None,
    joins: bool = False,
) -> Iterator[tuple[SearchParts, CheckpointBackups]]:
    """Assemble the parts that run trials of a study, and the backups of the user's checkpoints.

    Args:
        simulator: Runs trials in virtual time; None for real processes.
        joins: Whether to join the study as a member, which shares searches.

    Raises:
        StudyError: The record is unusable, or locked by another search.
        GpuError: The GPU is busy or missing.
        ConfigError: The sampler is invalid, or the budget too short.
    """
    require_sampler(options.sampler)
    if lacking := why_no_time(options):
        what, why = lacking
        raise ConfigError(why, where=f"{what}_s", remedy=f"Give more budget, or less time to {what}.")
    problem.state.create()
    name = f"{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"
    events = EventBus((EventLog(events_path(problem, name), clock), on_event))
    known = (*problem.state.remarks, *problem.settings.remarks, *remarks_on_gpus(problem), problem.batch_remark)
    for text in filter(None, known):
        events.remark(text)
    with (
        sole_search(problem.state.search_lock(problem.study, problem.machine.name), problem.study),
        Guard() as guard,
        gpu_collector(watched_gpus(problem), guard, problem.state.searches, clock, events.remark) as collector,
        CheckpointBackups(problem.trainer, clock, name=name, remark=events.remark) as checkpoints,
    ):
        study = _open_study(problem, options, session, clock, events.remark)
        start = _warm_start(problem, options, study)
        growth = growth_remark(problem, problem.code.of_now(study.records()))
        for text in filter(None, (start.sentence, growth)):
            events.remark(text)
        if joins:
            join(study, problem, session.role, name, clock, events.remark)
        events.subscribe(checkpoints.after)
        parts = SearchParts(
            name=name,
            options=replace(options, race_s=0.0) if session.role is Role.WORKER else options,
            problem=problem,
            study=study,
            runner=simulator or ZygoteRunner(guard, clock, events.remark),
            budget=_budget(study, options, session, clock),
            clock=clock,
            events=events,
            lifeline=session.lifeline,
            warm_start=start,
            neighbours=Neighbours.of_environment(),
            instruments=simulator.instruments if simulator else lambda: Instruments.of_machine(clock, collector),
        )
        try:
            yield parts, checkpoints
        finally:
            study.close()
            events.flush()


def events_path(problem: Problem, name: str) -> Path:
    """Event log of a search."""
    return problem.state.searches / f"{name}.events.jsonl"


def _open_study(
    problem: Problem, options: SearchOptions, session: Session, clock: Clock, remark: OnRemark
) -> StudyRecord:
    """Open the record, and clean up after earlier searches."""
    owner = Owner(about=this_process(), is_gone=is_gone, clock=clock, ends_s=session.started_s + options.budget_s)
    pending = problem.state.pending(problem.study)
    if options.fresh:
        if pending.exists():  # undelivered trials belong to the old record
            StudyRecord(problem.study, problem.storage, pending=pending, owner=owner).close()
        problem.storage.archive(problem.study, clock)
    study = StudyRecord(problem.study, problem.storage, pending=pending, owner=owner, remark=remark)
    study.close_abandoned()
    keep_trainings(study)
    if study.torn_bytes:
        remark("A crash cut off the last trial of an earlier search; all others are intact.")
    if ended := end_orphans(problem.state.trials(problem.study), clock).killed:
        remark(f"Stopped {len(ended)} processes left running by an earlier search.")
    over_s = clock.now_s() + 0.5  # to delete files of earlier searches, before the first trial
    delete_left(problem.state.trials(problem.study), lambda: clock.now_s() > over_s)
    if options.allow_busy_gpu:
        for busy in busy_remarks(problem, clock):
            remark(f"{busy}; the search runs anyway.")
    else:
        require_free_gpus(problem, clock)  # after the cleanup, which may stop an earlier trial of ours
    return study


def join(study: StudyRecord, problem: Problem, role: Role, name: str, clock: Clock, remark: OnRemark) -> None:
    """Join the study as a member; raise StudyError if it is not writable, or an active member trains other code."""
    code = problem.code.now.facts()
    study.refresh()
    for one in [one for one in study.members.others() if one.seems_active(clock.utc())]:  # and was not killed long ago
        if why := why_code_differs(code, one.code):
            raise StudyError(
                f"the study is active on {one.host} with other code: {why}",
                where=str(problem.config_path),
                remedy="Bring both machines to the same code, or wait until that search has ended.",
            )
        if problem.address and problem.address.kind is StorageKind.SQLITE and not same_boot(one.about):
            raise StudyError(
                f"the study is active on another machine, {one.host}, and SQLite's locks do not work between machines",
                where=problem.address.shown,
                remedy="Export it, and import it into a shared database, --storage postgresql://user@host/name, or a "
                "shared folder, --storage journal:FOLDER.",
            )
    now = clock.utc()
    member = study.join(
        Member(
            uuid=uuid.uuid4().hex,
            role=role,
            search=name,
            machine=problem.machine.name,
            baseline=problem.space.name(problem.space.baseline),
            about=this_process(),
            since_utc=now,
            renewed_utc=now,
            code=code,
        )
    )
    if others := [one for one in study.members.others() if one.search == member.search]:
        names = distinct_hosts((one.machine, one.host) for one in (member, *others))
        hosts = ", ".join(sorted({names[one.machine] for one in others}))
        remark(f"Joined the search running on {hosts}; trials aren't duplicated.")
    # A heartbeat from the future shows a wrong clock; one from the past may be of a killed member.
    for one in [one for one in study.members.others() if one.renewed_utc - clock.utc() > RECENT][:1]:
        ahead = format_duration((one.renewed_utc - clock.utc()).total_seconds())
        separate = f"The clock of {one.host} is ahead of this machine's by {ahead}: each runs a separate search"
        remark(f"{separate}, with the other's trials. Synchronise the clocks (NTP) to share one search.")


def _budget(study: StudyRecord, options: SearchOptions, session: Session, clock: Clock) -> Budget:
    """Return the budget; of a worker without its own, the rest of the joined search's."""
    own = Budget(clock, started_s=session.started_s, budget_s=options.budget_s)
    search = study.members.own.search if study.members.own else None
    lefts_s = [one.left_s for one in study.members.others() if one.role is Role.SEARCH and one.search == search]
    if not (session.as_long_as_others and lefts_s):
        return own
    return Budget(clock, started_s=session.started_s, budget_s=own.elapsed_s() + max(lefts_s))


def _warm_start(problem: Problem, options: SearchOptions, study: StudyRecord) -> WarmStart:
    """Return the warm start, empty for a study with enough points."""
    wanted = options.warm_start and not options.fresh and options.sampler is None
    records = study.records()
    is_young = len({trial.point for trial in problem.code.of_now(records)}) < KNOWN_POINTS
    return warm_start(problem, records) if wanted and is_young else WarmStart()


FORMAT = 2
"""Format version of the lines."""

_log = logging.getLogger(__name__)


class EventLog:
    """Event log as JSON lines; write errors are only logged."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """Append an event, except progress within a trial."""
        if isinstance(event, TrialProgress):
            return
        line = {
            "format": FORMAT,
            "event": type(event).__name__,
            "utc": self._clock.utc().isoformat(timespec="milliseconds"),
            **asdict(event),
            **({"trial": event.trial.as_stored()} if isinstance(event, TrialEnded) else {}),
        }
        try:
            with open_regular(self._path, append=True, create=True) as file:
                file.write((json.dumps(line) + "\n").encode("ascii"))
        except OSError as error:
            _log.warning("cannot write event to %s: %s", self._path, error.strerror)

"""Assembly of a search: the one place where its parts are put together, for commands, library users and tests."""

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
from autotune.study.members import RECENT, Member, MemberPhase, Role, hosts_told_apart
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
    """What this process does in a search, and since when.

    Attributes:
        started_s: When it began, on the clock's monotonic time; the budget counts from there.
        role: Whether it gives an answer, or lends its machine to the searches of others.
        as_long_as_others: Whether the search that is joined says how long it stays, where one goes on.
        lifeline: Whoever has to hear of it while it is at work; None for nobody.
    """

    started_s: float
    role: Role = Role.SEARCH
    as_long_as_others: bool = False
    lifeline: Lifeline | None = None


@dataclass(frozen=True, kw_only=True)
class OpenSearch:
    """A search that is put together and may begin; made by `open_search`.

    Attributes:
        name: Name of this process's part of the search; its events and the folders of its trials have it.
        study: The record; on this machine held by this search alone.
        look_after_files: Tells what became of the user's files in the last trial and cannot be put right.
    """

    name: str
    study: StudyRecord
    tuner: Tuner
    look_after_files: Callable[[], None]

    @property
    def search(self) -> str:
        """Name of the search that its trials belong to, which others may have begun."""
        return self.study.members.own.search if self.study.members.own else self.name

    def run(self) -> SearchResult:
        """Search until the budget is used or nothing left can pay, and confirm; see `Tuner.run`."""
        try:
            return self.tuner.run()
        finally:
            self.look_after_files()


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
    """Find better values for the knobs of a config, and confirm them: `autotune search` as a function.

    Short real trainings are made, measured and compared; the config itself is not touched. Nothing is printed: all that
    a user is told goes to `on_event`.

    Args:
        budget_s: The wall for everything, in seconds.
        command: How training is started, as in a shell, ``{config}`` in the place of the config's path; None takes the
            command of the config's ``autotune:`` section.
        seed: Makes the search's choices repeatable; 0 or more.
        fresh: Whether to start a new record; the old one is kept beside it.
        same_training: Whether to turn only knobs that leave the training itself unchanged.
        batch: Largest effective batch to try, relative to today's: a factor such as ``4x``; ``same`` does not turn it,
            ``free`` tries its whole domain. None takes that of the section, where none is said a batch as listed under
            ``knobs:``, else ``4x``.
        exhaust: Whether to use the whole budget, also where the answer is sure before that.
        allow_busy_gpu: Whether to search although somebody else is on the GPU.
        sampler: What proposes the points to try: any sampler of Optuna for one objective, which sees the position of
            each value among its knob's choices. None for autotune's own.
        validate_s: Longest time for which the best point, and today's config before it, are trained before the answer,
            through the end of an epoch, an evaluation and a checkpoint where they come to these; None for no such
            trials.
        race_s: Time for which the best point and today's config train in turn, so that their losses can be compared; 0
            for no such race. None for a fifth of a budget of 15 minutes or more, where the answer changes the batch or
            the precision.
        warm_start: Whether to begin with the best points of studies of like trainings, on this hardware or another; a
            new record (``fresh``) never does.
        state_dir: Where everything is kept; None finds the place by the config.
        storage: Where studies are kept: ``journal:FOLDER``, ``sqlite:FILE``, ``postgresql://user@host/name``, or
            ``file:FILE`` for a file of mode 0600 that holds one of these, perhaps with a password; None takes
            ``AUTOTUNE_STORAGE``, or the section's; journals in the state folder where nothing says it.
        on_event: Told everything that happens, in the thread of the caller.

    Returns:
        The answer: verdict, the baseline and the best point with what they showed, the ratio with its interval.

    Raises:
        AutotuneError: The search cannot begin, or no trial gave numbers.
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
    """Put a search together, for as long as a ``with`` block lasts; what an earlier one has left running is ended.

    Arguments and errors are those of `open_parts`.
    """
    opened = open_parts(problem, options, session, clock, on_event, simulator=simulator, joins=True)
    with opened as (parts, checkpoints):
        study = parts.study
        for text in problem.trap_remarks:
            parts.events.remark(text)
        tuner = Tuner(parts)

        def look_after_files() -> None:
            if loss := checkpoints.loss("the last trial"):
                parts.events.remark(str(loss))

        try:
            yield OpenSearch(name=parts.name, study=study, tuner=tuner, look_after_files=look_after_files)
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
    """Put the parts together that trials of a study are made with, for as long as a ``with`` block lasts.

    The backups of the user's checkpoints tell what became of these.

    Args:
        on_event: Told everything that happens, remarks included.
        simulator: Runs the trials in virtual time; None forks them from a warm interpreter, or starts them.
        joins: Whether this process becomes a member of the study, with which others share a search.

    Raises:
        StudyError: The record cannot be read or written, or another search holds it.
        GpuError: Somebody else is on the GPU, or it is not there.
        ConfigError: The sampler is none; or the budget is too short for the validation, or for the race.
        AutotuneError: The state folder cannot be made.
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
            events.give_out()


def events_path(problem: Problem, name: str) -> Path:
    """File of the events of the search of that name."""
    return problem.state.searches / f"{name}.events.jsonl"


def _open_study(
    problem: Problem, options: SearchOptions, session: Session, clock: Clock, remark: OnRemark
) -> StudyRecord:
    """Open the record, and see to it that nothing is in the way of its next trials.

    Raises:
        StudyError: The record cannot be read or written.
        GpuError: Somebody else is on the GPU.
    """
    owner = Owner(about=this_process(), is_gone=is_gone, clock=clock, ends_s=session.started_s + options.budget_s)
    pending = problem.state.pending(problem.study)
    if options.fresh:
        if pending.exists():  # what waits for a server belongs to the old record
            StudyRecord(problem.study, problem.storage, pending=pending, owner=owner).close()
        problem.storage.set_aside(problem.study, clock)
    study = StudyRecord(problem.study, problem.storage, pending=pending, owner=owner, remark=remark)
    study.close_abandoned()
    keep_trainings(study)
    if study.torn_bytes:
        remark("The last trial of an earlier search was cut off by a crash; all others are there.")
    if ended := end_orphans(problem.state.trials(problem.study), clock).killed:
        remark(f"Ended {len(ended)} processes that an earlier search had left running.")
    over_s = clock.now_s() + 0.5  # for what earlier searches have left, before the first trial
    delete_left(problem.state.trials(problem.study), lambda: clock.now_s() > over_s)
    if options.allow_busy_gpu:
        for busy in busy_remarks(problem, clock):
            remark(f"{busy}; the search goes on beside it.")
    else:
        require_free_gpus(problem, clock)  # after the cleanup: it may have been an earlier trial of ours
    return study


def join(study: StudyRecord, problem: Problem, role: Role, name: str, clock: Clock, remark: OnRemark) -> None:
    """Become a member of the study; say who else is at work on it.

    Raises:
        StudyError: The storage could not be written; or somebody is at work who trains other code.
    """
    code = problem.code.now.facts()
    study.refresh()
    for one in [one for one in study.members.others() if one.seems_at_work(clock.utc())]:  # and was not killed long ago
        if why := why_code_differs(code, one.code):
            raise StudyError(
                f"the study is at work on {one.host} with other code: {why}",
                where=str(problem.config_path),
                remedy="Bring this machine to the same state, or wait until that one has ended.",
            )
        if problem.address and problem.address.kind is StorageKind.SQLITE and not same_boot(one.about):
            raise StudyError(
                f"the study is at work on {one.host}, another machine, and SQLite serves one machine only: its locks "
                "do not work between machines",
                where=problem.address.shown,
                remedy="Export it, and import it into a database that both reach, --storage "
                "postgresql://user@host/name, or into a folder that both see, --storage journal:FOLDER.",
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
        names = hosts_told_apart((one.machine, one.host) for one in (member, *others))
        hosts = ", ".join(sorted({names[one.machine] for one in others}))
        remark(f"Joined the search that goes on on {hosts}; no trial is made twice.")
    # A sign of life from the future is of another clock; one from the past may be of a member that was killed.
    for one in [one for one in study.members.others() if one.renewed_utc - clock.utc() > RECENT][:1]:
        ahead = format_duration((one.renewed_utc - clock.utc()).total_seconds())
        remark(
            f"The clock of {one.host} is ahead of this machine's by {ahead}: each makes a search of its own, with the "
            "other's trials. Set the clocks right (NTP), and they make one."
        )


def _budget(study: StudyRecord, options: SearchOptions, session: Session, clock: Clock) -> Budget:
    """Return the budget: of a worker that was given none, what the search that it has joined has left."""
    own = Budget(clock, started_s=session.started_s, budget_s=options.budget_s)
    search = study.members.own.search if study.members.own else None
    lefts_s = [one.left_s for one in study.members.others() if one.role is Role.SEARCH and one.search == search]
    if not (session.as_long_as_others and lefts_s):
        return own
    return Budget(clock, started_s=session.started_s, budget_s=own.elapsed_s() + max(lefts_s))


def _warm_start(problem: Problem, options: SearchOptions, study: StudyRecord) -> WarmStart:
    """Return what the search begins with; nothing where the study knows enough itself, or another sampler proposes."""
    wanted = options.warm_start and not options.fresh and options.sampler is None
    records = study.records()
    is_young = len({trial.point for trial in problem.code.of_now(records)}) < KNOWN_POINTS
    return warm_start(problem, records) if wanted and is_young else WarmStart()


FORMAT = 2
"""Format version of the lines."""

_log = logging.getLogger(__name__)


class EventLog:
    """Writer of events as lines of JSON; a full disk does not stop the search, as the log is only a view.

    Args:
        path: The file; created by the first event.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """Append an event; progress within a trial is left out, as the trial's own files have it."""
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
            _log.warning("the event could not be written to %s: %s", self._path, error.strerror)

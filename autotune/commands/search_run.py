"""Steps of ``autotune search``: searching with a live display, applying the answer, and workers on further GPUs."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from autotune.clock import Clock
from autotune.commands.apply_answer import OTHER_TRAINING, apply_values, changes_to_offer
from autotune.commands.invocation import Invocation
from autotune.commands.output import ask, forget_typed, is_attended, say_aside
from autotune.commands.search_plan import show_plan
from autotune.config.load import load_settings
from autotune.errors import AutotuneError, ConfigError, Terminated
from autotune.files import make_private_folder
from autotune.measure.gpu.driver import cores_near, look_for_gpus, visible_devices
from autotune.options import SearchRequest
from autotune.process import STORAGE_VARIABLE
from autotune.records import ChangeSet, SearchResult
from autotune.report.answer import is_in_code, print_failures, print_next_step, refusal, why_it_needs_consent
from autotune.report.console import text_console
from autotune.report.live import SearchDisplay
from autotune.search.answer import answer_of_search
from autotune.search.neighbours import FOLDER_VARIABLE
from autotune.search.open import OpenSearch, Session, open_search
from autotune.search.problem import Problem
from autotune.search.trial_maker import Failed
from autotune.trial.children import OWN_COMMAND, Lifeline, SearchChild
from autotune.trial.folders import StateFolder
from autotune.trial.termination import interrupted_by


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A search that came to its end.

    Attributes:
        written: Answer that goes into the config: the result, or see `SearchResult.applies_same_training`.
        changes: What that changes in the config; None if there is nothing to write.
        failures: Trials that gave no numbers, one for each kind of ending.
        ended_by: Error that ended it before its time; None if there was none.
    """

    result: SearchResult
    written: SearchResult
    changes: ChangeSet | None
    failures: Sequence[Failed]
    ended_by: AutotuneError | None


def search_with_display(
    problem: Problem,
    request: SearchRequest,
    call: Invocation,
    begin: Callable[[Problem, OpenSearch, Callable[[], None]], None],
    *,
    along: AbstractContextManager[None],
) -> Finished:
    """Show what a search is about to do, and search, with a live display on stderr.

    Args:
        call: Call of the command; the budget counts from its start.
        begin: Called with the search as soon as it has a record, so that whatever ends it early can answer from that,
            and with what takes the display off the screen.
        along: Entered as soon as the search has a record that others can join, and left with its end.

    Raises:
        AutotuneError: The search cannot begin, or no trial gave numbers.
    """
    progress = text_console(stderr=True)
    show_plan(progress, problem, request)
    part = Session(started_s=call.started_s, lifeline=Lifeline.of_environment())
    display = SearchDisplay(progress, call.clock, started_s=call.started_s, budget_s=request.budget_s)
    with open_search(problem, request, part, call.clock, display, simulator=call.simulator) as search:
        begin(problem, search, display.close)
        with along:
            result = _result(search, display, progress)
    if problem.config_changed():
        progress.print(
            f"{request.config} was changed during the search; the answer is for the file as it was at the start.",
            soft_wrap=True,
        )
    tuner = search.tuner
    records, written = search.study.records(), result
    if result.applies_same_training:
        same = answer_of_search(problem, records, result.search, search.study.ratings, excluded=OTHER_TRAINING)
        written = same or result
    return Finished(
        result=result,
        written=written,
        changes=changes_to_offer(problem, search.study.name, records, written),
        failures=tuple(tuner.failures.values()),
        ended_by=tuner.ended_by,
    )


def apply_if_better(
    problem: Problem, finished: Finished, *, must_be_validated: bool = False, is_accepted: bool = False
) -> None:
    """Write the best values of a search into the config, if they are better than the baseline.

    Args:
        must_be_validated: Whether they have to have come through a validation trial.
        is_accepted: Whether somebody has said yes, who knows what they change about the training.

    Raises:
        AutotuneError: They cannot be written, or the config was edited and nobody is there to ask.
    """
    result = finished.written
    if finished.changes is not None:
        if must_be_validated and result.validation is None:
            why = "the answer is not validated, see above."
            if finished.result.validation is not None:
                every = problem.typed.command("apply", "--all")
                why = f"the values that leave the training unchanged were not validated. `{every}` writes all changes."
            text_console(stderr=True).print(f"Not applied: {why}", soft_wrap=True)
            return
        if result.needs_consent and not is_accepted:
            refused = refusal(result, problem.typed)
            said = f"Not applied: {refused.message}. {refused.remedy}"
            text_console(stderr=True).print(said, soft_wrap=True, markup=False)
            return
        apply_values(problem, finished.changes, text_console(stderr=True))


def _result(search: OpenSearch, display: SearchDisplay, console: Console) -> SearchResult:
    """Search; where that ends in an error, show the output of the trials that failed."""
    try:
        with display:
            return search.run()
    except AutotuneError as error:
        print_failures(console, search.tuner.failures.values(), search.tuner.outcomes, said=error.remedy or "")
        raise


# Question at the end of a search on a terminal: whether its answer goes into the config.


def is_question(request: SearchRequest, finished: Finished) -> bool:
    """Return whether to ask: the answer is better, and validated if it had to be, and somebody is there to be asked."""
    if request.apply is not None or finished.ended_by is not None:
        return False
    result = finished.result
    lacks_validation = request.validate_s is not None and result.validation is None
    return finished.changes is not None and not lacks_validation and is_attended()


def ask_to_apply(problem: Problem, finished: Finished) -> None:
    """Ask, write the best values into the config after a yes, and print the next command to type.

    ^C and the end of the input mean no.

    Raises:
        AutotuneError: The values cannot be written.
        Terminated: SIGTERM came instead of an answer.
    """
    config, result, is_applied = problem.config_path, finished.written, False
    try:
        forget_typed()
        why = f"{why_it_needs_consent(result)} " if result.needs_consent else ""
        what = "these values" if result is finished.result else "what leaves the training itself unchanged"
        is_code = is_in_code(result)
        if ask(f"{why}{f'Write {what} as a patch of the code' if is_code else f'Apply {what} to {config}'}?"):
            apply_if_better(problem, finished, is_accepted=True)
            is_applied = not is_code
    except (click.Abort, KeyboardInterrupt):
        text_console(stderr=True).print()  # the line of the question has not ended
    text_console().print()
    named = finished.changes.id if finished.changes and result.is_apart else None
    print_next_step(text_console(), finished.result, typed=problem.typed, applied=is_applied, answer=named)
    if isinstance(interrupt := interrupted_by(), Terminated):
        raise interrupt


# Several GPUs: this process has the first, and a worker each of the others, with cores near its GPU.


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """GPU with its cores.

    Attributes:
        number: CUDA's, among those that the environment leaves.
    """

    number: int
    uuid: str
    cores: frozenset[int]


def share_for_search(request: SearchRequest, gpus: Sequence[int], clock: Clock) -> AbstractContextManager[None]:
    """Give this process the first of several GPUs; return the workers on the others.

    Args:
        gpus: Their numbers; empty for all.

    Returns:
        Runs the workers for the duration of a ``with`` block.

    Raises:
        ConfigError: There are not that many GPUs, or cores.
    """
    own, *others = gpu_shares(gpus)
    state = StateFolder.locate(request.config, explicit=request.state_dir, environ=os.environ)
    is_known = os.environ.get(STORAGE_VARIABLE) or load_settings(request.config).section.storage
    place = request.storage or (None if is_known else f"journal:{state.studies}")
    words = [*OWN_COMMAND, "worker", "--config", str(request.config), "--budget", f"{request.budget_s:.3f}s"]
    words += ["--storage", place] if place else []
    words += request.words("warm_start", "same_training", "batch", "allow_busy_gpu")
    commands = {
        share: (
            *(*words, "--seed", str(request.seed + number), "--state-dir", str(state.workers / share.uuid)),
            *(("--", *request.trainer) if request.trainer else ()),
        )
        for number, share in enumerate(others, start=1)
    }
    os.environ |= {"CUDA_VISIBLE_DEVICES": own.uuid, FOLDER_VARIABLE: str(state.workers / "turns")}
    os.sched_setaffinity(0, own.cores)
    return _running(commands, state.workers, clock)


@contextmanager
def _running(commands: Mapping[GpuShare, Sequence[str]], folder: Path, clock: Clock) -> Iterator[None]:
    """Run workers for the duration of a ``with`` block; report those that failed.

    Raises:
        CommandError: One of them cannot be started.
    """
    workers: dict[GpuShare, SearchChild] = {}
    own = os.sched_getaffinity(0)
    make_private_folder(folder)
    try:
        for share, words in commands.items():
            os.sched_setaffinity(0, share.cores)  # the worker inherits them
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": share.uuid}
            log, niceness = folder / f"{share.uuid}.log", os.getpriority(os.PRIO_PROCESS, 0)
            workers[share] = SearchChild.start(words, cwd=Path.cwd(), env=env, log=log, clock=clock, niceness=niceness)
        os.sched_setaffinity(0, own)
        yield
    finally:
        os.sched_setaffinity(0, own)
        failed = [share for share, worker in workers.items() if (ended := worker.poll()) and ended.code]
        for worker in workers.values():
            worker.leave()
        for worker in workers.values():
            worker.end()
        for share in failed:
            say_aside(f"autotune: the worker on GPU {share.number} failed: see {folder / share.uuid}.log")


def gpu_shares(chosen: Sequence[int] = ()) -> list[GpuShare]:
    """Share this machine out among its GPUs.

    All get as many cores, because studies are of equal machines: those near the GPU (its NUMA node) if there are
    enough.

    Args:
        chosen: Numbers of the GPUs; empty for all that the environment leaves.

    Raises:
        ConfigError: There are fewer than two GPUs, or cores.
    """
    inventory = look_for_gpus()
    visible = visible_devices(inventory.gpus, os.environ) if inventory.gpus else None
    uuids = visible.uuids if visible else ()
    if beyond := [number for number in chosen if number >= len(uuids)]:
        raise ConfigError(
            f"there is no GPU {beyond[0]}: {inventory.why_none or f'there are {len(uuids)}, numbered from 0'}",
            where="--gpus",
            remedy="Run it without this option." if inventory.why_none else "Name those that are there, or all.",
        )
    numbers = list(dict.fromkeys(chosen)) or range(len(uuids))
    cores = sorted(os.sched_getaffinity(0))
    if len(numbers) < 2 or len(cores) < len(numbers):
        why = inventory.why_none or (visible and visible.why_none) or f"{len(numbers)} GPU for {len(cores)} cores"
        raise ConfigError(
            f"it needs two GPUs, and a core for each: {why}", where="--gpus", remedy="Run it without this option."
        )
    near = {gpu.uuid: cores_near(gpu) for gpu in inventory.gpus}
    shared = share_cores(cores, [near.get(uuids[number], frozenset()) for number in numbers])
    return [
        GpuShare(number=number, uuid=uuids[number], cores=share) for number, share in zip(numbers, shared, strict=True)
    ]


def share_cores(cores: Sequence[int], near: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Share cores out, equally many to each, to those that have them near; by number if that does not work out.

    Args:
        cores: Ascending; at least as many as there are shares.
        near: For each share the cores that are near; empty where that is not known.
    """
    each = len(cores) // len(near)
    own = [sorted(one & set(cores)) for one in near]
    place, shares = {tuple(some): 0 for some in own}, []
    for some in map(tuple, own):  # GPUs of one node have the same cores near, and take them in turn
        shares.append(frozenset(some[place[some] : place[some] + each]))
        place[some] += each
    if len(frozenset().union(*shares)) == each * len(near):
        return shares
    return [frozenset(cores[number * each : (number + 1) * each]) for number in range(len(near))]

"""Steps of ``autotune search``: search, apply, and workers on further GPUs."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from autotune.clock import Clock
from autotune.commands.apply_answer import OTHER_TRAINING, apply_values, changes_to_offer, name_to_apply
from autotune.commands.invocation import Invocation
from autotune.commands.output import ask, discard_typeahead, is_attended, say_aside
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
    """Finished search.

    Attributes:
        written: Answer for the config; see `SearchResult.applies_same_training`.
        name: Id of the result's changes, if `apply` needs it.
        failures: One failed trial per kind of ending.
        ended_by: Error that ended it early.
    """

    result: SearchResult
    written: SearchResult
    changes: ChangeSet | None
    name: str | None
    failures: Sequence[Failed]
    ended_by: AutotuneError | None


def search_with_display(
    problem: Problem,
    request: SearchRequest,
    call: Invocation,
    begin: Callable[[Problem, OpenSearch, Callable[[], None]], None],
    *,
    workers: AbstractContextManager[None],
) -> Finished:
    """Print the plan and search, with a live display on stderr.

    Args:
        begin: Called once the search has a record, with a function that clears the display.
        workers: Entered once they can join the record.

    Raises:
        AutotuneError: The search cannot start, or no trial has a measurement.
    """
    progress = text_console(stderr=True)
    show_plan(progress, problem, request)
    part = Session(started_s=call.started_s, lifeline=Lifeline.of_environment())
    display = SearchDisplay(progress, call.clock, started_s=call.started_s, budget_s=request.budget_s)
    with open_search(problem, request, part, call.clock, display, simulator=call.simulator) as search:
        begin(problem, search, display.close)
        tuner = search.tuner
        try:
            with workers, display:
                result = search.run()
        except AutotuneError as error:
            print_failures(progress, tuner.failures.values(), tuner.outcomes, known_remedy=error.remedy or "")
            raise
    if problem.settings.changed_on_disk(problem.config_path):
        progress.print(f"{request.config} was edited since; the answer is for its earlier content.", soft_wrap=True)
    records, written = search.study.records(), result
    if result.applies_same_training:
        same = answer_of_search(problem, records, result.search, search.study.ratings, excluded=OTHER_TRAINING)
        written = same or result
    return Finished(
        result=result,
        written=written,
        changes=changes_to_offer(problem, search.study.name, records, written),
        name=name_to_apply(problem, search.study, result),
        failures=tuple(tuner.failures.values()),
        ended_by=tuner.ended_by,
    )


def apply_if_better(
    problem: Problem, finished: Finished, *, must_be_validated: bool = False, is_accepted: bool = False
) -> None:
    """Write the best values into the config, if they are better.

    Args:
        is_accepted: Whether the user accepted the changes to the training.

    Raises:
        AutotuneError: They cannot be written, or the config was edited and there is no terminal.
    """
    result, console, why = finished.written, text_console(stderr=True), ""
    if finished.changes is None:
        return
    if must_be_validated and result.validation is None:
        why = "the answer is not validated, see above."
        if finished.result.validation is not None:
            every = problem.typed.command("apply", "--all")
            why = f"the values that leave the training unchanged were not validated. `{every}` writes all changes."
    elif result.needs_consent and not is_accepted:
        refused = refusal(result, problem.typed)
        why = f"{refused.message}. {refused.remedy}"
    if why:
        console.print(f"Not applied: {why}", soft_wrap=True)
    else:
        apply_values(problem, finished.changes, console)


# Prompt at the end of a search on a terminal.


def is_question(request: SearchRequest, finished: Finished) -> bool:
    """Return whether to ask to apply the changes."""
    if request.apply is not None or finished.ended_by is not None:
        return False
    result = finished.result
    lacks_validation = request.validate_s is not None and result.validation is None
    return finished.changes is not None and not lacks_validation and is_attended()


def ask_to_apply(problem: Problem, finished: Finished) -> None:
    """Ask, apply after a yes, and print the next command. ^C and EOF mean no; SIGTERM raises `Terminated`."""
    config, result, is_applied = problem.config_path, finished.written, False
    try:
        discard_typeahead()
        why = f"{why_it_needs_consent(result)} " if result.needs_consent else ""
        what = "these values" if result is finished.result else "the changes that leave the training unchanged"
        is_code = is_in_code(result)
        if ask(f"{why}{f'Write {what} as a patch of the code' if is_code else f'Apply {what} to {config}'}?"):
            apply_if_better(problem, finished, is_accepted=True)
            is_applied = not is_code
    except (click.Abort, KeyboardInterrupt):
        text_console(stderr=True).print()  # end the prompt's line
    text_console().print()
    print_next_step(text_console(), finished.result, typed=problem.typed, applied=is_applied, answer=finished.name)
    if isinstance(interrupt := interrupted_by(), Terminated):
        raise interrupt


# Several GPUs: this process uses the first, a worker each of the others, on cores near its GPU.


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """GPU with its cores; `number` is CUDA's among the visible ones."""

    number: int
    uuid: str
    cores: frozenset[int]


def share_for_search(request: SearchRequest, gpus: Sequence[int], clock: Clock) -> AbstractContextManager[None]:
    """Give this process the first GPU; return a context that runs workers on the others. Raises as `gpu_shares`."""
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
    """Run workers during a ``with`` block, and report failed ones."""
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
    """Divide the cores of this machine equally among GPUs, by NUMA node if possible.

    Equally, because a study's machines must be equal.

    Args:
        chosen: Numbers; empty for all visible GPUs.

    Raises:
        ConfigError: Fewer than two GPUs, or fewer cores than GPUs.
    """
    inventory = look_for_gpus()
    visible = visible_devices(inventory.gpus, os.environ) if inventory.gpus else None
    uuids = visible.uuids if visible else ()
    if beyond := [number for number in chosen if number >= len(uuids)]:
        raise ConfigError(
            f"there is no GPU {beyond[0]}: {inventory.why_none or f'there are {len(uuids)}, numbered from 0'}",
            where="--gpus",
            remedy="Run without this option." if inventory.why_none else "Use existing numbers, or all.",
        )
    numbers = list(dict.fromkeys(chosen)) or range(len(uuids))
    cores = sorted(os.sched_getaffinity(0))
    if len(numbers) < 2 or len(cores) < len(numbers):
        why = inventory.why_none or (visible and visible.why_none) or f"{len(numbers)} GPU for {len(cores)} cores"
        raise ConfigError(f"two GPUs with a core each needed: {why}", where="--gpus", remedy="Run without this option.")
    near = {gpu.uuid: cores_near(gpu) for gpu in inventory.gpus}
    shared = share_cores(cores, [near.get(uuids[number], frozenset()) for number in numbers])
    return [
        GpuShare(number=number, uuid=uuids[number], cores=share) for number, share in zip(numbers, shared, strict=True)
    ]


def share_cores(cores: Sequence[int], near: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Divide cores into equal shares, each near its GPU; by number if impossible.

    Args:
        cores: Ascending; at least one per share.
        near: Near cores of each share; empty if unknown.
    """
    each = len(cores) // len(near)
    own = [sorted(one & set(cores)) for one in near]
    place, shares = {tuple(some): 0 for some in own}, []
    for some in map(tuple, own):  # GPUs of one node divide its cores
        shares.append(frozenset(some[place[some] : place[some] + each]))
        place[some] += each
    if len(frozenset().union(*shares)) == each * len(near):
        return shares
    return [frozenset(cores[number * each : (number + 1) * each]) for number in range(len(near))]

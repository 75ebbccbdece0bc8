"""``autotune queue``: searches that wait for an idle machine."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.clock import SystemClock, format_duration
from autotune.commands.invocation import Invocation
from autotune.commands.output import say, say_aside, say_remarks
from autotune.commands.parameters import (
    BATCH_LIMIT,
    DURATION,
    OrderedGroup,
    config_option,
    json_option,
    seed_option,
    state_dir_option,
    storage_option,
)
from autotune.config.secrets import secrets_of
from autotune.daemon.home import DaemonHome, ask, open_home
from autotune.daemon.queue import (
    CHANGES,
    ApplyScope,
    EntryState,
    Queue,
    QueueEntry,
    StartRule,
    find_entries,
    fingerprint,
    kept_environment,
    shown_note,
)
from autotune.errors import AutotuneError, ConfigError, DaemonAway
from autotune.files import open_regular
from autotune.options import SearchRequest
from autotune.process import STORAGE_VARIABLE
from autotune.report.plain_text import plain
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.search.problem import Problem

NO_DAEMON = "no daemon runs: `autotune daemon run` in a terminal, or `autotune daemon install`"
"""Sentence for whoever waits for nobody."""

command = OrderedGroup(
    name="queue", help="Searches that wait for their turn, and are made by the daemon (autotune daemon run)."
)
_entry = click.IntRange(min=1)
_entries_argument = click.argument("numbers", nargs=-1, required=True, type=_entry, metavar="ENTRY...")


@command.command("add", short_help="ask for a search: when the machine is idle, now, or at a time of the day")
@config_option
@click.option("--budget", "budget_s", type=DURATION, default="30m", show_default=True, help="Wall for everything.")
@click.option(
    "--when",
    default="idle",
    show_default=True,
    metavar="[idle|now|22:30]",
    help="Start when the machine has been idle for ten minutes, now, or at a time of the day.",
)
@click.option(
    "--apply",
    "scopes",
    default="never",
    show_default=True,
    metavar="[never|better]",
    help="Write better values into the config if they leave the training as it is; better,batch,precision also if they "
    "change these.",
)
@click.option("--keep-env", "keep", multiple=True, metavar="NAME", help="Keep this variable for the search, too.")
@click.option("--no-check", is_flag=True, help="Do not try one start of the trainer first.")
@seed_option
@click.option("--same-training", is_flag=True, help="Turn only knobs that leave the training itself unchanged.")
@click.option("--batch", type=BATCH_LIMIT, metavar="[Nx|same|free]", help="See autotune search.")
@json_option
@state_dir_option
@storage_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def add(
    call: Invocation,
    /,
    *,
    when: str,
    scopes: str,
    keep: tuple[str, ...],
    no_check: bool,
    **search: Any,
) -> int:
    """Asks for a search of a config, which the daemon makes when its time has come.

    The trainer is started once before, in the environment that the search will have: what trainers are known to depend
    on (PATH, CUDA_*, TF_* and the like), and no secrets.
    """
    try:
        start, apply = StartRule.parse(when, SystemClock().utc().astimezone()), _scopes(scopes)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    home, queue = _open_queue()
    request = SearchRequest(**search)
    options = request.words("seed", "same_training", "batch", "state_dir", "storage")
    options += ("--", *request.trainer) if request.trainer else ()
    environment = _kept(options, keep, says_storage=request.storage is not None)
    path = Path(os.path.realpath(request.config))
    _require_new(queue.entries(), path)
    dropped = os.environ.keys() - environment.keys()
    os.environ.clear()  # what is missing is missed now, and not when nobody is there
    os.environ.update(environment)
    problem, gpus = _opened(request)
    if named := _named(problem, dropped):
        say_aside(f"Not kept for the search, though the config or the trainer's script names it: {', '.join(named)}.")
        say_aside(f"To keep it, on disk: --keep-env {named[0]}")
    if not no_check:
        _try_start(problem, request.budget_s, call)
    further = tuple(one for one in map(os.path.realpath, problem.settings.paths) if one != str(path))
    utc, id = SystemClock().utc().isoformat(timespec="seconds"), secrets.token_hex(8)
    print_of = fingerprint((path, *map(Path, further)))

    def make(number: int, entries: Sequence[QueueEntry]) -> QueueEntry:
        _require_new(entries, path)
        return QueueEntry(
            id=id,
            number=number,
            config=str(path),
            further=further,
            cwd=os.getcwd(),
            options=options,
            budget_s=request.budget_s,
            start=start,
            apply=apply,
            environment=environment,
            gpus=gpus,
            fingerprint=print_of,
            added_utc=utc,
        )

    entry = queue.add(make)
    is_served = _settle(home)
    line = f"Queued as {entry.number}: {entry.config}, {format_duration(entry.budget_s)}, start: {entry.start}. "
    line += "`autotune queue list` says what it waits for." if is_served else f"But {NO_DAEMON}."
    return call.say({"format": 1, "daemon": is_served, "entry": _document(entry, None)}, line)


@command.command("list", short_help="the entries, and what each of them waits for")
@json_option
@click.pass_obj
def list_entries(call: Invocation) -> int:
    """Shows the entries of the queue: what runs, what waits and for what, and what came of those that are done."""
    home, queue = _open_queue()
    entries, why = queue.entries(), _reasons(home)
    lines = [line for entry in entries for line in _lines(entry, why)]
    if not entries:
        lines = ["The queue is empty. `autotune queue add --config config.yaml` asks for a search."]
    if why is None and any(entry.state.is_open for entry in entries):
        lines.append(f"\nNothing starts: {NO_DAEMON}.")
    return call.say(_documents(entries, why), *lines)


def _change(verb: str, done: str, sentence: str, help: str) -> None:
    """Add a command that changes entries, and returns when the daemon has taken account of that."""

    def change(call: Invocation, numbers: tuple[int, ...]) -> int:
        home, queue = _open_queue()
        entries = find_entries(queue.entries(), numbers)
        changed: list[QueueEntry] = []
        for entry in entries:
            if verb == "remove":
                queue.remove(entry.id)
                changed.append(entry)
            elif one := queue.change(entry.id, CHANGES[verb]):
                changed.append(one)
        is_served = _settle(home)
        lines = [f"{entry.number}: {done}, {entry.config}" for entry in changed]
        if verb == "resume" and not is_served:
            lines.append(f"Nothing starts: {NO_DAEMON}.")
        return call.say(_documents(changed, {} if is_served else None), *lines)

    command.command(verb, short_help=sentence, help=help)(_entries_argument(json_option(click.pass_obj(change))))


_change(
    "remove",
    "removed",
    "take entries out of the queue; a search that runs is ended",
    "Takes entries out of the queue. A search that runs is ended first; its finished trials stay in the study.",
)
_change(
    "pause",
    "paused",
    "keep entries from starting; a search that runs is ended, its trials and the rest of its budget stay",
    "Keeps entries from starting. A search that runs is ended; its trials and the rest of its budget stay.",
)
_change(
    "resume",
    "resumed",
    "let paused entries go on, and apply what is held",
    "Lets paused entries go on, tries failed ones again, and applies what is held because a value was edited.",
)


@command.command("wait", short_help="return when entries are done")
@click.argument("numbers", nargs=-1, type=_entry, metavar="[ENTRY...]")
@click.option("--for", "longest_s", type=DURATION, help="Longest time to wait; the exit code is 1 if it is over.")
@json_option
@click.pass_obj
def wait(call: Invocation, numbers: tuple[int, ...], longest_s: float | None) -> int:
    """Returns when these entries, or all that wait or run, are done, failed, held, paused or removed.

    The exit code is 1 if one has failed.
    """
    (home, queue), clock = _open_queue(), SystemClock()
    named = find_entries(queue.entries(), numbers) if numbers else [one for one in queue.entries() if one.goes_on]
    chosen = {entry.id for entry in named}
    if _reasons(home) is None:
        raise AutotuneError(NO_DAEMON, remedy="Nothing would ever be done.")
    until_s = None if longest_s is None else clock.now_s() + longest_s
    while True:
        entries = [entry for entry in queue.entries() if entry.id in chosen]
        if not any(entry.goes_on for entry in entries):
            break
        if until_s is not None and clock.now_s() >= until_s:
            raise AutotuneError(f"not all were done within {format_duration(longest_s or 0.0)}", remedy="They go on.")
        clock.wait(0.5)
    ends = (f"{entry.number}: {entry.state.value}" + (f": {entry.note}" if entry.note else "") for entry in entries)
    call.say(_documents(entries, {}), *ends)
    return int(any(entry.state is EntryState.FAILED for entry in entries))


@command.command("log", short_help="what the searches of an entry printed")
@click.argument("number", type=_entry, metavar="ENTRY")
@click.option("-f", "--follow", is_flag=True, help="Go on until the entry is done.")
def log(number: int, follow: bool) -> int:
    """Shows what the searches of an entry printed about their progress."""
    longest_bytes = 1 << 16  # what is longer is shown in pieces
    (_home, queue), clock, position = _open_queue(), SystemClock(), 0
    (entry,) = find_entries(queue.entries(), [number])
    while True:
        goes_on = follow and any(one.id == entry.id and one.goes_on for one in queue.entries())
        try:
            with open_regular(queue.log(entry)) as file:
                file.seek(position)
                while line := file.readline(longest_bytes):
                    is_whole = line.endswith(b"\n") or len(line) == longest_bytes
                    if not is_whole and goes_on:
                        break
                    position += len(line)
                    say(line.decode("utf-8", "replace").removesuffix("\n"))
        except FileNotFoundError:
            if not follow:
                say(f"Entry {number} has not been started yet.")
        except OSError as error:
            raise AutotuneError(f"the log cannot be read: {error.strerror}", where=str(queue.log(entry))) from error
        if not goes_on:
            return 0
        clock.wait(0.25)


# What the commands have in common: the queue, the daemon that works on it, if one runs, and entries for reading.


_ASK_S = 10.0  # a search that is ended takes up to three


def _open_queue() -> tuple[DaemonHome, Queue]:
    home = open_home(os.environ)
    return home, Queue(home.queue, SystemClock())


def _reasons(home: DaemonHome) -> Mapping[str, str] | None:
    """Return by id what each entry waits for; None if no daemon runs, empty where it does not answer, which is said."""
    try:
        found = ask(home, timeout_s=_ASK_S)["status"].get("reasons")
    except DaemonAway:
        return None
    except AutotuneError as error:  # what is in the queue can be shown all the same
        say_aside(f"autotune: {error}")
        return {}
    return found if isinstance(found, Mapping) else {}


def _settle(home: DaemonHome) -> bool:
    """Return once the daemon has taken account of a change to the queue; False if no daemon runs."""
    try:
        ask(home, to_follow=True, timeout_s=_ASK_S)
    except DaemonAway:
        return False
    except AutotuneError as error:
        raise AutotuneError(
            f"the queue is changed, but the daemon has not followed yet: {error.message}",
            where=error.where,
            remedy="`autotune queue list` shows the queue. If it stays so, end the daemon and start it again.",
        ) from error
    return True


def _document(entry: QueueEntry, reason: str | None) -> dict[str, Any]:
    """Return an entry as ``--json`` shows it: without its environment."""
    shown = {name: value for name, value in entry.document().items() if name not in ("environment", "owner")}
    return {**shown, "note": shown_note(entry), "left_s": entry.left_s, "reason": reason}


def _documents(entries: Sequence[QueueEntry], why: Mapping[str, str] | None) -> dict[str, Any]:
    shown = [_document(entry, (why or {}).get(entry.id)) for entry in entries]
    return {"format": 1, "daemon": why is not None, "entries": shown}


def _lines(entry: QueueEntry, why: Mapping[str, str] | None) -> list[str]:
    """Return an entry as people see it, its explanation in lines below."""
    is_held = entry.state is EntryState.HELD
    reason = None
    if why is not None:
        reason = entry.shown_reason(why)
    elif entry.state is EntryState.RUNNING:
        reason = (
            "its daemon is gone: the search ends by itself, and goes on with the rest of its budget when one runs again"
        )
    has_used = not is_held and reason and 0 < entry.left_s < entry.budget_s
    left = f", {format_duration(entry.left_s)} left" if has_used else ""
    plan = f"({format_duration(entry.budget_s)}{left}, start: {entry.start})"
    gain = ""
    if entry.answer and entry.answer.is_confirmed and entry.answer.ratio:
        ratio, low, high = entry.answer.ratio
        gain = f"{entry.answer.verdict}: {ratio:.2f}x (95 % interval {low:.2f} to {high:.2f})"
        gain += f"; `autotune daemon explain {entry.answer.advice}`" if entry.answer.advice else ""
    below = [f"     {plain(line, longest=400)}" for line in (gain, reason, shown_note(entry)) if line]
    return [f"{entry.number:>3}  {entry.state.value:<8} {plain(entry.config)}  {plan}", *below]


# Steps of adding an entry.


LEAST_TRIALS = 6
"""Number of starts of the trainer that a budget has to have room for: the baseline, a few points, a confirmation."""


def _scopes(text: str) -> frozenset[ApplyScope]:
    """Parse what may be applied: ``never``, or ``better`` and what may change besides."""
    if text == "never":
        return frozenset()
    words, known = text.split(","), [scope.value for scope in ApplyScope]
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"--apply: {unknown[0]!r} is none of never, {', '.join(known)}")
    if ApplyScope.BETTER not in words:
        raise ValueError(f"--apply: {text!r} lacks {ApplyScope.BETTER.value}: better,{text}")
    return frozenset(map(ApplyScope, words))


def _kept(options: Sequence[str], keep: Sequence[str], *, says_storage: bool) -> dict[str, str]:
    """Return the environment that is kept for an entry."""
    if found := secrets_of(options):
        raise ConfigError(
            f"the queue is kept on disk, and would keep a secret ({found[0].name})",
            where="command line",
            remedy="Let the trainer read it from a file, or from a variable named with --keep-env.",
        )
    if missing := [name for name in keep if name not in os.environ]:
        raise ConfigError(f"there is no variable {missing[0]} to keep", where="--keep-env", remedy="Set it first.")
    environment = kept_environment(os.environ, keep)
    if os.environ.get(STORAGE_VARIABLE) and STORAGE_VARIABLE not in environment and not says_storage:
        raise ConfigError(
            f"{STORAGE_VARIABLE} holds an address with a password, which the queue does not keep on disk",
            where=STORAGE_VARIABLE,
            remedy="Put the address into a file with mode 0600, and name that: --storage file:FILE.",
        )
    return environment


def _require_new(entries: Sequence[QueueEntry], config: Path) -> None:
    for entry in entries:
        if entry.config == str(config) and entry.state.is_open:
            raise AutotuneError(
                f"this config is in the queue already, as {entry.number} ({entry.state.value})",
                where=str(config),
                remedy=f"`autotune queue remove {entry.number}` takes that one out.",
            )


def _opened(request: SearchRequest) -> tuple[Problem, tuple[str, ...]]:
    """Open the problem as the search will; return it with the GPUs that it uses."""
    with signals_held():
        from autotune.search.gpus import watched_gpus
        from autotune.search.problem import open_requested

    problem = open_requested(request)
    say_remarks(problem.settings.remarks)
    return problem, tuple(watched_gpus(problem))


def _named(problem: Problem, variables: Iterable[str]) -> list[str]:
    """Return those variables of the environment that the config or the trainer's script names."""
    with signals_held():
        from autotune.config.sources import find_script

    texts = [path.read_text(errors="replace") for path in problem.settings.paths]
    texts.append(find_script(problem.command, problem.settings.folder).text)
    words = {word for text in texts for word in re.findall(r"\w{3,}", text)}
    return sorted(words.intersection(variables))


def _try_start(problem: Problem, budget_s: float, call: Invocation) -> None:
    """Start the trainer once, unless somebody else is on the GPU."""
    with signals_held():
        from autotune.commands.init_run import try_start
        from autotune.search.gpus import busy_remarks

    if busy := busy_remarks(problem, call.clock):
        say_aside(f"Not tried: {busy[0]}. The trainer is first started when its turn comes.")
        return
    say_aside("Trying one start of the trainer, in the environment that the search will have ...")
    # to the first step, however small the budget: to import a framework takes half of that
    took_s = try_start(problem, call, longest_s=max(20.0, budget_s / LEAST_TRIALS))
    if LEAST_TRIALS * took_s > budget_s:
        raise ConfigError(
            f"a budget of {format_duration(budget_s)} cannot fit: one start of this trainer takes "
            f"{format_duration(took_s)}",
            where="--budget",
            remedy=f"Give at least {format_duration(LEAST_TRIALS * took_s)}; ten times that finds more.",
        )

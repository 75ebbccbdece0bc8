"""``autotune queue``."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
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
    place_options,
    seed_option,
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

NO_DAEMON = "no daemon is running: `autotune daemon run` in a terminal, or `autotune daemon install`"

command = OrderedGroup(name="queue", help="Manage queued searches, which the daemon runs (autotune daemon run).")
_entry = click.IntRange(min=1)
_entries_argument = click.argument("numbers", nargs=-1, required=True, type=_entry, metavar="ENTRY...")


@command.command("add", short_help="queue a search: when idle, now, or at a time of day")
@config_option
@click.option("--budget", "budget_s", type=DURATION, default="30m", show_default=True, help="Total time limit.")
@click.option(
    "--when",
    default="idle",
    show_default=True,
    metavar="[idle|now|22:30]",
    help="Start after ten idle minutes, now, or at a time of day.",
)
@click.option(
    "--apply",
    "scopes",
    default="never",
    show_default=True,
    metavar="[never|better]",
    help="Write better values into the config if the training is unchanged; better,batch,precision allows these "
    "changes.",
)
@click.option("--keep-env", "keep", multiple=True, metavar="NAME", help="Keep this variable too, on disk.")
@click.option("--no-check", is_flag=True, help="Do not test-start the trainer first.")
@seed_option
@click.option("--same-training", is_flag=True, help="Tune only knobs that leave the training unchanged.")
@click.option("--batch", type=BATCH_LIMIT, metavar="[Nx|same|free]", help="See autotune search.")
@json_option
@place_options
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
    """Queue a search for the daemon.

    Test-starts the trainer in the search's environment: usual variables (PATH, CUDA_*, TF_* and similar), no secrets.
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
    os.environ.clear()  # a missing variable fails now, not during the search
    os.environ.update(environment)
    with signals_held():
        from autotune.config.sources import find_script
        from autotune.search.gpus import watched_gpus
        from autotune.search.problem import open_requested

    problem = open_requested(request)
    say_remarks(problem.settings.remarks)
    texts = [text_file.read_text(errors="replace") for text_file in problem.settings.paths]
    texts.append(find_script(problem.command, problem.settings.folder).text)
    if named := sorted(dropped.intersection(re.findall(r"\w{3,}", "\n".join(texts)))):
        say_aside(f"Not kept for the search, but named in the config or the trainer's script: {', '.join(named)}.")
        say_aside(f"To keep it, on disk: --keep-env {named[0]}")
    gpus = tuple(watched_gpus(problem))
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
    line += "`autotune queue list` shows what it waits for." if is_served else f"But {NO_DAEMON}."
    return call.say({"format": 1, "daemon": is_served, "entry": _document(entry, None)}, line)


@command.command("list", short_help="list the entries and what they wait for")
@json_option
@click.pass_obj
def list_entries(call: Invocation) -> int:
    """List the entries: running, waiting (for what), and done (result)."""
    home, queue = _open_queue()
    entries, why = queue.entries(), _reasons(home)
    lines = [line for entry in entries for line in _lines(entry, why)]
    if not entries:
        lines = ["The queue is empty. Add a search: autotune queue add --config config.yaml"]
    if why is None and any(entry.state.is_open for entry in entries):
        lines.append(f"\nNothing starts: {NO_DAEMON}.")
    return call.say(_documents(entries, why), *lines)


def _change(verb: str, done: str, sentence: str, help: str) -> None:
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
    "remove entries and stop their search",
    "Remove entries from the queue. Stops a running search first; its finished trials stay in the study.",
)
_change(
    "pause",
    "paused",
    "pause entries and stop their search",
    "Keep entries from starting. Stops a running search; its trials and the rest of its budget are kept.",
)
_change(
    "resume",
    "resumed",
    "resume paused, failed and held entries",
    "Resume paused entries, retry failed ones, and apply answers that are held because a value was edited.",
)


@command.command("wait", short_help="wait until entries are done")
@click.argument("numbers", nargs=-1, type=_entry, metavar="[ENTRY...]")
@click.option("--for", "longest_s", type=DURATION, help="Time limit; exit with 1 when it is over.")
@json_option
@click.pass_obj
def wait(call: Invocation, numbers: tuple[int, ...], longest_s: float | None) -> int:
    """Wait until these entries, or all open ones, are done, failed, held, paused or removed.

    Exits with 1 if one failed.
    """
    (home, queue), clock = _open_queue(), SystemClock()
    named = find_entries(queue.entries(), numbers) if numbers else [one for one in queue.entries() if one.goes_on]
    chosen = {entry.id for entry in named}
    if _reasons(home) is None:
        raise AutotuneError(NO_DAEMON, remedy="Without it, no entry ever finishes.")
    until_s = None if longest_s is None else clock.now_s() + longest_s
    while True:
        entries = [entry for entry in queue.entries() if entry.id in chosen]
        if not any(entry.goes_on for entry in entries):
            break
        if until_s is not None and clock.now_s() >= until_s:
            raise AutotuneError(
                f"not all entries finished within {format_duration(longest_s or 0.0)}", remedy="They keep running."
            )
        clock.wait(0.5)
    ends = (f"{entry.number}: {entry.state.value}" + (f": {entry.note}" if entry.note else "") for entry in entries)
    call.say(_documents(entries, {}), *ends)
    return int(any(entry.state is EntryState.FAILED for entry in entries))


@command.command("log", short_help="show the output of an entry's searches")
@click.argument("number", type=_entry, metavar="ENTRY")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the entry is done.")
def log(number: int, follow: bool) -> int:
    """Show the progress output of an entry's searches."""
    longest_bytes = 1 << 16  # longer lines are shown in pieces
    (_home, queue), clock, position = _open_queue(), SystemClock(), 0
    (entry,) = find_entries(queue.entries(), [number])
    while True:
        continues = follow and any(one.id == entry.id and one.goes_on for one in queue.entries())
        try:
            with open_regular(queue.log(entry)) as file:
                file.seek(position)
                while line := file.readline(longest_bytes):
                    is_whole = line.endswith(b"\n") or len(line) == longest_bytes
                    if not is_whole and continues:
                        break
                    position += len(line)
                    say(line.decode("utf-8", "replace").removesuffix("\n"))
        except FileNotFoundError:
            if not follow:
                say(f"Entry {number} has not been started yet.")
        if not continues:
            return 0
        clock.wait(0.25)


# Access to the queue and the daemon, and entries as text.


def _open_queue() -> tuple[DaemonHome, Queue]:
    home = open_home(os.environ)
    return home, Queue(home.queue, SystemClock())


def _reasons(home: DaemonHome) -> Mapping[str, str] | None:
    """Return what each entry waits for, by id; None without a daemon, empty if it doesn't answer."""
    try:
        return dict(ask(home)["status"]["reasons"])
    except DaemonAway:
        return None
    except AutotuneError as error:  # the queue itself can still be shown
        say_aside(f"autotune: {error}")
        return {}


def _settle(home: DaemonHome) -> bool:
    """Wait for the daemon to apply a queue change; return False without a daemon."""
    try:
        ask(home, to_follow=True)
    except DaemonAway:
        return False
    except AutotuneError as error:
        raise AutotuneError(
            f"the queue is changed, but the daemon has not applied the change yet: {error.message}",
            where=error.where,
            remedy="See `autotune queue list`. If it does not change, restart the daemon.",
        ) from error
    return True


def _document(entry: QueueEntry, reason: str | None) -> dict[str, Any]:
    shown = {name: value for name, value in entry.document().items() if name not in ("environment", "owner")}
    return {**shown, "note": shown_note(entry), "left_s": entry.left_s, "reason": reason}


def _documents(entries: Sequence[QueueEntry], why: Mapping[str, str] | None) -> dict[str, Any]:
    shown = [_document(entry, (why or {}).get(entry.id)) for entry in entries]
    return {"format": 1, "daemon": why is not None, "entries": shown}


def _lines(entry: QueueEntry, why: Mapping[str, str] | None) -> list[str]:
    is_held = entry.state is EntryState.HELD
    reason = None
    if why is not None:
        reason = entry.shown_reason(why)
    elif entry.state is EntryState.RUNNING:
        reason = "its daemon is gone: the search stops, and resumes with the rest of its budget when a daemon runs"
    has_used = not is_held and reason and 0 < entry.left_s < entry.budget_s
    left = f", {format_duration(entry.left_s)} left" if has_used else ""
    plan = f"({format_duration(entry.budget_s)}{left}, start: {entry.start})"
    gain = ""
    if entry.answer and entry.answer.is_confirmed and entry.answer.ratio:
        ratio, low, high = entry.answer.ratio
        gain = f"{entry.answer.verdict}: {ratio:.2f}x ({low:.2f}-{high:.2f})"
        gain += f"; `autotune daemon explain {entry.answer.advice}`" if entry.answer.advice else ""
    below = [f"     {plain(line, longest=400)}" for line in (gain, reason, shown_note(entry)) if line]
    return [f"{entry.number:>3}  {entry.state.value:<8} {plain(entry.config)}  {plan}", *below]


# Adding an entry.


LEAST_TRIALS = 6  # starts that a budget must have time for: the baseline, a few points, a confirmation


def _scopes(text: str) -> frozenset[ApplyScope]:
    if text == "never":
        return frozenset()
    words, known = text.split(","), [scope.value for scope in ApplyScope]
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"--apply: unknown {unknown[0]!r}; use never, {', '.join(known)}")
    if ApplyScope.BETTER not in words:
        raise ValueError(f"--apply: {text!r} needs {ApplyScope.BETTER.value}: better,{text}")
    return frozenset(map(ApplyScope, words))


def _kept(options: Sequence[str], keep: Sequence[str], *, says_storage: bool) -> dict[str, str]:
    if found := secrets_of(options):
        raise ConfigError(
            f"the queue is stored on disk and must not contain a secret ({found[0].name})",
            where="command line",
            remedy="Let the trainer read it from a file, or from a variable named with --keep-env.",
        )
    if missing := [name for name in keep if name not in os.environ]:
        raise ConfigError(f"variable {missing[0]} is not set", where="--keep-env", remedy="Set it first.")
    environment = kept_environment(os.environ, keep)
    if os.environ.get(STORAGE_VARIABLE) and STORAGE_VARIABLE not in environment and not says_storage:
        raise ConfigError(
            f"{STORAGE_VARIABLE} contains a password, which the queue does not store on disk",
            where=STORAGE_VARIABLE,
            remedy="Put the address into a file with mode 0600, and use --storage file:FILE.",
        )
    return environment


def _require_new(entries: Sequence[QueueEntry], config: Path) -> None:
    for entry in entries:
        if entry.config == str(config) and entry.state.is_open:
            raise AutotuneError(
                f"this config is already in the queue as {entry.number} ({entry.state.value})",
                where=str(config),
                remedy=f"Remove that entry: autotune queue remove {entry.number}",
            )


def _try_start(problem: Problem, budget_s: float, call: Invocation) -> None:
    with signals_held():
        from autotune.commands.init_run import try_start
        from autotune.search.gpus import busy_remarks

    if busy := busy_remarks(problem, call.clock):
        say_aside(f"Not tested: {busy[0]}. The trainer first starts when the search runs.")
        return
    say_aside("Testing one start of the trainer, in the environment of the search ...")
    # at least 20 s to the first step: importing a framework alone takes half of that
    took_s = try_start(problem, call, longest_s=max(20.0, budget_s / LEAST_TRIALS))
    if LEAST_TRIALS * took_s > budget_s:
        raise ConfigError(
            f"a budget of {format_duration(budget_s)} is too short: one start of this trainer takes "
            f"{format_duration(took_s)}",
            where="--budget",
            remedy=f"Use at least {format_duration(LEAST_TRIALS * took_s)}; ten times that finds more.",
        )

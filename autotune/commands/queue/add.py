"""``autotune queue add``: ask for a search."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from autotune.clock import SystemClock, format_duration
from autotune.commands.invocation import Invocation
from autotune.commands.parameters import (
    BatchLimitText,
    Duration,
    config_option,
    json_option,
    seed_option,
    state_dir_option,
    storage_option,
)
from autotune.commands.printing import say, say_aside, say_object
from autotune.config.secrets import secrets_of
from autotune.daemon.queue import ApplyScope, Entry, Queue, StartRule, fingerprint, kept_environment
from autotune.environment import STORAGE_VARIABLE
from autotune.errors import AutotuneError, ConfigError
from autotune.trial.termination import signals_held


@click.command(name="add")
@config_option
@click.option("--budget", "budget_s", type=Duration(), default="30m", show_default=True, help="Wall for everything.")
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
@click.option("--batch", type=BatchLimitText(), metavar="[Nx|same|free]", help="See autotune search.")
@json_option
@state_dir_option
@storage_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(
    call: Invocation,
    config: Path,
    budget_s: float,
    when: str,
    scopes: str,
    keep: tuple[str, ...],
    no_check: bool,
    seed: int,
    same_training: bool,
    batch: str | None,
    as_json: bool,
    state_dir: Path | None,
    storage: str | None,
    trainer: tuple[str, ...],
) -> int:
    """Asks for a search of a config, which the daemon makes when its time has come.

    The trainer is started once before, in the environment that the search will have: what trainers are known to depend
    on (PATH, CUDA_*, TF_* and the like), and no secrets.
    """
    with signals_held():
        from autotune.commands.queue.opened import NO_DAEMON, entry_object, open_queue, settle

    try:
        start, apply = parse_start(when), parse_scopes(scopes)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    options = [*(["--seed", str(seed)] if seed else []), *(["--same-training"] if same_training else [])]
    options += ["--batch", batch] if batch else []
    options += ["--state-dir", str(state_dir.absolute())] if state_dir else []
    options += ["--storage", storage] if storage else []
    request = AddRequest(
        config=config,
        budget_s=budget_s,
        start=start,
        apply=apply,
        keep=keep,
        options=(*options, *(("--", *trainer) if trainer else ())),
        checks=not no_check,
    )
    home, queue = open_queue()
    entry = add_entry(queue, request)
    is_served = settle(home)
    if as_json:
        call.answer(
            lambda: say_object({"format": 1, "daemon": is_served, "entry": entry_object(entry, None)}, indent=2)
        )
        return 0
    what = f"Queued as {entry.number}: {entry.config}, {format_duration(entry.budget_s)}, start: {entry.start}."
    say(f"{what} `autotune queue list` says what it waits for." if is_served else f"{what} But {NO_DAEMON}.")
    return 0


LEAST_TRIALS = 6
"""Number of starts of the trainer that a budget has to have room for: the baseline, a few points, a confirmation."""


@dataclass(frozen=True, kw_only=True)
class AddRequest:
    """Request to add an entry.

    Attributes:
        keep: Names of further variables that are kept.
        options: Further options of the search, as typed.
        checks: Whether the trainer is started once before.
    """

    config: Path
    budget_s: float
    start: StartRule
    apply: frozenset[ApplyScope]
    keep: tuple[str, ...]
    options: tuple[str, ...]
    checks: bool


def parse_start(text: str) -> StartRule:
    """Parse the start of an entry as it was typed.

    Raises:
        ValueError: It is none.
    """
    return StartRule.parse(text, SystemClock().utc().astimezone())


def parse_scopes(text: str) -> frozenset[ApplyScope]:
    """Parse what may be applied: ``never``, or ``better`` and what may change besides.

    Raises:
        ValueError: It is neither.
    """
    if text == "never":
        return frozenset()
    words = text.split(",")
    known = [scope.value for scope in ApplyScope]
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"--apply: {unknown[0]!r} is none of never, {', '.join(known)}")
    if ApplyScope.BETTER not in words:
        raise ValueError(f"--apply: {text!r} lacks {ApplyScope.BETTER.value}: better,{text}")
    return frozenset(map(ApplyScope, words))


def add_entry(queue: Queue, request: AddRequest) -> Entry:
    """Check what is asked for, try one start of the trainer, and put it into the queue.

    Raises:
        AutotuneError: It cannot be searched as it is, or is in the queue already.
    """
    if found := secrets_of(request.options):
        raise ConfigError(
            f"the queue is kept on disk, and would keep a secret ({found[0].name})",
            where="command line",
            remedy="Let the trainer read it from a file, or from a variable named with --keep-env.",
        )
    if missing := [name for name in request.keep if name not in os.environ]:
        raise ConfigError(f"there is no variable {missing[0]} to keep", where="--keep-env", remedy="Set it first.")
    environment = kept_environment(os.environ, request.keep)
    if os.environ.get(STORAGE_VARIABLE) and STORAGE_VARIABLE not in environment and "--storage" not in request.options:
        raise ConfigError(
            f"{STORAGE_VARIABLE} holds an address with a password, which the queue does not keep on disk",
            where=STORAGE_VARIABLE,
            remedy="Put the address into a file with mode 0600, and name that: --storage file:FILE.",
        )
    config = Path(os.path.realpath(request.config))
    _require_new(queue.entries(), config)
    checked = _check_start(request, environment)
    further = tuple(path for path in map(os.path.realpath, checked.files) if path != str(config))
    utc, id = SystemClock().utc().isoformat(timespec="seconds"), secrets.token_hex(8)
    print_of = fingerprint((config, *map(Path, further)))

    def make(number: int, entries: Sequence[Entry]) -> Entry:
        _require_new(entries, config)
        return Entry(
            id=id,
            number=number,
            config=str(config),
            further=further,
            cwd=os.getcwd(),
            options=request.options,
            budget_s=request.budget_s,
            start=request.start,
            apply=request.apply,
            environment=environment,
            gpus=checked.gpus,
            fingerprint=print_of,
            added_utc=utc,
        )

    return queue.add(make)


def _require_new(entries: Sequence[Entry], config: Path) -> None:
    for entry in entries:
        if entry.config == str(config) and entry.state.is_open:
            raise AutotuneError(
                f"this config is in the queue already, as {entry.number} ({entry.state.value})",
                where=str(config),
                remedy=f"`autotune queue remove {entry.number}` takes that one out.",
            )


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """Problem that can be searched."""

    gpus: tuple[str, ...]
    files: tuple[Path, ...]


def _check_start(request: AddRequest, environment: dict[str, str]) -> _Checked:
    """Open the problem as the search will, and start its trainer once, in the environment that is kept.

    Raises:
        AutotuneError: It cannot be searched, its trainer does not start, or the budget is too short for it.
    """
    os.environ.clear()  # what is missing is missed now, and not when nobody is there
    os.environ.update(environment)
    from autotune.commands.init_preflight import try_start
    from autotune.config.typed import typed_tokens
    from autotune.search.batch_limits import limited
    from autotune.search.gpus import busy_remarks, watched_gpus
    from autotune.search.problem import open_problem

    separator = request.options.index("--") if "--" in request.options else len(request.options)
    typed = typed_tokens(request.options[separator + 1 :], request.config, Path.cwd())
    named = dict(zip(request.options[:separator], request.options[1:separator], strict=False))
    state_dir = named.get("--state-dir")
    problem = open_problem(
        request.config,
        command=typed,
        state_dir=None if state_dir is None else Path(state_dir),
        storage=named.get("--storage"),
    )
    same_training = "--same-training" in request.options[:separator]
    problem = limited(problem, same_training=same_training, batch=named.get("--batch"))
    problem.require_runnable()
    for remark in problem.settings.remarks:
        say_aside(remark)
    checked = _Checked(gpus=tuple(watched_gpus(problem)), files=problem.settings.paths)
    if not request.checks:
        return checked
    if busy := busy_remarks(problem, SystemClock()):
        say_aside(f"Not tried: {busy[0]}. The trainer is first started when its turn comes.")
        return checked
    say_aside("Trying one start of the trainer, in the environment that the search will have ...")
    # to the first step, however small the budget: to import a framework takes half of that
    took_s = try_start(problem, longest_s=max(20.0, request.budget_s / LEAST_TRIALS))
    if LEAST_TRIALS * took_s > request.budget_s:
        least = format_duration(LEAST_TRIALS * took_s)
        raise ConfigError(
            f"a budget of {format_duration(request.budget_s)} cannot fit: one start of this trainer takes "
            f"{format_duration(took_s)}",
            where="--budget",
            remedy=f"Give at least {least}; ten times that finds more.",
        )
    return checked

"""``autotune queue add``: ask for a search."""

from pathlib import Path

import click

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
from autotune.process.termination import signals_held


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
        from autotune.commands.printing import say, say_object
        from autotune.commands.queue.adding import AddRequest, add_entry, parse_scopes, parse_start
        from autotune.commands.queue.opened import NO_DAEMON, entry_object, open_queue, settle
        from autotune.durations import format_duration

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

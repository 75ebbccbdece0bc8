"""``autotune diagnose``: why a training is slow, and what helps."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.clock import Clock
from autotune.commands.invocation import Invocation, Watchdog, where_it_is
from autotune.commands.parameters import (
    DURATION,
    Parsed,
    config_if_any_option,
    json_option,
    state_dir_option,
    storage_option,
)
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.commands.diagnose_run import DiagnosisRequest
    from autotune.diagnose.verdict import FailOn


def _condition(text: str) -> "FailOn":
    from autotune.diagnose.verdict import parse_fail_on

    return parse_fail_on(text)


@click.command(name="diagnose")
@config_if_any_option
@click.option(
    "--budget",
    "budget_s",
    type=DURATION,
    help="Wall for everything. Without it 3m, of which a trainer that starts in 3 s uses one minute.",
)
@click.option("--static", is_flag=True, help="Start no training: only look at the machine, the config and the code.")
@click.option(
    "--verify",
    is_flag=True,
    help="Only look whether the step is what the config says: traced once, compiled, in its precision, on its device; "
    "exit with 1 where it is not.",
)
@click.option(
    "--gpus", is_flag=True, help="Print, for this GPU and usual ones, settings to begin with, and do nothing else."
)
@click.option(
    "--effective-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --gpus: samples of an update, which batches are accumulated for; without it the config's, or 64.",
)
@click.option(
    "--fix",
    is_flag=True,
    help="Write the change with the largest certain gain that leaves the training the same into the config.",
)
@click.option(
    "--fail-on",
    type=Parsed("condition", _condition),
    metavar="CONDITION",
    help="Exit with 1 where it holds: gain, bound, errors or warnings, then >=, <=, >, < or ==, and a number.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with the gravest finding: 1 for an error, 3 for a warning, 4 for a note, 0 for nothing.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Keep everything in this folder: a summary on top, verdict and checks, the machine, a report, and profiles of "
    "the pipeline and the step, which take a third of the budget.",
)
@click.option("--allow-busy-gpu", is_flag=True, help="Make trials although somebody else is on the GPU.")
@json_option
@state_dir_option
@storage_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(call: Invocation, /, **options: Any) -> int:
    """Says why a training is slow: checks, what they found, and what each change gains, as measured.

    Short trials of today's config show what limits it: the input, the fixed cost of a step, the step itself, what
    passes outside of steps, neighbours. Changes that may help are tried in turn with it. The config is not touched
    without --fix. Without --config: this machine and its installation, as a bug report wants them.
    """
    from autotune.commands.diagnose_run import DiagnosisRequest, say_gpus

    shows_gpus = options.pop("gpus")
    request = DiagnosisRequest(**options)
    if request.config is None and (request.fix or request.trainer):
        raise click.UsageError("--fix and a trainer's command are about a config: name it with --config.")
    if request.verify and (request.config is None or request.static or request.fix or request.out is not None):
        raise click.UsageError("--verify makes trials of a config, and nothing of --static, --fix and --out.")
    if request.static and request.fix:
        raise click.UsageError("--fix writes what trials have shown to help, and --static makes none.")
    if request.effective_batch is not None and not shows_gpus:
        raise click.UsageError("--effective-batch is about the settings that --gpus prints.")
    if shows_gpus:
        say_gpus(request)
        return 0
    clock = call.clock
    makes_trials = request.config is not None and not request.static
    ends_s = call.started_s + request.wall_s if makes_trials else float("inf")
    with Watchdog(ends_s, lambda: _late(call), clock) as watchdog:
        try:
            return _diagnose(call, request, watchdog, clock)
        except KeyboardInterrupt as interrupt:
            return call.interrupted(interrupt)


def _late(call: Invocation) -> int:
    call.ended_early(f"the budget is used up, and it was still at work {where_it_is()}; ended by force")
    return 1


def _diagnose(call: Invocation, request: "DiagnosisRequest", watchdog: Watchdog, clock: Clock) -> int:
    with signals_held():
        from autotune.commands.diagnose_run import diagnose_with_display, fix, keep, say_diagnosis, strict_exit_code

    done = diagnose_with_display(request, clock, started_s=call.started_s, simulator=call.simulator)
    watchdog.stand_down()
    if request.out is not None:
        keep(request.out, done, clock)
    elapsed_s = clock.now_s() - call.started_s
    call.answer(lambda: say_diagnosis(request, done, elapsed_s=elapsed_s, as_json=call.as_json))
    if request.fix:
        fix(done)
    return 1 if done.has_failed else strict_exit_code(done.diagnosis) if request.strict else 0

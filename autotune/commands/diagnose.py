"""``autotune diagnose``."""

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
    place_options,
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
    help="Total time limit (default: at most 3m; 1m if the trainer starts in 3s).",
)
@click.option("--static", is_flag=True, help="Check machine, config and code without any training.")
@click.option(
    "--verify",
    is_flag=True,
    help="Only check that the step matches the config (compilation, precision, device); exit with 1 if not.",
)
@click.option("--gpus", is_flag=True, help="Print starting values for this and common GPUs, then exit.")
@click.option(
    "--effective-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --gpus: samples per update (default: the config's, or 64).",
)
@click.option("--fix", is_flag=True, help="Write the best measured change that leaves the training unchanged.")
@click.option(
    "--fail-on",
    type=Parsed("condition", _condition),
    metavar="CONDITION",
    help="Exit with 1 if e.g. gain>=1.2 holds (gain, bound, errors, warnings; >=, <=, >, <, ==).",
)
@click.option("--strict", is_flag=True, help="Exit with the worst finding: error 1, warning 4, note 5, none 0.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write summary, checks, machine, report and profiles (a third of the budget) here.",
)
@click.option("--allow-busy-gpu", is_flag=True, help="Run trials although the GPU is busy.")
@json_option
@place_options
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(call: Invocation, /, **options: Any) -> int:
    """Explain why training is slow: findings, and the measured gain of each change.

    Short trials of today's config show its limit: input, fixed cost of a step, the step itself, time outside of steps,
    or other processes. Changes are measured interleaved with it. Only --fix edits the config. Without --config, checks
    this machine, for bug reports.
    """
    from autotune.commands.diagnose_run import DiagnosisRequest, show_gpus

    shows_gpus = options.pop("gpus")
    request = DiagnosisRequest(**options)
    if request.config is None and (request.fix or request.trainer):
        raise click.UsageError("--fix and a trainer's command need --config.")
    if request.verify and (request.config is None or request.static or request.fix or request.out is not None):
        raise click.UsageError("--verify needs --config, and conflicts with --static, --fix and --out.")
    if request.static and request.fix:
        raise click.UsageError("--fix conflicts with --static: it needs trials.")
    if request.effective_batch is not None and not shows_gpus:
        raise click.UsageError("--effective-batch needs --gpus.")
    if shows_gpus:
        show_gpus(request)
        return 0
    clock = call.clock
    runs_trials = request.config is not None and not request.static
    ends_s = call.started_s + request.limit_s if runs_trials else float("inf")
    late = "killed at the end of the budget; it was still running"
    with Watchdog(ends_s, lambda: call.ended_early(f"{late} {where_it_is()}"), clock) as watchdog:
        try:
            return _diagnose(call, request, watchdog, clock)
        except KeyboardInterrupt as interrupt:
            return call.interrupted(interrupt)


def _diagnose(call: Invocation, request: "DiagnosisRequest", watchdog: Watchdog, clock: Clock) -> int:
    with signals_held():
        from autotune.commands.diagnose_run import diagnose_with_display, fix, keep, show_diagnosis, strict_exit_code

    done = diagnose_with_display(request, clock, started_s=call.started_s, simulator=call.simulator)
    watchdog.stand_down()
    if request.out is not None:
        keep(request.out, done, clock)
    elapsed_s = clock.now_s() - call.started_s
    call.answer(lambda: show_diagnosis(request, done, elapsed_s=elapsed_s, as_json=call.as_json))
    if request.fix:
        fix(done)
    return 1 if done.has_failed else strict_exit_code(done.diagnosis) if request.strict else 0

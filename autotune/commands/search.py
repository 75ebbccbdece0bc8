"""``autotune search``: the search itself."""

import os
import socket
from pathlib import Path

import click

from autotune.commands.options import Duration, config_option, dry_run_option, json_option, state_dir_option
from autotune.commands.printing import say_aside, say_object


@click.command(name="search")
@config_option
@click.option("--budget", "budget_s", type=Duration(), default="30m", show_default=True, help="Wall for everything.")
@click.option("--seed", type=int, default=0, show_default=True, help="Makes the search's choices repeatable.")
@click.option("--fresh", is_flag=True, help="Start a new record; the old one is kept beside it.")
@click.option("--apply", "and_apply", is_flag=True, help="Write the best values into the config if they are better.")
@click.option("--same-training", is_flag=True, help="Turn only knobs that leave the training itself unchanged.")
@click.option("--allow-busy-gpu", is_flag=True, help="Search although somebody else is on the GPU.")
@dry_run_option
@json_option
@state_dir_option
@click.argument("trainer", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def command(
    started_s: float,
    config: Path,
    budget_s: float,
    seed: int,
    fresh: bool,
    and_apply: bool,
    same_training: bool,
    allow_busy_gpu: bool,
    dry_run: bool,
    as_json: bool,
    state_dir: Path | None,
    trainer: tuple[str, ...],
) -> int:
    """Finds better values for the knobs of a config: short real trainings, measured, compared, confirmed.

    Starts a study of this config on this machine, or goes on with it. The config itself is not touched
    (see `autotune apply`). The trainer's command comes from the config's autotune: section, or after --.
    """
    from autotune.clock import SystemClock
    from autotune.commands.apply import apply_values
    from autotune.commands.showing import failures, show_plan
    from autotune.errors import RunError, how_it_ended
    from autotune.events import Event
    from autotune.report.answer import print_answer, print_failures
    from autotune.report.console import text_console
    from autotune.report.document import answer_document
    from autotune.report.eventlog import EventLog
    from autotune.report.live import SearchDisplay
    from autotune.results import Verdict
    from autotune.search.budget import Budget
    from autotune.search.devices import busy_remarks, remarks_on_gpus, require_free_gpus
    from autotune.search.gpu_sampling import gpu_sampling
    from autotune.search.instruments import Instruments
    from autotune.search.journal import set_aside, sole_search
    from autotune.search.keepsakes import Keepsakes
    from autotune.search.setup import open_setup
    from autotune.search.study import Study
    from autotune.search.tuner import Tuner
    from autotune.settings.typed import typed_tokens
    from autotune.trial.guard import Guard
    from autotune.trial.sweep import sweep
    from autotune.trial.termination import ended_in_order
    from autotune.trial.zygote import ZygoteRunner

    if dry_run and as_json:
        raise click.UsageError("--dry-run is for people and has no JSON form; leave --json out.")
    clock = SystemClock()
    budget = Budget(clock, started_s=started_s, budget_s=budget_s)
    typed = typed_tokens(trainer, config, Path.cwd())
    setup = open_setup(config, command=typed, state_dir=state_dir, same_training=same_training)
    setup.require_runnable()
    progress, output = text_console(stderr=True), text_console()
    remarks = remarks_on_gpus(setup)
    if dry_run:
        show_plan(output, setup, budget_s)
        output.print(f"score: {setup.measures}", soft_wrap=True)
        for remark in (*remarks, *busy_remarks(setup, clock)):
            output.print(remark, soft_wrap=True)
        return 0

    setup.state.create()
    show_plan(progress, setup, budget_s)
    for remark in remarks:
        progress.print(remark, soft_wrap=True)
    name = f"{clock.utc():%Y%m%dT%H%M%SZ}-{socket.gethostname()}-{os.getpid()}"
    events = setup.state.searches / f"{name}.events.jsonl"
    with (
        ended_in_order(),
        sole_search(setup.journal.with_suffix(".search"), setup.study),
        Guard() as guard,
        gpu_sampling(setup, guard, setup.state.searches / f"{name}.gpu.jsonl", clock) as sampling,
        Keepsakes(setup, clock, cwd=Path.cwd(), name=name) as keepsakes,
    ):
        if fresh:
            set_aside(setup.journal, clock)
        study = Study(setup.study, setup.journal)
        if study.torn_bytes:
            progress.print("The last run of an earlier search was cut off by a crash; all others are there.")
        if swept := sweep(setup.state.runs(setup.study), clock).killed:
            progress.print(f"Ended {len(swept)} processes that an earlier search had left running.")
        if not allow_busy_gpu:
            require_free_gpus(setup, clock)  # after the sweep: it may have been an earlier run of ours
        for remark in busy_remarks(setup, clock) if allow_busy_gpu else ():
            progress.print(f"{remark}; the search goes on beside it.", soft_wrap=True)
        if keepsakes.remark:
            progress.print(keepsakes.remark, soft_wrap=True)
        log = EventLog(events, clock)
        runner = ZygoteRunner(guard, clock)

        def say_remarks(_event: Event) -> None:
            for remarks in (runner.remarks, tuner.remarks, *((sampling.remarks,) if sampling else ())):
                while remarks:
                    progress.print(remarks.popleft(), soft_wrap=True)

        with SearchDisplay(progress, clock, started_s=budget.started_s, budget_s=budget_s) as display:
            tuner = Tuner(
                setup,
                study,
                runner,
                budget,
                clock,
                (log, display, say_remarks, keepsakes.after),
                name=name,
                seed=seed,
                instruments=lambda: Instruments.of_machine(clock, sampling),
            )
            try:
                result = tuner.run()
            except KeyboardInterrupt as interrupt:
                word, code = how_it_ended(interrupt)
                kept = sum(run.search == name for run in study.records())
                say_aside(f"autotune: {word}; {kept} finished runs are kept, the same command goes on")
                if loss := keepsakes.loss("the last run"):
                    say_aside(f"autotune: {loss}")
                return code
            except RunError:
                print_failures(progress, failures(tuner.failures, tuner.outcomes))
                raise
        setup.state.prune(setup.study, protected=tuner.best_runs())

    if setup.config_changed():
        progress.print(f"{config} was changed during the search; the answer is for the file as it was at the start.")

    def apply_if_better() -> None:
        if and_apply and result.verdict is Verdict.BETTER and result.best and result.baseline:
            best, today = result.best.values, result.baseline.values
            apply_values(setup, best, today, console=progress, force=False, dry_run=False)

    if as_json:
        apply_if_better()  # first, so that a failure is the one object on stdout
        paths = {"journal": str(setup.journal), "runs": str(setup.state.runs(setup.study)), "events": str(events)}
        document = answer_document(result, elapsed_s=budget.elapsed_s(), study=setup.study, paths=paths)
        say_object(document, indent=2)
    else:
        print_answer(
            output,
            result,
            config=str(config),
            elapsed_s=budget.elapsed_s(),
            failures=failures(tuner.failures, result.outcomes),
        )
        apply_if_better()
    return 0

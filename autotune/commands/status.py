"""``autotune status``."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from autotune.commands.invocation import Invocation
from autotune.commands.output import say_object, say_remarks
from autotune.commands.parameters import config_option, json_option, place_options
from autotune.trial.termination import signals_held

if TYPE_CHECKING:
    from autotune.records import Values
    from autotune.search.problem import Problem


@click.command(name="status")
@config_option
@click.option("--details", is_flag=True, help="Show all metrics, notes on the GPUs, and the last trials.")
@click.option("--why", is_flag=True, help="Show the rules behind the verdict, with their inputs.")
@json_option
@place_options
@click.pass_obj
def command(call: Invocation, /, *, details: bool, why: bool, **options: Any) -> int:
    """Show the current answer of this config's study."""
    with signals_held():
        from autotune.records import UNCHANGED
        from autotune.report.answer import print_answer, print_rules
        from autotune.report.console import text_console
        from autotune.report.plain_text import plain
        from autotune.search.answer import Study
        from autotune.search.problem import open_problem

    problem = open_problem(command=None, **options)
    say_remarks(problem.state.remarks)
    study = Study.of(problem)
    result = study.answer()
    rules = study.rules(result) if why else []
    if call.as_json:
        from autotune.commands.apply_answer import changes_to_offer, diff_of
        from autotune.report.json_answer import answer_document

        offered = changes_to_offer(problem, study.name, study.trials, result)
        document = answer_document(
            result,
            elapsed_s=None,
            study=study.name,
            paths=problem.place.paths(study.name),
            answer=offered,
            diff=diff_of(problem, offered),
        )
        if why:
            document["rules"] = [asdict(rule) for rule in rules]
        call.answer(lambda: say_object(document, indent=2))
    elif why:
        print_rules(text_console(), rules)
    else:
        console = text_console()
        baseline = result.baseline.values if result.baseline else {}
        answers = [result.best] if result.best and result.verdict not in UNCHANGED else []
        answers += [result.same_training[0]] if result.same_training and result.applies_same_training else []
        applied = any(not _differing(problem, _written(answer.values, baseline)) for answer in answers)
        print_answer(console, result, typed=problem.typed, elapsed_s=None, applied=applied, details=details)
        if applied and all(_differing(problem, answer.values) for answer in answers):
            command = problem.typed.command("apply", "--code")
            console.print(f"The code does not have its values yet:  {command}", soft_wrap=True)
        if not applied and (edits := _differing(problem, baseline)):
            edited = plain("; ".join(edits))
            console.print(f"\nEdited since the search: {edited}. The answer is for the old values.", soft_wrap=True)
        if study.why_not_current:
            console.print(f"\n{study.why_not_current}; answers exclude them.", soft_wrap=True)
        if details:
            from autotune.events import TrialEnded
            from autotune.report.live import trial_line

            shown = study.trials[-20:]
            console.print(f"\nThe last {len(shown)} of {len(study.trials)} trials of study {study.name}:")
            for trial in shown:
                changes = {path: value for path, value in trial.values.items() if baseline.get(path) != value}
                line = trial_line(TrialEnded(trial=trial, changes=changes, speedup=None))
                console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            console.print(f"\nStudy {study.name}: {len(study.trials)} trials; --details lists the last ones.")
    return 0


def _written(values: "Values", baseline: "Values") -> "Values":
    """Return an answer's values in the config, which `apply` writes; all values if it changes only the code."""
    from autotune.records import CODE

    in_config = {path: value for path, value in values.items() if not path.startswith(CODE)}
    return in_config if any(baseline.get(path) != value for path, value in in_config.items()) else values


def _differing(problem: "Problem", values: "Values") -> list[str]:
    from autotune.report.plain_text import value_text
    from autotune.space.knob import same_scalar

    now = problem.space.baseline
    return [
        f"{path} is {value_text(now[path])}, was {value_text(value)}"
        for path, value in values.items()
        if path in now and not same_scalar(now[path], value)
    ]

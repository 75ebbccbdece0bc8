"""``autotune daemon explain``: what an advice is based on."""

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import json_option
from autotune.trial.termination import signals_held


@click.command(name="explain")
@click.argument("id", metavar="ADVICE")
@json_option
@click.pass_obj
def command(call: Invocation, id: str, as_json: bool) -> int:
    """Shows an advice: the measured gain with its interval, the change to the config, what each value is worth, why."""
    with signals_held():
        import os

        from autotune.commands.printing import say, say_object
        from autotune.daemon.advice import Advices, AdviceState
        from autotune.daemon.home import locate_home

    advice = Advices(locate_home(os.environ).advice).advice(id)
    if as_json:
        call.answer(lambda: say_object(advice.document(), indent=2))
        return 0
    ratio, low, high = advice.ratio
    say(f"Advice {advice.id} for {advice.config}, of {advice.made_utc}: {advice.state.value}")
    say(f"{ratio:.2f}x as fast as the config was (95 % interval {low:.2f} to {high:.2f}); study {advice.study}")
    say("")
    say(advice.diff.rstrip("\n"))
    say("")
    for change in advice.changes:
        say(f"  {change.path}: {change.old!r} -> {change.new!r}  {_worth(change.worth)}  ({change.label})")
    say("")
    for sentence in advice.why:
        say(sentence)
    is_applied = advice.state is AdviceState.APPLIED
    say(f"{'To undo it: autotune revert' if is_applied else 'To take it: autotune apply'} --config {advice.config}")
    return 0


def _worth(worth: tuple[float, float, float] | None) -> str:
    """Return what a change is worth, in words."""
    if worth is None:
        return "not measured by itself"
    ratio, low, high = worth
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})" if low > 1 or high < 1 else f"unclear ({low:.2f} to {high:.2f})"

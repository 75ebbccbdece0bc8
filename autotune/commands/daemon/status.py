"""``autotune daemon status``, ``url`` and ``explain``: what it does, its page, and what an advice is based on."""

from datetime import datetime

import click

from autotune.commands.invocation import Invocation
from autotune.commands.parameters import json_option
from autotune.trial.termination import signals_held

_ASK_S = 5.0


@click.command(name="status")
@json_option
@click.pass_obj
def command(call: Invocation, as_json: bool) -> int:
    """Shows whether the daemon runs, how it is hosted, and what it sees; exit code 1 if it does not run."""
    with signals_held():
        import os

        from autotune.commands.printing import say, say_object
        from autotune.daemon.control import ask
        from autotune.daemon.home import locate_home

    status = ask(locate_home(os.environ), timeout_s=_ASK_S)["status"]
    if as_json:
        call.answer(lambda: say_object({"format": 1, **status}, indent=2))
        return 0
    since = datetime.fromisoformat(status["started_utc"]).astimezone()
    say(f"autotune {status['autotune']} daemon, process {status['pid']}, since {since:%Y-%m-%d %H:%M:%S}")
    say(f"hosted by {status['hosted']}")
    say(f"machine: {status['machine']}")
    if status["running"] is not None:
        say(f"running: the search of queue {status['running']}; `autotune queue log -f {status['running']}`")
    waiting = sum(reason != "its search runs" for reason in status["reasons"].values())
    say(f"queue: {waiting or 'nothing'} waiting; `autotune queue list`")
    for training in status["trainings"]:
        speed = (
            f"{training['samples_per_s']:.4g} samples/s" if training["samples_per_s"] else f"{training['steps']} steps"
        )
        slow = ", slower than itself" if training["is_slow"] else ""
        say(f"training: {training['name']} (process {training['pid']}), {speed}{slow}")
    if status["trouble"]:
        say(f"trouble: {status['trouble']}")
    return 0


@click.command(name="url")
def url_command() -> int:
    """Prints an address of the daemon's page that signs one browser in, once, within two minutes."""
    with signals_held():
        import os

        from autotune.clock import SystemClock
        from autotune.commands.daemon.run import web_module
        from autotune.commands.printing import say
        from autotune.daemon.control import ask
        from autotune.daemon.home import locate_home
        from autotune.errors import AutotuneError

    home = locate_home(os.environ)
    page = ask(home, timeout_s=_ASK_S)["page"]
    if page is None:
        raise AutotuneError("the daemon serves no page", remedy="Start it with `autotune daemon run --web`.")
    say(web_module("keys").Keys(home.web_token, SystemClock(), page["run"]).new_address(page["origin"]))
    return 0


@click.command(name="explain")
@click.argument("id", metavar="ADVICE")
@json_option
@click.pass_obj
def explain_command(call: Invocation, id: str, as_json: bool) -> int:
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
    if worth is None:
        return "not measured by itself"
    ratio, low, high = worth
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})" if low > 1 or high < 1 else f"unclear ({low:.2f} to {high:.2f})"

"""``autotune daemon``."""

import os
import pwd
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.output import say, say_aside
from autotune.commands.parameters import OrderedGroup, json_option
from autotune.daemon.home import ask, locate_home, open_home
from autotune.daemon.systemd import NAME, daemon_command, remove_unit, unit_path, unit_text, write_unit
from autotune.errors import AutotuneError
from autotune.trial.children import CommandResult, run_short
from autotune.trial.termination import signals_held

command = OrderedGroup(name="daemon", help="Tune configs while the machine is idle, watch trainings, and recommend.")


@command.command("run", short_help="run the daemon in this terminal")
@click.option("--web", is_flag=True, help="Serve a web page and metrics, on localhost only.")
@click.option(
    "--web-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=8577,
    show_default=True,
    help="Port; 0 picks a free one.",
)
@click.option("--web-actions", is_flag=True, help="Allow queue changes (pause, resume, remove) from the page.")
def run(web: bool, web_port: int, web_actions: bool) -> int:
    """Run the daemon until ^C: search queued configs while the machine is idle, and watch trainings.

    Stopping it does not affect trainings. A running search stops after its trial, and resumes with the next daemon.
    """
    if web_actions and not web:
        raise click.UsageError("--web-actions needs --web.")
    with signals_held():
        from autotune.config.daemon_settings import load_daemon_settings
        from autotune.daemon.service import Service

    clock = SystemClock()

    def note(text: str) -> None:
        say_aside(f"{clock.utc().astimezone():%H:%M:%S} {text}")

    home = open_home(os.environ)
    page = None
    if web:
        page = web_module("server").WebServer(home, web_port, clock, has_actions=web_actions)
    Service(home, load_daemon_settings(os.environ), clock, note, page).run()
    return 0


def web_module(name: str) -> ModuleType:
    """Return a module of `autotune.daemon.web`."""
    try:
        return import_module(f"autotune.daemon.web.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("itsdangerous", "prometheus_client", "starlette", "uvicorn"):
            raise
        raise AutotuneError(
            f"the web page needs {error.name}, which is not installed",
            where="--web",
            remedy="In the clone that autotune was installed from, run: pip install '.[web]'",
        ) from error


# systemd user unit.


_SYSTEMCTL = ("systemctl", "--user")
_RELOAD = (*_SYSTEMCTL, "daemon-reload")
_START = (_RELOAD, (*_SYSTEMCTL, "enable", "--now", NAME))
_UPDATE = (_RELOAD, (*_SYSTEMCTL, "enable", NAME), (*_SYSTEMCTL, "restart", NAME))
_STOP = ((*_SYSTEMCTL, "stop", NAME), _RELOAD)


@command.command("install", short_help="write a systemd user unit that starts the daemon at login")
@click.option("--now", is_flag=True, help="Also enable and start the unit.")
@click.option("--web", is_flag=True, help="Serve the web page and metrics, as `autotune daemon run --web`.")
def install(now: bool, web: bool) -> int:
    """Write a systemd user unit that starts the daemon at login, and print how to enable it.

    Needs no administrator. Starts nothing without --now. Without systemd (containers), start `autotune daemon run`
    yourself.
    """
    open_home(os.environ)  # fails where the daemon cannot run
    starts = daemon_command(sys.executable)
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    _require(
        run_short((*starts[:-2], "--version"), 10.0, env=kept),
        "systemd could not start the daemon",
        shlex.join(starts),
        "Install autotune into an environment (pip install), and run the `autotune` of that environment.",
    )
    if web:
        web_module("server")  # report a missing package here instead of in the service's log
        starts = (*starts, "--web")
    if now:
        _require_manager()
    path = unit_path(os.environ)
    is_new = write_unit(path, unit_text(starts, os.environ))
    say(f"{'Written' if is_new else 'Rewritten'}: {path}")
    _run_or_print(
        _START if is_new else _UPDATE,
        "The daemon is running, and starts at each login. `autotune daemon status` shows its state.",
        "To start the daemon now and at each login:",
        now=now,
    )
    if not _lingers():
        say("It stops when you log out. To run it permanently, from boot:")
        say("  loginctl enable-linger")
    return 0


@command.command("uninstall", short_help="remove the systemd unit")
@click.option("--now", is_flag=True, help="Also stop the daemon and reload systemd.")
def uninstall(now: bool) -> int:
    """Remove the unit of `autotune daemon install`.

    Keeps queue, recommendations and log. Does not affect trainings; a running search stops after its trial.
    """
    if now:
        _require_manager()
    path = unit_path(os.environ)
    if not remove_unit(path):
        say(f"No unit to remove: {path}")
        return 0
    say(f"Removed: {path}")
    _run_or_print(_STOP, "The daemon has stopped.", "To stop the daemon that systemd started:", now=now)
    return 0


def _run_or_print(commands: Sequence[Sequence[str]], done: str, otherwise: str, *, now: bool) -> None:
    if now:
        for words in commands:
            _require(
                run_short(words, 120.0),  # systemd waits until the daemon reports that it is up
                "command failed",
                shlex.join(words),
                f"See the daemon's log: journalctl --user --unit={NAME} --lines=20",
            )
    say("\n".join([done] if now else [otherwise, *(f"  {shlex.join(words)}" for words in commands)]))


def _require_manager() -> None:
    _require(
        run_short((*_SYSTEMCTL, "show", "--property=Version"), 10.0),
        "no systemd user manager",
        shlex.join(_SYSTEMCTL),
        "In a container, or under another init, start `autotune daemon run` directly. After `su` or `sudo`, log in as "
        "that user instead: they have no session.",
    )


def _require(answered: CommandResult, failed: str, where: str, remedy: str) -> None:
    if answered.status != 0:
        raise AutotuneError(f"{failed}: {answered.text or f'status {answered.status}'}", where=where, remedy=remedy)


def _lingers() -> bool:
    """Return whether services keep running without a login."""
    try:
        return (Path("/var/lib/systemd/linger") / pwd.getpwuid(os.getuid()).pw_name).exists()
    except (KeyError, OSError):
        return False


@command.command("status", short_help="show the daemon's state")
@json_option
@click.pass_obj
def status(call: Invocation) -> int:
    """Show the daemon's state; exit with 1 if it is not running."""
    found = ask(locate_home(os.environ))["status"]
    since = datetime.fromisoformat(found["started_utc"]).astimezone()
    running = found["running"]
    waiting = sum(reason != "its search runs" for reason in found["reasons"].values())
    lines = [
        f"autotune {found['autotune']} daemon, process {found['pid']}, since {since:%Y-%m-%d %H:%M:%S}",
        f"hosted by {found['hosted']}",
        f"machine: {found['machine']}",
        *([] if running is None else [f"running: search of queue entry {running}; `autotune queue log -f {running}`"]),
        f"queue: {waiting} waiting; `autotune queue list`",
    ]
    for one in found["trainings"]:
        speed = f"{one['samples_per_s']:.4g} samples/s" if one["samples_per_s"] else f"{one['steps']} steps"
        slow = ", slower than before" if one["is_slow"] else ""
        lines.append(f"training: {one['name']} (process {one['pid']}), {speed}{slow}")
    if found["trouble"]:
        lines.append(f"problem: {found['trouble']}")
    return call.say({"format": 1, **found}, *lines)


@command.command("url", short_help="print a login address of the daemon's web page")
def url() -> int:
    """Print a web address that logs in one browser, once, within two minutes."""
    home = locate_home(os.environ)
    page = ask(home)["page"]
    if page is None:
        raise AutotuneError("the daemon serves no web page", remedy="Start it with `autotune daemon run --web`.")
    say(web_module("keys").Keys(home.web_token, SystemClock(), page["run"]).new_address(page["origin"]))
    return 0


@command.command("explain", short_help="explain a recommendation")
@click.argument("id", metavar="ID")
@json_option
@click.pass_obj
def explain(call: Invocation, id: str) -> int:
    """Explain a recommendation: gain, change to the config, gain of each value, reasons."""
    with signals_held():
        from autotune.daemon.advice import AdviceState, Recommendations

    advice = Recommendations(locate_home(os.environ).advice).advice(id).now()
    ratio, low, high = advice.ratio
    is_applied = advice.state is AdviceState.APPLIED
    return call.say(
        advice.document(),
        f"Recommendation {advice.id} for {advice.config}, {advice.made_utc}: {advice.state.value}",
        f"{ratio:.2f}x as fast as the config was (95 % interval {low:.2f}-{high:.2f}); study {advice.study}",
        "",
        advice.diff.rstrip("\n"),
        "",
        *(f"  {one.path}: {one.old!r} -> {one.new!r}  {_gain(one.worth)}  ({one.label})" for one in advice.changes),
        "",
        *advice.why,
        f"{'To undo' if is_applied else 'To apply'}: {advice.command}",
    )


def _gain(gain: tuple[float, float, float] | None) -> str:
    if gain is None:
        return "not measured separately"
    ratio, low, high = gain
    return f"{ratio:.2f}x ({low:.2f}-{high:.2f})" if low > 1 or high < 1 else f"inconclusive ({low:.2f}-{high:.2f})"

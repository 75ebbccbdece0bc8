"""``autotune daemon``: the service that tunes while GPUs are idle, and watches what trains."""

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

_ASK_S = 5.0

command = OrderedGroup(
    name="daemon", help="Tunes configs while the machine is idle, watches trainings, and says what to do."
)


@command.command("run", short_help="run the daemon in this terminal")
@click.option("--web", is_flag=True, help="Serve a page that shows what goes on, and metrics, on this machine alone.")
@click.option("--web-port", type=click.IntRange(0, 65535), default=8577, show_default=True, help="0: a free one.")
@click.option("--web-actions", is_flag=True, help="Let the page pause, resume and remove entries of the queue.")
def run(web: bool, web_port: int, web_actions: bool) -> int:
    """Runs the daemon until ^C: it makes the searches of the queue while the machine is idle, and watches trainings.

    Ending it changes nothing that trains. A search that runs ends by itself after its running trial, and goes on with
    the rest of its budget when the daemon is there again.
    """
    if web_actions and not web:
        raise click.UsageError("--web-actions is for the page, which --web serves.")
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
            f"the page needs {error.name}, which is not installed",
            where="--web",
            remedy="Run, in the clone that autotune was installed from: pip install '.[web]'",
        ) from error


# The systemd unit of this user's daemon.


_SYSTEMCTL = ("systemctl", "--user")
_RELOAD = (*_SYSTEMCTL, "daemon-reload")
_START = (_RELOAD, (*_SYSTEMCTL, "enable", "--now", NAME))
_UPDATE = (_RELOAD, (*_SYSTEMCTL, "enable", NAME), (*_SYSTEMCTL, "restart", NAME))
_STOP = ((*_SYSTEMCTL, "stop", NAME), _RELOAD)


@command.command("install", short_help="write a systemd unit that starts the daemon at your login")
@click.option("--now", is_flag=True, help="Also have systemd start it, now and at each login.")
@click.option(
    "--web", is_flag=True, help="Have it serve the page and the metrics, as `autotune daemon run --web` does."
)
def install(now: bool, web: bool) -> int:
    """Writes a systemd unit that starts the daemon at your login, and says how to enable it.

    The unit is yours alone, no administrator is needed. Nothing is started unless --now asks for it. Where there is no
    systemd, as in most containers, start `autotune daemon run` by whatever starts programs there.
    """
    open_home(os.environ)  # where it cannot work, it need not be installed
    starts = daemon_command(sys.executable)
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    _require(
        run_short((*starts[:-2], "--version"), 10.0, env=kept),
        "systemd could not start the daemon",
        shlex.join(starts),
        "Install autotune into an environment (pip install), and use the `autotune` of that one.",
    )
    if web:
        web_module("server")  # what cannot be served is said here, and not in the log of a service
        starts = (*starts, "--web")
    if now:
        _require_manager()
    path = unit_path(os.environ)
    is_new = write_unit(path, unit_text(starts, os.environ))
    say(f"{'Written' if is_new else 'Written anew'}: {path}")
    _carry_out(
        _START if is_new else _UPDATE,
        "The daemon runs, and is started at each login. `autotune daemon status` shows what it does.",
        "To start the daemon now and at each login:",
        now=now,
    )
    if not _lingers():
        say("It ends with your last login. To have it run at all times, from the boot of the machine on:")
        say("  loginctl enable-linger")
    return 0


@command.command("uninstall", short_help="take that unit away")
@click.option("--now", is_flag=True, help="Also have systemd end the daemon, and forget the unit.")
def uninstall(now: bool) -> int:
    """Takes the unit away that `autotune daemon install` wrote.

    Queue, advice and log stay where they are. Trainings are not touched; a search that runs ends after its trial.
    """
    if now:
        _require_manager()
    path = unit_path(os.environ)
    if not remove_unit(path):
        say(f"There is no unit to take away: {path}")
        return 0
    say(f"Taken away: {path}")
    _carry_out(_STOP, "The daemon has ended.", "To end the daemon that systemd started:", now=now)
    return 0


def _carry_out(commands: Sequence[Sequence[str]], done: str, otherwise: str, *, now: bool) -> None:
    """Run commands of systemd now, or say them."""
    if now:
        for words in commands:
            _require(
                run_short(words, 120.0),  # the daemon says when it is up; systemd waits for that
                "it failed",
                shlex.join(words),
                f"journalctl --user --unit={NAME} --lines=20 shows what the daemon said.",
            )
    say("\n".join([done] if now else [otherwise, *(f"  {shlex.join(words)}" for words in commands)]))


def _require_manager() -> None:
    """Raise an error if no systemd of this user answers."""
    _require(
        run_short((*_SYSTEMCTL, "show", "--property=Version"), 10.0),
        "there is no systemd of yours to start services",
        shlex.join(_SYSTEMCTL),
        "In a container, or under another init, start `autotune daemon run` itself. After `su` or `sudo` log in as "
        "that user instead: there is no session of theirs.",
    )


def _require(answered: CommandResult, failed: str, where: str, remedy: str) -> None:
    if answered.status != 0:
        raise AutotuneError(f"{failed}: {answered.text or f'status {answered.status}'}", where=where, remedy=remedy)


def _lingers() -> bool:
    """Return whether services of this user go on without a login."""
    try:
        return (Path("/var/lib/systemd/linger") / pwd.getpwuid(os.getuid()).pw_name).exists()
    except (KeyError, OSError):
        return False


@command.command("status", short_help="whether the daemon runs, how it is hosted, and what it does")
@json_option
@click.pass_obj
def status(call: Invocation) -> int:
    """Shows whether the daemon runs, how it is hosted, and what it sees; exit code 1 if it does not run."""
    found = ask(locate_home(os.environ), timeout_s=_ASK_S)["status"]
    since = datetime.fromisoformat(found["started_utc"]).astimezone()
    running = found["running"]
    waiting = sum(reason != "its search runs" for reason in found["reasons"].values())
    lines = [
        f"autotune {found['autotune']} daemon, process {found['pid']}, since {since:%Y-%m-%d %H:%M:%S}",
        f"hosted by {found['hosted']}",
        f"machine: {found['machine']}",
        *([] if running is None else [f"running: the search of queue {running}; `autotune queue log -f {running}`"]),
        f"queue: {waiting or 'nothing'} waiting; `autotune queue list`",
    ]
    for one in found["trainings"]:
        speed = f"{one['samples_per_s']:.4g} samples/s" if one["samples_per_s"] else f"{one['steps']} steps"
        slow = ", slower than itself" if one["is_slow"] else ""
        lines.append(f"training: {one['name']} (process {one['pid']}), {speed}{slow}")
    if found["trouble"]:
        lines.append(f"trouble: {found['trouble']}")
    return call.say({"format": 1, **found}, *lines)


@command.command("url", short_help="an address of the page of a daemon that runs with --web")
def url() -> int:
    """Prints an address of the daemon's page that signs one browser in, once, within two minutes."""
    home = locate_home(os.environ)
    page = ask(home, timeout_s=_ASK_S)["page"]
    if page is None:
        raise AutotuneError("the daemon serves no page", remedy="Start it with `autotune daemon run --web`.")
    say(web_module("keys").Keys(home.web_token, SystemClock(), page["run"]).new_address(page["origin"]))
    return 0


@command.command("explain", short_help="what an advice is based on")
@click.argument("id", metavar="ADVICE")
@json_option
@click.pass_obj
def explain(call: Invocation, id: str) -> int:
    """Shows an advice: the measured gain with its interval, the change to the config, what each value is worth, why."""
    with signals_held():
        from autotune.daemon.advice import Advices, AdviceState

    advice = Advices(locate_home(os.environ).advice).advice(id).now()
    ratio, low, high = advice.ratio
    is_applied = advice.state is AdviceState.APPLIED
    return call.say(
        advice.document(),
        f"Advice {advice.id} for {advice.config}, of {advice.made_utc}: {advice.state.value}",
        f"{ratio:.2f}x as fast as the config was (95 % interval {low:.2f} to {high:.2f}); study {advice.study}",
        "",
        advice.diff.rstrip("\n"),
        "",
        *(f"  {one.path}: {one.old!r} -> {one.new!r}  {_worth(one.worth)}  ({one.label})" for one in advice.changes),
        "",
        *advice.why,
        f"{'To undo it' if is_applied else 'To take it'}: {advice.command}",
    )


def _worth(worth: tuple[float, float, float] | None) -> str:
    if worth is None:
        return "not measured by itself"
    ratio, low, high = worth
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})" if low > 1 or high < 1 else f"unclear ({low:.2f} to {high:.2f})"

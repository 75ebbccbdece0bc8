"""``autotune daemon run``: the daemon, in the foreground."""

from importlib import import_module
from types import ModuleType

import click

from autotune.errors import AutotuneError
from autotune.trial.termination import signals_held


@click.command(name="run")
@click.option("--web", is_flag=True, help="Serve a page that shows what goes on, and metrics, on this machine alone.")
@click.option("--web-port", type=click.IntRange(0, 65535), default=8577, show_default=True, help="0: a free one.")
@click.option("--web-actions", is_flag=True, help="Let the page pause, resume and remove entries of the queue.")
@click.option("--web-address", default="127.0.0.1", show_default=True, help="IP address of this machine to serve at.")
@click.option(
    "--web-exposed",
    is_flag=True,
    help="Serve at an address that other machines reach, without encryption: whoever reads along can sign in too.",
)
def command(web: bool, web_port: int, web_actions: bool, web_address: str, web_exposed: bool) -> int:
    """Runs the daemon until ^C: it makes the searches of the queue while the machine is idle, and watches trainings.

    Ending it changes nothing that trains. A search that runs ends by itself after its running trial, and goes on with
    the rest of its budget when the daemon is there again.
    """
    if web_actions and not web:
        raise click.UsageError("--web-actions is for the page, which --web serves.")
    _check_address(web_address, web_port, is_exposed=web_exposed)
    with signals_held():
        import os

        from autotune.clock import SystemClock
        from autotune.commands.printing import say_aside
        from autotune.config.daemon_settings import load_daemon_settings
        from autotune.daemon.home import open_home
        from autotune.daemon.service import Service

    clock = SystemClock()

    def say(text: str) -> None:
        say_aside(f"{clock.utc().astimezone():%H:%M:%S} {text}")

    home = open_home(os.environ)
    page = None
    if web:
        server = web_module("server")
        page = server.WebServer(home, server.WebOptions(address=web_address, port=web_port, actions=web_actions), clock)
    Service(home, load_daemon_settings(os.environ), clock, say, page).run()
    return 0


def _check_address(address: str, port: int, *, is_exposed: bool) -> None:
    """Raise wrong usage unless the address is this machine's own, or is meant to be reached by others."""
    from ipaddress import ip_address

    try:
        ip = ip_address(address)
    except ValueError:
        raise click.UsageError(f"--web-address {address}: an IP address is expected, such as 127.0.0.1.") from None
    if ip.is_unspecified:
        raise click.UsageError(f"--web-address {address}: one address is expected, which browsers then have to name.")
    if not ip.is_loopback and not is_exposed:
        raise click.UsageError(
            f"--web-address {address} can be reached by other machines, and nothing is encrypted. From another machine "
            f"the page is better opened through ssh: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE, and the address that "
            "`autotune daemon url` prints. If others shall reach it all the same: --web-exposed."
        )


# Packages of the daemon's page, which autotune does without otherwise.


_PACKAGES = frozenset(("itsdangerous", "prometheus_client", "starlette", "uvicorn"))


def web_module(name: str) -> ModuleType:
    """Return a module of `autotune.daemon.web`.

    Raises:
        AutotuneError: A package that it needs is not installed.
    """
    try:
        return import_module(f"autotune.daemon.web.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _PACKAGES:
            raise
        raise AutotuneError(
            f"the page needs {error.name}, which is not installed",
            where="--web",
            remedy="Run, in the clone that autotune was installed from: pip install '.[web]'",
        ) from error

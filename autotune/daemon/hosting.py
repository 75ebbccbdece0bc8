"""Hosting of the daemon: what keeps it running, and what ends it. Pure."""

from collections.abc import Mapping


def hosted_by(environ: Mapping[str, str], *, is_service: bool, is_on_terminal: bool, is_in_container: bool) -> str:
    """Return how this process is hosted, in words.

    Args:
        environ: Its environment.
        is_service: Whether a service manager started it.
        is_on_terminal: Whether its standard error is a terminal.
        is_in_container: Whether it runs in a container.
    """
    if is_service:
        how = "a systemd user unit: started again when it fails; ends with your last session unless you linger"
    elif environ.get("TMUX"):
        how = "a tmux session: runs until that, or the machine, ends"
    elif environ.get("STY"):
        how = "a screen session: runs until that, or the machine, ends"
    elif is_on_terminal:
        how = "a terminal: ends with it, or with ^C"
    else:
        how = "a process in the background: nothing starts it again"
    return f"{how}; in a container" if is_in_container else how

"""Client side of the daemon's socket: one request, one answer."""

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

from autotune.clock import Clock, SystemClock, format_duration
from autotune.daemon.control.protocol import (
    MOST_REQUEST_BYTES,
    MOST_RESPONSE_BYTES,
    connect,
    decode_response,
    encode_request,
    places,
)
from autotune.daemon.home import DaemonHome
from autotune.errors import AutotuneError, DaemonAway

_AGAIN_S = 0.02  # between attempts while others are about to connect


def ask(
    home: DaemonHome,
    op: str,
    args: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
    *,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Ask the daemon of this user on this machine.

    Args:
        home: Folders of the daemon; they need not exist.
        args: Its arguments, as JSON holds them.
        timeout_s: Time limit for the answer.

    Returns:
        The result.

    Raises:
        DaemonAway: No daemon runs; nothing was asked.
        AutotuneError: The error that the daemon answered with, its kind included; or it is of another version, does
            not answer in time, or ended meanwhile.
    """
    clock = clock or SystemClock()
    request = encode_request(op, args or {})
    if len(request) > MOST_REQUEST_BYTES:
        raise AutotuneError(
            f"the request {op} has {len(request):,} bytes, and the daemon takes {MOST_REQUEST_BYTES:,}",
            remedy="Shorten what was typed.",
        )
    over_s = clock.now_s() + timeout_s
    try:
        connected = _connected(home, over_s, clock)
        with contextlib.closing(connected):
            # The daemon refuses some requests before it has read them: its answer is there all the same.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connected.sendall(request)
            line = _line(connected, over_s, clock)
    except TimeoutError as error:
        raise AutotuneError(
            f"the daemon did not answer within {format_duration(timeout_s)}",
            where=str(home.socket),
            remedy="Run the command again; if it stays so, end the daemon and start it again.",
        ) from error
    except OSError as error:
        raise AutotuneError(
            f"the connection to the daemon failed: {error.strerror or error}",
            where=str(home.socket),
            remedy="Run the command again; `autotune daemon status` shows whether the daemon runs.",
        ) from error
    return decode_response(line)


def _connected(home: DaemonHome, over_s: float, clock: Clock) -> socket.socket:
    """Connect to the daemon, wherever it listens.

    Raises:
        DaemonAway: It listens nowhere.
        TimeoutError: So many others are about to connect that the time was over.
        AutotuneError: Somebody else is in its place.
        OSError: It cannot be reached.
    """
    for path in places(home):
        while True:
            try:
                return connect(path, max(over_s - clock.now_s(), _AGAIN_S))
            except BlockingIOError:
                if clock.now_s() >= over_s:
                    raise TimeoutError from None
                clock.wait(_AGAIN_S)
            except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
                break
    raise DaemonAway(
        "no daemon of yours was found on this machine",
        where=str(home.socket),
        remedy="Start it with `autotune daemon run`, or for good with `autotune daemon install --now`.",
    )


def _line(connected: socket.socket, over_s: float, clock: Clock) -> bytes:
    """Read the line of the response.

    Raises:
        TimeoutError: It did not come in time.
        AutotuneError: The connection ended before it was whole, or it is too long.
        OSError: The connection failed.
    """
    received = bytearray()
    while len(received) <= MOST_RESPONSE_BYTES:
        left_s = over_s - clock.now_s()
        if left_s <= 0:
            raise TimeoutError
        connected.settimeout(left_s)
        chunk = connected.recv(1 << 16)
        position = chunk.find(b"\n")
        if position >= 0:
            return bytes(received + chunk[:position])
        if not chunk:
            raise AutotuneError(
                "the daemon ended before it had answered",
                remedy="Run the command again; `autotune daemon status` shows whether the daemon runs.",
            )
        received += chunk
    raise AutotuneError(
        f"the daemon's answer is longer than {MOST_RESPONSE_BYTES >> 20} MiB", remedy="Please report this as a bug."
    )

"""Messages between the daemon and its clients: one JSON object a line, one request and one response a connection.

Request: ``{"v": 1, "op": "status", "args": {...}}``. Response: ``{"v": 1, "autotune": "0.1.0", "ok": true, "result":
{...}}``, or ``{..., "ok": false, "error": {"kind", "message", "where", "remedy"}}``. Of a message of another version,
``v`` and ``error`` are understood all the same, so that each side can say what is the matter.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from autotune import __version__
from autotune.errors import AutotuneError

VERSION = 1
"""Version of the protocol."""

MOST_REQUEST_BYTES = 1 << 20
MOST_RESPONSE_BYTES = 1 << 26

_DEEPEST = 32
_MOST_DIGITS = 19  # of 64 bits; what is longer is no number that anybody counts with
_LONGEST_OP = 64

RESTART = (
    "Restart the daemon, so that it is of the version that you use: `systemctl --user restart autotune`, or end "
    "`autotune daemon run` and start it again."
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of a client.

    Attributes:
        op: Name of the operation.
        args: Its arguments, as they came: types and values are to be checked.
        pid: Process that asks; None if it is not visible from here.
    """

    op: str
    args: Mapping[str, Any]
    pid: int | None = None


class BadRequest(Exception):  # noqa: N818 - says what happened, as StudyBusy does
    """Refusal of a request that cannot be understood.

    Attributes:
        response: The response that says why.
    """

    def __init__(self, kind: str, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.response = error_response(kind, message, remedy=remedy)


def encode_request(op: str, args: Mapping[str, Any]) -> bytes:
    """Return the line of a request."""
    return _line({"v": VERSION, "op": op, "args": dict(args)})


def decode_request(line: bytes, pid: int | None) -> Request:
    """Parse the line of a request, which anything may have been written into.

    Raises:
        BadRequest: It is no request of this version.
    """
    try:
        message = json.loads(line, parse_int=_whole, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise BadRequest("protocol", "the request is nested too deeply") from None
    except ValueError as error:  # no JSON, no UTF-8, a number that is none
        raise BadRequest("protocol", f"the request is no JSON: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise BadRequest("protocol", "the request is no JSON object")
    _check_version(message.get("v"))
    op, args = message.get("op"), message.get("args", {})
    if not isinstance(op, str) or not 0 < len(op) <= _LONGEST_OP or not op.isprintable():
        raise BadRequest("protocol", "the request names no operation (op)")
    if not isinstance(args, dict):
        raise BadRequest("protocol", "the arguments of the request (args) are no JSON object")
    if _is_deep(args, _DEEPEST):
        raise BadRequest("protocol", "the request is nested too deeply")
    return Request(op=op, args=args, pid=pid)


def result_response(result: Mapping[str, Any]) -> bytes:
    """Return the line of a response.

    Raises:
        TypeError: The result holds what JSON cannot.
        ValueError: The same; NaN for one.
        RecursionError: The result is nested too deeply.
    """
    return _line({"v": VERSION, "autotune": __version__, "ok": True, "result": dict(result)})


def error_response(kind: str, message: str, *, where: str | None = None, remedy: str | None = None) -> bytes:
    """Return the line of a response that says what is wrong."""
    error = {"kind": kind, "message": message, "where": where, "remedy": remedy}
    return _line({"v": VERSION, "autotune": __version__, "ok": False, "error": error})


def response_of(error: AutotuneError) -> bytes:
    """Return the line of a response for an expected error."""
    return error_response(error.kind, error.message, where=error.where, remedy=error.remedy)


def decode_response(line: bytes) -> dict[str, Any]:
    """Parse the line of a response.

    Returns:
        The result.

    Raises:
        AutotuneError: The error that the daemon answered with, its kind included; or the line is no response of this
            version.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AutotuneError("the daemon's answer cannot be understood", remedy=RESTART) from error
    if not isinstance(message, dict):
        raise AutotuneError("the daemon's answer cannot be understood", remedy=RESTART)
    told = message.get("error")
    if isinstance(told, dict):
        raise _told(told)
    if message.get("v") != VERSION or message.get("ok") is not True or not isinstance(message.get("result"), dict):
        raise AutotuneError(
            f"the daemon (autotune {message.get('autotune')}) speaks version {message.get('v')} of the protocol, and "
            f"this command (autotune {__version__}) version {VERSION}",
            remedy=RESTART,
        )
    result: dict[str, Any] = message["result"]
    return result


def unknown_operation(request: Request, known: Iterable[str]) -> AutotuneError:
    """Return the error for an operation that this daemon does not have; a newer command may ask for it."""
    return AutotuneError(
        f"the daemon (autotune {__version__}) has no operation {request.op!r}; it has {', '.join(sorted(known))}",
        remedy=RESTART,
    )


def _check_version(version: object) -> None:
    if version == VERSION and not isinstance(version, bool):
        return
    if isinstance(version, bool) or not isinstance(version, int):
        raise BadRequest("protocol", "the request does not say its version (v)")
    is_newer = version > VERSION
    raise BadRequest(
        "version",
        f"the daemon (autotune {__version__}) speaks version {VERSION} of the protocol, and this command version "
        f"{version}",
        RESTART if is_newer else f"Use autotune {__version__}, which the daemon is of. Or: {RESTART}",
    )


def _told(told: Mapping[str, Any]) -> AutotuneError:
    kind, message, where, remedy = (told.get(name) for name in ("kind", "message", "where", "remedy"))
    error = AutotuneError(
        str(message),
        where=where if isinstance(where, str) else None,
        remedy=remedy if isinstance(remedy, str) else None,
    )
    error.kind = str(kind)
    return error


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS + 1:
        raise ValueError("a number in it has too many digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number in it is too large")
    return number


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _is_deep(value: object, levels: int) -> bool:
    """Return whether a value has more levels of lists and objects than that."""
    if isinstance(value, dict):
        inside: Iterable[object] = value.values()
    elif isinstance(value, list):
        inside = value
    else:
        return False
    return levels == 0 or any(isinstance(item, dict | list) and _is_deep(item, levels - 1) for item in inside)

"""Keys of the page: the token in a file, one-time codes in printed addresses, and the cookies that they become.

A cookie is a stamp with an HMAC (RFC 2104) under the token, so it holds across restarts of the daemon, and all of them
end when the file is taken away.
"""

import hashlib
import hmac
import os
import secrets
import threading
from pathlib import Path

from autotune.clock import Clock
from autotune.errors import AutotuneError
from autotune.files import create_private, open_regular

TOKEN_BYTES = 32

CODE_S = 120.0
"""Time for which a printed address can be used."""

MOST_CODES = 8

COOKIE_S = 30 * 24 * 3600.0

_LONGEST = 200  # bytes of whatever claims to be a key


class Keys:
    """Maker and judge of keys; may be asked by several threads.

    Args:
        path: File of the token; made, for this user alone, if it is not there.
        clock: Clock of codes (monotonic) and cookies (UTC).

    Attributes:
        token: The token, for a program that reads the metrics.

    Raises:
        AutotuneError: The file cannot be used, or others can read it.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: dict[str, float] = {}  # by its hash, the end of its time
        self.token = _token(path)
        self._key = self.token.encode()

    def new_code(self) -> str:
        """Return a code that can be exchanged once; of too many the oldest is forgotten."""
        code = secrets.token_urlsafe(TOKEN_BYTES)
        with self._lock:
            self._drop_old()
            while len(self._codes) >= MOST_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[_hash(code)] = self._clock.now_s() + CODE_S
        return code

    def exchange(self, code: str) -> str | None:
        """Return a cookie for a code, which is then used up; None if it is none, or too old."""
        if len(code) > _LONGEST:
            return None
        with self._lock:
            self._drop_old()
            # The hash is looked up, so the time that it takes says nothing about the codes.
            if self._codes.pop(_hash(code), None) is None:
                return None
        stamp = str(int(self._clock.utc().timestamp()))
        return f"{stamp}.{self._mac('cookie', stamp)}"

    def is_cookie(self, cookie: str) -> bool:
        """Return whether a cookie is one of ours, and not too old."""
        stamp, _, mac = cookie.partition(".")
        if len(cookie) > _LONGEST or not (stamp.isascii() and stamp.isdigit()):
            return False
        if not hmac.compare_digest(mac.encode(), self._mac("cookie", stamp).encode()):
            return False
        return self._clock.utc().timestamp() - int(stamp) <= COOKIE_S

    def is_token(self, token: str) -> bool:
        """Return whether this is the token."""
        return len(token) <= _LONGEST and hmac.compare_digest(token.encode(), self._key)

    def csrf(self, cookie: str) -> str:
        """Return the token that an action has to bring beside a cookie."""
        return self._mac("csrf", cookie)

    def is_csrf(self, token: str, cookie: str) -> bool:
        """Return whether a token is that of a cookie."""
        return len(token) <= _LONGEST and hmac.compare_digest(token.encode(), self.csrf(cookie).encode())

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()

    def _drop_old(self) -> None:
        now_s = self._clock.now_s()
        self._codes = {code: ends_s for code, ends_s in self._codes.items() if ends_s > now_s}


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _token(path: Path) -> str:
    """Return the token in a file, which is made if it is not there."""
    try:
        try:
            return _read(path)
        except FileNotFoundError:
            create_private(path, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n")
            return _read(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def _read(path: Path) -> str:
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        text = file.read(_LONGEST).decode("ascii", "replace").strip()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise _unusable(path, "others can read it, or it is somebody else's")
    if len(text) < TOKEN_BYTES:
        raise _unusable(path, "it holds no token")
    return text


def _unusable(path: Path, why: str) -> AutotuneError:
    return AutotuneError(
        f"the token of the page cannot be used: {why}",
        where=str(path),
        remedy="Take the file away: the daemon makes a new one, and pages have to sign in again.",
    )

"""Keys of the page: the token of the metrics, addresses that sign one browser in, its cookie, the token of its writes.

All are signed with the token (itsdangerous), which is in a file of the daemon's user: a command that can read it makes
an address by itself, and the daemon needs to remember only which were used.
"""

import hmac
import os
import secrets
import threading
from pathlib import Path

from itsdangerous import BadData, Signer, TimestampSigner

from autotune.clock import Clock
from autotune.errors import AutotuneError
from autotune.files import create_private, open_regular

TOKEN_BYTES = 32
CODE_S = 120.0
"""Time for which a printed address can be used."""

COOKIE_S = 30 * 24 * 3600.0
_LONGEST = 200  # bytes of whatever claims to be a key


class Keys:
    """Maker and judge of keys; may be asked by several threads.

    Args:
        path: File of the token; made, for this user alone, if it is not there.
        run: Name of the daemon's run, whose addresses no later one takes.

    Attributes:
        token: The token, for a program that reads the metrics.

    Raises:
        AutotuneError: The file cannot be used, or others can read it.
    """

    def __init__(self, path: Path, clock: Clock, run: str) -> None:
        self.token = _token(path)
        self._clock = clock
        self._codes = _Signer(self.token, f"code {run}", clock)
        self._cookies = _Signer(self.token, "cookie", clock)
        self._writes = Signer(self.token, salt="csrf")
        self._lock = threading.Lock()
        self._used: dict[str, float] = {}  # codes, with the end of their time

    def new_address(self, origin: str) -> str:
        """Return an address below a scheme, name and port that signs one browser in, once, within two minutes."""
        code = self._codes.sign(secrets.token_urlsafe(TOKEN_BYTES)).decode()
        return f"{origin}/login?code={code}"

    def exchange(self, code: str) -> str | None:
        """Return a cookie for the code of an address, which is then used up; None if it is none, or too old."""
        if not self._codes.knows(code, CODE_S):
            return None
        now_s = self._clock.now_s()
        with self._lock:
            self._used = {one: ends_s for one, ends_s in self._used.items() if ends_s > now_s}
            if code in self._used:
                return None
            self._used[code] = now_s + CODE_S + 1.0  # its age is told in whole seconds
        return self._cookies.sign(secrets.token_urlsafe(8)).decode()

    def is_cookie(self, cookie: str) -> bool:
        """Return whether a cookie is one of ours, and not too old."""
        return self._cookies.knows(cookie, COOKIE_S)

    def is_token(self, token: str) -> bool:
        return len(token) <= _LONGEST and hmac.compare_digest(token.encode(), self.token.encode())

    def csrf(self, cookie: str) -> str:
        """Return the token that an action has to bring beside a cookie."""
        return self._writes.get_signature(cookie).decode()

    def is_csrf(self, token: str, cookie: str) -> bool:
        return len(token) <= _LONGEST and self._writes.verify_signature(cookie.encode(), token.encode())


class _Signer(TimestampSigner):
    """Signer whose time is that of a clock."""

    def __init__(self, token: str, purpose: str, clock: Clock) -> None:
        super().__init__(token, salt=purpose)
        self._clock = clock

    def get_timestamp(self) -> int:
        return int(self._clock.utc().timestamp())

    def knows(self, text: str, max_age_s: float) -> bool:
        """Return whether it has signed a text, within a time."""
        if len(text) > _LONGEST:
            return False
        try:
            self.unsign(text, max_age=int(max_age_s))
        except BadData:
            return False
        return True


def _token(path: Path) -> str:
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

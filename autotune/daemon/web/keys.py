"""Credentials of the page: metrics token, one-time login codes, session cookies, CSRF tokens.

They are signed with the token in a private file: commands can create login addresses, and only used codes are stored.
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
CODE_S = 120.0  # lifetime of a login code
COOKIE_S = 30 * 24 * 3600.0
_LONGEST = 200  # bytes of any credential


class Keys:
    """Creates and verifies credentials; thread-safe.

    Args:
        path: Token file, created if missing.
        run: Id of the daemon's run, for which login codes are valid.
    """

    def __init__(self, path: Path, clock: Clock, run: str) -> None:
        self.token = _token(path)
        self._clock = clock
        self._codes = _Signer(self.token, f"code {run}", clock)
        self._cookies = _Signer(self.token, "cookie", clock)
        self._writes = Signer(self.token, salt="csrf")
        self._lock = threading.Lock()
        self._used: dict[str, float] = {}  # used codes with their expiry

    def new_address(self, origin: str) -> str:
        """Return an address that logs in one browser, once."""
        code = self._codes.sign(secrets.token_urlsafe(TOKEN_BYTES)).decode()
        return f"{origin}/login?code={code}"

    def exchange(self, code: str) -> str | None:
        """Return a cookie for an unused, valid login code, otherwise None."""
        if not self._codes.verifies(code, CODE_S):
            return None
        now_s = self._clock.now_s()
        with self._lock:
            self._used = {one: ends_s for one, ends_s in self._used.items() if ends_s > now_s}
            if code in self._used:
                return None
            self._used[code] = now_s + CODE_S + 1.0  # codes are stamped in whole seconds
        return self._cookies.sign(secrets.token_urlsafe(8)).decode()

    def is_cookie(self, cookie: str) -> bool:
        return self._cookies.verifies(cookie, COOKIE_S)

    def is_token(self, token: str) -> bool:
        return len(token) <= _LONGEST and hmac.compare_digest(token.encode(), self.token.encode())

    def csrf(self, cookie: str) -> str:
        """Return the CSRF token of a session."""
        return self._writes.get_signature(cookie).decode()

    def is_csrf(self, token: str, cookie: str) -> bool:
        return len(token) <= _LONGEST and self._writes.verify_signature(cookie.encode(), token.encode())


class _Signer(TimestampSigner):
    def __init__(self, token: str, purpose: str, clock: Clock) -> None:
        super().__init__(token, salt=purpose)
        self._clock = clock

    def get_timestamp(self) -> int:
        return int(self._clock.utc().timestamp())

    def verifies(self, text: str, max_age_s: float) -> bool:
        if len(text) > _LONGEST:
            return False
        try:
            self.unsign(text, max_age=int(max_age_s))
        except BadData:
            return False
        return True


def _token(path: Path) -> str:
    if not os.path.lexists(path):
        create_private(path, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n")
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        text = file.read(_LONGEST).decode("ascii", "replace").strip()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise _unusable(path, "others can read it, or it belongs to another user")
    if len(text) < TOKEN_BYTES:
        raise _unusable(path, "it contains no token")
    return text


def _unusable(path: Path, why: str) -> AutotuneError:
    remedy = "Remove the file; the daemon creates a new one, and browsers have to log in again."
    return AutotuneError(f"the page's token file cannot be used: {why}", where=str(path), remedy=remedy)

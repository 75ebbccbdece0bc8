"""SIGTERM, made to end what is going on in order, as ^C does; by itself it would end this process without a word."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from autotune.errors import ToldToEnd


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, the first SIGTERM raises `ToldToEnd`, and further ones are ignored: the ending is on its way.

    Where SIGTERM was ignored already, it stays so.
    """

    def told(signum: int, _frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)
        raise ToldToEnd

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

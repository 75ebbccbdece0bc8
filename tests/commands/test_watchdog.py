"""Searches that hang: they end when their budget does, with the answer so far; each is a fork of this process."""

import faulthandler
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.commands.invocation import LATE_S, Watchdog
from autotune.search import problem
from autotune.search.tuner import Tuner
from tests.command_line import CommandLine

SEARCH = ("search", "--config", "config.yaml", "--budget", "3m", "--json", "--no-apply")


def sleeps() -> None:
    """Wait for a lock that is never let go."""
    threading.Event().wait()


def opens_a_fifo() -> None:
    """Wait in the kernel."""
    os.mkfifo("fifo")
    Path("fifo").read_text()


def computes() -> None:
    """Run without end."""
    while True:
        pass


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[..., None]]:
    """Return a function that hangs, and lets the budget end when it does."""
    hangs, watch = threading.Event(), Watchdog._watch

    def late(watchdog: Watchdog) -> None:
        hangs.wait()
        watchdog._left_s = -LATE_S
        watch(watchdog)

    def made(how: Callable[[], None]) -> Callable[..., None]:
        def hang(*_: object) -> None:
            hangs.set()
            how()

        return hang

    monkeypatch.setattr(Watchdog, "_watch", late)
    return made


@pytest.mark.parametrize("how", [sleeps, opens_a_fifo, computes])
def test_an_opening_that_hangs(
    simulated: CommandLine, monkeypatch: pytest.MonkeyPatch, hanging: Callable[..., object], how: Callable[[], None]
) -> None:
    """The command ends with an error of one object, which says where it was."""
    monkeypatch.setattr(problem, "open_requested", hanging(how))
    done = simulated.forked(*SEARCH)
    assert (done.returncode, done.document["error"]["kind"]) == (1, "trial")
    assert "was still running in " in done.stderr
    assert "hangs" not in done.stderr  # what it does there was not seen
    assert "nvidia-smi" not in done.stderr


def test_what_was_measured_is_the_answer(
    simulated: CommandLine, monkeypatch: pytest.MonkeyPatch, hanging: Callable[..., object]
) -> None:
    """The same object as always, with a caution."""
    monkeypatch.setattr(Tuner, "_confirm", hanging(computes))
    done = simulated.forked(*SEARCH)
    assert done.returncode == 0, done.stderr
    assert done.document["baseline"]["metrics"]["samples_per_s"] > 0
    assert "was killed" in done.document["cautions"][-1]


def test_a_call_that_gives_no_other_thread_a_turn(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer can be given then, but the command ends."""
    later = faulthandler.dump_traceback_later
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda _after_s, **more: later(0.1, **more))
    monkeypatch.setattr(problem, "open_requested", lambda _request: pow(7, 10**9))  # a single call of C
    done = simulated.forked(*SEARCH)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Timeout" in done.stderr


def test_it_is_silent_where_all_goes_well() -> None:
    """A search that ends in time, or never has to, is left alone."""
    ends: list[str] = []
    clock = VirtualClock()
    for ends_s in (float("inf"), clock.now_s() + 1000.0):
        with Watchdog(ends_s, lambda: ends.append("ended") or 1, clock) as watchdog:
            watchdog.stand_down()
    assert ends == []

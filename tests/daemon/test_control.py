"""Words between commands and the daemon: a real pipe, a real file, a process that is killed."""

import json
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from autotune.daemon.home import Control, DaemonHome, ask, sole_daemon
from autotune.errors import AutotuneError, DaemonAway
from tests.until import until


class Loop:
    """Loop of a daemon in a thread.

    Attributes:
        status: What it says.
        has_followed: Whether everything is as the queue says.
    """

    def __init__(self, control: Control) -> None:
        self.status: dict[str, object] = {"text": "idle"}
        self.has_followed, self.ends = True, False
        self._control = control
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self.ends:
            self._control.write(self.status, page=None, has_followed=self.has_followed)
            self._control.wait(0.05)


@contextmanager
def looping(home: DaemonHome) -> Iterator[Loop]:
    """Run a daemon's loop meanwhile."""
    with sole_daemon(home), Control(home) as control:
        loop = Loop(control)
        loop.thread.start()
        yield loop
        loop.ends = True
        loop.thread.join(timeout=60)


@pytest.fixture
def loop(home: DaemonHome) -> Iterator[Loop]:
    """Daemon that answers."""
    with looping(home) as loop:
        yield loop


def test_what_the_daemon_does_is_told(home: DaemonHome, loop: Loop) -> None:
    """As it is after the command has asked, for any number of commands at once."""
    loop.status = {"text": "sp ace/ü\n", "large": "x" * 3_000_000}
    with ThreadPoolExecutor(20) as many:
        answers = list(many.map(lambda _: ask(home, timeout_s=60)["status"], range(20)))
    assert answers == [loop.status] * 20


def test_a_change_is_waited_for(home: DaemonHome, loop: Loop) -> None:
    """Until nothing runs that should not; others are told meanwhile what goes on."""
    loop.has_followed = False
    with ThreadPoolExecutor() as other:
        answer = other.submit(ask, home, to_follow=True, timeout_s=60)
        assert ask(home, timeout_s=60)["status"] == loop.status
        assert not answer.done()
        loop.has_followed = True
        assert answer.result()["status"] == loop.status


def test_nobody_else_can_read_or_write_it(home: DaemonHome, loop: Loop) -> None:
    """Whatever the umask."""
    ask(home, timeout_s=60)
    for path in (home.pipe, home.status):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_daemon_that_is_said_at_once(home: DaemonHome) -> None:
    """Never started, ended or killed: nothing is waited for."""
    with pytest.raises(DaemonAway, match="found no daemon"):
        ask(home, timeout_s=0.0)
    with looping(home):
        ask(home, timeout_s=60)
    with pytest.raises(DaemonAway):
        ask(home, timeout_s=0.0)
    assert not home.pipe.exists()
    assert not home.status.exists()


def test_one_that_ends_while_it_is_asked_is_away(home: DaemonHome) -> None:
    """Instead of a wait of ten seconds."""
    with ThreadPoolExecutor() as other:
        with looping(home) as loop:
            loop.has_followed = False
            answer = other.submit(ask, home, to_follow=True, timeout_s=60)
            until(lambda: home.status.exists() and len(json.loads(home.status.read_bytes())["seen"]) == 1)
        with pytest.raises(DaemonAway):
            answer.result()


def test_one_that_hangs_is_told_after_the_time(home: DaemonHome) -> None:
    """With what to do; however many words nobody reads."""
    with sole_daemon(home), Control(home):
        for _ in range(3):
            with pytest.raises(AutotuneError, match=r"did not answer within 0\.0s"):
                ask(home, timeout_s=0.0)
        pipe = os.open(home.pipe, os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(pipe, bytes(4096))
        os.close(pipe)
        with pytest.raises(AutotuneError, match="did not answer"):
            ask(home, timeout_s=0.0)


@pytest.mark.parametrize("rubbish", [b"\0\xff" * 4000, b"x\n" * 9000, b"[" * 60000])
def test_rubbish_wakes_it_and_is_forgotten(home: DaemonHome, loop: Loop, rubbish: bytes) -> None:
    """It goes on, and keeps none of it."""
    pipe = os.open(home.pipe, os.O_WRONLY)
    os.write(pipe, rubbish)
    os.close(pipe)
    assert ask(home, timeout_s=60)["status"] == loop.status
    assert len(home.status.read_bytes()) < 1000


def test_a_file_of_another_version_is_named(home: DaemonHome) -> None:
    """With what to do about it."""
    with sole_daemon(home), Control(home):
        home.status.write_text('{"v": 2, "autotune": "9.0"}')
        with pytest.raises(AutotuneError) as caught:
            ask(home, timeout_s=0.0)
    assert "Restart the daemon" in (caught.value.remedy or "")


def test_a_pipe_that_was_taken_away_is_made_again(home: DaemonHome, loop: Loop) -> None:
    """By whoever cleans up."""
    ask(home, timeout_s=60)
    home.pipe.unlink()
    home.status.unlink()
    until(lambda: home.pipe.exists() and home.status.exists())
    assert ask(home, timeout_s=60)["status"] == loop.status

"""Sidecars: processes that run beside the trials, outlive them, and nothing else."""

import os
import signal
import sys
from pathlib import Path

from autotune.records import Stop
from autotune.trial.launch import Guard, SidecarAnswer
from tests.trial.conftest import Trials, running
from tests.trial.test_guard import end_of, gone, launch
from tests.until import until

STAYS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.replace(sys.argv[1] + ".new", sys.argv[1])
print("it stays", flush=True)
time.sleep(1e6)
"""


ANSWERS_LATE = """
import os, socket, time

def receive():
    return socket.recv_fds(channel, 1, 4)[1][1:]

channel = socket.socket(fileno=3)
answer, = receive()
os.write(answer, b"{}")
os.close(answer)
answer, *outputs = receive()
reader, writer = os.pipe()
between = os.fork()
if between == 0:
    trial = os.fork()
    if trial == 0:
        os.write(outputs[0], b"its last words")
        os._exit(7)
    os.write(writer, b"%d" % trial)
    os._exit(0)
os.waitpid(between, 0)
trial = os.read(reader, 100)
while os.path.exists(b"/proc/" + trial):
    time.sleep(0.01)
os.write(answer, b'{"pid": %s}' % trial)
"""
"""Forks a trial that is gone, and reaped by the guard, before its process id is told."""


def start_sidecar(guard: Guard, folder: Path, name: str = "it") -> int:
    """Start a sidecar; return its process id when it is up."""
    file = folder / name
    argv = [sys.executable, "-c", STAYS, str(file)]
    log = folder / f"{name}.log"
    log.touch()
    guard.start_sidecar(name, {"argv": argv, "cwd": folder, "env": dict(os.environ)}, log=log)
    until(file.exists)
    return int(file.read_text())


def test_a_sidecar_outlives_trials(guard: Guard, trials: Trials, tmp_path: Path) -> None:
    """A trial that will not die is killed, and the next one is made, while it stays; what it prints is in its log."""
    guard.start()
    folder = tmp_path / "quo'te\"s\nand ünïcode"
    folder.mkdir()
    pid = start_sidecar(guard, folder)
    for words in (("stubborn",), ("leaves", "session")):
        (trials.folder / "ready").unlink(missing_ok=True)
        launch(guard, trials, *words)
        until((trials.folder / "ready").exists)
        guard.stop(Stop.ENOUGH)
        assert not end_of(guard).left_pids
        assert running(trials.trial_id) == []
    os.kill(pid, 0)
    assert (folder / "it.log").read_text() == "it stays\n"


def test_a_stopped_sidecar_is_killed_and_can_be_replaced(guard: Guard, tmp_path: Path) -> None:
    """Even if it ignores SIGTERM; stopping it twice does nothing."""
    guard.start()
    first, other = start_sidecar(guard, tmp_path), start_sidecar(guard, tmp_path, "other")
    guard.stop_sidecar("it")
    guard.stop_sidecar("it")
    assert gone(first)
    (tmp_path / "it").unlink()
    second = start_sidecar(guard, tmp_path)
    assert second != first
    os.kill(other, 0)


def test_no_sidecar_outlives_its_guard(tmp_path: Path) -> None:
    """At the end of the ``with`` statement it is gone, and also when the guard was killed."""
    with Guard() as guard:
        guard.start()
        pid = start_sidecar(guard, tmp_path)
    assert gone(pid)
    (tmp_path / "it").unlink()
    with Guard() as guard:
        guard.start()
        pid = start_sidecar(guard, tmp_path)
        os.kill(guard.pid, signal.SIGKILL)
        assert gone(pid)


def test_a_sidecar_that_cannot_be_started_harms_nobody(guard: Guard, trials: Trials, tmp_path: Path) -> None:
    """Trials go on as before."""
    guard.start()
    guard.start_sidecar("it", {"argv": ["/no/such/program"], "cwd": tmp_path, "env": {}}, log=tmp_path / "log")
    program = {"argv": [sys.executable], "cwd": tmp_path, "env": {}}
    guard.start_sidecar("other", program, log=tmp_path / "no such folder" / "log")
    launch(guard, trials, "trains", "1")
    assert end_of(guard).exit_code == 0


def test_a_trial_that_ends_before_its_zygote_has_told_its_process_is_reported_as_ended(
    guard: Guard, trials: Trials
) -> None:
    """With its exit status and its output, and not waited for until its deadline."""
    trials.folder.mkdir()
    log = trials.folder / "log"
    log.touch()
    program = {"argv": [sys.executable, "-c", ANSWERS_LATE], "cwd": trials.folder, "env": dict(os.environ)}
    guard.start()
    guard.start_sidecar("it", program, log=log, request={"imports": []})
    assert isinstance(guard.receive(60.0), SidecarAnswer), log.read_text()
    stdout, stderr = trials.folder / "stdout.log", trials.folder / "stderr.log"
    guard.launch(program, stdout=stdout, stderr=stderr, deadline_s=trials.soon(), zygote="it")
    ended = end_of(guard)
    assert (ended.exit_code, ended.stop, ended.left_pids) == (7, None, ())
    assert stdout.read_text() == "its last words"

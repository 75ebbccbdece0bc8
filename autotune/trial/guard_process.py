"""Guard: a process between the search and its trials that leaves no process of them running, whatever happens.

It is started as a script, with the standard library and nothing else, in a session of its own, isolated and without
site-packages (``-I -S``): nothing in the user's environment can slow it down or break it. It is a child subreaper
(prctl(2)), so that a process which a trial leaves behind, daemons in sessions of their own included, becomes a child of
the guard and not of init: all processes that a trial ever started are descendants of the guard.

Below it are, at most, one trial and some *sidecars*, processes that run beside the trials: the GPU collector, and
zygotes (zygote.py), which trials are forked from. Who may be killed when::

    a trial      runs -> told (SIGTERM to all of its processes; 0.5 s later SIGKILL, again until none is left) -> over.
                 It is told when its main process has ended, when the search says so, and at its deadline, which the
                 guard watches by itself. After 2 s of SIGKILL the processes that do not end are reported, and no later
                 trial waits for them.
    a sidecar    SIGKILL when the search says so; nothing waits for its end. A trial's end spares it, and only it: what
                 it starts is killed like a process of the trial. While a zygote is forking, nothing is known of the
                 new process yet, and the zygote is killed with the trial.
    the guard    leaves at the end of its standard input, a socket that is command channel and lifeline at once, or
                 when it gets SIGTERM or SIGHUP: it ends the trial first, then all other processes, and deletes the
                 trial's temporary files, which no other process does then. Where it gets
                 SIGKILL itself, the kernel ends its children (PR_SET_PDEATHSIG), and the next trial, or the next search
                 of the study, ends what these have left (`end_orphans`).

Lines of JSON, from the search::

    {"do": "start", "argv", "cwd", "env", "stdout", "stderr", "deadline_s", "temporary"}, or the same with "sidecar" and
        "request" in place of the program: the zygote to fork it from
    {"do": "stop", "why"}
    {"do": "start_sidecar", "sidecar": name, "argv", "cwd", "env", "log", "request"}
    {"do": "stop_sidecar", "sidecar": name}

and to it, ``failed`` or ``exit`` being the last message about a trial::

    {"event": "started", "pid"}
    {"event": "failed", "step": "log" | "cwd" | "exec" | "fork", "errno", "error"}
    {"event": "exit", "exit": {"exit_code", "stop", "started_s", "ended_s", "cpu_s", "left_pids"}}
    {"event": "answered", "sidecar": name, "answer"}, if there was a request; None if the sidecar has ended
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

GRACE_S = 0.5  # from SIGTERM to SIGKILL
GIVE_UP_S = 2.0  # from SIGKILL to reporting the processes that do not end
CHASE_S = 0.01  # between checks for processes still alive after SIGKILL
ELSEWHERE_S = 3.0  # for Slurm to cancel the steps of a trial
KEPT_BYTES = 1 << 20  # of each output stream, as it comes; and as much of its end

_CHUNK_BYTES = 1 << 16
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _bytes(text: str) -> bytes:
    # The search sends the bytes of paths and variables this way, whatever its locale is.
    return text.encode("utf-8", "surrogateescape")


def _descendants(root: int) -> dict[int, int]:
    """Return all descendants of a process: process id → process group.

    Zombies are included, because a process whose first thread has ended looks like one and still runs.
    """
    children: dict[int, list[int]] = {}
    groups: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        # It may have ended while we looked.
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The command's name, in parentheses, may itself hold parentheses and spaces.
            fields = file.read().rpartition(b")")[2].split()
            groups[int(name)] = int(fields[2])
            children.setdefault(int(fields[1]), []).append(int(name))
    found: dict[int, int] = {}
    below = list(children.get(root, ()))
    while below:
        pid = below.pop()
        if pid not in found:
            found[pid] = groups[pid]
            below.extend(children.get(pid, ()))
    return found


def _children() -> set[int]:
    """Return the direct children of the guard.

    Only the guard reaps them, so no child that is on the kernel's list while the guard reads it is missed.
    """
    guard = os.getpid()
    try:
        with open(f"/proc/{guard}/task/{guard}/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:  # the kernel keeps no list of them (CONFIG_PROC_CHILDREN)
        return set(_descendants(guard))


def _send(number: int, pid: int = 0, *, group: int = 0) -> None:
    # The ids come from a look at /proc a moment ago. The kernel hands out ids in rising order, so none of them
    # can mean another process by now.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(group, number)
        else:
            os.kill(pid, number)


# Processes of a trial that are no descendants of the guard: those that a launcher has started on other nodes.


_AWAY = re.compile(rb"away\.(?:slurm\.([0-9]{1,10})\.([0-9]{1,10})|.+)")


def end_elsewhere(folder: bytes) -> None:
    """End those processes of a trial that are out of reach: autotune/trainee/away.py, which is in them, says how.

    A step of Slurm is cancelled besides: a process that hangs may not end itself.

    Args:
        folder: The trial's folder.
    """
    with contextlib.suppress(OSError):
        names = [match for name in os.listdir(folder) if (match := _AWAY.fullmatch(name))]
        if not names:
            return
        over = os.open(os.path.join(folder, b"over"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.close(over)
        own = tuple(os.environ.get(name, "").encode() for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        for match in names:
            if match[1] and match.groups() != own:
                _cancel_step(b".".join(match.groups()).decode("ascii"))


def _cancel_step(step: str) -> None:
    """Cancel a step of Slurm, and wait until no process of it is left, as Slurm's daemons on its nodes say."""
    give_up_s = time.monotonic() + ELSEWHERE_S
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _said("scancel", "--quiet", "--signal=KILL", step)
        while _said("squeue", "--noheader", "--format=%i", f"--steps={step}") and time.monotonic() < give_up_s:
            time.sleep(0.1)


def _said(*command: str) -> bytes:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=ELSEWHERE_S,
        check=False,
    )
    return done.stdout.strip()


class _Output:
    """Output of a trial on one stream: its first and its last mebibyte go into a file.

    A limit on the file's size (RLIMIT_FSIZE) would hit the trainer's checkpoints too, and a plain file would let
    one that prints for ever fill the disk. The trainer is never made to wait longer than the guard needs to read.
    """

    def __init__(self, path: bytes) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._left_bytes = KEPT_BYTES  # that are written as they come
        self._tail = bytearray()
        self._dropped_bytes = 0

    def read(self) -> int | None:
        """Read one chunk and return its length: 0 at the end of the stream, None if nothing is there yet."""
        try:
            chunk = os.read(self.reader, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        self._write(chunk[: self._left_bytes])
        self._tail += chunk[self._left_bytes :]
        self._left_bytes = max(self._left_bytes - len(chunk), 0)
        # Cut in strides of a tail's length, not at every chunk: each cut moves all that stays.
        if len(self._tail) > 2 * KEPT_BYTES:
            self._cut()
        return len(chunk)

    def close(self) -> None:
        """Write the end of the stream, without waiting for output that a surviving process may still write."""
        for _ in range(2 * KEPT_BYTES // _CHUNK_BYTES):  # more than a pipe can hold
            if not self.read():
                break
        self._cut()
        if self._dropped_bytes:
            self._write(b"\n[autotune: %d bytes left out here]\n" % self._dropped_bytes)
        self._write(bytes(self._tail))
        os.close(self.reader)
        os.close(self._file)

    def _cut(self) -> None:
        extra = max(len(self._tail) - KEPT_BYTES, 0)
        self._dropped_bytes += extra
        del self._tail[:extra]

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk is full: the trial and its end matter more than its output
            while data:
                data = data[os.write(self._file, data) :]


class _Sidecar:
    """Process that runs beside the trials; with a channel if trials can be forked from it."""

    def __init__(self, pid: int, channel: socket.socket | None) -> None:
        self.pid = pid
        self.channel = channel
        self.forking = False  # between the request to fork and its answer


class _Trial:
    """State of the trial: its main process, its outputs, and the progress of its end."""

    def __init__(self, deadline_s: float) -> None:
        self.pid = 0  # 0 for a fork until it has reported its own
        self.answer = -1  # read end of a pipe that exec, or a fork when it begins, closes; -1 once it has
        self.zygote: _Sidecar | None = None  # that is forking the trial
        self.reaped: dict[int, int] = {}  # exit statuses of processes, while the trial's own is not known
        self.deadline_s = deadline_s
        self.outputs: list[_Output] = []
        self.started_s = time.monotonic()
        self.status: int | None = None
        self.over = False  # the main process has ended
        self.why: str | None = None  # who stopped it; None: it ended by itself
        self.kill_s: float | None = None  # when SIGKILL is due; None: it may go on
        self.cpu_s = 0.0


class GuardLoop:
    """Event loop that starts trials, reads their output, and ends them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = bytearray()
        self._leaving = False
        self._temporary: bytes | None = None  # the latest trial's own folder for temporary files
        self._folder = b""  # of the latest trial
        self._trial: _Trial | None = None
        self._sidecars: dict[str, _Sidecar] = {}
        self._spared: set[int] = set()  # sidecars that were started and not yet reaped
        self._given_up: set[int] = set()  # not killable (uninterruptible sleep); later trials do not wait for them
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._hear)
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(reader, selectors.EVENT_READ, lambda: os.read(reader, _CHUNK_BYTES))
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to be woken
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is the search's to answer
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._told_to_leave)

    def serve(self) -> None:
        """Serve until the search is gone, or the guard was told to end, and no process is left."""
        while self._trial is not None or not self._leaving:
            for key, _ in self._selector.select(self._timeout_s()):
                # An earlier callback of this round may have ended the trial and closed what this one would read.
                if key.fd in self._selector.get_map():
                    key.data()
            self._look_after_trial()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)  # the search has not come to it

    def end_at_once(self) -> None:
        """Kill all processes at once, after an internal error."""
        give_up_s = time.monotonic() + GIVE_UP_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < give_up_s:
                for pid in _descendants(os.getpid()):
                    _send(signal.SIGKILL, pid)
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
                time.sleep(CHASE_S)

    def _timeout_s(self) -> float | None:
        trial = self._trial
        if trial is None:
            return None
        due_s, least_s = (trial.deadline_s, 0.0) if trial.kill_s is None else (trial.kill_s, CHASE_S)
        return max(due_s - time.monotonic(), least_s)

    # Messages from the search.

    def _hear(self) -> None:
        try:
            data = self._channel.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(self._channel)
            self._leaving = True
        self._received += data
        while (end := self._received.find(b"\n")) >= 0:
            message = json.loads(self._received[:end])
            del self._received[: end + 1]
            if message["do"] == "start":
                self._start(message)
            elif message["do"] == "start_sidecar":
                self._start_sidecar(message)
            elif message["do"] == "stop_sidecar":
                self._stop_sidecar(message["sidecar"])
            elif self._trial is not None:  # else it ended while the message was on its way
                self._end(message["why"])

    def _told_to_leave(self, *_: object) -> None:
        self._leaving = True

    def _tell(self, event: str, **message: Any) -> None:
        with contextlib.suppress(OSError):  # nobody is there to hear it; the lifeline says so too
            self._channel.sendall(json.dumps({"event": event, **message}).encode("ascii") + b"\n")

    # The life of a trial.

    def _start(self, message: Mapping[str, Any]) -> None:
        trial = _Trial(message["deadline_s"])
        self._temporary = _bytes(message["temporary"]) if message["temporary"] else None
        self._folder = os.path.dirname(_bytes(message["stdout"]))
        try:
            for stream in ("stdout", "stderr"):
                trial.outputs.append(_Output(_bytes(message[stream])))
        except OSError as error:
            for output in trial.outputs:
                os.close(output.writer)
                output.close()
            self._tell("failed", step="log", errno=error.errno, error=os.strerror(error.errno or 0))
            return
        self._trial = trial
        trial.answer, answer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        writers = [output.writer for output in trial.outputs]
        if "sidecar" in message:
            trial.zygote = self._sidecars.get(message["sidecar"])
            if trial.zygote is not None and trial.zygote.channel is not None:  # else the pipe is closed without answer
                trial.zygote.forking = True
                _hand_over(trial.zygote.channel, {**message["request"], "guard": os.getpid()}, answer, *writers)
        else:
            try:
                trial.pid = _fork_and_exec(message, answer, writers)
            except OSError as error:  # a limit on processes or memory: reported like a failure in the child
                failed = {"step": "fork", "errno": error.errno, "error": os.strerror(error.errno or 0)}
                os.write(answer, json.dumps(failed).encode("ascii"))
        for descriptor in (answer, *writers):
            os.close(descriptor)
        self._selector.register(trial.answer, selectors.EVENT_READ, self._answered)
        for output in trial.outputs:
            self._selector.register(output.reader, selectors.EVENT_READ, lambda output=output: self._drain(output))

    def _answered(self) -> None:
        trial = self._trial
        if trial is None or trial.answer < 0:
            return
        try:
            answer = os.read(trial.answer, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self._close(trial.answer)
        trial.answer = -1
        said = json.loads(answer) if answer else {}
        if trial.zygote is not None and "pid" in said:
            trial.pid = said["pid"]
            trial.zygote.forking = False
            if trial.pid in trial.reaped:
                self._main_ended(trial, trial.reaped[trial.pid])
        if trial.pid and "step" not in said:
            self._tell("started", pid=trial.pid)
        elif "step" in said or trial.kill_s is None:  # else it was stopped before it began, and ends as others do
            self._forget(trial)
            self._tell("failed", **(said or {"step": "fork", "errno": None, "error": "the zygote has ended"}))

    def _close(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _drain(self, output: _Output) -> None:
        if output.read() == 0:
            self._selector.unregister(output.reader)

    def _look_after_trial(self) -> None:
        none_left = self._reap()
        if self._trial is not None and self._trial.over:
            self._answered()
        trial = self._trial
        if trial is None:
            return
        now_s = time.monotonic()
        if trial.over or self._leaving or now_s >= trial.deadline_s:
            self._end(None if trial.over else "guard lost" if self._leaving else "deadline")
        if trial.kill_s is None:
            return
        none_left = none_left or _children() <= self._kept()
        if not none_left and now_s >= trial.kill_s:
            none_left = self._kill(trial.kill_s)
        if none_left or (self._given_up and not self._alive()):
            self._finish(trial)

    def _reap(self) -> bool:
        """Reap children that have ended; return True if no child is left, and so no descendant either."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self._given_up.discard(pid)
            trial = self._trial
            if pid in self._spared:
                self._sidecar_ended(pid)
            elif trial is not None:
                # Each one's usage holds that of the children it has waited for; the others came to us.
                trial.cpu_s += usage.ru_utime + usage.ru_stime
                if pid == trial.pid:
                    self._main_ended(trial, status)
                elif trial.pid == 0:
                    trial.reaped[pid] = status

    @staticmethod
    def _main_ended(trial: _Trial, status: int) -> None:
        trial.over = True
        trial.status = os.waitstatus_to_exitcode(status)

    def _kept(self) -> set[int]:
        """Return the processes that outlive a trial. A process that a zygote is just forking is not known yet."""
        return self._spared - {sidecar.pid for sidecar in self._sidecars.values() if sidecar.forking}

    def _alive(self) -> dict[int, int]:
        spared = self._given_up | self._kept()
        return {pid: group for pid, group in _descendants(os.getpid()).items() if pid not in spared}

    def _end(self, why: str | None) -> None:
        """Begin to end the trial; the first reason counts."""
        trial = self._trial
        if trial is None or trial.kill_s is not None:
            return
        trial.why = why
        trial.kill_s = time.monotonic() + GRACE_S
        for pid in self._alive():
            _send(signal.SIGTERM, pid)

    def _kill(self, since_s: float) -> bool:
        """Send SIGKILL to all that is left; return True when it is given up: the rest cannot be killed."""
        alive = self._alive()
        # The kernel lets nobody fork out of a group while it signals the group, so one call ends a whole chain of
        # processes that fork and exit faster than we can look.
        for group in set(alive.values()) - {os.getpgid(0)}:
            _send(signal.SIGKILL, group=group)
        for pid in alive:
            _send(signal.SIGKILL, pid)
        if time.monotonic() < since_s + GIVE_UP_S:
            return False
        self._given_up |= self._alive().keys()
        return True

    def _finish(self, trial: _Trial) -> None:
        end_elsewhere(self._folder)
        self._forget(trial)
        trial_exit = {
            "exit_code": trial.status,
            "stop": trial.why,
            "started_s": trial.started_s,
            "ended_s": time.monotonic(),
            "cpu_s": trial.cpu_s,
            "left_pids": sorted(self._given_up),
        }
        self._tell("exit", exit=trial_exit)

    def _forget(self, trial: _Trial) -> None:
        if trial.answer >= 0:  # it never came as far as exec, e.g. stuck in a dead network folder
            self._close(trial.answer)
        if trial.zygote is not None:
            trial.zygote.forking = False
        for output in trial.outputs:
            if output.reader in self._selector.get_map():
                self._selector.unregister(output.reader)
            output.close()
        self._trial = None

    # Sidecars, which outlive the trials.

    def _start_sidecar(self, message: Mapping[str, Any]) -> None:
        name, request = message["sidecar"], message["request"]
        ours, theirs = socket.socketpair()
        reader, word = os.pipe2(os.O_CLOEXEC)
        with theirs, contextlib.ExitStack() as opened:
            opened.callback(os.close, word)
            try:
                log = os.open(_bytes(message["log"]), os.O_WRONLY | os.O_APPEND)
                opened.callback(os.close, log)
                pid = _fork_and_exec(message, word, [log, log, theirs.fileno()] if request else [log, log])
            except OSError as error:
                os.write(word, json.dumps({"error": os.strerror(error.errno or 0)}).encode("ascii"))
            else:
                self._sidecars[name] = _Sidecar(pid, ours if request else None)
                self._spared.add(pid)
                if request:
                    _hand_over(ours, request, word)
        if not request:
            os.close(reader)
        if name not in self._sidecars or not request:
            ours.close()
        if request:
            self._selector.register(reader, selectors.EVENT_READ, lambda: self._sidecar_answered(name, reader))

    def _sidecar_answered(self, name: str, reader: int) -> None:
        answer = os.read(reader, _CHUNK_BYTES)
        self._close(reader)
        self._tell("answered", sidecar=name, answer=json.loads(answer) if answer else None)

    def _stop_sidecar(self, name: str, *, has_ended: bool = False) -> None:
        sidecar = self._sidecars.pop(name, None)
        if sidecar is None:
            return
        if not has_ended:
            _send(signal.SIGKILL, sidecar.pid)  # stuck in the kernel, it stays, and nobody waits for it
        if sidecar.channel is not None:
            sidecar.channel.close()  # and with it unread requests, which hold the other end of an answer's pipe

    def _sidecar_ended(self, pid: int) -> None:
        self._spared.discard(pid)
        for name in [name for name, sidecar in self._sidecars.items() if sidecar.pid == pid]:
            self._stop_sidecar(name, has_ended=True)


def _hand_over(channel: socket.socket, request: Mapping[str, Any], *descriptors: int) -> None:
    """Send a zygote a request of any size, as a file of its own: an unread message must not block the guard."""
    with os.fdopen(os.memfd_create("request"), "w", encoding="ascii") as file:
        json.dump(request, file)
        file.flush()
        try:
            socket.send_fds(channel, [b"?"], [file.fileno(), *descriptors], socket.MSG_DONTWAIT)
        except OSError:  # it has ended; the answer's other end is closed then
            return


def _fork_and_exec(message: Mapping[str, Any], answer: int, descriptors: Sequence[int]) -> int:
    """Fork, and execute a program in the child.

    Args:
        message: Holds ``argv``, ``cwd`` and ``env``.
        answer: Pipe for a message about a failure; closed by exec.
        descriptors: Descriptors that the program gets as 1, 2 and so on.
    """
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        _exec_program(message, guard, answer, descriptors)
    return pid


def _exec_program(
    message: Mapping[str, Any], guard: int, answer: int, descriptors: Sequence[int]
) -> NoReturn:  # pragma: no cover - runs in the child, up to exec
    step = "exec"
    try:
        os.setsid()
        # Kill this child also if the guard itself gets SIGKILL.
        _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != guard:
            os._exit(127)
        # Ignored signals would stay ignored in the trainer; Python itself ignores the last two.
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        # First out of the way: one may have the number of another's place.
        out_of_the_way = len(descriptors) + 1
        answer = fcntl.fcntl(answer, fcntl.F_DUPFD_CLOEXEC, out_of_the_way)
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, out_of_the_way) for descriptor in descriptors]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for place, descriptor in enumerate(moved, start=1):
            os.dup2(descriptor, place)
        step = "cwd"
        os.chdir(_bytes(message["cwd"]))
        step = "exec"
        env = {_bytes(name): _bytes(value) for name, value in message["env"].items()}
        env[b"AUTOTUNE_GUARD"] = str(guard).encode("ascii")
        argv = [_bytes(word) for word in message["argv"]]
        os.execvpe(argv[0], argv, env)  # noqa: S606 - a command is a list of arguments, never a line for a shell
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument, "=" in a variable's name
        code = error.errno if isinstance(error, OSError) else None
        text = os.strerror(code) if code else str(error)
        os.write(answer, json.dumps({"step": step, "errno": code, "error": text}).encode("ascii"))
    finally:
        os._exit(127)


def main() -> int:
    """Serve the search at the other end of standard input."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    guard = GuardLoop(socket.socket(fileno=os.dup(0)))
    try:
        guard.serve()
    finally:
        guard.end_at_once()
    return 0


if __name__ == "__main__":
    sys.exit(main())

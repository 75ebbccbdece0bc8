"""Guard: a process between the search and its trials that stops every process of a trial in all cases.

It runs as a script in its own session, with the standard library only and ``-I -S``, so that the user's environment
cannot break it. As a child subreaper (prctl(2)) it inherits orphans, even daemons in other sessions.

It has at most one trial, and *sidecars*: the GPU collector, and zygotes (zygote.py) that trials are forked from::

    trial      When its main process ends, on request, and at its deadline, all its processes get SIGTERM, and 0.5 s
               later SIGKILL for at most 2 s. Survivors are reported.
    sidecar    SIGKILL on request, without waiting. It survives a trial; processes that it starts do not. A zygote
               that is forking is killed with the trial, because the new process is not known yet.
    guard      Exits at the end of its standard input, a socket that is command channel and lifeline, and on SIGTERM
               or SIGHUP, after all processes and the trial's temporary files. If it gets SIGKILL, the kernel kills
               its children (PR_SET_PDEATHSIG), and the next trial or search kills the others (`end_orphans`).

JSON lines from the search::

    {"do": "start", "argv", "cwd", "env", "stdout", "stderr", "deadline_s", "temporary"}, or with "sidecar" (the zygote)
        and "request" instead of the program
    {"do": "stop", "why"}
    {"do": "start_sidecar", "sidecar": name, "argv", "cwd", "env", "log", "request"}
    {"do": "stop_sidecar", "sidecar": name}

and to it; ``failed`` or ``exit`` is the last one about a trial::

    {"event": "started", "pid"}
    {"event": "failed", "step": "log" | "cwd" | "exec" | "fork", "errno", "error"}
    {"event": "exit", "exit": {"exit_code", "stop", "started_s", "ended_s", "cpu_s", "left_pids"}}
    {"event": "answered", "sidecar": name, "answer"}, if there was a request; None if the sidecar has exited
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
STOP_ELSEWHERE_S = 3.0  # for Slurm to cancel the steps of a trial
STOP_RAY_JOB_S = 15.0  # for Ray's command, which takes seconds to start
KEPT_BYTES = 1 << 20  # of the beginning of each output stream, and of its end

_CHUNK_BYTES = 1 << 16
_LIBC = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _bytes(text: str) -> bytes:
    # The search sends the bytes of paths and variables this way, with any locale.
    return text.encode("utf-8", "surrogateescape")


def _descendants(root: int) -> dict[int, int]:
    """Return the descendants of a process: process id → process group.

    Zombies included: a process whose first thread has ended looks like one.
    """
    children: dict[int, list[int]] = {}
    groups: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        # It may have ended meanwhile.
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
    """Return the guard's children; complete, because only the guard reaps them."""
    guard = os.getpid()
    try:
        with open(f"/proc/{guard}/task/{guard}/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        return set(_descendants(guard))


def _signal(number: int, pid: int = 0, *, group: int = 0) -> None:
    # The ids were read from /proc a moment ago. The kernel assigns ids in rising order, so none has been reused yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(group, number)
        else:
            os.kill(pid, number)


# Processes of a trial that are not descendants of the guard: started by a launcher on other nodes.


_AWAY = re.compile(rb"away\.(?:slurm\.([0-9]{1,10})\.([0-9]{1,10})|.+)")


def stop_elsewhere(folder: bytes) -> None:
    """Stop processes out of the guard's reach through the file ``over`` (autotune/trainee/away.py).

    Cancels their Slurm steps too, because they may hang. A process that starts only now finds the file.
    """
    with contextlib.suppress(OSError):
        over = os.open(os.path.join(folder, b"over"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.close(over)
        names = [match for name in os.listdir(folder) if (match := _AWAY.fullmatch(name))]
        own = tuple(os.environ.get(name, "").encode() for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        for match in names:
            if match[1] and match.groups() != own:
                _cancel_step(b".".join(match.groups()).decode("ascii"))


def _cancel_step(step: str) -> None:
    """Cancel a Slurm step and wait until it is no longer listed."""
    give_up_s = time.monotonic() + STOP_ELSEWHERE_S
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _output_of("scancel", "--quiet", "--signal=KILL", step)
        while _output_of("squeue", "--noheader", "--format=%i", f"--steps={step}") and time.monotonic() < give_up_s:
            time.sleep(0.1)


_RAY_JOB = re.compile(rb"\braysubmit_[0-9A-Za-z]{1,64}\b")


def _stop_ray_job(message: Mapping[str, Any]) -> None:
    """Stop the job of a trial whose command is ``ray job submit``: it doesn't end with that command."""
    words = [_bytes(word) for word in message.get("argv", ())]
    if (place := place_of_ray(words)) is None:
        return
    address = [word for word in words if word.startswith(b"--address=")]
    if b"--address" in words[:-1]:
        address = [b"--address=" + words[words.index(b"--address") + 1]]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        with open(_bytes(message["stdout"]), "rb") as output:
            job = _RAY_JOB.search(output.read(KEPT_BYTES))
        if job is not None:
            env = {_bytes(name): _bytes(value) for name, value in message["env"].items()}
            stop = (*words[: place + 1], b"job", b"stop", *address, job[0])
            _output_of(*stop, timeout_s=STOP_RAY_JOB_S, cwd=_bytes(message["cwd"]), env=env)


def place_of_ray(words: Sequence[bytes]) -> int | None:
    """Return the place of the program in a command with ``ray job submit``; None in others."""
    submits = (place for place in range(len(words)) if words[place + 1 : place + 3] == [b"job", b"submit"])
    return next((place for place in submits if os.path.basename(words[place]) == b"ray"), None)


def _with_variables_for_ray(words: list[bytes], added: Mapping[str, str]) -> list[bytes]:
    """Return a command, for ``ray job submit`` with these variables in the job's runtime environment: it inherits none.

    They replace those of a given ``--runtime-env-json``, and precede its PYTHONPATH. The file of ``--runtime-env``, and
    what is no JSON object, are left to Ray.
    """
    if (place := place_of_ray(words)) is None:
        return words
    first = place + 3
    end = words.index(b"--", first) if b"--" in words[first:] else len(words)
    options = [word.partition(b"=")[0] for word in words[first:end]]
    if b"--runtime-env" in options:
        return words
    given = first + options.index(b"--runtime-env-json") if b"--runtime-env-json" in options else None
    try:
        runtime = {} if given is None else json.loads(words[given].partition(b"=")[2] or words[given + 1])
        theirs = dict(runtime.get("env_vars", {}))
    except (ValueError, IndexError, TypeError, AttributeError):
        return words
    path = os.pathsep.join(one["PYTHONPATH"] for one in (added, theirs) if one.get("PYTHONPATH"))
    runtime["env_vars"] = {**theirs, **added, "PYTHONPATH": path}
    if given is not None:
        del words[given : given + (1 if b"=" in words[given] else 2)]
    return [*words[:first], b"--runtime-env-json=" + json.dumps(runtime).encode(), *words[first:]]


def _output_of(
    *command: str | bytes,
    timeout_s: float = STOP_ELSEWHERE_S,
    cwd: bytes | None = None,
    env: Mapping[bytes, bytes] | None = None,
) -> bytes:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=timeout_s,
        check=False,
    )
    return done.stdout.strip()


class _Output:
    """Output of a trial on one stream: its first and last mebibyte go into a file."""

    def __init__(self, path: bytes) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reader, False)
        self._left_bytes = KEPT_BYTES  # still to be written directly
        self._tail = bytearray()
        self._dropped_bytes = 0

    def read(self) -> int | None:
        """Read a chunk and return its length; None if nothing is available."""
        try:
            chunk = os.read(self.reader, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        self._write(chunk[: self._left_bytes])
        self._tail += chunk[self._left_bytes :]
        self._left_bytes = max(self._left_bytes - len(chunk), 0)
        # Not at every chunk: each cut moves the rest of the buffer.
        if len(self._tail) > 2 * KEPT_BYTES:
            self._cut()
        return len(chunk)

    def close(self) -> None:
        """Write the tail, without waiting for surviving processes."""
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
        with contextlib.suppress(OSError):  # the disk is full: the trial matters more than its output
            while data:
                data = data[os.write(self._file, data) :]


class _Sidecar:
    """Process that outlives trials; a zygote has a channel."""

    def __init__(self, pid: int, channel: socket.socket | None) -> None:
        self.pid = pid
        self.channel = channel
        self.forking = False  # between the request to fork and its answer


class _Trial:
    """State of the trial and of its end."""

    def __init__(self, deadline_s: float) -> None:
        self.pid = 0  # 0 for a fork until it has reported its id
        self.answer = -1  # read end of a pipe that closes at exec, or when a fork begins; then -1
        self.zygote: _Sidecar | None = None  # that forks the trial
        self.reaped: dict[int, int] = {}  # exit statuses of processes, while the trial's id is not known
        self.deadline_s = deadline_s
        self.outputs: list[_Output] = []
        self.started_s = time.monotonic()
        self.status: int | None = None
        self.over = False  # the main process has ended
        self.why: str | None = None  # reason for stopping it; None: its main process ended
        self.kill_s: float | None = None  # when SIGKILL is due; None while it runs
        self.cpu_s = 0.0


class GuardLoop:
    """Event loop that starts trials, reads their output, and stops them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = bytearray()
        self._leaving = False
        self._temporary: bytes | None = None  # temporary folder of the latest trial
        self._folder = b""  # of the latest trial
        self._started: Mapping[str, Any] = {}  # its message
        self._trial: _Trial | None = None
        self._sidecars: dict[str, _Sidecar] = {}
        self._spared: set[int] = set()  # sidecars that were started and not yet reaped
        self._given_up: set[int] = set()  # in uninterruptible sleep; later trials do not wait for them
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._on_message)
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(reader, selectors.EVENT_READ, lambda: os.read(reader, _CHUNK_BYTES))
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the selector
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the search handles ^C
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_sigterm)

    def serve(self) -> None:
        """Serve until the search is gone or SIGTERM came, and no process is left."""
        while self._trial is not None or not self._leaving:
            for key, _ in self._selector.select(self._timeout_s()):
                # An earlier callback of this round may have ended the trial and closed what this one would read.
                if key.fd in self._selector.get_map():
                    key.data()
            self._supervise()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)  # the search is gone

    def kill_all(self) -> None:
        """Kill all processes, after an internal error."""
        give_up_s = time.monotonic() + GIVE_UP_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < give_up_s:
                for pid in _descendants(os.getpid()):
                    _signal(signal.SIGKILL, pid)
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

    def _on_message(self) -> None:
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

    def _on_sigterm(self, *_: object) -> None:
        self._leaving = True

    def _send(self, event: str, **message: Any) -> None:
        with contextlib.suppress(OSError):  # the search is gone; the lifeline reports it too
            self._channel.sendall(json.dumps({"event": event, **message}).encode("ascii") + b"\n")

    # The life of a trial.

    def _start(self, message: Mapping[str, Any]) -> None:
        trial = _Trial(message["deadline_s"])
        self._started = message
        self._temporary = _bytes(message["temporary"]) if message["temporary"] else None
        self._folder = os.path.dirname(_bytes(message["stdout"]))
        try:
            for stream in ("stdout", "stderr"):
                trial.outputs.append(_Output(_bytes(message[stream])))
        except OSError as error:
            for output in trial.outputs:
                os.close(output.writer)
                output.close()
            self._send("failed", step="log", errno=error.errno, error=os.strerror(error.errno or 0))
            return
        self._trial = trial
        trial.answer, answer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        writers = [output.writer for output in trial.outputs]
        if "sidecar" in message:
            trial.zygote = self._sidecars.get(message["sidecar"])
            if trial.zygote is not None and trial.zygote.channel is not None:  # else the pipe closes without an answer
                trial.zygote.forking = True
                _send_request(trial.zygote.channel, {**message["request"], "guard": os.getpid()}, answer, *writers)
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
        reply = json.loads(answer) if answer else {}
        if trial.zygote is not None and "pid" in reply:
            trial.pid = reply["pid"]
            trial.zygote.forking = False
            if trial.pid in trial.reaped:
                self._main_ended(trial, trial.reaped[trial.pid])
        if trial.pid and "step" not in reply:
            self._send("started", pid=trial.pid)
        elif "step" in reply or trial.kill_s is None:  # else it was stopped before it began, and ends like others
            self._forget(trial)
            self._send("failed", **(reply or {"step": "fork", "errno": None, "error": "the zygote exited"}))

    def _close(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _drain(self, output: _Output) -> None:
        if output.read() == 0:
            self._selector.unregister(output.reader)

    def _supervise(self) -> None:
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
        """Reap ended children; return True if no descendant is left."""
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
                # Each usage includes the children that a process has waited for; we reap the others.
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
        return self._spared - {sidecar.pid for sidecar in self._sidecars.values() if sidecar.forking}

    def _alive(self) -> dict[int, int]:
        spared = self._given_up | self._kept()
        return {pid: group for pid, group in _descendants(os.getpid()).items() if pid not in spared}

    def _end(self, why: str | None) -> None:
        """Start to stop the trial; the first reason counts."""
        trial = self._trial
        if trial is None or trial.kill_s is not None:
            return
        trial.why = why
        trial.kill_s = time.monotonic() + GRACE_S
        for pid in self._alive():
            _signal(signal.SIGTERM, pid)

    def _kill(self, since_s: float) -> bool:
        """Send SIGKILL to all processes; return True once the rest counts as unkillable."""
        alive = self._alive()
        # No process can fork out of a group while the kernel signals it, so one call ends a whole chain of processes
        # that fork and exit faster than /proc can be read.
        for group in set(alive.values()) - {os.getpgid(0)}:
            _signal(signal.SIGKILL, group=group)
        for pid in alive:
            _signal(signal.SIGKILL, pid)
        if time.monotonic() < since_s + GIVE_UP_S:
            return False
        self._given_up |= self._alive().keys()
        return True

    def _finish(self, trial: _Trial) -> None:
        stop_elsewhere(self._folder)
        if trial.status != 0:
            _stop_ray_job(self._started)
        self._forget(trial)
        trial_exit = {
            "exit_code": trial.status,
            "stop": trial.why,
            "started_s": trial.started_s,
            "ended_s": time.monotonic(),
            "cpu_s": trial.cpu_s,
            "left_pids": sorted(self._given_up),
        }
        self._send("exit", exit=trial_exit)

    def _forget(self, trial: _Trial) -> None:
        if trial.answer >= 0:  # it never reached exec, e.g. stuck in a dead network folder
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
                    _send_request(ours, request, word)
        if not request:
            os.close(reader)
        if name not in self._sidecars or not request:
            ours.close()
        if request:
            self._selector.register(reader, selectors.EVENT_READ, lambda: self._sidecar_answered(name, reader))

    def _sidecar_answered(self, name: str, reader: int) -> None:
        answer = os.read(reader, _CHUNK_BYTES)
        self._close(reader)
        self._send("answered", sidecar=name, answer=json.loads(answer) if answer else None)

    def _stop_sidecar(self, name: str, *, has_ended: bool = False) -> None:
        sidecar = self._sidecars.pop(name, None)
        if sidecar is None:
            return
        if not has_ended:
            _signal(signal.SIGKILL, sidecar.pid)  # one that is stuck in the kernel stays
        if sidecar.channel is not None:
            sidecar.channel.close()  # also drops unread requests, which hold the other end of an answer's pipe

    def _sidecar_ended(self, pid: int) -> None:
        self._spared.discard(pid)
        for name in [name for name, sidecar in self._sidecars.items() if sidecar.pid == pid]:
            self._stop_sidecar(name, has_ended=True)


def _send_request(channel: socket.socket, request: Mapping[str, Any], *descriptors: int) -> None:
    """Send a zygote a request as a memory file, because an unread message must not block the guard."""
    with os.fdopen(os.memfd_create("request"), "w", encoding="ascii") as file:
        json.dump(request, file)
        file.flush()
        try:
            socket.send_fds(channel, [b"?"], [file.fileno(), *descriptors], socket.MSG_DONTWAIT)
        except OSError:  # it has exited; the answer's other end is closed then
            return


def _fork_and_exec(message: Mapping[str, Any], answer: int, descriptors: Sequence[int]) -> int:
    """Fork, and execute a program in the child.

    Args:
        answer: Pipe for an error; closed by exec.
        descriptors: The program's descriptors from 1 up.
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
        # This child must not survive a SIGKILL of the guard.
        _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != guard:
            os._exit(127)
        # Ignored signals would stay ignored in the trainer; Python ignores the last two.
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        # First out of the way: a descriptor may have the target number of another.
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
        added = {name: message["env"][name] for name in message.get("added", ())}
        argv = [_bytes(word) for word in message["argv"]]
        argv = _with_variables_for_ray(argv, {**added, "AUTOTUNE_GUARD": str(guard)})
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
        guard.kill_all()
    return 0


if __name__ == "__main__":
    sys.exit(main())

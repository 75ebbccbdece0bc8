"""Service: the daemon's loop. It looks at the machine, the queue and the trainings, and does what is due."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune import __version__
from autotune.clock import Clock
from autotune.config.daemon_settings import DaemonSettings
from autotune.daemon.advice import Advices, Adviser
from autotune.daemon.control import Control
from autotune.daemon.home import DaemonHome, sole_daemon
from autotune.daemon.idleness import Arrivals, Idleness, IdlePolicy, IdleState
from autotune.daemon.machine_watch import MachineWatch
from autotune.daemon.queue import Decision, Entry, Queue, decide
from autotune.daemon.searches import Searches
from autotune.daemon.trainings import MachineReader, Trainings
from autotune.errors import AutotuneError
from autotune.limits import expected
from autotune.measure.host import is_in_container
from autotune.trial.children import Notifier
from autotune.trial.process_identity import users_of_config
from autotune.trial.termination import signals_held

if TYPE_CHECKING:  # its packages are an extra
    from autotune.daemon.web.server import WebServer

_PAUSE_S = 5.0  # between looks at the queue's file, which commands change; they also say so
_LEAVING_PAUSE_S = 0.05
_TRAININGS_S = 2.0
_SAID_AGAIN_S = 300.0
_log = logging.getLogger(__name__)


class Service:
    """The daemon of one user on one machine.

    Args:
        say: Called with a sentence on what happens.
        web: Page that shows what it does; None for none.
    """

    def __init__(
        self,
        home: DaemonHome,
        settings: DaemonSettings,
        clock: Clock,
        say: Callable[[str], None],
        web: WebServer | None = None,
    ) -> None:
        self._home = home
        self._clock = clock
        self._say = say
        self._web = web
        self._manager = ServiceManager(os.environ, clock)
        self._notifier = Notifier(settings.notify, home.notify_log, clock, os.environ)
        self._queue = Queue(home.queue, clock)
        self._advising = Adviser(self._queue, Advices(home.advice), clock, self._tell, self._is_used)
        self._searches = Searches(self._queue, self._advising, clock, self._tell)
        self._policy = IdlePolicy(idle_s=settings.idle_for_s, cpu_fraction=settings.idle_cores_fraction)
        self._entries: Sequence[Entry] = ()
        self._turns = Decision(next=None, reasons={}, wants_idle=False)
        self._started_utc = clock.utc().isoformat(timespec="seconds")
        self._trainings = Trainings(home.trainings, clock)
        self._surroundings = MachineReader(clock)
        self._trainings_s = 0.0
        self._troubles: dict[str, str] = {}  # by the name of the work
        self._said: dict[str, float] = {}  # when each of them was said
        self._held_s = 0.0
        self._machine_now = ""
        self._has_somebody_come = False  # since the search that runs was started

    def run(self) -> None:
        """Run until this process is told to end, or its lock is taken away.

        Raises:
            AutotuneError: Another daemon runs, or the pipe by which it is woken cannot be made.
            KeyboardInterrupt: It was told to end; a search that runs ends by itself after its running trial.
        """
        with (
            sole_daemon(self._home) as lock,
            Control(self._home) as control,
            closing(MachineLook(self._policy, self._clock)) as look,
        ):
            self._say(f"autotune {__version__} daemon, process {os.getpid()}: {self._hosting()}")
            self._manager.ready("looking at the queue")
            if self._web is not None:
                self._web.start(self._apply_soon)
                # No address that signs in: what is said here may go into a log.
                self._say(
                    f"the page is served at {self._web.origin}; `autotune daemon url` prints an address to sign in"
                )
            try:
                while not lock.is_lost:
                    with signals_held():
                        self._tick(look)
                        self._guarded("status", lambda: self._write_status(control))
                    if control.wait(self._pause_s(look)):
                        self._apply_soon()
                self._say("the daemon's lock file was taken away; another daemon may start, so this one ends")
            finally:
                with signals_held():
                    if self._web is not None:
                        self._web.close()
                    self._manager.stopping()
                    self._searches.close()
                    self._notifier.close()
                    self._surroundings.close()

    def _tick(self, look: MachineLook) -> None:
        """Do all that is due; what goes wrong with one thing is no reason to leave out the others."""
        self._manager.alive()
        self._guarded("machine", lambda: self._look_at_machine(look))
        self._guarded("search", lambda: self._look_after_search(look))
        self._guarded("start", lambda: self._start_next(look))
        now_s = self._clock.now_s()
        if now_s >= self._trainings_s:
            self._trainings_s = now_s + _TRAININGS_S
            self._guarded("trainings", self._watch_trainings)
        if now_s >= self._held_s:
            self._held_s = now_s + 30.0  # between looks whether a training has ended that an advice waits for
            self._guarded("apply", self._advising.apply_held)
        if self._web is not None:
            self._web.note(self.status())

    def _look_at_machine(self, look: MachineLook) -> None:
        orphan = self._searches.orphan
        waiting = self._entries if self._turns.wants_idle else ()
        if why := look.look(waiting, orphan_pid=_pid(orphan.owner) if orphan else None):
            self._has_somebody_come = True
            self._searches.leave(why)

    def _look_after_search(self, look: MachineLook) -> None:
        was_running = self._searches.running
        try:
            self._searches.tick()
        finally:
            if was_running is not None and self._searches.running is None:
                look.search_ended(somebody_came=self._has_somebody_come)
                self._has_somebody_come = False

    def _start_next(self, look: MachineLook) -> None:
        self._entries = self._queue.entries()
        self._turns = decide(
            self._entries,
            now=self._clock.utc(),
            running=self._searches.busy_with,
            why_not_idle=look.why_not_idle,
        )
        self._machine_now = look.reason
        if (chosen := self._turns.next) is not None:
            look.search_starts(chosen)
            try:
                self._searches.start(chosen)
            finally:
                if self._searches.running is None:
                    look.search_ended(somebody_came=False)

    def _watch_trainings(self) -> None:
        for event in self._trainings.poll(self._surroundings):
            self._announce(event["message"], event)
        self._surroundings.forget(self._trainings.alive)

    def _pause_s(self, look: MachineLook) -> float:
        if self._searches.is_leaving:
            return _LEAVING_PAUSE_S
        if self._searches.running is not None:
            return min(0.25, look.due_in_s())
        pause_s = min(_TRAININGS_S if self._trainings.alive else _PAUSE_S, look.due_in_s())
        return pause_s if self._manager.watchdog_s is None else min(pause_s, self._manager.watchdog_s / 4)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        """Do some work; what goes wrong with disks and files is said, and tried again.

        Args:
            name: Name of the work: its trouble is over once it is done without.
        """
        try:
            work()
            self._troubles.pop(name, None)
        except Exception as error:  # noqa: BLE001 -- one full disk, or one bug, must not end what others rely on
            trouble = error if isinstance(error, AutotuneError) else expected(error)
            text, now_s = str(trouble or f"bug: {error!r}"), self._clock.now_s()
            self._troubles[name] = text
            self._said = {one: said_s for one, said_s in self._said.items() if now_s - said_s < _SAID_AGAIN_S}
            if text not in self._said:
                self._said[text] = now_s
                if trouble is None:
                    _log.exception("a bug in the daemon; it goes on")
                self._say(text)

    def _write_status(self, control: Control) -> None:
        page = {"origin": self._web.origin, "run": self._web.run} if self._web else None
        control.write(self.status(), page=page, has_followed=not self._searches.is_leaving)

    def status(self) -> dict[str, Any]:
        """Return what it does, for commands, the page and the metrics."""
        running = self._searches.busy_with
        return {
            "autotune": __version__,
            "pid": os.getpid(),
            "started_utc": self._started_utc,
            "hosted": self._hosting(),
            "machine": "a search of ours runs" if running else self._machine_now,
            "running": running.number if running else None,
            "reasons": dict(self._turns.reasons),
            "trainings": [training.document() for training in self._trainings.alive],
            "trouble": next(iter(self._troubles.values()), None),
        }

    def _apply_soon(self) -> None:
        self._held_s = 0.0

    def _tell(self, kind: str, text: str, **facts: Any) -> None:
        utc = self._clock.utc().isoformat(timespec="seconds")
        self._announce(text, {"format": 1, "event": kind, "utc": utc, "message": text, **facts})

    def _announce(self, text: str, event: Mapping[str, Any]) -> None:
        self._say(text)
        self._manager.status(text)
        self._notifier.notify(event)

    def _hosting(self) -> str:
        return hosted_by(os.environ, is_service=self._manager.is_there)

    def _is_used(self, config: Path) -> bool:
        return self._trainings.uses(config) or bool(users_of_config(config))


def _pid(owner: Mapping[str, Any] | None) -> int | None:
    pid = (owner or {}).get("pid")
    return pid if isinstance(pid, int) else None


_NOT_LOOKED = IdleState(is_idle=False, idle_since_s=None, reason="not looked at yet", look_again_s=0.0)


class MachineLook:
    """Look at the machine for the queue: at the CPUs, and at each GPU by itself, as entries use different ones."""

    def __init__(self, policy: IdlePolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._watch = MachineWatch(clock)
        self.close = self._watch.close
        self._idleness: dict[str | None, Idleness] = {None: Idleness(policy, uuids=())}  # by GPU; None without any
        self._states: dict[str | None, IdleState] = {}
        self._arrivals: Arrivals | None = None
        self._searched: tuple[str | None, ...] = ()  # what the running search uses
        self._due_s = -math.inf

    @property
    def reason(self) -> str:
        """State of the whole machine, in words."""
        states = list(self._states.values()) or [_NOT_LOOKED]
        return next((state for state in states if state.idle_since_s is None), states[0]).reason

    def why_not_idle(self, entry: Entry) -> str | None:
        """Return why the machine is not idle for an entry; None if it is: the CPUs, and the GPUs that it uses."""
        return next((state.reason for state in self._states_of(entry) if not state.is_idle), None)

    def due_in_s(self) -> float:
        """Return the time until the next reading; never below 0."""
        return max(0.0, self._due_s - self._clock.now_s())

    def search_starts(self, entry: Entry) -> None:
        """Watch for arrivals from now on: on its GPUs; on the CPUs too where it needs an idle machine."""
        policy = self._policy if entry.start.needs_idle else replace(self._policy, cpu_fraction=math.inf)
        self._arrivals, self._searched = Arrivals(policy, uuids=entry.gpus), (None, *entry.gpus)
        self._due_s = -math.inf

    def search_ended(self, *, somebody_came: bool) -> None:
        """Watch for an idle machine again; what the search used has been idle all the time, unless somebody came."""
        known = {} if somebody_came else {key: self._states[key] for key in self._searched if key in self._states}
        for key in self._idleness:
            since_s = known[key].idle_since_s if key in known else None
            self._idleness[key] = Idleness(self._policy, uuids=_uuids(key), idle_since_s=since_s)
        self._arrivals, self._searched = None, ()
        self._due_s = -math.inf

    def look(self, waiting: Collection[Entry], *, orphan_pid: int | None) -> str | None:
        """Take a reading if one is due.

        Args:
            waiting: Entries, some of which wait for nothing but an idle machine; empty if none does.
            orphan_pid: A search of ours that is not below this process; None if there is none.

        Returns:
            The reason for which the search that runs has to leave; None if it has not.
        """
        if 0.0 < self.due_in_s() <= self._look_again_s(waiting):
            return None
        reading = self._watch.read(orphan_pid)
        if self._arrivals is not None:
            self._due_s = self._clock.now_s() + self._policy.close_look_s
            return self._arrivals.update(reading)
        for gpu in reading.gpus:
            self._idleness.setdefault(gpu.uuid, Idleness(self._policy, uuids=_uuids(gpu.uuid)))
        self._states = {key: idleness.update(reading) for key, idleness in self._idleness.items()}
        self._due_s = self._clock.now_s() + min(self._look_again_s(waiting), self._policy.look_s)
        return None

    def _look_again_s(self, waiting: Collection[Entry]) -> float:
        return min((state.look_again_s for one in waiting for state in self._states_of(one)), default=math.inf)

    def _states_of(self, entry: Entry) -> list[IdleState]:
        absent = replace(_NOT_LOOKED, look_again_s=math.inf)
        return [
            self._states.get(key)
            or (replace(absent, reason=f"{key} is not among the GPUs of this machine") if self._states else _NOT_LOOKED)
            for key in entry.gpus or (None,)
        ]


def _uuids(key: str | None) -> tuple[str, ...]:
    return () if key is None else (key,)


def hosted_by(environ: Mapping[str, str], *, is_service: bool) -> str:
    """Return how this process is hosted, in words."""
    if is_service:
        how = "a systemd user unit: started again when it fails; ends with your last session unless you linger"
    elif environ.get("TMUX") or environ.get("STY"):
        how = f"a {'tmux' if environ.get('TMUX') else 'screen'} session: runs until that, or the machine, ends"
    elif sys.stderr is not None and sys.stderr.isatty():
        how = "a terminal: ends with it, or with ^C"
    else:
        how = "a process in the background: nothing starts it again"
    return f"{how}; in a container" if is_in_container() else how


class ServiceManager:
    """Service manager of this process, if it has one; none of the methods raises. See sd_notify(3).

    Args:
        environ: The environment. The manager's variables are taken out of it, so that no child is taken for this
            process.

    Attributes:
        watchdog_s: Time within which it wants to hear of this process; None without a watchdog.
    """

    def __init__(self, environ: MutableMapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._alive_s = -math.inf
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        for_pid, microseconds = environ.pop("WATCHDOG_PID", ""), environ.pop("WATCHDOG_USEC", "")
        is_ours = self._address is not None and for_pid in ("", str(os.getpid()))
        is_number = microseconds.isascii() and microseconds.isdigit() and len(microseconds) < 19
        self.watchdog_s = (int(microseconds) / 1e6 or None) if is_ours and is_number else None

    @property
    def is_there(self) -> bool:
        """True if a service manager started this process."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """Say that the service is up, and what it does, which ``systemctl status`` shows."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, status: str) -> None:
        """Say what the service does now."""
        self._send(f"STATUS={_one_line(status)}")

    def stopping(self) -> None:
        """Say that the service is about to end."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Say that the service is alive if half of the watchdog's time has gone by; to be called in its loop."""
        now_s = self._clock.now_s()
        if self.watchdog_s and now_s - self._alive_s >= self.watchdog_s / 2 and self._send("WATCHDOG=1"):
            self._alive_s = now_s

    def _send(self, message: str) -> bool:
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
                sending.settimeout(0.2)  # a manager that reads no messages must not hold up the loop for longer
                sending.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            _log.debug("the service manager does not listen: %s", error)
            return False
        return True


def _address(name: str) -> bytes | None:
    """Return the address of a socket: a path, or a name in the abstract namespace, which begins with ``@``."""
    raw = os.fsencode(name)
    if raw[:1] not in (b"/", b"@") or not 1 < len(raw) <= 107:  # unix(7)
        if name:
            _log.warning("NOTIFY_SOCKET is %r, which is no Unix socket; the service manager is told nothing", name)
        return None
    return b"\0" + raw[1:] if raw[:1] == b"@" else raw


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:500]

"""Service: the daemon's loop. It looks at the machine, the queue and the trainings, and does what is due."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune import __version__
from autotune.clock import Clock
from autotune.config.daemon_settings import DaemonSettings
from autotune.daemon.advice import Advices, Adviser
from autotune.daemon.home import Control, DaemonHome, sole_daemon
from autotune.daemon.idleness import IdlePolicy
from autotune.daemon.machine_watch import MachineLook
from autotune.daemon.queue import Queue, QueueDecision, QueueEntry, decide
from autotune.daemon.searches import Searches
from autotune.daemon.systemd import ServiceManager, hosted_by
from autotune.daemon.trainings import MachineReader, Trainings
from autotune.errors import AutotuneError
from autotune.process import expected
from autotune.trial.children import Notifier
from autotune.trial.process_identity import users_of_config
from autotune.trial.termination import signals_held

if TYPE_CHECKING:  # its packages are an extra
    from autotune.daemon.web.server import WebServer

_PAUSE_S = 5.0  # between looks at the queue's file, which commands change; they also say so
_LEAVING_PAUSE_S = 0.05
_TRAININGS_S = 2.0
_HELD_S = 30.0  # between looks whether a training has ended that an advice waits for
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
        policy = IdlePolicy(idle_s=settings.idle_for_s, cpu_fraction=settings.idle_cores_fraction)
        self._look = MachineLook(policy, clock)
        self._trainings = Trainings(home.trainings, clock)
        self._surroundings = MachineReader(clock)
        self._troubles = Troubles(say, clock)
        self._entries: Sequence[QueueEntry] = ()
        self._turns = QueueDecision(next=None, reasons={}, wants_idle=False)
        self._started_utc = clock.utc().isoformat(timespec="seconds")
        self._due_s = {"trainings": 0.0, "apply": 0.0}

    def run(self) -> None:
        """Run until this process is told to end, or its lock is taken away.

        Raises:
            AutotuneError: Another daemon runs, or the pipe by which it is woken cannot be made.
            KeyboardInterrupt: It was told to end; a search that runs ends by itself after its running trial.
        """
        with sole_daemon(self._home) as lock, Control(self._home) as control, closing(self._look):
            self._say(f"autotune {__version__} daemon, process {os.getpid()}: {self._hosting()}")
            self._manager.send("READY=1\nSTATUS=looking at the queue")
            if self._web is not None:
                self._web.start(self._apply_soon)
                # No address that signs in: what is said here may go into a log.
                self._say(
                    f"the page is served at {self._web.origin}; `autotune daemon url` prints an address to sign in"
                )
            try:
                while not lock.is_lost:
                    with signals_held():
                        self._tick()
                        self._troubles.guarded("status", lambda: self._write_status(control))
                    if control.wait(self._pause_s()):
                        self._apply_soon()
                self._say("the daemon's lock file was taken away; another daemon may start, so this one ends")
            finally:
                with signals_held():
                    if self._web is not None:
                        self._web.close()
                    self._manager.send("STOPPING=1")
                    self._searches.close()
                    self._notifier.close()
                    self._surroundings.close()

    def _tick(self) -> None:
        """Do all that is due; what goes wrong with one thing is no reason to leave out the others."""
        guarded = self._troubles.guarded
        self._manager.alive()
        guarded("machine", self._look_at_machine)
        guarded("search", self._look_after_search)
        guarded("start", self._start_next)
        for name, work, every_s in (
            ("trainings", self._watch_trainings, _TRAININGS_S),
            ("apply", self._advising.apply_held, _HELD_S),
        ):
            now_s = self._clock.now_s()
            if now_s >= self._due_s[name]:
                self._due_s[name] = now_s + every_s
                guarded(name, work)
        if self._web is not None:
            self._web.note(self.status())

    def _look_at_machine(self) -> None:
        orphan = self._searches.orphan
        pid = (orphan.owner or {}).get("pid") if orphan else None
        waiting = self._entries if self._turns.wants_idle else ()
        if why := self._look.look(waiting, orphan_pid=pid if isinstance(pid, int) else None):
            self._searches.leave(why)

    def _look_after_search(self) -> None:
        was_running = self._searches.running
        try:
            self._searches.tick()
        finally:
            if was_running is not None and self._searches.running is None:
                self._look.search_ended()

    def _start_next(self) -> None:
        self._entries = self._queue.entries()
        self._turns = decide(
            self._entries,
            now=self._clock.utc(),
            running=self._searches.busy_with,
            why_not_idle=self._look.why_not_idle,
        )
        if (chosen := self._turns.next) is not None:
            self._look.search_starts(chosen)
            try:
                self._searches.start(chosen)
            finally:
                if self._searches.running is None:
                    self._look.search_ended()

    def _watch_trainings(self) -> None:
        for event in self._trainings.poll(self._surroundings):
            self._announce(event["message"], event)
        self._surroundings.forget(self._trainings.alive)

    def _pause_s(self) -> float:
        if self._searches.is_leaving:
            return _LEAVING_PAUSE_S
        if self._searches.running is not None:
            return min(0.25, self._look.due_in_s())
        pause_s = min(_TRAININGS_S if self._trainings.alive else _PAUSE_S, self._look.due_in_s())
        return pause_s if self._manager.watchdog_s is None else min(pause_s, self._manager.watchdog_s / 4)

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
            "machine": "a search of ours runs" if running else self._look.reason,
            "running": running.number if running else None,
            "reasons": dict(self._turns.reasons),
            "trainings": [training.document() for training in self._trainings.alive],
            "trouble": self._troubles.first,
        }

    def _apply_soon(self) -> None:
        self._due_s["apply"] = 0.0

    def _tell(self, kind: str, text: str, **facts: Any) -> None:
        utc = self._clock.utc().isoformat(timespec="seconds")
        self._announce(text, {"format": 1, "event": kind, "utc": utc, "message": text, **facts})

    def _announce(self, text: str, event: Mapping[str, Any]) -> None:
        self._say(text)
        self._notifier.notify(event)

    def _hosting(self) -> str:
        return hosted_by(os.environ, is_service=self._manager.is_there)

    def _is_used(self, config: Path) -> bool:
        return self._trainings.uses(config) or bool(users_of_config(config))


class Troubles:
    """What goes wrong with disks and files, by the name of the work: it is said, and the work tried again."""

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._texts: dict[str, str] = {}
        self._said: dict[str, float] = {}  # when each of them was said

    @property
    def first(self) -> str | None:
        """One that there is now; None for none."""
        return next(iter(self._texts.values()), None)

    def guarded(self, name: str, work: Callable[[], None]) -> None:
        """Do some work; its trouble is over once it is done without."""
        try:
            work()
            self._texts.pop(name, None)
        except Exception as error:  # noqa: BLE001 -- one full disk, or one bug, must not end what others rely on
            trouble = error if isinstance(error, AutotuneError) else expected(error)
            text, now_s = str(trouble or f"bug: {error!r}"), self._clock.now_s()
            self._texts[name] = text
            self._said = {one: said_s for one, said_s in self._said.items() if now_s - said_s < _SAID_AGAIN_S}
            if text not in self._said:
                self._said[text] = now_s
                if trouble is None:
                    _log.exception("a bug in the daemon; it goes on")
                self._say(text)

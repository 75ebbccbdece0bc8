"""Main loop of the daemon."""

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
from autotune.daemon.advice import Adviser, Recommendations
from autotune.daemon.home import Control, DaemonHome, sole_daemon
from autotune.daemon.idleness import IdlePolicy
from autotune.daemon.machine_watch import IdleMonitor
from autotune.daemon.queue import Queue, QueueDecision, QueueEntry, decide
from autotune.daemon.searches import Searches
from autotune.daemon.systemd import ServiceManager, hosted_by
from autotune.daemon.trainings import MachineReader, Trainings
from autotune.errors import AutotuneError
from autotune.process import expected
from autotune.trial.children import Notifier
from autotune.trial.process_identity import users_of_config
from autotune.trial.termination import signals_held

if TYPE_CHECKING:  # requires the optional dependencies of the web extra
    from autotune.daemon.web.server import WebServer

_PAUSE_S = 5.0  # between reads of the queue file; commands that change it also wake the daemon
_STOPPING_PAUSE_S = 0.05
_TRAININGS_S = 2.0
_HELD_S = 30.0  # between attempts to apply recommendations that wait for a training to end
_REPEAT_S = 300.0  # until the same problem is reported again
_log = logging.getLogger(__name__)


class Service:
    """Daemon of one user on one machine; `say` prints a progress line."""

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
        self._adviser = Adviser(self._queue, Recommendations(home.advice), clock, self._publish, self._is_used)
        self._searches = Searches(self._queue, self._adviser, clock, self._publish)
        policy = IdlePolicy(idle_s=settings.idle_for_s, cpu_fraction=settings.idle_cores_fraction)
        self._idle = IdleMonitor(policy, clock)
        self._trainings = Trainings(home.trainings, clock)
        self._machine_reader = MachineReader(clock)
        self._problems = Problems(say, clock)
        self._entries: Sequence[QueueEntry] = ()
        self._decision = QueueDecision(next=None, reasons={}, wants_idle=False)
        self._started_utc = clock.utc().isoformat(timespec="seconds")
        self._due_s = {"trainings": 0.0, "apply": 0.0}

    def run(self) -> None:
        """Run until interrupted or the lock file is removed; a running search ends after its current trial."""
        with sole_daemon(self._home) as is_held, Control(self._home) as control, closing(self._idle):
            self._say(f"autotune {__version__} daemon, process {os.getpid()}: {self._hosting()}")
            self._manager.send("READY=1\nSTATUS=watching the queue")
            if self._web is not None:
                self._web.start(self._apply_soon)
                # Without a login code, because this line may go into a log.
                self._say(f"serving the page at {self._web.origin}; `autotune daemon url` prints a login address")
            try:
                while is_held():
                    with signals_held():
                        self._tick()
                        self._problems.guarded("status", lambda: self._write_status(control))
                    if control.wait(self._pause_s()):
                        self._apply_soon()
                self._say("stopping: the daemon's lock file was removed, so another daemon may start")
            finally:
                with signals_held():
                    if self._web is not None:
                        self._web.close()
                    self._manager.send("STOPPING=1")
                    self._searches.close()
                    self._notifier.close()
                    self._machine_reader.close()

    def _tick(self) -> None:
        """Run the steps that are due; a failed step doesn't stop the others."""
        guarded = self._problems.guarded
        self._manager.alive()
        guarded("machine", self._check_machine)
        guarded("search", self._check_search)
        guarded("start", self._start_next)
        for name, work, every_s in (
            ("trainings", self._watch_trainings, _TRAININGS_S),
            ("apply", self._adviser.apply_held, _HELD_S),
        ):
            now_s = self._clock.now_s()
            if now_s >= self._due_s[name]:
                self._due_s[name] = now_s + every_s
                guarded(name, work)
        if self._web is not None:
            self._web.note(self.status())

    def _check_machine(self) -> None:
        orphan = self._searches.orphan
        pid = (orphan.owner or {}).get("pid") if orphan else None
        waiting = self._entries if self._decision.wants_idle else ()
        if why := self._idle.poll(waiting, orphan_pid=pid if isinstance(pid, int) else None):
            self._searches.stop(why)

    def _check_search(self) -> None:
        was_running = self._searches.running
        try:
            self._searches.tick()
        finally:
            if was_running is not None and self._searches.running is None:
                self._idle.search_ended()

    def _start_next(self) -> None:
        self._entries = self._queue.entries()
        self._decision = decide(
            self._entries,
            now=self._clock.utc(),
            running=self._searches.busy_with,
            why_not_idle=self._idle.why_not_idle,
        )
        if (chosen := self._decision.next) is not None:
            self._idle.search_starts(chosen)
            try:
                self._searches.start(chosen)
            finally:
                if self._searches.running is None:
                    self._idle.search_ended()

    def _watch_trainings(self) -> None:
        for event in self._trainings.poll(self._machine_reader):
            self._announce(event["message"], event)
        self._machine_reader.forget(self._trainings.alive)

    def _pause_s(self) -> float:
        if self._searches.is_stopping:
            return _STOPPING_PAUSE_S
        if self._searches.running is not None:
            return min(0.25, self._idle.due_in_s())
        pause_s = min(_TRAININGS_S if self._trainings.alive else _PAUSE_S, self._idle.due_in_s())
        return pause_s if self._manager.watchdog_s is None else min(pause_s, self._manager.watchdog_s / 4)

    def _write_status(self, control: Control) -> None:
        page = {"origin": self._web.origin, "run": self._web.run} if self._web else None
        control.write(self.status(), page=page, has_followed=not self._searches.is_stopping)

    def status(self) -> dict[str, Any]:
        """Return the JSON object for commands, page and metrics."""
        running = self._searches.busy_with
        return {
            "autotune": __version__,
            "pid": os.getpid(),
            "started_utc": self._started_utc,
            "hosted": self._hosting(),
            "machine": "running a search" if running else self._idle.reason,
            "running": running.number if running else None,
            "reasons": dict(self._decision.reasons),
            "trainings": [training.document() for training in self._trainings.alive],
            "trouble": self._problems.first,
        }

    def _apply_soon(self) -> None:
        self._due_s["apply"] = 0.0

    def _publish(self, kind: str, text: str, **facts: Any) -> None:
        utc = self._clock.utc().isoformat(timespec="seconds")
        self._announce(text, {"format": 1, "event": kind, "utc": utc, "message": text, **facts})

    def _announce(self, text: str, event: Mapping[str, Any]) -> None:
        self._say(text)
        self._notifier.notify(event)

    def _hosting(self) -> str:
        return hosted_by(os.environ, is_service=self._manager.is_there)

    def _is_used(self, config: Path) -> bool:
        return self._trainings.uses(config) or bool(users_of_config(config))


class Problems:
    """Current problems of the steps, such as a full disk; reported and retried."""

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._texts: dict[str, str] = {}
        self._reported_s: dict[str, float] = {}  # by text

    @property
    def first(self) -> str | None:
        return next(iter(self._texts.values()), None)

    def guarded(self, name: str, work: Callable[[], None]) -> None:
        """Run a step and record its problem; success clears it."""
        try:
            work()
            self._texts.pop(name, None)
        except Exception as error:  # noqa: BLE001 -- a full disk or a bug in one step must not stop the others
            problem = error if isinstance(error, AutotuneError) else expected(error)
            text, now_s = str(problem or f"bug: {error!r}"), self._clock.now_s()
            self._texts[name] = text
            self._reported_s = {one: at_s for one, at_s in self._reported_s.items() if now_s - at_s < _REPEAT_S}
            if text not in self._reported_s:
                self._reported_s[text] = now_s
                if problem is None:
                    _log.exception("bug in the daemon; continuing")
                self._say(text)

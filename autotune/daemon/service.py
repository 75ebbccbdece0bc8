"""Service: the daemon's loop. It looks at the machine, the queue and the trainings, and does what is due."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.clock import Clock
from autotune.daemon.advice import Advices
from autotune.daemon.advising import Advising
from autotune.daemon.control.deferred import Deferred
from autotune.daemon.control.protocol import Request, unknown_operation
from autotune.daemon.control.server import ControlServer
from autotune.daemon.home import DaemonHome, sole_daemon
from autotune.daemon.hosting import hosted_by
from autotune.daemon.idle.policy import IdlePolicy
from autotune.daemon.machine_look import MachineLook
from autotune.daemon.queue.entry import Entry
from autotune.daemon.queue.queue import Queue
from autotune.daemon.queue.turns import Turns, decide_turns
from autotune.daemon.search_ending import Left
from autotune.daemon.searches import Searches
from autotune.daemon.trainings.surroundings_reader import SurroundingsReader
from autotune.daemon.trainings.watched_training import WatchedTraining
from autotune.daemon.trainings.watcher import Trainings
from autotune.daemon.web.daemon_view import DaemonView, TrainingView
from autotune.daemon.web.page import Page
from autotune.errors import AutotuneError
from autotune.limits import expected
from autotune.measure.host import is_in_container
from autotune.process.config_users import users_of_config
from autotune.process.notifier import Notifier
from autotune.process.sd_notify import ServiceManager
from autotune.process.termination import signals_held
from autotune.settings.daemon_settings import DaemonSettings

_PAUSE_S = 5.0  # between looks at the queue's file, which commands change; they also say so
_BUSY_PAUSE_S = 0.25
_LEAVING_PAUSE_S = 0.05
_TRAININGS_S = 2.0
_HELD_S = 30.0  # between looks whether a training has ended that an advice waits for
_SAID_AGAIN_S = 300.0

_log = logging.getLogger(__name__)


class Service:
    """The daemon of one user on one machine.

    Args:
        home: Its folders.
        settings: Its settings.
        clock: The machine's clock.
        say: Called with a sentence on what happens.
        web: Page that shows what it does; None for none.
    """

    def __init__(
        self,
        home: DaemonHome,
        settings: DaemonSettings,
        clock: Clock,
        say: Callable[[str], None],
        web: Page | None = None,
    ) -> None:
        self._home = home
        self._clock = clock
        self._say = say
        self._web = web
        self._manager = ServiceManager.take(os.environ, clock)
        self._notifier = Notifier(settings.notify, home.notify_log, clock, os.environ)
        self._queue = Queue(home.queue, clock)
        self._advising = Advising(self._queue, Advices(home.advice), clock, self._tell, self._is_used)
        self._searches = Searches(self._queue, self._advising, clock, self._tell)
        self._policy = IdlePolicy(idle_s=settings.idle_for_s, cpu_fraction=settings.idle_cores_fraction)
        self._entries: Sequence[Entry] = ()
        self._turns = Turns(next=None, reasons={}, wants_idle=False)
        self._started_utc = clock.utc().isoformat(timespec="seconds")
        self._trainings = Trainings(home.trainings, clock)
        self._surroundings = SurroundingsReader(clock)
        self._trainings_s = 0.0
        self._to_settle: list[Deferred] = []
        self._troubles: dict[str, str] = {}  # by the name of the work
        self._said: dict[str, float] = {}  # when each of them was said
        self._held_s = 0.0
        self._machine_now = ""

    def run(self) -> None:
        """Run until this process is told to end, or its lock is taken away.

        Raises:
            AutotuneError: Another daemon runs, or the socket cannot be made.
            KeyboardInterrupt: It was told to end; a search that runs ends by itself after its running trial.
        """
        with (
            sole_daemon(self._home) as lock,
            ControlServer(self._home, self._answer, self._clock) as server,
            MachineLook(self._policy, self._clock) as look,
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
                    server.serve(self._pause_s(look))
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
        self._notifier.tick()
        self._guarded("machine", lambda: self._look_at_machine(look))
        self._guarded("search", lambda: self._look_after_search(look))
        self._guarded("start", lambda: self._start_next(look))
        now_s = self._clock.now_s()
        if now_s >= self._trainings_s:
            self._trainings_s = now_s + _TRAININGS_S
            self._guarded("trainings", self._watch_trainings)
        if now_s >= self._held_s:
            self._held_s = now_s + _HELD_S
            self._guarded("apply", self._advising.apply_held)
        self._settle()
        if self._web is not None:
            self._web.note(self._view())

    def _look_at_machine(self, look: MachineLook) -> None:
        orphan = self._searches.orphan
        waiting = self._entries if self._turns.wants_idle else ()
        if why := look.look(waiting, orphan_pid=_pid(orphan.owner) if orphan else None):
            self._searches.leave(Left.SOMEBODY_CAME, why)

    def _look_after_search(self, look: MachineLook) -> None:
        was_running, somebody_came = self._searches.running, self._searches.is_leaving_for_somebody
        try:
            self._searches.tick()
        finally:
            if was_running is not None and self._searches.running is None:
                look.search_ended(somebody_came=somebody_came)

    def _start_next(self, look: MachineLook) -> None:
        self._entries = self._queue.entries()
        self._turns = decide_turns(
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
            self._announce(event.sentence(), event.document())
        self._surroundings.forget(self._trainings.alive)

    def _pause_s(self, look: MachineLook) -> float:
        if self._searches.is_leaving or not self._notifier.is_idle:
            return _LEAVING_PAUSE_S
        if self._searches.running is not None:
            return min(_BUSY_PAUSE_S, look.due_in_s())
        pause_s = min(_TRAININGS_S if self._trainings.alive else _PAUSE_S, look.due_in_s())
        return pause_s if self._manager.watchdog_s is None else min(pause_s, self._manager.watchdog_s / 4)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        """Do some work; what goes wrong with disks and files is said, and tried again.

        Args:
            name: Name of the work: its trouble is over once it is done without.
            work: The work.
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

    # Requests

    def _answer(self, request: Request) -> Mapping[str, Any] | Deferred:
        """Answer a client.

        Raises:
            AutotuneError: There is no such operation.
        """
        match request.op:
            case "status":
                return self._status()
            case "settle":
                self._apply_soon()
                self._to_settle.append(waiting := Deferred())
                return waiting
            case "url":
                return {"url": self._new_address()}
            case _:
                raise unknown_operation(request, ("status", "settle", "url"))

    def _status(self) -> dict[str, Any]:
        running = self._searches.busy_with
        return {
            "autotune": __version__,
            "pid": os.getpid(),
            "started_utc": self._started_utc,
            "hosted": self._hosting(),
            "machine": "a search of ours runs" if running else self._machine_now,
            "running": running.number if running else None,
            "reasons": dict(self._turns.reasons),
            "trainings": [_shown(training) for training in self._trainings.alive],
            "trouble": next(iter(self._troubles.values()), None),
        }

    def _view(self) -> DaemonView:
        status = self._status()
        names = ("autotune", "pid", "started_utc", "hosted", "machine", "running", "reasons", "trouble")
        return DaemonView(
            **{name: status[name] for name in names},
            trainings=tuple(TrainingView.of(training) for training in self._trainings.alive),
        )

    def _apply_soon(self) -> None:
        self._held_s = 0.0

    def _new_address(self) -> str:
        if self._web is None:
            raise AutotuneError("the daemon serves no page", remedy="Start it with `autotune daemon run --web`.")
        return self._web.new_address()

    def _settle(self) -> None:
        """Answer those who wait until the queue is as they have left it: nothing runs that should not."""
        if self._searches.is_leaving:
            return
        waiting, self._to_settle = self._to_settle, []
        for one in waiting:
            one.complete({})

    # What is told

    def _tell(self, kind: str, text: str, **facts: Any) -> None:
        utc = self._clock.utc().isoformat(timespec="seconds")
        self._announce(text, {"format": 1, "event": kind, "utc": utc, "message": text, **facts})

    def _announce(self, text: str, event: Mapping[str, Any]) -> None:
        self._say(text)
        self._manager.status(text)
        self._notifier.notify(event)

    def _hosting(self) -> str:
        return hosted_by(
            os.environ,
            is_service=self._manager.is_there,
            is_on_terminal=sys.stderr is not None and sys.stderr.isatty(),
            is_in_container=is_in_container(),
        )

    def _is_used(self, config: Path) -> bool:
        return self._trainings.uses(config) or bool(users_of_config(config))


def _shown(training: WatchedTraining) -> dict[str, Any]:
    """Return a training as the status shows it."""
    return {
        "name": training.name,
        "pid": training.pid,
        "steps": training.steps,
        "samples_per_s": training.samples_per_s,
        "is_slow": training.is_slow,
    }


def _pid(owner: Mapping[str, Any] | None) -> int | None:
    pid = (owner or {}).get("pid")
    return pid if isinstance(pid, int) else None

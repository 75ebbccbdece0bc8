"""Server of the daemon's page and metrics: what it shows, and what it does."""

import os
import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from autotune.clock import Clock
from autotune.daemon.advice import Advices
from autotune.daemon.home import DaemonHome
from autotune.daemon.queue import Queue
from autotune.daemon.web.app import act
from autotune.daemon.web.http_server import Content, HttpServer
from autotune.daemon.web.keys import Keys
from autotune.daemon.web.metrics import Metrics, TrialEndings
from autotune.daemon.web.state import FilesRead, PageState
from autotune.daemon.web.view import DaemonView, GpuSample, GpuUser
from autotune.measure.gpu.driver import Device, Driver, DriverError, GpuFacts, Trouble, gpus, if_known, reasons_of
from autotune.measure.processes import descendants


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """Options of the page.

    Attributes:
        actions: Whether the page may change the queue, and have advice applied.
    """

    address: str = "127.0.0.1"
    port: int = 8577
    actions: bool = False


class WebServer:
    """Server of the page and the metrics; see `autotune.daemon.web.view.Page`.

    Attributes:
        run: Name of this run of it, see `Keys`.

    Raises:
        AutotuneError: The port is taken, or the token cannot be used.
    """

    def __init__(self, home: DaemonHome, options: WebOptions, clock: Clock) -> None:
        self._actions = options.actions
        self._page = PageState(home, clock)
        self.run = secrets.token_hex(8)
        self._gpus = GpuPoller(clock, lambda: descendants(os.getpid()))
        self._known: DaemonView | None = None
        self._queue, self._advices = Queue(home.queue, clock), Advices(home.advice)
        self._on_action: Callable[[], None] = lambda: None
        self._entries, self._endings = FilesRead(home.queue, self._queue.entries), TrialEndings()
        metrics = Metrics(self._view, lambda: self._endings.counts)
        content = Content(document=self._document, metrics=metrics.text, act=self._act if options.actions else None)
        self._server = HttpServer(options.address, options.port, Keys(home.web_token, clock, self.run), content)
        self._ends = threading.Event()
        self._noting = threading.Thread(target=self._note_for_ever, name="autotune-web-hour", daemon=True)

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        return self._server.origin

    def start(self, on_action: Callable[[], None]) -> None:
        """Begin to serve.

        Args:
            on_action: Called, in another thread, after somebody has changed the queue.
        """
        self._on_action = on_action
        self._gpus.start()
        self._noting.start()
        self._server.start()

    def close(self) -> None:
        """End; streams that are open end with it."""
        self._ends.set()
        self._server.close()
        self._gpus.close()

    def note(self, view: DaemonView) -> None:
        """Take over what the daemon knows now; takes microseconds."""
        self._known = view

    def _view(self) -> DaemonView | None:
        known = self._known
        return known and replace(known, gpus=self._gpus.samples, why_no_gpus=self._gpus.why_none)

    def _note_for_ever(self) -> None:
        """Keep the last hour, and count the trials, whether a page is open or not."""
        while not self._ends.wait(1.0):
            self._endings.look(self._entries.now()[0])
            if view := self._view():
                self._page.note(view)

    def _document(self, csrf: str | None) -> dict[str, Any] | None:
        document = self._page.document(actions=self._actions, csrf=csrf)
        return None if document is None else dict(document)

    def _act(self, request: object) -> None:
        act(self._queue, self._advices, request)
        self._on_action()


_EVERY_S = 1.0
_PERCENT = 100.0


class GpuPoller:
    """Poller of all GPUs of this machine.

    Args:
        own_pids: Returns the processes of the daemon's own search.

    Attributes:
        why_none: Reason, for people, why there are none; None otherwise.
    """

    def __init__(self, clock: Clock, own_pids: Callable[[], Collection[int]]) -> None:
        self._clock = clock
        self._own_pids = own_pids
        self._driver: Driver | None = None
        self._devices: list[tuple[GpuFacts, Device]] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="autotune-web-gpus", daemon=True)
        self.samples: tuple[GpuSample, ...] = ()
        self.why_none: str | None = "not looked at yet"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End; a driver that hangs is left to itself."""
        self._ends.set()
        self._thread.join(timeout=1.0)

    def look(self) -> None:
        """Read every GPU once. A driver that does not answer is looked for anew by the next look."""
        try:
            if self._driver is None:
                self._open()
            own = self._own_pids()
            self.samples = tuple(self._sample(facts, device, own) for facts, device in self._devices)
        except DriverError as error:
            self._devices, self.samples, self.why_none = [], (), error.for_people
            self._leave()

    def _run(self) -> None:
        while True:
            self.look()
            # after a driver that is not there, or does not answer
            if self._ends.wait(_EVERY_S if self.samples else 60.0):
                return

    def _open(self) -> None:
        inventory = gpus()
        self.why_none = inventory.why_none
        if inventory.gpus:
            self._driver = Driver()
            self._devices = [(facts, self._driver.device(facts.uuid)) for facts in inventory.gpus]

    def _leave(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _sample(self, facts: GpuFacts, device: Device, own: Collection[int]) -> GpuSample:
        now_s = self._clock.now_s()
        try:
            busy, memory = if_known(device.busy_percent), if_known(device.memory)
            limits, reasons = if_known(device.power_limits_w), if_known(device.clock_reasons)
            return GpuSample(
                t_s=now_s,
                index=facts.index,
                uuid=facts.uuid,
                name=facts.name,
                # Drivers are known to give far more than 100.
                utilization=busy / _PERCENT if busy is not None and busy <= _PERCENT else None,
                memory_used_bytes=memory.used_bytes if memory else None,
                memory_total_bytes=memory.total_bytes if memory else None,
                power_w=if_known(device.power_w),
                power_limit_w=limits[0] if limits else None,
                energy_j=if_known(device.energy_j),
                sm_clock_mhz=if_known(device.sm_clock_mhz),
                temperature_c=if_known(device.temperature_c),
                throttled_by=reasons_of(reasons) if reasons is not None else None,
                users=self._users(device, own),
            )
        except DriverError as error:
            if error.trouble is Trouble.DRIVER_LOST:
                raise
            return GpuSample(
                t_s=now_s, index=facts.index, uuid=facts.uuid, name=facts.name, why_unknown=error.for_people
            )

    def _users(self, device: Device, own: Collection[int]) -> tuple[GpuUser, ...]:
        driver = self._driver
        assert driver is not None, "its device is in hand"
        return tuple(
            GpuUser(
                pid=holder.pid,
                name=if_known(lambda pid=holder.pid: driver.process_name(pid)),  # type: ignore[misc]  # cannot infer it
                memory_bytes=holder.memory_bytes,
                is_own=holder.pid in own,
            )
            for holder in if_known(device.holders) or ()
        )

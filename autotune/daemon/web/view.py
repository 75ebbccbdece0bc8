"""View of the daemon at one moment: records that its loop makes, and that page and metrics are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autotune.daemon.trainings import WatchedTraining


@dataclass(frozen=True, kw_only=True)
class GpuUser:
    """Process on a GPU.

    Attributes:
        name: Its program; None where that is not known.
        memory_bytes: GPU memory that it holds; None where the driver does not say.
        is_own: Whether it belongs to a search of the daemon.
    """

    pid: int
    name: str | None = None
    memory_bytes: int | None = None
    is_own: bool = False


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """Reading of one GPU; None is "not known", never 0.

    Attributes:
        utilization: Share of time, 0..1, in which kernels ran since the last reading.
        energy_j: Energy since the driver was loaded.
        throttled_by: Reasons for which its clocks are held down.
        users: Processes on it; a driver in a container may hide them.
        why_unknown: Reason, for people, why nothing is known of it; None otherwise.
    """

    t_s: float
    index: int
    uuid: str
    name: str = ""
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttled_by: tuple[str, ...] | None = None
    users: tuple[GpuUser, ...] = ()
    why_unknown: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingView:
    """Watched training that goes on.

    Attributes:
        name: Name for people: its config, else its command.
        samples_per_s: Its speed in the last window; None before the first.
        confirmed_samples_per_s: Speed that its study has confirmed for its values; None for nothing.
        expected: Interval of its speed over the confirmed one in which it is expected; None for nothing.
        samples: Samples that it has trained on while it was watched; None where its steps do not say.
    """

    id: str
    name: str
    pid: int
    started_utc: str
    steps: int
    samples_per_s: float | None
    is_slow: bool
    confirmed_samples_per_s: float | None = None
    expected: tuple[float, float] | None = None
    samples: float | None = None

    @classmethod
    def of(cls, training: WatchedTraining) -> "TrainingView":
        header, confirmed = training.header, training.header.confirmed
        return cls(
            id=training.folder.name,
            name=training.name,
            pid=training.pid,
            started_utc=header.started_utc,
            steps=training.steps,
            samples_per_s=training.samples_per_s,
            is_slow=training.is_slow,
            confirmed_samples_per_s=confirmed.samples_per_s if confirmed else None,
            expected=(confirmed.low, confirmed.high) if confirmed else None,
            samples=training.samples,
        )


@dataclass(frozen=True, kw_only=True)
class DaemonView:
    """Knowledge of the daemon that is in no file.

    Attributes:
        running: Number of the entry whose search runs; None while none does.
        reasons: By id of an entry, what it waits for, in words.
        why_no_gpus: Reason, for people, why nothing is known of any GPU; None otherwise.
        trouble: What goes wrong now, in words; None for nothing.
    """

    autotune: str
    pid: int
    started_utc: str
    hosted: str
    machine: str
    running: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[GpuSample, ...] = ()
    why_no_gpus: str | None = None
    trainings: tuple[TrainingView, ...] = ()
    trouble: str | None = None


class Page(Protocol):
    """Page of a daemon; made by `autotune.daemon.web.server.WebServer`."""

    run: str

    @property
    def origin(self) -> str:
        """Scheme, address and port."""
        ...

    def start(self, on_action: Callable[[], None]) -> None:
        """Begin to serve.

        Args:
            on_action: Called, in another thread, after somebody has changed the queue.
        """

    def close(self) -> None:
        """End."""

    def note(self, view: DaemonView) -> None:
        """Take over what the daemon knows now; takes microseconds, and never waits."""

"""Events of watched trainings: records with a form for programs and a sentence for people."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from autotune.daemon.drift.causes import Cause
from autotune.durations import format_duration

FORMAT = 1
_UNKNOWN = "The cause is not known: nothing that is watched changed with it."


@dataclass(frozen=True, kw_only=True)
class TrainingEvent:
    """Event of one training.

    Attributes:
        training: Name of its folder.
        name: Name for people: its config, else its command.
        pid: Its process.
        utc: Time of the event, an ISO 8601 stamp.
    """

    kind: ClassVar[str] = ""

    training: str
    name: str
    pid: int
    utc: str

    def document(self) -> dict[str, Any]:
        """Return the event as an object for programs."""
        return {"format": FORMAT, "event": self.kind, **_plain(asdict(self)), "message": self.sentence()}

    def sentence(self) -> str:
        """Return the event as a sentence for people."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TrainingStarted(TrainingEvent):
    """A training has made its first steps.

    Attributes:
        config: Real path of its config; None if it has none.
        confirmed_samples_per_s: What its study has confirmed for its values; None if nothing.
    """

    kind: ClassVar[str] = "training_started"

    config: str | None
    confirmed_samples_per_s: float | None

    def sentence(self) -> str:
        """See `TrainingEvent.sentence`."""
        known = (
            f"{self.confirmed_samples_per_s:.3g} samples/s are confirmed for its values"
            if self.confirmed_samples_per_s
            else "nothing is confirmed for its values, so it is compared with itself"
        )
        return f"{self.name} trains (process {self.pid}); {known}."


@dataclass(frozen=True, kw_only=True)
class SlowerThanConfirmed(TrainingEvent):
    """A training is slower in its first minutes than what was confirmed for its values on this hardware.

    Attributes:
        speed_ratio: Its speed over the confirmed one.
        low: Lower end of the interval in which that was expected.
        high: Its upper end.
        samples_per_s: Its speed.
        confirmed_samples_per_s: The confirmed one.
        trials: Number of trials that this is from.
        cause: Likely cause; None if unknown.
    """

    kind: ClassVar[str] = "slower_than_confirmed"

    speed_ratio: float
    low: float
    high: float
    samples_per_s: float
    confirmed_samples_per_s: float
    trials: int
    cause: Cause | None

    def sentence(self) -> str:
        """See `TrainingEvent.sentence`."""
        return (
            f"{self.name} trains at {self.speed_ratio:.0%} of what was measured; interval {self.low * 100:.0f} to "
            f"{self.high:.0%} ({self.samples_per_s:.3g} samples/s, {self.confirmed_samples_per_s:.3g} in {self.trials} "
            f"trials). {_because(self.cause)}"
        )


@dataclass(frozen=True, kw_only=True)
class Slower(TrainingEvent):
    """A training has become slower than itself.

    Attributes:
        speed_ratio: Its speed over its own before.
        since_utc: Estimated time of the change.
        for_s: How long before the event that was.
        cause: Likely cause; None if unknown.
    """

    kind: ClassVar[str] = "slower"

    speed_ratio: float
    since_utc: str
    for_s: float
    cause: Cause | None

    def sentence(self) -> str:
        """See `TrainingEvent.sentence`."""
        return (
            f"{self.name} trains at {self.speed_ratio:.0%} of its own speed, for {format_duration(self.for_s)} now. "
            f"{_because(self.cause)}"
        )


@dataclass(frozen=True, kw_only=True)
class Recovered(TrainingEvent):
    """A training that had become slower is back.

    Attributes:
        speed_ratio: Its speed over its own before it became slower.
    """

    kind: ClassVar[str] = "recovered"

    speed_ratio: float

    def sentence(self) -> str:
        """See `TrainingEvent.sentence`."""
        return f"{self.name} is back to {self.speed_ratio:.0%} of its own speed."


@dataclass(frozen=True, kw_only=True)
class TrainingEnded(TrainingEvent):
    """The process of a training is gone.

    Attributes:
        steps: Steps that were seen; 0 where none could be.
        train_s: Their time.
        was_slow: Whether it was slower than itself in the end.
    """

    kind: ClassVar[str] = "training_ended"

    steps: int
    train_s: float
    was_slow: bool

    def sentence(self) -> str:
        """See `TrainingEvent.sentence`."""
        if not self.steps:
            return f"{self.name} has ended; none of its steps was seen."
        slow = ", slower than itself in the end" if self.was_slow else ""
        return f"{self.name} has ended after {self.steps:,} steps in {format_duration(self.train_s)}{slow}."


def _because(cause: Cause | None) -> str:
    return _UNKNOWN if cause is None else f"Likely cause: {cause.kind.value} ({cause.text})."


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    cause = fields.get("cause")
    return {**fields, "cause": {**cause, "kind": cause["kind"].value}} if cause else dict(fields)

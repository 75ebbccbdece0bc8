"""Times of the two stages of a pipeline: which one sets the pace, and what the other waits for.

Written by trainers (`autotune.tf.two_stage`), read by searches: standard library only.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

DATA_PARALLEL_BELOW = 0.1
"""Share of a step below which the features are not worth a GPU of their own: half of it is the most it can gain."""


_Times = TypeVar("_Times", bound="_Summable")


class _Summable:
    """Times that are added to others, and subtracted, field by field."""

    def __sub__(self: _Times, earlier: _Times) -> _Times:
        return _combined(operator.sub, self, earlier)

    def __add__(self: _Times, other: _Times) -> _Times:
        return _combined(operator.add, self, other)


def _combined(by: Callable[[Any, Any], Any], one: _Times, other: _Times) -> _Times:
    names = [field.name for field in fields(one)]  # type: ignore[arg-type]  # both subclasses are dataclasses
    return type(one)(**{name: by(getattr(one, name), getattr(other, name)) for name in names})


@dataclass(frozen=True, kw_only=True)
class StageTimes(_Summable):
    """Times of one stage.

    Attributes:
        busy_s: Time that it worked, its device included.
    """

    batches: int
    busy_s: float
    input_s: float
    room_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineTimes(_Summable):
    """Times of both stages over the same period, which begins with the first batch that was handed out.

    Attributes:
        data: Feature work: busy is computing features, input is the host's reading, room is the buffer.
        model: Training: busy is from the handing out of a batch until its step is done, input is the wait for features.
    """

    passed_s: float
    data: StageTimes
    model: StageTimes

    @property
    def features_s(self) -> float:
        """Mean time of the feature work on one batch, f; 0 before the first."""
        return self.data.busy_s / self.data.batches if self.data.batches else 0.0

    @property
    def step_s(self) -> float:
        """Mean time of a step, s; 0 before the first."""
        return self.model.busy_s / self.model.batches if self.model.batches else 0.0

    @property
    def bound(self) -> float | None:
        """Most batches per second that these stages can reach, 1/max(f, s); None before the first of each."""
        slower_s = max(self.features_s, self.step_s)
        return 1.0 / slower_s if self.features_s and self.step_s else None

    @property
    def reached(self) -> float | None:
        """Share of `bound` that was reached; None before that is known."""
        if self.bound is None or self.passed_s <= 0.0:
            return None
        return self.model.batches / self.passed_s / self.bound

    def verdict(self) -> str:
        """Return a sentence that says which stage sets the pace, and what to do about it."""
        if self.bound is None or self.reached is None:
            return "too few batches to say which stage sets the pace"
        slower = "features" if self.features_s > self.step_s else "steps"
        shares = f"features {_ms(self.features_s)}, step {_ms(self.step_s)} a batch"
        if self.reached >= 0.95:
            said = f"{shares}: the {slower} set the pace, {self.reached:.0%} of what they allow is reached"
        else:
            said = f"{shares}: {self.reached:.0%} of the bound of {self.bound:.3g} batches/s is reached; {self._why()}"
        if self.features_s < DATA_PARALLEL_BELOW * self.step_s:
            said += (
                f". Features take {self.features_s / self.step_s:.0%} of a step: a second GPU gains more if both train "
                "(data-parallel)"
            )
        return said

    def _why(self) -> str:
        """Return a clause on the reason for falling short of the bound."""
        if self.data.input_s >= max(self.model.input_s / 2.0, 0.05 * self.passed_s):
            return (
                f"both wait for the host, which reads and decodes ({self.data.input_s / self.passed_s:.0%} of the time)"
            )
        if self.model.input_s >= 0.05 * self.passed_s:
            return (
                f"steps waited for features for {self.model.input_s / self.passed_s:.0%} of the time: "
                "uneven batches, which a deeper buffer evens out"
            )
        return "the rest is the hand-over between the stages"


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.3g} ms"

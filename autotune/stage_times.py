"""Stage times of a two-stage pipeline, and which stage limits its speed; standard library only, as trainers use it."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

DATA_PARALLEL_BELOW = 0.1
"""Feature time per step time below which a separate GPU for features gains little: half of this at most."""


_Times = TypeVar("_Times", bound="_Summable")


class _Summable:
    def __sub__(self: _Times, earlier: _Times) -> _Times:
        return _combined(operator.sub, self, earlier)

    def __add__(self: _Times, other: _Times) -> _Times:
        return _combined(operator.add, self, other)


def _combined(by: Callable[[Any, Any], Any], one: _Times, other: _Times) -> _Times:
    names = [field.name for field in fields(one)]  # type: ignore[arg-type]  # both subclasses are dataclasses
    return type(one)(**{name: by(getattr(one, name), getattr(other, name)) for name in names})


@dataclass(frozen=True, kw_only=True)
class StageTimes(_Summable):
    """Times of one stage; busy time includes its device."""

    batches: int
    busy_s: float
    input_s: float
    room_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineTimes(_Summable):
    """Times of both stages over the same period, which starts when the first batch is handed out.

    Attributes:
        data: Feature stage: busy computes features, input waits for the host to read, room waits for buffer space.
        model: Training stage: busy lasts from a batch's hand-out to the end of its step, input waits for features.
    """

    passed_s: float
    data: StageTimes
    model: StageTimes

    @property
    def features_s(self) -> float:
        """Mean feature time per batch, f; 0 before the first."""
        return self.data.busy_s / self.data.batches if self.data.batches else 0.0

    @property
    def step_s(self) -> float:
        """Mean step time, s; 0 before the first."""
        return self.model.busy_s / self.model.batches if self.model.batches else 0.0

    @property
    def bound(self) -> float | None:
        """Highest rate of these stages in batches per second, 1/max(f, s); None before the first of each."""
        slower_s = max(self.features_s, self.step_s)
        return 1.0 / slower_s if self.features_s and self.step_s else None

    @property
    def reached(self) -> float | None:
        """Achieved share of `bound`; None if unknown."""
        if self.bound is None or self.passed_s <= 0.0:
            return None
        return self.model.batches / self.passed_s / self.bound

    def verdict(self) -> str:
        """Return a sentence that names the slower stage and a remedy."""
        if self.bound is None or self.reached is None:
            return "too few batches to find the slower stage"
        slower = "features" if self.features_s > self.step_s else "steps"
        times, reached = f"features {_ms(self.features_s)}, step {_ms(self.step_s)} per batch", _percent(self.reached)
        if self.reached >= 0.95:
            text = f"{times}: the {slower} are the bottleneck; {reached} of their rate is reached"
        else:
            text = f"{times}: {reached} of the bound of {self.bound:.3g} batches/s is reached; {self._shortfall()}"
        if self.features_s < DATA_PARALLEL_BELOW * self.step_s:
            text += (
                f". Features take {_percent(self.features_s / self.step_s)} of a step: a second GPU gains more if both "
                "train (data-parallel)"
            )
        return text

    def _shortfall(self) -> str:
        if self.data.input_s >= max(self.model.input_s / 2.0, 0.05 * self.passed_s):
            waited = _percent(self.data.input_s / self.passed_s)
            return f"both stages wait for the host to read and decode ({waited} of the time)"
        if self.model.input_s >= 0.05 * self.passed_s:
            waited = _percent(self.model.input_s / self.passed_s)
            return f"steps waited for features {waited} of the time: batch times vary, a deeper buffer evens them out"
        return "the rest is hand-over between the stages"


def _percent(fraction: float) -> str:
    return f"{100.0 * fraction:.0f} %"


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.3g} ms"

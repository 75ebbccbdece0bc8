"""Tests of the marks on training steps, and of the borders between these."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from autotune.trainee.step_profile_torch import (
    BACKWARD,
    COPY,
    DATA,
    FORWARD,
    LOSS,
    OPTIMIZER,
    REST,
    Borders,
    StepMarks,
    times_ms,
)


class Trainer:
    """Step of a trainer in which each thing that is done takes a time of its own, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.marks = StepMarks(lambda: self.now_ms)

    def does(self, phase: str, *within: Callable[[], object], ms: float) -> None:
        """Does something for a time, and then what lies within it."""
        token = self.marks.begin(phase)
        self.now_ms += ms
        for one in within:
            one()
        self.marks.end(token)

    def between(self, ms: float) -> None:
        """Does what nobody marks."""
        self.now_ms += ms

    def times_ms(self) -> dict[str, float]:
        """Return the times of the phases of the step, which ends."""
        times = times_ms(self.marks.cut(), lambda begin, end: end - begin)
        return {phase: time_ms for phase, time_ms in times.items() if time_ms}


@pytest.fixture
def trainer() -> Trainer:
    """A trainer at the begin of a step."""
    return Trainer()


def test_what_lies_between_forward_and_backward_is_the_loss(trainer: Trainer) -> None:
    """A loss needs no function that could be marked; what comes before and after is the rest."""
    trainer.does(DATA, ms=1)
    trainer.between(2)
    trainer.does(FORWARD, ms=4)
    trainer.between(8)
    trainer.does(BACKWARD, ms=16)
    trainer.between(32)
    trainer.does(OPTIMIZER, ms=64)
    assert trainer.times_ms() == {DATA: 1, FORWARD: 4, LOSS: 8, BACKWARD: 16, OPTIMIZER: 64, REST: 34}


def test_a_closure_is_not_counted_twice(trainer: Trainer) -> None:
    """The passes that an optimizer has made are no part of its step, gradients set to zero in between are."""

    def closure() -> None:
        trainer.does(FORWARD, ms=2)
        trainer.between(4)
        trainer.does(OPTIMIZER, ms=8)
        trainer.does(BACKWARD, ms=16)
        trainer.between(32)

    trainer.does(OPTIMIZER, closure, ms=1)
    assert trainer.times_ms() == {OPTIMIZER: 41, FORWARD: 2, LOSS: 4, BACKWARD: 16}


def test_a_pass_within_a_pass_is_part_of_it(trainer: Trainer) -> None:
    """Activations that are computed again belong to the backward pass, a loss within the model to the forward pass."""
    trainer.does(FORWARD, lambda: trainer.does(LOSS, ms=2), ms=1)
    trainer.does(BACKWARD, lambda: trainer.does(FORWARD, ms=8), ms=4)
    assert trainer.times_ms() == {FORWARD: 3, BACKWARD: 12}


def test_a_copy_that_is_none_leaves_no_mark(trainer: Trainer) -> None:
    """Its time is what it would have been without a mark."""
    assert trainer.marks.is_between
    trainer.does(COPY, ms=1)
    token = trainer.marks.begin(COPY)
    trainer.between(2)
    trainer.marks.cancel(token)
    trainer.between(4)
    assert trainer.times_ms() == {COPY: 1, REST: 6}


def test_exceptions_end_what_they_leave(trainer: Trainer) -> None:
    """The end of a phase ends those within it; an end that never comes does not outlive the step."""
    outer = trainer.marks.begin(OPTIMIZER)
    trainer.marks.begin(BACKWARD)
    trainer.between(1)
    trainer.marks.end(outer)
    trainer.between(2)
    trainer.marks.begin(FORWARD)
    trainer.between(4)
    assert trainer.times_ms() == {BACKWARD: 1, REST: 2, FORWARD: 4}
    trainer.between(8)
    assert trainer.times_ms() == {REST: 8}


def test_no_time_is_lost_or_counted_twice(trainer: Trainer) -> None:
    """Whatever lies within what, the phases add up to the step."""
    numbers: Iterator[int] = count(1)

    def nested(depth: int) -> None:
        for phase in (DATA, COPY, FORWARD, LOSS, BACKWARD, OPTIMIZER):
            trainer.between(next(numbers))
            within = (lambda: nested(depth - 1),) if depth else ()
            trainer.does(phase, *within, ms=next(numbers))

    nested(2)
    assert sum(trainer.times_ms().values()) == trainer.now_ms


CRITIC, MAKER, RARE = 1, 2, 3
LOADER = 0


@pytest.mark.parametrize(
    ("turn", "steps"),
    [
        ([LOADER, MAKER], 10),
        ([LOADER, LOADER, LOADER, MAKER], 10),  # accumulated batches
        ([LOADER, CRITIC, MAKER], 10),  # two models that are trained against each other
        ([LOADER, CRITIC, LOADER, CRITIC, LOADER, CRITIC, MAKER], 30),  # a batch for each update
        ([CRITIC, CRITIC, CRITIC, MAKER], 10),  # without a loader, the optimizer with the fewest updates
        ([CRITIC, MAKER], 10),
    ],
)
@pytest.mark.parametrize("first", [[], [RARE]])
def test_a_step_ends_at_a_fetch_after_an_update_or_else_at_an_update(
    turn: list[int], steps: int, first: list[int]
) -> None:
    """Of ten turns of a loop, after 20 others; an optimizer that hardly ever steps must not hold up the others."""
    borders = Borders()

    def make(turn: list[int]) -> int:
        return sum(borders.updated(one) if one else borders.fetches() for one in turn)

    make(first + 20 * turn)
    borders.settle()
    make(turn)
    assert make(10 * turn) == steps

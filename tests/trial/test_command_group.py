"""Commands that run side by side."""

import os
import sys

import pytest

from autotune.clock import SystemClock
from autotune.errors import CommandError
from autotune.trial.command_group import CommandEnd, CommandGroup, OutputLine


def test_output_and_ends_are_told_in_order() -> None:
    """Each command's lines, odd bytes too, and then its status; a command that was killed has a negative one."""
    with CommandGroup(SystemClock(), 60.0) as group:
        group.start("a", ("sh", "-c", r"printf 'one\n\377two'; echo three >&2; exit 3"), os.environ)
        group.start("b", ("sh", "-c", "kill -9 $$"), os.environ)
        told = list(group.output())
    assert [one for one in told if one.name == "a"] == [
        OutputLine(name="a", text="one"),
        OutputLine(name="a", text="\ufffdtwothree"),
        CommandEnd(name="a", status=3),
    ]
    assert [one for one in told if one.name == "b"] == [CommandEnd(name="b", status=-9)]


def test_a_command_has_the_environment_and_the_cores_that_it_is_given() -> None:
    """As a worker on one of several GPUs needs it."""
    core = max(os.sched_getaffinity(0))
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.sched_getaffinity(0))"
    with CommandGroup(SystemClock(), 60.0) as group:
        group.start("a", (sys.executable, "-c", code), {**os.environ, "CUDA_VISIBLE_DEVICES": "1"}, frozenset({core}))
        assert next(group.output()) == OutputLine(name="a", text=f"1 {{{core}}}")


def test_the_end_of_the_input_tells_them_to_leave() -> None:
    """What they say then is still told."""
    with CommandGroup(SystemClock(), 60.0) as group:
        group.start("a", ("sh", "-c", "echo up; cat; echo leaving"), os.environ)
        assert next(group.output()) == OutputLine(name="a", text="up")
        assert list(group.leave()) == [OutputLine(name="a", text="leaving"), CommandEnd(name="a", status=0)]


class FastClock(SystemClock):
    """Clock on which seconds are short."""

    def now_s(self) -> float:
        """See `Clock.now_s`."""
        return 20.0 * super().now_s()


@pytest.mark.parametrize(
    ("script", "clock", "status"),
    [
        ("echo up; exec sleep 1000", SystemClock(), -15),
        ("trap '' TERM; echo up; while :; do sleep 1000 & wait; done", FastClock(), -9),
    ],
    ids=["leaves", "takes no notice"],
)
def test_a_command_that_does_not_leave_is_ended(script: str, clock: SystemClock, status: int) -> None:
    """By SIGTERM after the time that it was given, by SIGKILL if it takes no notice."""
    with CommandGroup(clock, 0.2) as group:
        group.start("a", ("sh", "-c", script), os.environ)
        assert next(group.output()) == OutputLine(name="a", text="up")
        assert list(group.leave()) == [CommandEnd(name="a", status=status)]


def test_a_program_that_is_not_there_is_named() -> None:
    """With the name of the command."""
    with CommandGroup(SystemClock(), 1.0) as group, pytest.raises(CommandError, match="No such file") as error:
        group.start("node", ("no-such-program",), os.environ)
    assert error.value.where == "node"

"""Phases of TensorFlow's steps by the scopes of the operations that its profiler has seen."""

import pytest

from autotune.trainee.trace_phases import Executed, phases_of

STEP = {  # operation: kind, begin and end within a step of 10 ms
    "sequential/dense/MatMul": ("MatMul", 0.0, 2.0),
    "sequential/norm/AssignMovingAvg/AssignSubVariableOp": ("AssignSubVariableOp", 2.0, 2.5),
    "compile_loss/mean_squared_error/Mean": ("Mean", 3.0, 3.5),
    "gradient_tape/compile_loss/mean_squared_error/Tile": ("Tile", 3.5, 4.0),
    "gradient_tape/sequential/dense/MatMul/MatMul": ("MatMul", 4.0, 7.0),
    "adam/Mul": ("Mul", 6.5, 8.0),  # while the backward pass still goes on
    "adam/AssignAddVariableOp": ("AssignAddVariableOp", 8.0, 8.5),
    "AssignAddVariableOp": ("AssignAddVariableOp", 8.5, 9.5),  # of a metric
}


def executed(steps: int, calls: str = "", **renamed: str) -> list[Executed]:
    """Return the operations of so many steps."""
    return [
        Executed(f"{calls}{renamed.get(name, name)}", kind, 10.0 * step + begin_ms, 10.0 * step + end_ms)
        for step in range(steps)
        for name, (kind, begin_ms, end_ms) in STEP.items()
    ]


@pytest.mark.parametrize("calls", ["", "StatefulPartitionedCall/", "while/body/_1/while/StatefulPartitionedCall_1/"])
def test_the_phases_are_told_by_scopes(calls: str) -> None:
    """From one update to the next; what goes on at the same time counts for the later phase."""
    found = phases_of(executed(8, calls), 8)
    assert {len(values) for values in found.values()} == {7}
    means = {name: sum(values) / len(values) for name, values in found.items()}
    assert means == pytest.approx({"forward": 2.5, "loss": 0.5, "backward": 3.0, "optimizer": 2.0, "step": 10.0})


def test_a_loss_of_ones_own_is_what_stands_outside_of_layers() -> None:
    """It is differentiated, and in no scope."""
    names = {
        "compile_loss/mean_squared_error/Mean": "Mean",
        "gradient_tape/compile_loss/mean_squared_error/Tile": "gradient_tape/Mean/Tile",
    }
    found = phases_of([one._replace(name=names.get(one.name, one.name)) for one in executed(8)], 8)
    assert found["loss"] == pytest.approx([0.5] * 7)
    plain = {**names, "gradient_tape/compile_loss/mean_squared_error/Tile": "gradient_tape/Tile"}
    found = phases_of([one._replace(name=plain.get(one.name, one.name)) for one in executed(8)], 8)
    assert found["loss"] == pytest.approx([0.5] * 7), "nothing is named after it, and it comes before the backward pass"


def test_without_an_optimizer_or_a_backward_pass_nothing_is_told() -> None:
    """Such as where XLA has made one operation of the step."""
    assert phases_of([], 8) == {}
    assert phases_of([one for one in executed(8) if "gradient_tape" not in one.name], 8) == {}
    assert phases_of([one for one in executed(8) if not one.name.startswith("adam")], 8) == {}

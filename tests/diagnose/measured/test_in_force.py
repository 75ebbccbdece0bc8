"""Tests of what is in force in the trainer's process, against the config."""

import pytest

from autotune.diagnose.findings import Severity
from autotune.diagnose.surroundings import judge_in_force
from autotune.records import Gpu, Machine, Scalar, TraineeEvent
from autotune.space.space import Space
from tests.runs import knob

MACHINE = Machine(cpu_cores=2, cpu_model="x", memory_bytes=1 << 30)


def told(**settings: Scalar) -> list[TraineeEvent]:
    """Return the event of a process with these settings; a double underscore stands for the dot."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return [TraineeEvent(kind="in_force", t_s=1.0, stream="7.0", settings=named)]


@pytest.mark.parametrize(
    ("kind", "value", "settings", "is_issue"),
    [
        ("intra_op_threads", 4, {"tensorflow__intra_op_threads": 8}, True),
        ("intra_op_threads", 8, {"tensorflow__intra_op_threads": 8}, False),
        ("intra_op_threads", 0, {"tensorflow__intra_op_threads": 8}, False),
        ("precision", "mixed_float16", {"keras__precision": "float32"}, True),
        ("precision", "float32", {"keras__precision": "mixed_float16"}, True),
        ("precision", "float32", {"keras__precision": "float32"}, False),
        ("graph_mode", True, {"tensorflow__runs_eagerly": True}, True),
        ("graph_mode", False, {"tensorflow__runs_eagerly": True}, False),
        ("workers", 4, {"tensorflow__intra_op_threads": 8}, False),
    ],
)
def test_a_knob_that_is_not_in_force_is_named(
    kind: str, value: Scalar, settings: dict[str, Scalar], is_issue: bool
) -> None:
    """With its key, what the config says and what the framework says."""
    space = Space(knobs=(knob("runtime.it", value, "other", kind=kind),))
    issues = judge_in_force(told(**settings), space, MACHINE).issues
    assert [issue.place for issue in issues] == (["runtime.it"] if is_issue else [])


def test_a_gpu_that_is_not_used_is_an_error() -> None:
    """It is there, and the framework sees none."""
    machine = Machine(
        cpu_cores=2, cpu_model="x", memory_bytes=1 << 30, gpus=(Gpu(name="A100", uuid="GPU-0", memory_bytes=None),)
    )
    (issue,) = judge_in_force(told(tensorflow__gpus=0), Space(knobs=()), machine).issues
    assert issue.severity is Severity.ERROR
    assert "A100" in issue.sentence
    assert not judge_in_force(told(tensorflow__gpus=1), Space(knobs=()), machine).issues
    assert judge_in_force([], Space(knobs=()), machine).why_not, "no framework has told anything"

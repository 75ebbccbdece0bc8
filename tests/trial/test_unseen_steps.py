"""Steps that will never be seen, told at the exact moment."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.records import TraineeEvent
from autotune.trial.stop_rule import UnseenSteps, uses_a_framework


def works(_t0_s: float, _t1_s: float) -> float | None:
    """Return the cores of a trial at work."""
    return 1.0


def event(kind: str, t_s: float, text: str | None = None) -> TraineeEvent:
    """Return an event of one process."""
    return TraineeEvent(kind=kind, t_s=t_s, stream="4711.0", text=text)


def test_a_trainer_that_hides_its_steps_is_given_half_a_minute() -> None:
    """The observer has seen it train; if the first step still comes, all is well."""
    judge = UnseenSteps(works, 300.0, lambda _pid: True)
    judge.note([event("launched", 0.0), event("start", 1.0), event("unseen", 100.0, "its batches cannot be seen")])
    assert judge.why(129.9) == ""
    assert judge.why(130.0) == "its batches cannot be seen"


def test_work_without_a_framework_is_told_after_a_minute() -> None:
    """A trainer in plain Python, whose steps nobody can see; later where the config allows a longer start."""
    judge = UnseenSteps(works, 300.0, lambda _pid: False)
    judge.note([event("launched", 0.0), event("start", 1.0)])
    assert judge.why(59.9) == ""
    said = judge.why(60.0)
    assert said.startswith("it has worked for 1m without PyTorch")
    assert judge.why(61.0) == said
    patient = UnseenSteps(works, 600.0, lambda _pid: False)
    patient.note([event("launched", 0.0), event("start", 1.0)])
    assert patient.why(119.9) == ""
    assert patient.why(120.0) != ""


@pytest.mark.parametrize(
    ("cores", "uses", "is_observed"),
    [(1.0, True, True), (1.0, None, True), (0.05, False, True), (None, False, True), (1.0, False, False)],
    ids=["framework", "cannot be known", "idle, as in a download", "nothing known", "not in Python yet"],
)
def test_what_may_still_begin_to_train_is_waited_for(cores: float | None, uses: bool | None, is_observed: bool) -> None:
    """Only work in Python without a framework tells anything."""
    judge = UnseenSteps(lambda _t0_s, _t1_s: cores, 300.0, lambda _pid: uses)
    judge.note([event("launched", 0.0), *([event("start", 1.0)] if is_observed else [])])
    assert judge.why(200.0) == ""


@pytest.mark.parametrize(("kind", "may_come"), [("step", True), ("reporter", True), ("note", False)])
def test_who_reports_steps_is_waited_for_however_long(kind: str, may_come: bool) -> None:
    """A trainer that has imported what reports them, or has made one; a process begun anew has done neither."""
    judge = UnseenSteps(works, 300.0, lambda _pid: False)
    judge.note([event("launched", 0.0), event("start", 1.0), event(kind, 2.0)])
    assert (judge.why(1000.0) == "") is may_come
    judge.note([event("launched", 1000.0), event("start", 1001.0)])
    assert (judge.why(1059.0) == "") is may_come
    assert judge.why(1060.0) != ""


CHILD = """\
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("library", "uses"),
    [("torch/lib/libtorch_cpu.so", True), ("jaxlib/libjax common.so.1", True), ("mytorch/lib/other.so", False)],
)
def test_frameworks_are_seen_in_the_processes_below_a_launcher(tmp_path: Path, library: str, uses: bool) -> None:
    """By the libraries that they have mapped; the launcher itself has none."""
    path = tmp_path / library
    path.parent.mkdir(parents=True)
    path.write_bytes(b"library")
    launcher = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}, {str(path)!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", launcher], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        assert uses_a_framework(process.pid) is uses
        process.stdin.close()

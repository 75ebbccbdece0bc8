"""The line of the trainer's own that its loop stays in, sampled in the trial of a diagnosis."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.records import WHEREABOUTS_VARIABLE
from tests.trainee.conftest import Observed

RESTING = """\
import json
import time

from autotune.trainee import step


def rest():
    json.loads("1")
    time.sleep(0.2)


for number in range(1, 60):
    time.sleep(0.001)
    if number % 10 == 0:
        rest()
    step(samples=1)
"""


@pytest.mark.parametrize("asked", [True, False])
def test_a_line_that_the_loop_stays_in_is_told_with_its_time(
    run: Callable[..., Observed], tmp_path: Path, asked: bool
) -> None:
    """Each stay once it is over, in the innermost line of the trainer's; only where that is wanted."""
    (tmp_path / "train.py").write_text(RESTING)
    seen = run(sys.executable, tmp_path / "train.py", **({WHEREABOUTS_VARIABLE: "1"} if asked else {}))
    about_rest = [event for event in seen.kind("cost") if event.place == f"{tmp_path}/train.py:9 rest"]
    stays = [event for event in about_rest if event.cost == "stay"]
    assert len(stays) == (5 if asked else 0)
    assert all(event.cost == "stay" and (event.duration_s or 0.0) > 0.1 for event in stays)
    assert len(seen.kind("step")) == 59


PREPARING = """\
import time

from autotune.trainee import step


def prepare():
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        sum(range(1000))


prepare()
for number in range(150):
    time.sleep(0.01)
    step(samples=1)
"""


def test_what_passes_before_the_first_step_and_in_the_loop_is_told_by_place(
    run: Callable[..., Observed], tmp_path: Path
) -> None:
    """A function by its first line; lines of the loop with their CPU time, which waiting takes none of."""
    (tmp_path / "train.py").write_text(PREPARING)
    costs = run(sys.executable, tmp_path / "train.py", **{WHEREABOUTS_VARIABLE: "1"}).kind("cost")
    (before,) = (one for one in costs if one.cost == "before" and one.place == f"{tmp_path}/train.py:6 prepare")
    assert before.duration_s > 0.3
    loop = [one for one in costs if one.cost == "loop" and one.place == f"{tmp_path}/train.py:14 <module>"]
    assert loop, costs
    assert loop[-1].duration_s > 0.3
    used_s, within_s = map(float, loop[-1].text.split())
    assert (used_s < 0.5 * loop[-1].duration_s, within_s) == (True, 0.0)


COUNTING = """\
from autotune.trainee import step


def metric():
    return sum(number * number for number in range(100_000)) + max([number for number in range(100_000)])


for number in range(300):
    metric()
    step(samples=1)
"""


def test_a_comprehension_is_part_of_its_function(run: Callable[..., Observed], tmp_path: Path) -> None:
    """Its frame has another name: the function's time would be split."""
    (tmp_path / "train.py").write_text(COUNTING)
    costs = run(sys.executable, tmp_path / "train.py", **{WHEREABOUTS_VARIABLE: "1"}).kind("cost")
    loop = {one.place for one in costs if one.cost == "loop"}
    assert f"{tmp_path}/train.py:5 metric" in loop
    assert not any(place.endswith(">") and "<module>" not in place for place in loop)


THREADED = """\
import sys
import threading
import time

from autotune.trainee import step


def count():
    number = 0
    while True:
        number += 1


def rest():
    while True:
        time.sleep(0.001)


threading.Thread(target=getattr(sys.modules["__main__"], sys.argv[1]), daemon=True).start()
for number in range(150):
    time.sleep(0.01)
    step(samples=1)
"""


@pytest.mark.parametrize("does", ["count", "rest"])
def test_a_thread_that_holds_pythons_lock_is_reported_with_its_cpu_time(
    run: Callable[..., Observed], tmp_path: Path, does: str
) -> None:
    """At its line; and how long a thread waits for the lock, which Python takes from another after 5 ms."""
    (tmp_path / "train.py").write_text(THREADED)
    costs = run(sys.executable, tmp_path / "train.py", does, **{WHEREABOUTS_VARIABLE: "1"}).kind("cost")
    (*_, thread) = (one for one in costs if one.cost == "thread")
    assert thread.place.rpartition(" ")[2] == does
    (*_, main) = (one for one in costs if one.cost == "main")
    if does == "count":
        assert thread.duration_s > main.duration_s
        assert float(thread.text) > 0.001
    else:
        assert thread.duration_s < 0.5


ALTERNATING = """\
import time

from autotune.trainee import step


def count():
    number = 0
    while number < 250_000:
        number += 1


def rest():
    time.sleep(0.003)


for number in range(400):
    count()
    rest()
    step(samples=1)
"""


def test_short_python_code_before_code_without_the_lock_is_sampled(
    run: Callable[..., Observed], tmp_path: Path
) -> None:
    """A sampler that waits for the lock would see only what releases it: parts of less than 5 ms take turns."""
    (tmp_path / "train.py").write_text(ALTERNATING)
    costs = run(sys.executable, tmp_path / "train.py", **{WHEREABOUTS_VARIABLE: "1"}).kind("cost")
    latest = {one.place: one.duration_s for one in costs if one.cost == "loop"}
    counting_s, resting_s = (
        sum(took_s for place, took_s in latest.items() if place.endswith(name)) for name in ("count", "rest")
    )
    assert counting_s > 0.2 * resting_s, latest

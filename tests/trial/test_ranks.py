"""Trainings of several ranks: their steps are those of one training, and each rank is measured."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.probe import TrialGpus
from autotune.measure.ranks import pooled_ranks, ranks_of, straggler
from autotune.measure.window import steady_window
from autotune.records import RankMeasurement, Stop, TraineeEvent
from autotune.trial.instruments import Instruments
from autotune.trial.launch import ProcessRunner
from autotune.trial.step_files import StepReader
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, Scenario
from tests.trial.conftest import Trials, running
from tests.until import until

TRAINER = Path(__file__).with_name("ranked_trainer.py")
CLUSTER = '"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}'


def rank_line(number: int, world: int, node: str = "n1", *, is_joined: bool = True) -> dict[str, Any]:
    """Return the line with which a rank names itself."""
    rank = {"number": number, "world": world, "node": node, "is_joined": is_joined}
    return {"k": "rank", "t_s": 1.0, "rank": rank}


def write(folder: Path, pid: int, *lines: dict[str, Any]) -> None:
    """Append lines to the step file of a process."""
    with (folder / f"steps.{pid}.0.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def steps(*ends_s: float, **fields: float) -> list[dict[str, Any]]:
    """Return the lines of steps."""
    return [{"k": "step", "t_s": end_s, **fields} for end_s in ends_s]


def test_real_ranks_are_one_training(trials: Trials, runner: ProcessRunner) -> None:
    """Each step holds the samples of all three; the one that waits for its data is the one they wait for."""
    seen: list[TraineeEvent] = []

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        seen.extend(events)
        return Stop.ENOUGH if sum(event.kind == "step" for event in seen) >= 100 else None

    plan = trials.plan(argv=(sys.executable, str(TRAINER), "3", "1"))
    assert runner.run(plan, watch, trials.soon()).stop is Stop.ENOUGH
    assert {event.samples for event in seen if event.kind == "step"} == {8 + 9 + 10}
    window = steady_window(seen)
    assert window is not None
    ranks = ranks_of(seen, window)
    assert [(one.number, one.node) for one in ranks] == [(number, os.uname().nodename) for number in range(3)]
    slowest = straggler(ranks)
    assert slowest is not None
    assert (slowest.rank.number, slowest.waits_for_data) == (1, True)
    assert slowest.sentence.startswith("rank 1 on ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a time namespace")
def test_clocks_of_nodes_are_aligned(trials: Trials, runner: ProcessRunner) -> None:
    """Steps of a rank whose clock is 5000 s ahead are those that the first rank's clock shows beside its own."""
    seen: list[TraineeEvent] = []

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        seen.extend(events)
        return Stop.ENOUGH if sum(event.kind == "step" for event in seen) >= 100 else None

    plan = trials.plan(argv=(sys.executable, str(TRAINER), "2", "1", "5000"))
    assert runner.run(plan, watch, trials.soon()).stop is Stop.ENOUGH
    assert {event.samples for event in seen if event.kind == "step"} == {8 + 9}
    first, second = (
        [event.t_s for event in seen if event.stream == stream and event.kind == "rank_step"]
        for stream in dict.fromkeys(event.stream for event in seen if event.kind == "rank")
    )
    apart_s = [abs(one - other) for one, other in zip(first, second, strict=False)]
    assert max(apart_s) < 60.0, "of 5000; the question takes as long as looking at the folder does"


def test_gpus_of_another_node_are_read_there(
    trials: Trials, runner: ProcessRunner, fake_gpu: Callable[..., FakeGpu]
) -> None:
    """One collector starts there for all ranks, and ends with them."""
    machine = fake_gpu(Scenario(gpus=(Gpu(busy_percent=80), Gpu(busy_percent=40))))
    seen: list[TraineeEvent] = []
    plan = trials.plan(argv=(sys.executable, str(TRAINER), "3"), env={**machine.env, "OTHER_NODE": "../n2"})
    readings = trials.folder / "gpus..._n2"

    def watch(events: Sequence[TraineeEvent]) -> Stop | None:
        instruments.watch(events)
        seen.extend(events)
        lines = readings.read_bytes().splitlines() if readings.exists() else []
        return Stop.ENOUGH if sum(b'"busy"' in line for line in lines) >= 20 else None

    with Instruments.of_machine(trials.clock, None) as instruments:
        instruments.expect(plan.trial_id, TrialGpus(), trials.folder / "samples")
        ended = runner.run(plan, watch, trials.soon())
        assert ended.stop is Stop.ENOUGH
        window = steady_window([event for event in seen if event.t_s > ended.ended_s - 2.5])
        assert window is not None
        _, usage = instruments.usage(window, started_s=ended.started_s)
    assert [round(gpu.figures.utilization or 0.0, 2) for gpu in usage.devices] == [0.8, 0.4]
    assert usage.utilization == pytest.approx(0.6, abs=0.01)
    until(lambda: running(trials.trial_id) == [])


def test_a_step_is_complete_when_the_last_rank_has_completed_it(tmp_path: Path) -> None:
    """It ends with the last of them, waits as long as the longest, and what the first rank does besides is kept."""
    write(tmp_path, 8, rank_line(1, 2), *steps(2.5, 3.1, samples=4, wait_s=0.3), {"k": "epoch_end", "t_s": 3.2})
    reader = StepReader(tmp_path)
    assert [event.kind for event in reader.poll()] == ["rank", "rank_step", "rank_step"]
    write(tmp_path, 7, rank_line(0, 2), *steps(2.0, 3.3, 4.0, samples=6, wait_s=0.1), {"k": "epoch_end", "t_s": 4.1})
    events = reader.poll()
    made = [event for event in events if event.kind == "step"]
    assert [(one.t_s, one.samples, one.wait_s, one.stream) for one in made] == [
        (2.5, 10.0, 0.3, "7.0"),
        (3.3, 10.0, 0.3, "7.0"),
    ]
    assert [event.t_s for event in events if event.kind == "epoch_end"] == [4.1]
    write(tmp_path, 8, *steps(4.2))
    assert [event.samples for event in reader.poll() if event.kind == "step"] == [None], "one of them says nothing"


def test_ranks_that_are_started_again_begin_with_a_step_of_their_own(tmp_path: Path) -> None:
    """As an elastic launcher does: what one of them had made before meets no step of the new ones."""
    write(tmp_path, 7, rank_line(0, 2), *steps(2.0, 3.0))
    write(tmp_path, 8, rank_line(1, 2), *steps(2.1))
    reader = StepReader(tmp_path)
    assert [event.t_s for event in reader.poll() if event.kind == "step"] == [2.1]
    write(tmp_path, 17, rank_line(0, 2), *steps(9.0))
    write(tmp_path, 18, rank_line(1, 2), *steps(9.2))
    assert [event.t_s for event in reader.poll() if event.kind == "step"] == [9.2]


def test_a_rank_that_never_reports_is_named(tmp_path: Path) -> None:
    """Once the others have trained for a while, and once only."""
    write(tmp_path, 7, rank_line(0, 3, "n1"), *steps(2.0, 20.0))
    write(tmp_path, 8, rank_line(1, 3, "n2"), *steps(2.0, 20.0))
    reader = StepReader(tmp_path)
    assert not [event for event in reader.poll() if event.kind in ("step", "unseen")]
    write(tmp_path, 7, *steps(40.0))
    (unseen,) = [event for event in reader.poll() if event.kind == "unseen"]
    assert (unseen.text or "").startswith("rank 2 of 3 never reported a step; those on n1, n2 did.")
    write(tmp_path, 7, *steps(80.0))
    assert not [event for event in reader.poll() if event.kind == "unseen"]


def test_variables_that_something_else_left_make_no_rank(tmp_path: Path) -> None:
    """A process that trains alone, whatever they say, is measured: its framework has joined nobody."""
    write(tmp_path, 7, rank_line(0, 4, is_joined=False), *steps(2.0, 20.0))
    reader = StepReader(tmp_path)
    assert not [event for event in reader.poll() if event.kind == "step"]
    write(tmp_path, 7, *steps(40.0))
    assert [event.t_s for event in reader.poll() if event.kind in ("step", "unseen")] == [2.0, 20.0, 40.0]
    write(tmp_path, 7, *steps(41.0))
    assert [event.t_s for event in reader.poll() if event.kind == "step"] == [41.0]


@pytest.mark.parametrize(
    "rank", [{"number": 2, "world": 2}, {"number": 0, "world": 1 << 40}, {"number": -1, "world": 2}, 7, None]
)
def test_what_is_no_rank_is_none(tmp_path: Path, rank: object) -> None:
    """The steps of that process are those of a training of its own."""
    write(tmp_path, 7, {"k": "rank", "t_s": 1.0, "rank": rank}, *steps(2.0, 3.0))
    assert [event.kind for event in StepReader(tmp_path).poll()] == ["rank", "step", "step"]


@pytest.mark.parametrize(
    ("variables", "reported"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}, (3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # a batch script of an allocation of four tasks
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None),
        ({}, None),
        ({"TF_CONFIG": f'{{{CLUSTER}, "task": {{"type": "worker", "index": 1}}}}'}, (2, 3)),
        ({"TF_CONFIG": f'{{{CLUSTER}, "task": {{"type": "evaluator", "index": 0}}}}'}, None),
        ({"TF_CONFIG": "{"}, None),
    ],
)
def test_the_rank_of_a_process_is_what_its_launcher_says(
    variables: dict[str, str], reported: tuple[int, int] | None
) -> None:
    """By the variables of torchrun, Open MPI, Slurm and TensorFlow's cluster; none for one that trains alone."""
    code = "import json; from autotune.trainee.ranks import own_rank; print(json.dumps(own_rank()))"
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "HOME")}
    done = subprocess.run([sys.executable, "-c", code], env={**kept, **variables}, capture_output=True, check=True)
    rank = json.loads(done.stdout)
    assert (rank and (rank["number"], rank["world"])) == reported


def measured(number: int, waits: float | None, own: float | None = None) -> RankMeasurement:
    """Return a rank by its shares of the time."""
    return RankMeasurement(number=number, node="n1", step_s=0.1, data_wait_fraction=waits, own_fraction=own)


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([measured(0, 0.05), measured(1, 0.38), measured(2, 0.06)], (1, True)),
        ([measured(0, 0.05), measured(1, 0.12)], None),  # a tenth of the time is not much
        ([measured(0, 0.05, 0.9), measured(1, 0.05, 0.3)], (0, False)),  # it logs, or computes longer
        ([measured(0, 0.05, 0.3), measured(1, 0.6, 0.9)], (1, True)),
        ([measured(0, 0.05, 0.96), measured(1, 0.6, 0.95)], (1, True)),  # they exchange outside of backward passes
        ([measured(0, None, 0.3), measured(1, 0.6, None)], None),  # what is known of one only tells nothing
        ([measured(0, 0.9)], None),
        ([], None),
    ],
)
def test_the_rank_that_the_others_wait_for(ranks: list[RankMeasurement], named: tuple[int, bool] | None) -> None:
    """The one that is longest outside of the exchange of gradients, or else waits longest for data."""
    found = straggler(ranks)
    assert (found and (found.rank.number, found.waits_for_data)) == named


def test_ranks_are_pooled_over_the_trials_of_a_point() -> None:
    """By their numbers; a trial of fewer ranks tells of these."""
    pooled = pooled_ranks(
        [[measured(0, 0.1), measured(1, 0.3)], [measured(0, 0.2), measured(1, None)], [measured(0, 0.6)]]
    )
    assert [(one.number, one.data_wait_fraction) for one in pooled] == [(0, 0.2), (1, 0.3)]

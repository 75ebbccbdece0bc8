"""``python -m scripts.bench placement``: the workloads, what counts as right, and the table."""

import sys
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.config.document import Document
from autotune.records import Ending, Stop, TraineeEvent
from autotune.search.problem import open_problem
from autotune.trial.outcome import ending_of
from autotune.trial.plan import plan_trial
from scripts.bench.__main__ import main
from scripts.bench.placement import PlacedSearch, report
from scripts.bench.simulation.placed_scenarios import DATA_GPU, DEPTH, MODEL_GPU, PlacedScenario, placed_scenario
from scripts.bench.simulation.scenarios import scenario


def _search(**fields: object) -> PlacedSearch:
    return PlacedSearch(
        **{
            "seed": 0,
            "family": "mixed",
            "gpu_speeds": (1.0, 1.0),
            "feature_share": 0.5,
            "jitter": 0.25,
            "today": (None, 2),
            "answer": (1, 4),
            "of_best": 1.0,
            "placement_of_best": 1.0,
            "worst_of_best": 0.6,
            "speedup": 1.7,
            "trials": 60,
            **fields,
        }  # type: ignore[arg-type]
    )


def _ending(one: PlacedScenario, folder: Path, **placed: int | None) -> Ending:
    """Run a trial of today's config with other GPUs, up to its first steps."""
    (folder / "config.yaml").write_text(one.config_text, encoding="utf-8")
    problem = open_problem(folder / "config.yaml", command=None, state_dir=folder / "state", machine=one.machine)
    events: list[TraineeEvent] = []

    def watch(new: object) -> Stop | None:
        events.extend(new)  # type: ignore[call-overload]
        return Stop.ENOUGH if len(events) > 20 else None

    keys = {f"data.{key}": gpu for key, gpu in placed.items()}
    done = one.runner(VirtualClock(), seed=1, fresh_processes=False).run(
        plan_trial(problem.trainer, keys, trial="0"), watch, 1e9
    )
    return ending_of(done, events)[0]


def test_a_search_finds_the_placement_by_name_and_tries_unlike_gpus_both_ways(tmp_path: Path) -> None:
    """The config lists no knobs; two in three workloads have unlike GPUs."""
    for seed, models in ((0, {None, 1}), (1, {None, 0, 1})):
        one = placed_scenario(seed)
        assert "knobs" not in one.config_text
        (tmp_path / "config.yaml").write_text(one.config_text, encoding="utf-8")
        problem = open_problem(tmp_path / "config.yaml", command=None, state_dir=tmp_path, machine=one.machine)
        knob = problem.space.knob(MODEL_GPU)
        assert knob.paths == (MODEL_GPU, DATA_GPU)
        assert models - {knob.baseline} <= set(knob.choices)
        assert DEPTH in problem.space.baseline


def test_the_trainer_obeys_both_keys(tmp_path: Path) -> None:
    """A pair that is half set, or one GPU named twice, is refused."""
    one = placed_scenario(1)
    assert _ending(one, tmp_path, data_gpu=0, model_gpu=1) is Ending.STOPPED
    assert _ending(one, tmp_path, data_gpu=None, model_gpu=None) is Ending.STOPPED
    assert _ending(one, tmp_path, data_gpu=None, model_gpu=1) is Ending.CRASHED
    assert _ending(one, tmp_path, data_gpu=1, model_gpu=1) is Ending.CRASHED


@pytest.mark.parametrize("seed", range(12))
def test_a_deeper_buffer_helps_where_there_is_one_and_the_faster_gpu_trains(seed: int) -> None:
    """Under one GPU the depth has no effect; which way round is better depends on the two GPUs, and on the features."""
    one = placed_scenario(seed)
    values = one.values(one.config_text)
    assert len({one.speed({**values, MODEL_GPU: None, DEPTH: depth}) for depth in (1, 4, 16)}) == 1
    for model in (0, 1):
        speeds = [one.speed({**values, MODEL_GPU: model, DEPTH: depth}) for depth in (1, 4, 16)]
        assert speeds == sorted(speeds)
    ways = {one.placement_speed(values, model) for model in (0, 1)}
    if one.gpu_speeds[0] == one.gpu_speeds[1]:
        assert len(ways) == 1
    assert one.worst_placement_speed(values) <= one.best_speed(values)


def test_workloads_without_a_placement_are_what_they_were() -> None:
    """The second GPU is used where there is a buffer, as before there was a placement."""
    one = scenario(12)
    assert one.place.hardware.gpus == 2
    values = one.values(one.config_text)
    assert one.speed({**values, DEPTH: 4}) > 0.0
    assert "model_gpu" not in Document.parse(one.config_text).data["data"]


def test_right_is_within_three_percent_of_the_best() -> None:
    """Placement and depth together, and the placement alone; wrong answers are named."""
    done = [
        _search(),
        _search(seed=1, of_best=0.98, gpu_speeds=(1.0, 1.4), worst_of_best=0.95),
        _search(seed=2, of_best=0.96, placement_of_best=0.99, answer=(0, 1), today=(0, 1)),
        _search(seed=3, of_best=0.7, placement_of_best=0.7, answer=(None, 2)),
    ]
    rows = report(done).splitlines()
    assert rows[2].startswith("| all | 4 | 2 | 3 | 0.970, 0.700 |")
    assert rows[3].startswith("| alike GPUs | 3 | 1 | 2 |")
    assert rows[4].startswith("| unlike GPUs | 1 | 1 | 1 |")
    assert rows[5].startswith("| the worst placement is below 0.9 | 3 | 1 | 2 |")
    assert rows[6].startswith("| today's placement is another | 2 | 2 | 2 |")
    assert rows[9:] == [
        "2: data 1, model 0, buffer 1 to data 1, model 0, buffer 1, 0.960 of the best (jitter 0.25, features 0.50)",
        "3: one GPU to one GPU, 0.700 of the best (jitter 0.25, features 0.50)",
    ]


def test_runs_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A workload is searched once, whoever asks again."""
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["bench", "placement", "--seeds", "3", "--budget", "90s", "--out", str(out)])
    assert main() == 0
    first = capsys.readouterr()
    assert "| all | 1 |" in first.out
    assert "1 of 1: 3:" in first.err
    assert main() == 0
    assert capsys.readouterr() == (first.out, "")

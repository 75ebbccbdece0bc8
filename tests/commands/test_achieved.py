"""Claimed and achieved speeds: ``autotune run`` counts real trainings, and the study keeps and compares them."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from autotune.errors import AutotuneError
from autotune.records import Purpose
from autotune.search.answer import Study
from autotune.trainee.pace import Pace
from autotune.trial import python_command
from tests.command_line import CommandLine, Done, project_in, toy

STEPS, EVALUATION_S, EVERY = 20_000, 5.0, 500


@pytest.fixture
def counting(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Project whose real trainings take no time: what the trainer would become is only told."""

    def become(_argv: object, env: Mapping[str, str], _cwd: Path) -> NoReturn:
        raise AutotuneError(env["AUTOTUNE_WATCH_DIR"])

    monkeypatch.setattr(python_command, "exec_program", become)
    return simulated


def train(commands: CommandLine, *, slower: float = 1.0, evaluates: bool = False, is_over: bool = True) -> Path:
    """Train for real with what the config holds now, as its observer would report it.

    Args:
        slower: Times the time of steps that the search has seen.
    """
    folder = Path(commands("run", "--config", "config.yaml").refusal().splitlines()[0].rpartition("autotune: ")[2])
    training = toy(yaml.safe_load((commands.folder / "config.yaml").read_text()))
    pace, t_s = Pace(str(folder), "observer"), 100.0
    for number in range(STEPS):
        t_s += training.step_s * slower
        if evaluates and number % EVERY == EVERY - 1:
            pace.mark("epoch_end")
            pace.mark("eval")
            t_s += EVALUATION_S
        pace.step(t_s, samples=training.samples)
    pace.flush()
    if is_over:
        header = folder / "training.json"
        header.write_text(header.read_text().replace('"boot_id": "', '"boot_id": "before-'))
    return folder


def status(commands: CommandLine, *options: str) -> Done:
    """Ask for the answer."""
    return commands("status", "--config", "config.yaml", *options).well()


def searched(commands: CommandLine) -> float:
    """Search, apply the answer, and return the speed that it claims."""
    commands.search("--same-training").well()
    claimed = status(commands, "--json").document["speedup"]["ratio"]
    commands("apply", "--config", "config.yaml").well()
    return float(claimed)


def test_status_shows_what_was_achieved_beside_what_was_claimed(counting: CommandLine) -> None:
    """A training with today's values, the search, and one with the new ones: their ratio is what was achieved."""
    train(counting)
    claimed = searched(counting)
    assert "Achieved" not in status(counting).stdout
    train(counting)
    said = status(counting).stdout
    assert "Achieved in 1 real training: 2.00x over " in said
    assert "as claimed, " in said
    achieved = status(counting, "--json").document["achieved"]
    assert achieved["steps"] == pytest.approx(2.0, rel=0.01)
    assert achieved["claimed"]["ratio"] == pytest.approx(claimed, rel=1e-3)
    assert [one["is_against_training"] for one in achieved["trainings"]] == [True]
    assert "relative to trainings of today's config" in status(counting, "--details").stdout


def test_evaluations_are_told_apart_from_slower_steps(counting: CommandLine) -> None:
    """Steps are as fast as claimed, and the whole is not: the share of what comes between is said."""
    train(counting, evaluates=True)
    searched(counting)
    train(counting, evaluates=True)
    said, achieved = status(counting).stdout, status(counting, "--json").document["achieved"]
    step_s = toy({"data": {"batch_size": 4, "num_workers": 1}}).step_s
    whole = (EVERY * step_s + EVALUATION_S) / (EVERY * step_s / 2.0 + EVALUATION_S)
    assert (achieved["whole"], achieved["pause_fraction"]) == pytest.approx((whole, 0.625), rel=0.01)
    between = "including the time between steps (63 % of the time is between steps); as claimed"
    assert f", {achieved['whole']:.2f}x {between}" in said
    assert "Whole training, with ends of epochs and evaluations: about 1.4" in said


def test_claims_that_missed_widen_later_intervals(counting: CommandLine) -> None:
    """A training that is slower than claimed is kept with the study, once it is over, and taken into account."""
    searched(counting)
    train(counting, slower=1.5)
    assert "less than claimed" in status(counting).stdout
    assert "intervals of later searches are wider" in status(counting, "--details").stdout
    (counting.folder / "config.yaml").write_text(
        (counting.folder / "config.yaml").read_text().replace("num_workers: 2", "num_workers: 1")
    )
    said = counting.search("--same-training", "--seed", "1").well().stderr
    assert "Earlier claims of this study missed the achieved speed by about" in said
    trials = Study(counting.folder / "config.yaml").trials
    assert sum(trial.purpose is Purpose.TRAINING for trial in trials) == 1
    widened = [trial for trial in trials if trial.conditions.claims_sd]
    assert {trial.purpose for trial in widened} == {Purpose.CONFIRM}


def test_trainings_travel_with_their_study(
    counting: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export holds those that are over, each once; another machine shows them without having trained."""
    searched(counting)
    train(counting)
    train(counting, is_over=False)
    assert "Achieved in 2 real trainings" in status(counting).stdout
    for _ in range(2):
        counting("study", "export", "--config", "config.yaml", str(tmp_path / "study.journal")).well()
    other = project_in(tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    other("study", "import", "--config", "config.yaml", str(tmp_path / "study.journal")).well()
    assert "Achieved in 1 real training: " in status(other).stdout

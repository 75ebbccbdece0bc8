"""Environment in the plan of a trial."""

from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.search.problem import open_problem
from autotune.trial.execution import plan_trial
from autotune.trial.folders import TrialFolder
from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.search.simulated import CONFIG

OUTPUTS = "out: {checkpoint_dir: ckpt, log_dir: logs, result_file: best.txt}\n"


def env(text: str = "") -> dict[str, str]:
    """Return the variables added to the environment of a trial."""
    Path("config.yaml").write_text(CONFIG + text)
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    return dict(plan_trial(problem.trainer, problem.space.keys(problem.space.baseline), trial="r1").env)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Works in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def test_experiment_trackers_are_quiet(tmp_path: Path) -> None:
    """Trackers are turned off, or write into the trial's own folder, which is deleted with the trial."""
    given = env()
    assert given["WANDB_MODE"] == given["SWANLAB_MODE"] == "disabled"
    assert given["CLEARML_OFFLINE_MODE"] == "1"
    for name in ("MLFLOW_TRACKING_URI", "COMET_OFFLINE_DIRECTORY", "NEPTUNE_DATA_DIRECTORY", "NEPTUNE_LOG_DIRECTORY"):
        place = Path(given[name])
        assert place.is_relative_to(tmp_path / ".autotune" / "trials")
        assert place.parent.name == "outputs"


def test_the_user_has_the_last_word() -> None:
    """Variables of the section override our defaults; those of the shell do not."""
    given = env("    env: {WANDB_MODE: online, PYTHONDONTWRITEBYTECODE: ''}\n")
    assert given["WANDB_MODE"] == "online"
    assert given["PYTHONDONTWRITEBYTECODE"] == ""
    assert given["NEPTUNE_MODE"] == "offline"


def test_a_folder_that_is_there_for_the_trainer_is_there_for_its_trials(tmp_path: Path) -> None:
    """Many trainers write into a folder that they do not make; others make theirs, and refuse one that is there."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "last.pt").touch()
    Path("config.yaml").write_text(OUTPUTS + CONFIG)
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    plan = plan_trial(problem.trainer, problem.space.keys(problem.space.baseline), trial="r1")
    problem.trainer.run(SimulatedRunner(VirtualClock(), lambda _: Training()), plan, lambda _: None, 1.0)
    outputs = TrialFolder(plan.folder).outputs
    assert list((outputs / "ckpt").iterdir()) == []
    assert sorted(path.name for path in outputs.iterdir()) == ["ckpt"]

"""Steps of applying: choosing the values of a trial."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.commands.apply_answer import apply_values, changes_of_trial
from autotune.config.typed import TypedOptions
from autotune.errors import ConfigError, TrialError
from autotune.report.console import text_console
from autotune.search.known import changes_from_now
from autotune.search.problem import open_problem
from tests.study.storages import record


@pytest.mark.parametrize(
    ("numbers", "said"),
    [((0,), "the trials 0;"), ((0, 1), "0 to 1;"), ((0, 1, 3), "0 to 1 and 3;"), ((5, 0, 2, 3), "0, 2 to 3 and 5;")],
)
def test_a_trial_that_is_not_there_is_told_which_are(numbers: tuple[int, ...], said: str) -> None:
    """The numbers of a study have gaps: trials that were interrupted have none."""
    trials = tuple(replace(record(), number=number) for number in numbers)
    study: Any = SimpleNamespace(trials=trials, name="s", where="there")
    result: Any = None
    with pytest.raises(TrialError, match="no trial 4") as caught:
        changes_of_trial(study, result, 4, TypedOptions(config=Path("config.yaml"), storage="sqlite:s.db"), force=False)
    assert said in str(caught.value.remedy)
    assert "autotune status --config config.yaml --storage sqlite:s.db" in str(caught.value.remedy)


def test_values_are_not_written_into_a_config_that_became_another_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key besides the knobs was edited while they were searched for: they are of the training that was."""
    monkeypatch.chdir(tmp_path)
    config = Path("config.yaml")
    config.write_text("model: {width: 64}\nbatch_size: 8\nautotune: {knobs: {batch_size: [8, 16]}}\n")
    problem = open_problem(config, command=None, state_dir=None)
    found = changes_from_now(problem, {"batch_size": 16})
    edited = config.read_text().replace("64", "128")
    config.write_text(edited)
    with pytest.raises(ConfigError, match="found for another training"):
        apply_values(problem, found, text_console())
    assert config.read_text() == edited

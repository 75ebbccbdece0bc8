"""``import autotune``: a search and its record, as a library's user has them, in virtual time."""

import re
from functools import partial
from pathlib import Path

import pytest

import autotune
from autotune.search import open as search_open
from tests.command_line import CommandLine

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def library(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make searches of the library those of the simulated project."""
    opened = partial(search_open.open_search, simulator=simulated.simulator)
    monkeypatch.setattr(search_open, "open_search", opened)
    monkeypatch.setattr(search_open, "SystemClock", lambda: simulated.clock)
    monkeypatch.chdir(simulated.folder)


def test_a_search_and_its_study_from_python(capfd: pytest.CaptureFixture[str]) -> None:
    """The answer comes back, nothing is printed, remarks and trials are told as events; the record can be read."""
    seen: list[str] = []
    result = autotune.tune("config.yaml", budget_s=180, on_event=lambda event: seen.append(type(event).__name__))
    study = autotune.Study("config.yaml")
    again = study.answer()
    assert isinstance(result, autotune.SearchResult)
    assert result.baseline is not None
    assert again.baseline is not None
    assert (again.verdict, again.baseline.values) == (result.verdict, result.baseline.values)
    assert result.trials == len(study.trials) == seen.count("TrialEnded")
    assert {seen[0], seen[-1]} <= {"Remark", "SearchStarted", "SearchEnded"}
    assert all(trial.point for trial in study.trials)
    assert capfd.readouterr() == ("", "")


def test_the_examples_of_the_documentation_run(capsys: pytest.CaptureFixture[str]) -> None:
    """One after another as they stand, in the folder of a config with a command."""
    pages = "".join((DOCS / name).read_text() for name in ("library.md", "sampler.md"))
    examples = [block for block in re.findall(r"```python\n(.*?)```", pages, re.DOTALL) if "import autotune" in block]
    assert len(examples) == 4
    exec("\n".join(examples), {})
    assert "amp: yes" in capsys.readouterr().out


def test_what_cannot_be_searched_is_an_error_to_catch() -> None:
    """With its kind and its remedy, before anything is started."""
    with pytest.raises(autotune.ConfigError) as of_config:
        autotune.tune("nothing.yaml", budget_s=5)
    with pytest.raises(autotune.StudyError) as of_study:
        autotune.Study("config.yaml")
    assert [(error.value.kind, bool(error.value.remedy)) for error in (of_config, of_study)] == [
        ("config", True),
        ("study", True),
    ]

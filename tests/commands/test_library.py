"""``import autotune``: a search and its record, as a library's user has them."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path


def test_a_search_and_its_study_from_python(project: Path) -> None:
    """The answer comes back, nothing is printed, remarks and trials are told as events; the record can be read."""
    script = textwrap.dedent(
        """
        import autotune
        seen = []
        result = autotune.tune("config.yaml", budget_s=6, on_event=lambda event: seen.append(type(event).__name__))
        study = autotune.Study("config.yaml")
        again = study.answer()
        assert isinstance(result, autotune.SearchResult)
        assert result.baseline is not None and again.baseline is not None
        assert again.verdict is result.verdict and again.baseline.values == result.baseline.values
        assert result.trials == len(study.trials) == seen.count("TrialEnded")
        assert seen[0] in ("Remark", "SearchStarted") and seen[-1] in ("Remark", "SearchEnded")
        assert all(trial.point for trial in study.trials)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_examples_of_the_documentation_run(project: Path) -> None:
    """One after another as they stand, in the folder of a config with a command."""
    docs = Path(__file__).parents[2] / "docs"
    pages = "".join((docs / name).read_text() for name in ("library.md", "sampler.md"))
    examples = [block for block in re.findall(r"```python\n(.*?)```", pages, re.DOTALL) if "import autotune" in block]
    assert len(examples) == 4
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(examples)],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "amp: yes" in done.stdout


def test_a_config_that_cannot_be_searched_is_an_error_to_catch(project: Path) -> None:
    """With its kind and its remedy, before anything is started."""
    script = textwrap.dedent(
        """
        import autotune
        try:
            autotune.tune("nothing.yaml", budget_s=5)
        except autotune.ConfigError as error:
            print(error.kind, bool(error.remedy))
        try:
            autotune.Study("config.yaml")
        except autotune.StudyError as error:
            print(error.kind, bool(error.remedy))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["config True", "study True"], done.stderr

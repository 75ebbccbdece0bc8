"""Observer: its way into a trainer's process, which it leaves unchanged."""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner
from tests.trainee.conftest import Observed, observe_run

SHOWS = """
import json, os, sys
print(json.dumps({"path": sys.path, "modules": sorted(sys.modules), "env": os.environ.get("PYTHONPATH"),
                  "said": os.environ.get("SAID"), "asserts": __debug__}))
"""


@pytest.fixture
def shows(tmp_path: Path) -> Path:
    """A script that shows what the observer could have changed."""
    path = tmp_path / "shows.py"
    path.write_text(SHOWS)
    return path


def test_the_observer_says_at_once_that_it_is_there(run, shows: Path) -> None:
    """A process that trains nothing has a header, so that "no steps" can be told from "no observer"."""
    seen = run(sys.executable, shows)
    assert [event.kind for event in seen.events] == ["start"]
    (file,) = seen.folder.path.glob("steps.*")
    assert json.loads(file.read_text())["source"] == "observer"


def test_nothing_of_autotune_is_on_the_path(run, shows: Path, tmp_path: Path) -> None:
    """The user's PYTHONPATH is kept; our folder is in the environment only, for processes that are started by this."""
    mine = tmp_path / "my modules"
    mine.mkdir()
    seen = run(sys.executable, shows, PYTHONPATH=str(mine))
    shown = json.loads(seen.stdout)
    assert str(mine) in shown["path"]
    assert not any("inject" in path for path in shown["path"])
    assert "_autotune_trainee.observe" in shown["modules"]
    assert not {"autotune", "tensorflow", "numpy"} & set(shown["modules"])
    assert shown["env"] == os.pathsep.join((str(seen.folder.inject), str(mine)))


@pytest.mark.parametrize("options", [(), ("-O",), ("-OO",), ("-B",)], ids=str)
def test_another_sitecustomize_is_executed(run, shows: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    """The user's own is what it would have been: executed, and known by that name."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text(
        "import os\nos.environ['SAID'] = __name__ + ' of ' + os.path.dirname(__file__)\n"
    )
    seen = run(sys.executable, *options, shows, PYTHONPATH=str(mine))
    shown = json.loads(seen.stdout)
    assert shown["said"] == f"sitecustomize of {mine}"
    assert "sitecustomize" in shown["modules"]
    assert shown["asserts"] is (not options or options == ("-B",))
    assert [event.kind for event in seen.events] == ["start"]


def test_the_error_of_another_sitecustomize_is_the_users(run, shows: Path, tmp_path: Path) -> None:
    """It is told as the interpreter always tells it, and the observer is there all the same."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    seen = run(sys.executable, shows, PYTHONPATH=str(mine))
    assert "Error in sitecustomize" in seen.folder.stderr.read_text()
    assert [event.kind for event in seen.events] == ["start"]


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_interpreter_that_keeps_us_out_is_noticed(run, shows: Path, option: str) -> None:
    """There is no header, which is how it can be told."""
    assert run(sys.executable, option, shows).events == []


def test_a_folder_that_cannot_be_written_is_no_error(run, tmp_path: Path) -> None:
    """A trainer that removes the run's folder, observer and all, trains on."""
    script = tmp_path / "removes.py"
    script.write_text(
        "import os, shutil, subprocess, sys\n"
        "shutil.rmtree(os.path.join(os.environ['AUTOTUNE_TRIAL_DIR'], 'inject'))\n"
        "import json.tool\n"
        "subprocess.run([sys.executable, '-c', 'pass'], check=True)\n"
    )
    assert run(sys.executable, script).folder.stderr.read_text() == ""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """All cases of odd_trainers.py, in forks of one process."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    with Guard() as guard:
        runner = ProcessRunner(guard, SystemClock())
        script = Path(__file__).with_name("odd_trainers.py")
        root = str(Path(__file__).parents[2])
        yield observe_run(runner, tmp_path_factory.mktemp("study") / "run", sys.executable, script, PYTHONPATH=root)


@pytest.mark.parametrize("case", ["reports in fit", "reports in loop", "reports inside"])
def test_a_trainer_that_reports_itself_is_believed(odd: Observed, case: str) -> None:
    """No step is told twice: from the trainer's first word on, the observer's own steps end, and the stream says so."""
    assert [step.samples for step in odd.steps_of(case)] == [100.0] * 6
    assert "start" in [event.kind for event in odd.of(case)]
    (file,) = odd.folder.path.glob(f"steps.{odd.facts[case]['pid']}.*")
    assert '"source": "step"' in file.read_text()


def test_gradients_without_a_tape_are_training(odd: Observed) -> None:
    """``tf.gradients`` in a compiled function."""
    assert len(odd.steps_of("graph gradients")) == 6


def test_functions_in_a_graph_of_tensorflow_1_go_on(odd: Observed) -> None:
    """Their fetches cannot be counted, and are left alone."""
    assert odd.of("a graph of TensorFlow 1") == []


def test_no_broken_part_of_the_observer_breaks_the_trainer(odd: Observed) -> None:
    """Training goes on to its end and nothing is printed, whichever part raises."""
    assert sum("." in case for case in odd.facts) == 7  # each is the name of what is broken
    assert "is broken" not in odd.folder.stderr.read_text()


def test_an_observer_that_keeps_failing_says_so(odd: Observed) -> None:
    """It switches itself off, and notes why."""
    notes = [event.text or "" for event in odd.of("loop.AggregatedSteps.ended") if event.kind == "note"]
    assert any("has switched itself off: RuntimeError: loop.AggregatedSteps.ended is broken" in note for note in notes)


def test_a_trainer_that_can_report_its_steps_says_so_when_it_has_imported_that(run, tmp_path: Path) -> None:
    """Also from a process below the first; its first step may come late."""
    reports = tmp_path / "reports.py"
    reports.write_text("from autotune.trainee import step\n")
    starts = f"import subprocess, sys; subprocess.run([sys.executable, {str(reports)!r}], check=True)"
    root = str(Path(__file__).parents[2])
    for argv in ((reports,), ("-c", starts)):
        seen = run(sys.executable, *argv, PYTHONPATH=root)
        assert [event.kind for event in seen.events if event.kind != "start"] == ["reporter"]

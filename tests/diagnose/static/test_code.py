"""Rules about sources: lines marked with ``# <- rule`` are found, and no others."""

import re
import textwrap
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.config.sources import read_sources
from autotune.diagnose.code_checks import TELLING, check_code, matches
from autotune.diagnose.findings import Diagnosis, DiagnosisVerdict
from autotune.diagnose.subject import Subject
from autotune.diagnose.tables import RULES
from autotune.report.diagnosis import diagnosis_document
from autotune.search.problem import open_problem
from tests.diagnose.static.problems import problem_of

GPU = {"cores": True, "gpu": True}
SOURCES = {path.stem: path.read_text() for path in sorted(Path(__file__).with_name("sources").glob("*.txt"))}
"""Sources of trainers: those called ``slow-…`` have marks, those called ``fine-…`` have none."""


def found_in(folder: Path, sources: dict[str, str], around: dict[str, bool] = GPU) -> set[tuple[str, str]]:
    """Return pairs of place and rule for sources of which the first one is the script."""
    paths = []
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        paths.append(path)
    sources_read = read_sources(paths, folder, (), TELLING)
    assert not sources_read.unread
    return {(place, rule.id) for rule, places in matches(sources_read.code, around) for place in places}


def marked(text: str) -> set[tuple[str, str]]:
    """Return the pairs of place and rule that a source is marked with."""
    lines = enumerate(text.splitlines(), start=1)
    return {(f"train.py:{number}", rule) for number, line in lines for rule in re.findall(r"# <- ([\w-]+)", line)}


@pytest.mark.parametrize("name", SOURCES)
def test_slow_code_is_found_with_its_line_and_fine_code_gives_no_alarm(tmp_path: Path, name: str) -> None:
    """Each marked line, under whatever name things are imported; the fine lines beside them are not found."""
    assert bool(marked(SOURCES[name])) is name.startswith("slow")
    assert found_in(tmp_path, {"train.py": SOURCES[name]}) == marked(SOURCES[name])


def test_every_rule_is_shown_by_a_source() -> None:
    """No rule is in the table that no test has seen find something."""
    assert {rule.id for rule in RULES} == {rule for text in SOURCES.values() for _, rule in marked(text)}


def test_modules_count_as_far_as_the_script_reaches_them(tmp_path: Path) -> None:
    """A loader in a module of the trainer's is found there; its own demonstration under ``__main__`` is not."""
    module = """
        import tensorflow as tf

        def load(x):
            return tf.numpy_function(compute, [x], tf.float32)

        def unused(x):
            return tf.numpy_function(compute, [x], tf.float32)

        if __name__ == "__main__":
            unused(1)
            tf.numpy_function(compute, [1], tf.float32)
        """
    sources = {"train.py": "from data.loading import load\nload(1)\n", "data/loading.py": module}
    assert found_in(tmp_path, sources) == {("data/loading.py:5", "python-in-graph")}


def test_only_maps_with_a_state_are_serial(tmp_path: Path) -> None:
    """TensorFlow makes the others parallel, and puts a prefetch in."""
    text = """
        import tensorflow as tf

        def augment(x):
            return tf.image.random_flip_left_right(x)

        data = tf.data.Dataset.list_files("*").map(tf.io.read_file)
        data = data.map(lambda x: augment(x)).batch(4)
        fit(data)
        """
    assert found_in(tmp_path, {"train.py": text}) == {("train.py:8", "serial-map")}


def test_rules_about_a_gpu_or_cores_are_left_out_where_there_is_none(tmp_path: Path) -> None:
    """A loader without workers is right on one core, and a number costs nothing to fetch without a GPU."""
    small = {"cores": False, "gpu": False}
    rules = {rule for _, rule in found_in(tmp_path, {"train.py": SOURCES["slow-pytorch-loop"]}, small)}
    assert rules == {"anomalies-detected", "loader-restarted", "memory-cleaned"}


def test_a_finding_carries_the_id_of_its_rule(tmp_path: Path) -> None:
    """Scripts tell findings of one check apart by it, also in the JSON object."""
    problem = problem_of(tmp_path, "batch_size: 8\n", trainer=SOURCES["slow-keras-by-hand"])
    result = check_code(Subject(problem=problem, clock=SystemClock()))
    assert {issue.rule for issue in result.issues} == {"eager-by-hand", "checks-every-number"}
    found = Diagnosis(verdict=DiagnosisVerdict(sentence="Not measured."), results=(result,))
    (check,) = diagnosis_document(found, elapsed_s=None, failed_on=None, paths={})["checks"]
    assert {issue["rule"] for issue in check["issues"]} == {"eager-by-hand", "checks-every-number"}


def test_a_module_that_is_installed_is_named_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m package`` is no silence; one that lies below the working directory is read."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text("batch_size: 8\n")
    command = ["python", "-m", "mine.train", "--config", "{config}"]
    look = Subject(problem=open_problem(config, command=command, state_dir=tmp_path / "state"), clock=SystemClock())
    assert check_code(look).why_not == (
        "the module mine.train is not in this directory; installed packages are not read"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text(SOURCES["slow-keras-by-hand"])
    assert check_code(look).issues


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """One that is no Python, one that is no UTF-8, one that is huge and one that is not there; the rest is scanned."""
    files = {name: tmp_path / name for name in ("train.py", "old.py", "latin.py", "huge.py", "gone.py")}
    files["train.py"].write_text("import tensorflow as tf\ntf.numpy_function(f, [], 1)\n")
    files["old.py"].write_text("# py_function\nprint 'hello'\n")
    files["latin.py"].write_bytes(b"# py_function\nname = 'caf\xe9'\n")
    files["huge.py"].write_text("x = 1\n" * 200_000)
    done = read_sources(list(files.values()), tmp_path, (), TELLING)
    assert [place for _, places in matches(done.code, GPU) for place in places] == ["train.py:2"]
    assert [why.split()[0] for why in done.unread] == ["old.py:2", "latin.py:2", "huge.py"]

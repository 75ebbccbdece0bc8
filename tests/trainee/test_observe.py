"""Observer: its way into a trainer's process, which it leaves unchanged."""

import importlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.trainee import step
from scripts.bench.overhead import observed_trainers as trainers
from tests.trainee.conftest import ROOT, Observed

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


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with the user's own modules."""
    folder = tmp_path / "my modules"
    folder.mkdir()
    return folder


def kinds(seen: Observed) -> list[str]:
    """Kinds of the events of a run."""
    return [event.kind for event in seen.events]


def test_the_observer_is_there_and_nothing_of_autotune_is_on_the_path(run, shows: Path, mine: Path) -> None:
    """The user's PYTHONPATH is kept; our folder is in the environment only, for processes that are started by this.

    A process that trains nothing has a header, so that "no steps" can be told from "no observer".
    """
    seen = run(sys.executable, shows, PYTHONPATH=str(mine))
    assert kinds(seen) == ["start"]
    (file,) = seen.folder.path.glob("steps.*")
    assert json.loads(file.read_text())["source"] == "observer"
    shown = json.loads(seen.folder.stdout.read_text())
    assert str(mine) in shown["path"]
    assert not any("inject" in path for path in shown["path"])
    assert "_autotune_trainee.observe" in shown["modules"]
    assert not {"autotune", "tensorflow", "numpy"} & set(shown["modules"])
    assert shown["env"] == os.pathsep.join((str(seen.folder.inject), str(mine)))


@pytest.mark.parametrize("options", [(), ("-OO", "-B")], ids=str)
def test_another_sitecustomize_is_executed(run, shows: Path, mine: Path, options: tuple[str, ...]) -> None:
    """The user's own is what it would have been: executed, and known by that name."""
    said = "import os\nos.environ['SAID'] = __name__ + ' of ' + os.path.dirname(__file__)\n"
    (mine / "sitecustomize.py").write_text(said)
    seen = run(sys.executable, *options, shows, PYTHONPATH=str(mine))
    shown = json.loads(seen.folder.stdout.read_text())
    assert shown["said"] == f"sitecustomize of {mine}"
    assert "sitecustomize" in shown["modules"]
    assert shown["asserts"] is not options
    assert kinds(seen) == ["start"]


def test_the_error_of_another_sitecustomize_is_the_users(run, shows: Path, mine: Path) -> None:
    """It is told as the interpreter always tells it, and the observer is there all the same."""
    (mine / "sitecustomize.py").write_text("raise ValueError('mine')\n")
    seen = run(sys.executable, shows, PYTHONPATH=str(mine))
    assert "Error in sitecustomize" in seen.folder.stderr.read_text()
    assert kinds(seen) == ["start"]


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_interpreter_that_keeps_us_out_is_noticed(run, shows: Path, option: str) -> None:
    """There is no header, which is how it can be told."""
    assert run(sys.executable, option, shows).events == []


def test_a_folder_that_is_removed_is_no_error(run, tmp_path: Path) -> None:
    """A trainer that removes the run's folder, observer and all, trains on."""
    script = tmp_path / "removes.py"
    script.write_text(
        "import os, shutil, subprocess, sys\n"
        "shutil.rmtree(os.path.join(os.environ['AUTOTUNE_TRIAL_DIR'], 'inject'))\n"
        "import json.tool\n"
        "subprocess.run([sys.executable, '-c', 'pass'], check=True)\n"
    )
    assert run(sys.executable, script).folder.stderr.read_text() == ""


def test_a_trainer_that_can_report_its_steps_says_so_when_it_has_imported_that(run, tmp_path: Path) -> None:
    """Also from a process below the first; its first step may come late."""
    reports = tmp_path / "reports.py"
    reports.write_text("from autotune.trainee import step\n")
    starts = f"import subprocess, sys; subprocess.run([sys.executable, {str(reports)!r}], check=True)"
    for argv in ((reports,), ("-c", starts)):
        seen = run(sys.executable, *argv, PYTHONPATH=str(ROOT))
        assert [kind for kind in kinds(seen) if kind != "start"] == ["reporter"]


# Trainers of TensorFlow, in this process.

STEPS = 6


def facts() -> trainers.Facts:
    """A trainer without sleep, with validation and checkpoints."""
    return trainers.Facts(Namespace(steps=STEPS, batch=8, sleep_ms=0.0, pauses=True))


def reports_in_fit(tf: Any) -> None:
    """A callback that reports what ``fit`` does."""
    report = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: step(samples=100) and None)
    trainers.keras_model(tf.keras).fit(trainers.tf_dataset(facts()), verbose=0, callbacks=[report])


def reports_in_loop(tf: Any) -> None:
    """A loop that reports itself."""
    train = tf.function(trainers.tf_step()[0])
    for x, y in trainers.tf_dataset(facts()):
        train(x, y)
        step(samples=100)


def reports_inside(tf: Any) -> None:
    """A loop inside one tf.function, with the line that the observer asks for."""
    train = trainers.tf_step()[0]

    @tf.function
    def whole_pass(dataset: Any) -> None:
        for x, y in dataset:
            train(x, y)
            tf.py_function(lambda: step(samples=100) and None, [], [])

    whole_pass(trainers.tf_dataset(facts()))


@pytest.mark.parametrize("train", [reports_in_fit, reports_in_loop, reports_inside])
def test_a_trainer_that_reports_itself_is_believed(here, tensorflow: Any, train: Callable[[Any], None]) -> None:
    """No step is told twice: from the trainer's first word on, the observer's own steps end, and the stream says so."""
    seen = here(lambda: train(tensorflow))
    assert [event.samples for event in seen.kind("step")] == [100.0] * STEPS
    (file,) = seen.folder.path.glob("steps.*")
    assert '"source": "step"' in file.read_text()


def test_gradients_without_a_tape_are_training(here, tensorflow: Any) -> None:
    """``tf.gradients`` in a compiled function."""
    tf = tensorflow

    def trains() -> None:
        weights = tf.Variable(tf.ones((trainers.WIDTH, 1)))

        @tf.function(reduce_retracing=True)
        def train(x: Any, y: Any) -> None:
            (gradient,) = tf.gradients(tf.reduce_mean(tf.square(x @ weights - y)), [weights])
            weights.assign_sub(0.01 * gradient)

        for x, y in trainers.tf_dataset(facts()):
            train(x, y)

    assert len(here(trains).kind("step")) == STEPS


TRACED = """\
import tensorflow as tf

weights = tf.Variable(tf.random.normal([16, 16]))


@tf.function(input_signature=[tf.TensorSpec([None, 16])])
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(x, weights) ** 2)
    weights.assign_sub(0.001 * tape.gradient(loss, weights))
    return loss


step.get_concrete_function()
"""
RECOMPUTED = """\
import tensorflow as tf

layers = [tf.keras.layers.Dense(16) for _ in range(3)]
for layer in layers:
    layer.build((None, 16))


def step(x):
    with tf.GradientTape() as tape:
        for layer in layers:
            x = tf.recompute_grad(layer)(x)
        loss = tf.reduce_mean(x**2)
    tape.gradient(loss, [one for layer in layers for one in layer.trainable_variables])
"""
LOOP = """
for x in tf.data.Dataset.from_tensor_slices(tf.random.normal([160, 16])).batch(8):
    step(x)
"""


@pytest.mark.parametrize("script", [TRACED, RECOMPUTED], ids=["traced", "recomputed"])
def test_a_step_that_is_traced_beforehand_or_computes_again_is_one(here, script: str) -> None:
    """The first call of a compiled function need not trace it; a gradient may be taken within another one."""
    assert [event.samples for event in here(script + LOOP).kind("step")] == [8.0] * 20


@pytest.mark.parametrize(
    "what",
    [
        *("steps.StepMaker.fetched", "loop.Loop.digest", "steps.StepMaker.take", "loop.AggregatedSteps.ended"),
        *("observe_tensorflow.GraphFetches.take", "stream.Report.flush", "stream.Stream.write"),
    ],
)
def test_no_broken_part_of_the_observer_breaks_the_trainer(
    here, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    """Training goes on to its end and nothing is printed, whichever part raises; one that keeps failing is noted."""
    module, owner, name = what.split(".")

    def breaks(*args: object, **kwargs: object) -> None:
        raise RuntimeError(f"{what} is broken")

    monkeypatch.setattr(getattr(importlib.import_module(f"autotune.trainee.{module}"), owner), name, breaks)

    def trains() -> None:
        trainers.tf_loop(facts(), compiled=True)()
        trainers.tf_next_inside(facts())()
        if owner in ("AggregatedSteps", "GraphFetches", "Stream"):
            trainers.keras_fit(facts(), steps_per_execution=2)()

    notes = [event.text or "" for event in here(trains).kind("note")]
    assert "is broken" not in "".join(capfd.readouterr())
    if owner == "AggregatedSteps":
        assert any(f"has switched itself off: RuntimeError: {what} is broken" in note for note in notes)

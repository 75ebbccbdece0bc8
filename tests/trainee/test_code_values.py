"""Values of the trainer's code, in the calls of real frameworks: what a trial is made with, and what it is not."""

import contextlib
import io
import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.config.code import calls_of_trial, find_arguments
from autotune.records import CALLS_MADE, CODE_VARIABLE, Values
from autotune.trainee.stream import TRIAL_DIR_VARIABLE
from autotune.trial.folders import copy_observer
from tests.trainee.conftest import interpreter_with, observe_here

PIPELINE = """\
import tensorflow as tf


def pipeline():
    data = tf.data.Dataset.range(8).map(lambda x: x + 1)
    return (
        data
        .map(lambda x: 2 * x, num_parallel_calls=2)
        .batch(
            2,
            drop_remainder=True,
        )
    )


def validation():
    return tf.data.Dataset.range(8).map(lambda x: x + 1).batch(2)


def shown(data):
    names = [type(data).__name__.strip("_")]
    while getattr(data, "_input_dataset", None) is not None:
        data = data._input_dataset
        names.append(type(data).__name__.strip("_"))
    return " ".join(reversed(names))


print(shown(pipeline()))
print(shown(validation()))
print([x.numpy().tolist() for x in pipeline()])
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
print(model.steps_per_execution)
train = model.fit
"""

LOADERS = """\
import torch
from torch.utils.data import DataLoader, IterableDataset


class Quick(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


class Statistics:
    def __init__(self, data):
        show(DataLoader(data, 16))


def show(loader):
    print(loader.num_workers, loader.persistent_workers, loader.batch_size)
    return loader


train = show(DataLoader(
    list(show(DataLoader([1, 2], 2))),
    batch_size=4,
))
val_loader = show(DataLoader([1, 2], 8))
show(DataLoader(Stream(), 9))
show(Quick([1, 2])), Statistics([1, 2])
print(torch.get_num_threads())
"""


Printed = tuple[list[str], list[str]]


def run(folder: Path, text: str, values: Values, python: str | None = None) -> Printed:
    """Run a script as a trial of some values; return what it printed, and the calls that were made with them.

    Args:
        python: Interpreter that has its framework; None is this process.
    """
    script, trial = folder / "train.py", folder / f"trial-{len(os.listdir(folder))}"
    script.write_text(text)
    found = find_arguments(["python", "train.py"], folder, ())
    told = calls_of_trial(found, {f"code:train.py:{name}": value for name, value in values.items()})
    if python is None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            observe_here(trial, lambda: runpy.run_path(str(script)), **{CODE_VARIABLE: told})
        printed = out.getvalue()
    else:
        copy_observer(trial / "inject")
        env = {"PYTHONPATH": str(trial / "inject"), TRIAL_DIR_VARIABLE: str(trial), CODE_VARIABLE: told}
        done = subprocess.run(
            [python, script], cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    made = trial / CALLS_MADE
    return printed.splitlines(), sorted(made.read_text().splitlines()) if made.exists() else []


@pytest.mark.usefixtures("tensorflow")
def test_a_pipeline_is_made_with_the_values_of_a_trial(tmp_path: Path) -> None:
    """Its elements are the same, and another pipeline is left alone."""
    parallel = {"5 Dataset.map.num_parallel_calls": 4, "8 Dataset.map.num_parallel_calls": 3}
    values = {**parallel, "12 Dataset.prefetch": 2, "32 Model.compile.steps_per_execution": 8}
    printed, made = run(tmp_path, PIPELINE, {})
    assert printed[:2] == [
        "RangeDataset MapDataset ParallelMapDataset BatchDataset",
        "RangeDataset MapDataset BatchDataset",
    ]
    assert made == []
    changed, made = run(tmp_path, PIPELINE, values)
    assert changed[0] == "RangeDataset ParallelMapDataset ParallelMapDataset BatchDataset PrefetchDataset"
    assert changed[1:3] == printed[1:3]
    assert (printed[3], changed[3]) == ("1", "8")
    assert made == sorted(f"code:train.py:{name}" for name in values)


@pytest.mark.parametrize("written", ["", "tf.config.threading.set_intra_op_parallelism_threads(2)"])
def test_a_setting_is_made_with_the_value_of_a_trial(
    tmp_path: Path, tensorflow: Any, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """Whether the script makes it or not; one that loads nothing itself has no such setting."""
    threads: list[int] = []
    # It can be made only before the first operation, which another test may have launched.
    monkeypatch.setattr(tensorflow.config.threading, "set_intra_op_parallelism_threads", threads.append)
    text = f"import tensorflow as tf\n{written}\n"
    (tmp_path / "train.py").write_text(text)
    assert find_arguments(["python", "train.py"], tmp_path, ()) == {}
    text += "data = tf.data.Dataset.range(4).map(abs)\n"
    name = "2 tf.config.threading.set_intra_op_parallelism_threads"
    assert run(tmp_path, text, {})[1] == []
    assert threads == ([2] if written else [])
    threads.clear()
    assert run(tmp_path, text, {name: 1})[1] == [f"code:train.py:{name}"]
    assert threads == [1]


@pytest.mark.services
def test_a_loader_is_made_with_the_values_of_a_trial(tmp_path: Path) -> None:
    """Not one within its arguments, one of a class of the user's, or one whose data every worker would go over."""
    loader = {"25 DataLoader.num_workers": 2, "25 DataLoader.persistent_workers": True}
    values = {**loader, "3 torch.set_num_threads": 1, "30 DataLoader.num_workers": 3}
    python = interpreter_with("torch")
    others = ["0 False 8", "0 False 9", "0 False 1", "0 False 16"]
    assert run(tmp_path, LOADERS, {}, python)[0][:-1] == ["0 False 2", "0 False 4", *others]
    printed, made = run(tmp_path, LOADERS, values, python)
    assert printed == ["0 False 2", "2 True 4", *others, "1"]
    assert made == sorted(f"code:train.py:{name}" for name in (*loader, "3 torch.set_num_threads"))


ARGUMENTS = """\
from transformers import Seq2SeqTrainingArguments, TrainingArguments

one = TrainingArguments(output_dir="out")
other = Seq2SeqTrainingArguments(
    output_dir="out",
)
print(one.dataloader_num_workers, one.dataloader_persistent_workers, other.dataloader_num_workers)
"""


@pytest.mark.services
def test_the_arguments_of_a_trainer_of_transformers_are_those_of_a_trial(tmp_path: Path) -> None:
    """There the loader is made by the library, and what it is made with stands in the user's code."""
    values = {
        "3 TrainingArguments.dataloader_num_workers": 2,
        "3 TrainingArguments.dataloader_persistent_workers": True,
        "4 Seq2SeqTrainingArguments.dataloader_num_workers": 3,
    }
    python = interpreter_with("torch", "transformers", "accelerate")
    assert run(tmp_path, ARGUMENTS, {}, python) == (["0 False 0"], [])
    printed, made = run(tmp_path, ARGUMENTS, values, python)
    assert printed == ["2 True 3"]
    assert made == sorted(f"code:train.py:{name}" for name in values)

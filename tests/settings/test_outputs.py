"""Which keys are taken for output paths, and where they point in a trial."""

from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.settings.document import Document
from autotune.settings.outputs import find_outputs, redirected_path


def found(text, redirect=(), redirect_except=()):
    """The redirected keys of a config."""
    return find_outputs(Document.parse(text), redirect, redirect_except, "config.yaml", "autotune").redirected


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint_dir",
        "ckpt_dir",
        "log_dir",
        "logdir",
        "output_dir",
        "outdir",
        "save_dir",
        "tensorboard_dir",
        "results_dir",
        "result_path",
        "log_path",
        "ckpt_path",
        "expdir",
        "exp_dir",
        "work_dir",
        "outputDir",
        "saveDir",
        "logging-dir",
        "explicit_log_dir",
        "log_file",
        "model_save_path",
        "tensorboard_logdir",
        "output_folder",
        "checkpoints_dir",
        "run_dir",
        "snapshot_dir",
    ],
)
def test_names_of_outputs(name):
    """The names that trainers give to the places they write to."""
    assert found(f"train:\n  {name}: ./there\n") == (f"train.{name}",)


@pytest.mark.parametrize(
    "line",
    [
        "data_dir: x",
        "catalog_path: x",
        "pretrained_checkpoint_dir: x",
        "resume_ckpt_path: x",
        "init: {checkpoint_path: x}",
        "log_dir: null",
        "log_dir: ''",
        "log_dir: ???",
        "save_dir: true",
        "log_every: x",
        "dialog_file: x",
    ],
)
def test_names_that_are_none(line):
    """Inputs, switches, and outputs that are off stay as they are."""
    assert found(f"{line}\nb: 1\n") == ()


def test_the_user_has_the_last_word():
    """The key redirect adds a key, redirect_except takes one out; the section itself is never looked at."""
    text = "log_dir: a\nplots: b\nautotune: {x_dir: c, save_dir: d}\n"
    assert found(text, redirect=["plots"]) == ("log_dir", "plots")
    assert found(text, redirect_except=["log_dir"]) == ()
    with pytest.raises(ConfigError, match="no such key") as caught:
        found(text, redirect=["plot"])
    assert caught.value.remedy == "Did you mean plots?"


def test_an_output_that_cannot_be_moved_is_told():
    """An alias is left, and an output that the user asked for is an error instead."""
    text = "a: &x out\nsave_dir: *x\nlog_dir: &y out\nb: *y\n"
    outputs = find_outputs(Document.parse(text), [], [], "config.yaml", "autotune")
    assert outputs.redirected == ()
    assert "alias" in outputs.left["log_dir"]
    with pytest.raises(ConfigError, match="alias"):
        found(text, redirect=["log_dir"])


@pytest.mark.parametrize(
    ("value", "moved"),
    [
        ("ckpt", "/run/ckpt"),
        ("./ckpt/", "/run/ckpt/"),
        ("/data/me/ckpt", "/run/data/me/ckpt"),
        ("../../ckpt", "/run/_up/_up/ckpt"),
        ("gs://bucket/ckpt", "/run/gs_/bucket/ckpt"),
        ("~/ckpt/my model.h5", "/run/~/ckpt/my model.h5"),
        ("out/${now:%Y}", "/run/out/__now__Y_"),
        (".", "/run"),
    ],
)
def test_the_tree_is_moved_as_a_whole(value, moved):
    """No path leads out of the run's folder, and paths keep their relation to each other."""
    assert redirected_path(value, Path("/run")) == moved

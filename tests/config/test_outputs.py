"""Detection of output keys, and their paths in a trial."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import outputs as places
from autotune.config.document import Document
from autotune.config.outputs import find_outputs, non_empty_outputs, redirected_path
from autotune.errors import ConfigError


def found(text, redirect=(), redirect_except=()):
    """Return the redirected keys of a config."""
    return find_outputs(Document(text), redirect, redirect_except, "config.yaml", "autotune").redirected


NAMES = (
    "checkpoint_dir ckpt_dir log_dir logdir output_dir outdir save_dir tensorboard_dir results_dir "
    "result_path log_path ckpt_path expdir exp_dir work_dir outputDir saveDir logging-dir "
    "explicit_log_dir log_file model_save_path tensorboard_logdir output_folder checkpoints_dir "
    "run_dir snapshot_dir"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_outputs(name):
    """The names that trainers give to the places they write to."""
    assert found(f"train:\n  {name}: ./there\n") == (f"train.{name}",)


NOT_OUTPUTS = (
    "data_dir: x|catalog_path: x|pretrained_checkpoint_dir: x|train_dumpdir: dump/train/norm|resume_ckpt_path: x|"
    "init: {checkpoint_path: x}|checkpoint: {path: start.ckpt}|data: {path: train/}|results: [a/, b/]|dialog_file: x|"
    "log_dir: null|log_dir: ''|log_dir: ???|save_dir: true|log_every: x|outputs: 4|out: relu|save: best|logs: info|"
    "project: my-speech"
)


@pytest.mark.parametrize("line", NOT_OUTPUTS.split("|"))
def test_names_that_are_none(line):
    """Inputs, switches, and outputs that are off stay as they are."""
    assert found(f"{line}\nb: 1\n") == ()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("project: runs\nname: exp\n", "project"),
        ("project: runs/train\n", "project"),
        ("logging: {dir: logs}\n", "logging.dir"),
        ("hydra: {run: {dir: out}}\n", "hydra.run.dir"),
        ("output: ./out\n", "output"),
        ("output: output\n", "output"),
        ("checkpoints: saved/here\n", "checkpoints"),
        ("save: model.pt\n", "save"),
        ("save_model: toy/run/model\n", "save_model"),
        ("paths: {logs: /var/log/mine}\n", "paths.logs"),
    ],
)
def test_outputs_by_their_section_or_by_a_name_alone(text, key):
    """Sections called after an output, and bare names whose value is a path."""
    assert found(text) == (key,)


@pytest.mark.parametrize(
    ("text", "uploads"),
    [
        ("train: {push_to_hub: true}\n", ("train.push_to_hub",)),
        ("train: {push_to_hub: false}\n", ()),
        ("mlflow: {tracking_uri: 'http://mlflow:5000'}\n", ("mlflow.tracking_uri",)),
        ("mlflow: {tracking_uri: 'sqlite:///runs.db'}\n", ()),
        ("wandb: {mode: online}\n", ("wandb.mode",)),
        ("wandb: {mode: disabled}\n", ()),
        ("upload: no\nmode: online\n", ()),
    ],
)
def test_keys_that_send_something_away_are_named(text, uploads):
    """Uploads that no environment variable can prevent are reported before the first trial."""
    assert find_outputs(Document(text), [], [], "config.yaml", "autotune").uploads == uploads


def test_outputs_that_hold_something_already(tmp_path):
    """A folder with something in it, or a file, in the working directory or beside the config; an empty one is none."""
    for folder in ("here/full", "here/empty", "there/late"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "here/full/model.ckpt").touch()
    (tmp_path / "there/late/x").touch()
    (tmp_path / "here/run.log").touch()
    keys = {"a": "full", "b": "empty", "c": "none", "d": "run.log", "e": "late", "f": str(tmp_path / "here/full")}
    document = Document("".join(f"{key}: {value}\n" for key, value in keys.items()))
    assert non_empty_outputs(document, keys, tmp_path / "here", tmp_path / "there") == ("a", "d", "e", "f")


def test_the_user_has_the_last_word():
    """The key redirect adds a key, redirect_except takes one out; the section itself is never looked at."""
    text = "log_dir: a\nplots: b\nautotune: {x_dir: c, save_dir: d}\n"
    assert found(text, redirect=["plots"]) == ("log_dir", "plots")
    assert found(text, redirect_except=["log_dir"]) == ()
    with pytest.raises(ConfigError, match=r"(?s)no such key.*Did you mean plots\?"):
        found(text, redirect=["plot"])


def test_an_output_that_cannot_be_moved_is_told():
    """An alias is left, and an output that the user asked for is an error instead."""
    text = "a: &x out\nsave_dir: *x\nlog_dir: &y out\nb: *y\n"
    outputs = find_outputs(Document(text), [], [], "config.yaml", "autotune")
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
    """No path leads out of the trial's folder, and paths keep their relation to each other."""
    assert redirected_path(value, Path("/run")) == moved


@given(text=st.text(st.characters()))
def test_no_text_can_fail(text):
    """Whatever a config holds, surrogates among it: asking the file system about it cannot fail."""
    if (named := places.path_of(text, Path("/nowhere"))) is not None:
        places.exists(named)
        places.real_path(named)
        places.is_non_empty(named)

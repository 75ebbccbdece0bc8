"""Composition of Hydra configs, and the values in it; the expected results are those of Hydra 1.3."""

import json
import shlex
import textwrap
from pathlib import Path

import pytest

from autotune.config.apply import plan_edit
from autotune.config.load import Settings, load_settings
from autotune.errors import ConfigError

SCRIPT = 'import hydra\n@hydra.main(version_base=None, config_path="conf", config_name="config")\ndef main(cfg): ...\n'
FILES = {
    "config.yaml": """\
        # primary
        defaults:
          - data: small
          - model: mlp
          - optim: sgd
          - extra: null
          - optional local: default
          - _self_
        root: /data
        paths:
          log_dir: ${root}/logs
          output_dir: ${hydra:runtime.output_dir}
          ckpt_dir: ${paths.output_dir}/ckpt
        optim:
          lr: 0.5  # beats the group's
        """,
    "data/small.yaml": "batch_size: 4  # why\nworkers: 1\nsizes: [1, 2]\ntag: small\n",
    "data/large.yaml": "defaults:\n  - small\n  - _self_\n\nbatch_size: 64\nsizes: [3]\n",
    "model/mlp.yaml": "defaults:\n  - layers: two\n\ncompile: false\n",
    "model/layers/two.yaml": "n: 2\n",
    "optim/sgd.yaml": "lr: 0.1\nmomentum: 0.9\n",
    "extra/empty.yaml": "# nothing\n",
    "extra/big.yaml": "# @package _global_\ndefaults:\n  - override /data: large\n\noptim:\n  momentum: 0.5\nseed: 1\n",
    "extra/there.yaml": "# @package model.sub\nx: 1\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a Hydra trainer, in which commands are typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    for name, text in FILES.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(textwrap.dedent(text))
    return tmp_path


def load(project: Path, *words: str, section: str = "") -> Settings:
    """Load the config with a command in its section."""
    command = shlex.join(("python", "train.py", *words))
    (project / "conf" / "config.autotune.yaml").write_text(f"command: {json.dumps(command)}\n{section}")
    return load_settings(project / "conf" / "config.yaml")


def some(settings: Settings, *names: str) -> list[object]:
    """Return some values."""
    return [settings.scalars.get(name) for name in names]


NAMES = ("data.batch_size", "data.workers", "optim.lr", "optim.momentum", "model.layers.n", "seed", "model.sub.x")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((), [4, 1, 0.5, 0.9, 2, None, None]),
        (("data=large",), [64, 1, 0.5, 0.9, 2, None, None]),
        (("extra=big",), [64, 1, 0.5, 0.5, 2, 1, None]),
        (("extra=big", "data=small"), [4, 1, 0.5, 0.5, 2, 1, None]),
        (("extra=there",), [4, 1, 0.5, 0.9, 2, None, 1]),
        (("extra=empty",), [4, 1, 0.5, 0.9, 2, None, None]),
        (("~model",), [4, 1, 0.5, 0.9, None, None, None]),
        (("hydra/launcher=basic", "hydra.run.dir=x"), [4, 1, 0.5, 0.9, 2, None, None]),
    ],
)
def test_values_are_those_that_hydra_composes(project: Path, words: tuple[str, ...], values: list[object]):
    """Groups, nested defaults, packages, overrides of groups, and choices on the command line."""
    settings = load(project, *words)
    assert some(settings, *NAMES) == values
    assert "defaults.0.data" not in settings.scalars


def test_lists_are_replaced_whole(project: Path):
    """Their items are no knobs: an override of one would be one of the list."""
    settings = load(project, "data=large")
    assert some(settings, "data.sizes.0", "data.sizes.1") == [3, None]
    assert "list" in settings.refused["data.sizes.0"]


def test_trials_get_their_values_as_overrides(project: Path):
    """Quoted where they have to be, with the outputs that do not follow Hydra's folder; no file is copied."""
    settings = load(project, "extra=empty", "--config-name", "config", section="set: {data.tag: '16'}\n")
    outputs = Path("/a b")
    assert settings.redirected(settings.command) == ("paths.log_dir", "hydra.run.dir", "hydra.sweep.dir")
    words = settings.overrides({"data.batch_size": 32, "optim.lr": 0.5, "model.compile": True}, outputs)
    assert words == ("data.tag='16'", "data.batch_size=32", "model.compile=true", "paths.log_dir='/a b/__root_/logs'")
    (copy,) = settings.copies({"data.batch_size": 32}, Path("/t"), outputs).values()
    assert copy.path == Path("/t/overrides.yaml")
    assert "- 'data.batch_size=32'\n" in copy.text
    argv = settings.argv(config=copy.path, config_text=copy.text, python="p", outputs=outputs, added=words)
    runs = ("hydra.run.dir='/a b/hydra'", "hydra.sweep.dir='/a b/hydra'")
    assert argv == ("python", "train.py", "extra=empty", *words, *runs, "--config-name", "config")
    real = settings.argv(config=copy.path, config_text=settings.trial_document.text, python="p")
    assert real == ("python", "train.py", "extra=empty", "--config-name", "config")


def test_values_go_into_the_file_that_they_come_from(project: Path):
    """Into the group's, or the primary one's where that has the last word."""
    (project / "conf" / "data" / "large.yaml").unlink()
    settings = load(project)
    edits = settings.edits({"data.workers": 8, "optim.lr": 0.25, "optim.momentum": 0.5, "data.batch_size": 4})
    new = {file.relative_to(project / "conf").as_posix(): plan_edit(file, values).new for file, values in edits.items()}
    assert new == {
        "config.yaml": textwrap.dedent(FILES["config.yaml"]).replace("lr: 0.5", "lr: 0.25"),
        "data/small.yaml": FILES["data/small.yaml"].replace("workers: 1", "workers: 8"),
        "optim/sgd.yaml": FILES["optim/sgd.yaml"].replace("0.9", "0.5"),
    }
    assert {path.name for path in settings.paths} >= {"config.yaml", "small.yaml", "sgd.yaml"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("eval.yaml", "defaults:\n  - data: small\n"),
        ("experiment/a.yaml", "# @package _global_\ndefaults:\n  - override /data: small\n"),
        ("eval.yaml", "defaults:\n  - data: ${x}\n"),
        ("eval.yaml", "defaults: [\n"),
    ],
)
def test_a_file_that_other_configs_use_is_not_written(project: Path, name: str, text: str):
    """They would change too; the remedy is what to type."""
    (project / "conf" / "data" / "large.yaml").unlink()  # which names data/small as well
    settings = load(project)
    values = {"data.batch_size": 8}
    assert [path.name for path in settings.edits(values)] == ["small.yaml"]
    (project / "conf" / name).parent.mkdir(exist_ok=True)
    (project / "conf" / name).write_text(text)
    with pytest.raises(ConfigError, match="also uses; nothing was written") as caught:
        settings.edits(values)
    assert "data.batch_size=8" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "text", "words", "why"),
    [
        ("config.yaml", "defaults:\n  - data: none\n", (), "does not exist"),
        ("config.yaml", "defaults:\n  - data: ${x}\n", (), "not supported"),
        ("config.yaml", "defaults:\n  - data: ???\n", (), "not supported"),
        ("config.yaml", "defaults:\n  - data: ../../etc/passwd\n", (), "not supported"),
        ("config.yaml", "defaults:\n  - {a: b, c: d}\n", (), "not supported"),
        ("config.yaml", "defaults:\n  - config\n", (), "more than 200 files, or includes itself"),
        ("data/small.yaml", "x: [\n", (), "small"),
        ("config.yaml", FILES["config.yaml"], ("data=small,large",), "several configs"),
        ("extra/big.yaml", "defaults:\n  - override /data: large\n", ("extra=big",), "no defaults list has the group"),
        ("extra/big.yaml", "# @package _group_\nx: 1\n", ("extra=big",), "depends on the version of Hydra"),
        ("data/large.yaml", "x: 1\n", ("model/optim=adam",), "no defaults list has the group model/optim"),
    ],
)
def test_what_cannot_be_composed_is_refused(project: Path, name: str, text: str, words: tuple[str, ...], why: str):
    """A file that is not known could set any key; nor a choice that Hydra, or one of its versions, refuses."""
    (project / "conf" / "model" / "optim").mkdir()
    (project / "conf" / name).write_text(textwrap.dedent(text))
    with pytest.raises(ConfigError) as caught:
        load(project, *words)
    assert why in f"{caught.value}"


def test_a_link_out_of_the_folder_is_not_followed(project: Path):
    """A name in a defaults list leads to configs only."""
    (project / "secret.yaml").write_text("token: x\n")
    (project / "conf" / "data" / "link.yaml").symlink_to(project / "secret.yaml")
    with pytest.raises(ConfigError, match="does not exist"):
        load(project, "data=link")


def test_another_config_than_the_scripts_is_refused(project: Path):
    """Its values would not reach the trainer; named in the command it is the one."""
    other = project / "conf" / "other.yaml"
    other.write_text("defaults:\n  - data: large\n")
    section = project / "conf" / "other.autotune.yaml"
    section.write_text("command: python train.py\n")
    with pytest.raises(ConfigError, match="the script composes config"):
        load_settings(other)
    section.write_text("command: python train.py --config-name=other\n")
    assert load_settings(other).scalars["data.batch_size"] == 64

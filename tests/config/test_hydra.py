"""Hydra trainers and the overrides on their command line."""

from pathlib import Path

import pytest

from autotune.config.hydra import hydra_main, hydra_text, uses_hydra, with_run_folder
from autotune.config.sources import find_script

WORDS = ("python", "train.py")


@pytest.mark.parametrize(
    "text",
    [
        'import hydra\n@hydra.main(config_path="conf", config_name="train.yaml")\ndef main(cfg): ...\n',
        'from hydra import main as start\n@start(config_path="conf", config_name="train")\ndef main(cfg): ...\n',
        'import hydra\nhydra.main("x", config_path="conf", config_name="train")(print)()\n',
        'from nemo.core.config import hydra_runner as go\n@go(config_path="conf", config_name="train")\ndef f(): ...\n',
    ],
)
def test_a_hydra_script_tells_its_configs(tmp_path: Path, text: str):
    """However the decorator is imported; the folder is beside the script."""
    (tmp_path / "train.py").write_text(text)
    found = hydra_main(find_script(WORDS, tmp_path))
    assert found is not None
    assert (found.config_folder, found.config_name) == (tmp_path / "conf", "train")


@pytest.mark.parametrize(
    "text",
    [
        "from hydra.utils import instantiate\n",  # with a command line of its own
        "from hydra import compose, initialize\n",
        "import hydrant\nhydrant.main()\n",
        "# hydra.main\n",
    ],
)
def test_other_users_of_hydra_take_no_overrides(tmp_path: Path, text: str):
    """An override would be a word too many for them."""
    (tmp_path / "train.py").write_text(text)
    assert not uses_hydra(WORDS, tmp_path)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/runs/a-1.b", "/runs/a-1.b"),
        ("/my runs", "'/my runs'"),
        ("/a=b,c", "'/a=b,c'"),
        ("/it's", "'/it\\'s'"),
        ("/a\\'b\\", "'/a\\\\\\'b\\\\'"),
        ("/é", "'/é'"),
        ("/${x}", "'/\\${x}'"),
    ],
)
def test_texts_are_quoted_as_hydra_reads_them(text: str, written: str):
    """Each was read back by Hydra 1.3."""
    assert hydra_text(text) == written


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train.py", "train.py {run} {sweep}"),
        ("python train.py a=1 -m", "python train.py a=1 {run} {sweep} -m"),
        ("python train.py --config-name x", "python train.py --config-name x {run} {sweep}"),
        ("python train.py ~db a/b=c -cn x", "python train.py ~db a/b=c {run} {sweep} -cn x"),
        ("torchrun -n=2 train.py a=1", "torchrun -n=2 train.py a=1 {run} {sweep}"),
        ("train.py hydra.run.dir=out a=1 ++hydra.sweep.dir=x", "train.py a=1 {run} {sweep}"),
    ],
)
def test_trials_get_a_run_folder_of_their_own(words: str, told: str):
    """It stands with the other overrides, behind which argparse takes no more, and in the place of the user's."""
    argv = with_run_folder(words.split(), Path("/t/out"))
    assert argv == tuple(told.format(run="hydra.run.dir=/t/out", sweep="hydra.sweep.dir=/t/out").split())

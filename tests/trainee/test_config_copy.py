"""A trainer that opens its config by a name of its own: the trial's copy in each way that Python opens a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.records import CONFIGS_OPENED, CONFIGS_VARIABLE
from autotune.trainee import code_values
from autotune.trainee.stream import TRIAL_DIR_VARIABLE
from autotune.trial.folders import copy_observer

READS = (
    "open('config.yaml').read()",
    "open(pathlib.Path(__file__).with_name('config.yaml'), 'rb').read().decode()",
    "pathlib.Path('./config.yaml').read_text()",
    "io.open(os.path.abspath('config.yaml'), encoding='utf-8').read()",
    "codecs.open('config.yaml').read()",
    "open('linked.yaml').read()",
    "Holder().opened('config.yaml').read()",
    "pickle.loads(pickle.dumps(open))(file='config.yaml', mode='r').read()",
)


def run(folder: Path, text: str) -> str:
    """Run a script as a trial whose config is a link; return what it printed."""
    (folder / "train.py").write_text(text)
    (folder / "config.yaml").write_text("the user's")
    (folder / "linked.yaml").symlink_to("config.yaml")
    (folder / "copy.yaml").write_text("the copy")
    copy_observer(folder / "inject")
    copies = json.dumps({str(folder / "linked.yaml"): str(folder / "copy.yaml")})
    told = {"PYTHONPATH": str(folder / "inject"), TRIAL_DIR_VARIABLE: str(folder), CONFIGS_VARIABLE: copies}
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **told}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("read", READS)
def test_the_copy_is_read_in_its_place(tmp_path: Path, read: str) -> None:
    """By any path that leads to the user's file; that it was is noted."""
    text = f"import codecs, copy, io, os, pathlib, pickle\nclass Holder: opened = copy.deepcopy(open)\nprint({read})\n"
    assert run(tmp_path, text) == "the copy"
    assert (tmp_path / CONFIGS_OPENED).exists()


def test_other_files_stay(tmp_path: Path) -> None:
    """One of that name elsewhere, and a descriptor; what `open` refuses it still refuses."""
    text = (
        "import os\n"
        "os.mkdir('other')\n"
        "open('other/config.yaml', 'w').write('another')\n"
        "print(open('other/config.yaml').read(), open(os.open('train.py', os.O_RDONLY)).readline())\n"
        "try: open('config.yaml', 'no mode')\n"
        "except ValueError: pass\n"
    )
    assert run(tmp_path, text) == "another import os"


def test_what_is_written_there_is_in_the_copy(tmp_path: Path) -> None:
    """A trainer that reads its config and writes it back would leave a trial's values in the user's."""
    assert run(tmp_path, "text = open('config.yaml').read()\nopen('config.yaml', 'w').write(text + ', longer')\n") == ""
    assert (tmp_path / "config.yaml").read_text() == "the user's"
    assert (tmp_path / "copy.yaml").read_text() == "the copy, longer"


def test_both_sides_know_the_same_names() -> None:
    """What runs in a trainer imports nothing of the host."""
    assert (code_values.CONFIGS_VARIABLE, code_values.OPENED) == (CONFIGS_VARIABLE, CONFIGS_OPENED)

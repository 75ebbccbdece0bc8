"""Search for the script that a command starts."""

from pathlib import Path

import pytest

from autotune.config.command import find_script, own_words


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (("python", "-u", "train.py", "--a"), ("--a",)),
        (("torchrun", "--nproc_per_node=2", "sub/train.py", "a=1"), ("a=1",)),
        (("python", "-m", "pkg.train", "a=1"), ("a=1",)),
        (("./train", "a=1"), ("a=1",)),
        ((), ()),
    ],
)
def test_own_words_stand_behind_the_script(words: tuple[str, ...], own: tuple[str, ...]):
    """Words in front of it are for the launcher."""
    assert words[own_words(words) :] == own


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("train.py", ("python", "train.py")),
        ("pkg/train.py", ("python", "-m", "pkg.train")),
        ("pkg/__main__.py", ("torchrun", "-m", "pkg")),
        ("src/pkg/train.py", ("python", "-m", "pkg.train")),
    ],
)
def test_scripts_and_modules_are_found(tmp_path: Path, file: str, words: tuple[str, ...]):
    """As the interpreter would find them from the folder of the command."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from hydra.utils import instantiate as make\nimport a.b\nimport c.d as e\n")
    script = find_script(words, tmp_path)
    assert script.path == path
    assert script.imported == {"make": "hydra.utils.instantiate", "a": "a", "e": "c.d"}
    assert script.imports("hydra")
    assert not script.imports("instantiate")

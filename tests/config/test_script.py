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


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("bash", "run.sh"), "train.py"),
        (("./run.sh", "config.yaml"), "train.py"),
        (("sh", "-c", "exec python train.py --config $0", "config.yaml"), "train.py"),
        (("/bin/bash", "-ec", "echo hi\npython train.py"), "train.py"),
        (("make", "-s", "train"), "train.py"),
        (("make", "lint"), None),
        (("python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py"), "train.py"),
    ],
)
def test_what_a_shell_script_or_a_makefile_starts_is_found(
    tmp_path: Path, words: tuple[str, ...], found: str | None
) -> None:
    """The first Python script of its lines; comments, variables and other targets are no matter."""
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "run.sh").write_text('set -e\n# python other.py\nexec "$PYTHON" \\\n  train.py --config "$1"\n')
    (tmp_path / "Makefile").write_text("lint:\n\truff check\n\ntrain: data\n\t@echo hi\n\t$(PY) train.py -e 1\n")
    path = find_script(words, tmp_path).path
    assert (path.name if path else None) == found

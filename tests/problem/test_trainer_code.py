"""Code of trainers: what makes two machines' code the same, and what is said where it is not."""

import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.problem.trainer_code import CHANGED, COMMIT, FILES, trainer_code, why_code_differs

WORDS = ("python", "-u", "train.py", "--config", "{config}")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Trainer that imports modules from beside it, and some that are not its own."""
    folder = tmp_path / "here"
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text("import os\nimport loader\nfrom models import tts\nfrom models.parts import a\n")
    (folder / "loader.py").write_text("import numpy\n")
    (folder / "models" / "__init__.py").write_text("")
    (folder / "models" / "tts.py").write_text("from . import layers\nfrom .. import nothing\n")
    (folder / "models" / "layers.py").write_text("")
    (folder / "unrelated.py").write_text("")
    (folder / "config.yaml").write_text("batch_size: 4\n")
    return folder


def copy(folder: Path, name: str) -> Path:
    """Return a copy of a project in another place, as another machine would have it."""
    return shutil.copytree(folder, folder.with_name(name))


def differs(here: Path, there: Path) -> str | None:
    """Return what differs between two projects."""
    first, second = (trainer_code(WORDS, one, [one / "config.yaml"]) for one in (here, there))
    assert why_code_differs(first, first) is None
    return why_code_differs(first, second)


def commit(folder: Path, message: str) -> None:
    """Commit all files of a project, which becomes one of git's if it is none."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-C", str(folder))
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", message)):
        subprocess.run([*git, *words], check=True, stdin=subprocess.DEVNULL)


def test_without_git_the_imported_modules_count(here: Path) -> None:
    """A copy is the same; an edit of the script, or of a module that it imports however deep, is not."""
    assert trainer_code(WORDS, here)[COMMIT] is None
    there = copy(here, "there")
    (there / "unrelated.py").write_text("x = 1\n")
    (there / "config.yaml").write_text("batch_size: 8\n")
    assert differs(here, there) is None
    for name in ("train.py", "loader.py", "models/__init__.py", "models/tts.py", "models/layers.py"):
        other = copy(here, f"other {name.replace('/', ' ')}")
        (other / name).write_text(f"{(other / name).read_text()}x = 1\n")
        assert "is not the same" in (differs(here, other) or ""), name


def test_with_git_commits_are_compared(here: Path) -> None:
    """Another commit is named with the first eight digits of both."""
    commit(here, "first")
    there = copy(here, "there")
    assert differs(here, there) is None
    (there / "loader.py").write_text("x = 1\n")
    commit(there, "second")
    commits = [str(trainer_code(WORDS, one)[COMMIT])[:8] for one in (here, there)]
    assert differs(here, there) == f"the trainer's project is at commit {commits[0]} here, at {commits[1]} there"


def test_changes_that_are_not_committed_are_compared(here: Path) -> None:
    """The same changes are the same code, other ones are named; those of the config do not count."""
    commit(here, "first")
    there = copy(here, "there")
    (there / "config.yaml").write_text("batch_size: 8\n")
    (there / "notes.txt").write_text("git does not know this file")
    assert differs(here, there) is None
    (there / "loader.py").write_text("x = 1\n")
    assert differs(here, there) == (
        "the trainer's project has other changes that are not committed (nothing here, loader.py there)"
    )
    (here / "loader.py").write_text("x = 1\n")
    assert differs(here, there) is None


def test_a_script_that_git_does_not_know_counts(here: Path) -> None:
    """Its commit says nothing about it."""
    script = here / "train.py"
    text = script.read_text()
    script.unlink()
    commit(here, "first")
    there = copy(here, "there")
    script.write_text(text)
    (there / "train.py").write_text("other = 1\n")
    assert "train.py here, train.py there" in (differs(here, there) or "")


def test_a_checkout_and_a_copy_without_git_may_be_the_same(here: Path) -> None:
    """The files decide where one of the machines has no git."""
    there = copy(here, "there")
    commit(here, "first")
    assert differs(here, there) is None
    (there / "loader.py").write_text("x = 1\n")
    assert "is not the same" in (differs(here, there) or "")


def test_names_in_a_state_are_plain_text(here: Path) -> None:
    """Names of files may hold anything, and are shown on other machines."""
    odd = here / "a\x1b[31m\nb.py"
    odd.write_text("")
    commit(here, "first")
    odd.write_text("x = 1\n")
    shown = str(trainer_code(WORDS, here)[CHANGED])
    assert shown.isprintable()
    assert "\\x1b" in shown


def test_a_command_without_a_python_script_has_no_files(here: Path) -> None:
    """Nothing is said to differ where nothing is known."""
    state = trainer_code(("./train.sh",), here)
    assert state[FILES] is None
    assert why_code_differs(state, trainer_code(WORDS, here)) is None


def test_odd_sources_do_not_stop_it(here: Path) -> None:
    """A script that is no Python, modules that import each other, and hundreds of them."""
    (here / "loader.py").write_text("import train\nimport loader\nfrom ..... import x\n")
    (here / "models" / "tts.py").write_bytes(b"\x00 no python \xff")
    assert trainer_code(WORDS, here)[FILES]
    (here / "train.py").write_text("".join(f"import m{number}\n" for number in range(900)))
    for number in range(900):
        (here / f"m{number}.py").write_text("")
    assert trainer_code(WORDS, here)[FILES]

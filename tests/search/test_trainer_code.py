"""Code of trainers: what makes code the same, and what is said where it is not."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from autotune.search.trainer_code import TrainerCode, why_code_differs

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


def code(folder: Path, words: tuple[str, ...] = WORDS) -> TrainerCode:
    """Return the code that a command starts in a folder."""
    return TrainerCode(words, folder, [folder / "config.yaml", folder / ".autotune"])


NAMES = ("loader.py", "models/__init__.py", "models/layers.py", "models/tts.py", "train.py")


def test_a_copy_is_the_same_and_an_edit_of_any_module_that_it_imports_is_not(here: Path) -> None:
    """Also on another machine, which is told the names; what it does not import and its config do not count."""
    digests = code(here).digests()
    assert tuple(sorted(digests)) == NAMES
    there = copy(here, "there")
    (there / "unrelated.py").write_text("x = 1\n")
    (there / "config.yaml").write_text("batch_size: 8\n")
    assert code(there).changed(digests) == ()
    assert why_code_differs(code(here).facts(), code(there).facts()) is None
    for name in NAMES:
        other = copy(here, f"other {name.replace('/', ' ')}")
        (other / name).write_text(f"{(other / name).read_text()}x = 1\n")
        assert code(other).changed(digests) == (name,)
        assert why_code_differs(code(here).facts(), code(other).facts()) == f"{name} is not the same there"


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("x = 1\n", "# why\nx  =  1   # because\n\n\n", True),
        ("if a:\n    b()\n", "if a:\n  # two spaces\n  b()\n", True),
        ("x = (1, 2)\n", "x = (\n    1,\n    2,\n)\n", True),
        ("x = 1\n", "x = 1.0\n", False),
        ("x = 1\n", "x = True\n", False),
        ("x = 'a'\n", "x = b'a'\n", False),
        ("x = a + b\n", "x = b + a\n", False),
        ("def f():\n    'doc'\n", "def f():\n    'another doc'\n", False),  # some programs read theirs
        ("print 1\n", "print 1  # no Python of today: its bytes count\n", False),
    ],
)
def test_comments_and_layout_do_not_count(here: Path, before: str, after: str, is_same: bool) -> None:
    """A file is what it means."""
    (here / "loader.py").write_text(before)
    digests = code(here).digests()
    (here / "loader.py").write_text(after)
    assert (code(here).changed(digests) == ()) is is_same


def test_a_file_that_is_gone_has_changed(here: Path) -> None:
    """So has one whose trial was of a project that is not here at all."""
    digests = code(here).digests()
    (here / "models" / "layers.py").unlink()
    assert code(here).changed(digests) == ("models/layers.py",)
    empty = here.with_name("empty")
    empty.mkdir()
    assert code(empty).changed(digests) == NAMES
    assert code(empty).digests() == {}


def test_files_that_a_trial_reports_count_if_they_are_the_projects(here: Path, tmp_path: Path) -> None:
    """What no import statement shows counts by the trial's report; installed packages and others' files do not."""
    own, state = here / "unrelated.py", here / ".autotune" / "trials" / "config.py"
    installed = here / ".venv" / "lib" / "own.py"
    vendored = here / "site-packages" / "package.py"
    others = (state, installed, vendored, tmp_path / "other.py")
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    (here / ".venv" / "pyvenv.cfg").write_text("")
    digests = code(here).digests([str(own), *map(str, others), "/nowhere.py", "", "\0"])
    assert set(digests) - set(NAMES) == {"unrelated.py"}
    assert code(here).changed(digests) == ()
    own.write_text("x = 2\n")
    assert code(here).changed(digests) == ("unrelated.py",)


@pytest.mark.parametrize("place", [".", "tmp", "tmp/autotune-0-1", "build", ".cache", "__pycache__", "kept", "conda"])
def test_files_that_a_trial_generates_are_not_the_trainers_code(
    here: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in TMPDIR, caches, build folders and environments never; elsewhere those newer than the trial's start."""
    monkeypatch.setattr(tempfile, "tempdir", str(here / "tmp"))
    (here / "kept").mkdir()
    (here / "kept" / "CACHEDIR.TAG").touch()
    (here / "conda" / "conda-meta").mkdir(parents=True)
    path = here / place / "generated.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n")
    written_s = path.stat().st_mtime
    assert set(code(here).digests([str(path)], before_s=written_s)) == set(NAMES)
    is_own = place == "."
    assert ("generated.py" in code(here).digests([str(path)], before_s=written_s + 1)) is is_own


def test_names_from_elsewhere_are_looked_up_in_the_project_only(here: Path, tmp_path: Path) -> None:
    """A record may come from anywhere: a name that leads out of the project is a file that is not there."""
    (tmp_path / "secret.py").write_text("x = 1\n")
    (here / "link.py").symlink_to(tmp_path / "secret.py")
    digest = code(here).digests()["loader.py"]
    for name in ("../secret.py", str(tmp_path / "secret.py"), "link.py", "/dev/zero", "\0.py", "", "a" * 5000):
        assert code(here).changed({name: digest}) == (name,)


def test_a_project_that_moved_or_is_reached_through_a_link_is_the_same(here: Path) -> None:
    """Names are relative to the folder that the command starts in."""
    digests = code(here).digests()
    link = here.with_name("link")
    link.symlink_to(here)
    assert code(link).digests() == digests
    assert code(link).digests([str(here / "unrelated.py")]).keys() == {*NAMES, "unrelated.py"}
    moved = here.with_name("moved")
    os.rename(here, moved)
    assert code(moved).digests() == digests


def test_a_trainer_outside_of_the_project_is_named_by_its_own_folder(here: Path) -> None:
    """Its name does not change when the project moves; without the command nothing can be said of it."""
    project = here.with_name("configs only")
    project.mkdir()
    words = ("python", str(here / "train.py"), "{config}")
    digests = code(project, words).digests()
    assert set(digests) == {f"(script)/{name}" for name in NAMES}
    deeper = here / "configs" / "deeper"
    deeper.mkdir(parents=True)
    assert code(deeper, words).changed(digests) == ()
    assert code(project, ()).changed(digests) == ()
    (here / "loader.py").write_text("x = 1\n")
    assert code(project, words).changed(digests) == ("(script)/loader.py",)


def test_modules_of_a_src_layout_and_scripts_around_a_trainer_count(here: Path) -> None:
    """``python -m package.train``, and a shell script that starts the trainer."""
    package = here / "src" / "speech"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text("from speech.model import Model\nfrom . import data\n")
    (package / "model.py").write_text("")
    (package / "data.py").write_text("")
    names = code(here, ("python", "-m", "speech.train", "{config}")).digests()
    assert set(names) == {f"src/speech/{name}.py" for name in ("__init__", "train", "model", "data")}
    (here / "run.sh").write_text("python train.py $1\n")
    started = set(code(here, ("python", "train.py")).digests())
    assert set(code(here, ("bash", "run.sh", "{config}")).digests()) == {"run.sh", *started}
    assert set(code(here, ("./run.sh", "{config}")).digests()) == {"run.sh", *started}


def test_odd_sources_do_not_stop_it(here: Path) -> None:
    """A script that is no Python, modules that import each other, and hundreds of them."""
    (here / "loader.py").write_text("import train\nimport loader\nfrom ..... import x\n")
    (here / "models" / "tts.py").write_bytes(b"\x00 no python \xff")
    (here / "models" / "__init__.py").write_text("x = " + "(" * 1000 + ")" * 1000 + " + 1" * 20_000 + "\n")
    assert set(code(here).digests()) == {*NAMES} - {"models/layers.py"}
    (here / "train.py").write_text("".join(f"import m{number}\n" for number in range(900)))
    for number in range(900):
        (here / f"m{number}.py").write_text("")
    assert code(here).digests()

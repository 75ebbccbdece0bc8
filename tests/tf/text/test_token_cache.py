"""The cache of prepared texts: invalidated by content, never trusted when damaged, never in the way."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.tf.text import TokenCache, fingerprint, prepare
from tests.conftest import fill

LINES = [f"line {number}" for number in range(10)]


class Project:
    """Modules of a user's, whose sources can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.edit("my_texts", "import my_numbers\n\ndef tokens(line):\n    return my_numbers.of(line)\n")
        self.edit(
            "my_numbers", "from my_words import PLUS\n\ndef of(line):\n    return [ord(c) + PLUS for c in line]\n"
        )
        self.edit("my_words", "PLUS = 0\n")

    def edit(self, module: str, source: str) -> None:
        """Write a module."""
        (self.folder / f"{module}.py").write_text(source)

    def load(self) -> ModuleType:
        """Import them anew, as a new process would."""
        for name in ("my_texts", "my_numbers", "my_words"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("my_texts")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Three modules that build on each other."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return Project(folder)


class Counted:
    """Counts the lines that a function is called with; goes by the name of that function."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self._tokens = module.tokens
        self.__module__, self.__qualname__ = module.__name__, "tokens"
        monkeypatch.setattr(module, "tokens", self)

    def __call__(self, line: str) -> list[int]:
        """Prepare a line."""
        self.lines.append(line)
        return list(self._tokens(line))


@pytest.fixture
def counted(project: Project, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The function of that project, counted."""
    return Counted(project.load(), monkeypatch)


def test_the_next_start_prepares_nothing(counted: Counted, tmp_path: Path) -> None:
    """The same lines in any order come from the file, with the same tokens; a new line alone is prepared."""
    first = prepare(LINES, counted, cache=TokenCache(tmp_path, counted))
    assert prepare(LINES[::-1], counted, cache=TokenCache(tmp_path, counted)) == first[::-1]
    assert len(counted.lines) == len(LINES)
    prepare(["new", *LINES], counted, cache=TokenCache(tmp_path, counted))
    assert counted.lines[len(LINES) :] == ["new"]


def test_lines_that_were_not_asked_for_stay(counted: Counted, tmp_path: Path) -> None:
    """Two data sets in turn do not throw out each other's entries."""
    for lines in (LINES[:5], LINES[5:], LINES[:5], LINES[5:]):
        prepare(lines, counted, cache=TokenCache(tmp_path, counted))
    assert sorted(counted.lines) == LINES


@pytest.mark.parametrize("module", ["my_texts", "my_numbers", "my_words"])
def test_another_source_is_another_cache(module: str, project: Project, tmp_path: Path) -> None:
    """A change to the function's module, or to one that it is built on, however far, is noticed."""
    before = TokenCache(tmp_path, project.load().tokens).path
    assert TokenCache(tmp_path, project.load().tokens).path == before
    project.edit(module, (project.folder / f"{module}.py").read_text() + "\nCHANGED = True\n")
    assert TokenCache(tmp_path, project.load().tokens).path != before


def test_imports_inside_a_package_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative imports and imports of submodules count; an unrelated module of the package does not."""
    package = tmp_path / "my_package"
    (package / "inner").mkdir(parents=True)
    sources = {
        "__init__.py": "",
        "other.py": "",
        "tables.py": "A = 1\n",
        "inner/__init__.py": "from .rules import B\n",
        "inner/rules.py": "B = 1\n",
        "texts.py": "from . import tables\n\ndef tokens(line):\n    from my_package import inner\n    return [1]\n",
    }
    for name, source in sources.items():
        (package / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    function = importlib.import_module("my_package.texts").tokens
    before = fingerprint(function, {})
    changes = {}
    for name, source in sources.items():
        (package / name).write_text(source + "# changed\n")
        changes[name] = fingerprint(function, {}) != before
        (package / name).write_text(source)
    assert changes == {name: name != "other.py" for name in sources}
    assert fingerprint(function, {}) == before


@settings(max_examples=30)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_no_damage_gives_wrong_tokens(at: int, value: int, cut: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any byte of the file may be another, or the file end there: each entry is right or missing, and is replaced."""
    folder = tmp_path_factory.mktemp("tokens")
    lines = ["one", "two three", ""]
    right = [module_codes(line) for line in lines]
    cache = TokenCache(folder, module_codes)
    assert prepare(lines, module_codes, cache=cache) == right
    whole = cache.path.read_bytes()
    at %= len(whole)
    cache.path.write_bytes(whole[:at] + (b"" if cut else bytes([value]) + whole[at + 1 :]))
    assert prepare(lines, module_codes, cache=cache) == right
    assert sorted(cache.path.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_entries_do_not_move_between_caches(project: Project, tmp_path: Path) -> None:
    """A file, or a line of it, that was made by other code is foreign."""
    tokens = project.load().tokens
    one, other = TokenCache(tmp_path, tokens, {"v": 1}), TokenCache(tmp_path, tokens, {"v": 2})
    one.store({"a": [1]})
    other.store({"b": [2]})
    head, entry = one.path.read_bytes().splitlines()
    other.path.write_bytes(other.path.read_bytes() + entry + b"\n")
    assert other.lookup(["a", "b"]) == {"b": [2]}
    other.path.write_bytes(head + b"\n" + entry + b"\n")
    assert other.lookup(["a"]) == {}


def test_a_cache_that_cannot_be_written_does_not_stop_training(
    counted: Counted, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk the tokens are there all the same, this is said, and no litter stays."""
    cache = TokenCache(small_disk, counted)
    cache.path.parent.mkdir(parents=True)
    fill(small_disk)
    assert prepare(["a"], counted, cache=cache) == [[97]]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be written" in caplog.text
    assert list(cache.path.parent.iterdir()) == []


def module_codes(line: str) -> list[int]:
    """Code points."""
    return [ord(character) for character in line]

"""The cache of prepared texts: invalidated by content, never trusted when damaged, never in the way."""

import contextlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.tf.text import TokenCache, fingerprint, pack, prepare, unpack

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


def test_what_is_named_counts_too(project: Project) -> None:
    """Settings and versions of libraries are part of the fingerprint."""
    tokens = project.load().tokens
    assert fingerprint(tokens, {"library": "1.0"}) == fingerprint(tokens, {"library": "1.0"})
    assert fingerprint(tokens, {"library": "1.0"}) != fingerprint(tokens, {"library": "1.1"})


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


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda good: good[:-3],
    "cut, with a newline": lambda good: good[:-5] + b"\n",
    "flipped": lambda good: good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],
    "empty": lambda good: b"",
    "foreign": lambda good: b"\x80\x04 not of this cache\n\n \n",
    "of another": lambda good: b"{" + good,
    "no numbers": lambda good: good + b"a b c\n",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_whole_is_prepared_anew(damage: str, counted: Counted, tmp_path: Path) -> None:
    """A torn, damaged or foreign file gives no wrong tokens, and is replaced."""
    cache = TokenCache(tmp_path, counted)
    first = prepare(LINES, counted, cache=cache)
    good = cache.path.read_bytes()
    cache.path.write_bytes(DAMAGES[damage](good))
    assert prepare(LINES, counted, cache=TokenCache(tmp_path, counted)) == first
    prepared = len(counted.lines)
    assert prepare(LINES, counted, cache=TokenCache(tmp_path, counted)) == first
    assert len(counted.lines) == prepared
    if damage == "no numbers":
        assert prepared == len(LINES)


def test_damaged_entries_do_not_stay(counted: Counted, tmp_path: Path) -> None:
    """The next file that is written holds whole entries only, those that nobody asked for included."""
    cache = TokenCache(tmp_path, counted)
    prepare(LINES, counted, cache=cache)
    whole = cache.path.read_bytes().splitlines()
    cache.path.write_bytes(cache.path.read_bytes().replace(whole[2], whole[2][:-4] + b"////") + b"a b c\n\n x\n")
    prepare(["new"], counted, cache=TokenCache(tmp_path, counted))
    assert set(cache.path.read_bytes().splitlines()) - set(whole) == {cache.path.read_bytes().splitlines()[-1]}
    assert len(cache.path.read_bytes().splitlines()) == len(whole)


@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_no_changed_byte_gives_wrong_tokens(at: int, value: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any byte of the file may be another: each entry is right or missing."""
    folder = tmp_path_factory.mktemp("tokens")
    lines = ["one", "two three", ""]
    cache = TokenCache(folder, module_codes)
    right = {line: module_codes(line) for line in lines}
    cache.store(right)
    content = bytearray(cache.path.read_bytes())
    content[at % len(content)] = value
    cache.path.write_bytes(content)
    found = TokenCache(folder, module_codes).lookup(lines)
    assert found.items() <= right.items()


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
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    assert prepare(["a"], counted, cache=cache) == [[97]]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be written" in caplog.text
    assert list(cache.path.parent.iterdir()) == []


@given(tokens=st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_tokens_are_the_same_behind_a_pipe(tokens: list[int]) -> None:
    """Numbers of up to 64 bits come back as they were, from one line."""
    packed = pack(tokens)
    assert b"\n" not in packed
    assert unpack(packed) == tokens


def module_codes(line: str) -> list[int]:
    """Code points."""
    return [ord(character) for character in line]

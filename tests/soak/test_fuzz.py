"""Texts and files that nobody thought of: no command takes one for a bug, and none changes what it must not.

Each test has a few examples; FUZZ_EXAMPLES=10000 makes it a long check.
"""

import contextlib
import json
import math
import os
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autotune.config.document import Document, Leaf
from autotune.config.splice import edit_yaml
from autotune.errors import AutotuneError, ConfigError
from autotune.study.storage.journal import JournalFolder
from autotune.study.travel import export_study, import_files
from tests.command_line import CommandLine, Done, project_in
from tests.recorded.recording import recorded_machine, recorded_project
from tests.study.storages import records_of, whichever

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
RANDOMS = st.integers(0, 2**64).map(random.Random)
# fmt: off
SCALARS: list[str] = [
    *re.split(r"\s+", r"""1 0 -5 016 0o17 0x1F 1_000 1:30 0b11 +7 1.5 1e-4 1E+5 .5 5. .inf -.INF .nan 1e400 %x @x YES no
    On y ~ Null word a/b.c http://x:80/y 'single' "double" '' "" 'it''s' "a\tb" "\ud83d\ude00" "\ud800" "\0" "a\0/b" 😀
    "\uZZZZ" 2020-13-45 = `x` << a#b *a {{x}} ${x} ??? [&e {a:*a} ~nobody/data config.yaml/data // ../.."""),
    *("", "two words", "a: b", "|\n    block", ">-\n    folded", "'a\n    b'", "&a 5", "&c !!int 5", "? y", "&a [*a]"),
    *("!!int 5", "!!int ''", "!!int '1:30'", "!!float 1", "!!str 5", "!!bool 5", "!!timestamp 5", '!!binary "\\t"'),
    *("!ref <x>", "!!python/name:os.system", "!new:torch.nn.Linear [1]", "!!python/object/apply:os.system ['false']"),
    *("9" * 25, "9" * 5000, "0x" + "f" * 5000, "1:" * 2500 + "30", "w" * 5000, "[" * 90 + "]" * 90),
]
SECTIONS = [
    *(f"knobs: {{data.batch_size: [4, {value}]}}" for value in (f"1{'0' * 500}", "9" * 5000, ".nan", "true", "[1]")),
    *(f"knobs: {{data.batch_size: {{low: 1, high: 1{'0' * 500}{more}}}}}" for more in ("", ", log: true")),
    *(f"knobs: {{data.batch_size: {{low: 1.0, high: 64.0, step: {step}}}}}" for step in ("1.0e-320", ".nan")),
    *('env: {X: "a\\0b"}', "env: {'': a, 'a=b': c}", 'env: {X: "\\ud83d"}', "knbs: {}", "trial: {max_s: .nan}"),
    *('command: "\\ud800 {config}"', "command: 5", "command:", "command: '{python} {config} {} {x?'", "set: []"),
]
FILES = [
    *(b"", b"# nothing\n", b"- a\n- b\n", b"word\n", bytes(range(256)), b"batch_size: 4\n---\nbatch_size: 5\n"),
    *(b"%YAML 1." + b"9" * 5000 + b"\n---\nx: 4\n", b"%TAG ! tag:a,2000:\n---\nx: !b 4\n", b"\xef\xbb\xbfx: 4\n"),
    *("x: 4\n".encode("utf-16"), b"x: 4\r\ny: 5\r\n", b"x: 'abc\n", b"x:\t4\n\ty: 5\n", b"x: {{ y }}\n", b'{"x": 4}'),
]
VALUES: list[Any] = [
    *(0, -1, 32, 2**31, 10**20, 10**500, True, None, -0.0, 0.5, 1e-4, 1e22, 1e-320, math.inf, math.nan, "", "word"),
    *("NO", "null", ".inf", "<<", "---", "- x", "a: b", "a #b", "it's", "\\n", "{x}", "*a", "${x}", "016", "1e-4"),
    *("+.5", "\t", "a\r\nb", "\0", "\x1b[31m", "😀", "\ud800", "\u2028", "\x85", "\ufeff", "w" * 300, " x", "1:30"),
]
PIECES = [
    *("\n", "\r", "\t", "  ", "\0", "\u2028", "\ufeff", ": ", "- ", " #", "&a ", "*a", "!!int ", "!!binary ", "!x "),
    *("<<: ", "%YAML 1.3\n", "---\n", "...\n", "|\n", "{", "}", "[", "]", "'", '"', "#", "\\ud800", "{{", "~", "😀"),
]
ODD: list[Any] = [
    *(None, True, 0, -1, 10**30, 0.5, 1e300, math.nan, math.inf, "", "\x1b[2J\x07", "x" * 100_000, "NaN", "good"),
    *("../../etc/passwd", [], {}, [[]], {"": None}, {"a": {"b": []}}),
]
# fmt: on


def fuzz(examples: int) -> settings:
    """Return settings with so many examples in the default suite."""
    return settings(max_examples=EXAMPLES or examples, phases=[Phase.generate])  # nothing of a seed can be smaller


def changed(text: Any, pieces: Sequence[Any], rng: random.Random) -> Any:
    """Put a piece anywhere, with or without taking something away."""
    at = rng.randrange(len(text) + 1)
    until = at if rng.random() < 0.6 else at + rng.choice((1, 2, 8, 60))
    return text[:at] + rng.choice(pieces) + text[until:]


def changed_lines(content: bytes, rng: random.Random) -> bytes:
    """Change some values, whole lines or bytes of a file of JSON lines."""
    lines = content.splitlines(keepends=True)
    way = rng.randrange(6)
    if way < 3:
        documents = [json.loads(line) for line in lines]
        for _ in range(rng.randint(1, 4)):
            holder: Any = rng.choice(documents)
            while isinstance(below := holder[(key := rng.choice(list(holder)))], dict) and below and rng.random() < 0.8:
                holder = below
            holder[key] = rng.choice([*ODD, *([below * 1e200, -below] if isinstance(below, float) else ())])
        return b"".join(json.dumps(document).encode() + b"\n" for document in documents)
    if way == 3:
        foreign = [b"{}\n", b"null\n", b'{"op_code":4}\n', b"[" * 10_000 + b"\n", b'{"op_code":' + b"9" * 6000 + b"}\n"]
        return b"".join(rng.choice([lines, rng.sample(lines, len(lines)), lines[::2], [*lines, rng.choice(foreign)]]))
    if way == 4:
        return content.decode().encode(rng.choice(["utf-16", "utf-8-sig"])) if rng.random() < 0.3 else rng.randbytes(99)
    for _ in range(rng.randint(1, 4)):
        content = changed(content, [b"NaN", b"Infinity", b"9" * 5000, b"\\ud800", b"\xff", b'"score": 2.0, '], rng)
    return content[: rng.randrange(len(content))] if rng.random() < 0.2 else content


def expected(done: Done) -> Done:
    """Require that a command gave an answer, or an error that was expected."""
    assert done.returncode in (0, 1), done.stderr[-2000:]
    assert "Traceback" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return done


def readable(text: str) -> bool:
    """Return whether PyYAML reads a text; it ends in all kinds of errors."""
    try:
        yaml.safe_load(text)
    except Exception:
        return False
    return True


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Project with a recorded study."""
    with recorded_machine():
        yield recorded_project(tmp_path_factory.mktemp("studied") / "project")


@fuzz(60)
@given(RANDOMS)
def test_a_garbled_text_is_edited_exactly_or_refused(rng: random.Random) -> None:
    """The value is read there then; all other characters stay, and PyYAML reads it if it did so before."""
    text = "".join(f"k{n}: {rng.choice(SCALARS)}\nm{n}:\n  a: {rng.choice(SCALARS)}  # why\n" for n in range(3))
    for _ in range(rng.choice((0, 1, 2, 4))):
        text = changed(text, PIECES, rng)
    leaves: Sequence[Leaf] = ()
    with contextlib.suppress(ConfigError):
        leaves = Document(text).leaves
    for leaf in rng.sample(leaves, min(3, len(leaves))):
        with contextlib.suppress(ConfigError):
            value = rng.choice(VALUES)
            new = edit_yaml(text, {leaf.path: value})
            assert new.startswith(text[: leaf.start].rstrip(" "))
            assert new.endswith(text[leaf.end :])
            (found,) = (one for one in Document(new).leaves if one.path == leaf.path)
            assert found.reading_1_1 == value or value != value
            assert readable(new) or not readable(text)


@fuzz(10)
@given(
    st.one_of(
        st.sampled_from(FILES),
        st.builds("data: {{batch_size: 4}}\nx: {}\nautotune:\n  command: '{{python}} train.py {{config}}'\n".format,
                  st.sampled_from(SCALARS)).map(lambda text: text.encode(errors="surrogatepass")),
        st.builds("data: {{batch_size: 4}}\nautotune:\n  {}\n".format, st.sampled_from(SECTIONS)).map(str.encode),
    ),
    st.sampled_from(["", "w" * 100_000, "--description=w", "\udcff", "/" * 5000, "&&"]),
)  # fmt: skip
def test_an_odd_config_is_no_bug(content: bytes, word: str) -> None:
    """Commands that read it use it, or end with an expected error, and leave it as it is."""
    with tempfile.TemporaryDirectory() as folder:
        commands = project_in(Path(folder))
        (commands.folder / "config.yaml").write_bytes(content)
        for typed in (("search", "--dry-run"), ("status", "--json"), ("apply",), ("revert",)):
            expected(commands(*typed, "--config", "config.yaml"))
        expected(commands("search", "--dry-run", "--config", "config.yaml", "--", "python", "train.py", word))
        assert (commands.folder / "config.yaml").read_bytes() == content


@fuzz(8)
@given(RANDOMS)
def test_a_changed_journal_gives_an_answer_or_an_error(studied: CommandLine, rng: random.Random) -> None:
    """The config is not changed for it; a torn line is kept elsewhere."""
    (journal,) = (studied.folder / ".autotune" / "studies").glob("*.journal")
    original, config = journal.read_bytes(), (studied.folder / "config.yaml").read_bytes()
    try:
        journal.write_bytes(changed_lines(original, rng))
        status = expected(studied("status", "--json", "--config", "config.yaml"))
        assert isinstance(json.loads(status.stdout), dict)
        expected(studied("apply", "--dry-run", "--force", "--config", "config.yaml"))
        assert (studied.folder / "config.yaml").read_bytes() == config
    finally:
        journal.write_bytes(original)


@fuzz(25)
@given(RANDOMS)
def test_a_changed_export_is_imported_or_refused(studied: CommandLine, rng: random.Random) -> None:
    """After a refusal nothing is in the storage; what was imported is exported, and that adds nothing again."""
    export = studied.folder / "study.journal"
    if not export.exists():
        assert studied("study", "export", "--config", "config.yaml", str(export)).returncode == 0
    with tempfile.TemporaryDirectory() as folder:
        file, again, storage = (
            Path(folder) / "a.journal",
            Path(folder) / "b.journal",
            JournalFolder(Path(folder) / "studies"),
        )
        file.write_bytes(changed_lines(export.read_bytes(), rng))
        try:
            done = import_files([file], whichever, storage)
        except AutotuneError as error:
            remedy = error.remedy or ""
        else:
            remedy = None
            if done.added:
                assert len(records_of(storage, done.study)) == done.added
                export_study(done.study, storage, again)
                assert not import_files([again], whichever, storage).added
        assert remedy is None or (remedy and not (Path(folder) / "studies").exists())

"""Edits of YAML texts by the ten thousand: each is exact, as parsers of the test's own confirm, or refused in words.

``python -m tests.soak fuzz-edit --edits 100000 --seed 0 --jobs 2`` takes pieces of real configs (where ../shared is)
and generated ones, in which keys shadow each other, changes some of their characters, and puts values of all kinds into
them. It prints how the edits went, and every one that raised what it should not or wrote what was not asked for.
"""

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import ruamel.yaml
import yaml

from autotune.config.document import Document, Leaf
from autotune.config.splice import edit_yaml
from autotune.errors import ConfigError
from autotune.records import Scalar
from tests.config.test_real_configs import Opaque, Reader, keys_as_read, place, without
from tests.conftest import SHARED

EDITS_A_CHUNK = 500
EDITS_A_TEXT = 8
_UNREADABLE = object()


class _Constructor(ruamel.yaml.constructor.SafeConstructor):
    """Constructor of ruamel.yaml, with custom tags kept as opaque values."""


def _opaque(loader: Any, suffix: str, node: Any) -> Opaque:
    if isinstance(node, ruamel.yaml.ScalarNode):
        return Opaque(suffix, node.value)
    if isinstance(node, ruamel.yaml.SequenceNode):
        return Opaque(suffix, loader.construct_sequence(node, deep=True))
    return Opaque(suffix, loader.construct_mapping(node, deep=True))


_Constructor.add_multi_constructor("", _opaque)


@dataclass(frozen=True)
class Wrong:
    """Edit that did what it must not.

    Attributes:
        text: The text.
        path: The key path.
        value: What was to be put there.
        what: What happened.
    """

    text: str
    path: tuple[str | int, ...]
    value: Scalar
    what: str


@dataclass
class Outcome:
    """Counts of some edits by their outcome, and those that went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[Wrong] = field(default_factory=list)


def fuzz(edits: int, seed: str) -> Outcome:
    """Make some edits, and check each."""
    rng = random.Random(seed)
    outcome = Outcome()
    while outcome.counts.total() < edits:
        text = _text(rng)
        leaves = _leaves(text, outcome)
        for _ in range(EDITS_A_TEXT if leaves else 1):
            leaf = rng.choice(leaves) if leaves else None
            path = leaf.path if leaf else ("x",)
            value = _value(rng)
            try:
                how = _edit(text, path, value, leaf)
            except ConfigError:
                how = "refused"
            except Exception as error:  # what this command is here to find
                how = f"WRONG: {type(error).__name__}"
                outcome.wrong.append(Wrong(text, path, value, f"{type(error).__name__}: {error}"))
            outcome.counts[how] += 1
    return outcome


def main(arguments: Sequence[str]) -> int:
    """Make them in several processes, and print the outcome."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak fuzz-edit", description=__doc__)
    parser.add_argument("--edits", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    started_s = time.monotonic()
    chunks = [f"{options.seed}-{number}" for number in range(math.ceil(options.edits / EDITS_A_CHUNK))]
    counts: Counter[str] = Counter()
    wrong: list[Wrong] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(fuzz, [min(EDITS_A_CHUNK, options.edits)] * len(chunks), chunks):
            counts += outcome.counts
            wrong += outcome.wrong
    print(f"{counts.total():,} edits in {time.monotonic() - started_s:.0f} s:")
    for how, count in counts.most_common():
        print(f"{count:9,}  {how}")
    for one in wrong[:20]:
        print(f"\n{one.what[:500]}\n  text  {one.text!r}\n  path  {one.path}\n  value {_shown(one.value)}")
    print(f"\nforeign exceptions and wrong values: {len(wrong)}")
    return 1 if wrong else 0


def _edit(text: str, path: tuple[str | int, ...], value: Scalar, leaf: Leaf | None) -> str:
    """Make one edit, check it, and return its outcome."""
    new = edit_yaml(text, {path: value})
    assert leaf is not None, "a text that cannot be read was edited"
    if new == text:
        _require(_same(leaf.reading_1_1, value), f"nothing was written, but {leaf.reading_1_1!r} stands there")
        return "unchanged"
    _require(leaf.why_fixed is None, f"edited, although {leaf.why_fixed}")
    head, tail = text[: leaf.start], text[leaf.end :]
    _require(new.startswith(head.rstrip(" ")) and new.endswith(tail), "other characters changed")
    confirmed = []
    says_yes = isinstance(value, bool) and leaf.text.lower() in ("yes", "no", "on", "off")
    for name, read in (("PyYAML", _read_1_1), ("ruamel.yaml", _read_1_2)):
        before = _before(name, text)
        if before is _UNREADABLE or (name != "PyYAML" and says_yes):
            continue  # a list as a key, a tag that asks for too much: it could not be read before either
        after = read(new)
        try:
            where = keys_as_read(before, path)
            if _is_text_and_number(before, where):
                raise StopIteration
        except (StopIteration, TypeError):  # the way leads past the number, as it stands first
            _require(name != "PyYAML" or repr(after) != repr(before), "PyYAML sees no change")
            continue  # a key that the parser reads as something else than it says: 0x1F, a date, with a tag
        found = place(after, where)
        _require(_same(found, value), f"{name} reads {found!r}")
        _require(repr(without(after, where)) == repr(without(before, where)), f"{name} sees another change too")
        confirmed.append(name)
    return f"exact, confirmed by {' and '.join(confirmed) or 'characters alone'}"


def _is_text_and_number(tree: Any, where: Sequence[Any]) -> bool:
    """Return whether a path leads past a number beside a text with the same characters, two keys to a parser."""
    for key in where:
        while isinstance(tree, Opaque):
            tree = tree.content[1]
        if isinstance(tree, dict) and sum(str(other) == str(key) for other in tree) > 1:
            return True
        tree = tree[key]
    return False


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _same(found: Any, value: Scalar) -> bool:
    if isinstance(found, float) and isinstance(value, float) and math.isnan(found):
        return math.isnan(value)
    unlike = isinstance(found, bool) != isinstance(value, bool) or isinstance(found, str) != isinstance(value, str)
    return not unlike and bool(found == value)


@lru_cache(maxsize=4)
def _before(name: str, text: str) -> Any:
    try:
        return (_read_1_1 if name == "PyYAML" else _read_1_2)(text)
    except Exception:
        return _UNREADABLE


def _read_1_1(text: str) -> Any:
    return yaml.load(text.removeprefix("\ufeff"), Loader=Reader)


def _read_1_2(text: str) -> Any:
    reader = ruamel.yaml.YAML(typ="safe", pure=True)
    reader.Constructor = _Constructor
    return reader.load(text.removeprefix("\ufeff"))


def _leaves(text: str, outcome: Outcome) -> tuple[Leaf, ...]:
    try:
        return Document.parse(text).leaves
    except ConfigError:
        return ()
    except Exception as error:
        outcome.wrong.append(Wrong(text, (), None, f"reading it: {type(error).__name__}: {error}"))
        return ()


def _shown(value: Scalar) -> str:
    return hex(value)[:80] if isinstance(value, int) and abs(value) > 2**64 else repr(value)[:300]


def _text(rng: random.Random) -> str:
    """Piece of a config, real or generated, more often than not with a few characters changed."""
    real = _real_pieces()
    text = rng.choice(real) if real and rng.random() < 0.4 else _generated(rng)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        until = at if rng.random() < 0.6 else min(len(text), at + rng.choice((1, 2, 8)))
        text = text[:at] + rng.choice(_PIECES) + text[until:]
    if rng.random() < 0.1:
        text = text.replace("\n", rng.choice(("\r\n", "\r")))
    return f"\ufeff{text}" if rng.random() < 0.02 else text


@lru_cache(maxsize=1)
def _real_pieces() -> list[str]:
    """Keys of the top level of real configs with what is below them, as far as they are short."""
    pieces = []
    for path in sorted((SHARED / "yaml").glob("*.y*ml")):
        lines: list[str] = []
        for line in [*path.read_text().splitlines(keepends=True), "end"]:
            if line[:1].strip() and line[0] not in "#-}]" and lines:
                pieces.append("".join(lines))
                lines = []
            lines.append(line)
    return [piece for piece in pieces if ":" in piece and len(piece) < 400]


def _generated(rng: random.Random, depth: int = 0) -> str:
    indent = "  " * depth
    lines = []
    for number in range(rng.randint(1, 4 if depth == 0 else 2)):
        name = f"{rng.choice(_KEYS)}{number}" if rng.random() < 0.7 else rng.choice(_ALIKE)
        key, comment = f"{indent}{name}", rng.choice(("", "", "  # why", " #"))
        if depth < 2 and rng.random() < 0.25:
            lines.append(f"{key}:{comment}\n{_generated(rng, depth + 1)}")
        elif rng.random() < 0.15:
            lines.append(f"{key}: [{', '.join(rng.choice(_FLOW) for _ in range(rng.randint(0, 3)))}]{comment}\n")
        elif rng.random() < 0.1:
            lines.append(f"{key}: {{a: {rng.choice(_FLOW)}, b: {rng.choice(_FLOW)}}}{comment}\n")
        elif rng.random() < 0.1:
            lines.append(f"{key}:\n{indent}- {rng.choice(_SCALARS)}\n{indent}- x: {rng.choice(_SCALARS)}\n")
        else:
            lines.append(f"{key}: {rng.choice(_SCALARS)}{comment}\n")
    return "".join(lines)


def _value(rng: random.Random) -> Scalar:
    if rng.random() < 0.6:
        return rng.choice(_VALUES)
    if rng.random() < 0.5:
        return "".join(rng.choice(_CHARACTERS) for _ in range(rng.randint(1, 6)))
    return rng.choice((rng.randint(-100, 100), rng.uniform(-1, 1), rng.uniform(0, 1) * 10.0 ** rng.randint(-300, 300)))


_ALIKE = ("on", "yes", "true", "True", "1", "1.0", "01", "0x1", '"1"', "null", "~", "off", "0", "lr", "'lr'", "!!str 1")
_KEYS = ("lr", "batch_size", "a b", "'q'", '"d"', "x-y", "5", "é", "on", "null")
_FLOW = ("1", "2.5", "word", "'a'", '"b"', "true", "~", "1e-4", "{c: 1}", "[3]", "")
_SCALARS = (
    *("1", "0", "-5", "016", "0o17", "0x1F", "1_000", "1:30", "0b11", "+7", "9" * 25, "9" * 4400, "0x" + "f" * 4000),
    *("1.5", "1e-4", "1.0e-4", "1E+5", ".5", "5.", ".inf", "-.INF", ".nan", "1e400", "0.1e-400"),
    *("true", "False", "YES", "no", "On", "off", "y", "null", "~", "Null", "", "NULL"),
    *("word", "two words", "a/b.c", "http://x:80/y", "'single'", '"double"', "''", '""', "'it''s'", '"a\\tb"'),
    *('"\\ud83d\\ude00"', '"\\ud800"', '"\\0"', "😀", "2020-01-01", "2020-01-01 10:00:00", "=", "<<", "a#b", "a: b"),
    *("!!int 5", "!!int '5'", "!!int ''", "!!float 1", "!!str 1e-4", "!!str 5", "!!bool yes", "!!null ''"),
    *("!!binary aGVsbG8=", "!!timestamp 2020-01-01", "!ref <x>", "!!python/name:os.system", "!!set {a}", "!x"),
    *("&a 5", "*a", "&b word", "&c !!int 5", "!!int &d 5", "{{ x }}", "${x}", "???", "|\n    block", ">-\n    folded"),
    *("a\n    b", "'a\n    b'", '"a\\\n    b"', "- x", "? y", "%x", "@x", "`x`", "{a: *a}", "[&e 1, *e]"),
)
_VALUES: tuple[Scalar, ...] = (
    *(0, 1, -1, 7, 32, 2**31, 10**20, -(10**25), 10**500, 10**4300, 10**5000, -(10**6000), True, False, None),
    *(
        0.0,
        -0.0,
        0.5,
        32.0,
        1e-4,
        1e22,
        1e16,
        1e-320,
        1.7976931348623157e308,
        float("inf"),
        float("-inf"),
        float("nan"),
    ),
    *("word", "two words", "", " ", "  x", "x ", "\t", "a\tb", "\n", "a\nb", "a\r\nb", "\r", "\0", "\x1b[31m", "\x7f"),
    *(
        "yes",
        "NO",
        "on",
        "true",
        "Null",
        "~",
        "null",
        ".inf",
        ".nan",
        "=",
        "<<",
        "...",
        "---",
        "-",
        "?",
        ":",
        "a:",
        ":a",
    ),
    *("1", "016", "0o17", "0x1F", "1_000", "1:30", "1e-4", "1e4", "+.5", "5.", "0b11", "2020-01-01", "1.0e+4", "12e03"),
    *(
        "a: b",
        "a #b",
        "a# b",
        "#",
        "- x",
        "? x",
        "'",
        '"',
        "it's",
        'say "x"',
        "\\",
        "\\n",
        "{x}",
        "[",
        "]",
        "a,b",
        "{",
        "}",
    ),
    *("!x", "&a", "*a", "%x", "@x", "`x`", "|", ">", "!!int 5", "{{ x }}", "${x}", "é", "😀", "\ud83d\ude00", "\ud800"),
    *(
        "\udcff",
        "\u2028",
        "\x85",
        "\ufeff",
        "\ufeffa",
        "\uffff",
        "\U0010ffff",
        "\xa0",
        "w" * 300,
        "two words " * 40,
        "y",
    ),
)
_CHARACTERS = "ab01-_.:,#'\"\\ \t\n\r{}[]&*!|>%@`~=<?+/é😀\ud800\udc00\x00\x07\x85\u2028\ufeff"
_PIECES = (
    *(
        "\n",
        "\r",
        "\t",
        " ",
        "  ",
        "\0",
        "\u2028",
        "\x85",
        "\ufeff",
        ": ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "'",
        '"',
        "#",
        " #",
    ),
    *(
        "&a ",
        "*a",
        "!!int ",
        "!!float ",
        "!!binary ",
        "!x ",
        "|\n",
        ">\n",
        "<<: ",
        "? ",
        "%YAML 1.3\n",
        "---\n",
        "...\n",
    ),
    *(
        "1e999",
        "\\ud800",
        "\\",
        "{{",
        "${x}",
        "~",
        "null",
        "yes",
        ",",
        ":",
        "-",
        "=",
        "é",
        "😀",
        "a",
        "0",
        "\n\n",
        "\n  ",
    ),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

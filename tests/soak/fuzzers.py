"""Fuzzers: edits of YAML texts, odd configs for every command, changed journals, and changed exports."""

import contextlib
import copy
import io
import json
import logging
import math
import os
import random
import re
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import ruamel.yaml
import yaml

from autotune.commands.apply_answer import apply_values
from autotune.config.command_line import TypedOptions
from autotune.config.document import Document, Leaf
from autotune.config.splice import edit_yaml
from autotune.errors import AutotuneError, ConfigError
from autotune.records import Purpose, Scalar, Verdict
from autotune.report.answer import print_answer
from autotune.report.console import text_console
from autotune.report.json_answer import answer_document
from autotune.search.answer import Study
from autotune.search.problem import Problem, open_problem
from autotune.study.storage.journal import JournalFolder
from autotune.study.travel import describe_study, export_study, import_files
from tests.config.test_real_configs import Opaque, Reader, keys_as_read, place, without
from tests.conftest import SHARED
from tests.soak.harness import Result, Soak, check
from tests.study.storages import NAME, VALUES, fill, record, whichever

EDITS_A_CHUNK = 500
_EDITS_A_TEXT = 8
_LIMIT_S = 60.0
_UNREADABLE = object()


def _words(text: str) -> list[str]:
    return text.split()


# Pieces of configs.
# fmt: off

_ALIKE = _words("""on yes true True 1 1.0 01 0x1 "1" null ~ off 0 lr 'lr'""")
_KEYS = ["a b", *_words("""lr batch_size 'q' "d" x-y 5 é on null""")]
_FLOW = ["", "{c: 1}", *_words("""1 2.5 word 'a' "b" true ~ 1e-4 [3]""")]
SCALARS = [
    *_words(r"""1 0 -5 016 0o17 0x1F 1_000 1:30 0b11 +7 1.5 1e-4 1.0e-4 1E+5 .5 5. .inf -.INF .nan 1e400 0.1e-400 %x @x
    1.0e+999 true False YES no On off y null ~ Null NULL word a/b.c http://x:80/y 'single' "double" '' "" 'it''s' "a\tb"
    "\ud83d\ude00" "\ud83d\ude00/x/y" "\ud800" "\0" "a\0/b" "~a\0/b" "\uZZZZ" "\UFFFFFFFF" 😀 2020-01-01 2020-13-45 =
    `x` << a#b *a {{x}} ${x} ??? [&e {a:*a} ~nobody-of-this-name/data config.yaml/data // ../../.. ./"""),
    *("", "two words", "a: b", "2020-01-01 10:00:00", "|\n    block", ">-\n    folded", "a\n    b", "'a\n    b'"),
    *("&a 5", "&b word", "&c !!int 5", "!!int &d 5", "? y", "& 5", "|99999\n  a", '"a\\\n    b"', "&a [*a]", "- x"),
    *("!!int 5", "!!int '5'", "!!int ''", "!!int '1:30'", "!!int '-'", "!!int '0x'", "!!float 1", "!!float ''"),
    *("!!str 1e-4", "!!str 5", "!!bool yes", "!!bool 5", "!!null ''", "!!timestamp 5", "!!timestamp 2020", "!!null 5"),
    *("!!binary aGVsbG8=", '!!binary "\\t"', "!ref <x>", "!!python/name:os.system", "!!set {a, b}", "!!omap [a: 1]"),
    *("!%FF 5", "!new:torch.nn.Linear [1, 2]", "!!python/object/apply:os.system ['false']", "!apply:a <out>/b"),
    *("9" * 25, "9" * 5000, "0x" + "f" * 5000, "1:" * 2500 + "30", "1" + "0" * 500, "w" * 5000, "word/" * 2000),
    *("[" * 90 + "]" * 90, "[" * 3000 + "]" * 3000, "word " * 200, "a/" * 3000),
]
_VALUES: list[Scalar] = [
    *(0, 1, -1, 7, 32, 2**31, 10**20, -(10**25), 10**500, 10**4300, 10**5000, -(10**6000), True, False, None, -0.0),
    *(0.0, 0.5, 32.0, 1e-4, 1e22, 1e16, 1e-320, 1.7976931348623157e308, math.inf, -math.inf, math.nan, "", " ", "  x"),
    *_words("""word yes NO on true Null ~ null .inf .nan = << ... --- - ? : a: :a # a# ' " it's \\ \\n {x} [ ] a,b { }
    !x &a *a %x @x `x` | > ${x} é y 1 016 0o17 0x1F 1_000 1:30 1e-4 1e4 +.5 5. 0b11 2020-01-01 1.0e+4 12e03"""),
    *("two words", "\t", "a\tb", "\n", "a\nb", "a\r\nb", "\r", "\0", "\x1b[31m", "\x7f", "a: b", "a #b", "- x", "? x"),
    *('say "x"', "!!int 5", "{{ x }}", "😀", "\ud83d\ude00", "\ud800", "\udcff", "\u2028", "\x85", "\ufeff", "\ufeffa"),
    *("\uffff", "\U0010ffff", "\xa0", "w" * 300, "two words " * 40),
]
_CHARACTERS = "ab01-_.:,#'\"\\ \t\n\r{}[]&*!|>%@`~=<?+/é😀\ud800\udc00\x00\x07\x85\u2028\ufeff"
_PIECES = [
    *("\n", "\r", "\t", " ", "  ", "\0", "\u2028", "\x85", "\ufeff", ": ", "- ", " #", "&a ", "!!int ", "? "),
    *("!!binary ", "!x ", "|\n", ">\n", "<<: ", "%YAML 1.3\n", "---\n", "...\n", "\n\n", "\n  ", "9" * 400),
    *_words("""{ } [ ] ' " # *a 1e999 \\ud800 \\ {{ ${x} ~ null yes , : - = é 😀 a 0"""),
]


# fmt: on


class _Constructor(ruamel.yaml.constructor.SafeConstructor):
    """Constructor of ruamel.yaml, with custom tags kept as opaque values."""


def _opaque(loader: Any, suffix: str, node: Any) -> Opaque:
    if isinstance(node, ruamel.yaml.ScalarNode):
        return Opaque(suffix, node.value)
    make = loader.construct_sequence if isinstance(node, ruamel.yaml.SequenceNode) else loader.construct_mapping
    return Opaque(suffix, make(node, deep=True))


_Constructor.add_multi_constructor("", _opaque)


# Edits


def fuzz_edits(edits: int, seed: str) -> tuple[Counter[str], list[str]]:
    """Make some edits; return how often each came out how, and those that went wrong."""
    rng, counts, wrong = random.Random(seed), Counter[str](), []
    while counts.total() < edits:
        text, leaves = _text(rng), ()
        try:
            leaves = Document.parse(text).leaves
        except ConfigError:
            pass
        except Exception as error:
            wrong.append(f"reading {text!r}: {type(error).__name__}: {error}")
        for _ in range(_EDITS_A_TEXT if leaves else 1):
            leaf = rng.choice(leaves) if leaves else None
            path, value = leaf.path if leaf else ("x",), _value(rng)
            try:
                how = _edit(text, path, value, leaf)
            except ConfigError:
                how = "refused"
            except Exception as error:  # what this command is here to find
                how = f"WRONG: {type(error).__name__}"
                shown = hex(value)[:80] if isinstance(value, int) else repr(value)[:300]
                wrong.append(f"{how}: {str(error)[:500]}; text {text!r}, path {path}, value {shown}")
            counts[how] += 1
    return counts, wrong


def _edit(text: str, path: tuple[str | int, ...], value: Scalar, leaf: Leaf | None) -> str:
    """Make one edit, check it, and return its outcome."""
    new = edit_yaml(text, {path: value})
    assert leaf is not None, "a text that cannot be read was edited"
    if new == text:
        assert _same(leaf.reading_1_1, value), f"nothing was written, but {leaf.reading_1_1!r} stands there"
        return "unchanged"
    assert leaf.why_fixed is None, f"edited, although {leaf.why_fixed}"
    head, tail = text[: leaf.start], text[leaf.end :]
    assert new.startswith(head.rstrip(" ")) and new.endswith(tail), "other characters changed"  # noqa: PT018
    confirmed = []
    says_yes = isinstance(value, bool) and leaf.text.lower() in ("yes", "no", "on", "off")
    for name, read in (("PyYAML", _read_1_1), ("ruamel.yaml", _read_1_2)):
        before = _before(read, text)
        if before is _UNREADABLE or (name != "PyYAML" and says_yes):
            continue  # a list as a key, a tag that asks for too much: it could not be read before either
        after = read(new)
        try:
            where = keys_as_read(before, path)
            if _is_text_and_number(before, where):
                raise StopIteration
        except (StopIteration, TypeError):  # the way leads past the number, as it stands first
            assert name != "PyYAML" or repr(after) != repr(before), "PyYAML sees no change"
            continue  # a key that the parser reads as something else than it says: 0x1F, a date, with a tag
        found = place(after, where)
        assert _same(found, value), f"{name} reads {found!r}"
        assert repr(without(after, where)) == repr(without(before, where)), f"{name} sees another change too"
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


def _same(found: Any, value: Scalar) -> bool:
    if isinstance(found, float) and isinstance(value, float) and math.isnan(found):
        return math.isnan(value)
    unlike = isinstance(found, bool) != isinstance(value, bool) or isinstance(found, str) != isinstance(value, str)
    return not unlike and bool(found == value)


@lru_cache(maxsize=4)
def _before(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except Exception:
        return _UNREADABLE


def _read_1_1(text: str) -> Any:
    return yaml.load(text.removeprefix("\ufeff"), Loader=Reader)


def _read_1_2(text: str) -> Any:
    reader = ruamel.yaml.YAML(typ="safe", pure=True)
    reader.Constructor = _Constructor
    return reader.load(text.removeprefix("\ufeff"))


def _text(rng: random.Random) -> str:
    """Return a piece of a config, real or generated, more often than not with a few characters changed."""
    real = _real_pieces()
    text = rng.choice(real) if real and rng.random() < 0.4 else _generated(rng)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        text = _changed(text, _PIECES, rng)
    if rng.random() < 0.1:
        text = text.replace("\n", rng.choice(("\r\n", "\r")))
    return f"\ufeff{text}" if rng.random() < 0.02 else text


def _changed(text: Any, pieces: Sequence[Any], rng: random.Random) -> Any:
    """Put a piece anywhere into a text, or bytes, with or without taking something away."""
    at = rng.randrange(len(text) + 1)
    until = at if rng.random() < 0.6 else min(len(text), at + rng.choice((1, 1, 2, 8, 60)))
    return text[:at] + rng.choice(pieces) + text[until:]


@lru_cache(maxsize=1)
def _real_pieces() -> list[str]:
    """Return keys of the top level of real configs with what is below them, as far as they are short."""
    texts = [path.read_text() for path in sorted((SHARED / "yaml").glob("*.y*ml"))]
    pieces = [piece for text in texts for piece in re.split(r"^(?=[^\s#\-}\]])", text, flags=re.MULTILINE)]
    return [piece for piece in pieces if ":" in piece and len(piece) < 400]


def _generated(rng: random.Random, depth: int = 0) -> str:
    indent, lines = "  " * depth, []
    for number in range(rng.randint(1, 4 if depth == 0 else 2)):
        name = f"{rng.choice(_KEYS)}{number}" if rng.random() < 0.7 else rng.choice((*_ALIKE, "!!str 1"))
        key, comment = f"{indent}{name}", rng.choice(("", "", "  # why", " #"))
        if depth < 2 and rng.random() < 0.25:
            lines.append(f"{key}:{comment}\n{_generated(rng, depth + 1)}")
        elif rng.random() < 0.15:
            lines.append(f"{key}: [{', '.join(rng.choice(_FLOW) for _ in range(rng.randint(0, 3)))}]{comment}\n")
        elif rng.random() < 0.1:
            lines.append(f"{key}: {{a: {rng.choice(_FLOW)}, b: {rng.choice(_FLOW)}}}{comment}\n")
        elif rng.random() < 0.1:
            lines.append(f"{key}:\n{indent}- {rng.choice(SCALARS)}\n{indent}- x: {rng.choice(SCALARS)}\n")
        else:
            lines.append(f"{key}: {rng.choice(SCALARS)}{comment}\n")
    return "".join(lines)


def _value(rng: random.Random) -> Scalar:
    if rng.random() < 0.6:
        return rng.choice(_VALUES)
    if rng.random() < 0.5:
        return "".join(rng.choice(_CHARACTERS) for _ in range(rng.randint(1, 6)))
    return rng.choice((rng.randint(-100, 100), rng.uniform(-1, 1), rng.uniform(0, 1) * 10.0 ** rng.randint(-300, 300)))


@check(times=100_000, options={"--jobs": 2})
def fuzz_edit(soak: Soak) -> Iterator[Result]:
    """Edits of YAML texts: each is exact, as two other parsers confirm, or refused.

    Pieces of real configs (where ../shared is) and generated ones, in which keys shadow each other, get values of
    all kinds.
    """
    size = min(EDITS_A_CHUNK, soak.options.times)
    seeds = [f"{soak.options.seed}-{number}" for number in soak.numbers[::size]]
    for seed, (counts, wrong) in zip(seeds, soak.map(partial(fuzz_edits, size), seeds, processes=True), strict=True):
        soak.counts += counts
        if wrong:
            yield Result(f"edits of seed {seed}", *wrong[:20])


# Odd configs
# fmt: off

_COMMAND = '"{python} train.py --config {config}%s"'
_ODD_CONFIG = """\
data: {{batch_size: 4, num_workers: 1}}
out_dir: out
{keys}
autotune:
  command: {command}
  {section}
"""
_EMOJI = '"\\ud83d\\ude00"'  # as json.dump writes it; PyYAML makes two lone surrogates of it
_HUGE, _DIGITS = f"1{'0' * 500}", "9" * 5000
_ODD: dict[str, list[str]] = {
    "keys": [
        *(f"x: {scalar}" for scalar in SCALARS),
        *("log_dir: ''", "save_dir: //", "run_dir: '{x}'", "out_path: https://a/b", f"log_dir: {_EMOJI[:-1]}/logs\""),
        *('log_dir: "a\\0/b"', f"log_dir: {'a' * 300}/b", "log_dir: !apply:a <out>/b", f"? {_EMOJI}\n: 5", ": 5"),
        *(f"batch_size: {_DIGITS}", "batch_size: .nan", "train: {batch_size: -4}", f"train: {{num_workers: {_HUGE}}}"),
        *(f"train: {{batch_size: {_HUGE}}}", f"gradient_accumulation_steps: {_HUGE}", "x: 1\nx: 2\nout_dir: a/b"),
        *("x: &a k\n*a : 5", "x: &a [1, 2]\ny: {<<: *a}", "y: {<<: word}", "? [a, b]\n: 5", "null: 5\n~: 6"),
        *("...: 5\n..: 6\na.b: 1\na: {b: 2}", f"? {'k' * 3000}\n: 5", "".join(f"k{i}: {i}\n" for i in range(3000))),
        "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]",
        "# a comment of some length, as there are many\n" * 20_000,
    ],
    "section": [
        *(f"knobs: {{data.batch_size: [4, {value}]}}" for value in (_HUGE, f"-{_HUGE}", _DIGITS, "4.0, 8", _EMOJI)),
        *(f"knobs: {{data.batch_size: [{value}]}}" for value in ("4, .nan, .inf", "4, true, null, word, [1]")),
        f"knobs: {{data.batch_size: [9007199254740992.0, 9007199254740993, {', '.join(map(str, range(1, 100_001)))}]}}",
        *(f"knobs: {{data.batch_size: {{low: 1.0, high: 64.0, step: {step}}}}}" for step in ("1.0e-320", ".nan")),
        *(f"knobs: {{data.batch_size: {{low: 1, high: {_HUGE}{more}}}}}" for more in ("", ", log: true")),
        *(f"knobs: {{data.batch_size: {{low: {low}, high: 1.0e+308}}}}" for low in ("-1.0e+308", "1e-320, log: true")),
        *(f"env: {{{one}}}" for one in (f"X: {_EMOJI}", 'X: "a\\0b"', f"X: {_DIGITS}", "'': a, 'a=b': c")),
        f"env: {{X: a}}\n  knobs: {{autotune.env.X: [a, {_EMOJI}]}}",
        f"env: {{X: '{_DIGITS}'}}\n  knobs: {{autotune.env.X: ['1', '2']}}",
        *(f"set: {{out_dir: {_EMOJI}}}", f"set: {{data.batch_size: {_HUGE}}}", f"redirect: [{_EMOJI}]", "knbs: {}"),
        *(f"trial: {{min_steps: {_HUGE}}}", f"trial: {{max_s: {_HUGE}, min_s: 1}}", "trial: {max_s: .nan}"),
        "knobs: []\n  env: []\n  set: []",
    ],
    "command": [
        *('"\\ud800 {config}"', '"/a/\\ud800/b {config}"', "5", "", '"/a\\0b {config}"', "[python, train.py]"),
        *(_COMMAND % more for more in (" \\ud800", " a\\0b", " {\\ud83d\\ude00}", f" {'w' * 200_000}")),
        *(f'"/{"p" * 5000} {{config}}"', "'{python} {config} {data} {} {x?'"),
    ],
}
_ODD_WORDS = ["w" * 100_000, f"--description={'w' * 300}", "\udcff", "--out=/a/\udcff/b", "/" * 5000, "&&"]
_ODD_FILES = [
    *(b"", b"# nothing\n", b"- a\n- b\n", b"word\n", bytes(range(256)), b"batch_size: 4\n---\nbatch_size: 5\n"),
    *(b"%%YAML %s\n---\nbatch_size: 4\n" % version for version in (b"1.3", b"2.0", b"1.1", b"1." + b"9" * 5000, b"x")),
    *(b"%TAG ! tag:a,2000:\n---\nbatch_size: !b 4\n", b"%FOO bar\n---\nbatch_size: 4\n", b"\xef\xbb\xbfx: 4\n"),
    *("batch_size: 4\n".encode("utf-16"), b"batch_size: 4\r\nx: 5\r\n", b"batch_size: 4\rx: 5\r", b"x: 'abc\n"),
    *(b"batch_size:\t4\n\tx: 5\n", b"batch_size: {{ size }}\n", b"# " + b"x" * (5 * 2**20) + b"\nbatch_size: 4\n"),
    json.dumps({"batch_size": 4, "text": "\U0001f600", "deep": {"a": [1, {"b": None}]}}).encode(),
]
# fmt: on


OddProject = tuple[str, bytes, tuple[str, ...]]
"""What is odd about a project, the bytes of its config, and what is typed as the training command."""


def odd_projects(changed: int, seed: int) -> list[OddProject]:
    """Return projects with one odd thing each, then so many configs, real ones and these, with some bytes changed."""
    plain, typed = (
        {"keys": "", "section": "", "command": _COMMAND % ""},
        ("python", "train.py", "--config", "config.yaml"),
    )
    odd = [(what, text, _ODD_CONFIG.format(**{**plain, what: text})) for what, texts in _ODD.items() for text in texts]
    projects = [(f"{what} {text[:40]!r}", made.encode(errors="surrogatepass"), typed) for what, text, made in odd]
    projects += [(f"typed {word[:40]!r}", projects[0][1], (*typed, word)) for word in _ODD_WORDS]
    projects += [(f"file {content[:40]!r}", content, typed) for content in _ODD_FILES]
    rng = random.Random(seed)
    sources = [path.read_bytes() for path in sorted((SHARED / "yaml").glob("*.y*ml"))]
    sources += [config for _, config, _ in projects if len(config) < 20_000]
    pieces = [b"\xff", *(piece.encode(errors="surrogatepass") for piece in _PIECES)]
    for number in range(changed):
        content = rng.choice(sources)
        for _ in range(rng.randint(1, 4)):
            content = _changed(content, pieces, rng)
        projects.append((f"changed config {number}", content, typed))
    return projects


@check(times=20, options={"--jobs": 2, "--budget": 3.0})
def odd_files(soak: Soak) -> Iterator[Result]:
    """Odd configs given to every command: none is taken for a bug (exit 3), ends by a signal, or hangs.

    --times is the number of those with random changes, --budget that of one search each, 0 for none.
    """
    config, new = ("--config", "config.yaml"), ("--config", "new.yaml", "--from-flags")
    search = [("search", *config, "--budget", f"{soak.options.budget:g}s", "--json")] * bool(soak.options.budget)

    def given(project: OddProject) -> Result:
        name, content, words = project
        wrong, typed, init = [], ("--", *words), ("init", "--no-preflight", "--yes")
        looks = (("search", *config, "--dry-run"), ("run", *config, "--dry-run"), ("status", *config, "--json"))
        inits = ((*init, "--separate", *config, *typed), (*init, *new, *typed, "--batch_size=4"))
        for command in (*looks, (*looks[0], *typed), *inits, ("apply", *config), ("revert", *config), *search):
            folder = soak.place()
            (folder / "config.yaml").write_bytes(content)
            (folder / "train.py").write_text("import sys\nprint(open(sys.argv[2]).read()[:100].encode())\n")
            try:
                encoded = [word.encode(errors="surrogateescape") for word in command]
                done = soak.autotune(folder, *encoded, timeout_s=_LIMIT_S)
                code, said = f"exit {done.returncode}", done.stderr
            except subprocess.TimeoutExpired:
                code, said = "no end", ""
            soak.counts[code] += 1
            if code not in ("exit 0", "exit 1", "exit 2"):
                wrong.append(f"{' '.join(command)[:100]!r}: {code}, {said[-300:]!r}")
        return Result(name, *wrong)

    for result in soak.map(given, odd_projects(soak.options.times, soak.options.seed)[soak.options.first :]):
        if result.wrong:
            yield result


# Records and exports

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 10**30, -(10**400), 0.5, -0.0, 1.5, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *("", "\ud800", "\x1b[2J\x07", "x" * 100_000, *_words("good today confirm NaN 0x1 ../../etc/passwd {config}")),
    *([], {}, [[]], {"": None}, [None] * 1000, {"a": {"b": []}}),
]
_Change = Callable[[bytes, random.Random], bytes]


def _fuzzed(
    soak: Soak,
    original: bytes,
    ways: Sequence[_Change],
    ask: Callable[[bytes, int], str],
    commands: Callable[[int], Sequence[tuple[str, ...]]],
) -> Iterator[Result]:
    """Change a file again and again; ask for it in this process, and a few dozen times by commands."""
    yield Result(f"{len(original.splitlines())} lines, {len(original)} bytes")
    every = max(1, soak.options.times // max(1, soak.options.commands))
    logging.disable(logging.WARNING)
    try:
        for number in soak.numbers:
            rng = random.Random(f"{soak.options.seed} {number}")
            way = rng.choice(ways)
            word = ask(way(original, rng), number)
            soak.counts[word] += 1
            wrong = [word] if word.startswith("BUG") else []
            for command in commands(number) if soak.options.commands and number % every == 0 else ():
                done = soak.autotune(soak.folder, *command)
                soak.counts[f"{command[0]} {command[1]}: exit {done.returncode}"] += 1
                said = done.stdout + done.stderr
                if done.returncode not in (0, 1) or "Traceback" in said or "\x1b" in said:
                    wrong.append(f"{command}: exit {done.returncode} {done.stderr[-500:]}")
                if command[-1] == "--json":
                    json.loads(done.stdout)
            if wrong:
                yield Result(f"change {number} ({way.__name__.strip('_')})", *wrong)
    finally:
        logging.disable(logging.NOTSET)


def _bug(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"BUG {type(error).__name__}: {ascii(str(error))[:80]} in {where.filename}:{where.lineno}"


@check(times=2000, options={"--commands": 40, "--budget": 15.0})
def fuzz_record(soak: Soak) -> Iterator[Result]:
    """Changed journals of a real search: status and apply give an answer or an expected error.

    --commands of them are asked for by the commands themselves.
    """
    project = soak.project()
    with soak.search(project, soak.options.budget) as search:
        search.wait()
    with contextlib.chdir(project):
        problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
        config = (project / "config.yaml").read_bytes()
        content = b""

        def ask(changed: bytes, _number: int) -> str:
            nonlocal content
            content = changed
            problem.journal.write_bytes(content)
            word = _asked(problem)
            for torn in problem.journal.parent.glob("*.torn"):
                torn.unlink()
            return word if (project / "config.yaml").read_bytes() == config else "BUG: the config was changed"

        def commands(_number: int) -> Iterator[tuple[str, ...]]:
            for words in (("status", "--json"), ("status",), ("apply", "--dry-run")):
                problem.journal.write_bytes(content)
                yield (words[0], "--config", str(project / "config.yaml"), *words[1:])

        ways = [_fields, _fields, _fields, _fields, _attributes, _attributes, _lines, _bytes]
        original = problem.journal.read_bytes()
        if b"user_attrs" not in original:
            yield Result("no record", "the search has finished no trial: give it a larger --budget")
            return
        yield from _fuzzed(soak, original, ways, ask, commands)


def _asked(problem: Problem) -> str:
    """Ask for a record in this process; return the outcome in a word or two."""
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            study = Study.of(problem)
            result = study.answer()
            json.dumps(answer_document(result, elapsed_s=None, study=study.name, paths={}))
            console = text_console()
            print_answer(console, result, typed=TypedOptions(config=Path("config.yaml")), elapsed_s=None)
            if result.verdict is Verdict.BETTER and result.best and result.baseline:
                apply_values(problem, study.change_set(result), console, force=True, dry_run=True)
        return "BUG: an escape sequence" if "\x1b" in said.getvalue() else f"answer: {result.verdict.value}"
    except AutotuneError as error:
        return f"expected error: {error.kind}"
    except BaseException as error:
        return _bug(error)


@check(times=10_000, options={"--commands": 20}, in_memory=True)
def imports(soak: Soak) -> Iterator[Result]:
    """Changed exports of a study: a clean import, or an error with a remedy and nothing in the storage.

    What was imported can be read and exported, and that export imports again; --commands of them by the command
    itself.
    """
    storage, file = JournalFolder(soak.folder / "studies"), soak.folder / "study.jsonl"
    trials = [
        replace(record(), values=VALUES, purpose=Purpose.BASELINE, conditions={"host": "a", "cpu_cores": 2}),
        replace(record(), values={**VALUES, "data.cache": "memory", "x.rate": 0.05}),
        replace(record(), values={**VALUES, "x.on": False}, measurement=None, detail="ValueError: no"),
    ]
    fill(storage, trials)
    export_study(NAME, storage, file)
    original = file.read_bytes()

    def ask(changed: bytes, number: int) -> str:
        file.write_bytes(changed)
        return _imported(file, soak.folder / f"target{number}")

    def commands(number: int) -> list[tuple[str, ...]]:
        return [("study", "import", str(file), "--state-dir", str(soak.folder / f"state{number}"))]

    ways = [_fields, _fields, _fields, _inner, _inner, _lines, _bytes]
    yield from _fuzzed(soak, original, ways, ask, commands)


def _imported(file: Path, folder: Path) -> str:
    """Import a file into an empty folder of journals; return the outcome in a word or two."""
    storage, again = JournalFolder(folder), file.with_name("again.jsonl")
    try:
        try:
            done = import_files([file], whichever, storage)
        except AutotuneError as error:
            if folder.exists():
                return "BUG: something is there after a refusal"
            return "refused" if error.remedy else "BUG: no remedy"
        if not done.added:
            return "imported, no trial"
        if describe_study(done.study, storage).trials != done.added:
            return "BUG: not all that was imported can be read"
        export_study(done.study, storage, again)
        return "BUG: its export is not itself" if import_files([again], whichever, storage).added else "imported"
    except BaseException as error:
        return _bug(error)
    finally:
        again.unlink(missing_ok=True)
        for made in folder.glob("*"):
            made.unlink()
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()


def _parsed(original: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in original.splitlines()]


def _joined(lines: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _fields(original: bytes, rng: random.Random) -> bytes:
    """Put anything in some places of some lines."""
    lines = _parsed(original)
    for _ in range(rng.randint(1, 4)):
        _odd(rng.choice(lines), rng)
    return _joined(lines)


def _attributes(original: bytes, rng: random.Random) -> bytes:
    """Change the trials' own attributes, and nothing of Optuna's."""
    lines = _parsed(original)
    trials = [line for line in lines if "user_attrs" in line]
    for _ in range(rng.randint(1, 6)):
        _odd(rng.choice(trials)["user_attrs"], rng)
    return _joined(lines)


def _inner(original: bytes, rng: random.Random) -> bytes:
    """Change a number, a text, or a distribution, which is JSON within JSON, a little."""
    lines = _parsed(original)
    line = rng.choice(lines[1:])
    path = rng.choice(list(line["distributions"]))
    if rng.random() < 0.5:
        inner = json.loads(line["distributions"][path])
        _odd(inner, rng)
        line["distributions"][path] = json.dumps(inner)
    else:
        value = rng.choice([*ODD, 10**18, 2**53 + 1, -1, 8.0, "8"])
        line["values"][path] = line["attributes"]["record"]["values"][path] = value
    return _joined(lines)


def _odd(value: dict[str, Any], rng: random.Random) -> None:
    places = [way for way in _places(value) if way]
    if not places:
        return
    *folders, last = rng.choice(places)
    holder: Any = value
    for part in folders:
        holder = holder[part]
    if isinstance(holder, dict) and rng.random() < 0.2:
        del holder[last]
    elif isinstance(holder, dict) and rng.random() < 0.1:
        holder[rng.choice(["new", "\x1b[31m", "\0", "a" * 10_000, last.upper()])] = copy.deepcopy(holder[last])
    elif isinstance(holder[last], int | float) and abs(holder[last]) < 1e100 and rng.random() < 0.4:
        holder[last] = holder[last] * rng.choice([-1, 0, 0.5, 2, 1e6, 1e200])
    else:
        holder[last] = copy.deepcopy(rng.choice(ODD))


def _places(value: Any, *path: Any) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(way for key, part in below for way in _places(part, *path, key))]


def _lines(original: bytes, rng: random.Random) -> bytes:
    """Change whole lines, the head too or not: double, leave out, reorder, foreign ones, another kind of file."""
    lines = original.splitlines(keepends=True)
    first, rest = lines[: (head := rng.randrange(2))], lines[head:]
    foreign = [b"{}\n", b"[]\n", b"\n", b"null\n", b'{"op_code":4}\n', b"[" * 10_000 + b"\n", b"\xef\xbb\xbf"]
    ways: list[Callable[[], list[bytes]]] = [
        lambda: [*first, *rng.sample(rest, len(rest))],
        lambda: rng.sample(lines, rng.randrange(len(lines) + 1)),
        lambda: [line for line in lines for _ in range(rng.randint(0, 3))],
        lambda: [*lines, rng.choice(foreign)],
        lambda: [os.urandom(rng.randrange(2000))],
        lambda: [*first, b"[" * 100_000, b"]" * 100_000, b"\n"],
        lambda: [*first, b'{"a":' * 50_000, b"1", b"}" * 50_000, b"\n", *rest],
        lambda: [b'{"op_code":', b"9" * 6000, b"}\n", *lines],
        lambda: [b'{"format": "autotune study", "version": ', b"9" * rng.choice([30, 6000]), b"}\n", *rest],
        lambda: [line.replace(b"3}", b"1" * 5000 + b"}") for line in lines],
        lambda: [line.replace(b"\n", b"\r\n") for line in lines],
        lambda: [b"\x1f\x8b", *lines],
        lambda: [original.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"]))],
        lambda: [],
    ]
    return b"".join(rng.choice(ways)())


def _bytes(original: bytes, rng: random.Random) -> bytes:
    """Put anything anywhere, or cut it off."""
    pieces = [
        b'"score": 2.0, ',
        b'"score": NaN',
        b"Infinity",
        b"9" * 5000,
        b"\\ud800",
        b"\\u0000",
        b"\xff",
        os.urandom(50),
    ]
    for _ in range(rng.randint(1, 4)):
        original = _changed(original, [*pieces, os.urandom(1), b""], rng)
    return original[: rng.randrange(len(original))] if rng.random() < 0.2 else original

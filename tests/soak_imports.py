"""Changed exports: ``python -m tests.soak imports`` changes an exported study in thousands of ways, and imports each.

All that may come of it is a clean import or an expected error with a remedy. Nothing is in the storage after a refusal;
after an import, the study can be read and exported, and that export imports again. A few dozen files are imported by
the command itself.
"""

import argparse
import contextlib
import copy
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError
from autotune.records import Purpose
from autotune.study.storage.journal import JournalFolder
from autotune.study.travel import describe_study, export_study, import_files
from autotune.testing.storage_contract import record
from tests.soak_records import ODD
from tests.study.travel.filled import NAME, VALUES, fill, whichever

Line = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Change exports, import them and count the outcomes."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak imports", description=__doc__)
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--commands", type=int, default=20, help="so many of them by the command itself")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args(arguments)
    rng = random.Random(wanted.seed)
    logging.disable(logging.WARNING)
    came, asked, bad = Counter[str](), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="autotune soak ") as name:
        place = Path(name)
        original = _exported(place)
        print(f"an export of {original.count(bytes([10]))} lines, {len(original)} bytes", flush=True)
        every = max(1, wanted.times // max(1, wanted.commands))
        changed = place / "changed.jsonl"
        for number in range(wanted.times):
            how, content = changed_copy(original, rng)
            changed.write_bytes(content)
            word = in_process(changed, place / f"target{number}")
            came[f"{how}: {word}"] += 1
            if word.startswith("BUG"):
                bad += 1
                print(f"change {number} ({how}): {word}", flush=True)
            if wanted.commands and number % every == 0:
                done = _command(changed, place / f"state{number}")
                asked[f"the command: exit {done.returncode}"] += 1
                if done.returncode not in (0, 1) or "Traceback" in done.stderr or "\x1b" in done.stdout + done.stderr:
                    bad += 1
                    print(f"change {number} ({how}): exit {done.returncode} {done.stderr[-500:]}", flush=True)
    for word, count in sorted((came + asked).items()):
        print(f"{count:6} {word}")
    print(f"{wanted.times} changed files, {sum(asked.values())} commands: {bad} bugs")
    return 1 if bad else 0


def _exported(place: Path) -> bytes:
    """Return the export of a small study with trials of several kinds."""
    storage, path = JournalFolder(place / "studies"), place / "study.jsonl"
    trials = [
        replace(record(), values=VALUES, purpose=Purpose.BASELINE, conditions={"host": "a", "cpu_cores": 2}),
        replace(record(), values={**VALUES, "data.cache": "memory", "x.rate": 0.05}),
        replace(record(), values={**VALUES, "x.on": False}, measurement=None, detail="ValueError: no"),
    ]
    fill(storage, trials)
    export_study(NAME, storage, path)
    return path.read_bytes()


def in_process(path: Path, folder: Path) -> str:
    """Import a file into an empty folder of journals; return the outcome in a word or two."""
    storage = JournalFolder(folder)
    again = path.with_name("again.jsonl")
    try:
        done = import_files([path], whichever, storage)
    except AutotuneError as error:
        if folder.exists():
            return "BUG: something is there after a refusal"
        return "refused" if error.remedy else "BUG: no remedy"
    except BaseException as error:
        return _bug(error)
    try:
        if not done.added:
            return "imported, no trial"
        if describe_study(done.study, storage).trials != done.added:
            return "BUG: not all that was imported can be read"
        export_study(done.study, storage, again)
        if import_files([again], whichever, storage).added:
            return "BUG: its export is not itself"
        return "imported"
    except BaseException as error:
        return _bug(error)
    finally:
        again.unlink(missing_ok=True)
        for left in folder.glob("*") if folder.exists() else ():
            left.unlink()
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()


def _bug(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"BUG {type(error).__name__}: {ascii(str(error))[:80]} in {where.filename}:{where.lineno}"


def changed_copy(original: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Change one copy of an export; return how as well."""
    how = rng.choice([_fields, _fields, _fields, _inner, _inner, _lines, _bytes, _cut, _text])
    return how.__name__.strip("_"), how(original, rng)


def _fields(original: bytes, rng: random.Random) -> bytes:
    """Put anything in some places of some lines."""
    lines = [json.loads(line) for line in original.splitlines()]
    for _ in range(rng.randint(1, 3)):
        _odd(rng.choice(lines), rng)
    return _joined(lines)


def _inner(original: bytes, rng: random.Random) -> bytes:
    """Change a number, a text, or a distribution, which is JSON within JSON, a little."""
    lines = [json.loads(line) for line in original.splitlines()]
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


def _odd(value: Line, rng: random.Random) -> None:
    places = [place for place in _places(value) if place]
    if not places:
        return
    *folders, last = rng.choice(places)
    place: Any = value
    for part in folders:
        place = place[part]
    if isinstance(place, dict) and rng.random() < 0.2:
        del place[last]
    elif isinstance(place, dict) and rng.random() < 0.1:
        place[rng.choice(["new", "\x1b[31m", "\0", "a" * 10_000, last.upper()])] = copy.deepcopy(place[last])
    elif isinstance(place[last], int | float) and abs(place[last]) < 1e100 and rng.random() < 0.4:
        place[last] = place[last] * rng.choice([-1, 0, 0.5, 2, 1e6, 1e200])
    else:
        place[last] = copy.deepcopy(rng.choice(ODD))


def _places(value: Any, *path: Any) -> list[tuple[Any, ...]]:
    below: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        below = list(value.items())
    elif isinstance(value, list):
        below = list(enumerate(value))
    return [path, *(place for key, part in below for place in _places(part, *path, key))]


def _lines(original: bytes, rng: random.Random) -> bytes:
    """Change whole lines: double, leave out, reorder, foreign ones, and a file of another kind."""
    lines = original.splitlines(keepends=True)
    ways: list[Callable[[], list[bytes]]] = [
        lambda: [lines[0], *rng.sample(lines[1:], len(lines) - 1)],
        lambda: rng.sample(lines, rng.randrange(len(lines) + 1)),
        lambda: [line for line in lines for _ in range(rng.randint(0, 3))],
        lambda: [*lines, rng.choice([b"{}\n", b"[]\n", b"\n", b"null\n", b"[" * 10_000 + b"\n", b"\xef\xbb\xbf"])],
        lambda: [os.urandom(rng.randrange(2000))],
        lambda: [lines[0], b"[" * 100_000, b"]" * 100_000, b"\n"],
        lambda: [lines[0], b'{"a":' * 50_000, b"1", b"}" * 50_000, b"\n"],
        lambda: [b'{"format": "autotune study", "version": ', b"9" * rng.choice([30, 6000]), b"}\n", *lines[1:]],
        lambda: [lines[0].replace(b"3}", b"1" * 5000 + b"}"), *lines[1:]],
        lambda: [line.replace(b"\n", b"\r\n") for line in lines],
        lambda: [b"\x1f\x8b", *lines],
        lambda: [],
    ]
    return b"".join(rng.choice(ways)())


def _text(original: bytes, rng: random.Random) -> bytes:
    """Change the JSON itself: doubled keys, NaN, half characters, other encodings, huge numbers."""
    ways: list[Callable[[], bytes]] = [
        lambda: original.replace(b'"score": ', b'"score": 2.0, "score": ', rng.randint(1, 2)),
        lambda: original.replace(b'"score": 1', rng.choice([b'"score": NaN, "x": 1', b'"score": -Infinity, "x": 1'])),
        lambda: original.replace(b'"score": 1', b'"score": 1' + b"0" * rng.choice([10, 400, 5000])),
        lambda: original.replace(b'"memory"', rng.choice([b'"\\ud800"', b'"\\u0000"', b'"\\u202e"', b'"\xff"'])),
        lambda: original.replace(b'"data.cache"', rng.choice([b'"\\ud800"', b'"\\u0000"', b'""', b'"../x"'])),
        lambda: original.decode().encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"])),
        lambda: original.replace(b"2026", rng.choice([b"0001", b"9999", b"2126", b"20266"])),
        lambda: original.replace(b"+00:00", rng.choice([b"", b"+23:59", b"Z", b"-00:00"])),
        lambda: original.replace(NAME.encode(), rng.choice([b"../../x", b"x" * 500, b".", b"a-01234567-0123-0123"])),
    ]
    return rng.choice(ways)()


def _cut(original: bytes, rng: random.Random) -> bytes:
    """Cut it anywhere."""
    return original[: rng.randrange(len(original))]


def _bytes(original: bytes, rng: random.Random) -> bytes:
    """Change single bytes and pieces: flip, cut out, put in."""
    content = bytearray(original)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(content))
        way = rng.randrange(4)
        if way < 2:
            content[at] ^= 1 << rng.randrange(8)
        elif way == 2:
            del content[at : at + rng.randrange(1, 20)]
        else:
            content[at:at] = os.urandom(rng.randrange(1, 20))
    return bytes(content)


def _joined(lines: list[Line]) -> bytes:
    return b"".join(json.dumps(line, sort_keys=True).encode() + b"\n" for line in lines)


def _command(file: Path, state: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "autotune", "study", "import", str(file), "--state-dir", str(state)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )

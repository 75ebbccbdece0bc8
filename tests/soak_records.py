"""Changed records: ``python -m tests.soak fuzz-record`` changes the journal of a real search in thousands of ways.

Each changed journal is opened, summarized and asked for what ``status --json`` and ``apply --dry-run`` say, in this
process; a few dozen are asked by the commands themselves. All that may come of it is an answer or an expected error.
"""

import argparse
import contextlib
import copy
import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.commands.apply_answer import apply_values
from autotune.config.typed import TypedOptions
from autotune.errors import AutotuneError
from autotune.records import Verdict
from autotune.report.answer import print_answer
from autotune.report.console import text_console
from autotune.report.json_answer import answer_document
from autotune.search.known import Study
from autotune.search.problem import Problem, open_problem
from tests.commands.conftest import CONFIG, TRAINER

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**30, -(10**400), 0.5, -0.0, 1.5, 1e-300, 1e300),
    *(float("nan"), float("inf"), float("-inf"), "", "good", "today", "confirm", "NaN", "0x1", "\ud800", "\x1b[2J\x07"),
    *("../../etc/passwd", "{config}", "x" * 100_000, [], {}, [[]], {"": None}, [None] * 1000, {"a": {"b": []}}),
)
Line = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Change records and count the outcomes."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak fuzz-record", description=__doc__)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--commands", type=int, default=40, help="so many of them by the commands themselves")
    parser.add_argument("--budget", type=float, default=15.0, help="of the search that makes the record")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args(arguments)
    rng = random.Random(wanted.seed)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="autotune soak ") as place:
        project = Path(place)
        (project / "config.yaml").write_text(CONFIG % TRAINER)
        _command(project, "search", "--config", "config.yaml", "--budget", f"{wanted.budget:g}s")
        with contextlib.chdir(project):
            problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
            original = problem.journal.read_bytes()
            config = (project / "config.yaml").read_bytes()
            print(f"a record of {original.count(bytes([10]))} lines, {len(original)} bytes", flush=True)
            every = max(1, wanted.times // max(1, wanted.commands))
            came, asked, bad = Counter[str](), Counter[str](), 0
            for number in range(wanted.times):
                how, content = changed(original, rng)
                problem.journal.write_bytes(content)
                word = in_process(problem)
                came[word] += 1
                if word.startswith("BUG"):
                    bad += 1
                    print(f"change {number} ({how}): {word}", flush=True)
                if number % every == 0 and wanted.commands:
                    problem.journal.write_bytes(content)
                    for command in (("status", "--json"), ("status",), ("apply", "--dry-run")):
                        done = _command(project, command[0], "--config", "config.yaml", *command[1:])
                        asked[f"{' '.join(command)}: exit {done.returncode}"] += 1
                        if done.returncode not in (0, 1) or "\x1b" in done.stdout + done.stderr:
                            bad += 1
                            print(f"change {number} ({how}): {command} {done.returncode} {done.stderr[-500:]}")
                        if command[-1] == "--json":
                            json.loads(done.stdout)
                if (project / "config.yaml").read_bytes() != config:
                    bad += 1
                    print(f"change {number} ({how}): the config was changed")
                for left in problem.journal.parent.glob("*.torn"):
                    left.unlink()
            shutil.rmtree(problem.state.path)
    for word, count in sorted((came + asked).items()):
        print(f"{count:6} {word}")
    print(f"{wanted.times} changed records, {sum(asked.values())} commands: {bad} bugs")
    return 1 if bad else 0


def in_process(problem: Problem) -> str:
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
        return "ESCAPE SEQUENCE: BUG" if "\x1b" in said.getvalue() else f"answer: {result.verdict.value}"
    except AutotuneError as error:
        return f"expected error: {error.kind}"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"BUG {type(error).__name__}: {str(error)[:80]} in {where.filename}:{where.lineno}"


def changed(original: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Change one copy of a journal; return how as well."""
    how = rng.choice([_fields, _fields, _fields, _fields, _attributes, _attributes, _lines, _bytes])
    return how.__name__.strip("_"), how(original, rng)


def _fields(original: bytes, rng: random.Random) -> bytes:
    """Put anything in some places of some entries."""
    lines = [json.loads(line) for line in original.splitlines()]
    for _ in range(rng.randint(1, 4)):
        _odd(rng.choice(lines), rng)
    return _joined(lines)


def _attributes(original: bytes, rng: random.Random) -> bytes:
    """Change the trials' own attributes, and nothing of Optuna's."""
    lines = [json.loads(line) for line in original.splitlines()]
    trials = [line for line in lines if "user_attrs" in line]
    for _ in range(rng.randint(1, 6)):
        _odd(rng.choice(trials)["user_attrs"], rng)
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
        place[rng.choice(["new", "\x1b[31m", "a" * 10_000, last.upper()])] = copy.deepcopy(place[last])
    elif isinstance(place[last], (int, float)) and rng.random() < 0.4:
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
        lambda: rng.sample(lines, len(lines)),
        lambda: rng.sample(lines, rng.randrange(len(lines) + 1)),
        lambda: [line for line in lines for _ in range(rng.randint(0, 3))],
        lambda: [*lines, rng.choice([b"{}\n", b"[]\n", b"\n", b"null\n", b'{"op_code":4}\n', b"[" * 10_000 + b"\n"])],
        lambda: [os.urandom(rng.randrange(2000))],
        lambda: [b"[" * 100_000, b"]" * 100_000, b"\n"],
        lambda: [b'{"a":' * 50_000, b"1", b"}" * 50_000, b"\n", *lines],
        lambda: [b'{"op_code":', b"9" * 6000, b"}\n", *lines],
        lambda: [],
    ]
    return b"".join(rng.choice(ways)())


def _bytes(original: bytes, rng: random.Random) -> bytes:
    """Change single bytes and pieces: flip, cut out, put in, cut off."""
    content = bytearray(original)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(content) + 1)
        way = rng.randrange(4)
        if way == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            del content[at : at + rng.randrange(100)]
        elif way == 2:
            content[at:at] = os.urandom(rng.randrange(1, 50))
        else:
            del content[at:]
    return bytes(content)


def _joined(lines: list[Line]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def _command(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )

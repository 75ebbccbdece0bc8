"""Harness of the long checks: options, projects and processes, a line for each case, and the count of what is wrong."""

import argparse
import contextlib
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from autotune.trial.folders import delete_tree
from tests.command_line import CONFIG

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINER = REPOSITORY / "tests" / "toys" / "toy_trainer.py"
AUTOTUNE = (sys.executable, "-m", "autotune")
_PATIENCE_S = 5.0


class Result:
    """One line of a check's output, and what must not be, a sentence each; what is false or empty is left out."""

    def __init__(self, text: str, *wrong: object) -> None:
        self.text = text
        self.wrong = [str(one) for one in wrong if one]


@dataclass(frozen=True)
class Check:
    """One long check.

    Attributes:
        name: Its command.
        run: Yields its results.
        help: What it does, in a few sentences.
        times: Default of ``--times``; None where it makes sense once.
        cases: Names of its cases, which ``--only`` takes.
        options: Defaults of further options; fractions are seconds. A type asks for a value of it, a tuple has choices.
    """

    name: str
    run: "Callable[[Soak], Iterable[Result]]"
    help: str
    _: KW_ONLY
    times: int | None = None
    cases: Iterable[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def add_to(self, commands: Any) -> None:
        """Add the command with its options."""
        parser = commands.add_parser(self.name, help=self.help.partition("\n")[0], description=self.help)
        parser.add_argument("--keep", action="store_true", help="keep what it has made, and say where")
        if self.cases:
            parser.add_argument("--only", nargs="+", choices=list(self.cases), metavar="NAME", help="of its cases")
        repeated = {} if self.times is None else {"--times": self.times, "--first": 0}
        for flag, default in {"--seed": 0, **repeated, **self.options}.items():
            if isinstance(default, tuple):
                parser.add_argument(flag, choices=default, default=default[0])
            elif isinstance(default, type):
                parser.add_argument(flag, type=default, **{"required": True} if flag[0] == "-" else {})
            else:
                unit = "seconds, " if isinstance(default, float) else ""
                parser.add_argument(flag, type=type(default), default=default, help=f"{unit}default: {default}")


def check(**how: Any) -> "Callable[[Callable[[Soak], Iterable[Result]]], Check]":
    """Make a check of a function, which has its name, and says in its docstring what it does; see `Check`."""
    return lambda run: Check(run.__name__.replace("_", "-"), run, inspect.cleandoc(run.__doc__ or ""), **how)


class Soak:
    """One run of a check.

    Attributes:
        options: What was typed.
        folder: Folder for all that it makes, which is deleted in the end.
        rng: Random numbers of its seed.
        counts: How often what happened; printed in the end.
    """

    def __init__(self, check: Check, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.rng, self.counts = random.Random(options.seed), Counter[str]()
        self._names, self._started = list(check.cases), list[subprocess.Popen[Any]]()

    @property
    def cases(self) -> list[str]:
        """Names of the cases that were asked for."""
        return self.options.only or self._names

    @property
    def numbers(self) -> range:
        """Numbers of the repetitions that were asked for."""
        return range(self.options.first, self.options.first + self.options.times)

    def place(self, name: str = "project") -> Path:
        """Make an empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name} ", dir=self.folder))

    def project(self, trainer: str = TRAINER.read_text(), text: str = CONFIG, **keys: object) -> Path:
        """Make a project, of the toy trainer if nothing is said, with further keys in its config."""
        folder = self.place()
        more = "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
        (folder / "config.yaml").write_text(text.replace("out:", f"{more}out:", 1))
        (folder / "train.py").write_text(trainer)
        return folder

    def autotune(self, cwd: Path, *words: str, env: Mapping[str, str] = {}) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, with nobody at its terminal."""
        return subprocess.run(
            [*AUTOTUNE, *words],
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, cwd: Path, *words: str, env: Mapping[str, str] = {}, **how: Any) -> "subprocess.Popen[Any]":
        """Start a command line, whose output is dropped if nothing is said; it is ended with the check."""
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **how}
        process = subprocess.Popen(words, cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL, **streams)
        self._started.append(process)
        return process

    def search(
        self,
        cwd: Path,
        budget_s: float,
        *words: str,
        command: str = "search",
        inside: Callable[..., tuple[str, ...]] = lambda *words: words,
        **how: Any,
    ) -> Any:
        """Start a search, or a worker, perhaps inside another command; see `start`."""
        typed = (command, "--config", "config.yaml", "--budget", f"{budget_s:g}s", *words)
        return self.start(cwd, *inside(*AUTOTUNE, *typed), **how)

    def map(self, make: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield what is made of each item, in their order, as many at a time as ``--jobs`` says."""
        with ThreadPoolExecutor(self.options.jobs) as pool:
            yield from pool.map(make, items)

    def end(self) -> None:
        """End what is still running of what was started: a search, or a daemon, ends what is below it."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            process.kill()
            process.wait()


def left(project: Path, patience_s: float = 0.0) -> list[str]:
    """Name the processes that a project's trials have left, or that work in it, after some time for their guard."""
    over_s = time.monotonic() + patience_s
    while True:
        pids = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_trial = process.environ().get("AUTOTUNE_TRIAL_DIR", "").startswith(str(project))
                if (is_trial or Path(process.cwd()).is_relative_to(project)) and process.status() != "zombie":
                    pids.add(process.pid)
        if not pids or time.monotonic() > over_s:
            return [f"left running: process {pid}" for pid in sorted(pids)]
        time.sleep(0.05)


def run(words: Sequence[str], checks: Iterable[Check]) -> int:
    """Run the check that is asked for; print a line for each case, what is wrong, and a summary.

    Returns:
        0 if nothing is wrong, else 1.
    """
    table = {check.name: check for check in checks}
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Long checks, with numbers.")
    commands = parser.add_subparsers(dest="check", required=True, metavar="CHECK")
    for check in table.values():
        check.add_to(commands)
    options = parser.parse_args(words)
    check, began_s, cases, wrong = table[options.check], time.monotonic(), 0, 0
    folder = Path(tempfile.mkdtemp(prefix="autotune soak "))
    soak = Soak(check, options, folder)
    try:
        for result in check.run(soak):
            print(result.text, *(f"    WRONG: {one}" for one in result.wrong), sep="\n", flush=True)
            cases, wrong = cases + 1, wrong + len(result.wrong)
    finally:
        soak.end()
        remain = left(folder, _PATIENCE_S)
        if options.keep:
            print(f"kept: {folder}")
        else:
            delete_tree(folder)
    for word, count in sorted(soak.counts.items()):
        print(f"{count:9,}  {word}")
    print(
        *remain,
        f"{check.name}: {cases} lines in {time.monotonic() - began_s:.0f} s, {wrong + len(remain)} wrong",
        sep="\n",
    )
    return 1 if wrong or remain else 0


def _told_to_end(*_: object) -> None:
    raise KeyboardInterrupt


def main(checks: Iterable[Check]) -> int:
    """Run what was typed."""
    # A job in the background of a script ignores ^C, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _told_to_end)
    import pytest

    try:
        return run(sys.argv[1:], checks)
    except pytest.skip.Exception as missing:
        print(f"this cannot run here: {missing}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130

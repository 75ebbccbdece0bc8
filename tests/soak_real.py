"""Matrix of real trainers: ``python -m tests.soak real DIR`` tunes each as a user would, and checks what it says.

DIR holds checkouts of public repositories by their names (DIR/nanoGPT, ...); nothing of them is kept here. What is
missing is skipped, and said by name. For each trainer of `tests.real_trainers.table` a project is made in a temporary
folder, with synthetic data in the trainer's format and a home folder of its own; then ``autotune init --yes`` and
``autotune search`` are typed in it. One line a trainer says what came of it; ``--out`` gets one JSON object a line.

Samples are checked against the trainer's own log, a gain against plain trainings with today's and with the best values
in turn, and the project, the home folder and the folders for temporary files are looked over for what was left.
"""

import argparse
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import yaml

from autotune.clock import parse_duration_s
from tests.real_trainers.litter import TemporaryFiles, differing, tree
from tests.real_trainers.outcome import Outcome, number_of
from tests.real_trainers.programs import Done, environment, run, trained
from tests.real_trainers.table import TRAINERS
from tests.real_trainers.trainer import Place, Trainer
from tests.real_trainers.watching import Watch

REPOSITORY = Path(__file__).resolve().parents[1]

PAIRS = 2
"""Pairs of plain trainings that confirm a gain."""

_INIT_LIMIT_S = 400.0
_BEYOND_BUDGET_S = 30.0


class Session:
    """Session of a user with one trainer, in a project and a home folder of its own.

    Args:
        trainer: Row of the table.
        checkouts: Folder of the checkouts.
        python: Interpreter that has the trainer's packages.
        packages: Folder of these packages.
        work: Empty folder for all of it.
    """

    def __init__(self, trainer: Trainer, checkouts: Path, python: Path, packages: Path, work: Path) -> None:
        self.trainer = trainer
        self.project, self.home, self.logs = work / "project", work / "home", work / "logs"
        for folder in (self.project, self.home, self.logs):
            folder.mkdir()
        self.cwd = self.project / trainer.folder
        self.env = environment(python, self.home, trainer.env)
        source = packages / trainer.package if trainer.package else checkouts / trainer.checkout
        self._place = Place(project=self.project, home=self.home, checkout=source, python=python, env=self.env)
        self._temporary = TemporaryFiles(work, REPOSITORY)

    def outcome(self, budget: str, seconds: float) -> Outcome:
        """Do everything that a row asks for."""
        trainer = self.trainer
        outcome = Outcome(name=trainer.name, framework=trainer.framework, waits=trainer.waits)
        try:
            self.trainer.lay_out(self._place)
            self._tune(outcome, budget)
            if outcome.best:
                self._confirm(outcome, seconds)
        except Exception as error:
            outcome.failed = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        finally:
            self._temporary.remove()
        return outcome

    def _tune(self, outcome: Outcome, budget: str) -> None:
        project, home = tree(self.project), tree(self.home)
        self._init(outcome)
        watch = Watch(self.project, self.trainer.log)
        with watch.watching():
            searched = self._autotune(
                "search",
                *("search", "--config", self.trainer.config, "--budget", budget, "--json"),
                limit_s=parse_duration_s(budget) + _BEYOND_BUDGET_S,
            )
        outcome.answer_s = searched.took_s
        outcome.take_answer(_answer(searched))
        state = next(self.project.rglob(".autotune"), self.project / ".autotune")
        outcome.take_events(state)
        outcome.take_counts(self.trainer, state, watch)
        config = str((self.cwd / self.trainer.config).relative_to(self.project))
        own = {f"+{config}", f"~{config}", f"+{Path(config).with_suffix('.autotune.yaml')}"}
        outcome.differs = [change for change in differing(project, tree(self.project)) if change not in own]
        outcome.home = differing(home, tree(self.home))
        outcome.temporary = [str(path) for path in self._temporary.left()]

    def _init(self, outcome: Outcome) -> None:
        """Type ``autotune init --yes``, then by hand what it cannot know."""
        trainer, config = self.trainer, self.cwd / self.trainer.config
        words = shlex.split(trainer.command)
        init = self._autotune(
            "init", "init", "--yes", *trainer.init, "--config", trainer.config, "--", *words, limit_s=_INIT_LIMIT_S
        )
        outcome.init = "ok" if init.code == 0 else f"exit {init.code}: {_last_words(init)}"
        outcome.words = trainer.words
        if trainer.written_by_hand:
            config.write_text(trainer.written_by_hand)
            return
        if init.code != 0 and (init.code != 1 or self._again(words).code != 0):
            return
        if trainer.by_hand:
            with self._section().open("a") as file:
                file.write(trainer.by_hand)

    def _again(self, words: list[str]) -> Done:
        """Type it without the proof, as a user does who knows better."""
        init = ("init", "--yes", *self.trainer.init, "--no-preflight", "--config", self.trainer.config)
        return self._autotune("init-no-proof", *init, "--", *words, limit_s=_INIT_LIMIT_S)

    def _section(self) -> Path:
        separate = (self.cwd / self.trainer.config).with_suffix(".autotune.yaml")
        return separate if separate.exists() else self.cwd / self.trainer.config

    def _autotune(self, name: str, *words: str, limit_s: float) -> Done:
        return run(
            [sys.executable, "-m", "autotune", *words],
            cwd=self.cwd,
            env=self.env,
            logs=self.logs / name,
            group=self._temporary.group,
            limit_s=limit_s,
        )

    def _confirm(self, outcome: Outcome, seconds: float) -> None:
        """Train with today's and with the best values in turn, without autotune, each in a fresh copy."""
        tuned = self.project.with_name("tuned")
        shutil.copytree(self.project, tuned, symlinks=True)
        applied = run(
            [sys.executable, "-m", "autotune", "apply", "--force", "--config", self.trainer.config],
            cwd=tuned / self.trainer.folder,
            env=self.env,
            logs=self.logs / "apply",
            group=self._temporary.group,
            limit_s=60.0,
        )
        if applied.code != 0:
            outcome.remarks.append(f"apply: exit {applied.code}: {_last_words(applied)}")
            return
        for pair in range(PAIRS):
            baseline = self._rate(self.project, f"today {pair}", seconds)
            best = self._rate(tuned, f"best {pair}", seconds)
            if baseline and best:
                outcome.confirmed.append(best / baseline)

    def _rate(self, project: Path, name: str, seconds: float) -> float | None:
        fresh = project.with_name("training")
        shutil.copytree(project, fresh, symlinks=True, ignore=shutil.ignore_patterns("trials", "cache"))
        try:
            values = yaml.safe_load((fresh / self.trainer.folder / self.trainer.config).read_text())
            return trained(
                [sys.executable, "-m", "autotune", "run", "--config", self.trainer.config],
                self.trainer.log,
                batch=number_of(values, self.trainer.batch),
                accumulation=number_of(values, self.trainer.accumulation),
                cwd=fresh / self.trainer.folder,
                env=self.env,
                logs=self.logs / name,
                group=self._temporary.group,
                seconds=seconds,
            )
        finally:
            shutil.rmtree(fresh)


def _answer(searched: Done) -> dict[str, Any]:
    try:
        answer = json.loads(searched.out)
    except ValueError:
        kind = "none in time" if searched.code is None else f"no JSON, exit {searched.code}"
        return {"error": {"kind": kind, "message": _last_words(searched)}}
    return answer if isinstance(answer, dict) else {}


def _last_words(done: Done) -> str:
    lines = [line for line in (done.err or done.out).splitlines() if line.strip()]
    return " | ".join(lines[-3:])[:400]


def line(outcome: Outcome) -> str:
    """Write the outcome of one row as a line for people."""
    speedup = "{:.2f}x ({:.2f}-{:.2f})".format(*outcome.speedup) if outcome.speedup else "-"
    counted = (
        "-" if outcome.counted is None else f"{outcome.counted:.3f}{' WRONG' if outcome.is_right is False else ''}"
    )
    wait = "-" if outcome.data_wait is None else f"{100 * outcome.data_wait:.0f} %"
    confirmed = ", ".join(f"{ratio:.2f}x" for ratio in outcome.confirmed) or "-"
    parts = (
        f"{outcome.name:<28} {outcome.verdict or 'failed'}",
        f"init {outcome.init}",
        f"words {outcome.words}",
        f"steps {outcome.steps}",
        f"samples/own log {counted} of {outcome.own_samples:g}",
        f"data wait {wait}{'' if outcome.is_wait_plausible else ' IMPLAUSIBLE'}",
        f"speedup {speedup}",
        f"in plain training {confirmed}",
        f"answer after {outcome.answer_s or 0:.0f} s",
        f"start {outcome.start}",
        f"endings {', '.join(f'{count} {ending}' for ending, count in outcome.endings.items()) or '-'}",
        f"project {' '.join(outcome.differs) or 'untouched'}",
        f"home {' '.join(outcome.home) or '-'}",
        f"temporary {' '.join(_grouped(outcome.temporary)) or '-'}",
        *([f"FAILED {outcome.failed}"] if outcome.failed else []),
    )
    return "; ".join(parts)


def _grouped(paths: list[str]) -> list[str]:
    """Name files that are called alike once, with their number."""
    alike = Counter(re.sub(r"(?<=[-_])[^-_/]*$|(?<=/[A-Za-z_]{12}).*$", "*", path) for path in paths)
    return [f"{name} ({count})" if count > 1 else name for name, count in alike.items()]


def main(arguments: list[str]) -> int:
    """Go through the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak real", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, metavar="DIR", help="folder with the checkouts")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter with their packages")
    parser.add_argument("--only", nargs="+", choices=[trainer.name for trainer in TRAINERS], metavar="NAME")
    parser.add_argument("--budget", default="90s")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of a plain training")
    parser.add_argument("--out", type=Path, help="file that gets one JSON object for each trainer, appended")
    parser.add_argument("--keep", action="store_true", help="keep the projects and logs, and say where")
    wanted = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupted)
    packages = _packages(wanted.python)
    good = True
    try:
        for trainer in TRAINERS:
            if wanted.only and trainer.name not in wanted.only:
                continue
            if missing := trainer.missing(wanted.checkouts, packages):
                print(f"{trainer.name:<28} skipped: {missing}", flush=True)
                continue
            outcome = _row(trainer, wanted, packages)
            print(line(outcome), flush=True)
            if wanted.out:
                with wanted.out.open("a") as file:
                    file.write(json.dumps(asdict(outcome) | {"start": outcome.start}) + "\n")
            good = good and not outcome.failed and outcome.is_right is not False and outcome.is_wait_plausible
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0 if good else 1


def _row(trainer: Trainer, wanted: argparse.Namespace, packages: Path) -> Outcome:
    work = Path(tempfile.mkdtemp(prefix=f"autotune-real-{trainer.name}-"))
    try:
        session = Session(trainer, wanted.checkouts.resolve(), wanted.python.absolute(), packages, work)
        return session.outcome(wanted.budget, wanted.seconds)
    finally:
        if wanted.keep:
            print(f"{trainer.name:<28} kept: {work}", flush=True)
        else:
            shutil.rmtree(work, ignore_errors=True)


def _packages(python: Path) -> Path:
    """Find the folder of an interpreter's packages."""
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return Path(done.stdout.strip())


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt

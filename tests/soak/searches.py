"""Searches as users type them, over trainers that misbehave and trainers of public repositories."""

import json
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from autotune.clock import parse_duration_s
from tests.real_trainers import litter
from tests.real_trainers.outcome import Outcome, number_of
from tests.real_trainers.programs import Done, environment, run, trained
from tests.real_trainers.table import TRAINERS
from tests.real_trainers.trainer import Place, Trainer
from tests.real_trainers.watching import Watch
from tests.soak.harness import AUTOTUNE, Result, Soak, check, left
from tests.soak.moods import MOODS

_MOODY = Path(__file__).with_name("moods.py").read_text()
_MOST_OVERRUN_S = 2.0
_WEIGHTS = b"the weights of two weeks"


def _json_of(text: str | bytes) -> dict[str, Any]:
    """Return the object that a text consists of; an empty one if it is anything else."""
    with suppress(ValueError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}


@check(cases=MOODS, options={"--budget": 15.0, "--jobs": 2})
def hostile(soak: Soak) -> Iterator[Result]:
    """Trainers that misbehave in fifty ways, each searched once.

    The search is over two seconds after its budget at most, tells one object, leaves nothing running, and the
    user's own files are as they were.
    """
    yield from soak.map(lambda mood: _searched(soak, mood), soak.cases)


def _searched(soak: Soak, mood: str) -> Result:
    """Search in a project of its own, with a checkpoint and a folder of the user's in it."""
    project, budget_s = soak.project(_MOODY, mood=mood, features="features"), soak.options.budget
    text, said = (project / "config.yaml").read_bytes(), soak.place()
    (project / "model.ckpt").write_bytes(_WEIGHTS)
    (project / "features").mkdir()
    began_s = time.monotonic()
    with (said / "out").open("wb") as out, (said / "err").open("wb") as err:
        how = {"stdout": out, "stderr": err, "start_new_session": True}
        search = soak.search(project, budget_s, "--json", **how)
        with suppress(subprocess.TimeoutExpired):
            search.wait(budget_s + 120)
    over_s, code = time.monotonic() - began_s - budget_s, search.poll()
    document, screen = _json_of((said / "out").read_bytes()), (said / "out").read_bytes() + (said / "err").read_bytes()
    error = document.get("error", {})
    verdict = document.get("verdict") or f"{error.get('kind')} ({error.get('message', '')[:60]})"
    checkpoint = project / "model.ckpt"
    wrong = [
        over_s > _MOST_OVERRUN_S and f"{over_s:.1f} s too late",
        code not in (0, 1) and f"exit code {code}",
        not document and "no JSON",
        b"\x1b" in screen and "an escape sequence was printed",
        (project / "config.yaml").read_bytes() != text and "the config was changed",
        not (checkpoint.is_file() and checkpoint.read_bytes() == _WEIGHTS) and "the checkpoint is lost",
        *left(project),
    ]
    for line in Path("/proc/mounts").read_text().splitlines():
        if project.name.split()[-1] in line:
            subprocess.run(["umount", "--lazy", line.split()[1].replace("\\040", " ")], check=False)
    subprocess.run(["chattr", "-R", "-i", str(project)], check=False, capture_output=True)
    return Result(f"{mood:<32} {over_s:+7.2f} s, exit {code}  {verdict}", *wrong)


class Session:
    """Session of a user with one real trainer, in a project and a home folder of its own.

    Args:
        trainer: Row of the table.
        options: Options of the check.
        packages: Folder of the trainer's packages.
        work: Empty folder for all of it.
    """

    def __init__(self, trainer: Trainer, options: Any, packages: Path, work: Path) -> None:
        self.trainer, self.outcome = trainer, Outcome(name=trainer.name, waits=trainer.waits)
        self.project, self.home, self.logs = work / "project", work / "home", work / "logs"
        for folder in (self.project, self.home, self.logs):
            folder.mkdir()
        self.cwd, python = self.project / trainer.folder, Path(options.python).absolute()
        self.env = environment(python, self.home, trainer.env)
        checkouts = options.checkouts.resolve()
        source = packages / trainer.package if trainer.package else checkouts / trainer.checkout
        self._place = Place(project=self.project, home=self.home, checkout=source, python=python, env=self.env)

    def make(self, budget: str, seconds: float) -> None:
        """Do everything that a row asks for."""
        try:
            self.trainer.lay_out(self._place)
            self._tune(budget)
            if self.outcome.best:
                self._confirm(seconds)
        except Exception as error:
            self.outcome.failed = f"{type(error).__name__}: {error}"
            traceback.print_exc()

    def _tune(self, budget: str) -> None:
        trainer, outcome = self.trainer, self.outcome
        project, home = litter.tree(self.project), litter.tree(self.home)
        self._init()
        words = ("search", "--config", trainer.config, "--budget", budget, "--json")
        with Watch(self.project, trainer.log).watching() as watch:
            searched = self._autotune(*words, limit_s=parse_duration_s(budget) + 30.0)
        kind = "none in time" if searched.code is None else f"no JSON, exit {searched.code}"
        nothing = {"error": {"kind": kind, "message": _last_words(searched)}}
        outcome.take_answer(_json_of(searched.out) or nothing)
        state = next(self.project.rglob(".autotune"), self.project / ".autotune")
        outcome.take_events(state)
        outcome.take_counts(trainer, state, watch)
        config = str((self.cwd / trainer.config).relative_to(self.project))
        own = {f"+{config}", f"~{config}", f"+{Path(config).with_suffix('.autotune.yaml')}"}
        changes = litter.differing(project, litter.tree(self.project))
        outcome.differs = [change for change in changes if change not in own]
        outcome.home = litter.differing(home, litter.tree(self.home))

    def _init(self) -> None:
        """Type ``autotune init --yes``, then by hand what it cannot know."""
        trainer, config = self.trainer, self.cwd / self.trainer.config
        init = ("init", "--yes", *trainer.init, "--config", trainer.config)
        command = ("--", *shlex.split(trainer.command))
        done = self._autotune(*init, *command, limit_s=400.0)
        self.outcome.init = "ok" if done.code == 0 else f"exit {done.code}: {_last_words(done)}"
        if trainer.written_by_hand:
            config.write_text(trainer.written_by_hand)
            return
        if done.code == 1:  # typed without the proof, as a user does who knows better
            done = self._autotune(*init, "--no-preflight", *command, limit_s=400.0)
        if done.code == 0 and trainer.by_hand:
            separate = config.with_suffix(".autotune.yaml")
            with (separate if separate.exists() else config).open("a") as file:
                file.write(trainer.by_hand)

    def _autotune(self, *words: str, limit_s: float, cwd: Path | None = None) -> Done:
        logs = self.logs / words[0]
        return run([*AUTOTUNE, *words], cwd=cwd or self.cwd, env=self.env, logs=logs, limit_s=limit_s)

    def _confirm(self, seconds: float) -> None:
        """Train with today's and with the best values in turn, without autotune, each in a fresh copy."""
        tuned = self.project.with_name("tuned")
        shutil.copytree(self.project, tuned, symlinks=True)
        apply = ("apply", "--all", "--force", "--config", self.trainer.config)
        applied = self._autotune(*apply, limit_s=60.0, cwd=tuned / self.trainer.folder)
        if applied.code != 0:
            self.outcome.remarks.append(f"apply: exit {applied.code}: {_last_words(applied)}")
            return
        for _ in range(2):
            baseline, best = self._rate(self.project, seconds), self._rate(tuned, seconds)
            if baseline and best:
                self.outcome.confirmed.append(best / baseline)

    def _rate(self, project: Path, seconds: float) -> float | None:
        fresh, trainer = project.with_name("training"), self.trainer
        shutil.copytree(project, fresh, symlinks=True, ignore=shutil.ignore_patterns("trials", "cache"))
        cwd, words = fresh / trainer.folder, [*AUTOTUNE, "run", "--config", trainer.config]
        values = yaml.safe_load((cwd / trainer.config).read_text())
        done = trained(words, trainer.log, seconds=seconds, logs=self.logs / "run", cwd=cwd, env=self.env)
        shutil.rmtree(fresh)
        batch, accumulation = number_of(values, trainer.batch), number_of(values, trainer.accumulation)
        return done and trainer.log.samples(done, batch=batch, accumulation=accumulation)


def _last_words(done: Done) -> str:
    lines = [line for line in (done.err or done.out).splitlines() if line.strip()]
    return " | ".join(lines[-3:])[:400]


@check(
    cases=[trainer.name for trainer in TRAINERS],
    options={"checkouts": Path, "--python": sys.executable, "--budget": "90s", "--seconds": 40.0},
)
def real(soak: Soak) -> Iterator[Result]:
    """Trainers of public repositories, tuned as a user would.

    Their checkouts are in a folder, by name; what is missing is skipped. Samples are checked against each trainer's
    own log, a gain against plain trainings with today's and the best values in turn, and it is looked for what was
    left in the project and in the home folder.
    """
    options = soak.options
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([options.python, "-c", program], text=True).strip())
    for trainer in TRAINERS:
        if trainer.name not in soak.cases:
            continue
        if missing := trainer.missing(options.checkouts, packages):
            yield Result(f"{trainer.name:<28} skipped: {missing}")
            continue
        session = Session(trainer, options, packages, soak.place(trainer.name))
        session.make(options.budget, options.seconds)
        yield _row(session.outcome)


def _row(found: Outcome) -> Result:
    fields = {name: value for name, value in asdict(found).items() if value and name != "name"}
    shown = [f"{name} {f'{value:.3g}' if isinstance(value, float) else value}" for name, value in fields.items()]
    return Result(
        "; ".join([f"{found.name:<28}", *shown]),
        found.failed,
        found.is_right is False and "the samples are not those of the trainer's own log",
        not found.is_wait_plausible and "the wait for data is not plausible",
    )

"""Commands as users type them: over trainers of all kinds and moods, under signals, in projects full of traps."""

import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from autotune.clock import parse_duration_s
from tests.commands import test_looking as planting
from tests.commands.conftest import CONFIG
from tests.commands.test_json_under_signals import CODES, listens
from tests.commands.test_styles import tree, with_folders
from tests.real_trainers import litter
from tests.real_trainers.outcome import Outcome, number_of
from tests.real_trainers.programs import Done, environment, run, trained
from tests.real_trainers.table import TRAINERS
from tests.real_trainers.trainer import Place, Trainer
from tests.real_trainers.watching import Watch
from tests.soak.harness import AUTOTUNE, REPOSITORY, Result, Soak, check, json_of, left
from tests.soak.moods import MOODS
from tests.trainers.styles import STYLES

_MOODY = Path(__file__).with_name("moods.py")
_MOST_OVERRUN_S = 2.0
_WEIGHTS = b"the weights of two weeks"
_CONFIG = ("--config", "config.yaml")


@check(cases=MOODS, options={"--budget": 15.0, "--jobs": 2})
def hostile(soak: Soak) -> Iterator[Result]:
    """Trainers that misbehave in fifty ways, each searched once.

    The search is over two seconds after its budget at most, tells one object, leaves nothing running, and the
    user's own files are as they were.
    """
    yield from soak.map(lambda mood: _searched(soak, mood), soak.cases)


def _searched(soak: Soak, mood: str) -> Result:
    """Search in a project of its own, with a checkpoint and a folder of the user's in it."""
    project, budget_s = soak.project(CONFIG % _MOODY, mood=mood, features="features"), soak.options.budget
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
    document, screen = json_of((said / "out").read_bytes()), (said / "out").read_bytes() + (said / "err").read_bytes()
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


@check(times=100)
def json_under_signals(soak: Soak) -> Iterator[Result]:
    """Signals at random moments of search and status with --json: one object, the right code, nothing left running.

    One or two of them; half of the time a second one ends the command by force, at once.
    """
    project = soak.project()
    for number in soak.numbers:
        rng, is_forced = random.Random(f"{soak.options.seed} {number}"), number % 2 == 1
        first, insisting_s = rng.choice(list(CODES)), 0.0 if is_forced else 5.0
        shutil.rmtree(project / ".autotune", ignore_errors=True)
        words = (
            ("search", *_CONFIG, "--budget", "6s", "--json") if rng.random() < 0.8 else ("status", *_CONFIG, "--json")
        )
        code = (  # a later signal ends it by force after so long
            "import sys; from autotune.trial import termination; from autotune.__main__ import main; "
            f"termination.INSISTING_S = {insisting_s}; sys.argv[1:] = {list(words)!r}; main()"
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process, pause = soak.start(project, sys.executable, "-c", code, **pipes), threading.Event().wait
        with suppress(ProcessLookupError, FileNotFoundError):
            listens(process)
        pause(rng.choice((0.0, rng.uniform(0.0, 1.5), rng.uniform(1.0, 7.0))))
        process.send_signal(first)
        if rng.random() < 0.7:
            pause(rng.uniform(0.0, 0.25))
            process.send_signal(rng.choice((signal.SIGINT, signal.SIGTERM)))
        out, err = process.communicate(timeout=120)
        document, exits = json_of(out), {0, 1, *(code for code, _ in CODES.values())}
        said = (document.get("verdict") or "error") if document else "nothing"
        soak.counts[f"{words[0]}, {'by force' if is_forced else 'in order'}, exit {process.returncode}: {said}"] += 1
        wrong = [
            # The second one may come while the first is answered, and ends it by force in the middle of that.
            not document and (out or not is_forced) and f"no single object: {out[-200:]!r}",
            "Traceback" in err + out and err[-2000:],
            process.returncode not in exits and f"exit {process.returncode}",
            *left(project),
        ]
        if any(wrong):
            yield Result(f"number {number}, {first.name} first", *wrong)


@check(cases=STYLES, options={"--budget": 60.0})
def styles(soak: Soak) -> Iterator[Result]:
    """Init and search over each trainer of tests/trainers, as it comes from its user.

    Nothing else changes in the project, and what is known of a trainer is found.
    """
    for name in soak.cases:
        style, project = STYLES[name], soak.place()
        style.lay_out(project)
        before, wrong = tree(project), []
        kind = "--from-flags" if style.config is None else "--separate"
        command = ("--", sys.executable, "train.py", *shlex.split(style.flags))
        init = ("init", "--yes", kind, *_CONFIG)
        made = soak.autotune(project, *init, *command)
        if made.returncode == 1:  # the user's config does not train; whoever wants to search all the same says so
            made = soak.autotune(project, *init, "--no-preflight", *command)
        searched = soak.autotune(project, "search", *_CONFIG, "--budget", f"{soak.options.budget:g}s")
        wrong = [step.returncode and step.stderr for step in (made, searched)]
        own = {"config.autotune.yaml"} if style.config else {"config.yaml"}
        after = {path: content for path, content in tree(project).items() if path not in own}
        differs = {path for path in after.keys() | before.keys() if after.get(path) != before.get(path)}
        if more := differs - set(with_folders(style.leaves)):
            wrong.append(f"changed in the project: {', '.join(sorted(more))}")
        if style.finds and not any(wrong):
            values = json_of(soak.autotune(project, "status", *_CONFIG, "--json").stdout)["best"]["values"]
            wrong.append({path: values[path] for path, value in style.finds.items() if values[path] != value})
        answer = searched.stdout.strip().partition("\n")[0]
        yield Result(f"{name}: python train.py {style.flags}: {answer}", *wrong, *left(project))


@check(cases=(*planting.COMMANDS, *planting.OTHERS))
def looking(soak: Soak) -> Iterator[Result]:
    """Commands that only look, in a project full of planted things, none of which runs.

    Prints what each starts.
    """
    with planting.planted_project(soak.place()) as planted:
        yield Result(f"{len(planted.names)} planted things")
        for name in soak.cases:
            look = planting.OTHERS.get(name, lambda one, name=name: planting.looked(one, name))
            programs = look(planted)
            yield Result(f"{name:28}  {', '.join(programs)}", *planted.fired())


class Session:
    """Session of a user with one real trainer, in a project and a home folder of its own.

    Args:
        trainer: Row of the table.
        options: Options of the check.
        packages: Folder of the trainer's packages.
        work: Empty folder for all of it.
    """

    def __init__(self, trainer: Trainer, options: Any, packages: Path, work: Path) -> None:
        self.trainer, self.outcome = (
            trainer,
            Outcome(name=trainer.name, framework=trainer.framework, waits=trainer.waits),
        )
        self.project, self.home, self.logs = work / "project", work / "home", work / "logs"
        for folder in (self.project, self.home, self.logs):
            folder.mkdir()
        self.cwd, python = self.project / trainer.folder, Path(options.python).absolute()
        self.env = environment(python, self.home, trainer.env)
        checkouts = options.checkouts.resolve()
        source = packages / trainer.package if trainer.package else checkouts / trainer.checkout
        self._place = Place(project=self.project, home=self.home, checkout=source, python=python, env=self.env)
        self._temporary = litter.TemporaryFiles(work, REPOSITORY)

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
        finally:
            self._temporary.remove()

    def _tune(self, budget: str) -> None:
        trainer, outcome = self.trainer, self.outcome
        project, home = litter.tree(self.project), litter.tree(self.home)
        self._init()
        watch, words = (
            Watch(self.project, trainer.log),
            ("search", "--config", trainer.config, "--budget", budget, "--json"),
        )
        with watch.watching():
            searched = self._autotune(*words, limit_s=parse_duration_s(budget) + 30.0)
        kind = "none in time" if searched.code is None else f"no JSON, exit {searched.code}"
        nothing = {"error": {"kind": kind, "message": _last_words(searched)}}
        outcome.answer_s = searched.took_s
        outcome.take_answer(json_of(searched.out) or nothing)
        state = next(self.project.rglob(".autotune"), self.project / ".autotune")
        outcome.take_events(state)
        outcome.take_counts(trainer, state, watch)
        config = str((self.cwd / trainer.config).relative_to(self.project))
        own = {f"+{config}", f"~{config}", f"+{Path(config).with_suffix('.autotune.yaml')}"}
        changes = litter.differing(project, litter.tree(self.project))
        outcome.differs = [change for change in changes if change not in own]
        outcome.home = litter.differing(home, litter.tree(self.home))
        outcome.temporary = [str(path) for path in self._temporary.left()]

    def _init(self) -> None:
        """Type ``autotune init --yes``, then by hand what it cannot know."""
        trainer, config = self.trainer, self.cwd / self.trainer.config
        init, command = (
            ("init", "--yes", *trainer.init, "--config", trainer.config),
            ("--", *shlex.split(trainer.command)),
        )
        done = self._autotune(*init, *command, limit_s=400.0)
        self.outcome.init = "ok" if done.code == 0 else f"exit {done.code}: {_last_words(done)}"
        self.outcome.words = trainer.words
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
        how = {"env": self.env, "group": self._temporary.group, "limit_s": limit_s}
        return run([*AUTOTUNE, *words], cwd=cwd or self.cwd, logs=self.logs / words[0], **how)

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
        fresh = project.with_name("training")
        shutil.copytree(project, fresh, symlinks=True, ignore=shutil.ignore_patterns("trials", "cache"))
        try:
            values = yaml.safe_load((fresh / self.trainer.folder / self.trainer.config).read_text())
            return trained(
                [*AUTOTUNE, "run", "--config", self.trainer.config],
                self.trainer.log,
                batch=number_of(values, self.trainer.batch),
                accumulation=number_of(values, self.trainer.accumulation),
                cwd=fresh / self.trainer.folder,
                env=self.env,
                logs=self.logs / "run",
                group=self._temporary.group,
                seconds=seconds,
            )
        finally:
            shutil.rmtree(fresh)


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
    left, in the home folder too.
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
    # Files that are called alike are named once, with their number.
    alike = Counter(re.sub(r"(?<=[-_])[^-_/]*$|(?<=/[A-Za-z_]{12}).*$", "*", path) for path in found.temporary)
    fields = {
        **asdict(found),
        "start": found.start,
        "temporary": [f"{name} ({count})" for name, count in alike.items()],
    }
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in fields.items()}
    return Result(
        "; ".join(
            [f"{found.name:<28}", *(f"{name} {value}" for name, value in shown.items() if value and name != "name")]
        ),
        found.failed,
        found.is_right is False and "the samples are not those of the trainer's own log",
        not found.is_wait_plausible and "the wait for data is not plausible",
    )

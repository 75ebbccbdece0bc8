"""Answers of searches in virtual time: what is written was judged, and a standing answer gets no worse.

Both are real commands and records on real files, in this process, around trials that are simulated, so that what is
true of a point is known.
"""

import contextlib
import io
import json
import math
import os
import random
import re
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import yaml

from autotune.cli import run
from autotune.clock import Clock, VirtualClock
from autotune.commands import search_run
from autotune.daemon import advice as advising
from autotune.daemon import searches
from autotune.daemon.advice import Advices
from autotune.daemon.queue import ApplyScope, EntryState, Hold, Queue, fingerprint
from autotune.errors import StudyError
from autotune.events import Event, TrialEnded
from autotune.measure.score import THROUGHPUT
from autotune.records import OUTSIDE, Purpose, Scalar, TrialRecord, Values, Verdict
from autotune.search.answer import Study
from autotune.search.problem import limited, open_problem
from autotune.search.warm_start import KNOWN_POINTS, warm_start
from autotune.study.answer import Standing, judged_finalists, standing_answer
from autotune.testing.simulated_runner import Training
from autotune.trial.search_child import OWN_COMMAND, SearchExit
from tests.daemon.queue.entries import entry
from tests.search.simulated import search_simulated
from tests.soak.harness import Result, Soak, check

Point = tuple[Scalar, ...]
"""Values of the knobs, in the order of `CHOICES`."""

BATCH = "data.batch_size"
CHOICES: Mapping[str, tuple[Any, ...]] = {
    BATCH: (4, 8, 16, 24, 32),
    "data.num_workers": (1, 2, 4),
    "data.prefetch_factor": (1, 2, 4, 8),
    "data.persistent_workers": (False, True),
    "data.use_xla": (False, True),
}
"""Knobs, which are found by name, with values that somebody may give them by hand."""

_CONFIG = 'autotune: {command: "./python train.py {config}", objective: throughput, trial: %s}\n'
_TRIAL = "{start_timeout_s: 60, min_s: %s, min_steps: 5, max_s: 2}"
_KINDS: Mapping[str, dict[str, Any]] = {
    "search": {},
    "search --same-training": {"same_training": True},
    "search --batch same": {"batch": "same"},
    "search --batch 4x": {"batch": "4x"},
}
_WORSE = 0.95  # a true ratio that is worth counting
_MACHINE = "SLURMD_NODENAME"  # a part of what this machine is known by
_LEAST = 1.02  # the ratio that a confirmed gain exceeds
_WAYS = {"search": 3.0, "edit_knob": 1.5, "edit_other_key": 0.8, "edit_trainer": 1.0, "comment_trainer": 0.5} | {
    "queue_search": 2.5, "use": 1.0, "apply": 2.0, "apply_named": 1.5, "revert": 1.0, "import": 0.8}  # fmt: skip
_SCOPES = (frozenset[ApplyScope](), frozenset({ApplyScope.BETTER}), frozenset({ApplyScope.BETTER, ApplyScope.BATCH}))


class Landscape:
    """True speeds of one simulated trainer on one machine, and what disturbs their measurement."""

    def __init__(self, rng: random.Random, clock: VirtualClock, noise: float | None = None) -> None:
        self._rng, self._clock, self._name = rng, clock, rng.random()
        self._exponent, self.noise = rng.uniform(-0.2, 0.6), noise or rng.uniform(0.03, 0.15)
        self._state, self._disturbed_s, self._disturbed_speed = 1.0, (0.0, 0.0), 1.0

    def speed(self, values: Values) -> float:
        """Return the true samples per second of a point, on the machine at rest."""
        ln = self._exponent * math.log(float(values[BATCH] or 0))
        for path in values.keys() - {BATCH}:
            ln += random.Random(f"{self._name} {path} {values[path]}").gauss(0.0, 0.2)
        return 200.0 * math.exp(ln + random.Random(f"{self._name} {sorted(values.items())}").gauss(0.0, 0.06))

    def training(self, config: Mapping[str, Any]) -> Training:
        """Return the trial of a config that starts now."""
        values = {f"data.{name}": value for name, value in config["data"].items()}
        is_disturbed = self._disturbed_s[0] <= self._clock.now_s() < self._disturbed_s[1]
        speed = self.speed(values) * self._state * (self._disturbed_speed if is_disturbed else 1.0)
        return Training(samples=values[BATCH], step_s=values[BATCH] / speed, start_s=0.3, noise=self.noise)

    def changes(self, budget_s: float) -> str:
        """Change the state of the machine before a search, and say how."""
        rng = self._rng
        self._state = math.exp(rng.gauss(0.0, 0.15))
        if rng.random() >= 0.25:
            return f"machine at {self._state:.2f}"
        began_s = self._clock.now_s() + rng.uniform(0.0, 0.8) * budget_s
        self._disturbed_s = began_s, began_s + rng.uniform(0.1, 0.5) * budget_s
        self._disturbed_speed = rng.uniform(0.5, 0.85)
        return f"machine at {self._state:.2f}, for a while at {self._disturbed_speed:.2f} of that"


class Story:
    """One project, and what happens to it.

    Args:
        name: Seed of all that is random.
        folder: Folder for the project and its copies, links resolved.
        counts: Told how often what happens.

    Attributes:
        wrong: What must not happen, with what led there.
    """

    def __init__(self, name: str, folder: Path, counts: Counter[str]) -> None:
        self.name, self.folder, self.counts = name, folder, counts
        self.rng, self.clock = random.Random(name), VirtualClock()
        self.happened: list[str] = []
        self.wrong: list[str] = []

    def lay_out(self, trainer: str) -> None:
        """Write a trainer, and a program that would start it, which has no packages to read."""
        Path("train.py").write_text(trainer)
        Path("python").touch(mode=0o700)

    def write_config(self, values: Values, min_s: float, **more: object) -> None:
        """Write the config with these values of the knobs."""
        data = {path.removeprefix("data."): value for path, value in values.items()}
        Path("config.yaml").write_text(_CONFIG % (_TRIAL % min_s) + yaml.safe_dump({"data": data, **more}))

    def violated(self, what: str) -> None:
        """Take note of something that must not happen."""
        self.wrong.append("\n    ".join([what, *self.happened]))


def _told(soak: Soak, kind: type[Story]) -> Iterator[Result]:
    """Let each story happen in a folder of its own, on a machine without GPUs."""
    before = dict(os.environ)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the simulated trainers use none
    try:
        for number in soak.numbers:
            folder = soak.place().resolve()
            with contextlib.chdir(folder):
                story = kind(f"{soak.options.seed} {number}", folder, soak.counts)
                story.make()  # type: ignore[attr-defined]
            shutil.rmtree(folder)
            if story.wrong:
                yield Result(f"number {number} of seed {soak.options.seed}", *story.wrong)
    finally:
        os.environ.clear()
        os.environ.update(before)


# Standing answers


class Searches(Story):
    """Study that is searched a few times; whatever takes an answer's place is compared with the truth."""

    def make(self) -> None:
        """Search a few times, and judge each."""
        self._landscape = Landscape(self.rng, self.clock)
        self._values: Values = {path: choices[path == BATCH] for path, choices in CHOICES.items()}
        self.happened.append(f"noise {self._landscape.noise:.2f}")
        self.lay_out("")
        standing: Standing | None = None
        for number in range(self.rng.randint(3, 6)):
            chance = self.rng.random()
            if standing is not None and chance < 0.35:
                self._values = dict(standing.trial.values)
                self.happened.append(f"applied: {_text(self._values)}")
            elif chance > 0.8:
                path = self.rng.choice(list(CHOICES))
                self._values = {**self._values, path: self.rng.choice(CHOICES[path])}
                self.happened.append(f"edited: {_text(self._values)}")
            standing = self._search(number, standing)

    def _search(self, number: int, before: Standing | None) -> Standing | None:
        kind = self.rng.choices(list(_KINDS), (3, 2, 1, 3))[0]
        budget_s = math.exp(self.rng.triangular(math.log(12.0), math.log(160.0 if number else 50.0), math.log(40.0)))
        machine = self._landscape.changes(budget_s)
        self.write_config(self._values, 0.7)
        whole = open_problem(Path("config.yaml"), command=None, state_dir=None)
        whole.state.create()
        done = search_simulated(
            limited(whole, **_KINDS[kind]),
            self._landscape.training,
            clock=self.clock,
            name=f"search-{number}",
            budget_s=budget_s,
            seed=self.rng.randrange(1 << 30),
        )
        done.study.close()
        records = done.study.records()
        after = standing_answer(records, whole.objective)
        true = self._landscape.speed
        stands = "nothing stands"
        if after is not None:
            ratio = true(after.trial.values) / true(self._values)
            stands = f"{_text(after.trial.values)} stands, truly {ratio:.2f} of the config"
        self.happened.append(f"{kind} of {budget_s:.0f} s, {machine}, {len(done.trials)} trials: {stands}")
        self.counts["searches"] += 1
        if trials := [trial for trial in records if trial.search == f"search-{number}"]:
            self._judge(trials, records, before, after, kind)
        known = Study(Path("config.yaml")).answer() if after is not None else None
        if after and known and known.verdict is Verdict.BETTER and (known.best and known.best.point) != after.point:
            self.violated(f"status tells another answer: {known.best and _text(known.best.values)}")
        return after

    def _judge(
        self,
        trials: Sequence[TrialRecord],
        records: Sequence[TrialRecord],
        before: Standing | None,
        after: Standing | None,
        kind: str,
    ) -> None:
        counts, search, true = self.counts, trials[0].search, self._landscape.speed
        judged = judged_finalists(records, search, THROUGHPUT)
        if before is None or after is None:
            counts["withdrawn" if before else "first answers"] += (before is None) != (after is None)
        elif before.point != after.point:
            how = _how(before, trials)
            against = None if how == "it was the config" else before.point
            pairs = judged if against is None else judged_finalists(records, search, THROUGHPUT, against=against)
            own = next((one for finalist, one in pairs if finalist.trial.point == after.point), None)
            ratio = true(after.trial.values) / true(before.trial.values)
            counts[f"replaced, {how}"] += 1
            if how == "it was not met":
                self.violated("replaced by one that it was not compared with, and it has not failed")
            elif not how.startswith("it"):
                counts[f"replaced, {how}, by a truly worse one"] += ratio < _WORSE
            elif ratio < (own.speed.low / own.speed.ratio if own else 1.0):
                shown = f"{own.speed.ratio:.2f} ({own.speed.low:.2f} to {own.speed.high:.2f})" if own else "none"
                self.violated(f"replaced by {ratio:.3f} of it; shown: {shown}")
            baselines = {trial.search: trial.values for trial in reversed(Study(Path("config.yaml")).trials)}
            had = before.point != trials[0].point and before.trial.values[BATCH] != baselines[before.search][BATCH]
            if after.trial.values[BATCH] != trials[0].values[BATCH] and not had and "4x" not in kind:
                self.violated("replaced by one that changes the batch, which nobody has allowed")


def _how(before: Standing, trials: Sequence[TrialRecord]) -> str:
    """Return why an answer could be replaced in a search."""
    if trials[0].point == before.point:
        return "it was the config"
    if trials[0].conditions.get(OUTSIDE) == before.point:
        return "outside the domains that the edited config has"
    speeds = _speeds(trials, lambda trial: trial.point)
    own, of_config = speeds.get(before.point, {}), speeds.get(trials[0].point, {})
    ratios = [math.log(own[pair] / of_config[pair]) for pair in own if pair in of_config]
    if not ratios:
        met = [trial for trial in trials if trial.point == before.point]
        return "failed" if met and not any(trial.comparable for trial in met) else "it was not met"
    return "slower than the config" if sum(ratios) < 0.0 else "it was met in pairs"


def _speeds(trials: Sequence[TrialRecord], key: Callable[[TrialRecord], Any]) -> dict[Any, dict[int, float]]:
    """Return the speeds in the pairs of a search, by point and pair."""
    speeds: dict[Any, dict[int, float]] = {}
    for trial in trials:
        if trial.purpose is Purpose.CONFIRM and trial.pair is not None and trial.comparable:
            speeds.setdefault(key(trial), {})[trial.pair] = trial.comparable.samples_per_s
    return speeds


def _text(values: Values) -> str:
    return " ".join(f"{path.removeprefix('data.')}={values[path]}" for path in CHOICES)


# Answers that are written


class Question(NamedTuple):
    """What an answer belongs to, by this account: what the config says besides the knobs, and what the trainer does."""

    hidden: int
    trainer: int

    @classmethod
    def now(cls) -> Self:
        """Read that of the working directory."""
        (trainer,) = re.findall(r"TRAINER = (\d+)", Path("train.py").read_text())
        return cls(hidden=_config()["model"]["hidden"], trainer=int(trainer))


Confirmed = tuple[Question, Point, Point]
"""Point that the pairs of some search have shown to be better than another."""


class CommandHere:
    """Child of the daemon that is none: its command runs in this process, and has ended when it was started."""

    watch: "Callable[[Sequence[str]], contextlib.AbstractContextManager[None]]"
    """Context in which a command runs."""

    def __init__(self, code: int, clock: Clock) -> None:
        self._exit = SearchExit(code=code, was_told=False, was_killed=False, ended_s=clock.now_s())
        self.identity: dict[str, Scalar] = {"pid": os.getpid()}

    @classmethod
    def start(
        cls, argv: Sequence[str], *, cwd: Path, env: object, log: Path, clock: Clock, output: Path | None = None
    ) -> Self:
        """See `SearchChild.start`."""
        words = argv[len(OWN_COMMAND) :]
        with contextlib.chdir(cwd), cls.watch(words):
            said = typed(*words)
        for place, text in ((log, said.err), (output or log, said.out)):
            with place.open("a") as file:
                file.write(text)
        return cls(said.code, clock)

    def poll(self) -> SearchExit:
        """See `SearchChild.poll`."""
        return self._exit


def typed(*words: str) -> SimpleNamespace:
    """Run a command in this process, with nobody at its terminal; return its code and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    stdin = sys.stdin
    with open(os.devnull) as sys.stdin, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(words)
        finally:
            sys.stdin = stdin
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
    return SimpleNamespace(code=code, out=out.read(), err=err.read())


class Order(Story):
    """Things that happen to one project; an account of its own says which points searches have confirmed."""

    def make(self) -> None:
        """Have something happen a few times, a search first."""
        self._landscapes: dict[Question, Landscape] = {}
        self._home = self.folder / "project"
        self._names: dict[str, tuple[Question, Point]] = {}
        self._confirmed: list[Confirmed] = []
        self._elsewhere: list[Confirmed] = []
        self._written: list[tuple[Point, Point]] = []  # by the tool and not reverted: the values before, and after
        self._of_daemon: dict[int, Scalar] = {}  # the last value of each knob that it changed
        self._meanwhile: Callable[[], None] | None = None  # happens in the middle of the next search
        self._numbers, self._is_in_use, self._is_resumed = 0, False, False
        self._queue = Queue(self.folder / "daemon", self.clock)
        self._advices = Advices(self.folder / "daemon" / "advice")
        heard: Callable[..., None] = lambda _kind, _text, **_facts: None  # noqa: E731
        self._advising = advising.Adviser(self._queue, self._advices, self.clock, heard, lambda _: self._is_in_use)
        self._searches = searches.Searches(self._queue, self._advising, self.clock, heard)
        self._home.mkdir()
        with contextlib.chdir(self._home), self._simulated():
            self.lay_out("TRAINER = 0\n")
            values = {path: choices[path == BATCH] for path, choices in CHOICES.items()}
            self.write_config(values, 1.2, model={"hidden": 64})  # fewer trials: they take most of the time
            self._search()
            often = [weight * self.rng.lognormvariate(0.0, 1.2) for weight in _WAYS.values()]  # each order its own
            for _ in range(self.rng.randint(5, 9)):
                getattr(self, f"_{self.rng.choices(list(_WAYS), often)[0]}")()
                self.counts["operations"] += 1
                self._require_that_all_agree()

    @contextlib.contextmanager
    def _simulated(self) -> Iterator[None]:
        """Have searches simulated, and the daemon's children run in this process."""
        whole, child = search_run.search_with_display, searches.SearchChild
        search_run.search_with_display = self._search_here  # type: ignore[assignment]
        searches.SearchChild = advising.SearchChild = CommandHere  # type: ignore[misc, assignment]
        CommandHere.watch = self._watched
        try:
            yield
        finally:
            search_run.search_with_display = whole
            searches.SearchChild = advising.SearchChild = child  # type: ignore[misc]

    # What happens

    def _search(self) -> None:
        words = [*self.rng.choice(((), (), ("--same-training",))), *self.rng.choice(((), (), (), ("--apply",)))]
        self._is_busy_meanwhile()
        with self._may_write("--apply" in words):
            said = self._type("search", *words, *self._budget(), "--json", may_fail=True)
        if said.code:
            return
        document = json.loads(said.out)
        self._take_note_of(document["answer"])
        if self._was_busy:
            return
        if (document["verdict"] == "better") != (document["answer"] is not None):
            self.violated(f"the search tells {document['verdict']}, and offers {document['answer']}")
        ids = [(one.get("answer") or {}).get("id") for one in (document, self._status())]
        if not words and ids[0] != ids[1]:
            self.violated(f"the search and status name different answers: {ids}")

    def _budget(self) -> list[str]:
        race = self.rng.choice(((), (), ("--race", "40s")))
        budget_s = self.rng.randint(80, 110) if race else self.rng.randint(15, 60)
        return ["--budget", f"{budget_s}s", "--seed", str(self.rng.randrange(1 << 30)), *race]

    def _is_busy_meanwhile(self) -> None:
        """Have a person edit something in the middle of the next search, now and then."""
        self._was_busy = self.rng.random() < 0.15
        if self._was_busy:
            self._meanwhile = self.rng.choice((self._edit_knob, self._edit_other_key, self._edit_trainer))

    def _edit_knob(self) -> None:
        # What the daemon has set rather than others: its next answer is most likely to change that, too.
        places = list(self._of_daemon) if self.rng.random() < 0.5 else []
        path = list(CHOICES)[self.rng.choice(places or range(len(CHOICES)))]
        self._edit(path.removeprefix("data."), self.rng.choice(CHOICES[path]))

    def _edit_other_key(self) -> None:
        self._edit("hidden", self.rng.choice((64, 128)))

    def _edit(self, name: str, value: Scalar) -> None:
        file = self._home / "config.yaml"
        file.write_text(re.sub(rf"^( +{name}: ).*$", rf"\g<1>{json.dumps(value)}", file.read_text(), flags=re.M))
        self.happened.append(f"a person sets {name} to {value}")

    def _edit_trainer(self) -> None:
        self._write_trainer(f"TRAINER = {self.rng.randrange(3)}\n")

    def _comment_trainer(self) -> None:
        self._numbers += 1
        self._write_trainer(f"{Path('train.py').read_text()}# comment {self._numbers}\n")

    def _write_trainer(self, text: str) -> None:
        new = self._home / "train.py.new"  # a file of its own: this process keeps what it has read of the other
        new.write_text(text)
        new.replace(self._home / "train.py")
        self.happened.append(f"train.py becomes {text!r}")

    def _queue_search(self) -> None:
        """Have the daemon search, and apply what it may."""
        scopes = self.rng.choice(_SCOPES)
        self.happened.append(f"the daemon looks what is held; a search is queued that may apply {sorted(scopes)}")
        self._advising.apply_held()
        config, words = self._home / "config.yaml", self._budget()
        queued = self._queue.add(
            lambda number, _entries: entry(
                number,
                config=str(config),
                cwd=str(self._home),
                budget_s=float(words[1].removesuffix("s")),
                options=tuple(words[2:]),
                apply=scopes,
                environment=dict(os.environ),
                fingerprint=fingerprint((config,)),
            )
        )
        self._is_busy_meanwhile()
        for place in range(4):  # it is made again, twice at most, where the config was edited
            (now,) = [one for one in self._queue.entries() if one.id == queued.id]
            if now.state is EntryState.WAITING and place < 3:
                self._searches.start(now)
                self._searches.tick()
        self.happened.append(f"  {now.state.value}: {now.note}")
        if now.state is EntryState.HELD:
            self.counts[f"answers to the daemon held: {now.hold}"] += 1
        if now.answer is not None and now.answer.advice is not None:
            self.counts["answers to the daemon"] += 1
            judged = json.loads(self._queue.answer(now).read_text())["answer"]
            self._take_note_of(judged)
            if self._advices.advice(now.answer.advice).answer != judged["id"]:
                self.violated("the advice is of another answer than the search")

    def _use(self) -> None:
        """Begin or end a training that uses the config; resume what a person's edit holds, now and then."""
        self._is_in_use, self._is_resumed = not self._is_in_use, self.rng.random() < 0.3
        said = "; what is held is resumed" if self._is_resumed else ""
        self.happened.append(f"a training {'begins' if self._is_in_use else 'ends'}{said}")
        for one in self._queue.entries() if self._is_resumed else ():
            if one.state is EntryState.HELD and one.hold is Hold.EDITED:
                self._queue.change(one.id, lambda held: replace(held, hold=None))
        self._advising.apply_held()
        self._is_resumed = False

    def _apply_named(self) -> None:
        if self._names:
            self._apply(self.rng.choice(list(self._names)))

    def _apply(self, named: str | None = None) -> None:
        force = ["--force"] * (self.rng.random() < 0.3)
        with self._may_write(True, is_forced=bool(force), named=named):
            which = ["--answer", named] if named else ["--all"] * (self.rng.random() < 0.5)
            self._type("apply", *which, *force, may_fail=True)

    def _revert(self) -> None:
        before = _point()
        said = self._type("revert", *["--force"] * (self.rng.random() < 0.2), may_fail=True)
        after = _point()
        if after == before:
            return
        self.counts["reverted"] += 1
        while self._written:
            old, new = self._written.pop()
            if after == tuple(a if a != b else now for a, b, now in zip(old, new, before, strict=True)):
                return
        self.violated(f"revert has made {after} of {before}, which undoes nothing: {said.out}")

    def _import(self) -> None:
        """Search in a copy of the project on another machine, and import its trials."""
        self._numbers += 1
        there = self.folder / f"copy {self._numbers}"
        shutil.copytree(self._home, there, ignore=shutil.ignore_patterns(".autotune"))
        self._elsewhere.clear()
        os.environ[_MACHINE] = there.name
        try:
            with contextlib.chdir(there):
                if self.rng.random() < 0.4:
                    Path("train.py").write_text(f"TRAINER = {self.rng.randrange(3)}\n")
                self._type("search", *self._budget(), "--json", may_fail=True)
                exported = self._type("study", "export", str(there / "file.jsonl"), may_fail=True)
        finally:
            del os.environ[_MACHINE]
        if exported.code == 0 and self._type("study", "import", str(there / "file.jsonl")).code == 0:
            self.counts["imported"] += 1
            self._confirmed += self._elsewhere

    # Commands

    def _type(self, *words: str, may_fail: bool = False) -> SimpleNamespace:
        verbs = 1 + (words[0] == "study")
        said = typed(*words[:verbs], "--config", "config.yaml", *words[verbs:])
        ended = "" if said.code == 0 else f" (exit {said.code}: {(said.err.strip() or said.out).splitlines()[-2:]})"
        if "status" not in words and "--dry-run" not in words:
            self.happened.append(f"{Path.cwd().name}: {' '.join(words)}{ended}")
        if said.code not in ((0, 1) if may_fail else (0,)):
            self.violated(f"{' '.join(words)} ended with {said.code}: {said.err}")
        return said

    @contextlib.contextmanager
    def _may_write(
        self,
        may: bool,
        *,
        is_forced: bool = False,
        named: str | None = None,
        scopes: frozenset[ApplyScope] | None = None,
    ) -> Iterator[None]:
        """Compare the config before and after a command that may write, or may not, with the account."""
        self._before = _point()  # somebody may edit in the middle
        yield
        before, after, question = self._before, _point(), Question.now()
        if before == after:
            return
        changes = [f"{path} {a} -> {b}" for path, a, b in zip(CHOICES, before, after, strict=True) if a != b]
        self.happened.append(f"  written: {', '.join(changes)}")
        self.counts["written by the daemon" if scopes is not None else "written by a command"] += 1
        baselines = [baseline for *found, baseline in self._confirmed if found == [question, after]]
        known = (all(now in (a, b) for now, a, b in zip(before, one, after, strict=True)) for one in baselines)
        if not may:
            self.violated("written by a command that does not write")
        elif not baselines:
            self.violated(f"what is written was not confirmed for {question}")
        elif not is_forced and not any(known):
            self.violated("a value was overwritten that no search took as today's")
        if named is not None and self._names[named] != (question, after):
            self.violated(f"answer {named} is {self._names[named]}")
        if scopes is not None:
            self._require_permission(before, after, scopes)
        self._written.append((before, after))

    def _require_permission(self, before: Point, after: Point, scopes: frozenset[ApplyScope]) -> None:
        if ApplyScope.BETTER not in scopes:
            self.violated("the daemon writes, and nobody has permitted that")
        for number, (path, old, new) in enumerate(zip(CHOICES, before, after, strict=True)):
            if old == new:
                continue
            if path == BATCH and ApplyScope.BATCH not in scopes:
                self.violated("the daemon changes the batch, which nobody has permitted")
            if not self._is_resumed and self._of_daemon.get(number, old) != old:
                self.violated(
                    f"the daemon overwrites {path}, which was changed since it wrote {self._of_daemon[number]}"
                )
            self._of_daemon[number] = new

    def _watched(self, words: Sequence[str]) -> "contextlib.AbstractContextManager[None]":
        """Return what compares that which a command of the daemon may do with what it does."""
        scopes = frozenset[ApplyScope]()
        if words[0] == "apply":
            name = words[words.index("--answer") + 1]
            for one in self._queue.entries():
                advice = one.answer and one.answer.advice
                if one.state is EntryState.HELD and advice and self._advices.advice(advice).answer == name:
                    scopes |= one.apply
        return self._may_write(words[0] == "apply", scopes=scopes)

    # Searches

    def _search_here(self, problem: Any, request: Any, answer: Any, _clock: object, **_more: object) -> Any:
        """Search in virtual time, in the place of `search_run.search_with_display`."""
        self._numbers += 1
        name, question, baseline = f"search-{self._numbers}", Question.now(), _point()
        is_here, records = Path.cwd() == self._home, ()
        with contextlib.suppress(StudyError):
            records = Study.of(problem).trials
        is_young = len({trial.point for trial in problem.of_this_code(records)}) < KNOWN_POINTS
        problem.state.create()
        done = search_simulated(
            problem,
            self._training,
            clock=self.clock,
            name=name,
            budget_s=request.budget_s,
            seed=request.seed,
            race_s=request.race_s,
            warm_start=warm_start(problem, records) if is_young else None,
            told=self._interrupt if is_here else lambda _event: None,
        )
        done.study.close()
        self.counts["searches"] += 1
        speeds = _speeds(done.trials, lambda trial: tuple(trial.values[path] for path in CHOICES))
        of_baseline = speeds.pop(baseline, {})
        for point, own in speeds.items():
            ratios = [speed / of_baseline[pair] for pair, speed in own.items() if pair in of_baseline]
            if len(own) >= 2 and statistics.median(ratios) > _LEAST:
                account = self._confirmed if is_here else self._elsewhere
                account.append((question, point, baseline))
        if done.result is None:
            assert done.error is not None
            raise done.error
        answer.begin(problem, SimpleNamespace(name=name, study=done.study, tuner=done.tuner))
        return search_run.Finished.of(problem, done.study, done.result, failures=[], ended_by=done.tuner.ended_by)

    def _interrupt(self, event: Event) -> None:
        if self._meanwhile is not None and isinstance(event, TrialEnded) and event.trial.number % 5 == 4:
            (meanwhile, self._meanwhile), before = (self._meanwhile, None), _point()
            meanwhile()
            if _point() != before:
                self._before = _point()

    def _training(self, config: Mapping[str, Any]) -> Training:
        """Return a trial; what is true of a point depends on the question, so that no answer is one elsewhere."""
        question = Question.now()._replace(hidden=config["model"]["hidden"])
        if question not in self._landscapes:
            self._landscapes[question] = Landscape(random.Random(f"{self.name} {question}"), self.clock, noise=0.03)
        training = self._landscapes[question].training(config)
        rng, worth = random.Random(self.name), training.samples / 500.0
        return replace(training, loss=lambda step: 0.5 + 3.0 / (1.0 + worth * step) ** 0.5 + rng.gauss(0.0, 0.02))

    # What is said

    def _status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._type("status", "--json", may_fail=True).out)
        return document

    def _require_that_all_agree(self) -> None:
        """Require that what is told, and would be written, is an answer to this very question, and the same one."""
        content = Path("config.yaml").read_bytes()
        status = self._status()
        shown = self._type("apply", "--all", "--dry-run", may_fail=True)
        if Path("config.yaml").read_bytes() != content:
            self.violated("written by a command that only shows")
        # What a person's edit has put beyond the space is told with its reason, and offered by neither.
        is_beyond = status.get("verdict") == "better" and status["answer"] is None
        self.counts["answers told that the config's values have left"] += is_beyond
        if ("error" in status or is_beyond) != (shown.code != 0):
            self.violated(f"status says {status.get('error') or status['answer']}, a dry run {shown.err or shown.out}")
        if status.get("answer"):
            self.counts["answers told"] += 1
            question, point = Question.now(), self._take_note_of(status["answer"])
            if (question, point) not in [found[:2] for found in self._confirmed]:
                self.violated(f"status tells {point}, which was not confirmed for {question}")
            if (status["diff"] or "Nothing to do") not in shown.out:
                self.violated(f"a dry run shows {shown.out}, status {status['diff']}")
            if self.rng.random() < 0.6:
                return
            again = self._type("apply", "--dry-run", "--answer", status["answer"]["id"], may_fail=True)
            if again.out != shown.out:
                self.violated(f"by its name the answer is {again.out or again.err}, else {shown.out}")
        elif status.get("verdict") == "no_change" and "No change" not in shown.out:
            self.violated(f"status tells no change, a dry run {shown.out}")

    def _take_note_of(self, answer: Mapping[str, Any] | None) -> Point:
        """Take note of an answer's name, and what it stands for; return its point."""
        if answer is None:
            return ()
        keys = {key["path"]: key["new"] for key in answer["keys"]}
        point = tuple(keys[path] for path in CHOICES)
        self._names.setdefault(answer["id"], (Question.now(), point))
        return point


def _config() -> dict[str, Any]:
    read: dict[str, Any] = yaml.load(Path("config.yaml").read_text(), yaml.CSafeLoader)
    return read


def _point() -> Point:
    """Return the values of the knobs in the config of the working directory."""
    data = _config()["data"]
    return tuple(data[path.removeprefix("data.")] for path in CHOICES)


@check(times=1000, in_memory=True)
def answers(soak: Soak) -> Iterator[Result]:
    """Answers that are written are those that were judged.

    Random orders of searches, edits, apply, revert, imports and a daemon that may apply or not; the values that the
    tool writes are confirmed for this very config and trainer, by an account of the check's own. --first K --times
    1 makes one order again.
    """
    yield from _told(soak, Order)


@check(times=500, in_memory=True)
def standing(soak: Soak) -> Iterator[Result]:
    """Standing answers get no worse over many searches.

    On noisy machines whose speed changes, with budgets from too short to ample; the truth of the simulation judges
    whatever takes an answer's place.
    """
    yield from _told(soak, Searches)

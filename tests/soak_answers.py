"""Answers that are written: ``python -m tests.soak answers --orders 1000`` checks that only what was judged is.

Each order is a few things that happen to one project at random: searches, edits of the config and of the trainer, a
daemon that may apply and one that may not, ``apply``, ``revert``, trials from a copy on another machine. All are the
real commands and the real daemon's parts on real files, in this process, around trials that are simulated. What is true
of a point depends on the rest of the config and on what the trainer says, so that no answer is one elsewhere. An
account of its own says which points searches have confirmed: the values of the file are to be one of them, confirmed
for this very document and trainer, whenever the tool has written. Prints each violation with what led there; ``--seed
N --first K --orders 1`` makes that order again.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import yaml

from autotune.cli import run
from autotune.clock import Clock, VirtualClock
from autotune.commands import search_run
from autotune.commands.apply_answer import changes_to_offer
from autotune.daemon import advice as advising
from autotune.daemon import searches
from autotune.daemon.advice import Advices
from autotune.daemon.queue import ApplyScope, EntryState, Hold, Queue, fingerprint
from autotune.events import Event, TrialEnded
from autotune.records import Purpose, Scalar, TrialRecord
from autotune.search.warm_start import KNOWN_POINTS, warm_start
from autotune.testing.simulated_runner import Training
from autotune.trial.search_child import OWN_COMMAND, SearchExit
from tests.daemon.queue.entries import entry
from tests.search.simulated import search_simulated
from tests.soak_standing import BATCH, CHOICES, CONFIG, Landscape, Outcome, folder_of_its_own, lay_out_trainer

Point = tuple[Scalar, ...]
"""Values of the knobs, in the order of `CHOICES`."""

_CONFIG = CONFIG.replace("min_s: 0.7", "min_s: 1.2")  # fewer trials: they take most of the time
_MACHINE = "SLURMD_NODENAME"  # a part of what this machine is known by
_LEAST = 1.02  # the ratio that a confirmed gain exceeds
_SCOPES = (frozenset[ApplyScope](), frozenset({ApplyScope.BETTER}), frozenset({ApplyScope.BETTER, ApplyScope.BATCH}))


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an answer belongs to, by this account: what the config says besides the knobs, and what the trainer does."""

    hidden: int
    trainer: int

    @classmethod
    def now(cls) -> Self:
        """Read that of the working directory."""
        (trainer,) = re.findall(r"TRAINER = (\d+)", Path("train.py").read_text())
        return cls(hidden=_config()["model"]["hidden"], trainer=int(trainer))


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """Point that the pairs of some search have shown to be better than another."""

    question: Question
    point: Point
    baseline: Point


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The object that it printed."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class CommandHere:
    """Child of the daemon that is none: its command runs in this process, and has ended when it was started."""

    before: Callable[[Sequence[str]], Callable[[], None]]
    """Called with the command, in front of it; returns what is called after it."""

    def __init__(self, code: int, clock: Clock) -> None:
        self._exit = SearchExit(code=code, was_told=False, was_killed=False, ended_s=clock.now_s())
        self.identity: dict[str, Scalar] = {"pid": os.getpid()}

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: Path,
        clock: Clock,
        output: Path | None = None,
    ) -> Self:
        """See `SearchChild.start`."""
        words = argv[len(OWN_COMMAND) :]
        after = cls.before(words)
        with contextlib.chdir(cwd):
            said = typed(*words)
            after()
        with log.open("a") as file:
            file.write(said.err)
        with (output or log).open("a") as file:
            file.write(said.out)
        return cls(said.code, clock)

    def poll(self) -> SearchExit:
        """See `SearchChild.poll`."""
        return self._exit


def typed(*words: str) -> Said:
    """Run a command in this process, with nobody at its terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    stdin = sys.stdin
    with open(os.devnull) as sys.stdin, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(words)
        finally:
            sys.stdin = stdin
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Said(code=code, out=texts[0], err=texts[1])


def make_orders(count: int, *, seed: int, first: int = 0) -> Outcome:
    """Make so many orders, from the one of that number on."""
    outcome = Outcome()
    for number in range(first, first + count):
        name = f"{seed} {number}"
        with folder_of_its_own() as folder, _simulated(order := Order(name, folder.resolve(), outcome)):
            order.make()
    return outcome


@contextlib.contextmanager
def _simulated(order: "Order") -> Iterator[None]:
    """Have searches simulated, and the daemon's children run in this process."""
    whole, child = search_run.search_with_display, searches.SearchChild
    search_run.search_with_display = order.search  # type: ignore[assignment]
    searches.SearchChild = advising.SearchChild = CommandHere  # type: ignore[misc, assignment]
    CommandHere.before = order.before_the_daemons
    try:
        yield
    finally:
        search_run.search_with_display = whole
        searches.SearchChild = advising.SearchChild = child  # type: ignore[misc]


class Order:
    """One project, and what happens to it.

    Args:
        name: Seed of all that is random.
        folder: Folder for the project and its copies, links resolved.
        outcome: Told of what must not happen.
    """

    def __init__(self, name: str, folder: Path, outcome: Outcome) -> None:
        self._rng, self._name, self._outcome = random.Random(name), name, outcome
        self._clock = VirtualClock()
        self._landscapes: dict[Question, Landscape] = {}
        self._folder, self._home = folder, folder / "project"
        self._happened = [f"order {name.split()[1]} of seed {name.split()[0]}"]
        self._names: dict[str, tuple[Question, Point]] = {}
        self._confirmed: list[Confirmed] = []
        self._elsewhere: list[Confirmed] = []
        self._written: list[tuple[Point, Point]] = []  # by the tool and not reverted: the values before, and after
        self._of_daemon: dict[int, Scalar] = {}  # the last value of each knob that it changed
        self._meanwhile: Callable[[], None] | None = None  # happens in the middle of the next search
        self._numbers = 0
        self._is_in_use = self._is_resumed = False
        queue, advices = Queue(folder / "daemon", self._clock), Advices(folder / "daemon" / "advice")
        self._queue, self._advices = queue, advices
        self._advising = advising.Advising(queue, advices, self._clock, self._heard, lambda _config: self._is_in_use)
        self._searches = searches.Searches(queue, self._advising, self._clock, self._heard)

    def make(self) -> None:
        """Have something happen a few times, a search first."""
        self._home.mkdir()
        with contextlib.chdir(self._home):
            lay_out_trainer("TRAINER = 0\n")
            data = {path.removeprefix("data."): choices[path == BATCH] for path, choices in CHOICES.items()}
            Path("config.yaml").write_text(_CONFIG + yaml.safe_dump({"data": data, "model": {"hidden": 64}}))
            self._search()
            ways: dict[Callable[[], None], float] = {
                self._search: 3.0,
                self._edit_knob: 1.5,
                self._edit_other_key: 0.8,
                self._edit_trainer: 1.0,
                self._comment_trainer: 0.5,
                self._queue_search: 2.5,
                self._use: 1.0,
                self._apply: 2.0,
                self._apply_named: 1.5,
                self._revert: 1.0,
                self._import: 0.8,
            }
            ways = {
                way: often * self._rng.lognormvariate(0.0, 1.2) for way, often in ways.items()
            }  # each order its own
            for _ in range(self._rng.randint(5, 9)):
                self._rng.choices(list(ways), list(ways.values()))[0]()
                self._outcome.counts["operations"] += 1
                self._require_that_all_agree()

    # What happens

    def _search(self) -> None:
        words = [*self._rng.choice(((), (), ("--same-training",))), *self._rng.choice(((), (), (), ("--apply",)))]
        self._is_busy_meanwhile()
        with self._may_write("--apply" in words):
            said = self._type("search", *words, *self._budget(), "--json", may_fail=True)
        if said.code == 0:
            self._take_note_of(said.document["answer"])
        if said.code == 0 and not self._was_busy:
            document = said.document
            if (document["verdict"] == "better") != (document["answer"] is not None):
                self._violated(f"the search tells {document['verdict']}, and offers {document['answer']}")
            if not words:
                self._require_same_id(document, self._status(), "the search and status")

    def _budget(self) -> list[str]:
        race = self._rng.choice(((), (), ("--race", "40s")))
        budget_s = self._rng.randint(80, 110) if race else self._rng.randint(15, 60)
        return ["--budget", f"{budget_s}s", "--seed", str(self._rng.randrange(1 << 30)), *race]

    def _is_busy_meanwhile(self) -> None:
        """Have a person edit something in the middle of the next search, now and then."""
        self._was_busy = self._rng.random() < 0.15
        if self._was_busy:
            self._meanwhile = self._rng.choice((self._edit_knob, self._edit_other_key, self._edit_trainer))

    def _edit_knob(self) -> None:
        # What the daemon has set rather than others: its next answer is most likely to change that, too.
        places = list(self._of_daemon) if self._rng.random() < 0.5 else []
        path = list(CHOICES)[self._rng.choice(places or range(len(CHOICES)))]
        self._edit(path.removeprefix("data."), self._rng.choice(CHOICES[path]))

    def _edit_other_key(self) -> None:
        self._edit("hidden", self._rng.choice((64, 128)))

    def _edit(self, name: str, value: Scalar) -> None:
        file = self._home / "config.yaml"
        file.write_text(re.sub(rf"^( +{name}: ).*$", rf"\g<1>{json.dumps(value)}", file.read_text(), flags=re.M))
        self._happened.append(f"a person sets {name} to {value}")

    def _edit_trainer(self) -> None:
        self._write_trainer(f"TRAINER = {self._rng.randrange(3)}\n")

    def _comment_trainer(self) -> None:
        self._numbers += 1
        self._write_trainer(f"{Path('train.py').read_text()}# comment {self._numbers}\n")

    def _write_trainer(self, text: str) -> None:
        place = self._home / "train.py.new"  # a file of its own: this process keeps what it has read of the other
        place.write_text(text)
        place.replace(self._home / "train.py")
        self._happened.append(f"train.py becomes {text!r}")

    def _queue_search(self) -> None:
        """Have the daemon search, and apply what it may."""
        scopes = self._rng.choice(_SCOPES)
        self._happened.append(f"the daemon looks what is held; a search is queued that may apply {sorted(scopes)}")
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
        for _ in range(3):  # it is made again where the config was edited
            (now,) = [one for one in self._queue.entries() if one.id == queued.id]
            if now.state is EntryState.WAITING:
                self._searches.start(now)
                self._searches.tick()
        (now,) = [one for one in self._queue.entries() if one.id == queued.id]
        self._happened.append(f"  {now.state.value}: {now.note}")
        if now.state is EntryState.HELD:
            self._outcome.counts[f"answers to the daemon held: {now.hold}"] += 1
        if now.answer is not None and now.answer.advice is not None:
            self._outcome.counts["answers to the daemon"] += 1
            judged = json.loads(self._queue.answer(now).read_text())["answer"]
            self._take_note_of(judged)
            if self._advices.advice(now.answer.advice).answer != judged["id"]:
                self._violated("the advice is of another answer than the search")

    def _use(self) -> None:
        """Begin or end a training that uses the config; resume what a person's edit holds, now and then."""
        self._is_in_use = not self._is_in_use
        self._is_resumed = self._rng.random() < 0.3
        said = "; what is held is resumed" if self._is_resumed else ""
        self._happened.append(f"a training {'begins' if self._is_in_use else 'ends'}{said}")
        if self._is_resumed:
            for one in self._queue.entries():
                if one.state is EntryState.HELD and one.hold is Hold.EDITED:
                    self._queue.change(one.id, lambda held: replace(held, hold=None))
        self._advising.apply_held()
        self._is_resumed = False

    def _apply(self) -> None:
        self._write("apply", *self._force(0.3))

    def _apply_named(self) -> None:
        if self._names:
            name = self._rng.choice(list(self._names))
            self._write("apply", "--answer", name, *self._force(0.3), named=name)

    def _force(self, chance: float) -> list[str]:
        return ["--force"] if self._rng.random() < chance else []

    def _revert(self) -> None:
        before = _point()
        said = self._type("revert", *self._force(0.2), may_fail=True)
        after = _point()
        if after == before:
            return
        self._outcome.counts["reverted"] += 1
        while self._written:
            old, new = self._written.pop()
            wanted = tuple(one if one != other else now for one, other, now in zip(old, new, before, strict=True))
            if wanted == after:
                return
        self._violated(f"revert has made {after} of {before}, which undoes nothing: {said.out}")

    def _import(self) -> None:
        """Search in a copy of the project on another machine, and import its trials."""
        self._numbers += 1
        copy = self._folder / f"copy {self._numbers}"
        shutil.copytree(self._home, copy, ignore=shutil.ignore_patterns(".autotune"))
        self._elsewhere.clear()
        os.environ[_MACHINE] = copy.name
        try:
            with contextlib.chdir(copy):
                if self._rng.random() < 0.4:
                    Path("train.py").write_text(f"TRAINER = {self._rng.randrange(3)}\n")
                self._type("search", *self._budget(), "--json", may_fail=True)
                exported = self._type("study", "export", str(copy / "file.jsonl"), may_fail=True)
        finally:
            del os.environ[_MACHINE]
        if exported.code == 0 and self._type("study", "import", str(copy / "file.jsonl")).code == 0:
            self._outcome.counts["imported"] += 1
            self._confirmed += self._elsewhere

    # Commands

    def _type(self, *words: str, may_fail: bool = False) -> Said:
        said = typed(
            *words[: 1 + (words[0] == "study")], "--config", "config.yaml", *words[1 + (words[0] == "study") :]
        )
        ended = "" if said.code == 0 else f" (exit {said.code}: {(said.err.strip() or said.out).splitlines()[-2:]})"
        if "status" not in words and "--dry-run" not in words:
            self._happened.append(f"{Path.cwd().name}: {' '.join(words)}{ended}")
        if said.code not in ((0, 1) if may_fail else (0,)):
            self._violated(f"{' '.join(words)} ended with {said.code}: {said.err}")
        return said

    def _write(self, *words: str, named: str | None = None) -> None:
        with self._may_write(True, is_forced="--force" in words, named=named):
            self._type(*words, may_fail=True)

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
        before = _point()
        self._before = before  # somebody may edit in the middle
        yield
        before, after, question = self._before, _point(), Question.now()
        if before == after:
            return
        self._happened.append(f"  written: {_changes(before, after)}")
        self._outcome.counts["written by the daemon" if scopes is not None else "written by a command"] += 1
        confirmed = [one for one in self._confirmed if one.point == after and one.question == question]
        if not may:
            self._violated("written by a command that does not write")
        elif not confirmed:
            self._violated(f"what is written was not confirmed for {question}")
        elif not is_forced and not any(
            all(now in (old, new) for now, old, new in zip(before, one.baseline, after, strict=True))
            for one in confirmed
        ):
            self._violated("a value was overwritten that no search took as today's")
        if named is not None and self._names[named] != (question, after):
            self._violated(f"answer {named} is {self._names[named]}")
        if scopes is not None:
            self._require_permission(before, after, scopes)
        self._written.append((before, after))

    def _require_permission(self, before: Point, after: Point, scopes: frozenset[ApplyScope]) -> None:
        if ApplyScope.BETTER not in scopes:
            self._violated("the daemon writes, and nobody has permitted that")
        for place, (path, old, new) in enumerate(zip(CHOICES, before, after, strict=True)):
            if old == new:
                continue
            if path == BATCH and ApplyScope.BATCH not in scopes:
                self._violated("the daemon changes the batch, which nobody has permitted")
            if not self._is_resumed and self._of_daemon.get(place, old) != old:
                self._violated(
                    f"the daemon overwrites {path}, which was changed since it wrote {self._of_daemon[place]}"
                )
            self._of_daemon[place] = new

    def before_the_daemons(self, words: Sequence[str]) -> Callable[[], None]:
        """Take note of what a command of the daemon may do; return what compares that with what it did."""
        scopes = frozenset[ApplyScope]()
        if words[0] == "apply":
            name = words[words.index("--answer") + 1]
            for one in self._queue.entries():
                advice = one.answer and one.answer.advice
                if one.state is EntryState.HELD and advice and self._advices.advice(advice).answer == name:
                    scopes |= one.apply
        watched = self._may_write(words[0] == "apply", scopes=scopes)
        watched.__enter__()
        return lambda: watched.__exit__(None, None, None) and None

    # Searches

    def search(self, problem: Any, request: Any, answer: Any, _clock: object, **_more: object) -> search_run.Finished:
        """Search in virtual time, in the place of `searching.search_with_display`."""
        self._numbers += 1
        question, baseline, is_here = Question.now(), _point(), Path.cwd() == self._home
        records = _records(problem)
        is_young = len({trial.point for trial in problem.of_this_code(records)}) < KNOWN_POINTS
        problem.state.create()
        done = search_simulated(
            problem,
            self._training,
            clock=self._clock,
            name=f"search-{self._numbers}",
            budget_s=request.budget_s,
            seed=request.seed,
            race_s=request.asked_race_s,
            warm_start=warm_start(problem, records) if is_young else None,
            told=self._interrupt if is_here else lambda _event: None,
        )
        done.study.close()
        self._outcome.counts["searches"] += 1
        account = self._confirmed if is_here else self._elsewhere
        account += [
            Confirmed(question=question, point=point, baseline=baseline) for point in _shown(done.trials, baseline)
        ]
        if done.result is None:
            assert done.error is not None
            raise done.error
        search = SimpleNamespace(name=f"search-{self._numbers}", study=done.study, tuner=done.tuner)
        answer.begin(problem, search)
        changes = changes_to_offer(problem, done.study.name, done.study.records(), done.result)
        return search_run.Finished(result=done.result, changes=changes, failures=[], ended_by=done.tuner.ended_by)

    def _interrupt(self, event: Event) -> None:
        if self._meanwhile is not None and isinstance(event, TrialEnded) and event.trial.number % 5 == 4:
            (meanwhile, self._meanwhile), before = (self._meanwhile, None), _point()
            meanwhile()
            if _point() != before:
                self._before = _point()

    def _training(self, config: Mapping[str, Any]) -> Training:
        question = replace(Question.now(), hidden=config["model"]["hidden"])
        if question not in self._landscapes:
            rng = random.Random(f"{self._name} {question}")
            self._landscapes[question] = Landscape(rng, self._clock)
            self._landscapes[question].noise = 0.03
        training = self._landscapes[question].training(config)
        rng = random.Random(self._name)
        worth = training.samples / 500.0
        return replace(training, loss=lambda step: 0.5 + 3.0 / (1.0 + worth * step) ** 0.5 + rng.gauss(0.0, 0.02))

    # What is said

    def _status(self) -> dict[str, Any]:
        return self._type("status", "--json", may_fail=True).document

    def _require_that_all_agree(self) -> None:
        """Require that what is told, and would be written, is an answer to this very question, and the same one."""
        content = Path("config.yaml").read_bytes()
        status = self._status()
        shown = self._type("apply", "--dry-run", may_fail=True)
        if Path("config.yaml").read_bytes() != content:
            self._violated("written by a command that only shows")
        # What a person's edit has put beyond the space is told with its reason, and offered by neither.
        is_beyond = status.get("verdict") == "better" and status["answer"] is None
        self._outcome.counts["answers told that the config's values have left"] += is_beyond
        if ("error" in status or is_beyond) != (shown.code != 0):
            self._violated(f"status says {status.get('error') or status['answer']}, a dry run {shown.err or shown.out}")
        if status.get("answer"):
            self._outcome.counts["answers told"] += 1
            question, point = Question.now(), self._take_note_of(status["answer"])
            if not any((one.question, one.point) == (question, point) for one in self._confirmed):
                self._violated(f"status tells {point}, which was not confirmed for {question}")
            if (status["diff"] or "Nothing to do") not in shown.out:
                self._violated(f"a dry run shows {shown.out}, status {status['diff']}")
            if self._rng.random() < 0.6:
                return
            again = self._type("apply", "--dry-run", "--answer", status["answer"]["id"], may_fail=True)
            if again.out != shown.out:
                self._violated(f"by its name the answer is {again.out or again.err}, else {shown.out}")
        elif status.get("verdict") == "no_change" and "No change" not in shown.out:
            self._violated(f"status tells no change, a dry run {shown.out}")

    def _require_same_id(self, one: Mapping[str, Any], other: Mapping[str, Any], who: str) -> None:
        ids = [(said.get("answer") or {}).get("id") for said in (one, other)]
        if ids[0] != ids[1]:
            self._violated(f"{who} name different answers: {ids}, {one.get('why')}; {other.get('why')}")

    def _take_note_of(self, answer: Mapping[str, Any] | None) -> Point:
        """Take note of an answer's name, and what it stands for; return its point."""
        if answer is None:
            return ()
        keys = {key["path"]: key["new"] for key in answer["keys"]}
        point = tuple(keys[path] for path in CHOICES)
        self._names.setdefault(answer["id"], (Question.now(), point))
        return point

    def _heard(self, _kind: str, _text: str, **_facts: Any) -> None:
        """See `Tell`."""

    def _violated(self, what: str) -> None:
        self._outcome.violations.append("\n    ".join([f"VIOLATION: {what}", *self._happened]))


def _shown(trials: Sequence[TrialRecord], baseline: Point) -> list[Point]:
    """Return the points that a search shows to be better than its baseline, by the median ratio of their pairs."""
    speeds: dict[Point, dict[int, float]] = {}
    for trial in trials:
        if trial.purpose is Purpose.CONFIRM and trial.pair is not None and trial.comparable:
            point = tuple(trial.values[path] for path in CHOICES)
            speeds.setdefault(point, {})[trial.pair] = trial.comparable.samples_per_s
    of_baseline = speeds.pop(baseline, {})
    ratios = {
        point: [speed / of_baseline[pair] for pair, speed in own.items() if pair in of_baseline]
        for point, own in speeds.items()
    }
    return [point for point, own in ratios.items() if len(own) >= 2 and statistics.median(own) > _LEAST]


def _records(problem: Any) -> Sequence[TrialRecord]:
    from autotune.errors import StudyError
    from autotune.search.known import Study

    try:
        return Study.of(problem).trials
    except StudyError:
        return ()


def _config() -> dict[str, Any]:
    read: dict[str, Any] = yaml.load(Path("config.yaml").read_text(), yaml.CSafeLoader)
    return read


def _point() -> Point:
    """Return the values of the knobs in the config of the working directory."""
    data = _config()["data"]
    return tuple(data[path.removeprefix("data.")] for path in CHOICES)


def _changes(before: Point, after: Point) -> str:
    names = (path.removeprefix("data.") for path in CHOICES)
    return ", ".join(
        f"{name} {old} -> {new}" for name, old, new in zip(names, before, after, strict=True) if old != new
    )


def main(arguments: list[str]) -> int:
    """Make the orders, and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak answers", description=__doc__)
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first order")
    wanted = parser.parse_args(arguments)
    outcome = make_orders(wanted.orders, seed=wanted.seed, first=wanted.first)
    print(outcome.report())
    return 1 if outcome.violations else 0

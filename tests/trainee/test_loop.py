"""Steps from observed fetches and work, of any framework."""

import gc
import math
import os
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.records import TraineeEvent
from autotune.trainee import loop
from autotune.trainee.loop import Loop
from autotune.trainee.steps import BatchSource, StepMaker
from autotune.trainee.stream import TRIAL_DIR_VARIABLE, Report, Stream
from autotune.trial.step_files import StepReader

BATCH, VALIDATION_BATCH = 8, 100


class Trainer:
    """Stand-in of a framework that calls the loop; a fetch takes 1 s and work 2 s."""

    def __init__(self, folder: Path) -> None:
        self.now_s, self.step_s = 1000.0, 3.0
        self.loop = Loop(Report(Stream()))
        self._reader = StepReader(folder)
        self._sources = defaultdict[str, BatchSource](BatchSource)

    def fetch(self, source: str = "f", samples: int = BATCH) -> None:
        """Fetch a batch."""
        begin_s = self.loop.fetch_begins()
        self.now_s += self.step_s / 3
        self.loop.fetched(self._sources[source], begin_s, samples)

    def exhaust(self, source: str = "f") -> None:
        """Ask for a batch that is not there."""
        self.loop.exhausted(self._sources[source], self.loop.fetch_begins())

    def train(self, key: str = "step", samples: int | None = None) -> None:
        """Train, wherever the batch is from."""
        begin_s = self.loop.fetch_begins()
        self.now_s += 2 * self.step_s / 3
        self.loop.worked(key, begin_s, samples, is_whole=True, thread=threading.get_ident())

    def play(self, script: str) -> None:
        """Do what each letter says.

        f: fetch, h: fetch half a batch, o: fetch from another dataset, x: their end, v: fetch for validation,
        z: its end, t: train, w: train on own batches, c: call a compiled function that does not train, u: step the
        optimizer.
        """
        actions = {
            "f": self.fetch,
            "h": lambda: self.fetch(samples=BATCH // 2),
            "o": lambda: self.fetch("o", VALIDATION_BATCH),
            "x": self.exhaust,
            "v": lambda: self.fetch("v", VALIDATION_BATCH),
            "z": lambda: self.exhaust("v"),
            "t": self.train,
            "w": lambda: self.train("own", BATCH),
            "c": lambda: self.loop.called(self.now_s, self.now_s, threading.get_ident()),
            "u": lambda: self.loop.recorded.append((StepMaker.updated,)),
        }
        for letter in script.replace(" ", ""):
            actions[letter]()

    def seen(self) -> list[TraineeEvent]:
        """All that was reported, when the process has ended."""
        self.loop.ends()
        return [event for event in self._reader.poll() if event.kind not in ("start", "files")]


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer in a run."""
    monkeypatch.setenv(TRIAL_DIR_VARIABLE, str(tmp_path))
    made = Trainer(tmp_path)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


def letters(events: list[TraineeEvent]) -> str:
    """Kinds of events but the begin, in order: step, end of an epoch, pause, note by their letters, others by names."""
    names = {"step": "s", "epoch_end": "e", "eval": "p", "note": "n", "begin": ""}
    return "".join(names.get(event.kind, f" {event.kind} ") for event in events)


def samples(events: list[TraineeEvent]) -> list[float | None]:
    """Samples of each step."""
    return [event.samples for event in events if event.kind == "step"]


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("ft ft ht x", "ssse"),
        (2 * "ft ft x vvv z", "ssepsse"),  # validation after each epoch makes no steps
        (2 * "f ft ft ft x t", "sssesssses"),  # fetched ahead: the last is trained on after the data's end
        (3 * "f o t", "sssn"),  # from two datasets
        (6 * "f f t", "ssssss"),  # pairs
        (4 * "ft ft ft f ft", 16 * "s"),  # a bad batch is left out now and then: that is no pause
        ("v" + 2 * "ft ft ft ft ft vv", "ssssspsssss"),  # a check of the validation before training is nothing
        ("vv" + 2 * "ft ft ft ft ft vv", "ssssspsssss"),
        ("ft ft ft f vvv z t ft ft", "sssps ss"),  # validation between a fetch and its work
        ("ft ft ft f vvv t ft ft", "sssps ss"),
        (4 * "w", "ssss"),  # batches of its own
    ],
)
def test_steps_are_batches_that_are_trained_on(trainer: Trainer, script: str, seen: str) -> None:
    """Batches that are not trained on are a pause, which comes before the step that it would have spoiled."""
    trainer.play(script)
    assert letters(sorted(trainer.seen(), key=lambda event: event.t_s)) == seen.replace(" ", "")


@pytest.mark.parametrize(
    ("script", "expected"),
    [("ft ft ht x", [2.5]), (2 * "ft ft x vvv z", [2.0, 2.0]), (2 * "f ft ft ft x t", [4.0, 4.0])],
)
def test_the_end_of_a_pass_tells_its_samples(trainer: Trainer, script: str, expected: list[float]) -> None:
    """As its loader handed them out, also those that are trained on after the end."""
    trainer.play(script)
    ends = [event.samples for event in trainer.seen() if event.kind == "epoch_end"]
    assert ends == [batches * BATCH for batches in expected]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("ft ft ht", [BATCH, BATCH, BATCH // 2]),
        (3 * "f o t", [BATCH] * 3),  # those of the first dataset
        (6 * "f f t", [2 * BATCH] * 3),  # once it is clear that they are pairs
        (4 * "ft ft ft f ft", [BATCH] * 16),
        (4 * "w", [BATCH] * 4),
        (2 * "fffff tttt u ffff tttt u ffh x tttt u", [*[BATCH] * 11, BATCH // 2] * 2),  # of one update each
    ],
)
def test_samples_are_those_of_the_batches(trainer: Trainer, script: str, expected: list[int]) -> None:
    """Of the batch that was fetched, or of what the work was called with; those of the last steps."""
    trainer.play(script)
    assert samples(trainer.seen())[-len(expected) :] == expected


def test_a_pause_is_none_of_the_steps_that_the_device_is_behind_with(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are seen to be completed only after a checkpoint, which then lies in the first of them."""
    monkeypatch.setattr("autotune.trainee.stream.time", SimpleNamespace(monotonic=lambda: trainer.now_s))
    made: list[int] = []
    given, completed = 0, lambda: made[0] if made else max(0, given - 3)
    for place in range(20):
        if place == 10:
            begin_s = trainer.loop.pause_begins()
            trainer.now_s += 100.0
            made.append(given)
            trainer.loop.pause_ends("checkpoint", begin_s)
            made.clear()
        trainer.fetch()
        given = place + 1
        trainer.loop.completions.add(trainer.now_s, lambda place=place: completed() > place)
        trainer.train()
    made.append(20)
    seen = trainer.seen()
    steps = [event.t_s for event in seen if event.kind == "step"]
    (pause_s,) = (event.t_s for event in seen if event.kind == "checkpoint")
    long = [(before, after) for before, after in pairwise(steps) if after - before > 50.0]
    assert [before < pause_s <= after for before, after in long] == [True]


def test_a_step_ends_with_its_work_and_waits_for_its_fetch(trainer: Trainer) -> None:
    """Its end is the next fetch, and the last one's is its work; a pause is not a part of any step."""
    trainer.play("ft ft x vv z ft ft")
    steps = [event for event in trainer.seen() if event.kind == "step"]
    assert [step.t_s - 1000.0 for step in steps] == [3.0, 6.0, 11.0, 14.0]
    assert [step.wait_s for step in steps] == [1.0] * 4


def test_many_calls_that_train_on_nothing_are_a_pause_where_they_come_now_and_then(trainer: Trainer) -> None:
    """An evaluation of what no iterator fetched; averages of weights, which each step computes, are parts of it."""
    for number in range(12):
        trainer.play("ft" + (60 if number in (3, 7) else 6) * "c")
    assert letters(trainer.seen()) == "pssspsssspsssss"


@pytest.mark.parametrize(
    ("script", "updates"),
    [
        # Before the first of all updates, nothing is known of any.
        (6 * "ffff tttt u", [True] * 4 + ([False] * 3 + [True]) * 5),
        # An optimizer that skips a step, as a scaled loss that overflows makes it do, belongs to the step that follows.
        ("ft ft ftu ft ft ftu ft ft ft ft ft ftu", [True] * 3 + [False, False, True] + [False] * 5 + [True]),
    ],
)
def test_accumulated_gradients_show(trainer: Trainer, script: str, updates: list[bool]) -> None:
    """Each batch is a step, the last one of an update is known as such, and none is a pause."""
    trainer.play(script)
    events = trainer.seen()
    assert [event.update for event in events if event.kind == "step"] == updates
    assert "p" not in letters(events)


def test_a_loop_that_makes_its_own_batches_has_steps_of_its_work(trainer: Trainer) -> None:
    """The first work of a step makes it; a second work makes none."""
    for _ in range(4):
        trainer.train("discriminator", samples=BATCH)
        trainer.train("generator", samples=BATCH)
    events = trainer.seen()
    assert (letters(events), samples(events)) == ("ssss", [BATCH] * 4)
    assert [event.wait_s is None for event in events if event.kind == "step"] == [True, False, False, False]


def test_a_peek_at_the_data_hides_no_loop(trainer: Trainer) -> None:
    """A loop that fetches one batch to build the model, and makes all others itself, is seen after a few steps."""
    trainer.play("f" + 30 * "w")
    assert len(trainer.seen()) >= 20


def test_much_work_on_each_batch_makes_no_steps_of_its_own(trainer: Trainer) -> None:
    """Sixteen small batches of each that is fetched: it looks like a peek at first, and no longer with the next one."""
    trainer.play(20 * ("o" + 16 * "t"))
    seen = samples(trainer.seen())
    assert seen.count(VALIDATION_BATCH) >= 19
    assert len(seen) <= 20 + 8


def test_another_loop_may_follow(trainer: Trainer) -> None:
    """A later loop with batches of its own is seen after a few steps; so is a change of work."""
    trainer.play(5 * "ft" + "x")
    for key, size in (("second", 4), ("third", 2)):
        for _ in range(30):
            trainer.train(key, samples=size)
    seen = samples(trainer.seen())
    assert seen.count(BATCH) == 5
    assert seen.count(4) >= 20
    assert seen.count(2) >= 20


def test_a_loader_in_the_background_does_not_make_the_steps(trainer: Trainer) -> None:
    """Fetches of another thread are not waits of the loop."""
    loader = threading.Thread(target=trainer.play, args=("ffff",))
    loader.start()
    loader.join()
    trainer.play(5 * "w")
    assert letters(trainer.seen()) == "sssss"


def test_steps_of_one_execution_share_its_time(trainer: Trainer) -> None:
    """Four batches that are trained on at once are four steps, evenly spread since the end of the one before."""
    for end_s, batches in ((10.0, 1), (14.0, 4)):
        for _ in range(batches):
            trainer.loop.aggregated.add(0.5, 8)
        trainer.loop.aggregated.ended(end_s)
        trainer.loop.aggregated.flush()
    steps = [(step.t_s, step.wait_s, step.samples) for step in trainer.seen() if step.kind == "step"]
    assert steps == [(t_s, 0.5, 8.0) for t_s in (10.0, 11.0, 12.0, 13.0, 14.0)]


def test_a_pause_within_a_pause_is_one(trainer: Trainer) -> None:
    """A model that is saved saves a checkpoint."""
    outer, inner = trainer.loop.pause_begins(), trainer.loop.pause_begins()
    for begin_s in (inner, outer):
        trainer.loop.pause_ends("checkpoint", begin_s)
    assert [event.kind for event in trainer.seen()] == ["checkpoint"]


@pytest.mark.parametrize("batch", ["f", ""], ids=["fetched", "own batches"])
def test_a_step_that_memory_ran_out_in_has_an_infinite_loss(trainer: Trainer, batch: str) -> None:
    """A trainer that swallows the error goes on, faster, with nothing to show for it; the error is told once."""
    for _ in range(3):
        trainer.play(batch)
        trainer.loop.ran_out_of_memory("OOM when allocating\ntensor")
    events = trainer.seen()
    assert sorted(letters(events)) == ["n", "s", "s", "s"]
    assert [event.text for event in events if event.text] == ["memory ran out: OOM when allocating tensor"]
    assert {event.loss for event in events if event.loss is not None} == {math.inf}


@pytest.mark.parametrize("step", ["ft", "w"], ids=["fetched", "own batches"])
def test_an_accelerator_is_waited_for_now_and_then(trainer: Trainer, step: str) -> None:
    """At the edge of a window all work is done, and a loss can be read for free; not after every step."""
    waits: list[None] = []
    trainer.loop.sync = lambda: waits.append(None)
    trainer.loop.unread_loss = 0.25
    trainer.step_s = 0.1
    trainer.play(50 * step)
    events = trainer.seen()
    assert 1 <= len(waits) < 25
    assert [event.kind for event in events].count("sync") == len(waits)
    assert [event.loss for event in events if event.loss is not None] == [0.25]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_go_on_with_the_parents_steps(trainer: Trainer) -> None:
    """Unwritten steps are the parent's to write."""
    trainer.play("ft")
    child = os.fork()
    if child == 0:
        gc.disable()  # it would collect objects of a TensorFlow whose threads were not forked
        trainer.loop.forget()
        trainer.loop.ends()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert letters(trainer.seen()) == "s"


def test_compiled_steps_without_any_fetch_are_told_once_and_at_once(trainer: Trainer) -> None:
    """The first call of the step is traced; no Python runs afterwards that could tell it."""
    trainer.loop.always_trains()
    trainer.loop.always_trains()
    (event,) = trainer.seen()
    assert event.kind == "unseen"
    assert "tf.data" in (event.text or "")

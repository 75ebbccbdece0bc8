"""Steps from observed fetches and work, of any framework."""

import math
import os
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.records import TraineeEvent
from autotune.trainee.loop import Loop
from autotune.trainee.report import Report
from autotune.trainee.steps import Source, StepMaker
from autotune.trainee.stream import TRIAL_DIR_VARIABLE, Stream
from autotune.trial.step_files import StepReader

TRAINING, VALIDATION, OTHER = 1, 2, 3


class Trainer:
    """Stand-in of a framework that calls the loop."""

    def __init__(self, folder: Path) -> None:
        self.loop = Loop(Report(Stream()))
        self._reader = StepReader(folder)
        self._sources = defaultdict[int, Source](Source)

    def fetch(self, source: int = TRAINING, samples: int = 8) -> None:
        """Fetches a batch."""
        self.loop.fetched(self._sources[source], self.loop.fetch_begins(), samples)

    def exhaust(self, source: int = TRAINING) -> None:
        """Asks for a batch that is not there."""
        self.loop.exhausted(self._sources[source], self.loop.fetch_begins())

    def train(self, key: str = "step", samples: int | None = None) -> None:
        """Trains, wherever the batch is from."""
        begin_s = self.loop.fetch_begins()
        self.loop.worked(key, begin_s, samples, is_whole=True, thread=threading.get_ident())

    def call(self) -> None:
        """Calls a compiled function that does not train."""
        now_s = self.loop.fetch_begins()
        self.loop.called(now_s, now_s, threading.get_ident())

    def update(self) -> None:
        """Steps an optimizer."""
        self.loop.recorded.append((StepMaker.updated,))

    def seen(self) -> list[TraineeEvent]:
        """All that was reported, when the process has ended."""
        self.loop.ends()
        return [event for event in self._reader.poll() if event.kind not in ("start", "files")]


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer in a run."""
    monkeypatch.setenv(TRIAL_DIR_VARIABLE, str(tmp_path))
    return Trainer(tmp_path)


def kinds(events: list[TraineeEvent]) -> list[str]:
    """Their kinds, in order."""
    return [event.kind for event in events]


def test_a_batch_that_is_trained_on_is_a_step(trainer: Trainer) -> None:
    """Its samples are the batch's, its end is the next fetch, and the last one's is its work."""
    for samples in (8, 8, 4):
        trainer.fetch(samples=samples)
        trainer.train()
    trainer.exhaust()
    events = trainer.seen()
    assert kinds(events) == ["step", "step", "step", "epoch_end"]
    assert [event.samples for event in events[:3]] == [8, 8, 4]
    assert all(event.wait_s is not None for event in events[:3])


def test_batches_that_are_not_trained_on_are_a_pause(trainer: Trainer) -> None:
    """Validation after each epoch makes no steps; the pause is told before the step that it would have spoiled."""
    for _ in range(2):
        for _ in range(2):
            trainer.fetch()
            trainer.train()
        trainer.exhaust()
        for _ in range(3):
            trainer.fetch(VALIDATION)
        trainer.exhaust(VALIDATION)
    events = trainer.seen()
    assert [event.kind for event in sorted(events, key=lambda event: event.t_s)] == [
        "step",
        "step",
        "epoch_end",
        "eval",
        "step",
        "step",
        "epoch_end",
    ]


def test_many_calls_that_train_on_nothing_are_a_pause_where_they_come_now_and_then(trainer: Trainer) -> None:
    """An evaluation of what no iterator fetched; averages of weights, which each step computes, are parts of it."""
    for number in range(12):
        trainer.fetch()
        trainer.train()
        for _ in range(60 if number in (3, 7) else 6):
            trainer.call()
    events = trainer.seen()
    evals = [place for place, kind in enumerate(kinds(events)) if kind == "eval"]
    assert [kinds(events)[:place].count("step") for place in evals] == [0, 3, 7]  # nothing is known of the first
    assert kinds(events).count("step") == 12


def test_a_loop_that_fetches_ahead_loses_no_step(trainer: Trainer) -> None:
    """A batch may be fetched before the one before it is trained on; the last is trained on after the data's end."""
    for _ in range(2):
        trainer.fetch()
        for _ in range(3):
            trainer.fetch()
            trainer.train()
        trainer.exhaust()
        trainer.train()
    assert kinds(trainer.seen()).count("step") == 8


def test_a_step_may_take_from_two_datasets(trainer: Trainer) -> None:
    """Their waits add up, and the samples are those of the first."""
    for _ in range(3):
        trainer.fetch(TRAINING, samples=8)
        trainer.fetch(OTHER, samples=100)
        trainer.train()
    events = [event for event in trainer.seen() if event.kind == "step"]
    assert [event.samples for event in events] == [8.0] * 3


def test_batches_of_one_update_are_steps_each(trainer: Trainer) -> None:
    """Gradients are accumulated over batches fetched at once, one of them ahead; none of them is a pause."""
    for epoch in range(2):
        for number in range(3):
            for sample in range(5 if number == 0 else 3 if number == 2 else 4):
                trainer.fetch(10 + epoch, samples=8 - (number == 2 and sample == 2))
            if number == 2:
                trainer.exhaust(10 + epoch)
            for _ in range(4):
                trainer.train()
            trainer.update()
    events = trainer.seen()
    steps = [event for event in events if event.kind == "step"]
    assert [step.samples for step in steps] == [8.0] * 11 + [7.0] + [8.0] * 11 + [7.0]
    # Before the first of all updates, nothing is known of any.
    assert [step.update for step in steps] == [True] * 4 + ([False] * 3 + [True]) * 5
    assert (kinds(events).count("epoch_end"), kinds(events).count("eval")) == (2, 0)


def test_accumulated_gradients_show_where_each_batch_is_fetched_on_its_own_too(trainer: Trainer) -> None:
    """An optimizer that skips a step, as a scaled loss that overflows makes it do, belongs to the step that follows."""
    for number in range(12):
        trainer.fetch()
        trainer.train()
        if number % 3 == 2 and number != 8:
            trainer.update()
    updates = [event.update for event in trainer.seen() if event.kind == "step"]
    assert updates == [True] * 3 + [False, False, True] + [False] * 5 + [True]


def test_several_batches_for_one_work_are_one_step(trainer: Trainer) -> None:
    """Such as pairs; after two rounds that is clear, and no step is a pause."""
    for _ in range(6):
        trainer.fetch()
        trainer.fetch()
        trainer.train()
    events = trainer.seen()
    assert kinds(events) == ["step"] * 6
    assert [event.samples for event in events][-3:] == [16.0] * 3


def test_a_batch_that_is_left_out_now_and_then_is_no_pause(trainer: Trainer) -> None:
    """A trainer that skips bad batches trains on the others: these are counted, and the time of all."""
    for number in range(20):
        trainer.fetch()
        if number % 5 != 3:
            trainer.train()
    events = trainer.seen()
    assert kinds(events) == ["step"] * 16
    assert {event.samples for event in events} == {8.0}


@pytest.mark.parametrize("batches", [1, 2])
def test_a_check_of_the_validation_before_training_is_nothing(trainer: Trainer, batches: int) -> None:
    """It leaves its dataset in the middle, and the steps that follow are not taken for steps over two datasets."""
    for _ in range(batches):
        trainer.fetch(VALIDATION, samples=100)
    for _ in range(2):
        for _ in range(5):
            trainer.fetch()
            trainer.train()
        for _ in range(2):
            trainer.fetch(VALIDATION, samples=100)
    events = trainer.seen()
    assert [event.samples for event in events if event.kind == "step"][1:] == [8.0] * 9
    assert kinds(events).count("eval") == 1
    assert "note" not in kinds(events)


@pytest.mark.parametrize("ends", [True, False])
def test_validation_between_a_fetch_and_its_work_is_a_pause(trainer: Trainer, ends: bool) -> None:
    """A loop that validates first and then trains on the batch it has loses no step by it."""
    for number in range(6):
        trainer.fetch()
        if number == 3:
            for _ in range(3):
                trainer.fetch(VALIDATION, samples=100)
            if ends:
                trainer.exhaust(VALIDATION)
        trainer.train()
    events = trainer.seen()
    steps = [event for event in events if event.kind == "step"]
    assert [step.samples for step in steps] == [8.0] * 6
    (pause,) = [event for event in events if event.kind == "eval"]
    assert steps[2].t_s <= pause.t_s <= steps[3].t_s


def test_a_loop_that_makes_its_own_batches_has_steps_of_its_work(trainer: Trainer) -> None:
    """The first work of a step makes it, with the samples it was called with; a second work makes none."""
    for _ in range(4):
        trainer.train("discriminator", samples=8)
        trainer.train("generator", samples=8)
    events = trainer.seen()
    assert kinds(events) == ["step"] * 4
    assert [event.samples for event in events] == [8.0] * 4
    assert [event.wait_s is None for event in events] == [True, False, False, False]


def test_a_peek_at_the_data_hides_no_loop(trainer: Trainer) -> None:
    """A loop that fetches one batch to build the model, and makes all others itself, is seen after a few steps."""
    trainer.fetch()
    for _ in range(30):
        trainer.train(samples=8)
    assert len(trainer.seen()) >= 20


def test_much_work_on_each_batch_makes_no_steps_of_its_own(trainer: Trainer) -> None:
    """Sixteen small batches of each that is fetched: it looks like a peek at first, and no longer with the next one."""
    for _ in range(20):
        trainer.fetch(samples=32)
        for _ in range(16):
            trainer.train()
    samples = [event.samples for event in trainer.seen() if event.kind == "step"]
    assert samples.count(32.0) >= 19
    assert len(samples) <= 20 + 8


def test_another_loop_may_follow(trainer: Trainer) -> None:
    """A later loop with batches of its own is seen after a few steps; so is a change of work."""
    for _ in range(5):
        trainer.fetch()
        trainer.train("first")
    trainer.exhaust()
    for _ in range(30):
        trainer.train("second", samples=4)
    for _ in range(30):
        trainer.train("third", samples=2)
    samples = [event.samples for event in trainer.seen() if event.kind == "step"]
    assert samples.count(8.0) == 5
    assert samples.count(4.0) >= 20
    assert samples.count(2.0) >= 20


def test_a_loader_in_the_background_does_not_make_the_steps(trainer: Trainer) -> None:
    """Fetches of another thread are not waits of the loop."""
    loader = threading.Thread(target=lambda: [trainer.fetch() for _ in range(4)])
    loader.start()
    loader.join()
    for _ in range(5):
        trainer.train(samples=8)
    assert kinds(trainer.seen()) == ["step"] * 5


def test_steps_of_one_execution_share_its_time(trainer: Trainer) -> None:
    """Four batches that are trained on at once are four steps, evenly spread since the end of the one before."""
    aggregated = trainer.loop.aggregated
    for end_s, batches in ((10.0, 1), (14.0, 4)):
        for _ in range(batches):
            aggregated.add(0.5, 8)
        aggregated.ended(end_s)
        aggregated.flush()
    steps = [event for event in trainer.seen() if event.kind == "step"]
    assert [step.t_s for step in steps] == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert [step.wait_s for step in steps] == [0.5] * 5
    assert [step.samples for step in steps] == [8.0] * 5


def test_a_pause_within_a_pause_is_one(trainer: Trainer) -> None:
    """A model that is saved saves a checkpoint."""
    outer = trainer.loop.pause_begins()
    inner = trainer.loop.pause_begins()
    trainer.loop.pause_ends("checkpoint", inner)
    trainer.loop.pause_ends("checkpoint", outer)
    assert kinds(trainer.seen()) == ["checkpoint"]


@pytest.mark.parametrize("fetch", [Trainer.fetch, lambda trainer: None], ids=["fetched", "own batches"])
def test_a_step_that_memory_ran_out_in_has_an_infinite_loss(trainer: Trainer, fetch: Callable[[Trainer], None]) -> None:
    """A trainer that swallows the error goes on, faster, with nothing to show for it; the error is told once."""
    for _ in range(3):
        fetch(trainer)
        trainer.loop.ran_out_of_memory("OOM when allocating\ntensor")
    events = trainer.seen()
    assert sorted(kinds(events)) == ["note", "step", "step", "step"]
    assert [event.text for event in events if event.text] == ["memory ran out: OOM when allocating tensor"]
    assert {event.loss for event in events if event.loss is not None} == {math.inf}


@pytest.mark.parametrize("fetch", [Trainer.fetch, lambda trainer: None], ids=["fetched", "own batches"])
def test_an_accelerator_is_waited_for_now_and_then(trainer: Trainer, fetch: Callable[[Trainer], None]) -> None:
    """At the edge of a window all work is done, and a loss can be read for free; not after every step."""
    waits: list[None] = []
    trainer.loop.sync = lambda: waits.append(None)
    trainer.loop.unread_loss = 0.25
    for _ in range(50):
        fetch(trainer)
        trainer.train(samples=8)
    events = trainer.seen()
    assert 1 <= len(waits) < 25
    assert kinds(events).count("sync") == len(waits)
    assert [event.loss for event in events if event.loss is not None] == [0.25]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_go_on_with_the_parents_steps(trainer: Trainer, tmp_path: Path) -> None:
    """Unwritten steps are the parent's to write."""
    trainer.fetch()
    trainer.train()
    child = os.fork()
    if child == 0:
        trainer.loop.forget()
        trainer.loop.ends()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert kinds(trainer.seen()) == ["step"]


def test_compiled_steps_without_any_fetch_are_told_once_and_at_once(trainer: Trainer) -> None:
    """The first call of the step is traced; no Python runs afterwards that could tell it."""
    trainer.loop.always_trains()
    trainer.loop.always_trains()
    (event,) = trainer.seen()
    assert event.kind == "unseen"
    assert event.text is not None
    assert "tf.data" in event.text

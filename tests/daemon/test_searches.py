"""Searches of the daemon, after the machine or an earlier daemon has gone."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import SystemClock
from autotune.daemon.advice import Adviser, Recommendations
from autotune.daemon.queue import ApplyScope, EntryState, Hold, Queue, QueueEntry, SearchAnswerSummary, config_sha256
from autotune.daemon.searches import MOST_REPLANS, Searches, search_arguments
from autotune.trial.process_identity import this_process
from tests.daemon.advised import ANSWER, advice
from tests.daemon.queue.entries import entry


class Published(list[str]):
    """Kinds of what the daemon has published."""

    def __call__(self, kind: str, text: str, **facts: Any) -> None:
        """See `Publish`."""
        self.append(kind)


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """An empty queue."""
    return Queue(tmp_path, SystemClock())


def searches(queue: Queue, published: Published) -> Searches:
    """Return the searches of a new daemon."""
    return Searches(queue, adviser(queue, published), SystemClock(), published)


def adviser(queue: Queue, published: Published) -> Adviser:
    """Return the adviser of a new daemon, on a machine without trainings."""
    return Adviser(queue, Recommendations(queue.folder / "advice"), SystemClock(), published, lambda _config: False)


def left_behind(queue: Queue, **owner: Any) -> QueueEntry:
    """Add an entry whose search an earlier daemon has started."""
    whose = {**this_process(), **owner} if owner else None
    return queue.add(
        lambda number, _entries: entry(number, state=EntryState.RUNNING, owner=whose, running_s=100.0, used_s=50.0)
    )


@pytest.mark.parametrize("owner", [{"boot_id": "another boot"}, {"pid": 4_000_000, "started_s": 1.0}, {}])
def test_an_entry_of_before_goes_on_with_the_rest(queue: Queue, owner: dict[str, Any]) -> None:
    """After a reboot, a SIGKILL of all, or one before the search was started, the entry waits again, once."""
    left_behind(queue, **owner)
    published = Published()
    daemon = searches(queue, published)
    daemon.tick()
    (one,) = queue.entries()
    assert (one.state, one.used_s, one.owner) == (EntryState.WAITING, 150.0, None)
    assert daemon.busy_with is None
    daemon.tick()
    assert queue.entries() == (one,)
    assert published == ["search_ended"]


def test_a_search_that_still_ends_is_waited_for(queue: Queue) -> None:
    """Nothing is started beside the search of an earlier daemon, which is said once."""
    left = left_behind(queue, pid=os.getpid())
    published = Published()
    daemon = searches(queue, published)
    daemon.tick()
    daemon.tick()
    assert daemon.busy_with == left
    assert published == ["search_found"]


def test_a_daemon_that_ended_before_it_applied_is_followed_by_one_that_does(queue: Queue) -> None:
    """What is due is looked at again; where that cannot be, the entry is done, and those behind it have their turn."""
    answer = SearchAnswerSummary(verdict="better", ratio=(1.5, 1.2, 1.8), advice="00000000")
    queue.add(lambda number, _entries: entry(number, state=EntryState.HELD, hold=Hold.DUE, answer=answer))
    published = Published()
    adviser(queue, published).apply_held()
    (one,) = queue.entries()
    assert (one.state, one.hold) == (EntryState.DONE, None)
    assert one.note == "not applied: there is no recommendation 00000000"
    assert published == ["not_applied"]


def test_a_daemon_that_was_killed_while_it_applied_has_not_forgotten(queue: Queue, tmp_path: Path) -> None:
    """The values are in the file, and known as autotune's; what could not be applied is not."""
    config = tmp_path / "1.yaml"
    config.write_text("{data: {num_workers: 1}}")
    recommendations = Recommendations(queue.folder / "advice")
    one = replace(advice(changes=ANSWER["changes"][:1]), config=str(config), config_sha256=config_sha256((config,)))
    recommendations.keep(one)
    answer = SearchAnswerSummary(verdict="better", ratio=(1.5, 1.2, 1.8), advice=one.id)
    due = replace(entry(), state=EntryState.HELD, hold=Hold.DUE, answer=answer, apply=frozenset({ApplyScope.BETTER}))
    advising = adviser(queue, Published())
    due = replace(due, cwd=str(tmp_path), config=str(config), environment=dict(os.environ))
    queue.add(lambda _number, _entries: due)
    advising.apply_held()  # the file has no section for autotune
    (failed,) = queue.entries()
    assert failed.note.startswith("not applied: `autotune apply` failed")
    assert recommendations.applied_values(str(config)) == {}
    recommendations.mark_applied(one.id, "2030-01-01T01:00:00+00:00")
    config.write_text("{data: {num_workers: 4}}")
    queue.change(due.id, lambda _one: due)
    advising.apply_held()
    (done,) = queue.entries()
    assert (done.state, done.note.split(" to ")[0]) == (EntryState.DONE, "applied")
    assert recommendations.applied_values(str(config)) == {"data.num_workers": 4}


def test_an_answer_without_its_facts_fails_the_entry(queue: Queue) -> None:
    """It is never done with advice that nobody can read."""
    left = left_behind(queue, boot_id="another boot")
    queue.change(left.id, lambda one: replace(one, replans=MOST_REPLANS))
    queue.answer(left).write_text('{"verdict": "better", "speedup": {"ratio": 2, "low": 1.5, "high": 3}}')
    searches(queue, Published()).tick()
    (one,) = queue.entries()
    assert (one.state, one.note) == (EntryState.FAILED, "the answer of its search is invalid")


def test_the_search_is_kept_to_what_may_be_applied() -> None:
    """The rest of the budget, the options as typed, the trainer's command at the end, and no question asked."""
    one = entry(options=("--seed", "3", "--", "python", "train.py", "--json"), used_s=450.0)
    words = search_arguments(one)
    first = ("search", "--config", one.config, "--budget", "150s", "--json", "--no-apply")
    assert words[: words.index("--seed")] == first
    assert words[-4:] == ("--", "python", "train.py", "--json")


def test_who_pauses_it_at_the_last_moment_has_it_paused(queue: Queue, tmp_path: Path) -> None:
    """Between the decision to start an entry and its start its user may have changed their mind."""
    config = tmp_path / "config.yaml"
    config.write_text("a: 1\n")
    waiting = queue.add(lambda number, _entries: entry(number, config=str(config)))
    queue.change(waiting.id, lambda one: replace(one, state=EntryState.PAUSED))
    daemon = searches(queue, Published())
    daemon.start(waiting)
    assert daemon.running is None
    assert queue.entries()[0].state is EntryState.PAUSED

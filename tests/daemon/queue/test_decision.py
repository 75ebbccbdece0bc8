"""QueueDecision of the queue."""

from datetime import UTC, datetime, timedelta

from autotune.daemon.queue import EntryState, Hold, QueueDecision, StartRule, decide
from tests.daemon.queue.entries import NOW, entry

UTC_NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


def turns(*entries: object, is_idle: bool = False, running: object = None) -> QueueDecision:
    """Decide at noon."""
    return decide(
        list(entries),  # type: ignore[arg-type]
        now=UTC_NOW,
        running=running,  # type: ignore[arg-type]
        why_not_idle=lambda _entry: None if is_idle else "GPU 0 is in use by python (process 4711)",
    )


def test_a_waiting_entry_says_who_is_there() -> None:
    """On a machine in use nothing starts, and the list says who uses it."""
    one = entry(1)
    decided = turns(one)
    assert decided.next is None
    assert decided.wants_idle
    assert decided.reasons[one.id] == "waits for an idle machine: GPU 0 is in use by python (process 4711)"


def test_the_first_that_may_start_does() -> None:
    """An entry that waits for its time, or is paused, does not hold up those behind it."""
    later = StartRule(kind="at", at=(UTC_NOW + timedelta(hours=1)).isoformat())
    entries = [entry(1, start=later), entry(2, state=EntryState.PAUSED), entry(3), entry(4)]
    decided = turns(*entries, is_idle=True)
    assert decided.next == entries[2]
    assert decided.reasons[entries[0].id] == "waits for 13:00"
    assert "resume 2" in decided.reasons[entries[1].id]
    assert decided.reasons[entries[3].id] == "one search at a time: after entry 3"


def test_one_search_at_a_time() -> None:
    """Beside a running search nothing starts, and it is said which one is in front."""
    running, one = entry(1, state=EntryState.RUNNING), entry(2, start=NOW)
    assert turns(entry(1), one).next == one  # who said now does not wait for an idle machine
    decided = turns(running, one, is_idle=True, running=running)
    assert decided.next is None
    assert decided.reasons[one.id] == "one search at a time: after entry 1"


def test_what_was_in_the_way_is_given_time() -> None:
    """An entry whose study was busy is not started again at once."""
    one = entry(1, start=NOW, retry_utc=(UTC_NOW + timedelta(seconds=30)).isoformat())
    decided = turns(one)
    assert decided.next is None
    assert decided.reasons[one.id].startswith("retries at ")


def test_held_entries_say_what_they_wait_for() -> None:
    """A better answer that is not applied says why, and what to type."""
    edited = entry(1, state=EntryState.HELD, hold=Hold.EDITED)
    training = entry(2, state=EntryState.HELD, hold=Hold.TRAINING)
    decided = turns(edited, training, entry(3, state=EntryState.DONE))
    assert "autotune queue resume 1" in decided.reasons[edited.id]
    assert "training" in decided.reasons[training.id]
    assert len(decided.reasons) == 2

"""Endings of searches: what becomes of the entry."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autotune.daemon.queue import ApplyScope, Entry, EntryState, Hold
from autotune.daemon.searches import LEAST_REST_S, MOST_KILLS, MOST_REPLANS, SearchEnding, entry_after, read_answer
from tests.daemon.queue.entries import entry

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RUNNING = entry(state=EntryState.RUNNING, owner={"pid": 1}, running_s=100.0)
BETTER = {"verdict": "better", "why": "confirmed", "speedup": {"ratio": 1.5, "low": 1.2, "high": 1.8}}
INTERRUPTED = {**BETTER, "interrupted": "ended by SIGTERM"}


def after(one: Entry = RUNNING, **changes: Any) -> Entry:
    """End a search of 100 s like this."""
    fields = {"exit_code": 0, "answer": BETTER, "used_s": 100.0, "config_sha256": one.fingerprint.config_sha256}
    return entry_after(one, SearchEnding(**{**fields, **changes}), NOW)


def test_an_answer_ends_the_entry() -> None:
    """A search that came to its end is done, with its ratio."""
    done = after()
    assert done.state is EntryState.DONE
    assert done.answer.ratio == (1.5, 1.2, 1.8)
    assert (done.owner, done.running_s, done.used_s) == (None, 0.0, 100.0)


def test_a_better_answer_that_may_be_applied_is_due() -> None:
    """It is not done before it is applied: who waits for it waits for that; a daemon that starts goes on with it."""
    due = after(replace(RUNNING, apply=frozenset({ApplyScope.BETTER})))
    assert (due.state, due.hold, due.goes_on) == (EntryState.HELD, Hold.DUE, True)
    assert not replace(due, hold=Hold.TRAINING).goes_on
    none = after(replace(RUNNING, apply=frozenset({ApplyScope.BETTER})), answer={"verdict": "no_change"})
    assert (none.state, none.hold) == (EntryState.DONE, None)


def test_somebody_who_came_costs_the_time_that_was_used_only() -> None:
    """The entry waits again, with the rest of its budget, and says who came."""
    left = after(exit_code=143, why_left="GPU 0 is in use by python (process 4711)")
    assert left.state is EntryState.WAITING
    assert left.left_s == 500.0
    assert left.note == "left because GPU 0 is in use by python (process 4711); 8m20s of 10m is left"


@pytest.mark.parametrize("exit_code", [None, 143, -9])
def test_a_search_that_lost_its_daemon_goes_on_with_the_rest(exit_code: int | None) -> None:
    """An interrupted answer, or none, is no answer, also where nobody knows the exit code."""
    assert after(exit_code=exit_code, answer=INTERRUPTED).state is EntryState.WAITING
    assert after(exit_code=exit_code, answer={}).state is EntryState.WAITING


def test_a_search_that_is_killed_again_and_again_is_given_up() -> None:
    """After some searches that ended without a word there is no point in another one."""
    one = RUNNING
    for _ in range(MOST_KILLS):
        assert one.state in (EntryState.RUNNING, EntryState.WAITING)
        one = after(replace(one, state=EntryState.RUNNING), exit_code=-9, answer={}, used_s=10.0)
    assert one.state is EntryState.FAILED
    assert "without a word" in one.note


def test_a_rest_that_is_too_short_is_not_started() -> None:
    """What was found so far is the answer then; without any the entry has failed."""
    short = replace(RUNNING, budget_s=100.0 + LEAST_REST_S - 1)
    assert after(short, exit_code=143, answer=INTERRUPTED).state is EntryState.DONE
    assert after(short, exit_code=143, answer={}).state is EntryState.FAILED


def test_errors_that_pass_are_tried_again_later() -> None:
    """A study that another search holds will be free; a config that is wrong will not mend itself."""
    busy = {"error": {"kind": "study_busy", "message": "another search is working on it"}}
    waits = after(exit_code=1, answer=busy)
    assert waits.state is EntryState.WAITING
    assert waits.retry_utc == "2030-01-01T00:01:00+00:00"
    wrong = {"error": {"kind": "config", "message": "no such key", "where": "a.yaml:3", "remedy": "Mend it."}}
    failed = after(exit_code=1, answer=wrong)
    assert failed.state is EntryState.FAILED
    assert failed.note == "a.yaml:3: no such key Mend it."


def test_a_config_edited_meanwhile_is_searched_again() -> None:
    """An answer for the file as it was is not given for the file as it is; it is not tried for ever."""
    edited = "c" * 64
    one = after(config_sha256=edited)
    assert one.state is EntryState.WAITING
    assert one.used_s == 0.0
    assert one.fingerprint.config_sha256 == edited
    assert after(replace(RUNNING, replans=MOST_REPLANS), config_sha256=edited).state is EntryState.DONE


def test_who_paused_it_meanwhile_has_it_paused() -> None:
    """The user's word stands against an end that comes later."""
    paused = after(replace(RUNNING, state=EntryState.PAUSED), exit_code=143, answer={}, why_left="it is paused")
    assert paused.state is EntryState.PAUSED
    assert paused.used_s == 100.0
    assert paused.owner is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"verdict": "better"', b"\xff", b"[" * 100_000])
def test_half_an_answer_is_none(tmp_path: Path, content: bytes) -> None:
    """A search that was killed while it printed has given no answer."""
    (tmp_path / "answer").write_bytes(content)
    assert read_answer(tmp_path / "answer") == {}
    assert read_answer(tmp_path / "missing") == {}

"""Endings of searches: what becomes of the entry."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autotune.daemon.queue import ApplyScope, EntryState, Hold, QueueEntry, SearchAnswerSummary
from autotune.daemon.searches import LEAST_REST_S, MOST_KILLS, MOST_REPLANS, SearchEnding, entry_after, read_answer
from tests.daemon.queue.entries import entry

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RUNNING = entry(state=EntryState.RUNNING, owner={"pid": 1}, running_s=100.0)
BETTER = {"verdict": "better", "why": "confirmed", "speedup": {"ratio": 1.5, "low": 1.2, "high": 1.8}}
MAY_BE_APPLIED = replace(RUNNING, apply=frozenset({ApplyScope.BETTER}))
SHORT = replace(RUNNING, budget_s=100.0 + LEAST_REST_S - 1)
EDITED = {"config_sha256": "c" * 64}
WRONG = {"error": {"kind": "config", "message": "no such key", "where": "a.yaml:3", "remedy": "Mend it."}}
ANSWERED = SearchAnswerSummary(verdict="better", ratio=(1.5, 1.2, 1.8), advice=None)
CAME = "GPU 0 is in use by python (process 4711)"
INTERRUPTED = {**BETTER, "interrupted": "ended by SIGTERM"}


def after(one: QueueEntry = RUNNING, **changes: Any) -> QueueEntry:
    """End a search of 100 s like this."""
    fields = {"exit_code": 0, "answer": BETTER, "used_s": 100.0, "config_sha256": one.fingerprint.config_sha256}
    return entry_after(one, SearchEnding(**{**fields, **changes}), NOW)


DONE, WAITING, FAILED = EntryState.DONE, EntryState.WAITING, EntryState.FAILED
CASES: dict[str, tuple[QueueEntry, dict[str, Any], dict[str, Any]]] = {
    "an answer": (
        RUNNING,
        {},
        {"state": DONE, "owner": None, "running_s": 0.0, "used_s": 100.0, "answer": ANSWERED},
    ),
    "a better answer that may be applied": (MAY_BE_APPLIED, {}, {"state": EntryState.HELD, "hold": Hold.DUE}),
    "no change that may be applied": (
        MAY_BE_APPLIED,
        {"answer": {"verdict": "no_change"}},
        {"state": DONE, "hold": None},
    ),
    "somebody came": (
        RUNNING,
        {"exit_code": 143, "stop_reason": CAME},
        {"state": WAITING, "left_s": 500.0, "note": f"stopped: {CAME}; 8m20s of 10m left"},
    ),
    **{
        f"lost its daemon, {code}, {len(answer)}": (RUNNING, {"exit_code": code, "answer": answer}, {"state": WAITING})
        for code in (None, 143, -9)
        for answer in (INTERRUPTED, {})
    },
    "a short rest with an answer": (SHORT, {"exit_code": 143, "answer": INTERRUPTED}, {"state": DONE}),
    "a short rest without one": (SHORT, {"exit_code": 143, "answer": {}}, {"state": FAILED}),
    "a study that is busy": (
        RUNNING,
        {"exit_code": 1, "answer": {"error": {"kind": "study_busy", "message": "another search is working on it"}}},
        {"state": WAITING, "retry_utc": "2030-01-01T00:01:00+00:00"},
    ),
    "a wrong config": (
        RUNNING,
        {"exit_code": 1, "answer": WRONG},
        {"state": FAILED, "note": "a.yaml:3: no such key Mend it."},
    ),
    "a config edited meanwhile": (
        RUNNING,
        EDITED,
        {"state": WAITING, "used_s": 0.0, "fingerprint": replace(RUNNING.fingerprint, **EDITED)},
    ),
    "edited again and again": (replace(RUNNING, replans=MOST_REPLANS), EDITED, {"state": DONE}),
    "paused meanwhile": (
        replace(RUNNING, state=EntryState.PAUSED),
        {"exit_code": 143, "answer": {}, "stop_reason": "it is paused"},
        {"state": EntryState.PAUSED, "used_s": 100.0, "owner": None},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_the_entry(case: str) -> None:
    """It waits again with the rest of its budget, or ends; an interrupted answer, or one for another file, is none."""
    one, ending, expected = CASES[case]
    ended = after(one, **ending)
    assert {name: getattr(ended, name) for name in expected} == expected


def test_a_search_that_is_killed_again_and_again_is_given_up() -> None:
    """After some searches that ended without a word there is no point in another one."""
    one = RUNNING
    for _ in range(MOST_KILLS):
        assert one.state in (EntryState.RUNNING, EntryState.WAITING)
        one = after(replace(one, state=EntryState.RUNNING), exit_code=-9, answer={}, used_s=10.0)
    assert one.state is EntryState.FAILED
    assert "without an answer" in one.note


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"verdict": "better"', b"\xff", b"[" * 100_000])
def test_half_an_answer_is_none(tmp_path: Path, content: bytes) -> None:
    """A search that was killed while it printed has given no answer."""
    (tmp_path / "answer").write_bytes(content)
    assert read_answer(tmp_path / "answer") == {}
    assert read_answer(tmp_path / "missing") == {}

"""The queue on disk."""

import fcntl
import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.clock import SystemClock, VirtualClock
from autotune.daemon.queue import (
    ALL_SCOPES,
    CHANGES,
    ApplyScope,
    EntryState,
    Fingerprint,
    Hold,
    Queue,
    QueueEntry,
    SearchAnswerSummary,
    StartRule,
    accepted,
    find_entries,
)
from autotune.errors import AutotuneError
from tests.daemon.queue.entries import entry


def add(queue: Queue, **changes: object) -> QueueEntry:
    """Add an entry with the next number."""
    return queue.add(lambda number, _entries: entry(number, **changes))


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """An empty queue."""
    return Queue(tmp_path, SystemClock())


def test_an_added_entry_is_there_for_the_next_process(queue: Queue) -> None:
    """Entries survive whoever added them, in their order, with numbers that are never used again."""
    first, second = add(queue), add(queue)
    queue.remove(second.id)
    third = add(queue)
    again = Queue(queue.folder, SystemClock())
    assert again.entries() == (first, third)
    assert [one.number for one in again.entries()] == [1, 3]
    assert (queue.folder / "queue.json").stat().st_mode & 0o777 == 0o600


def test_a_refusal_changes_nothing(queue: Queue) -> None:
    """What a command refuses is not written."""
    first = add(queue)
    with pytest.raises(AutotuneError):
        queue.change(first.id, Mock(side_effect=AutotuneError("no")))
    assert queue.entries() == (first,)


def test_a_file_that_cannot_be_understood_is_not_overwritten(queue: Queue) -> None:
    """A damaged queue, or one of a newer version, is left alone, and the message names it."""
    add(queue)
    file = queue.folder / "queue.json"
    for content in (b"{", b"[]", json.dumps({"format": 99, "entries": [], "next": 1}).encode(), b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(AutotuneError, match="cannot be parsed") as caught:
            add(queue)
        assert caught.value.where == str(file)
        assert file.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        *({"used_s": None}, {"budget_s": "600"}, {"budget_s": math.nan}, {"number": "1"}, {"cwd": 7}, {"note": None}),
        *({"kills": True}, {"environment": {"PATH": 1}}, {"environment": []}, {"owner": 3}),
        *({"retry_utc": "2030-01-01T00:00:00"}, {"start": {"kind": "at", "at": "2030-01-01T00:00:00"}}),
    ],
)
def test_a_value_of_a_wrong_type_is_said_when_it_is_read(queue: Queue, change: dict[str, Any]) -> None:
    """It reaches neither the screen nor the daemon's decisions."""
    add(queue)
    file = queue.folder / "queue.json"
    document = json.loads(file.read_bytes())
    document["entries"][0].update(change)
    file.write_text(json.dumps(document))
    with pytest.raises(AutotuneError, match="cannot be parsed"):
        queue.entries()


@pytest.mark.parametrize("why", ["No space left", "would exceed"])
def test_it_is_never_larger_than_what_is_read_of_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, replace_here: Callable[..., None], why: str
) -> None:
    """Nor than the disk: an entry that would make it so is refused, and those that are there stay."""
    first = add(queue)
    if why == "would exceed":
        most = (queue.folder / "queue.json").stat().st_size + 10
        monkeypatch.setattr("autotune.daemon.queue._MOST_BYTES", most)
    else:
        replace_here("fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(AutotuneError, match=why):
        add(queue)
    assert queue.entries() == (first,)


def test_entries_that_are_done_do_not_pile_up(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are done the last ones stay; their logs go with them. Open ones always stay."""
    monkeypatch.setattr("autotune.daemon.queue.KEPT_ENTRIES", 3)
    waiting = add(queue)
    for _ in range(6):
        done = add(queue, state=EntryState.DONE)
        queue.log(done).write_text("said")
    left = queue.entries()
    assert left[0] == waiting
    assert [one.number for one in left] == [1, 5, 6, 7]
    assert sorted(path.name for path in queue.folder.glob("*.log")) == sorted(queue.log(one).name for one in left[1:])


def test_whoever_holds_the_lock_for_long_is_not_waited_for(queue: Queue) -> None:
    """A process that hangs with the lock held does not hang all others."""
    add(queue)
    with (queue.folder / "queue.lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(AutotuneError, match="holds its lock"):
            add(Queue(queue.folder, VirtualClock()))
    assert add(queue).number == 2


def test_many_at_once_lose_nothing(queue: Queue) -> None:
    """Entries that are added and changed at the same time are all there."""

    def work() -> None:
        own = Queue(queue.folder, SystemClock())
        for _ in range(5):
            one = own.add(lambda number, _entries: entry(number, id=f"{number:016x}"))
            own.change(one.id, lambda entry: replace(entry, note="changed"))

    with ThreadPoolExecutor() as pool:
        for working in [pool.submit(work) for _ in range(4)]:
            working.result()
    assert sorted(one.number for one in queue.entries()) == list(range(1, 21))
    assert {one.note for one in queue.entries()} == {"changed"}


@pytest.mark.parametrize(("name", "why"), [("queue.lock", "it cannot be locked"), ("queue.json", "cannot be read")])
def test_a_folder_in_the_place_of_its_file_is_said(queue: Queue, name: str, why: str) -> None:
    """With the file to look at and what to do, and without a traceback."""
    (queue.folder / name).mkdir(parents=True)
    with pytest.raises(AutotuneError, match=why) as caught:
        add(queue)
    assert caught.value.where == str(queue.folder / "queue.json")


def test_a_removed_entry_takes_its_files_with_it(queue: Queue) -> None:
    """Its log and its answer, and nothing of the others; removing it again does nothing."""
    gone, kept = add(queue), add(queue)
    for one in (gone, kept):
        for file in (queue.log(one), queue.answer(one)):
            file.touch()
    queue.remove(gone.id)
    queue.remove(gone.id)
    left = {queue.folder / name for name in ("queue.json", "queue.lock")} | {queue.log(kept), queue.answer(kept)}
    assert set(queue.folder.iterdir()) == left
    assert queue.change(gone.id, lambda one: one) is None
    assert find_entries(queue.entries(), [2]) == [kept]
    with pytest.raises(AutotuneError, match="no entry 1"):
        find_entries(queue.entries(), [2, 1])


@pytest.mark.parametrize(
    ("state", "hold", "goes_on", "paused", "resumed"),
    [
        (EntryState.WAITING, None, True, EntryState.PAUSED, EntryState.WAITING),
        (EntryState.RUNNING, None, True, EntryState.PAUSED, EntryState.RUNNING),
        (EntryState.PAUSED, None, False, EntryState.PAUSED, EntryState.WAITING),
        (EntryState.HELD, Hold.DUE, True, None, EntryState.HELD),
        (EntryState.HELD, Hold.TRAINING, False, None, EntryState.HELD),
        (EntryState.HELD, Hold.EDITED, False, None, EntryState.HELD),
        (EntryState.HELD, None, False, None, EntryState.HELD),
        (EntryState.FAILED, None, False, None, EntryState.WAITING),
        (EntryState.DONE, None, False, None, None),
    ],
)
def test_what_can_be_paused_and_resumed(
    state: EntryState, hold: Hold | None, goes_on: bool, paused: EntryState | None, resumed: EntryState | None
) -> None:
    """What waits for nobody goes on by itself; what cannot be done is refused with what to do instead."""
    one = entry(state=state, hold=hold, retry_utc="2030-01-01T00:00:00+00:00", kills=2, note="it ended", used_s=5.0)
    assert one.goes_on is goes_on
    for name, expected in (("pause", paused), ("resume", resumed)):
        if expected is None:
            with pytest.raises(AutotuneError) as caught:
                CHANGES[name](one)
            assert "autotune queue" in (caught.value.remedy or "")
            continue
        changed = CHANGES[name](one)
        assert changed.state is expected
        if expected is state and state is not EntryState.HELD:
            assert changed == one
        if name == "resume":
            assert changed.hold is None
            assert (changed.retry_utc is None) is (state is EntryState.PAUSED)
            assert (changed.kills, changed.note) == ((0, "") if state is EntryState.FAILED else (2, "it ended"))


@pytest.mark.parametrize(("used_s", "left_s"), [(0.0, 600.0), (599.0, 1.0), (600.0, 0.0), (601.0, 0.0)])
def test_the_budget_of_an_entry_is_used_up_once(used_s: float, left_s: float) -> None:
    """What runs counts too; one that failed at the end of its budget has all of it again when it is resumed."""
    one = entry(used_s=used_s, running_s=0.5, state=EntryState.FAILED)
    assert (one.left_s, one.spent_s) == (left_s, min(600.0, used_s + 0.5))
    assert CHANGES["resume"](one).used_s == (used_s if left_s else 0.0)


@pytest.mark.parametrize("state", EntryState)
def test_the_answer_of_a_search_that_has_ended_may_be_accepted(state: EntryState) -> None:
    """All of it is applied then; while the entry is searched again there is no answer yet."""
    one = entry(state=state, hold=Hold.EDITED)
    if state in (EntryState.DONE, EntryState.HELD):
        changed = accepted(one)
        assert (changed.state, changed.hold, changed.apply) == (EntryState.HELD, None, ALL_SCOPES)
    else:
        with pytest.raises(AutotuneError, match=f"is {state.value} again"):
            accepted(one)


def test_what_an_entry_waits_for_is_shown_unless_its_note_says_it() -> None:
    """An entry that is done waits for nothing."""
    training = entry(state=EntryState.HELD, hold=Hold.TRAINING, note="a training runs")
    shown = [entry(note="it was in the way"), replace(training, note=""), replace(training, hold=Hold.EDITED)]
    for one in shown:
        assert (one.shown_reason({one.id: "why"}), one.shown_reason({})) == ("why", None)
    assert [one.shown_reason({one.id: "why"}) for one in (training, entry(state=EntryState.DONE))] == [None, None]


@pytest.mark.parametrize(
    ("name", "value"),
    [("--storage", "a=b"), ("--seed", "3"), ("--batch", None), ("--gpus", None), ("--objective", "")],
)
def test_an_option_of_the_search_is_found_however_it_was_typed(name: str, value: str | None) -> None:
    """As two words or as one; what stands behind ``--`` belongs to the trainer."""
    typed = ("--storage=a=b", "--seed", "3", "--storage", "later", "--objective", "--", "--gpus", "2")
    assert entry(options=typed).option(name) == value


_TEXTS = st.text(max_size=20)
_ANSWERS = [SearchAnswerSummary(verdict="better", ratio=ratio, advice="0") for ratio in (None, (1.5, 1.2, 1.8))]
_STARTS = [StartRule(kind="at", at="2030-01-01T22:30:00+01:00"), StartRule(kind="now")]


@settings(max_examples=30)
@given(
    st.builds(
        entry,
        note=_TEXTS,
        options=st.lists(_TEXTS, max_size=3).map(tuple),
        further=st.lists(_TEXTS, max_size=3).map(tuple),
        environment=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
        state=st.sampled_from(EntryState),
        apply=st.frozensets(st.sampled_from(ApplyScope)),
        hold=st.sampled_from([None, *Hold]),
        start=st.sampled_from(_STARTS),
        fingerprint=st.just(Fingerprint(config_sha256=None)),
        answer=st.sampled_from(_ANSWERS),
        owner=st.sampled_from([None, {"pid": 1, "started_s": 1.5}]),
    )
)
def test_an_entry_comes_back_from_disk_as_it_was(one: QueueEntry) -> None:
    """Entries go through JSON unchanged."""
    assert msgspec.convert(json.loads(json.dumps(one.document())), QueueEntry) == one

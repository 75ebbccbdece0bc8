"""Section of the queue: what runs, what waits and for what, and what came of the rest."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from autotune.daemon.advice import Advice, AdviceState, AdvisedChange
from autotune.daemon.queue import Entry, EntryState, Hold
from autotune.records import Scalar
from autotune.report.plain_text import plain, value_text

_ACTIONS: Mapping[EntryState, tuple[str, ...]] = {
    EntryState.WAITING: ("pause", "remove"),
    EntryState.RUNNING: ("pause", "remove"),
    EntryState.PAUSED: ("resume", "remove"),
    EntryState.HELD: ("resume", "remove"),
    EntryState.FAILED: ("resume", "remove"),
    EntryState.DONE: ("remove",),
}
"""What may be done with an entry: as ``autotune queue pause``, ``resume`` and ``remove`` have it."""


class EntryPart(TypedDict):
    """Entry of the queue; `actions` is empty on a page that only shows."""

    id: str
    number: int
    state: str
    config: str
    budget_s: float
    used_s: float
    start: str
    reason: str | None
    note: str
    gain: tuple[float, float, float] | None
    advice: str | None
    added_utc: str
    actions: list[str]


class QueuePart(TypedDict):
    """Section of the queue: the open entries in their order, then the closed ones, newest first."""

    entries: list[EntryPart]
    left_out: int
    trouble: str | None


def queue_section(
    entries: Sequence[Entry], reasons: Mapping[str, str], *, trouble: str | None, actions: bool
) -> QueuePart:
    """Return the section of the queue.

    Args:
        reasons: By id, what an entry waits for.
        trouble: Why the queue cannot be read, in words; None if it can.
        actions: Whether the page may change something.
    """
    opened = [entry for entry in entries if entry.state.is_open]
    closed = [entry for entry in reversed(entries) if not entry.state.is_open]
    shown = [*opened[:60], *closed[:20]]
    return QueuePart(
        entries=[_entry(entry, reasons, actions) for entry in shown],
        left_out=len(entries) - len(shown),
        trouble=line(trouble),
    )


def _entry(entry: Entry, reasons: Mapping[str, str], actions: bool) -> EntryPart:
    answer = entry.answer
    says_itself = entry.state is EntryState.HELD and entry.hold is not Hold.EDITED and entry.note
    return EntryPart(
        id=entry.id,
        number=entry.number,
        state=entry.state.value,
        config=line(entry.config) or "",
        budget_s=entry.budget_s,
        used_s=round(min(entry.budget_s, entry.used_s + entry.running_s)),
        start=str(entry.start),
        reason=line(reasons.get(entry.id)) if entry.state.is_open and not says_itself else None,
        note=line(entry.note, 400) or "",
        gain=answer.ratio if answer and answer.verdict == "better" else None,
        advice=line(answer.advice, 20) if answer else None,
        added_utc=entry.added_utc,
        actions=list(_ACTIONS[entry.state]) if actions else [],
    )


class ChangePart(TypedDict):
    """One value that an advice changes, with its speed over that without it."""

    path: str
    old: str
    new: str
    label: str
    worth: tuple[float, float, float] | None


class AdvicePart(TypedDict):
    """One advice."""

    id: str
    config: str
    study: str
    state: str
    ratio: tuple[float, float, float]
    changes: list[ChangePart]
    diff: str
    why: list[str]
    may_learn_more_slowly: bool
    made_utc: str
    applied_utc: str | None
    actions: list[str]


class AdvicesPart(TypedDict):
    """Section of the advice, newest first."""

    advice: list[AdvicePart]
    left_out: int


def advice_section(advices: Sequence[Advice], *, actions: bool) -> AdvicesPart:
    """Return the section of the advice.

    Args:
        actions: Whether the page may change something.
    """
    shown = list(reversed(advices))[:12]
    return AdvicesPart(advice=[_advice(one, actions) for one in shown], left_out=len(advices) - len(shown))


def _advice(advice: Advice, actions: bool) -> AdvicePart:
    # One that may learn more slowly is a question to its user, which `autotune apply` asks in full.
    can_apply = advice.state is AdviceState.GIVEN and not advice.may_learn_more_slowly
    return AdvicePart(
        id=advice.id,
        config=line(advice.config) or "",
        study=line(advice.study, 120) or "",
        state=advice.state.value,
        ratio=advice.ratio,
        changes=[_change(change) for change in advice.changes[:30]],
        diff=block(advice.diff, 3000),
        why=[line(sentence, 400) or "" for sentence in advice.why[:8]],
        may_learn_more_slowly=advice.may_learn_more_slowly,
        made_utc=advice.made_utc,
        applied_utc=advice.applied_utc,
        actions=["apply"] if actions and can_apply else [],
    )


def _change(change: AdvisedChange) -> ChangePart:
    return ChangePart(
        path=line(change.path, 120) or "",
        old=_value(change.old),
        new=_value(change.new),
        label=line(change.label, 40) or "",
        worth=change.worth,
    )


def _value(value: Scalar) -> str:
    return value_text(value)[:120]


# Text from outside for the page: without control sequences and control characters, of a bounded length.


_MOST_LINES = 200


def line(text: str | None, longest: int = 300) -> str | None:
    """Return a text as one line; None stays None."""
    return None if text is None else plain(str(text)[: 4 * longest], longest)


def block(text: str, longest: int) -> str:
    """Return a text with its line ends, cut off in the end where it is longer."""
    kept = text[: longest + 1].splitlines()[:_MOST_LINES]
    whole = "\n".join(plain(one, longest) for one in kept)
    return whole if len(text) <= longest and len(text.splitlines()) <= _MOST_LINES else f"{whole[:longest]}\n…"


def tail(text: str, longest: int) -> str:
    """Return the end of a text with its line ends."""
    kept = text[-longest:].splitlines()[-_MOST_LINES:]
    return "\n".join(plain(one, longest) for one in kept)

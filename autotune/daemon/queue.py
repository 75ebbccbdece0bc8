"""Search queue: a JSON file that daemon and commands change under a lock."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from autotune.clock import Clock
from autotune.config.secrets import is_secret_name, masked_text
from autotune.errors import AutotuneError
from autotune.files import file_sha256, open_regular, replace_durably
from autotune.records import CONFIRMED, Scalar
from autotune.study.storage.lock import FileLock
from autotune.trial.process_identity import git_commit

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]

KEPT_ENTRIES = 50
"""Maximum number of closed entries; older ones are deleted."""

_MOST_BYTES = 16 << 20  # of the file


class Queue:
    """Queue of searches in a private folder, usable without a daemon.

    Raises:
        AutotuneError: The queue can't be read or written (all methods).
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._file = folder / "queue.json"
        self._cached: tuple[object, _Document] = None, _Document()  # stat values of the file, and its content

    def entries(self) -> Sequence[QueueEntry]:
        return self._read().entries

    def log(self, entry: QueueEntry) -> Path:
        """Return the log of an entry's searches."""
        return self.folder / f"{entry.id}.log"

    def answer(self, entry: QueueEntry) -> Path:
        """Return the JSON answer of the latest search."""
        return self.folder / f"{entry.id}.json"

    def add(self, make: Callable[[int, Sequence[QueueEntry]], QueueEntry]) -> QueueEntry:
        """Add the entry that ``make`` creates from number and entries, or raises to refuse."""
        with self._locked() as before:
            new = make(before.next, before.entries)
            self._write((*before.entries, new), before.next + 1)
            return new

    def change(self, id: str, change: Callable[[QueueEntry], QueueEntry]) -> QueueEntry | None:
        """Change an entry; return None if it no longer exists. ``change`` may raise to refuse."""
        with self._locked() as before:
            changed = tuple(change(entry) if entry.id == id else entry for entry in before.entries)
            if changed != before.entries:
                self._write(changed, before.next)
            return next((entry for entry in changed if entry.id == id), None)

    def remove(self, id: str) -> None:
        """Remove an entry with its files, if it exists."""
        with self._locked() as before:
            self._write(tuple(entry for entry in before.entries if entry.id != id), before.next)
            self._delete_files(entry for entry in before.entries if entry.id == id)

    def _delete_files(self, entries: Iterable[QueueEntry]) -> None:
        for entry in entries:
            self.log(entry).unlink(missing_ok=True)
            self.answer(entry).unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[_Document]:
        # A change takes milliseconds; the timeout is for a hanging disk.
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self.folder / "queue.lock", self._clock, timeout_s=10.0))
            except OSError as error:
                raise self._error(f"it cannot be locked: {error.strerror}") from error
            self._cached = None, _Document()  # the stat values of two versions may be equal
            yield self._read()

    def _read(self) -> _Document:
        try:
            with open_regular(self._file) as file:
                status = os.fstat(file.fileno())
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                if self._cached[0] != stamp:
                    document = json.loads(file.read(_MOST_BYTES))
                    if document["format"] != FORMAT:
                        raise ValueError(f"format {document['format']!r} is not supported (expected {FORMAT})")
                    self._cached = stamp, msgspec.convert(document, _Document)
                return self._cached[1]
        except FileNotFoundError:
            return _Document()
        except OSError as error:
            raise self._error(f"it cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._error(f"it cannot be parsed: {error}") from error

    def _write(self, entries: tuple[QueueEntry, ...], number: int) -> None:
        closed = [entry for entry in entries if not entry.state.is_open]
        dropped = closed[: max(0, len(closed) - KEPT_ENTRIES)]
        kept = [entry.document() for entry in entries if entry not in dropped]
        content = json.dumps({"format": FORMAT, "next": number, "entries": kept}, indent=1).encode("ascii")
        if len(content) > _MOST_BYTES:
            raise self._error(f"it would exceed {_MOST_BYTES >> 20} MiB")
        try:
            replace_durably(self._file, content)
        except OSError as error:
            raise self._error(f"it cannot be written: {error.strerror}") from error
        self._delete_files(dropped)

    def _error(self, why: str) -> AutotuneError:
        return AutotuneError(
            f"the queue cannot be used: {why}",
            where=str(self._file),
            remedy="It was not changed. Check this file and its disk; to start an empty queue, move the file away.",
        )


def find_entries(entries: Sequence[QueueEntry], numbers: Sequence[int]) -> list[QueueEntry]:
    """Return the entries with these numbers, or raise AutotuneError."""
    found = {entry.number: entry for entry in entries}
    for number in numbers:
        if number not in found:
            raise AutotuneError(f"there is no entry {number} in the queue", remedy="See `autotune queue list`.")
    return [found[number] for number in numbers]


FORMAT = 1
"""Format version of the queue file and its entries."""


class EntryState(StrEnum):
    """State of an entry."""

    WAITING = "waiting"  # for earlier entries, its start time, or an idle machine
    RUNNING = "running"
    PAUSED = "paused"  # by its user
    HELD = "held"  # searched; better values found but not applied yet, see `Hold`
    DONE = "done"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        return self not in (EntryState.DONE, EntryState.FAILED)


class Hold(StrEnum):
    """Reason why better values aren't applied yet."""

    DUE = "due"  # none: they are being applied, or were when the daemon ended
    TRAINING = "training"  # a training uses the config; applied when it ends
    EDITED = "edited"  # the user changed a value that autotune had applied; kept until `queue resume`


class ApplyScope(StrEnum):
    """Permission to write better values; changes of batch size and precision need their own."""

    BETTER = "better"
    BATCH = "batch"
    PRECISION = "precision"


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """State of config and code, to detect changes before the start; None if unreadable, or without git."""

    config_sha256: str | None
    git_commit: str | None = None

    def differences(self, now: Fingerprint) -> list[str]:
        """Return the changes as phrases."""
        changed = []
        if now.config_sha256 is None:
            changed.append("the config is no longer readable")
        elif now.config_sha256 != self.config_sha256:
            changed.append("the config was edited")
        if now.git_commit != self.git_commit:
            before, after = (commit[:8] if commit else "none" for commit in (self.git_commit, now.git_commit))
            changed.append(f"the project's commit changed from {before} to {after}")
        return changed


@dataclass(frozen=True, kw_only=True)
class SearchAnswerSummary:
    """Summary of a search's answer: verdict, speedup with its 95 % interval, id of the recommendation."""

    verdict: str
    ratio: tuple[float, float, float] | None = None
    advice: str | None = None

    @property
    def is_confirmed(self) -> bool:
        return self.verdict in CONFIRMED


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """Queued search.

    Attributes:
        id: 16 hexadecimal digits.
        number: Shown to the user, never reused.
        further: The config's other files.
        options: Of ``autotune search``, and the trainer's command after ``--``.
        running_s: Time used by the running search.
        fingerprint: As added or last replanned.
        note: On the last event.
        owner: Process of its search, see `this_process`.
        kills: Searches that ended without an answer and weren't stopped.
        replans: Searches repeated because the config was edited.
        retry_utc: Earliest restart, ISO 8601.
        hold: None once its user asked to apply it.
    """

    id: str
    number: int
    config: str
    further: tuple[str, ...] = ()
    cwd: str
    options: tuple[str, ...] = ()
    budget_s: Seconds
    used_s: Seconds = 0.0
    running_s: Seconds = 0.0
    start: StartRule
    apply: frozenset[ApplyScope] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    fingerprint: Fingerprint
    state: EntryState = EntryState.WAITING
    added_utc: str
    note: str = ""
    owner: Mapping[str, Scalar] | None = None
    kills: int = 0
    replans: int = 0
    retry_utc: str | None = None
    hold: Hold | None = None
    answer: SearchAnswerSummary | None = None

    def __post_init__(self) -> None:
        _require_offset(self.retry_utc)

    @property
    def left_s(self) -> float:
        return max(0.0, self.budget_s - self.used_s)

    @property
    def goes_on(self) -> bool:
        """Whether it proceeds without its user or the end of a training."""
        is_due = self.state is EntryState.HELD and self.hold is Hold.DUE
        return is_due or self.state in (EntryState.WAITING, EntryState.RUNNING)

    @property
    def configs(self) -> tuple[Path, ...]:
        return (Path(self.config), *map(Path, self.further))

    @property
    def name(self) -> str:
        """Name in logs."""
        return f"queue {self.number}"

    @property
    def spent_s(self) -> float:
        """Used budget, including the running search."""
        return min(self.budget_s, self.used_s + self.running_s)

    def option(self, name: str) -> str | None:
        """Return a search option's value, if given."""
        own = list(takewhile(lambda word: word != "--", self.options))
        for word, value in zip(own, [*own[1:], ""], strict=False):
            if word.partition("=")[0] == name:
                return word.partition("=")[2] or value
        return None

    def shown_reason(self, reasons: Mapping[str, str]) -> str | None:
        """Return what it waits for, as a phrase, unless its note says so."""
        is_explained = self.state is EntryState.HELD and self.hold is not Hold.EDITED and self.note
        return reasons.get(self.id) if self.state.is_open and not is_explained else None

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "format": FORMAT, "apply": sorted(self.apply)}


@dataclass(frozen=True, kw_only=True)
class _Document:
    """Content of the queue file, with the next number."""

    next: int = 1
    entries: tuple[QueueEntry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueDecision:
    """Scheduling decision: what each open entry waits for, by id, and whether one waits only for an idle machine."""

    next: QueueEntry | None
    reasons: Mapping[str, str]
    wants_idle: bool


def decide(
    entries: Sequence[QueueEntry],
    *,
    now: datetime,
    running: QueueEntry | None,
    why_not_idle: Callable[[QueueEntry], str | None],
) -> QueueDecision:
    """Choose the first entry that can start now; one search runs at a time."""
    reasons: dict[str, str] = {}
    chosen: QueueEntry | None = None
    wants_idle = False
    for entry in entries:
        if entry.state is not EntryState.WAITING:
            if reason := _reason_of_state(entry):
                reasons[entry.id] = reason
        elif reason := _waits_for_time(entry, now):
            reasons[entry.id] = reason
        elif running is not None or chosen is not None:
            reasons[entry.id] = f"one search at a time: after entry {(running or chosen or entry).number}"
        elif entry.start.needs_idle and (reason := why_not_idle(entry) or ""):
            reasons[entry.id] = f"waits for an idle machine: {reason}"
            wants_idle = True
        else:
            chosen = entry
            reasons[entry.id] = "starts now"
    return QueueDecision(next=chosen, reasons=reasons, wants_idle=wants_idle)


def _reason_of_state(entry: QueueEntry) -> str:
    resume = f"`autotune queue resume {entry.number}`"
    match entry.state, entry.hold:
        case EntryState.PAUSED, _:
            return f"paused; {resume}"
        case EntryState.HELD, Hold.DUE:
            return "better values found; applying them"
        case EntryState.HELD, Hold.EDITED:
            return f"better values not applied, because a value was changed by hand; to apply them: {resume}"
        case EntryState.HELD, _:
            return "better values found; applied when the training that uses the config ends"
    return "its search runs" if entry.state is EntryState.RUNNING else ""


def _waits_for_time(entry: QueueEntry, now: datetime) -> str:
    if at := entry.start.waits_for_time(now):
        return f"waits for {at}"
    if entry.retry_utc is not None and now < (retry := datetime.fromisoformat(entry.retry_utc)):
        return f"retries at {retry.astimezone():%H:%M:%S}"
    return ""


@dataclass(frozen=True, kw_only=True)
class StartRule:
    """Rule for the start of a search; `at` is ISO 8601 with UTC offset."""

    kind: Literal["idle", "now", "at"]
    at: str | None = None

    def __post_init__(self) -> None:
        _require_offset(self.at)

    @classmethod
    def parse(cls, text: str, now: datetime) -> StartRule:
        """Parse ``idle``, ``now``, or a time of day such as ``22:30``; raise ValueError for anything else."""
        if text in ("idle", "now"):
            return cls(kind="idle" if text == "idle" else "now")
        if not (match := re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", text)):
            raise ValueError(f"invalid start {text!r}: use idle, now, or a time such as 22:30")
        at = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
        if at <= now:
            at += timedelta(days=1)
        local = at.replace(tzinfo=None).astimezone()  # with the offset at that time: daylight saving may begin
        return cls(kind="at", at=local.isoformat())

    def waits_for_time(self, now: datetime) -> str | None:
        """Return the start time unless it has passed."""
        if self.at is None:
            return None
        at = datetime.fromisoformat(self.at)
        return None if now >= at else f"{at:%H:%M}"

    @property
    def needs_idle(self) -> bool:
        return self.kind == "idle"

    def __str__(self) -> str:
        return f"{datetime.fromisoformat(self.at):%H:%M}" if self.at else self.kind


def _require_offset(at: str | None) -> None:
    if at is not None and datetime.fromisoformat(at).tzinfo is None:
        raise ValueError(f"{at!r} has no UTC offset")


# Changes of entries by the user, from a terminal or the page.


ALL_SCOPES = frozenset(ApplyScope)


def _paused(entry: QueueEntry) -> QueueEntry:
    if entry.state is EntryState.PAUSED:
        return entry
    if entry.state not in (EntryState.WAITING, EntryState.RUNNING):
        raise AutotuneError(
            f"entry {entry.number} cannot be paused: it is {entry.state.value}",
            remedy="Only waiting and running entries can be paused; list them with `autotune queue list`.",
        )
    return replace(entry, state=EntryState.PAUSED)


def _resumed(entry: QueueEntry) -> QueueEntry:
    match entry.state:
        case EntryState.PAUSED:
            return replace(entry, state=EntryState.WAITING, retry_utc=None)
        case EntryState.FAILED:
            used_s = entry.used_s if entry.left_s > 0 else 0.0
            return replace(entry, state=EntryState.WAITING, kills=0, used_s=used_s, note="")
        case EntryState.HELD:
            return replace(entry, hold=None)  # makes the daemon apply it
        case EntryState.WAITING | EntryState.RUNNING:
            return entry
        case _:
            raise AutotuneError(
                f"entry {entry.number} cannot be resumed: it is done",
                remedy=f"Queue another search: autotune queue add --config {entry.config}",
            )


def accepted(entry: QueueEntry) -> QueueEntry:
    """Return an entry for the daemon to apply."""
    if entry.state not in (EntryState.DONE, EntryState.HELD):
        raise AutotuneError(f"entry {entry.number} is {entry.state.value} again", remedy="Wait for its new answer.")
    return replace(entry, state=EntryState.HELD, hold=None, apply=ALL_SCOPES, note="applying was requested")


CHANGES: Mapping[str, Callable[[QueueEntry], QueueEntry]] = {"pause": _paused, "resume": _resumed}
"""Changes by the user, for `Queue.change`; each may raise to refuse."""


# Environment stored with an entry: variables that trainers commonly depend on, without secrets.


_KEPT_NAMES = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|VIRTUAL_ENV|NO_COLOR"
    r"|AUTOTUNE_DIR|AUTOTUNE_STORAGE|XDG_(?:STATE|CONFIG|CACHE|DATA)_HOME"
    r"|(?:LC|LD|CUDA|CUDNN|NCCL|NVIDIA|OMP|MKL|OPENBLAS|KMP|GOMP|MALLOC|CONDA|MAMBA|TF|XLA|JAX|KERAS|PYTORCH)_.*"
    r"|(?:PYTHON|TORCH).*",
    re.DOTALL,
)


def kept_environment(environ: Mapping[str, str], further: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables to store with an entry; secrets only if named in `further`."""
    named = set(further)
    return {
        name: value
        for name, value in environ.items()
        if name in named or (_KEPT_NAMES.fullmatch(name) and not is_secret_name(name) and masked_text(value) == value)
    }


# Fingerprints.


def fingerprint(configs: Sequence[Path]) -> Fingerprint:
    """Return the current fingerprint of a config's files."""
    return Fingerprint(config_sha256=config_sha256(configs), git_commit=git_commit(configs[0].parent))


def note_of_applied(config: str) -> str:
    """Return the note of an applied entry."""
    return f"applied to {config}; `autotune revert` undoes it"


def shown_note(entry: QueueEntry) -> str:
    """Return the note of an entry, or "reverted" if the config is again as searched."""
    was_applied = entry.note == note_of_applied(entry.config)
    if was_applied and config_sha256(entry.configs) == entry.fingerprint.config_sha256:
        return f"applied to {entry.config}, and reverted since"
    return entry.note


def config_sha256(configs: Sequence[Path]) -> str | None:
    """Return the hash of files; None if one is unreadable."""
    digest = hashlib.sha256()
    for config in configs:
        content = file_sha256(config, _MOST_BYTES)
        if content is None:
            return None
        digest.update(bytes.fromhex(content))
    return digest.hexdigest()

"""The queue: entries in one file, changed by whoever holds its lock, the daemon and the commands alike."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from autotune.files import file_sha256, make_private_folder, open_regular, replace_durably
from autotune.records import CONFIRMED, Scalar
from autotune.study.storage.lock import FileLock
from autotune.trial.process_identity import git_commit

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]

KEPT_ENTRIES = 50
"""Number of entries that are done and still listed."""

_MOST_BYTES = 16 << 20  # of the file


class Queue:
    """Queue of searches in a folder; it needs no daemon to be read and added to.

    Args:
        clock: Limits the wait for the lock.

    Raises:
        AutotuneError: The folder cannot be made. All methods: the queue cannot be read or written.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._file = folder / "queue.json"
        self._known: tuple[object, _Document] = None, _Document()  # what was read last, and of which file
        try:
            make_private_folder(folder)
        except OSError as error:
            raise AutotuneError(
                f"the folder of the queue cannot be made: {error.strerror}",
                where=str(folder),
                remedy="See to that (room, permissions), or name another place with AUTOTUNE_DAEMON_DIR.",
            ) from error

    def entries(self) -> Sequence[QueueEntry]:
        """Return all entries, in the order in which they were added."""
        return self._read().entries

    def log(self, entry: QueueEntry) -> Path:
        """Return the file that holds what the searches of an entry print about their progress."""
        return self.folder / f"{entry.id}.log"

    def answer(self, entry: QueueEntry) -> Path:
        """Return the file that holds the answer of an entry's latest search, as JSON."""
        return self.folder / f"{entry.id}.json"

    def add(self, make: Callable[[int, Sequence[QueueEntry]], QueueEntry]) -> QueueEntry:
        """Add an entry.

        Args:
            make: Makes it from its number and the entries that are there; may refuse by raising. An entry whose id is
                there already is not added again.

        Returns:
            The entry, or the one of the same id that was there.
        """
        with self._locked() as before:
            new = make(before.next, before.entries)
            for entry in before.entries:
                if entry.id == new.id:
                    return entry
            self._write((*before.entries, new), before.next + 1)
            return new

    def change(self, id: str, change: Callable[[QueueEntry], QueueEntry]) -> QueueEntry | None:
        """Change an entry as it is at this moment.

        Args:
            change: Returns the entry as it is to be; called while nobody else can change it. It may refuse by raising.

        Returns:
            The changed entry; None if there is none of this id any more.
        """
        with self._locked() as before:
            changed = tuple(change(entry) if entry.id == id else entry for entry in before.entries)
            if changed != before.entries:
                self._write(changed, before.next)
            return next((entry for entry in changed if entry.id == id), None)

    def remove(self, id: str) -> None:
        """Remove an entry, its log and its answer; nothing happens if it is gone."""
        with self._locked() as before:
            self._write(tuple(entry for entry in before.entries if entry.id != id), before.next)
            self._forget(entry for entry in before.entries if entry.id == id)

    def _forget(self, entries: Iterable[QueueEntry]) -> None:
        for entry in entries:
            self.log(entry).unlink(missing_ok=True)
            self.answer(entry).unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[_Document]:
        """Hold the lock; what is there then is read."""
        # A change takes milliseconds; a disk that hangs is said.
        lock = FileLock(self.folder / "queue.lock", self._clock, timeout_s=10.0)
        try:
            lock.acquire()
        except OSError as error:
            raise self._trouble(f"it cannot be locked: {error.strerror}") from error
        try:
            self._known = None, _Document()  # what is changed is read anew, however alike two files look
            yield self._read()
        finally:
            lock.release()

    def _read(self) -> _Document:
        try:
            with open_regular(self._file) as file:
                status = os.fstat(file.fileno())
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                if self._known[0] != stamp:
                    document = json.loads(file.read(_MOST_BYTES))
                    if document["format"] != FORMAT:
                        raise ValueError(f"it has format {document['format']!r}, and this version knows {FORMAT}")
                    self._known = stamp, msgspec.convert(document, _Document)
                return self._known[1]
        except FileNotFoundError:
            return _Document()
        except OSError as error:
            raise self._trouble(f"it cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._trouble(f"it cannot be understood: {error}") from error

    def _write(self, entries: tuple[QueueEntry, ...], number: int) -> None:
        closed = [entry for entry in entries if not entry.state.is_open]
        dropped = closed[: max(0, len(closed) - KEPT_ENTRIES)]
        kept = [entry.document() for entry in entries if entry not in dropped]
        content = json.dumps({"format": FORMAT, "next": number, "entries": kept}, indent=1).encode("ascii")
        if len(content) > _MOST_BYTES:
            raise self._trouble(f"it would become larger than the {_MOST_BYTES >> 20} MiB that are read of it")
        try:
            replace_durably(self._file, content)
        except OSError as error:
            raise self._trouble(f"it cannot be written: {error.strerror}") from error
        self._forget(dropped)

    def _trouble(self, why: str) -> AutotuneError:
        return AutotuneError(
            f"the queue cannot be used: {why}",
            where=str(self._file),
            remedy="Nothing of it was changed. See to that file and its disk; moved away, it makes room for a new one.",
        )


def find_entries(entries: Sequence[QueueEntry], numbers: Sequence[int]) -> list[QueueEntry]:
    """Return the entries of these numbers.

    Raises:
        AutotuneError: There is none of one of them.
    """
    found = {entry.number: entry for entry in entries}
    for number in numbers:
        if number not in found:
            raise AutotuneError(f"there is no entry {number} in the queue", remedy="`autotune queue list` shows them.")
    return [found[number] for number in numbers]


FORMAT = 1
"""Format version of an entry on disk."""


class EntryState(StrEnum):
    """State of an entry."""

    WAITING = "waiting"  # for its turn, its time, or an idle machine
    RUNNING = "running"
    PAUSED = "paused"  # by its user
    HELD = "held"  # searched; its answer is better and not applied yet, see `Hold`
    DONE = "done"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """True if there is something left to do for it."""
        return self in (EntryState.WAITING, EntryState.RUNNING, EntryState.PAUSED, EntryState.HELD)


class Hold(StrEnum):
    """Reason for which a better answer is not applied yet."""

    DUE = "due"  # none: it is being applied, or was about to be when the daemon ended
    TRAINING = "training"  # one uses the config; applied when it has ended
    EDITED = "edited"  # a person has changed a value that was applied before; theirs stands until `queue resume`


class ApplyScope(StrEnum):
    """Permission to write a better answer into the config; what changes the training itself is asked for by name."""

    BETTER = "better"
    BATCH = "batch"
    PRECISION = "precision"


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Identity of what is to be searched, to tell at the start what has changed since it was asked for.

    Attributes:
        config_sha256: Hash of the config's bytes; None if it cannot be read.
        git_commit: Commit of the project that holds the config; None where there is no git.
    """

    config_sha256: str | None
    git_commit: str | None = None

    def differences(self, now: Fingerprint) -> list[str]:
        """Return what has changed since, in words."""
        changed = []
        if now.config_sha256 is None:
            changed.append("the config cannot be read any more")
        elif now.config_sha256 != self.config_sha256:
            changed.append("the config was edited")
        if now.git_commit != self.git_commit:
            before, after = (commit[:8] if commit else "none" for commit in (self.git_commit, now.git_commit))
            changed.append(f"the project is at another commit ({before}, now {after})")
        return changed


@dataclass(frozen=True, kw_only=True)
class SearchAnswerSummary:
    """Answer of a search, as far as the queue shows it.

    Attributes:
        verdict: ``better``, ``steadier``, ``no_change`` or ``no_baseline``.
        ratio: Confirmed speed over that of the config as it was, with its 95 % interval; None where none was confirmed.
        advice: Id of the advice that came of it; None if it advises nothing.
    """

    verdict: str
    ratio: tuple[float, float, float] | None = None
    advice: str | None = None

    @property
    def is_confirmed(self) -> bool:
        return self.verdict in CONFIRMED


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """One search that was asked for.

    Attributes:
        id: 16 hexadecimal digits, its own for ever; whoever adds it chooses it, so that adding twice adds once.
        number: What people call it; counts up, and is never used again.
        further: Further files that values are written into, links resolved: those that the section names, or that the
            config is composed of.
        cwd: The directory in which the search is started, as the trainer's command may depend on it.
        options: Further options of ``autotune search``, as typed; a trainer's command behind ``--`` included.
        running_s: What the running one has used so far, written every few seconds; 0 while none runs.
        apply: What may be written into the config; empty for nothing.
        gpus: UUIDs of the GPUs that it uses; empty for none.
        fingerprint: Identity of config and code when it was added, or last planned anew.
        note: A sentence on what happened last; empty if nothing did.
        owner: Process of its search, by `process.owner.this_process`; None while none runs.
        kills: Number of times that its search ended without a word and nobody had asked for it.
        replans: Number of times that the config was edited during the search, which was then made again.
        retry_utc: Earliest next start after something was in the way, ISO 8601; None for none.
        hold: Of a held entry, the reason; None once its user has said that it is to be applied all the same.
        answer: Answer of its search; None before the end.
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
        """Return what is left of its budget, in seconds; never below 0."""
        return max(0.0, self.budget_s - self.used_s)

    @property
    def goes_on(self) -> bool:
        """True if something will become of it by itself; not what waits for its user, or for the end of a training."""
        is_due = self.state is EntryState.HELD and self.hold is Hold.DUE
        return is_due or self.state in (EntryState.WAITING, EntryState.RUNNING)

    @property
    def configs(self) -> tuple[Path, ...]:
        return (Path(self.config), *map(Path, self.further))

    @property
    def name(self) -> str:
        """Return what it is called in a log."""
        return f"queue {self.number}"

    @property
    def spent_s(self) -> float:
        """Return what is used of its budget by now, in seconds, the search that runs included."""
        return min(self.budget_s, self.used_s + self.running_s)

    def option(self, name: str) -> str | None:
        """Return the value of an option of its search; None if it was not typed."""
        own = list(takewhile(lambda word: word != "--", self.options))
        for word, value in zip(own, [*own[1:], ""], strict=False):
            if word.partition("=")[0] == name:
                return word.partition("=")[2] or value
        return None

    def shown_reason(self, reasons: Mapping[str, str]) -> str | None:
        """Return what it waits for, in words; None for nothing, or where its note says it."""
        says_itself = self.state is EntryState.HELD and self.hold is not Hold.EDITED and self.note
        return reasons.get(self.id) if self.state.is_open and not says_itself else None

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "format": FORMAT, "apply": sorted(self.apply)}


@dataclass(frozen=True, kw_only=True)
class _Document:
    """Content of the queue's file, beside its format.

    Attributes:
        next: Number of the next entry.
    """

    next: int = 1
    entries: tuple[QueueEntry, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueDecision:
    """Decision over the queue at one moment.

    Attributes:
        next: The entry to start now; None if none may.
        reasons: By id, what each open entry waits for, in words.
        wants_idle: Whether an entry waits for nothing but an idle machine.
    """

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
    """Decide which entry is next: in the order in which they were added, those left out that cannot start yet.

    Args:
        running: The entry whose search runs; None if there is none. There is one search at a time on a machine.
        why_not_idle: Returns why the machine is not idle for an entry; None if it is.
    """
    reasons: dict[str, str] = {}
    chosen: QueueEntry | None = None
    wants_idle = False
    for entry in entries:
        if entry.state is not EntryState.WAITING:
            if reason := _standing(entry):
                reasons[entry.id] = reason
        elif reason := _waits_for_time(entry, now):
            reasons[entry.id] = reason
        elif running is not None or chosen is not None:
            reasons[entry.id] = f"one search at a time: {(running or chosen or entry).number} is before it"
        elif entry.start.needs_idle and (reason := why_not_idle(entry) or ""):
            reasons[entry.id] = f"waits for an idle machine: {reason}"
            wants_idle = True
        else:
            chosen = entry
            reasons[entry.id] = "starts now"
    return QueueDecision(next=chosen, reasons=reasons, wants_idle=wants_idle)


def _standing(entry: QueueEntry) -> str:
    """Return what an entry waits for that is not waiting for its turn; empty if it waits for nothing."""
    resume = f"`autotune queue resume {entry.number}`"
    match entry.state, entry.hold:
        case EntryState.PAUSED, _:
            return f"paused; {resume}"
        case EntryState.HELD, Hold.DUE:
            return "better; applied now"
        case EntryState.HELD, Hold.EDITED:
            return f"better; not applied because somebody has changed a value: {resume}"
        case EntryState.HELD, _:
            return "better; applied when the training that uses the config has ended"
    return "its search runs" if entry.state is EntryState.RUNNING else ""


def _waits_for_time(entry: QueueEntry, now: datetime) -> str:
    if at := entry.start.waits_for_time(now):
        return f"waits for {at}"
    if entry.retry_utc is not None and now < (retry := datetime.fromisoformat(entry.retry_utc)):
        return f"tried again at {retry.astimezone():%H:%M:%S}"
    return ""


@dataclass(frozen=True, kw_only=True)
class StartRule:
    """Rule for the start of a search.

    Attributes:
        at: The earliest start with its offset from UTC, ISO 8601; of the kind ``at`` alone.
    """

    kind: Literal["idle", "now", "at"]
    at: str | None = None

    def __post_init__(self) -> None:
        _require_offset(self.at)

    @classmethod
    def parse(cls, text: str, now: datetime) -> StartRule:
        """Parse ``idle``, ``now``, or a time of the day such as ``22:30``, the next one from now on.

        Args:
            now: Local time of this machine, with its offset.

        Raises:
            ValueError: It is none of these.
        """
        if text in ("idle", "now"):
            return cls(kind="idle" if text == "idle" else "now")
        if not (match := re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", text)):
            raise ValueError(f"{text!r} is no start: idle, now, or a time of the day such as 22:30")
        at = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
        if at <= now:
            at += timedelta(days=1)
        local = at.replace(tzinfo=None).astimezone()  # with the offset of that moment: summer time may begin meanwhile
        return cls(kind="at", at=local.isoformat())

    def waits_for_time(self, now: datetime) -> str | None:
        """Return the time that is waited for, for people; None if it has come."""
        if self.at is None:
            return None
        at = datetime.fromisoformat(self.at)
        return None if now >= at else f"{at:%H:%M}"

    @property
    def needs_idle(self) -> bool:
        """True if the machine has to be idle: who names a time has decided that it may be used then."""
        return self.kind == "idle"

    def __str__(self) -> str:
        return f"{datetime.fromisoformat(self.at):%H:%M}" if self.at else self.kind


def _require_offset(at: str | None) -> None:
    """Check a time, ISO 8601, that was read from a file: what is wrong is said then, not found out later."""
    if at is not None and datetime.fromisoformat(at).tzinfo is None:
        raise ValueError(f"{at!r} has no offset from UTC")


# Changes of the queue's entries that people ask for: from a terminal, or on the page.


ALL_SCOPES = frozenset(ApplyScope)


def _paused(entry: QueueEntry) -> QueueEntry:
    if entry.state is EntryState.PAUSED:
        return entry
    if entry.state not in (EntryState.WAITING, EntryState.RUNNING):
        raise AutotuneError(
            f"entry {entry.number} is {entry.state.value}, and cannot be paused",
            remedy="Only one that waits or runs can; `autotune queue list` shows them.",
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
            return replace(entry, hold=None)  # the daemon applies it now
        case EntryState.WAITING | EntryState.RUNNING:
            return entry
        case _:
            raise AutotuneError(
                f"entry {entry.number} is done",
                remedy=f"Ask for another search: autotune queue add --config {entry.config}",
            )


def accepted(entry: QueueEntry) -> QueueEntry:
    """Return an entry whose advice its user wants to be applied, having seen it; the daemon does that now."""
    if entry.state not in (EntryState.DONE, EntryState.HELD):
        raise AutotuneError(
            f"entry {entry.number}, which gave it, is {entry.state.value} again", remedy="Wait for its new answer."
        )
    return replace(entry, state=EntryState.HELD, hold=None, apply=ALL_SCOPES, note="applying was asked for")


CHANGES: Mapping[str, Callable[[QueueEntry], QueueEntry]] = {"pause": _paused, "resume": _resumed}
"""Changes of an entry that a person asks for, for `Queue.change`; each refuses by raising."""


# Environment that an entry keeps for its search: what trainers are known to depend on, and never a secret.


_USUAL = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|VIRTUAL_ENV|NO_COLOR"
    r"|AUTOTUNE_DIR|AUTOTUNE_STORAGE|XDG_(?:STATE|CONFIG|CACHE|DATA)_HOME"
    r"|(?:LC|LD|CUDA|CUDNN|NCCL|NVIDIA|OMP|MKL|OPENBLAS|KMP|GOMP|MALLOC|CONDA|MAMBA|TF|XLA|JAX|KERAS|PYTORCH)_.*"
    r"|(?:PYTHON|TORCH).*",
    re.DOTALL,
)


def kept_environment(environ: Mapping[str, str], further: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that are kept on disk, for a search that starts when nobody is there.

    Args:
        environ: The environment of whoever asks for the search.
        further: Names that are kept besides, because the user says so; a secret is kept only if it is named here.
    """
    named = set(further)
    return {
        name: value
        for name, value in environ.items()
        if name in named or (_USUAL.fullmatch(name) and not is_secret_name(name) and masked_text(value) == value)
    }


# Fingerprint of what is to be searched, taken from the disk.


def fingerprint(configs: Sequence[Path]) -> Fingerprint:
    """Return the fingerprint of the files of a config, at least one, and of the git project that holds the first."""
    return Fingerprint(config_sha256=config_sha256(configs), git_commit=git_commit(configs[0].parent))


def note_of_applied(config: str) -> str:
    """Return the note of an entry whose advice was written into its config."""
    return f"applied to {config}; `autotune revert` undoes it"


def shown_note(entry: QueueEntry) -> str:
    """Return what happened last to an entry, or that the config is again what was searched."""
    was_applied = entry.note == note_of_applied(entry.config)
    if was_applied and config_sha256(entry.configs) == entry.fingerprint.config_sha256:
        return f"applied to {entry.config}, and reverted since"
    return entry.note


def config_sha256(configs: Sequence[Path]) -> str | None:
    """Return the hash of the bytes of a config's files; None if one of them cannot be read."""
    digest = hashlib.sha256()
    for config in configs:
        content = file_sha256(config, _MOST_BYTES)
        if content is None:
            return None
        digest.update(bytes.fromhex(content))
    return digest.hexdigest()

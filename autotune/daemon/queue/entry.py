"""Entry of the queue: one search that somebody asked for, what is left of its budget, and what became of it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.daemon.queue.start_rule import StartRule
from autotune.records import Scalar

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

    def differences(self, now: "Fingerprint") -> list[str]:
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
        verdict: ``better``, ``no_change`` or ``no_baseline``.
        ratio: Confirmed speed over that of the config as it was, with its 95 % interval; None where none was confirmed.
        advice: Id of the advice that came of it; None if it advises nothing.
    """

    verdict: str
    ratio: tuple[float, float, float] | None = None
    advice: str | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One search that was asked for.

    Attributes:
        id: 16 hexadecimal digits, its own for ever; whoever adds it chooses it, so that adding twice adds once.
        number: What people call it; counts up, and is never used again.
        config: The config, links resolved.
        further: Further files that values are written into, links resolved: those that the section names, or that the
            config is composed of.
        cwd: The directory in which the search is started, as the trainer's command may depend on it.
        options: Further options of ``autotune search``, as typed; a trainer's command behind ``--`` included.
        budget_s: The whole budget in seconds.
        used_s: What earlier starts have used of it.
        running_s: What the running one has used so far, written every few seconds; 0 while none runs.
        start: The rule that says when it may start.
        apply: What may be written into the config; empty for nothing.
        environment: The whole environment of the search.
        gpus: UUIDs of the GPUs that it uses; empty for none.
        fingerprint: Identity of config and code when it was added, or last planned anew.
        state: State.
        added_utc: Time at which it was added, ISO 8601.
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
    budget_s: float
    used_s: float = 0.0
    running_s: float = 0.0
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
        """Return all files of its config."""
        return (Path(self.config), *map(Path, self.further))

    @property
    def name(self) -> str:
        """Return what it is called in a log."""
        return f"queue {self.number}"

    def document(self) -> dict[str, Any]:
        """Return the entry as JSON has it."""
        return {**asdict(self), "format": FORMAT, "apply": sorted(self.apply), "start": self.start.document()}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> "Entry":
        """Return the entry of a document.

        Raises:
            ValueError: It is none of this format.
        """
        try:
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']!r} is not known to this version")
            _require_types(document)
            known = {name: document[name] for name in (one.name for one in fields(cls)) if name in document}
            answer = known.get("answer")
            if answer is not None:
                ratio = answer.get("ratio")
                answer = SearchAnswerSummary(
                    verdict=str(answer["verdict"]), ratio=ratio and tuple(ratio), advice=answer.get("advice")
                )
            return cls(
                **known
                | {
                    "options": tuple(map(str, document["options"])),
                    "further": tuple(map(str, document.get("further", ()))),
                    "gpus": tuple(map(str, document.get("gpus", ()))),
                    "start": StartRule.of_document(document["start"]),
                    "apply": frozenset(map(ApplyScope, document["apply"])),
                    "fingerprint": Fingerprint(
                        config_sha256=document["fingerprint"]["config_sha256"],
                        git_commit=document["fingerprint"].get("git_commit"),
                    ),
                    "state": EntryState(document["state"]),
                    "hold": None if document.get("hold") is None else Hold(document["hold"]),
                    "answer": answer,
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no entry of the queue: {error}") from error


_TEXT = ("id", "config", "cwd", "added_utc", "note")
_COUNTS = ("number", "kills", "replans")
_SECONDS = ("budget_s", "used_s", "running_s")


def _require_types(document: Mapping[str, Any]) -> None:
    """Check the values that are taken as they are; what is wrong in a file is said here, not found out later.

    Raises:
        ValueError: One is of another type.
        KeyError: One is missing.
    """
    retry, owner, environment = document["retry_utc"], document["owner"], document["environment"]
    is_well = {
        **{name: isinstance(document[name], str) for name in _TEXT},
        **{name: type(document[name]) is int for name in _COUNTS},
        **{name: type(document[name]) in (int, float) and math.isfinite(document[name]) for name in _SECONDS},
        "retry_utc": retry is None or datetime.fromisoformat(retry).tzinfo is not None,
        "owner": owner is None or isinstance(owner, Mapping),
        "environment": all(isinstance(value, str) for value in environment.values()),
    }
    if wrong := [name for name, is_right in is_well.items() if not is_right]:
        raise ValueError(f"it is no entry of the queue: {wrong[0]} is {document[wrong[0]]!r:.80}")

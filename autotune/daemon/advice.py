"""Recommendations: confirmed better values of a config."""

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from autotune.clock import Clock
from autotune.daemon.queue import ApplyScope, EntryState, Hold, Queue, QueueEntry, config_sha256, note_of_applied
from autotune.errors import AutotuneError
from autotune.files import make_private_folder, open_regular, replace_durably
from autotune.records import KeyChange, Scalar
from autotune.trial.children import OWN_COMMAND, SearchChild

FORMAT = 1  # of a stored recommendation


class AdviceState(StrEnum):
    """State of a recommendation."""

    GIVEN = "given"
    APPLIED = "applied"


@dataclass(frozen=True, kw_only=True)
class AdvisedChange(KeyChange):
    """Recommended value; `worth` is its gain with the 95 % interval, if measured."""

    worth: tuple[float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Recommended values for one config.

    Attributes:
        id: Hash of config, study and values, 8 hexadecimal digits.
        further: The config's other files.
        config_sha256: Of all files as searched; None if unreadable.
        ratio: Confirmed speedup with its 95 % interval.
        why: On the confirmation, and cautions.
        answer: `ChangeSet.id` of the changes.
        set_values: Last applied values, to detect those that the user has changed since.
    """

    id: str
    config: str
    further: tuple[str, ...] = ()
    config_sha256: str | None
    study: str
    ratio: tuple[float, float, float]
    changes: tuple[AdvisedChange, ...]
    diff: str
    why: tuple[str, ...]
    made_utc: str
    answer: str
    may_learn_more_slowly: bool = False
    state: AdviceState = AdviceState.GIVEN
    applied_utc: str | None = None
    set_values: Mapping[str, Scalar] = field(default_factory=dict)

    def now(self) -> "Advice":
        """Return it, as GIVEN if the config is again as searched."""
        configs = (Path(self.config), *map(Path, self.further))
        is_back = self.state is AdviceState.APPLIED and config_sha256(configs) == self.config_sha256
        return replace(self, state=AdviceState.GIVEN) if is_back else self

    @property
    def command(self) -> str:
        if self.state is AdviceState.APPLIED:
            return shlex.join(["autotune", "revert", "--config", self.config])
        whole = ["--all"] if any(change.label != "same training" for change in self.changes) else []
        return shlex.join(["autotune", "apply", "--config", self.config, *whole])

    def document(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any], entry: QueueEntry, made_utc: str) -> "Advice":
        """Create it from an entry's confirmed answer; an invalid one raises ValueError, KeyError or TypeError."""
        judged, names = answer["answer"], ("ratio", "low", "high")
        document = {
            "id": advice_id(entry.config, str(answer["study"]), answer["best"]["values"]),
            "config": entry.config,
            "further": entry.further,
            "config_sha256": entry.fingerprint.config_sha256,
            "study": str(answer["study"]),
            "ratio": [float(answer["speedup"][name]) for name in names],
            "diff": answer["diff"] or "",
            "why": [answer["why"], *answer["cautions"]],
            "made_utc": made_utc,
            "may_learn_more_slowly": bool(answer["may_learn_more_slowly"]),
            "answer": str(judged["id"]),
        }
        worths = {
            change["path"]: [float(change[name]) for name in ("worth", "worth_low", "worth_high")]
            for change in answer["changes"]
            if change["worth"] is not None
        }
        changed = [key for key in judged["keys"] if repr(key["old"]) != repr(key["new"])]
        document["changes"] = [{**key, "worth": worths.get(key["path"])} for key in changed]
        return msgspec.convert(document, cls)


class Recommendations:
    """Stored recommendations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cached: dict[str, tuple[object, Advice]] = {}  # by id: stat values of the file, and its content

    def keep(self, advice: Advice) -> Advice:
        """Store a recommendation with what an earlier one with this id knows of applications; return it."""
        with contextlib.suppress(AutotuneError):  # none exists, or it is unreadable
            before = self.advice(advice.id)
            advice = replace(advice, applied_utc=before.applied_utc, set_values=before.set_values)
        self.write(advice)
        return advice

    def write(self, advice: Advice) -> None:
        make_private_folder(self._folder)
        replace_durably(self._folder / f"{advice.id}.json", json.dumps(advice.document(), indent=1).encode("ascii"))

    def advice(self, id: str) -> Advice:
        """Return a recommendation; raise AutotuneError if it doesn't exist or is invalid."""
        if not re.fullmatch(r"[0-9a-f]{8}", id):
            raise AutotuneError(f"invalid recommendation id {id!r}", remedy="Ids have 8 digits, such as 3f2a901c.")
        path = self._folder / f"{id}.json"
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                cached = self._cached.get(id)
                if cached is None or cached[0] != stamp:
                    document = json.loads(file.read(4 << 20))
                    if document["format"] != FORMAT:
                        raise ValueError(f"format {document['format']!r} is not supported (expected {FORMAT})")
                    cached = self._cached[id] = stamp, msgspec.convert(document, Advice)
                return cached[1]
        except FileNotFoundError:
            raise AutotuneError(f"there is no recommendation {id}", remedy="See `autotune queue list`.") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise AutotuneError(f"the recommendation cannot be read: {error}", where=str(path)) from error

    def all(self) -> list[Advice]:
        """Return the readable recommendations, oldest first."""
        found = []
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(AutotuneError):  # reported by `explain`
                found.append(self.advice(path.stem))
        return sorted(found, key=lambda advice: (advice.made_utc, advice.id))

    def applied_values(self, config: str) -> dict[str, Scalar]:
        applied = [advice for advice in self.all() if advice.config == config and advice.applied_utc is not None]
        values: dict[str, Scalar] = {}
        for advice in sorted(applied, key=lambda advice: advice.applied_utc or ""):
            values |= advice.set_values
        return values

    def mark_applied(self, id: str, utc: str) -> None:
        """Mark a recommendation as applied, before the write, so that no write goes unrecorded."""
        advice = self.advice(id)
        values = {**advice.set_values, **{change.path: change.new for change in advice.changes}}
        self.write(replace(advice, state=AdviceState.APPLIED, applied_utc=utc, set_values=values))


def advice_id(config: str, study: str, values: Mapping[str, Scalar]) -> str:
    """Return a recommendation's id."""
    text = json.dumps([config, study, sorted(values.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# Rules for automatic application: permissions, and values that the user changed since. Pure functions.


_PERMITTED_BY = {"same training": ApplyScope.BETTER, "batch": ApplyScope.BATCH, "precision": ApplyScope.PRECISION}


def why_not_permitted(advice: Advice, scopes: Collection[ApplyScope]) -> str | None:
    """Return why a recommendation needs its user's consent, if so."""
    if not scopes:
        return "automatic application requires `--apply better`"
    beyond = [change for change in advice.changes if _PERMITTED_BY.get(change.label) not in scopes]
    if not beyond and advice.may_learn_more_slowly:
        return f"no race has shown that it converges as fast as today's config; `{advice.command}` applies it"
    if not beyond:
        return None
    labels = sorted({change.label for change in beyond} & set(_PERMITTED_BY))
    keys = ", ".join(change.path for change in beyond)
    how = f"; `--apply {','.join([ApplyScope.BETTER, *labels])}` permits that" if labels else ""
    return f"it changes the training itself ({keys}){how}"


def edited_since(advice: Advice, applied: Mapping[str, Scalar]) -> list[str]:
    """Return a phrase for each old value that differs from the one that autotune last wrote."""
    return [
        f"{change.path} is {change.old!r}, autotune had set {applied[change.path]!r}"
        for change in advice.changes
        if change.path in applied and applied[change.path] != change.old
    ]


Publish = Callable[..., None]
"""Event handler, called with a kind such as ``search_started``, a sentence, and facts as keyword arguments."""


class Adviser:
    """Creates recommendations from answers, and applies them."""

    def __init__(
        self,
        queue: Queue,
        recommendations: Recommendations,
        clock: Clock,
        publish: Publish,
        uses_config: Callable[[Path], bool],
    ) -> None:
        self._queue = queue
        self._advices = recommendations
        self._clock = clock
        self._publish = publish
        self._uses_config = uses_config

    def keep(self, entry: QueueEntry, answer: Mapping[str, Any]) -> Advice | None:
        """Store the recommendation of a confirmed answer; return None if that is invalid."""
        made = self._clock.utc().isoformat(timespec="seconds")
        try:
            advice = Advice.of_answer(answer, entry, made)
        except (KeyError, TypeError, ValueError):
            return None
        return self._advices.keep(advice)

    def advise(self, entry: QueueEntry, advice: Advice) -> None:
        """Publish a recommendation, and apply it if due."""
        ratio, low, high = advice.ratio
        self._publish(
            "advice",
            f"{entry.name}: recommendation {advice.id} for {advice.config}: {ratio:.2f}x ({low:.2f}-{high:.2f}); "
            f"details: `autotune daemon explain {advice.id}`",
            entry=entry.number,
            advice=advice.document(),
        )
        if entry.state is EntryState.HELD:
            self._apply(entry, advice)

    def apply_held(self) -> None:
        """Apply the recommendations that are due, accepted, or no longer blocked by a training."""
        for entry in self._queue.entries():
            if entry.state is not EntryState.HELD or entry.hold is Hold.EDITED:
                continue
            try:
                advice = self._advices.advice((entry.answer and entry.answer.advice) or "")
            except AutotuneError as error:
                self._note(entry, f"not applied: {error.message}", EntryState.DONE)
            else:
                self._apply(entry, advice)

    def _apply(self, entry: QueueEntry, advice: Advice) -> None:
        """Apply a recommendation if permitted; hold it if the user changed a value or a training uses the config."""
        if why := why_not_permitted(advice, entry.apply):
            self._note(entry, f"not applied: {why}", EntryState.DONE)
            return
        was_begun = advice.state is AdviceState.APPLIED  # by a daemon that ended during the application
        if config_sha256(entry.configs) != advice.config_sha256:
            note = "not applied: the config was edited since the search"
            if was_begun:
                note = f"applied to {advice.config} when the daemon ended; `autotune revert` undoes it"
            self._note(entry, note, EntryState.DONE)
            return
        was_resumed = entry.hold is None
        edited = [] if was_resumed or was_begun else edited_since(advice, self._advices.applied_values(advice.config))
        is_in_use = any(map(self._uses_config, entry.configs))
        if edited or is_in_use:
            hold = Hold.EDITED if edited else Hold.TRAINING
            why = f"changed by hand ({'; '.join(edited)})" if edited else "a training uses the config"
            note = f"not applied yet: {why}"
            if entry.note != note:
                self._note(entry, note, EntryState.HELD, None if was_resumed else hold)
            return
        self._advices.mark_applied(advice.id, self._clock.utc().isoformat(timespec="seconds"))
        if why_failed := self._write(entry, advice):
            self._advices.write(advice)
            self._note(entry, f"not applied: {why_failed}", EntryState.DONE)
        else:
            self._note(entry, note_of_applied(advice.config), EntryState.DONE)

    def _write(self, entry: QueueEntry, advice: Advice) -> str | None:
        """Run ``autotune apply``; return why it failed, if so."""
        # With the id, because the study's current answer may be another one, without permission.
        named = {name: entry.option(name) for name in ("--state-dir", "--storage")}
        where = [f"{name}={value}" for name, value in named.items() if value]
        argv = (*OWN_COMMAND, "apply", "--config", advice.config, "--answer", advice.answer, *where)
        log = self._queue.log(entry)
        try:
            child = SearchChild.start(argv, cwd=Path(entry.cwd), env=entry.environment, log=log, clock=self._clock)
        except AutotuneError as error:
            return " ".join(str(error).splitlines())
        deadline_s = self._clock.now_s() + 20.0  # usually takes 2 s, during which the main loop is blocked
        while (ended := child.poll()) is None:
            if self._clock.now_s() > deadline_s:
                child.leave()
            self._clock.wait(0.05)
        return None if ended.code == 0 else f"`autotune apply` failed, see `autotune queue log {entry.number}`"

    def _note(self, entry: QueueEntry, note: str, state: EntryState, hold: Hold | None = None) -> None:
        self._queue.change(entry.id, lambda one: replace(one, note=note, state=state, hold=hold))
        kind = "applied" if note.startswith("applied") else "not_applied"
        self._publish(kind, f"{entry.name}: {note}", entry=entry.number)

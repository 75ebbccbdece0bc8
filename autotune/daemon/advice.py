"""Advice: better values that a search has confirmed, kept until they are applied or made anew."""

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
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

FORMAT = 1
"""Format version of an advice on disk."""


class AdviceState(StrEnum):
    """State of an advice."""

    GIVEN = "given"
    APPLIED = "applied"


@dataclass(frozen=True, kw_only=True)
class AdvisedChange(KeyChange):
    """One value that an advice changes.

    Attributes:
        worth: Speed with this change over the speed without it, with its 95 % interval; None where no trial shows it.
    """

    worth: tuple[float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Better values for one config, with what they gain.

    Attributes:
        id: 8 hexadecimal digits, from config, study and values: the same advice has the same id.
        further: Further files that hold values of the config.
        config_sha256: Hash of all of these as they were searched; None if they could not be read.
        ratio: Confirmed speed over that of the config as it was, with its 95 % interval.
        why: How it was confirmed, and what to be careful about, a sentence each.
        may_learn_more_slowly: Whether it changes the training, and no race has shown that it learns as fast as the
            config as it was.
        answer: Name of the set of changes that was judged, which alone is applied, see `records.ChangeSet`.
        applied_utc: Time at which it, or an earlier one of this id, was applied last, ISO 8601; None before.
        set_values: Values that were written then into the config, by key. They stay when the same advice is given
            again: a person may have changed them since, and that is theirs to decide.
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
        """Return it as given, and not applied, where the config is again what was searched."""
        configs = (Path(self.config), *map(Path, self.further))
        is_back = self.state is AdviceState.APPLIED and config_sha256(configs) == self.config_sha256
        return replace(self, state=AdviceState.GIVEN) if is_back else self

    @property
    def command(self) -> str:
        """Command that takes it, or that undoes it where it is applied."""
        if self.state is AdviceState.APPLIED:
            return shlex.join(["autotune", "revert", "--config", self.config])
        whole = ["--all"] if any(change.label != "same training" for change in self.changes) else []
        return shlex.join(["autotune", "apply", "--config", self.config, *whole])

    def document(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of_answer(
        cls,
        answer: Mapping[str, Any],
        *,
        config: str,
        config_sha256: str | None,
        made_utc: str,
        further: Sequence[str] = (),
    ) -> "Advice":
        """Return the advice of a search's answer whose verdict is ``better``.

        Raises:
            ValueError: The answer lacks something; also KeyError or TypeError.
        """
        judged, names = answer["answer"], ("ratio", "low", "high")
        document = {
            "id": advice_id(config, str(answer["study"]), answer["best"]["values"]),
            "config": config,
            "further": further,
            "config_sha256": config_sha256,
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


class Advices:
    """Advice on disk, a file each.

    Args:
        folder: The folder; made when the first is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[object, Advice]] = {}  # by id: what was read last, and of which file

    def keep(self, advice: Advice) -> Advice:
        """Write an advice; of one of the same id only what was applied of it stays.

        Returns:
            The advice as it was written.

        Raises:
            AutotuneError: It cannot be written.
        """
        with contextlib.suppress(AutotuneError):  # there is none, or none that can be read
            before = self.advice(advice.id)
            advice = replace(advice, applied_utc=before.applied_utc, set_values=before.set_values)
        self.write(advice)
        return advice

    def write(self, advice: Advice) -> None:
        """Write an advice in place of the one of the same id.

        Raises:
            AutotuneError: It cannot be written.
        """
        path = self._folder / f"{advice.id}.json"
        try:
            make_private_folder(self._folder)
            replace_durably(path, json.dumps(advice.document(), indent=1).encode("ascii"))
        except OSError as error:
            raise AutotuneError(
                f"the advice cannot be written: {error.strerror}",
                where=str(path),
                remedy="See to that disk (room, permissions).",
            ) from error

    def advice(self, id: str) -> Advice:
        """Return the advice of an id.

        Raises:
            AutotuneError: There is none, or it cannot be understood.
        """
        if not re.fullmatch(r"[0-9a-f]{8}", id):
            raise AutotuneError(f"{id!r} is no id of an advice", remedy="Ids have 8 digits, such as 3f2a901c.")
        path = self._folder / f"{id}.json"
        try:
            with open_regular(path) as file:
                status = os.fstat(file.fileno())
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                known = self._known.get(id)
                if known is None or known[0] != stamp:
                    document = json.loads(file.read(4 << 20))
                    if document["format"] != FORMAT:
                        raise ValueError("its format is not known to this version")
                    known = self._known[id] = stamp, msgspec.convert(document, Advice)
                return known[1]
        except FileNotFoundError:
            raise AutotuneError(
                f"there is no advice {id}", remedy="`autotune queue list` names those there are."
            ) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise AutotuneError(f"the advice cannot be read: {error}", where=str(path)) from error

    def all(self) -> list[Advice]:
        """Return all that can be read, the oldest first."""
        found = []
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(AutotuneError):  # `explain` says why
                found.append(self.advice(path.stem))
        return sorted(found, key=lambda advice: (advice.made_utc, advice.id))

    def applied_values(self, config: str) -> dict[str, Scalar]:
        applied = [advice for advice in self.all() if advice.config == config and advice.applied_utc is not None]
        values: dict[str, Scalar] = {}
        for advice in sorted(applied, key=lambda advice: advice.applied_utc or ""):
            values |= advice.set_values
        return values

    def mark_applied(self, id: str, utc: str) -> Advice:
        """Note that an advice is applied, before that is done: what is in a config is known then; return it."""
        advice = self.advice(id)
        values = {**advice.set_values, **{change.path: change.new for change in advice.changes}}
        advice = replace(advice, state=AdviceState.APPLIED, applied_utc=utc, set_values=values)
        self.write(advice)
        return advice


def advice_id(config: str, study: str, values: Mapping[str, Scalar]) -> str:
    """Return the id of an advice: a hash of the config's path, of the study's identity and of all values."""
    text = json.dumps([config, study, sorted(values.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# Rule for applying an advice without asking: what was permitted, and what a person has decided since. Pure.


_PERMITTED_BY = {"same training": ApplyScope.BETTER, "batch": ApplyScope.BATCH, "precision": ApplyScope.PRECISION}


def why_not_permitted(advice: Advice, scopes: Collection[ApplyScope]) -> str | None:
    """Return why an advice is not applied by itself, in words; None if that is permitted."""
    if not scopes:
        return "nothing is applied without `--apply better`"
    beyond = [change for change in advice.changes if _PERMITTED_BY.get(change.label) not in scopes]
    if not beyond and advice.may_learn_more_slowly:
        return f"no race has shown that it learns as fast as the config does now; `{advice.command}` writes it"
    if not beyond:
        return None
    labels = sorted({change.label for change in beyond} & set(_PERMITTED_BY))
    keys = ", ".join(change.path for change in beyond)
    how = f"; `--apply {','.join([ApplyScope.BETTER, *labels])}` permits that" if labels else ""
    return f"it changes the training itself ({keys}){how}"


def edited_since(advice: Advice, applied: Mapping[str, Scalar]) -> list[str]:
    """Return the keys of an advice that a person has given another value since autotune set them, in words.

    Args:
        advice: The advice; the old values of its changes are those that the config holds.
        applied: The values that autotune has last written into this config.
    """
    return [
        f"{change.path} is {change.old!r}, autotune had set {applied[change.path]!r}"
        for change in advice.changes
        if change.path in applied and applied[change.path] != change.old
    ]


Tell = Callable[..., None]
"""Receiver of what happens: of the kind, a stable word such as ``search_started``, a sentence, and facts by name."""


class Adviser:
    """Maker of advice, and the one who applies it."""

    def __init__(
        self,
        queue: Queue,
        advices: Advices,
        clock: Clock,
        tell: Tell,
        uses_config: Callable[[Path], bool],
    ) -> None:
        self._queue = queue
        self._advices = advices
        self._clock = clock
        self._tell = tell
        self._uses_config = uses_config

    def keep(self, entry: QueueEntry, answer: Mapping[str, Any]) -> Advice | None:
        """Make the answer of an entry's search into advice, and keep it.

        Args:
            answer: The answer, whose verdict is ``better``.

        Returns:
            The advice; None if the answer cannot be understood.

        Raises:
            AutotuneError: It cannot be written.
        """
        made = self._clock.utc().isoformat(timespec="seconds")
        try:
            advice = Advice.of_answer(
                answer,
                config=entry.config,
                further=entry.further,
                config_sha256=entry.fingerprint.config_sha256,
                made_utc=made,
            )
        except (KeyError, TypeError, ValueError):
            return None
        return self._advices.keep(advice)

    def advise(self, entry: QueueEntry, advice: Advice) -> None:
        """Tell of an advice, and apply it where that was asked for."""
        ratio, low, high = advice.ratio
        self._tell(
            "advice",
            f"{entry.name}: advice {advice.id}: {ratio:.2f}x ({low:.2f} to {high:.2f}) for {advice.config}; "
            f"`autotune daemon explain {advice.id}` says more",
            entry=entry.number,
            advice=advice.document(),
        )
        if entry.state is EntryState.HELD:
            self._apply(entry, advice)

    def apply_held(self) -> None:
        """Apply what is due, or waited for the end of a training or for its user, once that is over."""
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
        """Apply an advice, if that is permitted, unless a person or a training is in the way."""
        if why := why_not_permitted(advice, entry.apply):
            self._note(entry, f"not applied: {why}", EntryState.DONE)
            return
        was_begun = advice.state is AdviceState.APPLIED  # by a daemon that ended before it saw the end of it
        if config_sha256(entry.configs) != advice.config_sha256:
            note = "not applied: the config was edited since it was searched"
            if was_begun:
                note = f"applied to {advice.config} when the daemon ended; `autotune revert` undoes it"
            self._note(entry, note, EntryState.DONE)
            return
        was_resumed = entry.hold is None
        edited = [] if was_resumed or was_begun else edited_since(advice, self._advices.applied_values(advice.config))
        is_in_use = any(map(self._uses_config, entry.configs))
        if edited or is_in_use:
            hold = Hold.EDITED if edited else Hold.TRAINING
            why = f"somebody has decided otherwise ({'; '.join(edited)})" if edited else "a training uses the config"
            note = f"not applied yet: {why}"
            if entry.note != note:
                self._note(entry, note, EntryState.HELD, None if was_resumed else hold)
            return
        self._advices.mark_applied(advice.id, self._clock.utc().isoformat(timespec="seconds"))  # never unknown later
        if why_failed := self._write(entry, advice):
            self._advices.write(advice)
            self._note(entry, f"not applied: {why_failed}", EntryState.DONE)
        else:
            self._note(entry, note_of_applied(advice.config), EntryState.DONE)

    def _write(self, entry: QueueEntry, advice: Advice) -> str | None:
        """Have ``autotune apply`` write the values; return why that failed, None if it did not."""
        # By its name: what `apply` finds in the record by now may be another answer, which nobody has permitted.
        named = {name: entry.option(name) for name in ("--state-dir", "--storage")}
        where = [f"{name}={value}" for name, value in named.items() if value]
        argv = (*OWN_COMMAND, "apply", "--config", advice.config, "--answer", advice.answer, *where)
        log = self._queue.log(entry)
        try:
            child = SearchChild.start(argv, cwd=Path(entry.cwd), env=entry.environment, log=log, clock=self._clock)
        except AutotuneError as error:
            return " ".join(str(error).splitlines())
        until_s = self._clock.now_s() + 20.0  # it takes two, in which nothing else is done
        while (ended := child.poll()) is None:
            if self._clock.now_s() > until_s:
                child.leave("it takes too long")
            self._clock.wait(0.05)
        return None if ended.code == 0 else f"`autotune apply` failed, see `autotune queue log {entry.number}`"

    def _note(self, entry: QueueEntry, note: str, state: EntryState, hold: Hold | None = None) -> None:
        self._queue.change(entry.id, lambda one: replace(one, note=note, state=state, hold=hold))
        kind = "applied" if note.startswith("applied") else "not_applied"
        self._tell(kind, f"{entry.name}: {note}", entry=entry.number)

"""Advising: the answer of a search becomes advice, which is applied where its user has permitted that."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.daemon.advice import Advice, Advices, AdviceState, Tell, edited_since, hold_of, why_not_permitted
from autotune.daemon.queue import Entry, EntryState, Hold, Queue, config_sha256
from autotune.errors import AutotuneError
from autotune.trial.search_child import OWN_COMMAND, SearchChild

_WHERE_OPTIONS = ("--state-dir", "--storage")


class Advising:
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

    def keep(self, entry: Entry, answer: Mapping[str, Any]) -> Advice | None:
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
                answer, config=entry.config, config_sha256=entry.fingerprint.config_sha256, made_utc=made
            )
        except (KeyError, TypeError, ValueError):
            return None
        return self._advices.keep(advice)

    def advise(self, entry: Entry, advice: Advice) -> None:
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

    def _apply(self, entry: Entry, advice: Advice) -> None:
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
        hold = hold_of(edited=edited, is_in_use=any(map(self._uses_config, entry.configs)))
        if hold is not None:
            why = f"somebody has decided otherwise ({'; '.join(edited)})" if edited else "a training uses the config"
            note = f"not applied yet: {why}"
            if entry.note != note:
                self._note(entry, note, EntryState.HELD, None if was_resumed else hold)
            return
        self._advices.mark_applied(advice.id, self._clock.utc().isoformat(timespec="seconds"))  # never unknown later
        if why_failed := self._write(entry, advice):
            self._advices.put_back(advice)
            self._note(entry, f"not applied: {why_failed}", EntryState.DONE)
        else:
            self._note(entry, f"applied to {advice.config}; `autotune revert` undoes it", EntryState.DONE)

    def _write(self, entry: Entry, advice: Advice) -> str | None:
        """Have ``autotune apply`` write the values; return why that failed, None if it did not."""
        # By its name: what `apply` finds in the record by now may be another answer, which nobody has permitted.
        argv = (*OWN_COMMAND, "apply", "--config", advice.config, "--answer", advice.answer, *_where(entry.options))
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

    def _note(self, entry: Entry, note: str, state: EntryState, hold: Hold | None = None) -> None:
        self._queue.change(entry.id, lambda one: replace(one, note=note, state=state, hold=hold))
        kind = "applied" if note.startswith("applied") else "not_applied"
        self._tell(kind, f"{entry.name}: {note}", entry=entry.number)


def _where(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of a search's options that say where its study is."""
    own = options[: options.index("--")] if "--" in options else options
    return tuple(
        word
        for at, word in enumerate(own)
        if word.startswith(_WHERE_OPTIONS) or (at > 0 and own[at - 1] in _WHERE_OPTIONS)
    )

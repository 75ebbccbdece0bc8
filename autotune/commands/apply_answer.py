"""Steps of ``autotune apply`` and ``search --apply``."""

import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from autotune.clock import SystemClock
from autotune.commands.output import ask, ask_or_refuse, can_ask
from autotune.config.apply import ConfigEdit, patch_of, plan_code, plan_edit, write_edits
from autotune.config.command import TypedOptions
from autotune.config.load import Settings, load_settings
from autotune.errors import AutotuneError, ConfigError, TrialError
from autotune.files import read_beginning, replace_durably
from autotune.records import CONFIRMED, ChangeSet, DataEffect, SearchResult, TrialRecord, Values
from autotune.report.answer import answer_notes, data_text, refusal, why_it_needs_consent
from autotune.search.answer import Study, answer_of_study, changes_of_result
from autotune.search.problem import Problem
from autotune.space.knob import Label, same_scalar

if TYPE_CHECKING:
    from autotune.study.record import StudyRecord

OTHER_TRAINING = frozenset(Label) - {Label.SAME_TRAINING}
"""Labels of changes to the training itself."""

_QUESTIONS = (frozenset[str](), frozenset({Label.BATCH}), OTHER_TRAINING)
"""Labels that searches exclude: none, with ``--batch same``, with ``--same-training``."""


def changes_of_trial(study: Study, result: SearchResult, number: int, typed: TypedOptions, *, force: bool) -> ChangeSet:
    """Return the changes from the baseline to a trial's values; without ``force``, it needs a measurement.

    Raises:
        TrialError: No such trial, or no comparable measurement.
    """
    chosen = next((trial for trial in study.trials if trial.number == number), None)
    if chosen is None:
        raise TrialError(
            f"there is no trial {number} in study {study.name}",
            where=study.where,
            remedy=f"`{typed.command('status')}` shows its {len(study.trials)} trials.",
        )
    if not chosen.comparable and not force:
        raise TrialError(
            f"trial {number} has no comparable measurement ({chosen.ending.value})",
            where=study.where,
            remedy="Choose another trial, or write its values anyway with --force.",
        )
    return study.change_set(result, trial=chosen)


def without_consent(study: Study, result: SearchResult, typed: TypedOptions) -> SearchResult:
    """Return the answer to write without consent, or raise ConfigError if none was confirmed."""
    if not result.needs_consent:
        return result
    if not result.applies_same_training:
        raise refusal(result, typed)
    return study.answer(excluded=OTHER_TRAINING)


def print_training_changes(result: SearchResult, console: Console) -> str:
    """Print how an answer changes the training; return the question to ask, or ""."""
    if not result.needs_consent:
        if result.data is not None and result.data.effect is DataEffect.UNVERIFIED:
            return f"{data_text(result.data)} Apply it?"
        return ""
    for note in answer_notes(result):
        console.print(note, soft_wrap=True)
    console.print(why_it_needs_consent(result), soft_wrap=True, markup=False)
    return "Apply it?"


def named_answer(study: Study, name: str, config: Path) -> SearchResult:
    """Return the current answer with this `ChangeSet.id`, or raise TrialError."""
    answers = (study.answer(excluded=excluded) for excluded in _QUESTIONS)
    for result in chain(answers, study.limited_answers()):
        if result.verdict in CONFIRMED and study.change_set(result).id == name:
            return result
    remedy = "See the current answer with `autotune status`, and apply it without --answer."
    raise TrialError(f"answer {name} is not current", where=str(config), remedy=remedy)


def proposed_rate(result: SearchResult, config: Path) -> Values:
    """Return the proposed learning rate by its key, or raise TrialError."""
    proposed = result.race.proposed_rate if result.race else None
    if proposed is None:
        raise TrialError(
            "the answer proposes no learning rate",
            where=str(config),
            remedy="Omit --learning-rate. It needs a change of the batch, a config key for the rate, and a race that "
            "the scaled rate won.",
        )
    return {proposed[0]: proposed[1]}


def apply_values(
    problem: Problem,
    new: ChangeSet,
    console: Console,
    *,
    further: Values | None = None,
    question: str = "",
    code: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> None:
    """Write changes into the config, and those of the trainer's code into a patch.

    Args:
        further: Keys outside the search space.
        question: Asked before writing, on a terminal.
        code: Edit the code instead of writing a patch.
        force: Write without asking, also for other code.

    Raises:
        ConfigError: Found for another config or code, or a value was edited and there is no terminal.
        click.Abort: The user answered no.
    """
    # Read again: the file may have been edited during the search.
    settings = load_settings(problem.config_path, typed_command=problem.typed_command)
    _require_judged_for(replace(problem, settings=settings), new, force=force)
    keys = {**new.values, **(further or {})}
    asks = not dry_run and not force
    if asks and question and can_ask() and _planned_all(settings, keys):
        ask(question, must=True)
    edited = _edited(settings, new)
    if edited and asks:
        question = f"Edited since the search: {'; '.join(edited)}. Overwrite?"
        ask_or_refuse(question, where=str(problem.config_path), remedy="Overwrite it with --force.")
    if not _write(problem, settings, keys, console, code=code, dry_run=dry_run):
        console.print(f"Nothing to do: {problem.config_path} already holds these values.", soft_wrap=True)


def changes_to_offer(
    problem: Problem, study: str, trials: Iterable[TrialRecord], result: SearchResult
) -> ChangeSet | None:
    """Return the changes that ``apply`` would write."""
    if result.verdict not in CONFIRMED or result.best is None:
        return None
    try:
        return changes_of_result(problem, study, trials, result)
    except AutotuneError:  # the config was edited: `apply` reports it
        return None


def name_to_apply(problem: Problem, study: "StudyRecord", result: SearchResult) -> str | None:
    """Return the id of an answer to a narrower question; None if ``apply`` writes its changes without an id.

    Reads no file of the trainer, which may be out of reach when a search ends.
    """
    records = study.records()
    changes = changes_to_offer(problem, study.name, records, result) if result.is_apart else None
    if changes is None:
        return None
    current = [trial for trial in records if dict(trial.code) in ({}, dict(changes.code))]
    plain = answer_of_study(problem, current, study.ratings, excluded=frozenset())
    if plain and plain.applies_same_training:
        plain = answer_of_study(problem, current, study.ratings, excluded=OTHER_TRAINING)
    is_plain = plain and plain.best and (plain.search, plain.best.point) == (changes.search, changes.point)
    return None if is_plain else changes.id


def diff_of(problem: Problem, changes: ChangeSet | None) -> str | None:
    """Return the config's diff."""
    if changes is None:
        return None
    try:
        settings = load_settings(problem.config_path, typed_command=problem.typed_command)
        return "".join(edit.diff for edit in _planned_all(settings, changes.values)) or None
    except AutotuneError:  # the config was edited or is gone: `apply` reports it
        return None


def _require_judged_for(problem: Problem, new: ChangeSet, *, force: bool) -> None:
    if new.document is not None and new.document != problem.place.training:
        raise ConfigError(
            "these values were found for another training: keys that are not tuned differ",
            where=str(problem.config_path),
            remedy=f"Search again: {problem.typed.command('search', '--budget', '30m')}",
        )
    changed = problem.code.changed(new.code)
    if changed and not force:
        raise ConfigError(
            f"these values were found for other code: {', '.join(changed)} changed since the search",
            where=str(problem.config_path),
            remedy=f"Search again: {problem.typed.command('search', '--budget', '30m')}; --force writes them anyway.",
        )


def _edited(settings: Settings, new: ChangeSet) -> list[str]:
    return [
        f"{key.path} is {present}, was {key.old} in the search"
        for key in new.keys
        if not same_scalar(present := settings.value(key.path), key.old) and not same_scalar(present, key.new)
    ]


def _write(problem: Problem, settings: Settings, keys: Values, console: Console, *, code: bool, dry_run: bool) -> bool:
    """Show and write each diff; return False if nothing changes."""
    planned, in_code = _planned(settings, keys), plan_code(settings.code, keys)
    for edit in planned:
        console.print(edit.diff, soft_wrap=True, end="", markup=False)
    patch = patch_of(in_code, settings.folder)
    console.print(patch, soft_wrap=True, end="", markup=False)
    if dry_run or not (planned or in_code):
        return bool(planned or in_code)
    problem.state.create()
    place = _write_patch(settings.folder, patch) if in_code and not code else None
    configs = [edit for edit in planned if edit.path in settings.paths]
    together = [*configs, *in_code] if code else configs
    for written in (together, [edit for edit in planned if edit not in configs]):  # variables in a separate section
        for file, backup in write_edits(written, problem.state.backups, SystemClock()).items():
            console.print(f"\nWritten to {file}; backup: {backup}", soft_wrap=True)
    if place is not None:
        console.print(
            f"\nWritten to {place}: the changes to the trainer's code. The code itself is unchanged.\n"
            f"To make them, in {settings.folder}:  git apply {_PATCH}\n"
            "or `autotune apply --code`, which keeps a backup.",
            soft_wrap=True,
            markup=False,
        )
    elif in_code and _is_patch(settings.folder / _PATCH):
        (settings.folder / _PATCH).unlink()  # it is applied now
    return True


_PATCH = "autotune.patch"
_FIRST_LINE = b"# written by autotune apply\n"


def _is_patch(place: Path) -> bool:
    return os.path.isfile(place) and read_beginning(place, len(_FIRST_LINE)) == _FIRST_LINE


def _write_patch(folder: Path, patch: str) -> Path:
    """Write the patch of the code; replaces only an earlier one."""
    place = folder / _PATCH
    if os.path.lexists(place) and not _is_patch(place):
        raise ConfigError("another file has this name", where=str(place), remedy="Move it away.")
    replace_durably(place, _FIRST_LINE + patch.encode())
    return place


def _planned_all(settings: Settings, keys: Values) -> list[ConfigEdit]:
    return [*_planned(settings, keys), *plan_code(settings.code, keys)]


def _planned(settings: Settings, keys: Values) -> list[ConfigEdit]:
    planned = [plan_edit(file, edits) for file, edits in settings.edits(keys).items()]
    return [edit for edit in planned if not edit.nothing_to_do]

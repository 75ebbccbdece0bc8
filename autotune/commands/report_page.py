"""Contents of a report, from the record, trial folders, events and git."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.commands.apply_answer import changes_to_offer, diff_of
from autotune.diagnose.findings import rank_of
from autotune.errors import ConfigError, StudyError
from autotune.files import json_object, read_beginning
from autotune.measure.window import steady_window
from autotune.records import Purpose, TrialRecord
from autotune.report.html.contents import DiagnosisSummary, StepPart, StudyContents
from autotune.report.plain_text import change_text
from autotune.search.answer import Study
from autotune.search.problem import Problem
from autotune.study.answer import finalists
from autotune.study.identity import frameworks_text
from autotune.study.members import hosts_of
from autotune.study.record import StudyRecord
from autotune.study.summary import latest_search
from autotune.trial.outcome import EXPLANATIONS
from autotune.trial.process_identity import git_commit, is_gone
from autotune.trial.step_files import StepReader

_MOST_BYTES = 64 << 20

DIAGNOSIS, STEP = "diagnosis.json", "profile-step.json"
"""Files in a diagnosis' folder that a report reads."""


def contents_of(problem: Problem, clock: Clock, diagnosed: DiagnosisSummary | None = None) -> StudyContents:
    """Return the contents of a study's report.

    Raises:
        StudyError: There is no study.
    """
    study = Study.of(problem)
    try:
        result, why = study.answer(), ""
    except StudyError as error:
        result, why = None, error.message
    trials = study.trials
    search = result.search if result else latest_search(trials, problem.objective) or ""  # none: only diagnoses
    made = [trial for trial in trials if trial.search == search] or trials
    ended = _ending(problem, search)
    diff = diff_of(problem, changes_to_offer(problem, study.name, trials, result)) if result else None
    typed = problem.typed
    verbs = ["status", *(["apply"] if diff is not None else []), *(["revert"] if result else []), "diagnose", "report"]
    contents = StudyContents(
        config=str(typed.config),
        study=study.name,
        trials=trials,
        result=result,
        why_no_result=why,
        state=_state(problem, study.name, search, clock, has_ended=ended is not None),
        elapsed_s=ended,
        measures=problem.objective.measures,
        diff=diff,
        commands={verb: typed.command(verb) for verb in verbs}
        | ({"apply": typed.command("apply", "--all")} if result and diff and result.needs_consent else {})
        | {
            "search": typed.command("search", "--budget", "30m"),
            "same training": typed.command("search", "--same-training", "--budget", "30m"),
        },
        conditions=tuple(_conditions(problem, made)),
        diagnosed=diagnosed or DiagnosisSummary(),
        machines=hosts_of(trials),
        remedies={ending.value: explanation.remedy for ending, explanation in EXPLANATIONS.items()},
    )
    if result is None or result.baseline is None:
        return contents
    shown = contents.shown
    good = [trial for trial in made if trial.comparable is not None]
    found = finalists(good, made, result.baseline.point)
    chosen = next((one for one in found if shown is not None and one.trial.point == shown.point), None)
    sides = (result.baseline.point, shown.point if shown is not None else "")
    return replace(
        contents,
        pairs=[(today.speed, other.speed) for today, other in (chosen.pairs if chosen else ())],
        step_times_s=_step_times(problem, study.name, made, sides),
    )


def read_diagnosis(path: Path) -> DiagnosisSummary:
    """Read a diagnosis from its JSON file or its folder, or raise ConfigError."""
    file = path / DIAGNOSIS if path.is_dir() else path
    try:
        document, step = json.loads(read_beginning(file, _MOST_BYTES)), None
        profile = path / STEP
        if path.is_dir() and profile.exists():
            file = profile
            step = json.loads(read_beginning(file, _MOST_BYTES))
        return summary_of(document, step)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        remedy = "Create one with `autotune diagnose --json > FILE` or --out FOLDER."
        raise ConfigError("this is not a diagnosis", where=str(file), remedy=remedy) from error


def summary_of(document: Mapping[str, Any], step: Mapping[str, Any] | None) -> DiagnosisSummary:
    """Return what a report shows of a diagnosis, from `diagnosis_document` and the step profile's object.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: Other objects.
    """
    issues = [issue for check in document["checks"] for issue in check["issues"]]
    issues.sort(key=lambda one: rank_of(one["severity"], one["bound"]["low"] if one["bound"] else 0.0))
    return DiagnosisSummary(
        verdict=str(document["verdict"]["sentence"]),
        issues=[(str(one["severity"]), " ".join(filter(None, (one["sentence"], one["place"])))) for one in issues],
        recommendations=tuple(map(_recommendation, document["recommendations"])),
        step_parts=tuple(map(_step_part, step["phases"])) if step else (),
    )


def _recommendation(document: Mapping[str, Any]) -> tuple[str, str]:
    gain, words = document["gain"], ""
    if gain is not None:
        words = f"{gain['ratio']:.2f}x ({gain['low']:.2f}-{gain['high']:.2f}), {document['evidence']}"
    return change_text(document["values"], str(document["sentence"])), words


def _step_part(phase: Mapping[str, Any]) -> StepPart:
    mean_ms = None if phase["mean_ms"] is None else float(phase["mean_ms"])
    return StepPart(name=str(phase["name"]), mean_ms=mean_ms if mean_ms is None or isfinite(mean_ms) else None)


def _step_times(
    problem: Problem, study: str, trials: Sequence[TrialRecord], points: tuple[str, str]
) -> tuple[Sequence[float], Sequence[float]]:
    confirming = [trial for trial in trials if trial.purpose is Purpose.CONFIRM and trial.comparable is not None]
    numbers = {trial.number: trial.point for trial in confirming or trials if trial.comparable is not None}
    found: dict[str, list[float]] = {point: [] for point in points}
    for folder, number in _folders(problem, study, trials[0].search if trials else ""):
        times = found.get(numbers.get(number, ""))
        if times is None or len(times) >= 20_000:
            continue
        reader, events = StepReader(folder), []
        while more := reader.poll():
            events += more
        if (window := steady_window(events)) is not None:
            times += [float(duration_s) for duration_s in window.durations_s]
    return found[points[0]], found[points[1]] if points[1] != points[0] else ()


def _folders(problem: Problem, study: str, search: str) -> Iterator[tuple[Path, int]]:
    """Yield remaining trial folders of a search, with trial numbers."""
    place = problem.state.trials(study)
    # Folders of workers have other names: result.json names the search.
    for folder in sorted(place.iterdir()) if search and place.is_dir() else ():
        result = json_object(read_beginning(folder / "result.json", _MOST_BYTES))
        if result.get("search") == search and isinstance(number := result.get("number"), int):
            yield folder, number


def _ending(problem: Problem, search: str) -> float | None:
    """Return the duration of a search that has ended."""
    text = read_beginning(problem.state.searches / f"{search}.events.jsonl", _MOST_BYTES) if search else b""
    for line in reversed(text.splitlines()[-50:]):
        event = json_object(line)
        if event.get("event") == "SearchEnded" and isinstance(elapsed_s := event.get("elapsed_s"), int | float):
            return elapsed_s
    return None


def _state(problem: Problem, study: str, search: str, clock: Clock, *, has_ended: bool) -> str:
    if has_ended or not search:
        return ""
    with closing(StudyRecord(study, problem.storage, reads_only=True)) as record:
        members = [one for one in record.members.on_record() if one.search == search and not is_gone(one.about)]
    if any(one.seems_active(clock.utc()) for one in members):
        return "The search is still running: these are intermediate results."
    if not (problem.state.searches / f"{search}.events.jsonl").exists():
        return ""  # it ran on another machine; its end is not known here
    return "The search was interrupted: these results are from its finished trials. The same command resumes it."


def _conditions(problem: Problem, trials: Sequence[TrialRecord]) -> Iterator[tuple[str, str]]:
    if not trials:
        return
    last = trials[-1].conditions
    yield "machine", ", ".join(hosts_of(trials).values())
    yield "CPU", f"{last.cpu_model or 'unknown'}, {last.cpu_cores or '?'} cores"
    if last.memory_bytes is not None:
        yield "memory", f"{last.memory_bytes / 2**30:.1f} GiB"
    yield "GPUs", last.gpus or "none"
    yield "frameworks", frameworks_text(last.frameworks) or "none known"
    yield "autotune", last.autotune or "unknown"
    yield "trials", f"{trials[0].ended_utc} to {trials[-1].ended_utc}"
    if commit := git_commit(problem.config_path.absolute().parent):
        yield "current commit of the project", commit
    yield "objective", problem.objective.name

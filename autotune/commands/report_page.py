"""Contents of a report, gathered: the record, the folders of trials, the events of the search, the project's commit."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.commands.apply_answer import changes_to_offer, diff_of
from autotune.diagnose.findings import rank_of
from autotune.errors import ConfigError, StudyError
from autotune.files import read_beginning, replace_durably
from autotune.measure.score import disturbed_pairs
from autotune.measure.window import steady_window
from autotune.records import Purpose, SearchResult, TrialRecord
from autotune.report.html.contents import Advice, ConfirmingPair, StepPart, StudyContents
from autotune.report.plain_text import change_text
from autotune.search.answer import Study, read_study
from autotune.search.problem import Problem, open_problem
from autotune.study.answer import Pair, finalists
from autotune.study.identity import frameworks_text
from autotune.study.members import hosts_of
from autotune.study.record import StudyRecord
from autotune.study.summary import answer_of, latest_search
from autotune.trial.outcome import EXPLANATIONS
from autotune.trial.process_identity import git_commit, is_gone
from autotune.trial.step_files import StepReader

_MOST_BYTES = 64 << 20

DIAGNOSIS, STEP = "diagnosis.json", "profile-step.json"
"""Files in a diagnosis' folder that a report reads."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """What a diagnosis found, as far as a report shows it."""

    verdict: str
    issues: Sequence[tuple[str, str]]
    advice: Sequence[Advice]
    step_parts: Sequence[StepPart] = ()


def contents_of(problem: Problem, clock: Clock, diagnosed: Diagnosed | None = None) -> StudyContents:
    """Return the contents of the report of a config's study.

    Args:
        diagnosed: What a diagnosis found; None without one.

    Raises:
        StudyError: There is no study of it.
    """
    study = Study.of(problem)
    try:
        result, why = study.answer(), ""
    except StudyError as error:
        result, why = None, error.message
    typed = problem.typed
    contents = _contents(problem, study.name, study.trials, result, clock)
    diff = diff_of(problem, changes_to_offer(problem, study.name, study.trials, result)) if result else None
    verbs = ["status", *(["apply"] if diff is not None else []), *(["revert"] if result else []), "diagnose", "report"]
    return replace(
        contents,
        config=str(typed.config),
        why_no_result=why,
        diff=diff,
        commands={verb: typed.command(verb) for verb in verbs}
        | ({"apply": typed.command("apply", "--all")} if result and diff and result.applies_same_training else {})
        | {
            "search": typed.command("search", "--budget", "30m"),
            "same training": typed.command("search", "--same-training", "--budget", "30m"),
        },
        advice=diagnosed.advice if diagnosed else None,
        verdict_of_diagnosis=diagnosed.verdict if diagnosed else "",
        issues=diagnosed.issues if diagnosed else (),
        step_parts=diagnosed.step_parts if diagnosed else (),
    )


def contents_of_other(other: Path, problem: Problem, clock: Clock) -> StudyContents:
    """Return the contents of a further study: of a config, else of a name in the same place.

    Raises:
        AutotuneError: There is no such config or study, or it cannot be read.
    """
    if other.is_file():
        return contents_of(open_problem(other, command=None, state_dir=None, storage=None), clock)
    name = str(other)
    if name not in problem.storage.names():
        raise StudyError(
            f"there is no config and no study {name}",
            where=problem.storage.where(name),
            remedy="`autotune study list` shows the studies.",
        )
    trials, ratings = read_study(name, problem.storage)
    result = answer_of(trials, problem.space, objective=problem.objective, ratings=ratings)
    return _contents(problem, name, trials, result, clock)


def read_diagnosis(path: Path) -> Diagnosed:
    """Return what a diagnosis found, from its object in a file, or its folder.

    Raises:
        ConfigError: It is no such object.
    """
    file = path / DIAGNOSIS if path.is_dir() else path
    try:
        document, step = json.loads(read_beginning(file, _MOST_BYTES)), None
        profile = path / STEP
        if path.is_dir() and profile.exists():
            file = profile
            step = json.loads(read_beginning(file, _MOST_BYTES))
        return found_in(document, step)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "this is no diagnosis",
            where=str(file),
            remedy="`autotune diagnose --json > FILE` makes one, and so does --out FOLDER.",
        ) from error


def found_in(document: Mapping[str, Any], step: Mapping[str, Any] | None) -> Diagnosed:
    """Return what a report shows of a diagnosis.

    Args:
        document: Its object, see `autotune.report.diagnosis.diagnosis_document`.
        step: The object of a profile of the step; None without one.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: They are no such objects.
    """
    issues = [issue for check in document["checks"] for issue in check["issues"]]
    issues.sort(key=lambda one: rank_of(one["severity"], one["bound"]["low"] if one["bound"] else 0.0))
    return Diagnosed(
        verdict=str(document["verdict"]["sentence"]),
        issues=[(str(one["severity"]), " ".join(filter(None, (one["sentence"], one["place"])))) for one in issues],
        advice=tuple(_advice(one) for one in document["recommendations"]),
        step_parts=tuple(map(_step_part, step["phases"])) if step else (),
    )


def _advice(document: Mapping[str, Any]) -> Advice:
    gain, words = document["gain"], ""
    if gain is not None:
        words = f"{gain['ratio']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f}), {document['evidence']}"
    return Advice(sentence=change_text(document["values"], str(document["sentence"])), gain=words)


def _step_part(phase: Mapping[str, Any]) -> StepPart:
    mean_ms = None if phase["mean_ms"] is None else float(phase["mean_ms"])
    return StepPart(name=str(phase["name"]), mean_ms=mean_ms if mean_ms is None or isfinite(mean_ms) else None)


def _contents(
    problem: Problem, name: str, trials: Sequence[TrialRecord], result: SearchResult | None, clock: Clock
) -> StudyContents:
    search = result.search if result else latest_search(trials, problem.objective) or ""  # none: only diagnoses
    made = [trial for trial in trials if trial.search == search] or trials
    ended = _ending(problem, search)
    contents = StudyContents(
        config=name,
        study=name,
        trials=trials,
        result=result,
        why_no_result="no trial gave numbers yet",
        state=_state(problem, name, search, clock, has_ended=ended is not None),
        elapsed_s=ended,
        measures=problem.objective.measures,
        conditions=tuple(_conditions(problem, made)),
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
        pairs=[pair for some in chosen.pairs_of_machines.values() for pair in _pairs(some)] if chosen else (),
        step_times_s=_step_times(problem, name, made, sides),
    )


def _pairs(pairs: Sequence[Pair]) -> Iterator[ConfirmingPair]:
    """Yield the pairs of one machine as a report shows them."""
    for (today, other), is_disturbed in zip(pairs, disturbed_pairs(pairs), strict=True):
        yield ConfirmingPair(today=today.speed, other=other.speed, is_left_out=is_disturbed)


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
    """Yield the folders of a search's trials that are still there, with the numbers of the trials."""
    place = problem.state.trials(study)
    # A worker's folders have names of its own: what they hold says the search.
    for folder in sorted(place.iterdir()) if search and place.is_dir() else ():
        try:
            result = json.loads(read_beginning(folder / "result.json", _MOST_BYTES))
            if result["search"] == search:
                yield folder, int(result["number"])
        except (ValueError, LookupError, TypeError):  # it has not ended, or was not ours
            continue


def _ending(problem: Problem, search: str) -> float | None:
    """Return how long a search took, by its events; None if it has not said that it is over."""
    text = read_beginning(problem.state.searches / f"{search}.events.jsonl", _MOST_BYTES) if search else b""
    for line in reversed(text.splitlines()[-50:]):
        try:
            event = json.loads(line)
            if event["event"] == "SearchEnded":
                return float(event["elapsed_s"])
        except (ValueError, LookupError, TypeError):  # torn
            continue
    return None


def _state(problem: Problem, study: str, search: str, clock: Clock, *, has_ended: bool) -> str:
    if has_ended or not search:
        return ""
    with closing(StudyRecord(study, problem.storage, reads_only=True)) as record:
        members = [one for one in record.members.on_record() if one.search == search and not is_gone(one.about)]
    if any(one.seems_at_work(clock.utc()) for one in members):
        return "The search is still going on: this is what is known so far."
    if not (problem.state.searches / f"{search}.events.jsonl").exists():
        return ""  # it was made elsewhere, and how it ended is not known here
    return "The search was interrupted: this is from the trials that had finished. The same command goes on."


def _conditions(problem: Problem, trials: Sequence[TrialRecord]) -> Iterator[tuple[str, str]]:
    """Yield what the numbers of a search hold for."""
    if not trials:
        return
    last = trials[-1].conditions
    yield "machine", ", ".join(hosts_of(trials).values())
    yield "CPU", f"{last.cpu_model or 'not known'}, {last.cpu_cores or '?'} cores"
    if last.memory_bytes is not None:
        yield "memory", f"{last.memory_bytes / 2**30:.1f} GiB"
    yield "GPUs", last.gpus or "none"
    yield "frameworks", frameworks_text(last.frameworks) or "none that is known"
    yield "autotune", last.autotune or "not known"
    yield "trials", f"{trials[0].ended_utc} to {trials[-1].ended_utc}"
    if commit := git_commit(problem.config_path.absolute().parent):
        yield "commit of the project, now", commit
    yield "objective", problem.objective.name


# File of a report: where it goes, and that nobody's own file is replaced.


STDOUT = Path("-")
_REMEDY = "Name another file."


def report_path(problem: Problem, out: Path | None) -> Path:
    """Return the file of a report, where it was not named: in the folder of the config's state."""
    return out if out is not None else problem.state.path / f"{problem.config_path.stem}-report.html"


def report_text(contents: Sequence[StudyContents], clock: Clock, path: Path | None = None) -> str:
    """Return the report of a study, or the comparison of several.

    Args:
        path: The file that it is for; one that ends in ``.md`` gets Markdown.

    Raises:
        ConfigError: Several are to be Markdown.
    """
    now = f"{clock.utc():%Y-%m-%d %H:%M} UTC"
    if _is_markdown(path):
        from autotune.report.html.page import study_markdown

        if contents[1:]:
            raise ConfigError(
                "several studies side by side are a page", where="--against", remedy="Name an .html file."
            )
        return study_markdown(contents[0], now)
    from autotune.report.html.page import comparison_page, study_page

    return comparison_page(contents, now) if contents[1:] else study_page(contents[0], now)


def require_report(path: Path) -> None:
    """Raise an error unless a report can be written there.

    Raises:
        ConfigError: Something else is there, or nothing can be written there.
    """
    if path == STDOUT:
        raise ConfigError("a report is a file here", where="-", remedy="`autotune report -o -` prints it afterwards.")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ConfigError(f"the report cannot be written: {folder} takes no files", where=str(path), remedy=_REMEDY)
    if path.is_symlink() or (path.exists() and not _is_report(path)):
        raise ConfigError("this is no report of ours, and is not replaced", where=str(path), remedy=_REMEDY)


def write_report(path: Path, text: str) -> Path:
    """Write a report, in one step; return where it is.

    Raises:
        ConfigError: Something else is there, or it cannot be written.
    """
    require_report(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, text.encode())
    except OSError as error:
        raise ConfigError(f"the report cannot be written: {error.strerror}", where=str(path), remedy=_REMEDY) from error
    return path


def _is_markdown(path: Path | None) -> bool:
    return path is not None and path.suffix == ".md"


def _is_report(path: Path) -> bool:
    return path.is_file() and b"Written by autotune " in read_beginning(path, _MOST_BYTES)

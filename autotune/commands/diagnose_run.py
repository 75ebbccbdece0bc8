"""Steps of ``autotune diagnose``: diagnosing with a live display, saying what was found, keeping it, and fixing it."""

from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.commands.apply_answer import apply_values
from autotune.commands.diagnosis_folder import Profiles, keep, make_profiles, profiles_s, require_folder
from autotune.commands.printing import say_aside, say_object
from autotune.config.typed import typed_tokens
from autotune.diagnose.diagnosis import FailOn, diagnose, diagnose_static
from autotune.diagnose.findings import Diagnosis, Evidence, Recommendation, Severity
from autotune.messages import INVISIBLE, Language, _, translated
from autotune.report.console import text_console
from autotune.report.diagnosis import diagnosis_document, print_diagnosis
from autotune.report.live import SearchDisplay
from autotune.search.known import changes_from_now
from autotune.search.problem import Problem, open_problem
from autotune.space.knob import Label

ALIKE = 1.02
"""Ratio of two speeds up to which they cannot be told apart."""

_STOPPING_S = 3.0  # of the budget, for ending the last trial and for writing


@dataclass(frozen=True, kw_only=True)
class DiagnosisRequest:
    """Options and arguments of ``autotune diagnose``, under the names that click gives them.

    Attributes:
        config: The config as it was typed; None for the machine alone.
        budget_s: The wall for everything, in seconds.
        static: True to make no trials.
        fix: True to write the best measured change into the config.
        fail_on: Condition under which the exit code is 1; None for none.
        out: Folder to keep everything in; None for none.
        allow_busy_gpu: True to make trials although somebody else is on the GPU.
        as_json: True to print the diagnosis as one JSON object on stdout.
        language: Language of the screen; an object is in English.
        state_dir: Folder of all state; None finds the place by the config.
        storage: Where studies are kept, as typed.
        trainer: The trainer's command as typed behind ``--``; empty takes that of the section.
    """

    config: Path | None
    budget_s: float
    static: bool
    fix: bool
    fail_on: FailOn | None
    out: Path | None
    allow_busy_gpu: bool
    as_json: bool
    language: Language
    state_dir: Path | None
    storage: str | None
    trainer: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """Diagnosis that came to its end.

    Attributes:
        problem: What it is about; None for the machine alone.
        has_failed: Whether the exit code is to say so: what is asked for by ``--fail-on``, or, without trials, errors.
        failed_on: The condition that holds; None if none does.
        profiles: Profiles that were made to be kept with it; None without ``--out``, and where no trials are made.
    """

    diagnosis: Diagnosis
    problem: Problem | None
    has_failed: bool
    failed_on: str | None
    profiles: Profiles | None = None


def diagnose_with_display(request: DiagnosisRequest, clock: Clock, *, started_s: float) -> Diagnosed:
    """Diagnose, with a live display on stderr where trials are made.

    Args:
        started_s: When the process started, on the clock's monotonic time; the budget counts from there.

    Raises:
        AutotuneError: The config cannot be used, or no trial can be made.
    """
    problem, profiles = _opened(request), None
    if problem is not None:
        problem.settings.require_folder()
    if request.out is not None:
        require_folder(request.out)
    if problem is None or request.static:
        for remark in problem.settings.remarks if problem else ():
            say_aside(remark)
        diagnosis = diagnose_static(problem, clock)
    else:
        problem.require_runnable()
        kept_s = profiles_s(request.budget_s) if request.out is not None else 0.0
        budget_s, is_allowed = request.budget_s - kept_s, request.allow_busy_gpu
        display = SearchDisplay(text_console(stderr=True), clock, started_s=started_s, budget_s=budget_s)
        with display:
            diagnosis = diagnose(
                problem, clock, display, budget_s=budget_s, started_s=started_s, allow_busy_gpu=is_allowed
            )
        if request.out is not None:
            say_aside("profiling the input pipeline and the step")
            profiles = make_profiles(problem, clock, ends_s=started_s + request.budget_s - _STOPPING_S)
    condition = request.fail_on
    failed_on = condition.text if condition is not None and condition.holds(diagnosis) else None
    has_errors = any(issue.severity is Severity.ERROR for issue in diagnosis.issues)
    return Diagnosed(
        diagnosis=diagnosis,
        problem=problem,
        has_failed=failed_on is not None or (request.static and has_errors),
        failed_on=failed_on,
        profiles=profiles,
    )


def say_diagnosis(request: DiagnosisRequest, done: Diagnosed, *, elapsed_s: float) -> None:
    """Says what was found: an object, or the screen."""
    if request.as_json:
        say_object(_document(done, elapsed_s=elapsed_s), indent=2)
        return
    language = request.language
    console = text_console(kept=frozenset() if language is Language.ENGLISH else INVISIBLE)
    print_diagnosis(console, done.diagnosis, language)
    if done.failed_on is not None:
        failed = _("Failed, as asked for: {condition}", condition=done.failed_on)
        console.print(f"\n{translated(failed, language)}")
    if done.problem is not None and not request.fix and not request.static:
        next_command = _("Next: {command}", command=_next_command(done, done.problem))
        console.print(f"\n{translated(next_command, language)}", soft_wrap=True)


def fix(request: DiagnosisRequest, done: Diagnosed) -> None:
    """Writes the best measured change that leaves the training the same into the config; says what to run next.

    Raises:
        ConfigError: It cannot be written.
    """
    assert done.problem is not None, "only a config is fixed"
    console = text_console(stderr=True)
    chosen = fixing(done.diagnosis)
    if chosen is None:
        console.print("Nothing to fix: no change that leaves the training the same was measured to help.")
    else:
        baseline = done.problem.space.baseline
        values = {**baseline, **chosen.values}
        apply_values(done.problem, changes_from_now(done.problem, values), console)
    typed = done.problem.typed
    console.print(f"\nNext: {typed.command('search', '--budget', '30m')}", soft_wrap=True)


def fixing(diagnosis: Diagnosis) -> Recommendation | None:
    """Return the measured recommendation with the largest certain gain that leaves the training the same, if any.

    Of those that cannot be told apart from it the one with the fewest changes, as in a search.
    """
    same = [
        one
        for one in diagnosis.recommendations
        if one.evidence is Evidence.MEASURED and one.values and one.label == Label.SAME_TRAINING.value
    ]
    alike = [one for one in same if one.gain and same[0].gain and one.gain.ratio * ALIKE >= same[0].gain.ratio]
    return min(alike, key=lambda one: len(one.values), default=None)


def keep_everything(folder: Path, done: Diagnosed) -> None:
    """Keep a diagnosis in a folder, with its profiles.

    Raises:
        ConfigError: The folder cannot be written to.
    """
    keep(folder, done.diagnosis, _document(done, elapsed_s=None), done.problem, done.profiles)


def _document(done: Diagnosed, *, elapsed_s: float | None) -> dict[str, object]:
    paths = done.problem.paths(done.problem.study) if done.problem else {}
    return diagnosis_document(done.diagnosis, elapsed_s=elapsed_s, failed_on=done.failed_on, paths=paths)


def _next_command(done: Diagnosed, problem: Problem) -> str:
    if fixing(done.diagnosis):
        return problem.typed.command("diagnose", "--fix")
    return problem.typed.command("search", "--budget", "30m")


def _opened(request: DiagnosisRequest) -> Problem | None:
    if request.config is None:
        return None
    return open_problem(
        request.config,
        command=typed_tokens(request.trainer, request.config, Path.cwd()),
        state_dir=request.state_dir,
        storage=request.storage,
    )

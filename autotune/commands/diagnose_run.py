"""Steps of ``autotune diagnose``: a live display, what was found as screen, object or folder, and fixing it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from autotune.clock import Clock
from autotune.commands.apply_answer import apply_values
from autotune.commands.output import say_aside, say_object, say_remarks
from autotune.commands.report_page import DIAGNOSIS, STEP, contents_of, found_in
from autotune.config.command import typed_tokens
from autotune.diagnose.config_checks import effective_batch
from autotune.diagnose.diagnosis import diagnose, diagnose_static
from autotune.diagnose.findings import Diagnosis, GainBasis, Recommendation, Severity
from autotune.diagnose.profiles import PipelineProfile, StepProfile, profile_pipeline, profile_step
from autotune.diagnose.verdict import FailOn
from autotune.errors import AutotuneError, ConfigError
from autotune.files import json_object, read_beginning, replace_durably
from autotune.measure.gpu.driver import look_for_gpus
from autotune.measure.host import BusyCpu, machine_facts
from autotune.records import Gpu
from autotune.report.console import file_console, text_console
from autotune.report.diagnosis import (
    diagnosis_document,
    print_diagnosis,
    print_gpus,
    print_pipeline_profile,
    print_step_profile,
)
from autotune.report.html.page import report_text
from autotune.report.json_answer import FORMAT
from autotune.report.live import SearchDisplay
from autotune.search.answer import changes_from_now
from autotune.search.problem import Problem, open_problem
from autotune.space.knob import Label
from autotune.trial.instruments import Simulator


@dataclass(frozen=True, kw_only=True)
class DiagnosisRequest:
    """Options and arguments of ``autotune diagnose``, under the names that click gives them.

    Attributes:
        config: The config as it was typed; None for the machine alone.
        budget_s: The wall for everything, in seconds; None for as long as the trainer needs.
        static: True to make no trials.
        verify: True to look only whether the step is what the config says.
        fix: True to write the best measured change into the config.
        fail_on: Condition under which the exit code is 1; None for none.
        strict: True for an exit code that says how grave the gravest finding is.
        effective_batch: Samples of an update for which settings of GPUs are said; None takes the config's.
        out: Folder to keep everything in; None for none.
        allow_busy_gpu: True to make trials although somebody else is on the GPU.
        state_dir: Folder of all state; None finds the place by the config.
        storage: Where studies are kept, as typed.
        trainer: The trainer's command as typed behind ``--``; empty takes that of the section.
    """

    config: Path | None
    budget_s: float | None
    static: bool
    verify: bool
    fix: bool
    fail_on: FailOn | None
    strict: bool
    effective_batch: int | None
    out: Path | None
    allow_busy_gpu: bool
    state_dir: Path | None
    storage: str | None
    trainer: tuple[str, ...]

    @property
    def wall_s(self) -> float:
        """Time after which everything ends, in seconds."""
        return 180.0 if self.budget_s is None else self.budget_s


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """Profiles that go into the folder beside a diagnosis.

    Attributes:
        pipeline: That of the input pipeline; None where there is none.
        step: That of the step; None where there is none.
        missing: Reason for which one is not there, by its name.
    """

    pipeline: PipelineProfile | None = None
    step: StepProfile | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


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


def diagnose_with_display(
    request: DiagnosisRequest, clock: Clock, *, started_s: float, simulator: Simulator | None = None
) -> Diagnosed:
    """Diagnose, with a live display on stderr where trials are made.

    Args:
        started_s: When the process started, on the clock's monotonic time; the budget counts from there.
        simulator: Runs the trials in virtual time; None for processes.

    Raises:
        AutotuneError: The config cannot be used, or no trial can be made.
    """
    problem, profiles = _problem(request), None
    if request.out is not None:
        require_folder(request.out)
    if problem is None or request.static:
        say_remarks(problem.settings.remarks if problem else ())
        diagnosis = diagnose_static(problem, clock)
    else:
        problem.require_command()
        problem.require_program()
        kept_s = profiles_s(request.wall_s) if request.out is not None else 0.0
        budget_s, is_allowed = request.wall_s - kept_s, request.allow_busy_gpu
        display = SearchDisplay(text_console(stderr=True), clock, started_s=started_s, budget_s=budget_s)
        with display:
            diagnosis = diagnose(
                problem,
                clock,
                display,
                budget_s=budget_s,
                started_s=started_s,
                is_brief=request.budget_s is None,
                allow_busy_gpu=is_allowed,
                verifies=request.verify,
                simulator=simulator,
            )
        if request.out is not None:
            say_aside("profiling the input pipeline and the step")
            profiles = make_profiles(problem, clock, ends_s=started_s + request.wall_s - 3.0)  # to end and to write
    condition = request.fail_on
    failed_on = condition.text if condition is not None and condition.holds(diagnosis) else None
    has_errors = any(issue.severity is Severity.ERROR for issue in diagnosis.issues)
    return Diagnosed(
        diagnosis=diagnosis,
        problem=problem,
        has_failed=failed_on is not None
        or (request.static and has_errors)
        or (request.verify and diagnosis.verdict.limit is not None),
        failed_on=failed_on,
        profiles=profiles,
    )


def _problem(request: DiagnosisRequest) -> Problem | None:
    if request.config is None:
        return None
    problem = open_problem(
        request.config,
        command=typed_tokens(request.trainer, request.config, Path.cwd()),
        state_dir=request.state_dir,
        storage=request.storage,
    )
    problem.settings.require_folder()
    return problem


def say_gpus(request: DiagnosisRequest) -> None:
    """Says what to begin with on GPUs, for the effective batch of the config where there is one."""
    problem = _problem(request)
    here = [Gpu(name=gpu.name, uuid=gpu.uuid, memory_bytes=gpu.memory_bytes) for gpu in look_for_gpus().gpus]
    usual = 64  # an update of so many samples, where no config says it
    samples = request.effective_batch or (effective_batch(problem) if problem else None) or usual
    print_gpus(text_console(), here, effective_batch=samples, cpu_cores=int(BusyCpu().cores))


def say_diagnosis(request: DiagnosisRequest, done: Diagnosed, *, elapsed_s: float, as_json: bool) -> None:
    """Says what was found: an object, or the screen."""
    if as_json:
        say_object(_document(done, elapsed_s=elapsed_s), indent=2)
        return
    console = text_console()
    print_diagnosis(console, done.diagnosis)
    if done.failed_on is not None:
        console.print(f"\nFailed, as asked for: {done.failed_on}")
    if done.problem is not None and not (request.fix or request.static or request.verify):
        typed = done.problem.typed
        fixes = fixing(done.diagnosis) is not None
        command = typed.command("diagnose", "--fix") if fixes else typed.command("search", "--budget", "30m")
        console.print(f"\nNext: {command}", soft_wrap=True)


def fix(done: Diagnosed) -> None:
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
        if one.evidence is GainBasis.MEASURED and one.values and one.label == Label.SAME_TRAINING.value
    ]
    alike = [one for one in same if one.gain and same[0].gain and one.gain.ratio * 1.02 >= same[0].gain.ratio]
    return min(alike, key=lambda one: len(one.values), default=None)


def strict_exit_code(diagnosis: Diagnosis) -> int:
    """Return the exit code of the gravest finding; 2, which is for wrong usage, is none of them."""
    codes = {Severity.ERROR: 1, Severity.WARNING: 3, Severity.NOTE: 4}
    return next((codes[one.severity] for one in diagnosis.issues), 0)


def _document(done: Diagnosed, *, elapsed_s: float | None) -> dict[str, object]:
    paths = done.problem.place.paths(done.problem.study) if done.problem else {}
    return diagnosis_document(done.diagnosis, elapsed_s=elapsed_s, failed_on=done.failed_on, paths=paths)


# Folder of a diagnosis: everything that was found, with a summary on top.


SUMMARY, REPORT, MACHINE = "summary.txt", "report.html", "machine.json"
PIPELINE = "profile-pipeline.json"

_FILES = (SUMMARY, REPORT, DIAGNOSIS, MACHINE, STEP, PIPELINE)
_Profile = TypeVar("_Profile", StepProfile, PipelineProfile)


def profiles_s(budget_s: float) -> float:
    """Return the part of a diagnosis' budget that is kept for the profiles; 0 where it is too short for them."""
    share_s = min(60.0, budget_s / 3.0)
    return share_s if share_s >= 30.0 else 0.0


def make_profiles(problem: Problem, clock: Clock, *, ends_s: float) -> Profiles:
    """Profile the input pipeline, and then the step, as far as the time goes.

    Args:
        problem: The config and the command; runnable.
        ends_s: End of the time, on the clock's monotonic time.
    """
    missing: dict[str, str] = {}

    def made(name: str, make: Callable[[], _Profile]) -> _Profile | None:
        missing[name] = "too little of the budget was left"
        if ends_s - clock.now_s() >= 10.0:
            try:
                profile = make()
                del missing[name]
                return profile
            except AutotuneError as error:
                missing[name] = error.message
        return None

    def pipeline() -> PipelineProfile:
        half_s = clock.now_s() + (ends_s - clock.now_s()) / 2.0
        return profile_pipeline(problem, clock, ends_s=half_s)[0]

    return Profiles(
        pipeline=made("profile of the pipeline", pipeline),
        step=made("profile of the step", lambda: profile_step(problem, clock, ends_s=ends_s)[0]),
        missing=missing,
    )


def require_folder(folder: Path) -> None:
    """Make the folder, and see that it can be written to, before anything takes time.

    Raises:
        ConfigError: It cannot be written to, or a file that is to be written is there already and is none of a
            diagnosis.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [name for name in _FILES if (folder / name).exists()]
        if taken and not _is_of_a_diagnosis(folder):
            raise ConfigError(
                f"{folder} holds a file {taken[0]} that is not of a diagnosis, and would be replaced",
                where="--out",
                remedy="Name another folder.",
            )
        replace_durably(folder / ".autotune-diagnosis", b"")
        (folder / ".autotune-diagnosis").unlink()
    except OSError as error:
        raise _unwritable(folder, error) from error


def keep(folder: Path, done: Diagnosed, clock: Clock) -> None:
    """Write everything that was found into the folder, each file in one step; those of an earlier diagnosis go.

    Raises:
        ConfigError: It cannot be written to.
    """
    problem, profiles, document = done.problem, done.profiles or Profiles(), _document(done, elapsed_s=None)
    conditions = problem.conditions.as_stored() if problem else {}
    contents: dict[str, str | None] = {
        DIAGNOSIS: _json(document),
        MACHINE: _json({"format": FORMAT, **asdict(machine_facts()), **conditions}),
        STEP: _json({"format": FORMAT, **asdict(profiles.step)}) if profiles.step else None,
        PIPELINE: _json({"format": FORMAT, **asdict(profiles.pipeline)}) if profiles.pipeline else None,
        REPORT: None,
    }
    missing = {**profiles.missing}
    try:
        if problem is None:
            missing["report"] = "it is about a config, and none was named"
        else:  # one page with all of it: what is wrong, what shows it, what to do first; and the trials of the study
            found = found_in(document, asdict(profiles.step) if profiles.step else None)
            contents[REPORT] = report_text(contents_of(problem, clock, found), clock.utc())
    except AutotuneError as error:
        missing["report"] = error.message
    written = [name for name in _FILES if contents.get(name)]
    contents[SUMMARY] = _summary(done.diagnosis, profiles, written, missing)
    try:
        for name, content in contents.items():
            if content is None:
                (folder / name).unlink(missing_ok=True)
            else:
                replace_durably(folder / name, content.encode())
    except OSError as error:
        raise _unwritable(folder, error) from error


def _summary(diagnosis: Diagnosis, profiles: Profiles, written: list[str], missing: Mapping[str, str]) -> str:
    """Return the text on top: the diagnosis as on the screen, the profiles, and what else is in the folder."""
    console = file_console()
    with console.capture() as captured:
        print_diagnosis(console, diagnosis)
        console.print()
        if profiles.pipeline is not None:
            print_pipeline_profile(console, profiles.pipeline)
        if profiles.step is not None:
            console.print()
            print_step_profile(console, profiles.step)
        for name, why in missing.items():
            console.print(f"No {name}: {why}.", soft_wrap=True, markup=False)
        console.print(f"\nIn this folder: {', '.join(written)}.", soft_wrap=True)
    return captured.get()


def _is_of_a_diagnosis(folder: Path) -> bool:
    return {"format", "verdict", "checks"} <= json_object(read_beginning(folder / DIAGNOSIS, 1 << 24)).keys()


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write into {folder}: {error.strerror}", where="--out", remedy="Name another folder.")

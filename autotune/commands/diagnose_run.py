"""Steps of ``autotune diagnose``: run, print or write the result, and fix the config."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autotune.clock import Clock
from autotune.commands.apply_answer import apply_values
from autotune.commands.output import say_aside, say_object, say_remarks
from autotune.commands.report_page import DIAGNOSIS, STEP, contents_of, summary_of
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
    """Options and arguments of ``autotune diagnose``, by click's names.

    Attributes:
        config: None for the machine only.
        budget_s: None for as long as the trainer needs.
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
    def limit_s(self) -> float:
        return 180.0 if self.budget_s is None else self.budget_s


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """Profiles for the output folder, and reasons for missing ones by name."""

    pipeline: PipelineProfile | None = None
    step: StepProfile | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """Finished diagnosis.

    Attributes:
        has_failed: Whether to exit with 1: ``--fail-on`` holds, ``--static`` found errors, or ``--verify`` a mismatch.
        failed_on: The condition that holds.
        profiles: None without ``--out`` or trials.
    """

    diagnosis: Diagnosis
    problem: Problem | None
    has_failed: bool
    failed_on: str | None
    profiles: Profiles | None = None


def diagnose_with_display(
    request: DiagnosisRequest, clock: Clock, *, started_s: float, simulator: Simulator | None = None
) -> Diagnosed:
    """Run a diagnosis, with a live display on stderr during trials.

    Args:
        started_s: Monotonic start of the process and the budget.

    Raises:
        AutotuneError: The config cannot be used, or no trial can run.
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
        kept_s = profiles_s(request.limit_s) if request.out is not None else 0.0
        budget_s = request.limit_s - kept_s
        with SearchDisplay(text_console(stderr=True), clock, started_s=started_s, budget_s=budget_s) as display:
            diagnosis = diagnose(
                problem,
                clock,
                display,
                budget_s=budget_s,
                started_s=started_s,
                is_brief=request.budget_s is None,
                allow_busy_gpu=request.allow_busy_gpu,
                verifies=request.verify,
                simulator=simulator,
            )
        if request.out is not None:
            say_aside("profiling the input pipeline and the step")
            profiles = make_profiles(problem, clock, ends_s=started_s + request.limit_s - 3.0)  # 3 s to stop and write
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


def show_gpus(request: DiagnosisRequest) -> None:
    """Print starting values for GPUs."""
    problem = _problem(request)
    here = [Gpu(name=gpu.name, uuid=gpu.uuid, memory_bytes=gpu.memory_bytes) for gpu in look_for_gpus().gpus]
    samples = request.effective_batch or (effective_batch(problem) if problem else None) or 64
    print_gpus(text_console(), here, effective_batch=samples, cpu_cores=int(BusyCpu().cores))


def show_diagnosis(request: DiagnosisRequest, done: Diagnosed, *, elapsed_s: float, as_json: bool) -> None:
    """Print the diagnosis as JSON or as a screen."""
    if as_json:
        say_object(_document(done, elapsed_s=elapsed_s), indent=2)
        return
    console = text_console()
    print_diagnosis(console, done.diagnosis)
    if done.failed_on is not None:
        console.print(f"\nFailed: --fail-on {done.failed_on}")
    if done.problem is not None and not (request.fix or request.static or request.verify):
        typed = done.problem.typed
        fixes = fixing(done.diagnosis) is not None
        command = typed.command("diagnose", "--fix") if fixes else typed.command("search", "--budget", "30m")
        console.print(f"\nNext: {command}", soft_wrap=True)


def fix(done: Diagnosed) -> None:
    """Write the change of `fixing` into the config; print the next command."""
    assert done.problem is not None, "--fix needs a config"
    console = text_console(stderr=True)
    chosen = fixing(done.diagnosis)
    if chosen is None:
        console.print("Nothing to fix: no change that leaves the training unchanged has a measured gain.")
    else:
        values = {**done.problem.space.baseline, **chosen.values}
        apply_values(done.problem, changes_from_now(done.problem, values), console)
    typed = done.problem.typed
    console.print(f"\nNext: {typed.command('search', '--budget', '30m')}", soft_wrap=True)


def fixing(diagnosis: Diagnosis) -> Recommendation | None:
    """Return the measured recommendation with the largest certain gain that leaves the training unchanged.

    Within 2 %, the one with the fewest changes.
    """
    same = [
        one
        for one in diagnosis.recommendations
        if one.evidence is GainBasis.MEASURED and one.values and one.label == Label.SAME_TRAINING.value
    ]
    equal = [one for one in same if one.gain and same[0].gain and one.gain.ratio * 1.02 >= same[0].gain.ratio]
    return min(equal, key=lambda one: len(one.values), default=None)


def strict_exit_code(diagnosis: Diagnosis) -> int:
    """Return the exit code of the worst finding; never 2 (wrong usage) or 3 (a bug)."""
    codes = {Severity.ERROR: 1, Severity.WARNING: 4, Severity.NOTE: 5}
    return next((codes[one.severity] for one in diagnosis.issues), 0)


def _document(done: Diagnosed, *, elapsed_s: float | None) -> dict[str, object]:
    paths = done.problem.place.paths(done.problem.study) if done.problem else {}
    return diagnosis_document(done.diagnosis, elapsed_s=elapsed_s, failed_on=done.failed_on, paths=paths)


# Output folder of a diagnosis.


SUMMARY, REPORT, MACHINE = "summary.txt", "report.html", "machine.json"
PIPELINE = "profile-pipeline.json"

_FILES = (SUMMARY, REPORT, DIAGNOSIS, MACHINE, STEP, PIPELINE)


def profiles_s(budget_s: float) -> float:
    """Return the profiles' part of the budget; 0 if too short."""
    share_s = min(60.0, budget_s / 3.0)
    return share_s if share_s >= 30.0 else 0.0


def make_profiles(problem: Problem, clock: Clock, *, ends_s: float) -> Profiles:
    """Profile the input pipeline, in half of the time, and then the step."""
    missing: dict[str, str] = {}

    def made(name: str, make: Callable[..., Any], share: float) -> Any:
        left_s = ends_s - clock.now_s()
        if left_s < 10.0:
            missing[name] = "out of time"
            return None
        try:
            return make(problem, clock, ends_s=ends_s - (1.0 - share) * left_s)[0]
        except AutotuneError as error:
            missing[name] = error.message
            return None

    pipeline = made("profile of the pipeline", profile_pipeline, 0.5)
    return Profiles(pipeline=pipeline, step=made("profile of the step", profile_step, 1.0), missing=missing)


def require_folder(folder: Path) -> None:
    """Create a writable folder; raise ConfigError if a file in it is not from a diagnosis."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = [name for name in _FILES if (folder / name).exists()]
    known = json_object(read_beginning(folder / DIAGNOSIS, 1 << 24))
    if taken and not {"format", "verdict", "checks"} <= known.keys():
        why = f"{folder} contains a {taken[0]} that is not from a diagnosis and would be replaced"
        raise ConfigError(why, where="--out", remedy="Name another folder.")
    replace_durably(folder / ".autotune-diagnosis", b"")
    (folder / ".autotune-diagnosis").unlink()


def keep(folder: Path, done: Diagnosed, clock: Clock) -> None:
    """Write the results, each file atomically; remove those of an earlier diagnosis."""
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
            missing["report"] = "it needs --config"
        else:
            found = summary_of(document, asdict(profiles.step) if profiles.step else None)
            contents[REPORT] = report_text(contents_of(problem, clock, found), clock.utc())
    except AutotuneError as error:
        missing["report"] = error.message
    written = [name for name in _FILES if contents.get(name)]
    contents[SUMMARY] = _summary(done.diagnosis, profiles, written, missing)
    for name, content in contents.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            replace_durably(folder / name, content.encode())


def _summary(diagnosis: Diagnosis, profiles: Profiles, written: list[str], missing: Mapping[str, str]) -> str:
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


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"

"""Folder of a diagnosis: everything that was found, with a summary on top."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from autotune.clock import Clock
from autotune.diagnose.findings import Diagnosis
from autotune.diagnose.pipeline_profile import PipelineProfile, profile_pipeline
from autotune.diagnose.profile_trials import open_trials
from autotune.diagnose.step_profile import StepProfile, profile_trainer_step
from autotune.errors import AutotuneError, ConfigError
from autotune.files import read_beginning, replace_durably
from autotune.measure.host import machine_facts
from autotune.report.console import file_console
from autotune.report.diagnosis import print_diagnosis
from autotune.report.json_answer import FORMAT
from autotune.report.profile_tables import print_pipeline_profile, print_step_profile
from autotune.search.problem import Problem

SUMMARY, DIAGNOSIS, MACHINE = "summary.txt", "diagnosis.json", "machine.json"
STEP, PIPELINE, PICTURES = "profile-step.json", "profile-pipeline.json", "pictures.svg"

_FILES = (SUMMARY, DIAGNOSIS, MACHINE, STEP, PIPELINE, PICTURES)
_LEAST_FOR_PROFILES_S, _MOST_FOR_PROFILES_S = 30.0, 60.0
_SHARE_FOR_PROFILES = 1.0 / 3.0
_LEAST_FOR_ONE_S = 10.0

_Profile = TypeVar("_Profile", StepProfile, PipelineProfile)


@dataclass(frozen=True, kw_only=True)
class Profiles:
    """Profiles that go into the folder beside a diagnosis.

    Attributes:
        pipeline: That of the input pipeline; None where there is none.
        step: That of the step; None where there is none.
    """

    pipeline: PipelineProfile | None = None
    why_no_pipeline: str = ""
    step: StepProfile | None = None
    why_no_step: str = ""


def profiles_s(budget_s: float) -> float:
    """Return the part of a diagnosis' budget that is kept for the profiles; 0 where it is too short for them."""
    share_s = min(_MOST_FOR_PROFILES_S, _SHARE_FOR_PROFILES * budget_s)
    return share_s if share_s >= _LEAST_FOR_PROFILES_S else 0.0


def make_profiles(problem: Problem, clock: Clock, *, ends_s: float) -> Profiles:
    """Profile the input pipeline, and then the step, as far as the time goes.

    Args:
        problem: The config and the command; runnable.
        ends_s: End of the time, on the clock's monotonic time.
    """

    def pipeline() -> PipelineProfile:
        half_s = clock.now_s() + (ends_s - clock.now_s()) / 2.0
        with open_trials(problem, clock, ends_s=half_s) as trials:
            return profile_pipeline(problem, trials)

    made, why_no_pipeline = _made(pipeline, clock, ends_s)
    step, why_no_step = _made(lambda: profile_trainer_step(problem, clock, ends_s=ends_s).profile, clock, ends_s)
    return Profiles(pipeline=made, why_no_pipeline=why_no_pipeline, step=step, why_no_step=why_no_step)


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


def keep(
    folder: Path, diagnosis: Diagnosis, document: Mapping[str, Any], problem: Problem | None, profiles: Profiles | None
) -> None:
    """Write everything that was found into the folder, each file in one step; those of an earlier diagnosis go.

    Args:
        problem: What it is about; None for the machine alone.
        profiles: Profiles that were made; None where no trials are.

    Raises:
        ConfigError: It cannot be written to.
    """
    profiles = profiles or Profiles()
    contents: dict[str, str | None] = {
        DIAGNOSIS: _json(document),
        MACHINE: _json({"format": FORMAT, **asdict(machine_facts()), **(problem.conditions if problem else {})}),
        STEP: _json({"format": FORMAT, **asdict(profiles.step)}) if profiles.step else None,
        PIPELINE: _json({"format": FORMAT, **asdict(profiles.pipeline)}) if profiles.pipeline else None,
    }
    contents[PICTURES], why_no_pictures = _pictures(diagnosis, profiles)
    written = [name for name in _FILES if contents.get(name)]
    contents[SUMMARY] = _summary(diagnosis, profiles, written, why_no_pictures)
    try:
        for name, content in contents.items():
            if content is None:
                (folder / name).unlink(missing_ok=True)
            else:
                replace_durably(folder / name, content.encode())
    except OSError as error:
        raise _unwritable(folder, error) from error


def _made(make: Callable[[], _Profile], clock: Clock, ends_s: float) -> tuple[_Profile | None, str]:
    if ends_s - clock.now_s() < _LEAST_FOR_ONE_S:
        return None, "too little of the budget was left"
    try:
        return make(), ""
    except AutotuneError as error:
        return None, error.message


def _pictures(diagnosis: Diagnosis, profiles: Profiles) -> tuple[str | None, str]:
    try:
        from autotune.report.html.pictures import diagnosis_pictures
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return None, "they need matplotlib: pip install '.[pictures]' in the clone of this repository"
    drawn = diagnosis_pictures(diagnosis.recommendations, profiles.step, profiles.pipeline)
    return drawn, "" if drawn else "nothing was measured that could be drawn"


def _summary(diagnosis: Diagnosis, profiles: Profiles, written: list[str], why_no_pictures: str) -> str:
    """Return the text on top: the diagnosis as on the screen, the profiles, and what else is in the folder."""
    console = file_console()
    with console.capture() as captured:
        _print_summary(console, diagnosis, profiles, written, why_no_pictures)
    return captured.get()


def _print_summary(
    console: Console, diagnosis: Diagnosis, profiles: Profiles, written: list[str], why_no_pictures: str
) -> None:
    print_diagnosis(console, diagnosis)
    console.print()
    if profiles.pipeline is not None:
        print_pipeline_profile(console, profiles.pipeline)
    if profiles.step is not None:
        console.print()
        print_step_profile(console, profiles.step)
    missing = {
        "profile of the pipeline": profiles.why_no_pipeline,
        "profile of the step": profiles.why_no_step,
        "pictures": why_no_pictures,
    }
    for name, why in missing.items():
        if why:
            console.print(f"No {name}: {why}.", soft_wrap=True, markup=False)
    console.print(f"\nIn this folder: {', '.join(written)}.", soft_wrap=True)


def _is_of_a_diagnosis(folder: Path) -> bool:
    try:
        document = json.loads(read_beginning(folder / DIAGNOSIS, 1 << 24))
    except ValueError:
        return False
    return isinstance(document, dict) and {"format", "verdict", "checks"} <= document.keys()


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write into {folder}: {error.strerror}", where="--out", remedy="Name another folder.")

"""File of a report: where it goes, and that nobody's own file is replaced."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from autotune.clock import Clock
from autotune.errors import AutotuneError, ConfigError
from autotune.files import read_beginning, replace_durably
from autotune.problem.problem import Problem
from autotune.report.html.contents import StudyContents

STDOUT = Path("-")

_MARK = "Written by autotune "
_NAME = "report.html"
_REMEDY = "Name another file."
_MOST_BYTES = 64 << 20


def report_path(problem: Problem, out: Path | None) -> Path:
    """Return the file of a report, where it was not named: in the folder of the config's state."""
    return out if out is not None else problem.state.path / f"{problem.config_path.stem}-{_NAME}"


def report_text(contents: StudyContents, clock: Clock) -> str:
    """Return the report of a study.

    Raises:
        AutotuneError: What draws the pictures is not installed.
    """
    _require_pictures()
    from autotune.report.html.study_page import study_page

    return study_page(contents, _now(clock))


def comparison_text(contents: Sequence[StudyContents], clock: Clock) -> str:
    """Return the comparison of several studies; raises as `report_text` does."""
    _require_pictures()
    from autotune.report.html.study_page import comparison_page

    return comparison_page(contents, _now(clock))


def require_report(path: Path) -> None:
    """Raise an error unless a report can be written there.

    Raises:
        AutotuneError: Something else is there, nothing can be written there, or what draws the pictures is not
            installed.
    """
    _require_pictures()
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


def _is_report(path: Path) -> bool:
    return path.is_file() and _MARK.encode() in read_beginning(path, _MOST_BYTES)


def _require_pictures() -> None:
    if find_spec("matplotlib") is None:
        raise AutotuneError(
            "the report's pictures need matplotlib, which is not installed",
            remedy="Run, in the clone that autotune was installed from: pip install '.[pictures]'",
        )


def _now(clock: Clock) -> str:
    return f"{clock.utc():%Y-%m-%d %H:%M} UTC"

"""Report of a study as one self-contained file."""

import html
import os
import re
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from autotune import __version__
from autotune.clock import format_duration
from autotune.errors import ConfigError
from autotune.files import read_beginning, replace_durably
from autotune.metrics import METRICS
from autotune.report import answer
from autotune.report.html.contents import StudyContents, quantile
from autotune.report.plain_text import plain, purpose_text, safe_text, value_text

_speed = METRICS["samples_per_s"].text
_FILTERS = {
    "duration": format_duration,
    "interval": lambda ratio: f"{ratio.low:.2f}-{ratio.high:.2f}",
    "percent": lambda share: "-" if share is None else f"{100 * share:.0f} %",
    "plain": plain,
    "purpose": purpose_text,
    "quantile_ms": lambda times, share: f"{1000 * quantile(times, share):.3g} ms",
    "speed": _speed,
    "speed_of": lambda side: _speed((side.metrics or {}).get("samples_per_s") if side else None),
    "value": value_text,
}


def report_text(study: StudyContents, written: datetime, path: Path | None = None) -> str:
    """Return a report; apart from ``written``, the same study gives the same text.

    Args:
        path: With ``.md``, the text is Markdown: verdict, changes, main figures and diff.
    """
    now = f"{written:%Y-%m-%d %H:%M} UTC"
    if path is None or path.suffix != ".md":
        return _page("study.html.jinja", now, study=study)
    diff = safe_text(study.diff or "").rstrip("\n")
    longest = max(map(len, re.findall(r"`+", diff)), default=0)
    fence = "`" * max(3, longest + 1)
    return _page("report.md.jinja", now, study=study, diff=_Verbatim(f"{fence}diff\n{diff}\n{fence}"))


def _page(template: str, written: str, **shown: Any) -> str:
    is_markdown = template.endswith(".md.jinja")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=not is_markdown,  # noqa: S701 -- in Markdown every value goes through `_in_a_cell`
        finalize=_in_a_cell if is_markdown else _safe,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(_FILTERS)
    environment.globals.update(answer=answer, plots=_plots())
    return environment.get_template(template).render(version=__version__, written=written, **shown) + "\n"


class _NoPlots:
    """Stands in for `pictures` without matplotlib: no plots, only tables."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_numbers: None


def _plots() -> Any:
    if find_spec("matplotlib") is None:
        return _NoPlots()
    from autotune.report.html import pictures

    return pictures


def _safe(shown: object) -> str:
    return shown if isinstance(shown, Markup) else safe_text(str(shown))


class _Verbatim(str):
    """Text that is not escaped in Markdown."""

    __slots__ = ()


def _in_a_cell(shown: object) -> object:
    """Escape a value for a Markdown table cell."""
    if isinstance(shown, _Verbatim):
        return shown
    return html.escape(plain(str(shown), 1000), quote=False).replace("|", "\\|")


# File of a report.


STDOUT = Path("-")
_REMEDY = "Name another file."


def require_report(path: Path) -> None:
    """Check that a report can be written.

    Raises:
        ConfigError: Another file is there, or the folder is not writable.
    """
    if path == STDOUT:
        raise ConfigError("--report needs a file", where="-", remedy="`autotune report -o -` prints it afterwards.")
    folder = next(one for one in path.absolute().parents if one.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ConfigError(f"the report cannot be written: {folder} is not writable", where=str(path), remedy=_REMEDY)
    if path.is_symlink() or (path.exists() and not _is_report(path)):
        raise ConfigError("this file is not a report and is not replaced", where=str(path), remedy=_REMEDY)


def write_report(path: Path, text: str) -> Path:
    """Write a report atomically; return its path. Raises as `require_report`."""
    require_report(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, text.encode())
    return path


def _is_report(path: Path) -> bool:
    return path.is_file() and b"Written by autotune " in read_beginning(path, 64 << 20)

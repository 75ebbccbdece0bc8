"""Page of a report: one file with all that it needs in it, made of the templates beside this module."""

import html
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from autotune import __version__
from autotune.clock import format_duration
from autotune.metrics import METRICS
from autotune.report import answer, race_notes
from autotune.report.html.contents import StudyContents, quantile
from autotune.report.plain_text import plain, safe_text, value_text

_speed = METRICS["samples_per_s"].text
_FILTERS = {
    "duration": format_duration,
    "interval": lambda ratio: f"{ratio.low:.2f} to {ratio.high:.2f}",
    "percent": lambda share: "-" if share is None else f"{100 * share:.0f} %",
    "plain": plain,
    "quantile_ms": lambda times, share: f"{1000 * quantile(times, share):.3g} ms",
    "speed": _speed,
    "speed_of": lambda side: _speed((side.metrics or {}).get("samples_per_s") if side else None),
    "value": value_text,
}


def study_page(contents: StudyContents, written: str) -> str:
    """Return the report of a study as HTML.

    Args:
        written: Time at which it is written, in words: all else is the same for the same study.
    """
    return _page("study.html.jinja", written, study=contents)


def study_markdown(contents: StudyContents, written: str) -> str:
    """Return the report of a study as Markdown: the verdict, its changes, a few figures, and the diff.

    Args:
        written: Time at which it is written, in words.
    """
    diff = safe_text(contents.diff or "").rstrip("\n")
    longest = max(map(len, re.findall(r"`+", diff)), default=0)
    fence = "`" * max(3, longest + 1)
    return _page("report.md.jinja", written, study=contents, diff=_Verbatim(f"{fence}diff\n{diff}\n{fence}"))


def comparison_page(studies: Sequence[StudyContents], written: str) -> str:
    """Return a page that sets studies side by side: of several configs, or of one on several machines."""
    gains = [(one.config, one.result.speedup) for one in studies if one.result and one.result.speedup]
    return _page("comparison.html.jinja", written, studies=studies, gains=gains)


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
    environment.globals.update(answer=answer, notes=race_notes, pictures=_pictures())
    return environment.get_template(template).render(version=__version__, written=written, **shown) + "\n"


class _NoPictures:
    """What draws nothing: there is no matplotlib, and the tables of the pictures are shown in their place."""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_numbers: None


def _pictures() -> Any:
    if find_spec("matplotlib") is None:
        return _NoPictures()
    from autotune.report.html import pictures

    return pictures


def _safe(shown: object) -> str:
    """Return what is put into a page without control characters and those that change the direction of others."""
    return shown if isinstance(shown, Markup) else safe_text(str(shown))


class _Verbatim(str):
    """Text that stays as it is in Markdown."""

    __slots__ = ()


def _in_a_cell(shown: object) -> object:
    """Return what is put into Markdown: on one line, without tags, and no end of a table's cell."""
    if isinstance(shown, _Verbatim):
        return shown
    return html.escape(plain(str(shown), 1000), quote=False).replace("|", "\\|")

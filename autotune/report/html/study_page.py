"""Page of a report: one file, with all that it needs in it."""

from collections.abc import Sequence
from importlib.resources import files

from autotune import __version__
from autotune.clock import format_duration
from autotune.metrics import METRICS
from autotune.records import SearchResult
from autotune.report.html import answer_sections, trial_sections
from autotune.report.html.contents import Child, Html, Section, StudyContents, element, prose, section, table
from autotune.report.html.pictures import draw_ratios
from autotune.report.plain_text import changes_text, plain

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # of this one file; nothing is loaded, and nothing runs


def study_page(contents: StudyContents, written: str) -> str:
    """Return the report of a study as HTML.

    Args:
        written: Time at which it is written, in words: all else is the same for the same study.
    """
    sentence = answer_sections.verdict_sentence(contents)
    top = [
        element("p", f"{contents.config}, study {contents.study}"),
        element("h1", sentence),
        *(
            element("p", prose(words), class_="state")
            for words in (contents.state, answer_sections.warning(contents))
            if words
        ),
        answer_sections.figures_of(contents.result, contents),
    ]
    sections = [one for one in _sections(contents, contents.result) if one is not None]
    return _page(f"{sentence} (autotune)", top, sections, written)


def _sections(contents: StudyContents, result: SearchResult | None) -> Sequence[Section | None]:
    if result is None:  # no trial gave numbers: what the trials said, and how to go on
        return [
            trial_sections.progress(contents),
            trial_sections.advice(contents),
            trial_sections.conditions(contents),
            trial_sections.repeat(contents),
        ]
    return [
        answer_sections.comparison(contents, result),
        trial_sections.progress(contents),
        answer_sections.knobs(contents, result),
        trial_sections.utilization(contents, result),
        trial_sections.step_times(contents),
        trial_sections.time_parts(contents, result),
        answer_sections.confirmation(contents, result),
        answer_sections.learning(contents, result),
        trial_sections.advice(contents),
        answer_sections.what_else(contents, result),
        answer_sections.break_even(contents, result),
        answer_sections.change_to_config(contents),
        trial_sections.conditions(contents),
        trial_sections.repeat(contents),
    ]


def comparison_page(studies: Sequence[StudyContents], written: str) -> str:
    """Return a page that sets studies side by side: of several configs, or of one on several machines."""
    rows: list[Sequence[Child]] = []
    for one in studies:
        result, shown = one.result, one.shown
        baseline = result.baseline.values if result and result.baseline else {}
        changes = {
            path: value for path, value in (shown.values if shown else {}).items() if baseline.get(path) != value
        }
        metrics = [
            (side.metrics or {}).get("samples_per_s") if side else None for side in (result and result.baseline, shown)
        ]
        speeds = [METRICS["samples_per_s"].text(speed) for speed in metrics]
        gain = result.speedup if result else None
        ratio = f"{gain.ratio:.2f}x ({gain.low:.2f} to {gain.high:.2f})" if gain else "-"
        took = format_duration(one.elapsed_s) if one.elapsed_s else "-"
        machine = next((text for name, text in one.conditions if name == "machine"), "-")
        verdict = result.verdict.value.replace("_", " ") if result else "no answer"
        rows.append([one.config, machine, verdict, changes_text(changes) if changes else "-", *speeds, ratio, took])
    drawn = [(one.config, one.result.speedup) for one in studies if one.result and one.result.speedup]
    head = ("config", "machine", "verdict", "what changes", "today", "best", "speed over today's", "took")
    sections = [
        Section(
            id="studies",
            title="Studies side by side",
            lead=["Speeds of different machines or configs are not to be compared with each other; their gains are."],
            picture=draw_ratios("studies", "Speed of the best over today's", drawn, "times today's config (dashed)")
            if drawn
            else None,
            more=[table("Studies", head, rows, words=4)],
        ),
        *(_of_study(place, one) for place, one in enumerate(studies, 1)),
    ]
    title = f"{len(studies)} studies"
    return _page(f"{title} (autotune)", [element("h1", title)], sections, written)


def _of_study(place: int, contents: StudyContents) -> Section:
    knobs = answer_sections.knobs(contents, contents.result).table if contents.result else None
    conditions = trial_sections.conditions(contents).table if contents.conditions else None
    return Section(
        id=f"study-{place}",
        title=plain(contents.config),
        lead=[
            answer_sections.verdict_sentence(contents),
            *(words for words in (contents.state, answer_sections.warning(contents)) if words),
        ],
        more=[one for one in (knobs, conditions) if one is not None],
    )


def _page(title: str, top: Sequence[Child], sections: Sequence[Section], written: str) -> str:
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    links = [element("li", element("a", one.title, href=f"#{one.id}")) for one in sections]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", Html(style)),
    )
    body = element(
        "body",
        element("header", list(top), element("nav", element("ul", links), aria_label="Sections")),
        element("main", [section(one) for one in sections]),
        element("footer", element("p", f"Written by autotune {__version__}, {written}.", class_="note")),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"

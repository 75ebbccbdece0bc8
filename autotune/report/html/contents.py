"""Contents of a report, gathered from a study and its folders before anything is written."""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.records import SearchResult, Side, TrialRecord, Verdict
from autotune.report.plain_text import safe_text


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Recommendation of a diagnosis.

    Attributes:
        gain: What it gains, in words; empty where that was not tried.
    """

    sentence: str
    values: str
    gain: str


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """Part of a step of today's config, as a profile found it.

    Attributes:
        mean_ms: Its mean time; None where it was not measured.
    """

    name: str
    mean_ms: float | None


@dataclass(frozen=True, kw_only=True)
class ConfirmingPair:
    """Complete pair of the confirmation.

    Attributes:
        today: Speed of today's config, in samples a second.
        is_left_out: Whether something had slowed down one of the two, so that the answer does without this pair.
    """

    today: float
    other: float
    is_left_out: bool = False


@dataclass(frozen=True, kw_only=True)
class StudyContents:
    """Contents of the report of one study.

    Attributes:
        result: Answer of the last search; None where no trial gave numbers.
        state: How the last search stands, as a sentence; empty where it came to its end.
        elapsed_s: Time that the last search took; None where that is not known.
        step_times_s: Times of steps of today's config, and of what it is compared with; empty where none are kept.
        diff: Change to the config; None where there is none to make.
        commands: Commands that go on from here, by what they do.
        conditions: What the numbers hold for: name and text of each.
        advice: Recommendations of a diagnosis; None where none is at hand.
        verdict_of_diagnosis: Its sentence; empty without one.
        step_parts: Parts of a step, from the profile in a diagnosis' folder; empty without one.
        machines: Name of each machine for people, by that in the record; no two have the same.
        remedies: What to do about each kind of failure, by the ending's name.
    """

    config: str
    study: str
    trials: Sequence[TrialRecord]
    result: SearchResult | None
    why_no_result: str = ""
    state: str = ""
    elapsed_s: float | None = None
    measures: str = ""
    pairs: Sequence[ConfirmingPair] = ()
    step_times_s: tuple[Sequence[float], Sequence[float]] = ((), ())
    diff: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    conditions: Sequence[tuple[str, str]] = ()
    advice: Sequence[Advice] | None = None
    verdict_of_diagnosis: str = ""
    step_parts: Sequence[StepPart] = ()
    machines: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> Side | None:
        """What stands beside today's config: the best, else what was tried and not found better."""
        if self.result is None:
            return None
        return self.result.candidate if self.result.verdict is Verdict.NO_CHANGE else self.result.best

    @property
    def name_of_shown(self) -> str:
        return "tried" if self.result is not None and self.result.verdict is Verdict.NO_CHANGE else "best"


Child = object
"""Text, `Html`, None (left out), or a sequence of those."""

_EMPTY_ELEMENTS = frozenset(("br", "hr", "meta", "link"))


class Html(str):
    """Markup that may stand in a page as it is."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """Section of a report.

    Attributes:
        lead: Sentences that say what is to be seen; of a section without data the reason.
        picture: SVG; None for none.
        table: The picture's numbers, or the section's only content; None for none.
        more: Further content, behind the table.
    """

    id: str
    title: str
    lead: Sequence[str] = ()
    picture: Html | None = None
    table: Html | None = None
    more: Sequence[Html] = ()


def text(words: str) -> Html:
    """Return text as markup: escaped, without control characters and those that change the direction of others."""
    return Html(html.escape(safe_text(words)))


def element(tag: str, /, *children: Child, **attributes: str) -> Html:
    """Return an element.

    Args:
        attributes: Its attributes; ``class_`` is ``class``, and other underscores are hyphens.
    """
    pairs = "".join(f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    inside = "".join(_flat(children))
    return Html(f"<{tag}{pairs}>" if tag in _EMPTY_ELEMENTS else f"<{tag}{pairs}>{inside}</{tag}>")


def prose(words: str) -> list[Html]:
    """Return a text as markup in which what stands between grave accents, as on a terminal, is code."""
    parts = words.split("`")
    if len(parts) % 2 == 0:
        return [text(words)]
    return [element("code", part) if place % 2 else text(part) for place, part in enumerate(parts)]


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Child]], *, words: int = 1) -> Html:
    """Return a table.

    Args:
        caption: What it holds, for those who do not see the page.
        words: Number of columns, from the left, that hold words; the others hold numbers, and stand to the right.
    """

    def kind(place: int) -> str:
        return "words" if place < words else "number"

    def heading(place: int, title: str) -> Html:
        return element("th", title, scope="col", class_=kind(place))

    def cell(place: int, child: Child) -> Html:
        return element("td", child, class_=kind(place), data_label=head[place])

    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", [heading(place, one) for place, one in enumerate(head)])),
            element("tbody", [element("tr", [cell(place, one) for place, one in enumerate(row)]) for row in rows]),
        ),
        class_="table wide" if len(head) > 3 else "table",  # columns that fit on a telephone
    )


def section(content: Section) -> Html:
    """Return a section; a table below a picture is folded away on the screen."""
    return element(
        "section",
        element("h2", content.title),
        [element("p", prose(sentence)) for sentence in content.lead],
        pictured(content.picture, content.table),
        list(content.more),
        id=content.id,
    )


def pictured(picture: Html | None, numbers: Html | None) -> Html:
    """Return a picture, and below it the table of its numbers, folded away on the screen; either may be missing."""
    if picture is None or numbers is None:
        return Html(element("figure", picture) if picture is not None else numbers or "")
    details = element("details", element("summary", "The numbers of this picture"), numbers)
    return Html(element("figure", picture) + details)


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield child
        elif isinstance(child, str):
            yield text(child)
        elif isinstance(child, Iterable):
            yield from _flat(child)
        else:
            yield text(str(child))

"""Markup of a report: elements whose text is escaped, tables, and sections with a picture and its numbers."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.report.safe_text import safe_text

Child = object
"""Text, `Html`, None (left out), or a sequence of those."""

_NARROW = 3  # columns that fit on a telephone
_EMPTY_ELEMENTS = frozenset(("br", "hr", "meta", "link"))


class Html(str):
    """Markup that may stand in a page as it is."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """Section of a report.

    Attributes:
        id: Anchor.
        title: Heading.
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
        tag: Its name.
        children: Its content.
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
        head: Headings of the columns.
        rows: Its rows.
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
        class_="table wide" if len(head) > _NARROW else "table",
    )


def section(content: Section) -> Html:
    """Return a section; a table below a picture is folded away on the screen."""
    shown: Child = content.table
    if content.picture is not None and content.table is not None:
        shown = element("details", element("summary", "The numbers of this picture"), content.table)
    return element(
        "section",
        element("h2", content.title),
        [element("p", prose(sentence)) for sentence in content.lead],
        element("figure", content.picture) if content.picture is not None else None,
        shown,
        list(content.more),
        id=content.id,
    )


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

"""Validity of a written report: it parses, holds nothing that runs or loads, and every picture has its name."""

from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib

HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 500_000


def checked(page: str | Path) -> Element:
    """Return the parsed page, in which nothing is wrong."""
    text = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    assert len(text.encode()) <= MOST_BYTES
    document: Element = html5lib.HTMLParser(strict=True).parse(text)
    names = {element.tag for element in document.iter() if isinstance(element.tag, str)}
    assert not names & {f"{HTML}{name}" for name in ("script", "link", "iframe", "img", "object", "form")}
    attributes = [(key, value) for element in document.iter() for key, value in element.attrib.items()]
    assert not [key for key, _ in attributes if str(key).startswith("on")]
    linked = [value for key, value in attributes if str(key).endswith(("href", "src"))]
    assert all(value.startswith("#") for value in linked)
    assert "url(http" not in text
    ids = [value for key, value in attributes if key == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in linked} <= set(ids)
    for picture in document.iter(f"{SVG}svg"):
        assert picture.attrib["role"] == "img"
        assert picture.attrib["aria-label"]
    return document


def words(element: Element) -> str:
    """Return the text of an element, as one line."""
    return " ".join(" ".join(element.itertext()).split())


def part(document: Element, id: str) -> str:
    """Return the text of the section of that name."""
    (found,) = [one for one in document.iter(f"{HTML}section") if one.attrib["id"] == id]
    return words(found)


def pictures(document: Element) -> dict[str, int]:
    """Return how many shapes each picture has, by its name."""
    return {picture.attrib["aria-label"]: len(list(picture.iter())) for picture in document.iter(f"{SVG}svg")}

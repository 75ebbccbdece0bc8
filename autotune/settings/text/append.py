"""Insertion of a section at the end of a config, all other characters unchanged."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import ConfigError
from autotune.settings.text.cut import differs_by_key
from autotune.settings.text.document import Document
from autotune.settings.text.parsers import document_end

_TEMPLATE_NAME = re.compile(r".*\.(?:j2|jinja2?|tmpl|tpl|template|in|erb|mustache)", re.IGNORECASE)
_REMEDY = "Give it a file of its own beside the config: autotune init --separate ..."


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """Result of an insertion into a text.

    Attributes:
        text: The new text.
        inserted: The inserted characters.
    """

    text: str
    inserted: str


def with_section(document: Document, key: str, lines: Sequence[str]) -> Insertion:
    """Add a section at the end of a config.

    It starts on a line of its own behind a blank one, indented like the other keys, with the file's own line ends; a
    file without a final newline ends without one again. Both parsers read the result, and must see one key more and
    nothing else changed.

    Args:
        document: The config; without such a key.
        key: Its name.
        lines: The lines of the section, the first with the key; without line ends.

    Raises:
        ConfigError: It is a template, or another key cannot be added at the end of it.
    """
    if _TEMPLATE_NAME.fullmatch(document.name) or re.search(r"#.*\{%", document.text):
        raise ConfigError(
            "this looks like a template, and what is made of it is not known",
            where=document.name,
            remedy="Fill the template in first, and give the config that comes out.",
        )
    if document.root.flow_style:
        raise ConfigError(
            "the config is written in braces, {key: value}, and lines cannot be added to that",
            where=document.name,
            remedy=_REMEDY,
        )
    newline = _newline(document.text)
    indent = " " * int(document.root.value[0][0].start_mark.column) if document.root.value else ""
    block = newline.join(f"{indent}{line}" for line in lines)
    why = "the new lines would change the meaning of others"
    # A block scalar at the end may take a blank line as its own.
    for blank in (newline, ""):
        new = _insert(document, block, blank, newline)
        try:
            longer = Document.parse(new.text, document.name)
            if key in longer and differs_by_key(longer, document, key):
                return new
        except ConfigError as error:
            why = error.message
    raise ConfigError(f"the {key}: section cannot be added at its end: {why}", where=document.name, remedy=_REMEDY)


def _insert(document: Document, block: str, blank: str, newline: str) -> Insertion:
    old = document.text
    end = document_end(old[document.shift :])
    if end is not None:  # `...` ends the document: the section has to be in front of it
        at, inserted = document.shift + end, f"{blank}{block}{newline}"
    elif old.endswith(("\n", "\r")):
        at, inserted = len(old), f"{blank}{block}{newline}"
    else:
        at, inserted = len(old), f"{newline}{blank}{block}"
    return Insertion(text=f"{old[:at]}{inserted}{old[at:]}", inserted=inserted)


def _newline(text: str) -> str:
    ends = re.findall(r"\r\n|\n|\r", text)
    return ends[-1] if ends else "\n"

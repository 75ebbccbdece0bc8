"""Removal of one top-level key from a config, all other lines unchanged."""

import copy
import re
from typing import Any

from autotune.errors import ConfigError
from autotune.settings.text.document import Document
from autotune.settings.text.parsers import content_end, outline

_REMEDY = "Move the section into a file of its own: <name of the config>.autotune.yaml, beside it."
_NEWLINE = "\n"
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?\r?\n?")


def without_key(document: Document, key: str) -> Document:
    """Return the config without one top-level key: the lines of the key and its value go, comments around them stay.

    Returns:
        The document itself if it has no such key.

    Raises:
        ConfigError: The key cannot be cut out by whole lines, or other values refer to something in it.
    """
    entry = document.entry(key)
    if entry is None:
        return document
    where = f"{document.name}:{document.line((key,))}"
    body = document.text[document.shift :]
    start = int(entry[0].start_mark.index)
    line_start = body.rfind("\n", 0, start) + 1
    later = [int(k.start_mark.index) for k, _ in document.root.value if k.start_mark.index > start]
    end = content_end(body, start, min(later, default=None))
    rest = _REST_OF_LINE.match(body, 0 if end == 0 else end)
    line_end = end if body[end - 1] == "\n" else rest.end() if rest else end
    whole_lines = not body[line_start:start].strip() and (line_end == len(body) or body[line_end - 1] == "\n")
    if document.root.flow_style or not whole_lines:
        raise ConfigError(
            f"the {key}: section shares its lines with other keys, so it cannot be left out of the trials' copies",
            where=where,
            remedy=_REMEDY,
        )
    text = document.text[: document.shift] + body[:line_start] + body[line_end:]
    if len(document.root.value) == 1:
        # Nothing else is in it: the trials get a config without keys, since an empty file is none.
        text = f"{text}{'' if text[document.shift :][-1:] in ('', _NEWLINE) else _NEWLINE}{{}}{_NEWLINE}"
    try:
        shorter = Document.parse(text, document.name)
        same = differs_by_key(document, shorter, key)
    except ConfigError as error:
        raise ConfigError(
            f"without the {key}: section the config cannot be read: {error.message}", where=where, remedy=_REMEDY
        ) from error
    if not same:
        raise ConfigError(f"leaving the {key}: section out would change other keys", where=where, remedy=_REMEDY)
    return shorter


def differs_by_key(longer: Document, shorter: Document, key: str) -> bool:
    """Return whether both parsers see the same in two configs except for one top-level key that only the first one has.

    Raises:
        ConfigError: A parser cannot read one of them.
    """
    return all(
        outline(after) == outline(_pruned(before, key))
        for before, after in ((longer.root, shorter.root), (longer.root_1_2, shorter.root_1_2))
    )


def _pruned(root: Any, key: str) -> Any:
    shorter = copy.copy(root)
    shorter.value = [(k, v) for k, v in root.value if k.value != key]
    return shorter

"""Summary of the applied options, a few lines for the start of a training."""

import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

_WIDTH = 120


def summary(**sections: Any) -> str:
    """Return one paragraph for each section: its name, then each option with its value.

    Args:
        **sections: Records of `autotune.tf.options`, or options by name, e.g. `autotune.tf.dataset_options.applied`.
    """
    indent = max(map(len, sections), default=0) + 2
    return "\n".join(
        textwrap.fill(
            ", ".join(f"{option} {_text(value)}" for option, value in _items(section)),
            width=_WIDTH,
            initial_indent=name.ljust(indent),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, section in sections.items()
    )


def _items(section: Any) -> list[tuple[str, Any]]:
    if is_dataclass(section):
        return [(item.name, getattr(section, item.name)) for item in fields(section)]
    if isinstance(section, Mapping):
        return list(section.items())
    raise TypeError(f"expected a record of options or a mapping, got {section!r}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value.value if isinstance(value, Enum) else value)

"""Page of the ``autotune:`` section: its keys, as the schema has them."""

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pydantic

from autotune.settings.schema import SectionKeys, TrialLimits
from scripts.documentation.docstrings import described
from scripts.documentation.tables import code, table


def section_page() -> str:
    """Return the page."""
    return "\n\n".join(
        (
            "# The `autotune:` section",
            "The keys of the section, all of them optional. [The config](../config.md#the-autotune-section) says what "
            "they are for.",
            table(("key", "type", "default", "meaning"), [*_rows(SectionKeys), *_rows(TrialLimits, "trial.")]),
        )
    )


def _rows(model: type[pydantic.BaseModel], prefix: str = "") -> list[tuple[str, str, str, str]]:
    meanings = described(model)
    return [
        (code(prefix + name), _type(field.annotation), _default(field), meanings[name])
        for name, field in model.model_fields.items()
    ]


def _default(field: Any) -> str:
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, pydantic.BaseModel):
        return "see below"
    return code(
        str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def _type(kind: Any) -> str:
    """Return a type in the words of YAML."""
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(code(str(one)) for one in get_args(kind))
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in get_args(kind) if one is not NoneType)
    if origin is list:
        return "list of texts"
    if origin is dict:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return "mapping"
    return {str: "text", bool: "`true` or `false`", float: "number", int: "whole number"}.get(kind, "any value")

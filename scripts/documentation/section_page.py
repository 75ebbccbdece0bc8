"""Reference page of the ``autotune:`` section: its keys, from the schema."""

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from autotune.config.schema import SectionKeys, TrialLimits
from scripts.documentation.docstrings import described
from scripts.documentation.tables import code, table


def section_page() -> str:
    """Return the page."""
    return "\n\n".join(
        (
            "# The `autotune:` section",
            "Look up a key of the section. More on the [command](../config.md#the-command), its "
            "[folder](../config.md#the-folder), [further files](../config.md#several-files), the "
            "[objective](../how-it-decides.md#the-score), the [batch](../how-it-decides.md#the-batch-limit), "
            "[storages](../storages.md), and [values in the code](../code.md).",
            table(("key", "type", "default", "meaning"), [*_rows(SectionKeys), *_rows(TrialLimits, "trial.")]),
        )
    )


def _rows(model: type[msgspec.Struct], prefix: str = "") -> list[tuple[str, str, str, str]]:
    meanings = described(model)
    return [
        (code(prefix + field.name), _type(field.type), _default(field), meanings[field.name])
        for field in msgspec.structs.fields(model)
    ]


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is None:
        return "none"
    if isinstance(value, msgspec.Struct):
        return "see below"
    return code(
        str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def _type(kind: Any) -> str:
    """Return the name of a type in YAML."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _type(get_args(kind)[0])
    if origin is Literal:
        return " or ".join(code(str(one)) for one in get_args(kind))
    if origin in (Union, UnionType):
        return " or ".join(_type(one) for one in get_args(kind) if one is not NoneType)
    if origin is list:
        return "list of strings"
    if origin is dict:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "mapping"
    return {str: "string", bool: "boolean", float: "number", int: "integer"}.get(kind, "any value")

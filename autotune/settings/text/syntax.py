"""Syntax of a config, told by the suffix of its name."""

import os
from enum import Enum

from autotune.errors import ConfigError


class Syntax(Enum):
    """Syntax that a config is written in; its value is its name."""

    YAML = "YAML"
    JSON = "JSON"
    TOML = "TOML"

    @property
    def suffix(self) -> str:
        """Suffix of the names of a trial's own copies."""
        return f".{self.value.lower()}"


def syntax_of(name: str) -> Syntax:
    """Return the syntax of a file by its name; YAML unless the suffix says otherwise.

    Raises:
        ConfigError: It is one that cannot be edited.
    """
    suffix = os.path.splitext(name)[1].lower()
    if suffix == ".gin":
        raise ConfigError(
            "gin configs are not supported",
            where=name,
            remedy="Type what is to be tuned on the command line (--gin_bindings='train.batch_size=16'), or read it\n"
            "from a YAML file or from flags of your own; for flags: autotune init --from-flags.",
        )
    return {".json": Syntax.JSON, ".toml": Syntax.TOML}.get(suffix, Syntax.YAML)

"""autotune: finds the config values that keep a GPU busy and training fast, and writes them into the YAML.

The command line is the main door (``autotune --help``). Importing this package does nothing: the names below
are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "AutotuneError",
    "CannotEditYaml",
    "ConfigError",
    "StudyError",
    "__version__",
    "edit_yaml",
]

if TYPE_CHECKING:
    from autotune.errors import AutotuneError, CannotEditYaml, ConfigError, StudyError
    from autotune.settings.text.splice import edit_yaml

_HOMES = {
    "AutotuneError": "autotune.errors",
    "CannotEditYaml": "autotune.errors",
    "ConfigError": "autotune.errors",
    "StudyError": "autotune.errors",
    "edit_yaml": "autotune.settings.text.splice",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

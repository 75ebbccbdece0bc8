"""Search for config values that make deep-learning training fast.

Names load on first use, so that importing the package has no side effects.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "AutotuneError",
    "CannotEditYaml",
    "CommandError",
    "ConfigError",
    "ConfigSampler",
    "Ending",
    "GpuError",
    "Measurement",
    "Ratio",
    "SearchResult",
    "Side",
    "Study",
    "StudyError",
    "TrialError",
    "TrialRecord",
    "Verdict",
    "__version__",
    "edit_yaml",
    "tune",
]

if TYPE_CHECKING:
    from autotune.config.splice import edit_yaml
    from autotune.errors import (
        AutotuneError,
        CannotEditYaml,
        CommandError,
        ConfigError,
        GpuError,
        StudyError,
        TrialError,
    )
    from autotune.records import Ending, Measurement, Ratio, SearchResult, Side, TrialRecord, Verdict
    from autotune.sampler.config_sampler import ConfigSampler
    from autotune.search.answer import Study
    from autotune.search.open import tune

_ERRORS = ("AutotuneError", "CannotEditYaml", "CommandError", "ConfigError", "GpuError", "StudyError", "TrialError")
_RECORDS = ("Ending", "Measurement", "Ratio", "SearchResult", "Side", "TrialRecord", "Verdict")
_HOMES = {
    "ConfigSampler": "autotune.sampler.config_sampler",
    "Study": "autotune.search.answer",
    "edit_yaml": "autotune.config.splice",
    "tune": "autotune.search.open",
    **dict.fromkeys(_ERRORS, "autotune.errors"),
    **dict.fromkeys(_RECORDS, "autotune.records"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

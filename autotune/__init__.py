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

_HOMES = {
    name: module
    for module, names in {
        "autotune.config.splice": ("edit_yaml",),
        "autotune.errors": (
            "AutotuneError",
            "CannotEditYaml",
            "CommandError",
            "ConfigError",
            "GpuError",
            "StudyError",
            "TrialError",
        ),
        "autotune.records": ("Ending", "Measurement", "Ratio", "SearchResult", "Side", "TrialRecord", "Verdict"),
        "autotune.sampler.config_sampler": ("ConfigSampler",),
        "autotune.search.answer": ("Study",),
        "autotune.search.open": ("tune",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

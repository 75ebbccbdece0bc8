"""Tables of a diagnosis from ``tables.toml``: checks, rules about sources, slow values, GPU models."""

import re
from pathlib import Path
from typing import Literal

import msgspec

from autotune.diagnose.findings import Limit, Severity
from autotune.records import Gpu


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Row of a table."""


class Check(_Row, frozen=True):
    """Check of a diagnosis.

    Attributes:
        threshold: Limit of an issue.
    """

    id: str
    question: str
    how: str
    threshold: str


class Rule(_Row, frozen=True):
    """Rule about sources.

    Attributes:
        find: Function in `code_checks` that finds the places.
        calls: Full names of the functions whose calls match, without ``find``.
    """

    id: str
    sentence: str
    remedy: str
    limit: Limit
    severity: Severity = Severity.WARNING
    find: str = ""
    calls: tuple[str, ...] = ()
    where: Literal["anywhere", "always", "each step"] = "anywhere"
    needs: tuple[Literal["cores", "gpu"], ...] = ()


class Setting(_Row, frozen=True):
    """Value of known knobs that is slow on any machine; ``{key}`` stands for the key and its value."""

    kinds: tuple[str, ...]
    value: bool | int
    write: bool | int
    sentence: str
    limit: Limit
    severity: Severity = Severity.WARNING
    needs_gpu: bool = False


class PrecisionNames(_Row, frozen=True):
    """Spellings of 16-bit types in configs, and the full precision that replaces each."""

    float16: tuple[str | int, ...]
    bfloat16: tuple[str, ...]
    full: dict[str, str]


class GpuModels(_Row, frozen=True):
    """GPU models (a regular expression) with the 16-bit types of their tensor cores."""

    models: str
    types: frozenset[Literal["bfloat16", "float16"]]
    memory_gb: dict[str, int]


class _Tables(_Row, frozen=True):
    static: tuple[Check, ...]
    measured: tuple[Check, ...]
    rule: tuple[Rule, ...]
    setting: tuple[Setting, ...]
    precision: PrecisionNames
    gpu: tuple[GpuModels, ...]


_tables = msgspec.toml.decode(Path(__file__).with_name("tables.toml").read_bytes(), type=_Tables)
STATIC_CHECKS, MEASURED_CHECKS = _tables.static, _tables.measured
CHECKS = (*STATIC_CHECKS, *MEASURED_CHECKS)
"""All checks, in the order of display."""

RULES, SETTINGS, PRECISION = _tables.rule, _tables.setting, _tables.precision


def types_of(gpu: Gpu) -> frozenset[str] | None:
    """Return the 16-bit types that a GPU computes in; None for an unknown model."""
    return next((row.types for row in _tables.gpu if re.search(row.models, gpu.name)), None)


def usual_gpus() -> list[Gpu]:
    """Return common GPU models, the most memory first."""
    found = [
        Gpu(name=name, uuid="", memory_bytes=gb * 10**9) for row in _tables.gpu for name, gb in row.memory_gb.items()
    ]
    return sorted(found, key=lambda gpu: -(gpu.memory_bytes or 0))


def starting_batch(gpu: Gpu) -> int | None:
    """Return an initial batch size for a GPU; None if its memory is unknown."""
    samples = int((gpu.memory_bytes or 0) / (1 << 30) * 1.5)  # samples for each GiB
    return 1 << (samples.bit_length() - 1) if samples else None

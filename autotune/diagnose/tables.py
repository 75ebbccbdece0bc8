"""Tables of a diagnosis, read from ``tables.toml``: the checks, the rules about sources, the values that are slow."""

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
        id: Stable id, for scripts.
        question: What it answers.
        how: How that is measured, or read.
        threshold: From where on it is an issue, and the source of that number.
    """

    id: str
    question: str
    how: str
    threshold: str


class Rule(_Row, frozen=True):
    """Rule about sources.

    Attributes:
        find: Finder of `code_checks` that finds what it is about; empty where ``calls`` say it.
        calls: Whole names of functions whose calls it is about.
        limit: Part of the training that it slows down.
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
    """Value of known knobs that is slow on any machine.

    Attributes:
        kinds: Rows of `space.catalog` that it is about.
        write: Value to write in its place.
        needs_gpu: Whether it is slow only where there is a GPU.
        sentence: What is wrong, with the key and its value for ``{key}``.
    """

    kinds: tuple[str, ...]
    value: bool | int
    write: bool | int
    sentence: str
    limit: Limit
    severity: Severity = Severity.WARNING
    needs_gpu: bool = False


class PrecisionNames(_Row, frozen=True):
    """Spellings of 16-bit types in configs, and of full precision in their place."""

    float16: tuple[str | int, ...]
    bfloat16: tuple[str, ...]
    full: dict[str, str]


class GpuModels(_Row, frozen=True):
    """GPUs by a pattern of their names, and the 16-bit types that their tensor cores compute in.

    Attributes:
        memory_gb: Memory of usual models, by their names.
    """

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
"""The checks, in the order in which they are shown."""

RULES, SETTINGS, PRECISION = _tables.rule, _tables.setting, _tables.precision


def types_of(gpu: Gpu) -> frozenset[str] | None:
    """Return the 16-bit types that a GPU computes in; None for a model that is not known."""
    return next((row.types for row in _tables.gpu if re.search(row.models, gpu.name)), None)


def usual_gpus() -> list[Gpu]:
    """Return usual models of GPUs, those with the most memory first."""
    found = [
        Gpu(name=name, uuid="", memory_bytes=gb * 10**9) for row in _tables.gpu for name, gb in row.memory_gb.items()
    ]
    return sorted(found, key=lambda gpu: -(gpu.memory_bytes or 0))


def starting_batch(gpu: Gpu) -> int | None:
    """Return a batch to begin with on a GPU; None where the driver does not say how much memory it has."""
    samples = int((gpu.memory_bytes or 0) / (1 << 30) * 1.5)  # samples for each GiB
    return 1 << (samples.bit_length() - 1) if samples else None

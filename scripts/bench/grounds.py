"""Grounds of a benchmark of searches: measured tables and the simulator, in pieces that resume."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """Searches of a benchmark, and the way they are made.

    Attributes:
        folder: Folder of the tables; None for the simulator alone.
        seeds: Seeds of the searches on tables.
        scenarios: Numbers of the scenarios of the simulator.
        jobs: Number of processes.
        out: Folder of the results; an existing one is gone on with.
    """

    folder: Path | None = None
    seeds: Sequence[int]
    scenarios: Sequence[int]
    jobs: int = 1
    out: Path

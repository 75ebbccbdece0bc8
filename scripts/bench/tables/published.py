"""Tables made of measurements that others have published, beside those that a search was developed on.

They are read from clones of the public repositories that hold them; nothing of them is kept here.
"""

import argparse
import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import ConfigError
from scripts.bench.results import Commands
from scripts.bench.tables.table import SUFFIX

_Row = tuple[dict[str, str], float]  # options, throughput


@dataclass(frozen=True, kw_only=True)
class Source:
    """Published measurement.

    Attributes:
        repository: Public repository that holds it, owner and name.
        file: Path in it: a cache of Kernel Tuner (JSON), or a CSV file.
        measure: Column of the measure; of a cache, the time.
        is_time: Whether less of that is better.
        one_of: Columns of which one is 1 and the others are 0: one option with their names as values.
        unused: Columns that are other measures.
    """

    name: str
    repository: str
    file: str
    measure: str = "time"
    is_time: bool = True
    one_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


_KERNELS = "AutoTuningAssociation/benchmark_hub"
SOURCES = (
    Source(name="conv-A4000", repository=_KERNELS, file="cachefiles/convolution_milo/A4000.json.gz"),
    Source(name="conv-W6600", repository=_KERNELS, file="cachefiles/convolution_milo/W6600.json.gz"),
    Source(name="dedispersion-A100", repository=_KERNELS, file="cachefiles/dedispersion_milo/A100.json.gz"),
    Source(name="pnpoly-2080Ti", repository=_KERNELS, file="currently_unused/cachefiles/pnpoly/RTX_2080_Ti.json.gz"),
    Source(
        name="dune",
        repository="DeepPerf/DeepPerf",
        file="Data/Dune_AllNumeric.csv",
        measure="performance",
        one_of={
            "solver": ("CGSolver", "BiCGSTABSolver", "LoopSolver", "GradientSolver"),
            "preconditioner": ("SeqSOR", "SeqGS"),
        },
    ),
    Source(
        name="hsmgp",
        repository="DeepPerf/DeepPerf",
        file="Data/hsmgp_AllNumeric.csv",
        measure="performance",
        one_of={
            "smoother": (
                "Smoother_GS", "Smoother_JAC", "Smoother_GSRB", "Smoother_GSRBAC", "Smoother_GSACBE", "Smoother_GSAC",
            ),
            "coarse_grid": ("CGS_IP_CG", "CGS_IP_AMG", "CGS_RED_AMG"),
        },
    ),
    Source(
        name="storm-J",
        repository="FlashRepo/Flash-MultiConfig",
        file="Data/SS-J.csv",
        measure="<$throughput",
        is_time=False,
        unused=("<$latency",),
    ),
    Source(
        name="storm-K",
        repository="FlashRepo/Flash-MultiConfig",
        file="Data/SS-K.csv",
        measure="<$throughput",
        is_time=False,
        unused=("<$latency",),
    ),
)  # fmt: skip


def table_of(source: Source, clones: Path) -> str:
    """Return the text of a table; see `scripts.bench.tables.table` for its format.

    Args:
        clones: Folder of the clones, each by the name of its repository.

    Raises:
        ConfigError: The file is not there.
    """
    path = clones / source.repository.partition("/")[2] / source.file
    if not path.is_file():
        raise ConfigError("the published file is not there", where=str(path), remedy=f"Clone {source.repository}.")
    rows = list(_of_cache(path) if ".json" in path.name else _of_csv(path, source))
    names = [name for name in rows[0][0] if len({options[name] for options, _ in rows}) > 1]
    best: dict[tuple[str, ...], float] = {}
    for options, throughput in rows:  # some were measured more than once
        key = tuple(options[name] for name in names)
        best[key] = max(throughput, best.get(key, 0.0))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*(name if _is_number(rows, name) else f"{name}:categorical" for name in names), "throughput"])
    writer.writerows([*key, f"{throughput:.6g}"] for key, throughput in best.items())
    return file.getvalue()


def _of_cache(path: Path) -> Iterator[_Row]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    for entry in document["cache"].values():
        if isinstance(entry["time"], int | float):  # else the name of what failed
            yield {name: str(entry[name]) for name in document["tune_params_keys"]}, 1000.0 / entry["time"]


def _of_csv(path: Path, source: Source) -> Iterator[_Row]:
    grouped = {name for names in source.one_of.values() for name in names}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            measure = float(row[source.measure])
            options = {name: _chosen(row, names) for name, names in source.one_of.items()}
            left_out = {*grouped, source.measure, *source.unused}
            options |= {name.lstrip("$"): value for name, value in row.items() if name not in left_out}
            yield options, 1000.0 / measure if source.is_time else measure


def _chosen(row: dict[str, str], names: Sequence[str]) -> str:
    (chosen,) = (name for name in names if float(row[name]) == 1.0)
    return chosen


def _is_number(rows: Sequence[_Row], name: str) -> bool:
    try:
        return all(float(options[name]) is not None for options, _ in rows)
    except ValueError:
        return False


def add_published(commands: Commands) -> None:
    """Add the parser of ``published``."""
    parser = commands.add_parser("published", help="make tables of measurements that others have published")
    repositories = ", ".join(dict.fromkeys(source.repository for source in SOURCES))
    parser.add_argument("clones", type=Path, metavar="CLONES", help=f"folder with clones of {repositories}")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder for the tables; `tables DIR` compares on them")
    parser.set_defaults(run=_published)


def _published(arguments: argparse.Namespace) -> None:
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for source in SOURCES:
        text = table_of(source, arguments.clones)
        (arguments.folder / f"{source.name}{SUFFIX}").write_bytes(gzip.compress(text.encode(), mtime=0))

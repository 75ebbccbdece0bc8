"""Tables of made-up systems whose best combinations stand beside such that do not run, as of GPU kernels and compilers.

Speed grows with what a combination uses of a resource (registers, memory), until there is not enough: nothing beyond
that runs. Some pairs of values exclude each other as well, more often those of good combinations. So 30 to 70 % of all
combinations fail, and most neighbours of the best one do.
"""

import argparse
import csv
import gzip
import io
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.bench.results import Commands
from scripts.bench.tables.table import SUFFIX

_Array = NDArray[np.float64]

_FAILING = (0.3, 0.7)


def make_table(seed: int) -> str:
    """Return the text of one table; see `scripts.bench.tables.table` for its format."""
    rng = np.random.default_rng((seed, 20))
    while True:
        sizes = rng.integers(2, 7, rng.integers(5, 8))
        if 600 <= np.prod(sizes) <= 20_000:
            break
    is_ordered = rng.random(len(sizes)) < 0.7
    points = np.array(list(product(*map(range, sizes))))
    uses, speeds = np.zeros(len(points)), np.zeros(len(points))
    for knob, size in enumerate(sizes):
        places = np.linspace(0.0, 1.0, size)
        effects = rng.exponential(0.3) * (places if is_ordered[knob] else rng.random(size))
        speeds += effects[points[:, knob]]
        # what is fast uses more; some of it does not pay, and some knobs use nothing
        demand = effects * rng.uniform(0.5, 1.5) + (places if is_ordered[knob] else 0.0) * rng.exponential(0.1)
        uses += demand[points[:, knob]] * (rng.random() < 0.8)
    for _ in range(len(sizes)):  # pairs whose effects are not those of each alone
        first, second = rng.choice(len(sizes), 2, replace=False)
        speeds += rng.normal(0.0, 0.12, (sizes[first], sizes[second]))[points[:, first], points[:, second]]
    speeds += rng.normal(0.0, 0.03, len(points))
    share = rng.uniform(*_FAILING)
    runs = uses <= np.quantile(uses, 1.0 - 0.8 * share)
    while np.mean(runs) > 1.0 - share:
        near = points[rng.choice(np.argsort(-np.where(runs, speeds, -np.inf))[: len(points) // 20])]
        first, second = rng.choice(len(sizes), 2, replace=False)
        excluded = (points[:, first] == near[first]) & (points[:, second] == near[second])
        if np.mean(runs & ~excluded) < 1.0 - _FAILING[1]:
            break
        runs &= ~excluded
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [f"option_{knob}{'' if is_ordered[knob] else ':categorical'}" for knob in range(len(sizes))]
    writer.writerow([*names, "throughput"])
    for point, speed in zip(points[runs], speeds[runs], strict=True):
        cells = [place if ordered else f"v{place}" for place, ordered in zip(point, is_ordered, strict=True)]
        writer.writerow([*cells, f"{100.0 * np.exp(speed):.4f}"])
    return file.getvalue()


def add_cliffs(commands: Commands) -> None:
    """Add the parser of ``cliffs``."""
    parser = commands.add_parser("cliffs", help="make tables whose best combinations stand beside failing ones")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder for the tables; `tables DIR` compares on them")
    parser.add_argument("--count", type=int, default=20, help="default: 20")
    parser.set_defaults(run=_cliffs)


def _cliffs(arguments: argparse.Namespace) -> None:
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.count):
        path = arguments.folder / f"cliffs-{seed:02}{SUFFIX}"
        path.write_bytes(gzip.compress(make_table(seed).encode(), mtime=0))

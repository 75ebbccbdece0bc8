"""Tables that are made: of what others have published, and with failures beside the best combinations."""

import gzip
import json
from pathlib import Path

import pytest

from autotune.errors import ConfigError
from scripts.bench.tables.cliffs import make_table
from scripts.bench.tables.published import Source, table_of
from scripts.bench.tables.table import read_table


def test_a_kernel_tuners_cache_becomes_a_table(tmp_path: Path) -> None:
    """Times become throughputs, what failed is missing, and an option of one value is none."""
    entries = [{"x": 1, "y": 0, "time": 2.0}, {"x": 2, "y": 0, "time": 4.0}, {"x": 4, "y": 0, "time": "RuntimeError"}]
    document = {"tune_params_keys": ["x", "y"], "cache": {str(entry["x"]): entry for entry in entries}}
    source = Source(name="kernel", repository="owner/clone", file="A100.json.gz")
    with pytest.raises(ConfigError, match="not there"):
        table_of(source, tmp_path)
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / source.file).write_bytes(gzip.compress(json.dumps(document).encode()))
    assert table_of(source, tmp_path) == "x,throughput\n1,500\n2,250\n"


@pytest.mark.parametrize("seed", range(4))
def test_between_a_third_and_most_combinations_fail(tmp_path: Path, seed: int) -> None:
    """And some beside the best one."""
    path = tmp_path / "cliffs.csv.gz"
    path.write_bytes(gzip.compress(make_table(seed).encode()))
    table = read_table(path)
    assert 0.25 < 1.0 - len(table.throughputs) / table.combinations < 0.75
    best = table.best
    neighbours = [
        (*best[:place], choice, *best[place + 1 :])
        for place, option in enumerate(table.options)
        for choice in option.choices
    ]
    assert any(neighbour not in table.throughputs for neighbour in neighbours)

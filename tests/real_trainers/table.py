"""Table of real trainers, read from trainers.yaml."""

from pathlib import Path
from typing import Any

import yaml

from tests.real_trainers.layouts import BY_NAME
from tests.real_trainers.own_log import OwnLog
from tests.real_trainers.trainer import Trainer


def _trainer(row: dict[str, Any]) -> Trainer:
    of, log = row["lay_out"], OwnLog(**row["log"])
    lay_out = BY_NAME[of] if isinstance(of, str) else lambda place: place.copy(*of)
    lists = {name: tuple(row[name]) for name in ("needs", "init") if name in row}
    return Trainer(**{**row, **lists, "lay_out": lay_out, "log": log})


TRAINERS = [_trainer(row) for row in yaml.safe_load(Path(__file__).with_name("trainers.yaml").read_text())]
"""All rows, in the order in which they are tried."""

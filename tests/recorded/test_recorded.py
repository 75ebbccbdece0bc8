"""The recorded study: today's writer writes the same, and today's reader reads it."""

import json
import re
from pathlib import Path
from typing import Any

from tests.command_line import CommandLine
from tests.recorded.recording import EVENTS, JOURNAL, files_of, record

_OF_ONE_RECORDING = frozenset(
    {"worker_id", "uuid", "host", "boot_id", "pid", "pid_namespace", "started_s", "datetime_start", "datetime_complete"}
)
_SEARCH = re.compile(r"20300101T\d+Z-[\w.-]+-\d+|(?<=member\.)\w+")


def lines_of(file: Path) -> list[Any]:
    """Return the lines of a file of objects, without what differs from one recording to the next."""
    return [_without(json.loads(_SEARCH.sub("", line))) for line in file.read_text().splitlines()]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(one) for name, one in value.items() if name not in _OF_ONE_RECORDING}
    if isinstance(value, float):
        return float(f"{value:.6g}")  # the last digits depend on the processor
    return [_without(one) for one in value] if isinstance(value, list) else value


def test_todays_search_records_the_same(tmp_path: Path) -> None:
    """Each trial with its numbers, in each file; ``python -m tests.recorded`` records it again where that is meant."""
    record(tmp_path / "project")
    for file, asset in zip(files_of(tmp_path / "project"), (JOURNAL, EVENTS), strict=True):
        assert lines_of(file) == lines_of(asset)


def test_the_record_is_read_and_resumed(recorded: CommandLine) -> None:
    """`status` gives its verdict, and another search goes on with its trials."""
    status = recorded("status", "--config", "config.yaml", "--json").document
    assert status["verdict"] == "better"
    assert status["best"]["values"]["data.batch_size"] == 64
    trials = status["trials"]
    recorded.clock.wait(3600.0)
    assert recorded.search("--no-apply").returncode == 0
    assert recorded("study", "list", "--json").document["studies"][0]["trials"] > trials

"""Recording of the study: a search in virtual time, on a machine whose facts are always the same."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.measure.host import MachineFacts
from autotune.search import hardware, problem
from tests.command_line import CommandLine, project_in

JOURNAL = Path(__file__).with_name("study.journal")
EVENTS = Path(__file__).with_name("search.events.jsonl")

_FACTS = MachineFacts(
    cores=2, cpu_model="Recorded CPU", memory_bytes=8 << 30, cpu_bfloat16=False, hostname="recorded", boot_id="0"
)


@contextmanager
def recorded_machine() -> Iterator[None]:
    """Make this machine that of the recording, for as long as a ``with`` block lasts: studies belong to a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(hardware, "machine_facts", lambda: _FACTS)
        patch.setattr(problem, "framework_versions", lambda *_: {})
        yield


def record(folder: Path) -> CommandLine:
    """Search once in a new project; return its command line."""
    with recorded_machine():
        commands = project_in(folder)
        done = commands.search("--no-apply")
        assert done.returncode == 0, done.stderr
    return commands


def files_of(folder: Path) -> tuple[Path, Path]:
    """Return the journal and the events that a search has left in a project."""
    (journal,) = (folder / ".autotune" / "studies").glob("config-*.journal")
    (events,) = (folder / ".autotune" / "searches").glob("*.events.jsonl")
    return journal, events


def write_asset() -> None:
    """Record the study again, in the place of the asset."""
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder))
        for file, asset in zip(files_of(Path(folder)), (JOURNAL, EVENTS), strict=True):
            shutil.copyfile(file, asset)


def _study_name() -> str:
    return str(json.loads(JOURNAL.read_text().partition("\n")[0])["study_name"])


def recorded_project(folder: Path) -> CommandLine:
    """Make a project whose study is the recorded one; call it within `recorded_machine`."""
    commands = project_in(folder)
    for file, place in ((JOURNAL, "studies"), (EVENTS, "searches")):
        (folder / ".autotune" / place).mkdir(mode=0o700)
        name = f"{_study_name()}.journal" if file == JOURNAL else EVENTS.name
        shutil.copyfile(file, folder / ".autotune" / place / name)
    return commands


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[CommandLine]:
    """Project whose search has found and confirmed something better, on the machine of the recording."""
    with recorded_machine():
        yield recorded_project(tmp_path / 'it\'s a "project"')

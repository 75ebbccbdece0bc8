"""Fixtures that several stages share."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

# Before numpy is loaded: workers whose threads wait for each other's cores are several times slower. Trainers that the
# tests start have all threads.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy  # noqa: F401
import pytest
from hypothesis import HealthCheck, settings

from tests.postgresql import Server, running_server

del os.environ["OPENBLAS_NUM_THREADS"]

# A thousand processes would compile all modules, and each worker all tests, anew every time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = [
    "tests.fake_nvml.plugin",
    "tests.runs",
    "tests.command_line",
    "tests.recorded.recording",
    "tests.search.simulated",
    "tests.diagnose.measured.simulated",
]

# A slow machine is no failure; and the same examples every time, so that a red run can be repeated.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

# A job in the background of a script ignores ^C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests end processes and fill disks, and never cut the power: what the kernel has is safe. Saves an eighth of the time.
os.fsync = lambda fd: None  # type: ignore[assignment]

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the end-to-end tests: they wait for each other, while another worker runs all the rest."""
    items.sort(key=lambda item: item.path.parent.name != "end_to_end")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the settings of whoever runs the tests, and what is kept for them on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{uuid.uuid4().hex}"))
    for name in [name for name in os.environ if name.startswith("AUTOTUNE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def replace_here(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Replace a function of `os` for the thread of the test alone: the storage thread of an earlier test may go on."""

    def replace(name: str, function: Callable[..., Any]) -> None:
        real, thread = getattr(os, name), threading.get_ident()

        def chosen(*args: Any) -> Any:
            return (function if threading.get_ident() == thread else real)(*args)

        monkeypatch.setattr(os, name, chosen)

    return replace


@pytest.fixture(params=["plain", "sp ace", "quo'te\"s", "new\nline", "ünïcode-é"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Folder whose name is hard on whoever quotes or splits."""
    folder = tmp_path / request.param
    folder.mkdir()
    return folder


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Folder on a file system in memory, where thousands of folders are made in no time; else any folder."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Folder like /tmp: everybody may make something in it, and nobody may take away what is another's."""
    with tempfile.TemporaryDirectory(prefix="shared ") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Real file system of 256 KiB; skipped where one may not be mounted."""
    place = tmp_path / "small disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(folder: Path) -> None:
    """Write into a folder until its file system is full; the file is called ``filler``."""
    with open(folder / "filler", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with 256 MiB; skipped where none can be made."""
    name = f"autotune-test-{os.getpid()}"
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    group, limit = (v1 / name, "memory.limit_in_bytes") if v1.is_dir() else (v2 / name, "memory.max")
    try:
        group.mkdir()
        (group / limit).write_text(str(256 << 20))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield group
    for line in (group / "cgroup.procs").read_text().split():
        os.kill(int(line), signal.SIGKILL)
    group.rmdir()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that ends with the test."""
    started = []

    def begin(code: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.communicate(timeout=60)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """Run a PostgreSQL server for all tests that ask for one; they are skipped where it is not installed."""
    with running_server() as server:
        yield server

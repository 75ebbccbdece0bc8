"""A project whose trainer runs on fake GPUs, and the command line as its user has it."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.gpu.records import BusyWindows, Record, of_line
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, Scenario

TRAINER = Path(__file__).parents[1] / "fake_nvml" / "trainer.py"
WINDOW_S = 0.05
"""Driver windows that are shorter than any real driver's, so that the tests are: 60 samples take 3 s."""

ORIGIN_S_AGO = 30.0
_DEADLINE_S = 300.0

UUID = "GPU-{:08x}-0000-4000-8000-000000000000"


def is_baselines(line: str) -> bool:
    """Return True for the line on stderr that today's config has been measured: the first trial that counts."""
    return re.search(r"\] trial \d+ +baseline .* 1\.00x ", line) is not None


def all_at_once(search: Callable[[str], "Searched"], names: Iterable[str]) -> dict[str, "Searched"]:
    """A search for each name, all at the same time: most of what they do is to wait."""
    each = list(names)
    with ThreadPoolExecutor(len(each)) as threads:
        return dict(zip(each, threads.map(search, each), strict=True))


def machine_with(gpus: int, *, gpu: Gpu | None = None, **options: Any) -> Scenario:
    """A machine with so many GPUs that do what the trainer, and others, tell them."""
    return Scenario(gpus=(gpu or Gpu(),) * gpus, follow=True, window_s=WINDOW_S, **options)


@dataclass(frozen=True, kw_only=True)
class GpuProject:
    """A folder with a config, on a machine with fake GPUs."""

    folder: Path
    machine: FakeGpu

    def autotune(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        hear: Callable[[str], bool] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs one command in the project, as a process of its own.

        Args:
            arguments: Its words.
            env: What is added to the environment.
            hear: Told each line on stderr as it comes; what it answers with True is interrupted, as by ^C.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune", *arguments],
            cwd=self.folder,
            env={**self.machine.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        kill = threading.Timer(_DEADLINE_S, process.kill)
        kill.start()
        with process:
            complained = ""
            for line in process.stderr or ():
                complained += line
                if hear is not None and hear(line):
                    process.send_signal(signal.SIGINT)
                    hear = None
            said = process.stdout.read() if process.stdout else ""
        kill.cancel()
        return subprocess.CompletedProcess(process.args, process.returncode, said, complained)

    def search(
        self,
        budget_s: float,
        *options: str,
        env: Mapping[str, str] | None = None,
        hear: Callable[[str], bool] | None = None,
    ) -> "Searched":
        """A search."""
        config = ("--config", "config.yaml", "--json", "--budget", f"{budget_s:g}s")
        done = self.autotune("search", *config, *options, env=env, hear=hear)
        return Searched(project=self, returncode=done.returncode, said=done.stdout, complained=done.stderr)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A search that has ended; once it was interrupted, `said` is empty."""

    project: GpuProject
    returncode: int
    said: str
    complained: str

    @property
    def answer(self) -> dict[str, Any]:
        """Answer of ``--json``."""
        answer: dict[str, Any] = json.loads(self.said)
        return answer

    def trials(self) -> list[dict[str, Any]]:
        """Return the results of all trials, in order of time, with the folder's path as ``folder``."""
        # A trial that was interrupted has none.
        results = sorted(self.project.folder.glob(".autotune/trials/*/*/result.json"))
        return [{**json.loads(result.read_text()), "folder": result.parent} for result in results]


def raw_samples(folder: Path) -> list[Record]:
    """Return the records of the collector that are kept in a trial's folder."""
    lines = (folder / "samples.jsonl").read_text().splitlines()
    return [record for record in map(of_line, lines) if record is not None]


def driver_windows(folder: Path, gpu: int) -> list[tuple[float, float, float]]:
    """Start, end and busy share of each driver window of a trial's GPU while it trained."""
    (steps,) = folder.glob("steps.*.jsonl")
    times_s = [row["t_s"] for row in map(json.loads, steps.read_text().splitlines()) if row.get("k") == "step"]
    told = (record for record in raw_samples(folder) if isinstance(record, BusyWindows))
    rows: Sequence[tuple[float, float, float]] = [
        window for record in told if record.uuid == UUID.format(gpu) for window in record.windows
    ]
    return [
        (end_s - length_s, end_s, busy)
        for end_s, length_s, busy in rows
        if times_s[0] <= end_s - length_s and end_s <= times_s[-1]
    ]


@pytest.fixture(scope="session")
def gpu_project(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., GpuProject]:
    """Makes a project: ``gpu_project(machine_with(2), config)``; ``TRAINER`` in the config is the fake trainer.

    The origin of the machine's time, which faults count from, is `ORIGIN_S_AGO` before now.
    """

    def make(scenario: Scenario, config: str) -> GpuProject:
        folder = tmp_path_factory.mktemp("a project")
        (folder / "config.yaml").write_text(config.replace("TRAINER", f"'{TRAINER}'"))
        machine = FakeGpu(
            nvml_library, tmp_path_factory.mktemp("machine"), scenario, at_s=None, began_s_ago=ORIGIN_S_AGO
        )
        machine.tenants.mkdir()
        return GpuProject(folder=folder, machine=machine)

    return make

"""``autotune monitor`` as its user has it: on terminals and in pipes, on a fake GPU behind the real bindings.

The bindings load the driver once, so that each fake one needs a process.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.gpu import driver
from autotune.measure.gpu.driver import GpuInventory
from tests.command_line import CommandLine
from tests.commands.conftest import answered
from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Gpu, MigInstance, Scenario, Square
from tests.until import ended

STARVED = Scenario(gpus=(Gpu(busy_percent=Square(2, 40, period_s=2.0)),))
MEANING = "the step waits for data at regular intervals: more prefetch, more workers or a cache"
WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
Machine = Callable[..., FakeGpu]
Start = Callable[..., subprocess.Popen[str]]


def monitor(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the monitor to its end, with its output in a pipe."""
    return ended(sys.executable, "-m", "autotune", "monitor", *arguments, env=env)


def objects(env: dict[str, str], *arguments: str) -> list[dict[str, Any]]:
    """Parse the objects for scripts, from a command that ends well."""
    done = monitor(env, "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def on_terminal(
    env: dict[str, str], answers: dict[bytes, signal.Signals | Callable[[], object]], *arguments: str
) -> tuple[int, str]:
    """Run the monitor on a terminal of 120 columns; see `answered`."""
    environ = {**env, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "24"}
    return answered(Path.cwd(), answers, "monitor", *arguments, env=environ)


@pytest.fixture
def start(start: Start) -> Start:
    """Open a terminal whose monitor has said its first line."""

    def begin(code: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        process = start(code, *arguments, **env)
        assert process.stdout
        process.stdout.readline()
        return process

    return begin


def test_a_script_gets_an_object_a_second(fake_gpu: Machine) -> None:
    """The verdict is in the first, since the driver remembers; the last is about all the time."""
    *readings, summary = objects(fake_gpu(STARVED, began_s_ago=30.0).env, "--for", "1s")
    assert readings
    for reading in readings:
        assert (reading["format"], reading["kind"], reading["process"], reading["notes"]) == (1, "reading", None, [])
        (gpu,) = reading["gpus"]
        assert gpu["verdict"]["pattern"] == "cyclic"
        assert gpu["verdict"]["period_s"] == pytest.approx(2.0, abs=0.1)
        assert gpu["verdict"]["meaning"] == MEANING
        assert gpu["minute_utilization"] == pytest.approx(0.21, abs=0.03)
        assert gpu["trouble"] is None
    stamps = [reading["monotonic_s"] for reading in readings]
    assert stamps == sorted(stamps)
    assert summary["kind"] == "summary"
    assert summary["watched_s"] >= 1.0
    assert summary["gpus"][0]["verdict"]["pattern"] == "cyclic"


def test_a_terminal_gets_one_screen_until_interrupted(fake_gpu: Machine) -> None:
    """^C leaves the monitor: the screen goes, the cursor is back, the summary stays, and the exit code is 0."""
    env = fake_gpu(STARVED, began_s_ago=30.0).env
    code, screen = on_terminal(env, {b"watched for 1": signal.SIGINT})  # the second screen
    assert code == 0
    assert "2-40 % cyclic, period 2.0 s" in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")
    left = screen.rpartition("\x1b[?25h")[2]
    assert "Watched for" in left
    assert MEANING in left
    assert "Next: autotune diagnose" in left
    assert "Traceback" not in screen


def test_without_a_driver_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1, in words; for scripts as an object."""
    inventory = GpuInventory(gpus=(), why_none="no driver was found", remedy="Install one.")
    monkeypatch.setattr(driver, "gpus", lambda: inventory)
    done = CommandLine(tmp_path)("monitor")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "autotune: no driver was found\nInstall one.\n"
    error = CommandLine(tmp_path)("monitor", "--json").document["error"]
    assert (error["kind"], error["message"], error["remedy"]) == ("gpu", "no driver was found", "Install one.")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--pid", "99999999"), 1, "there is no process 99999999"),
        (("--pid", "0"), 2, "0"),
        (("--pid", "x"), 2, "'x'"),
        (("--for", "abc"), 2, "'abc'"),
        (("--for", "0s"), 2, "'0s'"),
    ],
)
def test_a_process_that_is_not_there_is_an_error(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    """A number that cannot be a process is wrong usage."""
    done = CommandLine(tmp_path)("monitor", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.services
def test_the_gpus_of_a_process_are_those_it_holds(fake_gpu: Machine, start: Start) -> None:
    """Those that the driver shows it on, of all that it may use."""
    process = start(WAITS)
    machine = fake_gpu(Scenario(gpus=(Gpu(), Gpu(), Gpu()), follow=True), began_s_ago=30.0)
    now_s = time.monotonic()
    own = BusyWriter(machine.tenants, gpu=1, pid=process.pid, memory_bytes=3 << 30)
    for second in range(-20, 30):
        own.kernel(now_s + second, now_s + second + 0.5)
    reading = objects(machine.env, "--for", "3s", "--pid", str(process.pid))[-2]
    (gpu,) = reading["gpus"]
    assert gpu["label"] == "GPU 1"
    assert gpu["memory_used_bytes"] >= 3 << 30
    assert reading["notes"] == []
    assert reading["process"] == {"pid": process.pid, "ended": False}


def test_it_ends_with_the_process(fake_gpu: Machine, start: Start) -> None:
    """The summary stays, and the exit code is 0."""
    process = start(WAITS)
    seen: dict[bytes, signal.Signals | Callable[[], object]] = {b"watched for 1": process.communicate}
    code, screen = on_terminal(fake_gpu(STARVED, began_s_ago=30.0).env, seen, "--pid", str(process.pid))
    assert code == 0
    assert f"Process {process.pid} has ended." in screen
    assert f"The driver lists process {process.pid} on no GPU yet; showing all GPUs visible to it." in screen


def test_a_name_cannot_steer_the_terminal(fake_gpu: Machine) -> None:
    """The name of a device is text from outside."""
    done = monitor(fake_gpu(Scenario(gpus=(Gpu(name="A\x1b[2JB"),))).env, "--for", "1s")
    assert "GPU 0  AB: " in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.services
def test_an_instance_of_a_gpu_has_no_utilization(fake_gpu: Machine) -> None:
    """Utilization is shown as not measured, with the reason; never as 0 %."""
    cut = Gpu(mig=True, mig_instances=(MigInstance(busy_percent=50), MigInstance(busy_percent=50)))
    machine = fake_gpu(Scenario(gpus=(cut,)), began_s_ago=30.0)
    reading = objects(machine.env, "--for", "1s")[-2]
    assert [gpu["label"] for gpu in reading["gpus"]] == ["GPU 0 MIG 0", "GPU 0 MIG 1"]
    for gpu in reading["gpus"]:
        assert (gpu["minute_utilization"], gpu["verdict"]) == (None, None)
        assert "does not report utilization" in gpu["why_no_utilization"]
    done = monitor(machine.env, "--for", "1s")
    assert "utilization not measured" in done.stdout
    assert " 0 %" not in done.stdout
    empty = monitor(fake_gpu(Scenario(gpus=(Gpu(mig=True),))).env)
    assert empty.returncode == 1
    assert "MIG" in empty.stderr

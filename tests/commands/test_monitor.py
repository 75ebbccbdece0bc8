"""``autotune monitor`` as its user has it: on terminals and in pipes, on a fake GPU behind the real bindings."""

import codecs
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.busy_writer import BusyWriter
from tests.fake_nvml.library import FakeGpu
from tests.fake_nvml.scenario import Fault, Gpu, MigInstance, Scenario, Square

STARVED = Scenario(gpus=(Gpu(busy_percent=Square(2, 40, period_s=2.0)),))
MEANING = "the step waits for data at a regular beat: more prefetch, more workers or a cache"
WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"
STEPS = """
import sys, time
from autotune.trainee import step
for number in range(int(sys.argv[1])):
    time.sleep(0.01)
    step(samples=8, wait_s=0.005)
print("ready", flush=True)
sys.stdin.read()
"""

Machine = Callable[..., FakeGpu]
Start = Callable[..., subprocess.Popen[str]]


def monitor(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the monitor to its end, with its output in a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "autotune", "monitor", *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def objects(env: dict[str, str], *arguments: str) -> list[dict[str, Any]]:
    """Parse the objects for scripts, from a command that ends well."""
    done = monitor(env, "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Terminal:
    """Monitor on a terminal of its own."""

    def __init__(self, env: dict[str, str], *arguments: str, columns: int = 80, rows: int = 24) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        unset = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"} - set(env.get("KEEP", "").split())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autotune", "monitor", *arguments],
            env={"TERM": "xterm-256color", **{name: value for name, value in env.items() if name not in unset}},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def until(self, words: str) -> None:
        """Read on until these words are shown."""
        give_up_s = time.monotonic() + 90.0
        while words not in self.text:
            assert time.monotonic() < give_up_s, f"no {words!r} for 90 s: {self.text}"
            assert self._read(), f"it ended without {words!r}: {self.text}"

    def interrupt(self) -> int:
        """Type ^C; return the monitor's exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Read the rest; return the monitor's exit status."""
        while self._read():
            pass
        return self.process.wait(timeout=60)

    def close(self) -> None:
        """Take the terminal away, and the monitor with it."""
        self.process.kill()
        self.process.wait(timeout=60)
        os.close(self._master)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # how a terminal says that nobody writes to it any more
            return False
        self.text += self._decoder.decode(data)  # a character may come in two parts
        return bool(data)


OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def terminal() -> Iterator[OpenTerminal]:
    """Open terminals with a monitor on them."""
    opened = []

    def begin(env: dict[str, str], *arguments: str, **size: int) -> Terminal:
        opened.append(Terminal(env, *arguments, **size))
        return opened[-1]

    yield begin
    for one in opened:
        one.close()


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
    *readings, summary = objects(fake_gpu(STARVED, began_s_ago=30.0).env, "--for", "2s")
    assert len(readings) >= 2
    for reading in readings:
        assert (reading["format"], reading["kind"], reading["process"], reading["notes"]) == (1, "reading", None, [])
        (gpu,) = reading["gpus"]
        assert gpu["verdict"]["pattern"] == "cyclic"
        assert gpu["verdict"]["period_s"] == pytest.approx(2.0, abs=0.1)
        assert gpu["verdict"]["meaning"] == MEANING
        assert gpu["minute_utilization"] == pytest.approx(0.21, abs=0.03)
        assert 0.02 <= gpu["utilization"] <= 0.4
        assert (gpu["trouble"], gpu["own_fraction"]) == (None, None)
    stamps = [reading["monotonic_s"] for reading in readings]
    assert stamps == sorted(stamps)
    assert summary["kind"] == "summary"
    assert summary["watched_s"] >= 2.0
    assert summary["gpus"][0]["verdict"]["pattern"] == "cyclic"


def test_a_log_file_gets_plain_lines(fake_gpu: Machine) -> None:
    """One a second and GPU, without a single escape sequence, and the summary."""
    done = monitor(fake_gpu(Scenario(gpus=(Gpu(busy_percent=91), Gpu())), began_s_ago=30.0).env, "--for", "1s")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d GPU 0  91 % now  91 % in the last minute  0\.0 of 80\.0 GiB  616 W  40 °C  1980 MHz"
        r"  91 % flat",
        lines[0],
    )
    assert re.match(r"\d\d:\d\d:\d\d GPU 1  0 % now", lines[1])
    assert any(line.startswith("Watched for ") for line in lines)
    assert "0 % flat: next to nothing runs on it" in lines


def test_a_terminal_gets_one_screen_until_interrupted(fake_gpu: Machine, terminal: OpenTerminal) -> None:
    """^C leaves the monitor: the screen goes, the cursor is back, the summary stays, and the exit code is 0."""
    screen = terminal(fake_gpu(STARVED, began_s_ago=30.0).env)
    screen.until("watched for 1")  # the second screen
    assert screen.interrupt() == 0
    assert "2-40 % cyclic, period 2.0 s" in screen.text
    assert "▁" in screen.text
    assert screen.text.rindex("\x1b[?25h") > screen.text.rindex("\x1b[?25l")
    left = screen.text.rpartition("\x1b[?25h")[2]
    assert "Watched for" in left
    assert "busy on average" in left
    assert "Traceback" not in screen.text


def test_an_interrupt_cuts_a_given_time_short(fake_gpu: Machine, terminal: OpenTerminal) -> None:
    """The exit code tells that two seconds of ten minutes were watched."""
    screen = terminal(fake_gpu(STARVED, began_s_ago=30.0).env, "--for", "10m")
    screen.until("watched for")
    assert screen.interrupt() == 130
    assert "Watched for" in screen.text


def test_a_terminal_without_colour_gets_none(fake_gpu: Machine, terminal: OpenTerminal) -> None:
    """NO_COLOR is honoured."""
    env = fake_gpu(STARVED, began_s_ago=30.0).env
    coloured = terminal(env, "--for", "1s")
    assert coloured.end() == 0
    assert re.search(r"\x1b\[[\d;]*3\d", coloured.text)
    plain = terminal({**env, "NO_COLOR": "1", "KEEP": "NO_COLOR"}, "--for", "1s")
    assert plain.end() == 0
    assert not re.search(r"\x1b\[[\d;]*3\d", plain.text)


@pytest.mark.parametrize(("columns", "rows"), [(60, 24), (200, 60)])
def test_eight_gpus_fit_any_terminal(fake_gpu: Machine, terminal: OpenTerminal, columns: int, rows: int) -> None:
    """Each GPU is there, and no line is wider than the terminal."""
    eight = Scenario(gpus=tuple(Gpu(busy_percent=Square(2, 40, period_s=2.0)) for _ in range(8)))
    screen = terminal(fake_gpu(eight, began_s_ago=30.0).env, "--for", "1s", columns=columns, rows=rows)
    assert screen.end() == 0
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.text.partition("Watched for")[0])
    assert all(f"GPU {place}" in drawn for place in range(8))
    assert max(len(line) for line in drawn.replace("\r", "\n").splitlines()) <= columns


def test_without_a_driver_it_says_what_to_do() -> None:
    """Exit 1, in words; for scripts as an object."""
    env = {**os.environ, "LD_LIBRARY_PATH": ""}
    done = monitor(env)
    if "GPU 0" in done.stdout:
        pytest.skip("this machine has a GPU")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("autotune: ")
    assert "Traceback" not in done.stderr
    done = monitor(env, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"]) == (1, "gpu")
    assert error["message"]
    assert error["remedy"]


def test_a_process_that_is_not_there_is_an_error(fake_gpu: Machine) -> None:
    """A number that cannot be a process is wrong usage."""
    env = fake_gpu(STARVED).env
    done = monitor(env, "--pid", "99999999")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no process 99999999" in done.stderr
    for wrong in (("--pid", "0"), ("--pid", "x"), ("--for", "abc"), ("--for", "0s")):
        done = monitor(env, *wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert repr(wrong[1]) in done.stderr or wrong[1] in done.stderr


def test_the_gpus_of_a_process_are_those_it_holds(fake_gpu: Machine, start: Start) -> None:
    """The share of the process and that of others are told apart."""
    process = start(WAITS)
    machine = fake_gpu(Scenario(gpus=(Gpu(), Gpu(), Gpu()), follow=True), began_s_ago=30.0)
    now_s = time.monotonic()
    own = BusyWriter(machine.tenants, gpu=1, pid=process.pid, memory_bytes=3 << 30)
    stranger = BusyWriter(machine.tenants, gpu=1, pid=77)
    for second in range(-20, 30):
        own.kernel(now_s + second, now_s + second + 0.5)
        stranger.kernel(now_s + second + 0.5, now_s + second + 0.6)
    reading = objects(machine.env, "--for", "3s", "--pid", str(process.pid))[-2]
    (gpu,) = reading["gpus"]
    assert gpu["label"] == "GPU 1"
    assert gpu["memory_used_bytes"] >= 3 << 30
    assert gpu["own_fraction"] == pytest.approx(0.5, abs=0.1)
    assert gpu["foreign_fraction"] == pytest.approx(0.1, abs=0.05)
    assert reading["notes"] == []
    assert reading["process"]["why_no_steps"].startswith("reports no steps")


def test_a_process_on_no_gpu_yet_shows_those_it_may_use(fake_gpu: Machine, start: Start) -> None:
    """The screen says that this is a guess."""
    process = start(WAITS, CUDA_VISIBLE_DEVICES="1")
    machine = fake_gpu(Scenario(gpus=(Gpu(), Gpu())), began_s_ago=30.0)
    reading, *_ = objects(machine.env, "--for", "1s", "--pid", str(process.pid))
    assert [gpu["label"] for gpu in reading["gpus"]] == ["GPU 1"]
    assert reading["notes"] == [
        f"The driver shows process {process.pid} on no GPU (yet); those of its CUDA_VISIBLE_DEVICES=1 are shown."
    ]


def test_a_process_that_sees_no_gpu_has_nothing_to_show(fake_gpu: Machine, start: Start) -> None:
    """An error with a remedy, and no empty screen."""
    process = start(WAITS, CUDA_VISIBLE_DEVICES="")
    done = monitor(fake_gpu(STARVED).env, "--pid", str(process.pid))
    assert (done.returncode, done.stdout) == (1, "")
    assert "hides every GPU" in done.stderr
    assert "Without --pid" in done.stderr


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_training_shows_its_steps_until_it_ends(
    fake_gpu: Machine, terminal: OpenTerminal, start: Start, tmp_path: Path, has_gpu: bool
) -> None:
    """Steps, samples and waiting for data, also on a machine without a GPU; the monitor ends with the process."""
    process = start(STEPS, "100", AUTOTUNE_TRIAL_DIR=str(tmp_path))
    scenario = Scenario() if has_gpu else Scenario(faults=(Fault(code=12),))
    screen = terminal(fake_gpu(scenario, began_s_ago=30.0).env, "--pid", str(process.pid), columns=120)
    screen.until(" samples/s, waits for data ")
    process.communicate(timeout=60)
    assert screen.end() == 0
    assert f"Process {process.pid} has ended." in screen.text
    assert ("No GPU is shown: no NVIDIA driver" in screen.text) is not has_gpu


def test_a_driver_call_that_hangs_freezes_nothing(fake_gpu: Machine, terminal: OpenTerminal) -> None:
    """The screen says so, and ^C works."""
    hanging = Fault(function="nvmlDeviceGetTemperature", after_calls=2, delay_s=3600.0)
    machine = fake_gpu(Scenario(gpus=STARVED.gpus, faults=(hanging,)), began_s_ago=30.0)
    screen = terminal(machine.env)
    screen.until("nothing was heard of the GPUs for")
    assert screen.interrupt() == 0


def test_a_gpu_that_is_lost_comes_back(fake_gpu: Machine, terminal: OpenTerminal) -> None:
    """Nothing is shown of a lost GPU as if it were now."""
    machine = fake_gpu(
        Scenario(gpus=STARVED.gpus, faults=(Fault(code=15, gpu=0, from_s=34.0, until_s=36.0),)), began_s_ago=30.0
    )
    screen = terminal(machine.env, "--json")
    screen.until('"trouble": "GPU lost')
    lost = screen.text.splitlines()[-1]
    screen.text = ""
    screen.until('"trouble": null')
    assert screen.interrupt() == 0
    assert "GPU lost" in lost


def test_an_instance_of_a_gpu_has_no_utilization(fake_gpu: Machine) -> None:
    """Utilization is shown as not measured, with the reason; never as 0 %."""
    cut = Gpu(mig=True, mig_instances=(MigInstance(busy_percent=50), MigInstance(busy_percent=50)))
    machine = fake_gpu(Scenario(gpus=(cut,)), began_s_ago=30.0)
    reading = objects(machine.env, "--for", "1s")[-2]
    assert [gpu["label"] for gpu in reading["gpus"]] == ["GPU 0 MIG 0", "GPU 0 MIG 1"]
    for gpu in reading["gpus"]:
        assert (gpu["utilization"], gpu["minute_utilization"], gpu["verdict"]) == (None, None, None)
        assert "does not report utilization" in gpu["why_no_utilization"]
    done = monitor(machine.env, "--for", "1s")
    assert "utilization not measured" in done.stdout
    assert " 0 %" not in done.stdout
    empty = monitor(fake_gpu(Scenario(gpus=(Gpu(mig=True),))).env)
    assert empty.returncode == 1
    assert "MIG" in empty.stderr


def test_readings_that_are_not_permitted_are_named(fake_gpu: Machine) -> None:
    """A driver that answers only administrators leaves gaps that are said, not noughts."""
    faults = tuple(Fault(function=f"nvmlDeviceGet{name}*", code=4) for name in ("PowerUsage", "MemoryInfo"))
    reading = objects(fake_gpu(Scenario(gpus=STARVED.gpus, faults=faults), began_s_ago=30.0).env, "--for", "1s")[0]
    (gpu,) = reading["gpus"]
    assert (gpu["power_w"], gpu["memory_used_bytes"]) == (None, None)
    assert gpu["absent"] == ["memory (Insufficient Permissions)", "power (Insufficient Permissions)"]


def test_a_reader_that_goes_away_is_no_crash(fake_gpu: Machine) -> None:
    """`| head -1` ends it without a word."""
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", "monitor"],
        env=fake_gpu(STARVED, began_s_ago=30.0).env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        assert "GPU 0" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) in (0, 1)
        assert process.stderr.read() == ""

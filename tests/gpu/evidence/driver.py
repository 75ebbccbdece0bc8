"""The run: its parts one after the other, each in a process group of its own and with its own time limit.

The report is replaced whenever a part begins or ends, and while one runs, so that a run that is interrupted, however
that happens, leaves a valid one. Standard library only.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from tests.gpu.evidence.environment import Environment, read_environment
from tests.gpu.evidence.notes import NotesData, read_notes, replace_file
from tests.gpu.evidence.pack import ROOT
from tests.gpu.evidence.report import PartReport, RunReport, State

RUN_S = 480.0
"""Time limit of the whole run: what a machine is lent for leaves time for another one."""
PREPARING_S = 28.0
STOPPING_S = 3.0
"""Time that a part has to end in order, within its limit: a search ends its trials meanwhile."""
_LEAST_S = STOPPING_S + 5.0  # for a part: with less none comes to anything
_REPORT_EVERY_S = 5.0  # while a part runs: what SIGKILL leaves is no older


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the run.

    Attributes:
        limit_s: Time after which it is over, with all its processes.
        demonstrates: What it shows, for people.
        module: Module that runs it: ``python -m MODULE NAME FOLDER``, by the interpreter that has autotune.
    """

    name: str
    limit_s: float
    demonstrates: str
    module: str = "tests.gpu.evidence.parts"


PARTS = (
    Part(name="check", limit_s=40, demonstrates="what is measured is what the GPU does (`scripts/gpu-check`)"),
    Part(
        name="starved",
        limit_s=150,
        demonstrates="a confirmed answer for a GPU that waits for one decoding worker, and what plain training gains",
    ),
    Part(
        name="precision",
        limit_s=110,
        demonstrates="TF32, autocast and `torch.compile` on a float32 transformer, with their labels",
    ),
    Part(
        name="memory limit",
        limit_s=60,
        demonstrates="a batch that does not fit has a name, and larger ones are skipped",
    ),
    Part(name="stalls", limit_s=60, demonstrates="`diagnose` names the lines that hold training up"),
    Part(name="neighbours", limit_s=30, demonstrates="a trial beside another process on the GPU does not count"),
)


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A signal asks for the end of the run."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)  # what is begun now is ended in order
        raise Interrupted(number)

    before = {name: signal.signal(name, interrupt) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


class Run:
    """One run, and its report.

    Args:
        out: Folder of the report.
        work: Folder for all else; not there yet.
        parts: All parts, in their order.
        chosen: Names of those that run.
        scale: Factor on the budgets within parts; not on their limits.
        began_s: Monotonic time at which the run began.
        environment: What the parts run in, where that is prepared already.
    """

    def __init__(
        self,
        *,
        out: Path,
        work: Path,
        is_fake: bool,
        parts: Sequence[Part] = PARTS,
        chosen: Sequence[str] = (),
        scale: float = 1.0,
        began_s: float,
        environment: Environment | None = None,
    ) -> None:
        self._work = work
        self._is_fake = is_fake
        self._parts = parts
        self._chosen = chosen or [part.name for part in parts]
        self._scale = scale
        self._began_s = began_s
        self._ends_s = began_s + RUN_S
        self._environment = environment
        self._state = "Preparing."
        self._date = datetime.now(UTC)
        self._reports = [_not_run(part, self._chosen) for part in parts]
        self._gpu = "fake GPU" if is_fake else gpu_name()
        self._out = out
        self.file = self._new_file()

    def make(self) -> int:
        """Make the parts; return the exit status: 0 only if every part passed."""
        self._write()
        try:
            with _interruptible():
                if self._environment is None:
                    self._prepare()
                for place, part in enumerate(self._parts):
                    if part.name in self._chosen and self._environment is not None:
                        self._reports[place] = self._make_part(place, part)
        except Interrupted as interrupt:
            self._end(f"Interrupted by {interrupt}")
            return 128 + interrupt.number
        passed = all(report.state is State.PASSED for report in self._reports)
        if self._environment is not None:
            self._end("Every part passed" if passed else "Not every part passed")
        return 0 if passed else 1

    def _prepare(self) -> None:
        command = [sys.executable, "-m", "tests.gpu.evidence.environment", str(self._work)]
        words = ["--fake"] if self._is_fake else []
        log = self._work / "preparing.txt"
        code, _ = self._ran([*command, *words], {}, log, limit_s=PREPARING_S)
        if code == 0:
            self._environment = read_environment(self._work)
            if self._environment.gpu != self._gpu:
                self._gpu = self._environment.gpu
                renamed = self._new_file()
                self.file.replace(renamed)
                self.file = renamed
            self._state = "Running."
            self._write()
            return
        why = log.read_text(encoding="utf-8").strip().splitlines()[-3:]
        print(*why, sep="\n", file=sys.stderr)
        self._end(f"Nothing could be run: {' '.join(why) or f'preparing took longer than {PREPARING_S:.0f} s'}")

    def _make_part(self, place: int, part: Part) -> PartReport:
        assert self._environment is not None
        began_s = time.monotonic()
        if self._ends_s - began_s < _LEAST_S:
            return replace(self._reports[place], why="the run has no time left")
        folder = self._work / part.name
        folder.mkdir()
        report = replace(self._reports[place], state=State.RUNNING, took_s=0.0)
        limit_s = min(part.limit_s, self._ends_s - began_s)
        task = {
            "torch_python": sys.executable,
            "python": self._environment.python,
            "is_fake": self._is_fake,
            "scale": self._scale,
            "ends_s": began_s + limit_s - STOPPING_S,
        }
        (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")

        def so_far() -> PartReport:
            return replace(report, took_s=time.monotonic() - began_s, notes=read_notes(folder))

        def show() -> None:
            self._reports[place] = so_far()
            self._write()

        command = [self._environment.python, "-m", part.module, part.name, str(folder)]
        try:
            show()
            print(f"{part.name} ({part.limit_s:.0f} s at most) ...", flush=True)
            code, is_late = self._ran(
                command, self._environment.env, folder / "part.txt", limit_s=limit_s, while_running=show
            )
        except Interrupted:
            self._reports[place] = replace(so_far(), state=State.INTERRUPTED)
            raise
        done = so_far()
        if is_late:
            done = replace(done, state=State.TIMED_OUT)
        elif done.notes.passed and code == 0:
            done = replace(done, state=State.PASSED)
        else:
            unmet = [one.text for one in done.notes.criteria if not one.passed]
            why = f"{len(unmet)} of {len(done.notes.criteria)} criteria not met" if unmet else f"ended with {code}"
            done = replace(done, state=State.FAILED, why=why)
            if not done.notes.ended:
                tail = (folder / "part.txt").read_text(encoding="utf-8", errors="replace")[-3000:]
                done = replace(done, notes=replace(done.notes, error=tail))
        self._reports[place] = done
        self._write()
        print(f"{part.name}: {done.state.value} after {done.took_s:.1f} s {done.why}".rstrip(), flush=True)
        return done

    def _ran(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        limit_s: float,
        while_running: Callable[[], None] = lambda: None,
    ) -> tuple[int, bool]:
        """Run a command with a time limit; return its exit status, and whether it was stopped at the limit."""
        ends_s = time.monotonic() + limit_s - STOPPING_S
        # Its stdin is a lifeline: where this process is killed, it ends.
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        shown_s = time.monotonic()
        try:
            while process.poll() is None and time.monotonic() < ends_s:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=min(0.25, max(0.0, ends_s - time.monotonic())))
                if time.monotonic() > shown_s + _REPORT_EVERY_S:
                    while_running()
                    shown_s = time.monotonic()
            is_late = process.poll() is None
        finally:
            stop_group(process)
            assert process.stdin is not None
            process.stdin.close()
        return -signal.SIGKILL if process.returncode is None else process.returncode, is_late

    def _new_file(self) -> Path:
        """Return a file for the report that is not there yet: earlier reports stay."""
        self._out.mkdir(parents=True, exist_ok=True)
        stem = f"{self._date:%Y-%m-%d}-{_slug(self._gpu)}"
        names = [f"{stem}.md", *(f"{stem}-{number}.md" for number in range(2, 1000))]
        return next(self._out / name for name in names if not (self._out / name).exists())

    def _end(self, how: str) -> None:
        self._state = f"{how}; the run took {time.monotonic() - self._began_s:.0f} s of {RUN_S:.0f} s."
        self._write()

    def _write(self) -> None:
        facts = {"date": f"{self._date:%Y-%m-%dT%H:%M:%SZ}"}
        if self._environment is not None:
            facts |= self._environment.facts
        report = RunReport(
            title=f"{self._gpu}, {self._date.day} {self._date:%B %Y}",
            is_fake=self._is_fake,
            facts=facts,
            state=self._state,
            parts=self._reports,
        )
        replace_file(self.file, report.markdown())


def stop_group(process: "subprocess.Popen[bytes]") -> None:
    """Stop all processes of a group, by its id: SIGTERM, then SIGKILL for those that are left; reap its leader."""
    ends_s = time.monotonic() + STOPPING_S - 1.0
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < ends_s:
            process.poll()  # reaps the leader
            os.killpg(process.pid, 0)
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the driver cannot be killed, and is left
        process.wait(timeout=0.5)


def gpu_name() -> str:
    """Return the name of the first GPU as the kernel's driver tells it, before anything else is loaded."""
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            if found := re.search(r"^Model:\s*(.+?)\s*$", file.read_text(encoding="utf-8"), re.MULTILINE):
                return found[1]
    return "NVIDIA GPU"


def _not_run(part: Part, chosen: Sequence[str]) -> PartReport:
    return PartReport(
        name=part.name,
        limit_s=part.limit_s,
        demonstrates=part.demonstrates,
        state=State.NOT_RUN,
        took_s=None,
        notes=NotesData(),
        why="" if part.name in chosen else "not chosen",
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

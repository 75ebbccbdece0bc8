"""The parts of the run: each uses the command line as its users do, and says what has to hold.

    python -m tests.gpu.evidence.parts NAME FOLDER

Run by the driver, with the interpreter that has autotune. A judge is a function of what the commands have said.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.evidence.notes import Context, Criterion, Notes
from tests.gpu.evidence.pack import ROOT

_TRAINERS = Path(__file__).with_name("trainers")
_TOLERANCE = 0.05  # of the achieved speedup, from one plain training before and one after

Document = Mapping[str, Any]


# A project of a user: a config, a trainer, and the command line.


class Project:
    """Project of a user in a folder of its own."""

    def __init__(self, context: Context, trainer: str, config: str) -> None:
        self._context = context
        self.folder = context.folder / "project"
        self.folder.mkdir()
        shutil.copy2(_TRAINERS / trainer, self.folder / "train.py")
        shutil.copy2(_TRAINERS / "device.py", self.folder)
        if context.is_fake:
            shutil.copy2(ROOT / "tests" / "fake_nvml" / "busy_writer.py", self.folder)
        command = json.dumps(f"{shlex.quote(context.torch_python)} train.py {{config}}")
        self.config = self.folder / "config.yaml"
        self.config.write_text(config.replace("COMMAND", command), encoding="utf-8")
        context.notes.text(
            "config.yaml", self.config.read_text(encoding="utf-8").replace(command, '"python train.py {config}"')
        )

    def argv(self, *words: str) -> tuple[str, ...]:
        """Return a command line of autotune on this config."""
        return (self._context.python, "-P", "-m", "autotune", words[0], "--config", "config.yaml", *words[1:])

    def autotune(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of autotune on this config."""
        return self._context.run(f"autotune {words[0]}", self.argv(*words), cwd=self.folder)

    def search(self, budget_s: float, *words: str) -> Document:
        """Search, and return the answer."""
        budget = f"{max(5, round(budget_s * self._context.scale))}s"
        done = self.autotune("search", "--budget", budget, "--no-apply", "--json", *words)
        return json.loads(done.stdout)

    def trials(self) -> list[Document]:
        """Return the ended trials of all searches so far, in their order."""
        return [event["trial"] for event in self.events() if event["event"] == "TrialEnded"]

    def events(self) -> list[Document]:
        """Return the events of all searches so far."""
        files = sorted(self.folder.glob(".autotune/searches/*.events.jsonl"))
        lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def plain_samples_per_s(self, when: str) -> float:
        """Return the speed of 10 s of plain training with the config as it is, by the trainer's own count.

        It is shorter where the part has less time left.
        """
        trains_s = min(10.0, self._context.left_s() - 1.5)
        argv = (self._context.torch_python, "train.py", "config.yaml", f"{time.monotonic() + trains_s:.3f}")
        process, _, screen_file = self._context.start(f"Plain training, {when}", argv, cwd=self.folder)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has printed its speed, and its workers do not end
            process.wait(timeout=trains_s + 1.0)
        process.kill()
        process.wait()
        screen = screen_file.read_text(encoding="utf-8")
        found = re.findall(r"^samples_per_s ([\d.]+)$", screen, re.MULTILINE)
        speed = float(found[-1]) if found else 0.0
        self._context.notes.figure(f"{trains_s:.0f} s of plain training, {when}", f"{speed:.1f} samples/s")
        return speed


# check


def check(context: Context) -> None:
    """What scripts/gpu-check does."""
    words = ("--python", context.torch_python, "--seconds", "4", "--out", str(context.folder))
    argv = (context.python, "-m", "tests.gpu.check", *words)
    try:
        done = context.run("gpu-check", argv, cwd=ROOT)
        context.notes.criterion("the check came to its end", done.returncode == 0, f"exit status {done.returncode}")
    except subprocess.TimeoutExpired:
        context.notes.criterion("the check came to its end", False, "it was stopped at the time limit of this part")
    for file in context.folder.glob("*.md"):  # it is written after each part
        text = file.read_text(encoding="utf-8")
        context.notes.text("Report of the check", text.partition("## Raw numbers")[0])
        context.notes.criteria(judge_check(text, is_fake=context.is_fake))
    if context.is_fake:
        context.notes.not_checked("out of memory, and a fork before CUDA", "this GPU is a fake one")


def judge_check(text: str, *, is_fake: bool) -> list[Criterion]:
    """Judge the report of scripts/gpu-check."""
    failed = re.findall(r"^(?:failed: |It does not work: ).*$", text, re.MULTILINE)
    left_out = re.findall(r"^not run: .*$", text, re.MULTILINE)
    loads = {
        name: (float(truth), float(own))
        for name, truth, own in re.findall(
            r"^\| ([\w ]+) \| ([\d.]+) % \| [\d.-]+ ?%? \| ([\d.]+) %", text, re.MULTILINE
        )
    }
    found = [
        Criterion(text="no part of the check failed", passed=not failed, seen="; ".join(failed) or "none"),
        Criterion(
            text="no part of the check was left out but what takes CUDA on a fake GPU",
            passed=len(left_out) == (2 if is_fake else 0),
            seen=f"{len(left_out)} left out",
        ),
    ]
    if not is_fake:
        named = re.findall(r"^Named `([^`]+)`", text, re.MULTILINE)
        found.append(
            Criterion(
                text="the framework's own error is named `out of GPU memory`",
                passed=named == ["out of GPU memory"],
                seen=", ".join(named) or "not in the report",
            )
        )
    for name in ("half busy", "busy", "starved"):
        truth, own = loads.get(name, (0.0, -100.0))
        found.append(
            Criterion(
                text=f"the load `{name}` is seen within 10 points of its true share of the time",
                passed=abs(truth - own) <= 10.0,
                seen=f"{truth:.1f} % true, {own:.1f} % seen" if name in loads else "not in the report",
            )
        )
    return found


# starved

_IMAGES = """\
# A small image classifier, as it was first written.
data:
  batch_size: 64        # images per step
  num_workers: 1        # processes that decode
  prefetch_factor: 2
  pin_memory: false

training:
  epochs: 1000
  learning_rate: 0.01
  bf16: false           # autocast
  tf32: false
  channels_last: false

autotune:
  folder: .
  command: COMMAND
"""


def starved(context: Context) -> None:
    """A search on a trainer whose GPU waits for one decoding worker, and plain training before and after it."""
    config = _IMAGES.replace("batch_size: 64 ", "batch_size: 32 ") if context.is_fake else _IMAGES
    project, notes = Project(context, "images.py", config), context.notes
    before = project.plain_samples_per_s("before")
    answer = project.search(120)
    for name in ("baseline", "best"):
        notes.figure(f"GPU utilization, {name}", gpu_text(answer, name))
    notes.criteria(judge_starved(answer))
    notes.text("Change to the config", answer.get("diff") or "none")
    if answer.get("verdict") != "better":
        return
    applied = project.autotune("apply", "--all", "--force")
    notes.criterion(
        "the answer is written into the config", applied.returncode == 0, f"exit status {applied.returncode}"
    )
    after = project.plain_samples_per_s("after")
    notes.criteria(judge_claim(answer, before, after))


def judge_starved(answer: Document) -> list[Criterion]:
    """Judge the answer of a search on a starved GPU."""
    before, after = (_device(answer, name).get("utilization") for name in ("baseline", "best"))
    pattern = _device(answer, "baseline").get("verdict")
    return [
        *judge_better(answer),
        Criterion(
            text="the GPU is used for 2 to 40 % of the time before",
            passed=before is not None and 0.02 <= before <= 0.40,
            seen=_percent(before),
        ),
        Criterion(
            text="its use oscillates: cyclic, with a period, or bursty",
            passed=pattern in ("cyclic", "bursty"),
            seen=gpu_text(answer, "baseline"),
        ),
        Criterion(
            text="the GPU is used more after",
            passed=before is not None and after is not None and after > before,
            seen=f"{_percent(before)}, then {_percent(after)}",
        ),
    ]


def judge_better(answer: Document, least: float = 1.02) -> list[Criterion]:
    """Judge whether a search has confirmed something better."""
    speedup = answer.get("speedup") or {}
    low = speedup.get("low") or 0.0
    return [
        Criterion(
            text=f"the search confirms something better: the interval begins above {least:g}x",
            passed=answer.get("verdict") == "better" and low > least,
            seen=f"{answer.get('verdict', 'no answer')}, {_ratio(speedup)}",
        )
    ]


def judge_claim(answer: Document, before: float, after: float) -> list[Criterion]:
    """Judge whether plain training gains what the search has claimed."""
    speedup = answer["speedup"]
    achieved = after / before if before else 0.0
    low, high = speedup["low"] * (1 - _TOLERANCE), speedup["high"] * (1 + _TOLERANCE)
    return [
        Criterion(
            text=f"plain training gains what was claimed: within the interval, give or take {100 * _TOLERANCE:.0f} %",
            passed=low <= achieved <= high,
            seen=f"claimed {_ratio(speedup)}, achieved {achieved:.2f}x",
        )
    ]


# precision

_TRANSFORMER = """\
# A small transformer, all in float32.
training:
  batch_size: 32
  epochs: 1000
  bf16: false           # autocast
  tf32: false
  compile: false

autotune:
  folder: .
  command: COMMAND
  code: false           # what stands in train.py is not varied
"""
_LABELS = {"training.bf16": "precision", "training.tf32": "precision", "training.compile": "same training"}


def precision(context: Context) -> None:
    """A search on a float32 transformer, with the batch as it is."""
    project, notes = Project(context, "transformer.py", _TRANSFORMER), context.notes
    plan = project.autotune("search", "--dry-run", "--batch", "same").stdout
    answer = project.search(92, "--batch", "same")
    trials = project.trials()
    notes.criteria([*judge_labels(plan, answer), *judge_better(answer), *judge_precision(answer, trials)])
    for name in ("baseline", "best"):
        notes.figure(f"GPU utilization, {name}", gpu_text(answer, name))
    compiled = [trial for trial in trials if trial["values"].get("training.compile")]
    starts = [(trial.get("measurement") or {}).get("first_step_s") for trial in compiled]
    shown = ", ".join("no step" if start is None else f"{start:.1f} s" for start in starts)
    notes.figure("first step of trials with torch.compile", shown or "none was made")
    notes.not_checked("channels_last", "a transformer has no channels; it is a knob of the part `starved`")
    notes.text("Change to the config", answer.get("diff") or "none")


def judge_labels(plan: str, answer: Document) -> list[Criterion]:
    """Judge the labels of knobs in the plan of a search, and of the changes in its answer."""
    found = []
    for path, label in _LABELS.items():
        line = next((line for line in plan.splitlines() if line.split()[:1] == [path]), "")
        shown = next(
            (one for one in ("same training", "precision", "batch", "unknown") if one in line), "not in the plan"
        )
        changed = [change["label"] for change in answer.get("changes") or () if change["path"] == path]
        found.append(
            Criterion(
                text=f"`{path}` is labelled `{label}`",
                passed=shown == label and all(one == label for one in changed),
                seen=", ".join([shown, *changed]),
            )
        )
    return found


def judge_precision(answer: Document, trials: Sequence[Document]) -> list[Criterion]:
    """Judge what a search on a float32 trainer has tried, and its answer that leaves the training unchanged."""
    found = []
    for path in ("training.tf32", "training.bf16"):
        tried = [trial for trial in trials if trial["values"].get(path) is True]
        measured = sum(trial.get("measurement") is not None for trial in tried)
        found.append(Criterion(text=f"`{path}` is tried and measured", passed=measured > 0, seen=f"{measured} trials"))
    compiled = [trial for trial in trials if trial["values"].get("training.compile")]
    lost = [trial["ending"] for trial in compiled if trial.get("measurement") is None]
    found.append(
        Criterion(
            text="`torch.compile` is measured, or left out: no trial is lost to its start",
            passed=not lost,
            seen=f"{len(compiled)} trials, {len(lost)} of them without numbers {lost or ''}".strip(),
        )
    )
    same, baseline = answer.get("same_training"), answer.get("baseline") or {}
    values = (same or {}).get("values") or {}
    changed = {path for path, value in values.items() if value != baseline.get("values", {}).get(path)}
    others_of_training = [path for path, label in _LABELS.items() if label != "same training"]
    others = sorted(path for path in changed if _LABELS.get(path) != "same training")
    labels = {change["label"] for change in answer.get("changes") or ()}
    is_itself = answer.get("verdict") == "no_change" or labels == {"same training"}  # the answer leaves it unchanged
    today = 1.05 * ((baseline.get("metrics") or {}).get("samples_per_s") or 0.0)  # that much is told from noise
    only_compiled = [trial for trial in compiled if not any(trial["values"].get(path) for path in others_of_training)]
    is_nothing = not any((one["measurement"] or {}).get("samples_per_s", 0.0) > today for one in only_compiled)
    found.append(
        Criterion(
            text="the answer that leaves the training unchanged stands beside it, and changes nothing else; or no "
            "trial of such was faster",
            passed=(not others if same is not None else is_nothing) or is_itself,
            seen=(
                f"none; {len(only_compiled)} trials of torch.compile alone"
                if same is None
                else f"{', '.join(sorted(changed)) or 'no change'}, {same.get('speedup') or 1.0:.2f}x; {others or ''}"
            ).strip("; "),
        )
    )
    return found


# memory limit

_PAIRS = """\
# Contrastive learning: the memory of a step grows with the square of its batch.
training:
  batch_size: 32
  epochs: 1000

autotune:
  folder: .
  command: COMMAND
  code: false
  knobs:
    training.batch_size: [16, 32, 64, 128, 256, 512]
"""


def memory_limit(context: Context) -> None:
    """A search whose larger batches do not fit into the GPU's memory."""
    project, notes = Project(context, "pairs.py", _PAIRS), context.notes
    before = memory_used_bytes()
    notes.figure("GPU memory in use before", f"{before / 2**30:.2f} GiB")
    answer = project.search(42)
    ends_s = time.monotonic() + 5.0
    while (after := memory_used_bytes()) > before + _MEMORY_SLACK_BYTES and time.monotonic() < min(
        ends_s, context.ends_s
    ):
        time.sleep(0.1)
    notes.figure("GPU memory in use after", f"{after / 2**30:.2f} GiB")
    notes.criteria(judge_memory_limit(answer, project.trials()))
    left = processes_in(project.folder)
    notes.criterion("no process of a trial is left", not left, ", ".join(left) or "none")
    notes.criterion(
        "the memory in use is back where it was, within 0.25 GiB",
        after <= before + _MEMORY_SLACK_BYTES,
        f"{before / 2**30:.2f} GiB before, {after / 2**30:.2f} GiB after",
    )


_MEMORY_SLACK_BYTES = 1 << 28  # drivers keep a little for themselves


def judge_memory_limit(answer: Document, trials: Sequence[Document]) -> list[Criterion]:
    """Judge the trials of a search of which the larger batches do not fit."""
    batches = [(trial["values"]["training.batch_size"], trial["ending"]) for trial in trials]
    full = [batch for batch, ending in batches if ending == "out of GPU memory"]
    fitting = [batch for batch, ending in batches if ending in ("stopped", "completed")]
    smallest, beyond = None, []
    for batch, ending in batches:  # as they came: what is skipped is skipped from then on
        if smallest is not None and batch >= smallest:
            beyond.append(batch)
        if ending == "out of GPU memory":
            smallest = min(batch, smallest or batch)
    shown = ", ".join(f"{batch} {ending}" for batch, ending in batches)
    return [
        Criterion(
            text="a batch that does not fit is reported as `out of GPU memory`",
            passed=bool(full) and (answer.get("outcomes") or {}).get("out of GPU memory") == len(full),
            seen=f"{answer.get('outcomes')}",
        ),
        Criterion(
            text="a smaller batch fits, and is measured",
            passed=bool(full and fitting) and min(fitting) < min(full),
            seen=shown,
        ),
        Criterion(
            text="no batch of that size or larger is tried after it",
            passed=bool(full) and not beyond,
            seen=", ".join(map(str, beyond)) or ("none" if full else "no batch failed"),
        ),
    ]


def memory_used_bytes() -> int:
    """Return the memory of the first GPU that is in use, as the driver says."""
    from autotune.measure.gpu.driver import Driver

    with Driver() as driver:
        return driver.device_at(0).memory().used_bytes


def processes_in(folder: Path) -> list[str]:
    """Return the processes that work in a folder or below it, with their commands."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            where = Path(os.readlink(process / "cwd"))
            command = (process / "cmdline").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if where.is_relative_to(folder) and command:
            found.append(f"{process.name} {command.replace(chr(0), ' ').strip()[:80]}")
    return found


# stalls

_STALLS = """\
training:
  batch_size: 32
  epochs: 1000

autotune:
  folder: .
  command: COMMAND
"""


def stalls(context: Context) -> None:
    """A diagnosis of a trainer that reads from the GPU in each step, and pauses every 40 steps."""
    project, notes = Project(context, "stalls.py", _STALLS), context.notes
    lines = (project.folder / "train.py").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if "# fault:" in line:
            notes.figure(f"train.py:{number}", line.strip())
    budget = f"{max(15, round(46 * context.scale))}s"
    done = project.autotune("diagnose", "--budget", budget, "--json")
    diagnosis = json.loads(done.stdout)
    notes.text("What diagnose says", _diagnosis_text(diagnosis))
    reads, pause = (_line_of(lines, f"# fault: {fault}") for fault in ("reads", "pause"))
    notes.criteria(judge_stalls(diagnosis, reads=reads, pause=pause, is_fake=context.is_fake))
    if context.is_fake:
        notes.not_checked(
            "the share of time of reading from the GPU", "PyTorch has no CUDA here, and nothing to wait for"
        )


def _line_of(lines: Sequence[str], text: str) -> int:
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def judge_stalls(diagnosis: Document, *, reads: int, pause: int, is_fake: bool) -> list[Criterion]:
    """Judge whether a diagnosis names two lines of the trainer, each with its share of the time.

    Args:
        reads: Line that reads from the GPU.
        pause: Line that pauses.
    """
    issues = [issue for one in diagnosis.get("checks") or () for issue in one["issues"]]
    found = []
    for what, line, needs_share in (("reads from the GPU", reads, not is_fake), ("pauses", pause, True)):
        naming = [issue for issue in issues if names_line(issue, line)]
        shares = [issue["numbers"]["time_fraction"] for issue in naming if "time_fraction" in issue["numbers"]]
        share = " with its share of the time" if needs_share else ""
        found.append(
            Criterion(
                text=f"the line that {what}, train.py:{line}, is named{share}",
                passed=bool(shares) if needs_share else bool(naming),
                seen=", ".join(_percent(one) for one in shares) or ("named without a share" if naming else "not named"),
            )
        )
    return found


def names_line(issue: Document, line: int) -> bool:
    """Return whether an issue names a line of train.py."""
    texts = [issue.get("place") or "", issue["sentence"], *(one["sentence"] for one in issue["recommendations"])]
    return any(re.search(rf"\btrain\.py:{line}\b", text) for text in texts)


def _diagnosis_text(diagnosis: Document) -> str:
    verdict = (diagnosis.get("verdict") or {}).get("sentence") or str(diagnosis.get("error"))
    lines = [verdict, ""]
    for one in diagnosis.get("checks") or ():
        told = [f"{issue['severity']} {issue.get('place') or ''}: {issue['sentence']}" for issue in one["issues"]]
        lines += [
            f"{one['id']}: {text}" for text in told or [one.get("sentence") or one.get("why_not") or "nothing found"]
        ]
    return "\n".join(lines)


# neighbours

_SHARED = """\
training:
  batch_size: 32
  epochs: 1000
  bf16: false
  tf32: false
  compile: false

autotune:
  folder: .
  command: COMMAND
  code: false
  trial: {min_s: 2, max_s: 3}
  knobs:
    training.bf16: [false, true]
"""


def neighbours(context: Context) -> None:
    """A search during which another process is on the GPU, until a trial has ended beside it."""
    project, notes = Project(context, "transformer.py", _SHARED), context.notes
    framework = "fake" if context.is_fake else "torch"
    load = (
        context.torch_python,
        str(ROOT / "tests/gpu/load.py"),
        framework,
        "60",
        "20",
        str(context.folder / "bursts"),
    )
    # A disturbed trial is repeated if the budget has time for two of 10 s, while the trials' own time is not known. The
    # search is interrupted once it has done that: then it says what it has.
    words = project.argv("search", "--budget", "30s", "--no-apply", "--json")
    search, stdout, screen = context.start("autotune search", words, cwd=project.folder)
    other: subprocess.Popen[bytes] | None = None
    interrupts_s = context.ends_s - 3.0
    try:
        while search.poll() is None and context.left_s() > 0.1:
            trials = project.trials()
            if other is None and any(event["event"] == "TrialStarted" for event in project.events()):
                other, _, _ = context.start("The other process", load, cwd=context.folder)
                notes.figure("the other process", f"{other.pid}, kernels for about 60 ms of 80 ms")
            if other is not None and other.poll() is None and any(map(is_disturbed, trials)):
                other.kill()
                other.wait()
            if repeats_of_disturbed(trials) or time.monotonic() > interrupts_s:
                search.send_signal(signal.SIGINT)
                search.wait(timeout=context.left_s())
            time.sleep(0.05)
    finally:
        for process in filter(None, (other, search)):
            process.kill()
            process.wait()
    said = stdout.read_text(encoding="utf-8")
    answer = json.loads(said) if said.strip() else {}
    notes.criteria(judge_neighbours(answer, project.trials(), screen.read_text(encoding="utf-8")))


def is_disturbed(trial: Document) -> bool:
    """Return whether a trial is recorded as one during which others used the GPU."""
    return trial["validity"] == "contaminated"


def repeats_of_disturbed(trials: Sequence[Document]) -> list[Document]:
    """Return the good trials of the point of the first disturbed one, after it."""
    first = next(filter(is_disturbed, trials), None)
    return [
        trial
        for trial in trials
        if first
        and trial["number"] > first["number"]
        and trial["point"] == first["point"]
        and trial["validity"] == "good"
    ]


def judge_neighbours(answer: Document, trials: Sequence[Document], screen: str) -> list[Criterion]:
    """Judge what a search does with a trial during which another process used the GPU."""
    disturbed = [trial for trial in trials if is_disturbed(trial)]
    first = disturbed[0]["number"] if disturbed else None
    again = repeats_of_disturbed(trials)
    said = [line.strip() for line in screen.splitlines() if re.search(rf"\btrial {first}\b", line)]
    reported = [line for line in said if disturbed and disturbed[0]["detail"] and disturbed[0]["detail"] in line]
    sides = [side for side in (answer.get("baseline"), answer.get("best")) if side]
    speeds = {(side.get("metrics") or {}).get("samples_per_s") for side in sides}
    of_disturbed = {(trial.get("measurement") or {}).get("samples_per_s") for trial in disturbed} - {None}
    return [
        Criterion(
            text="the other process is detected: a trial is recorded as disturbed, with its reason",
            passed=any(trial["detail"] for trial in disturbed),
            seen="; ".join(trial["detail"] or "no reason" for trial in disturbed) or "no trial",
        ),
        Criterion(
            text="the line of that trial on the screen gives the reason",
            passed=bool(reported),
            seen=(reported or said or ["nothing"])[0],
        ),
        Criterion(
            text="the trial is excluded: the same point is measured again, and the answer is made of that",
            passed=bool(again) and not speeds & of_disturbed,
            seen=f"trial {first} excluded, measured again as {[trial['number'] for trial in again]}",
        ),
    ]


# What is common to several parts.


def gpu_text(answer: Document, side: str) -> str:
    """Return the utilization of a side's GPU as the screen has it, with its period."""
    device = _device(answer, side)
    period_s = device.get("period_s")
    mean = f"; mean {_percent(device.get('utilization'))}"
    period = f"; period {period_s:.2f} s" if period_s is not None and "period" not in device["text"] else ""
    return f"{device['text']}{mean}{period}" if device else "not measured"


def _device(answer: Document, side: str) -> Document:
    devices = ((answer.get(side) or {}).get("gpus") or {}).get("devices") or [{}]
    return devices[0]


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.0f} %"


def _ratio(ratio: Document) -> str:
    return f"{ratio['ratio']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else "no speedup"


PARTS: Mapping[str, Callable[[Context], None]] = {
    "check": check,
    "starved": starved,
    "precision": precision,
    "memory limit": memory_limit,
    "stalls": stalls,
    "neighbours": neighbours,
}


def end_with_driver() -> None:
    """End this part's process group once its lifeline, stdin, is cut: the driver was killed."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main(name: str, folder: Path) -> int:
    """Run one part; its notes say what it found."""
    end_with_driver()
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    notes = Notes(folder=folder)
    try:
        PARTS[name](Context(notes=notes, folder=folder, **task))
    except Exception:  # whatever it is, the report says it, and the other parts are run
        notes.end(traceback.format_exc())
        raise
    notes.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

"""Checks of the machine as it is now: GPUs and driver, the host's memory, the dataset's storage, the framework."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from autotune.clock import Clock
from autotune.config.command import resolve_executable
from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, capitalized, counted, issue
from autotune.diagnose.subject import DatasetPlace, Subject, known_keys, missing_data, place_of, trainer_text
from autotune.errors import AutotuneError, GpuError
from autotune.files import open_regular
from autotune.frameworks import FRAMEWORKS
from autotune.measure.gpu.driver import THROTTLING, Device, Driver, DriverError, in_time, look_for_gpus, reasons_of
from autotune.measure.gpu.occupancy import GpuOccupancy, busy_gpus
from autotune.measure.host import file_system, is_network, is_rotating, memory_state, text_of
from autotune.search.gpus import remarks_on_gpus
from autotune.search.problem import Problem
from autotune.study.identity import framework_versions
from autotune.trial.children import run_short
from autotune.trial.python_command import python_command

_GIB = 1 << 30
_of_hardware = partial(issue, "hardware")

Told = TypeVar("Told")


def check_hardware(look: Subject) -> CheckResult:
    """Look for GPUs, at what holds their clocks down, their limits, and at who is on them."""
    inventory = look_for_gpus()
    issues = [*_choice(look)]
    if inventory.why_none is not None:
        if not inventory.is_without_driver or _cards():
            cards = " though there is a card of NVIDIA's in this machine" if _cards() else ""
            unusable = f"No GPU can be used{cards}: {inventory.why_none}."
            issues.append(_of_hardware(unusable, inventory.remedy or ""))
        none = f"no GPU: {inventory.why_none}"
        return CheckResult(check="hardware", issues=tuple(issues), sentence=none)
    issues += map(_of_hardware, inventory.silent)
    try:
        asked = in_time(_driver_and_conditions)
    except DriverError as error:
        broken = _of_hardware(capitalized(f"{error.for_people}."), error.remedy)
        return CheckResult(check="hardware", issues=(*issues, broken))
    if asked is None:
        silent = _of_hardware("The NVIDIA driver has not answered for 10 s.", "`dmesg` may say why.")
        return CheckResult(check="hardware", issues=(*issues, silent))
    driver, conditions = asked
    issues += conditions
    for gpu in inventory.gpus:
        if gpu.mig_uuids is not None:
            cut = f"{gpu.name} is cut into {len(gpu.mig_uuids)} MIG instances, whose utilization not all drivers tell."
            issues.append(_of_hardware(cut, place=gpu.uuid, severity=Severity.NOTE))
    issues += _neighbours(look)
    names = ", ".join(f"{gpu.name} ({(gpu.memory_bytes or 0) / _GIB:.0f} GiB)" for gpu in inventory.gpus)
    sentence = f"{names}; driver {driver}" if driver else names
    return CheckResult(check="hardware", issues=tuple(issues), sentence=sentence)


def _choice(look: Subject) -> Iterator[Issue]:
    if look.problem is None:
        return
    place = "CUDA_VISIBLE_DEVICES"
    try:
        for remark in remarks_on_gpus(look.problem):
            if "alike" not in remark and not remark.startswith("To have"):
                yield _of_hardware(capitalized(f"{remark}."), place=place, severity=Severity.NOTE)
    except GpuError as error:
        yield _of_hardware(capitalized(f"{error.message}."), error.remedy or "", place=place, severity=Severity.ERROR)


def _driver_and_conditions() -> tuple[str | None, list[Issue]]:
    """Return the driver's version and what holds the GPUs back that answer, in the order of the driver.

    Raises:
        DriverError: There is no driver, or it does not work.
    """
    found = []
    with Driver() as driver:
        for index in range(driver.count()):
            device = _if_told(partial(driver.device_at, index))
            found += (_if_told(partial(_of_device, device)) or []) if device is not None else []
        return _if_told(driver.version), found


def _if_told(ask: Callable[[], Told]) -> Told | None:
    try:
        return ask()
    except DriverError:
        return None


def _of_device(device: Device) -> list[Issue]:
    """Return what holds one GPU back; what the driver does not say is no issue."""
    return list(_issues_of(device.name(), partial(_of_hardware, place=device.uuid()), device))


def _issues_of(name: str, found: Callable[..., Issue], device: Device) -> Iterator[Issue]:
    held = THROTTLING & set(reasons_of(_if_told(device.clock_reasons) or 0))
    if held:
        temperature = _if_told(device.temperature_c)
        at = f" at {temperature} °C" if temperature is not None else ""
        reasons = ", ".join(sorted(held))
        yield found(
            f"The clocks of {name} are held down right now{at}: {reasons}.",
            "See to its fans and the air in front of them, or its power supply; numbers measured now are too low.",
            limit=Limit.THROTTLING,
        )
    now_w, usual_w = _if_told(device.power_limits_w) or (1.0, 1.0)
    if now_w < 0.95 * usual_w:  # of the limit that a GPU came with; makers round
        yield found(
            f"{name} may draw {now_w:.0f} W of the {usual_w:.0f} W that it came with.",
            f"If nobody wants it so: sudo nvidia-smi -pl {usual_w:.0f}.",
            severity=Severity.NOTE,
            numbers={"power_limit_w": now_w, "default_power_limit_w": usual_w},
            limit=Limit.STEP,
        )
    now, most = _if_told(device.pcie_widths) or (0, 0)
    if 0 < now < most:
        yield found(
            f"{name} is linked to the host by {now} lanes of the {most} that both could use.",
            "Some lower it while idle; if it stays so under load, put the card into another slot, or seat it again.",
            severity=Severity.WARNING if now * 2 <= most else Severity.NOTE,
            numbers={"pcie_lanes": now, "most_pcie_lanes": most},
        )
    if _if_told(device.is_persistent) is False:
        sentence = f"The driver of {name} is unloaded whenever nobody uses it: each training starts some seconds later."
        remedy = "sudo nvidia-smi -pm 1, or the service nvidia-persistenced."
        yield found(sentence, remedy, severity=Severity.NOTE)


def _neighbours(look: Subject) -> Iterator[Issue]:
    uuids = [gpu.uuid for gpu in look.gpus if gpu.mig_uuids is None]
    try:
        busy: tuple[GpuOccupancy, ...] = in_time(lambda: busy_gpus(uuids, look.clock)) or ()
    except DriverError:
        return
    for gpu in busy:
        names = {one.pid: f" ({one.name})" if one.name else "" for one in gpu.occupants if one.computes}
        computing = [f"process {pid}{name}" for pid, name in names.items()]
        if computing:
            yield _of_hardware(
                f"{gpu.name} is in use by {', '.join(computing)}.",
                "Wait until it is free, or choose another one with CUDA_VISIBLE_DEVICES.",
                place=gpu.uuid,
                limit=Limit.NEIGHBOUR,
            )


def _cards() -> bool:
    # On the PCI bus 0x10de is NVIDIA, and 0x03 the class of display controllers, with compute ones.
    return any(
        text_of(vendor) == "0x10de" and (text_of(vendor.replace("vendor", "class")) or "").startswith("0x03")
        for vendor in glob.glob("/sys/bus/pci/devices/*/vendor")
    )


# Check of the host's memory: what is free of it, swap, a cgroup's limit, and the shared memory of loaders.


def check_memory(look: Subject) -> CheckResult:
    """Look at the memory that a training may have."""
    state = memory_state()
    available, total = _gib(state.available_bytes), _gib(state.total_bytes)
    found = partial(issue, "memory", limit=Limit.MEMORY)
    numbers = {"available_bytes": float(state.available_bytes), "total_bytes": float(state.total_bytes)}
    issues = []
    # a framework with its libraries takes half a GiB to two
    if state.available_bytes < max(2 * _GIB, 0.1 * state.total_bytes):
        of = "of the limit of its cgroup" if state.limit_bytes is not None else "of the host's memory"
        left = f"{available} {of}, {total}, are left for a training."
        remedy = "End what else runs here, or give the container more memory."
        issues.append(found(left, remedy, numbers=numbers))
    if state.pressure is not None and state.pressure > 0.1:  # share of time in which some process waits for memory
        swapped = state.swap_used_bytes
        swap = f" {_gib(swapped)} are swapped out." if swapped else ""
        waited = f"Processes waited for memory in {state.pressure:.0%} of the last 10 s.{swap}"
        numbers |= {"swap_used_bytes": float(swapped), "pressure_fraction": state.pressure}
        issues.append(found(waited, "End what takes it, or use fewer workers.", numbers=numbers))
    if (small := _small_shared_memory(look)) is not None:
        issues.append(small)
    limit = f", a limit of {_gib(state.limit_bytes)}" if state.limit_bytes is not None else ""
    sentence = f"{available} of {total} available{limit}"
    return CheckResult(check="memory", issues=tuple(issues), sentence=sentence)


def _small_shared_memory(look: Subject) -> Issue | None:
    """Return shared memory that is too small for the workers of PyTorch's loader, which die of a bus error then."""
    if look.problem is None or "torch" not in look.problem.frameworks:
        return None
    workers = [key.value for key in known_keys(look.problem) if key.row.counts == "workers"]
    if not any(isinstance(number, int) and number > 0 for number in workers):
        return None
    folder = "/dev/shm"  # noqa: S108 -- it is looked at, and nothing made in it
    try:
        size = shutil.disk_usage(folder).total
    except OSError:
        return None
    if size >= _GIB:  # Docker gives 64 MiB; PyTorch's README asks for --ipc=host or --shm-size
        return None
    sentence: str = f"{folder} holds {size / 2**20:.0f} MiB: workers of PyTorch's loader send batches through it."
    remedy = "Start the container with --ipc=host, or --shm-size=8g."
    return issue("memory", sentence, remedy, numbers={"shared_memory_bytes": float(size)}, limit=Limit.MEMORY)


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


# Check of the storage that the dataset is on.


def check_storage(look: Subject) -> CheckResult:
    """Look at where the dataset is, and read some of it."""
    if look.problem is None:
        why_not = "no config is given, so that it is not known where the dataset is"
        return CheckResult(check="storage", why_not=why_not)
    if look.places is None:
        return CheckResult(check="storage", issues=(_silent(),))
    issues, seen = [], []
    for key, value in missing_data(look.problem):
        missing = f"{key} names {value}, and there is nothing of that name on this machine."
        remedy = "Correct the path, or mount what is there."
        place_of_key = place_of(look.problem, key)
        issues.append(issue("storage", missing, remedy, severity=Severity.ERROR, place=place_of_key))
    if not look.places and not issues:
        return CheckResult(check="storage", why_not="the config names no dataset that is on this machine")
    for place in look.places:
        rate = None
        if place is look.places[0]:
            rate = in_time(partial(reading_rate, place.files, look.clock))
            issues += [_silent()] if rate is None else []
        seen.append(_dataset_sentence(place, rate))
        issues += _of_place(place, rate)
    return CheckResult(check="storage", issues=tuple(issues), sentence="; ".join(seen))


def _of_place(place: DatasetPlace, rate: ReadingRate | None) -> Iterator[Issue]:
    kind = file_system(place.path) or "unknown"
    on_network, rotates = is_network(kind), is_rotating(place.path)
    found = partial(issue, "storage", place=str(place.path), limit=Limit.READING)
    if on_network:
        yield found(
            f"The dataset is on another machine ({kind}): each file that is read crosses the network.",
            _copy(place),
            severity=Severity.WARNING if rate is None or _is_slow(rate) else Severity.NOTE,
        )
    elif rate is not None and _is_slow(rate):
        disk = "a disk that rotates" if rotates else f"this disk ({kind})"
        reads = rate.disk
        yield found(
            f"{capitalized(disk)} gave {_rates(rate)}, which is slow.",
            _copy(place),
            numbers={"disk_bytes_per_s": reads.bytes_per_s, "disk_files_per_s": reads.files_per_s},
        )
    small = sum(size < 256 << 10 for _, size in place.files)
    if small >= 10_000 and small * 2 > len(place.files) and (on_network or rotates):
        yield found(
            f"{small:,} of its files are smaller than 256 KiB: each costs a look-up and a seek.",
            "Pack them into a few large files once, e.g. TFRecord or tar files of 100 MB and more.",
            severity=Severity.NOTE,
        )


def _silent() -> Issue:
    """Return the issue that a file system hangs, as a network does whose server is gone."""
    return issue(
        "storage",
        "The file system of the dataset has not answered for 10 s.",
        "See with `df` whether it answers; on a network, its server may be gone.",
        severity=Severity.ERROR,
        limit=Limit.READING,
    )


def _is_slow(rate: ReadingRate) -> bool:
    # what one disk that rotates reads in sequence, and seeks in 5 to 10 ms; an SSD reads several times that
    reads = rate.disk
    return rate.knows_cache and reads.are_enough and reads.bytes_per_s < 150e6 and reads.files_per_s < 200


def _copy(place: DatasetPlace) -> str:
    # of the available memory that a dataset may take of the page cache
    if place.is_whole and place.size_bytes < 0.5 * memory_state().available_bytes:
        return (
            f"Its {place.size_bytes / 2**30:.1f} GiB fit into memory: cache it there, or copy it to a local SSD "
            "before training."
        )
    return "Copy it to a local SSD before training, or cache what is prepared of it."


def _dataset_sentence(place: DatasetPlace, rate: ReadingRate | None) -> str:
    kind = file_system(place.path)
    more, where = "" if place.is_whole else " and more", f" on {kind}" if kind else ""
    files = f"{place.key}: {counted(len(place.files), 'file')}{more}, {place.size_bytes / 2**30:.2f} GiB{where}"
    rates = _rates(rate) if rate is not None else ""
    return ", ".join((files, rates)) if rates else files


def _rates(rate: ReadingRate) -> str:
    from_disk = "from the disk" if rate.knows_cache else "read"
    return ", ".join(
        f"{reads.bytes_per_s / 1e6:,.0f} MB/s and {reads.files_per_s:,.0f} files/s {source} ({reads.files} files)"
        for reads, source in ((rate.disk, from_disk), (rate.cache, "from memory"))
        if reads.are_enough
    )


@dataclass(kw_only=True)
class Reads:
    """Reads from one source."""

    files: int = 0
    size_bytes: int = 0
    duration_s: float = 0.0

    @property
    def are_enough(self) -> bool:
        """True if a rate can be told of them."""
        return (self.files >= 8 or self.size_bytes >= 32 << 20) and self.size_bytes > 0 and self.duration_s > 0

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.duration_s

    @property
    def files_per_s(self) -> float:
        return self.files / self.duration_s


@dataclass(frozen=True, kw_only=True)
class ReadingRate:
    """Reads of a sample of files.

    Attributes:
        disk: Those of files that were not in the page cache, or where that is not known.
        knows_cache: Whether the file system tells what is in the page cache.
    """

    disk: Reads
    cache: Reads
    knows_cache: bool


def reading_rate(files: Sequence[tuple[Path, int]], clock: Clock) -> ReadingRate:
    """Read a sample of files, for at most 2 s and 256 MiB.

    Args:
        files: Files with their sizes; at most 400 evenly spread over them are read, far ones after each other, as a
            shuffled epoch reads them.
    """
    disk, cache, knows = Reads(), Reads(), True
    deadline_s, left = clock.now_s() + 2.0, 256 << 20
    chosen = list(files[:: max(1, len(files) // 400)])[:400]
    for path, _size_bytes in [one for start in range(7) for one in chosen[start::7]]:
        if clock.now_s() >= deadline_s or left <= 0:
            break
        began_s, size = clock.now_s(), 0
        try:
            with open_regular(Path(os.path.realpath(path))) as file:  # links to files are usual in datasets
                is_cached = _is_cached(file.fileno())
                while left > 0 and clock.now_s() < deadline_s and (piece := file.read(min(1 << 20, left))):
                    size += len(piece)
                    left -= len(piece)
        except OSError:
            continue
        knows = knows and is_cached is not None
        reads = cache if is_cached else disk
        reads.files += 1
        reads.size_bytes += size
        reads.duration_s += clock.now_s() - began_s
    return ReadingRate(disk=disk, cache=cache, knows_cache=knows)


def _is_cached(descriptor: int) -> bool | None:
    """Return whether the beginning of a file is in the page cache; None where the file system does not tell."""
    if not hasattr(os, "preadv"):
        return None
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) >= 0
    except BlockingIOError:
        return False
    except OSError:
        return None


# Checks of the framework beside the trainer's interpreter: its build, graph mode and XLA, and its own decoders. A
# short-lived child of that interpreter is asked (`framework_child`).


_CHILD_LIMIT_S = 25.0
_QUERIED = {row.module: row for row in FRAMEWORKS if row.gpu_build is not None}
_NO_ANSWER = "it gave no answer"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to one question, as the child writes it.

    Attributes:
        name: The question; see `framework_child`.
        value: What was said; None where it failed.
        error: The failure in one line; None where there was none.
    """

    name: str
    value: bool | int | float | str | None = None
    error: str | None = None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FrameworkAnswers:
    """Answers of a framework.

    Attributes:
        framework: ``tensorflow`` or ``torch``; empty where neither is known to be used.
        why_not: Reason for which it was not asked, or not answered; None where it was.
        answers: Answers by the name of the question.
        sample: File that it was to decode; None for none.
    """

    framework: str
    why_not: str | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    sample: Path | None = None

    @property
    def why_not_tensorflow(self) -> str | None:
        """Reason for which nothing is known of TensorFlow; None where it is loaded."""
        if self.framework == "torch":
            return "the trainer uses PyTorch"
        loaded = self.answers.get("import")
        if not self.framework or loaded is None or loaded.error is not None:
            return self.why_not or "TensorFlow cannot be imported"
        return None


def ask_framework(look: Subject) -> FrameworkAnswers:
    """Start the trainer's interpreter for a moment, and ask the framework that the trainer uses; at most 25 s.

    Without trials to come, and without a config, only the interpreter that runs autotune is started.
    """
    problem = look.problem
    interpreter = Path(sys.executable) if problem is None else _interpreter_of(problem)
    if interpreter is None:
        return FrameworkAnswers(framework="", why_not="the command starts no Python interpreter that is found")
    if not look.is_run and interpreter.absolute().parent != Path(sys.executable).parent:
        why_not = "without trials no program of the project is started, and its Python is one"
        return FrameworkAnswers(framework="", why_not=why_not)
    framework = _used_framework(problem, framework_versions(interpreter) if problem is None else problem.frameworks)
    if not framework:
        return FrameworkAnswers(
            framework="", why_not="it imports neither TensorFlow nor PyTorch, or has none installed"
        )
    sample = next((file for place in look.places or () for file in place.decodable), None)
    # A framework looks up programs of the system; where none of the project is to be started, the PATH may name some.
    own = {"PATH": os.defpath} if problem is None or not look.is_run else problem.settings.section.env
    with tempfile.TemporaryDirectory(prefix="autotune-diagnose-") as folder:
        file = Path(folder, "answers.jsonl")
        child = Path(__file__).with_name("framework_child.py").read_text()
        words = (str(interpreter.absolute()), "-c", child, framework, str(file), str(sample or ""))
        ended = run_short(words, _CHILD_LIMIT_S, env={**os.environ, **own})
        answers = _answers_in(file)
    why_silent: str | None = None
    if ended.status != 0:
        late = f"did not answer within {_CHILD_LIMIT_S:.0f} s"
        how = f"ended with {ended.status}" if ended.status is not None else late
        asked = str(interpreter)
        why_silent = f"a child of {asked} that asked {framework} {how}"
    return FrameworkAnswers(framework=framework, why_not=why_silent, answers=answers, sample=sample)


def _interpreter_of(problem: Problem) -> Path | None:
    if not problem.command:
        return None
    if problem.command[0].startswith("{python}"):
        return Path(sys.executable)
    if python_command(problem.command, cwd=problem.settings.folder, search_path=os.environ.get("PATH")) is None:
        return None
    try:
        return resolve_executable(problem.command[0], problem.settings.folder)
    except AutotuneError:
        return None


_NO_FRAMEWORKS = frozenset(("autotune", "numpy", "yaml", "scipy", "pandas", "PIL"))


def _used_framework(problem: Problem | None, versions: Mapping[str, str]) -> str:
    """Return the framework that the trainer imports; where a library may do that for it, one that is installed."""
    installed = [name for name, row in _QUERIED.items() if not versions.keys().isdisjoint(row.distributions)]
    text = trainer_text(problem) if problem is not None else b""
    lines = re.findall(rb"^\s*(?:import\s+([\w., ]+)|from\s+([\w.]+))", text, re.M)
    modules = [
        part.split()[0] for named, source in lines for part in (named or source).decode().split(",") if part.split()
    ]
    imported = {module.split(".")[0] for module in modules}
    # of a module that imports others beside it, these may
    if imported and "" not in imported and imported <= sys.stdlib_module_names | _NO_FRAMEWORKS:
        return ""
    return next((name for name in installed if name in imported), next(iter(installed), ""))


def _answers_in(file: Path) -> dict[str, Answer]:
    """Return the answers in a file; a torn line is passed over, as is a file that is not there."""
    found: dict[str, Answer] = {}
    try:
        for line in file.read_bytes().splitlines():
            answer = msgspec.json.decode(line, type=Answer)
            found[answer.name] = answer
    except (OSError, ValueError):
        pass
    return found


def check_framework(look: Subject, asked: FrameworkAnswers) -> CheckResult:
    """See whether the framework loads, and sees the GPUs that are there."""
    if not asked.framework:
        return CheckResult(check="framework", why_not=asked.why_not or _NO_ANSWER)
    name = _QUERIED[asked.framework].name
    loaded, version, gpus = (asked.answers.get(question) for question in ("import", "version", "gpus"))
    if loaded is not None and loaded.error is not None:
        failed = f"{name} cannot be imported: {loaded.error}."
        found = issue("framework", failed, "Install it again.", severity=Severity.ERROR)
        return CheckResult(check="framework", issues=(found,))
    if version is None or gpus is None:
        return CheckResult(check="framework", why_not=asked.why_not or f"{name} gave no answer")
    issues = []
    if gpus.error is not None:
        reason = gpus.error
        blind = f"{name} {version.value} cannot look for GPUs: {reason}."
        issues.append(issue("framework", blind))
    elif gpus.value == 0 and look.gpus and (look.problem is None or look.problem.machine.gpus):
        built = asked.answers.get("built for GPUs")
        cpu_only = built is not None and built.value is False
        libraries = "it may be that its CUDA libraries do not load, or do not suit the driver"
        blind = (
            f"{name} {version.value} sees no GPU though {look.gpus[0].name} is there: "
            f"{'it is a build for CPUs alone' if cpu_only else libraries}."
        )
        remedy = f"Install a build for GPUs: {_QUERIED[asked.framework].gpu_build}."
        issues.append(issue("framework", blind, remedy, limit=Limit.STEP))
    seen = counted(gpus.value if isinstance(gpus.value, int) else 0, "GPU")
    took = f"; imported in {loaded.seconds:.1f} s" if loaded is not None else ""
    sentence = f"{name} {version.value}, which sees {seen}{took}"
    return CheckResult(check="framework", issues=tuple(issues), sentence=sentence)


def check_graph(asked: FrameworkAnswers) -> CheckResult:
    """See whether TensorFlow compiles a small function into a graph, and with XLA."""
    if why_not := asked.why_not_tensorflow:
        return CheckResult(check="graph-and-xla", why_not=why_not)
    issues, works = [], []
    for name, question in (("graph mode", "graph"), ("XLA", "xla")):
        answer = asked.answers.get(question)
        if answer is not None and answer.error is None:
            works.append(f"{name} works ({answer.seconds:.1f} s for a small function)")
            continue
        fails = f"{name} fails here: {_why_silent(asked, answer)}."
        remedy = "Leave it off in the config, or mend the installation."
        issues.append(issue("graph-and-xla", fails, remedy))
    return CheckResult(check="graph-and-xla", issues=tuple(issues), sentence=" and ".join(works))


def check_native_loader(asked: FrameworkAnswers) -> CheckResult:
    """See whether TensorFlow's own ops decode a file of the dataset."""
    if why_not := asked.why_not_tensorflow:
        return CheckResult(check="native-loader", why_not=why_not)
    if asked.sample is None:
        why_not = "the config names no folder with .wav, .png, .jpg or .tfrecord files"
        return CheckResult(check="native-loader", why_not=why_not)
    answer = asked.answers.get("decode")
    if answer is not None and answer.error is None:
        sentence = f"{asked.sample.name} is {answer.value}"
        return CheckResult(check="native-loader", sentence=sentence)
    found = issue(
        "native-loader",
        f"TensorFlow's own ops do not decode this file: {_why_silent(asked, answer)}.",
        "Convert the files once, e.g. to 16-bit PCM WAV or to TFRecord.",
        severity=Severity.NOTE,
        place=str(asked.sample),
        limit=Limit.PREPARING,
    )
    return CheckResult(check="native-loader", issues=(found,))


def _why_silent(asked: FrameworkAnswers, answer: Answer | None) -> str:
    return str(answer.error) if answer is not None else asked.why_not or _NO_ANSWER

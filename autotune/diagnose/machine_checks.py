"""Checks of the machine: GPUs and driver, host memory, storage of the dataset, framework."""

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
from autotune.config.keys import counted
from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, capitalized, issue, percent
from autotune.diagnose.subject import DatasetPlace, Subject, known_keys, missing_data, place_of, trainer_text
from autotune.errors import AutotuneError, GpuError
from autotune.files import open_regular
from autotune.frameworks import FRAMEWORKS
from autotune.measure.gpu.driver import THROTTLING, Device, Driver, DriverError, in_time, look_for_gpus, reasons_of
from autotune.measure.gpu.occupancy import GpuOccupancy, busy_gpus
from autotune.measure.host import file_system, is_network, is_rotating, memory_state, text_of
from autotune.search.gpus import visibility_remarks
from autotune.search.problem import Problem
from autotune.study.identity import framework_versions
from autotune.trial.children import run_short
from autotune.trial.python_command import python_command

_GIB = 1 << 30
_of_hardware = partial(issue, "hardware")

Value = TypeVar("Value")


def check_hardware(subject: Subject) -> CheckResult:
    """Check the GPUs: presence, throttling, limits, other processes."""
    inventory = look_for_gpus()
    issues = [*_choice(subject)]
    if inventory.why_none is not None:
        if not inventory.is_without_driver or _has_card():
            cards = " although this machine has an NVIDIA card" if _has_card() else ""
            issues.append(_of_hardware(f"No GPU can be used{cards}: {inventory.why_none}.", inventory.remedy or ""))
        return CheckResult(check="hardware", issues=tuple(issues), sentence=f"no GPU: {inventory.why_none}")
    issues += map(_of_hardware, inventory.silent)
    try:
        state = in_time(_driver_and_conditions)
    except DriverError as error:
        broken = _of_hardware(capitalized(f"{error.for_people}."), error.remedy)
        return CheckResult(check="hardware", issues=(*issues, broken))
    if state is None:
        silent = _of_hardware("The NVIDIA driver did not answer within 10 s.", "`dmesg` may show why.")
        return CheckResult(check="hardware", issues=(*issues, silent))
    driver, conditions = state
    issues += conditions
    for gpu in inventory.gpus:
        if gpu.mig_uuids is not None:
            cut = f"{gpu.name} has {len(gpu.mig_uuids)} MIG instances, whose utilization not all drivers report."
            issues.append(_of_hardware(cut, place=gpu.uuid, severity=Severity.NOTE))
    issues += _other_processes(subject)
    names = ", ".join(f"{gpu.name} ({(gpu.memory_bytes or 0) / _GIB:.0f} GiB)" for gpu in inventory.gpus)
    sentence = f"{names}; driver {driver}" if driver else names
    return CheckResult(check="hardware", issues=tuple(issues), sentence=sentence)


def _choice(subject: Subject) -> Iterator[Issue]:
    if subject.problem is None:
        return
    place = "CUDA_VISIBLE_DEVICES"
    try:
        for remark in visibility_remarks(subject.problem):
            yield _of_hardware(capitalized(f"{remark}."), place=place, severity=Severity.NOTE)
    except GpuError as error:
        yield _of_hardware(capitalized(f"{error.message}."), error.remedy or "", place=place, severity=Severity.ERROR)


def _driver_and_conditions() -> tuple[str | None, list[Issue]]:
    """Return the driver's version and the issues of the responding GPUs; raise a DriverError if it does not work."""
    found = []
    with Driver() as driver:
        for index in range(driver.count()):
            device = _or_none(partial(driver.device_at, index))
            found += (_or_none(partial(_of_device, device)) or []) if device is not None else []
        return _or_none(driver.version), found


def _or_none(ask: Callable[[], Value]) -> Value | None:
    try:
        return ask()
    except DriverError:
        return None


def _of_device(device: Device) -> list[Issue]:
    return list(_issues_of(device.name(), partial(_of_hardware, place=device.uuid()), device))


def _issues_of(name: str, found: Callable[..., Issue], device: Device) -> Iterator[Issue]:
    held = THROTTLING & set(reasons_of(_or_none(device.clock_reasons) or 0))
    if held:
        temperature = _or_none(device.temperature_c)
        at = f" at {temperature} °C" if temperature is not None else ""
        reasons = ", ".join(sorted(held))
        yield found(
            f"The clocks of {name} are throttled now{at}: {reasons}.",
            "Check its fans and airflow, or its power supply; speeds measured now are too low.",
            limit=Limit.THROTTLING,
        )
    now_w, usual_w = _or_none(device.power_limits_w) or (1.0, 1.0)
    if now_w < 0.95 * usual_w:  # of the default limit, which vendors round
        yield found(
            f"The power limit of {name} is {now_w:.0f} W; its default is {usual_w:.0f} W.",
            f"Unless intended: sudo nvidia-smi -pl {usual_w:.0f}.",
            severity=Severity.NOTE,
            numbers={"power_limit_w": now_w, "default_power_limit_w": usual_w},
            limit=Limit.STEP,
        )
    now, most = _or_none(device.pcie_widths) or (0, 0)
    if 0 < now < most:
        yield found(
            f"{name} uses {now} of {most} possible PCIe lanes to the host.",
            "Some GPUs use fewer while idle; if it stays so under load, reseat the card or use another slot.",
            severity=Severity.WARNING if now * 2 <= most else Severity.NOTE,
            numbers={"pcie_lanes": now, "most_pcie_lanes": most},
        )
    if _or_none(device.is_persistent) is False:
        sentence = f"The driver of {name} is unloaded when unused: each training starts some seconds later."
        yield found(sentence, "sudo nvidia-smi -pm 1, or the service nvidia-persistenced.", severity=Severity.NOTE)


def _other_processes(subject: Subject) -> Iterator[Issue]:
    uuids = [gpu.uuid for gpu in subject.gpus if gpu.mig_uuids is None]
    try:
        busy: tuple[GpuOccupancy, ...] = in_time(lambda: busy_gpus(uuids, subject.clock)) or ()
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


def _has_card() -> bool:
    # PCI vendor 0x10de is NVIDIA; class 0x03 are display controllers, including compute cards.
    return any(
        text_of(vendor) == "0x10de" and (text_of(vendor.replace("vendor", "class")) or "").startswith("0x03")
        for vendor in glob.glob("/sys/bus/pci/devices/*/vendor")
    )


# Host memory: free memory, swap, the cgroup's limit, shared memory of loaders.


def check_memory(subject: Subject) -> CheckResult:
    """Check the memory that is available for training."""
    state = memory_state()
    available, total = _gib(state.available_bytes), _gib(state.total_bytes)
    found = partial(issue, "memory", limit=Limit.MEMORY)
    numbers = {"available_bytes": float(state.available_bytes), "total_bytes": float(state.total_bytes)}
    issues = []
    # a framework with its libraries takes 0.5 to 2 GiB
    if state.available_bytes < max(2 * _GIB, 0.1 * state.total_bytes):
        of = "the cgroup's limit" if state.limit_bytes is not None else "host memory"
        left = f"{available} of {total} ({of}) are available for training."
        issues.append(found(left, "Stop other processes, or give the container more memory.", numbers=numbers))
    if state.pressure is not None and state.pressure > 0.1:  # share of time in which some process waits for memory
        swapped = state.swap_used_bytes
        swap = f" {_gib(swapped)} are swapped out." if swapped else ""
        waited = f"Processes waited for memory {percent(state.pressure)} of the last 10 s.{swap}"
        numbers |= {"swap_used_bytes": float(swapped), "pressure_fraction": state.pressure}
        issues.append(found(waited, "Stop processes that use much memory, or use fewer workers.", numbers=numbers))
    if (small := _small_shared_memory(subject)) is not None:
        issues.append(small)
    limit = f", a limit of {_gib(state.limit_bytes)}" if state.limit_bytes is not None else ""
    return CheckResult(check="memory", issues=tuple(issues), sentence=f"{available} of {total} available{limit}")


def _small_shared_memory(subject: Subject) -> Issue | None:
    """Return the issue of little shared memory, in which PyTorch's loader workers die."""
    if subject.problem is None or "torch" not in subject.problem.frameworks:
        return None
    workers = [key.value for key in known_keys(subject.problem) if key.row.counts == "workers"]
    if not any(isinstance(number, int) and number > 0 for number in workers):
        return None
    folder = "/dev/shm"  # noqa: S108 -- only read
    try:
        size = shutil.disk_usage(folder).total
    except OSError:
        return None
    if size >= _GIB:  # Docker gives 64 MiB; PyTorch's README asks for --ipc=host or --shm-size
        return None
    sentence: str = f"{folder} holds {size / 2**20:.0f} MiB, and PyTorch's loader workers send batches through it."
    remedy = "Start the container with --ipc=host, or --shm-size=8g."
    return issue("memory", sentence, remedy, numbers={"shared_memory_bytes": float(size)}, limit=Limit.MEMORY)


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


# Storage of the dataset.


def check_storage(subject: Subject) -> CheckResult:
    """Check where the dataset is, and read a sample of it."""
    if subject.problem is None:
        return CheckResult(check="storage", why_not="no config is given, so the dataset is unknown")
    if subject.places is None:
        return CheckResult(check="storage", issues=(_unresponsive(),))
    issues, seen = [], []
    for key, value in missing_data(subject.problem):
        missing = f"{key} is {value}, which does not exist on this machine."
        remedy = "Correct the path, or mount its file system."
        issues.append(issue("storage", missing, remedy, severity=Severity.ERROR, place=place_of(subject.problem, key)))
    if not subject.places and not issues:
        return CheckResult(check="storage", why_not="the config names no dataset on this machine")
    for place in subject.places:
        rate = None
        if place is subject.places[0]:
            rate = in_time(partial(reading_rate, place.files, subject.clock))
            issues += [_unresponsive()] if rate is None else []
        seen.append(_dataset_sentence(place, rate))
        issues += _of_place(place, rate)
    return CheckResult(check="storage", issues=tuple(issues), sentence="; ".join(seen))


def _of_place(place: DatasetPlace, rate: ReadingRate | None) -> Iterator[Issue]:
    kind = file_system(place.path) or "unknown"
    on_network, rotates = is_network(kind), is_rotating(place.path)
    found = partial(issue, "storage", place=str(place.path), limit=Limit.READING)
    if on_network:
        yield found(
            f"The dataset is on another machine ({kind}): each read crosses the network.",
            _copy(place),
            severity=Severity.WARNING if rate is None or _is_slow(rate) else Severity.NOTE,
        )
    elif rate is not None and _is_slow(rate):
        disk = "a rotating disk" if rotates else f"this disk ({kind})"
        reads = rate.disk
        yield found(
            f"{capitalized(disk)} gave {_rates(rate)}, which is slow.",
            _copy(place),
            numbers={"disk_bytes_per_s": reads.bytes_per_s, "disk_files_per_s": reads.files_per_s},
        )
    small = sum(size < 256 << 10 for _, size in place.files)
    if small >= 10_000 and small * 2 > len(place.files) and (on_network or rotates):
        yield found(
            f"{small:,} of its files are smaller than 256 KiB: each costs a lookup and a seek.",
            "Pack them into a few large files once, e.g. TFRecord or tar files of 100 MB and more.",
            severity=Severity.NOTE,
        )


def _unresponsive() -> Issue:
    return issue(
        "storage",
        "The file system of the dataset did not answer within 10 s.",
        "Check with `df` whether it responds; the server of a network file system may be down.",
        severity=Severity.ERROR,
        limit=Limit.READING,
    )


def _is_slow(rate: ReadingRate) -> bool:
    # a rotating disk: sequential reads, and seeks of 5 to 10 ms; an SSD is several times as fast
    reads = rate.disk
    return rate.knows_cache and reads.are_enough and reads.bytes_per_s < 150e6 and reads.files_per_s < 200


def _copy(place: DatasetPlace) -> str:
    # a dataset may take half of the available memory in the page cache
    if place.is_whole and place.size_bytes < 0.5 * memory_state().available_bytes:
        size = f"{place.size_bytes / 2**30:.1f} GiB"
        return f"Cache the dataset in memory (its {size} fit), or copy it to a local SSD before training."
    return "Copy it to a local SSD before training, or cache prepared samples."


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
        return (self.files >= 8 or self.size_bytes >= 32 << 20) and self.size_bytes > 0 and self.duration_s > 0

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.duration_s

    @property
    def files_per_s(self) -> float:
        return self.files / self.duration_s


@dataclass(frozen=True, kw_only=True)
class ReadingRate:
    """Reads of a sample of files, from disk or of unknown origin, and from the page cache, if that is reported."""

    disk: Reads
    cache: Reads
    knows_cache: bool


def reading_rate(files: Sequence[tuple[Path, int]], clock: Clock) -> ReadingRate:
    """Read at most 400 of these files, evenly spread, with strides like a shuffled epoch, for 2 s and 256 MiB."""
    disk, cache, knows = Reads(), Reads(), True
    deadline_s, left = clock.now_s() + 2.0, 256 << 20
    chosen = list(files[:: max(1, len(files) // 400)])[:400]
    for path, _size_bytes in [one for start in range(7) for one in chosen[start::7]]:
        if clock.now_s() >= deadline_s or left <= 0:
            break
        began_s, size = clock.now_s(), 0
        try:
            with open_regular(Path(os.path.realpath(path))) as file:  # datasets often contain links
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
    """Return whether the start of a file is in the page cache; None if unknown."""
    if not hasattr(os, "preadv"):
        return None
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) >= 0
    except BlockingIOError:
        return False
    except OSError:
        return None


# Framework of the trainer's interpreter: build, graph mode, XLA, decoders. Queried in a child process
# (`framework_child`).


_CHILD_LIMIT_S = 25.0
_QUERIED = {row.module: row for row in FRAMEWORKS if row.gpu_build is not None}
_NO_ANSWER = "it did not answer"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to one query, as `framework_child` writes it."""

    name: str
    value: bool | int | float | str | None = None
    error: str | None = None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FrameworkAnswers:
    """Answers of a framework.

    Attributes:
        framework: ``tensorflow`` or ``torch``; empty if neither is known to be used.
        why_not: Reason that answers are missing, if any.
    """

    framework: str
    why_not: str | None = None
    answers: Mapping[str, Answer] = field(default_factory=dict)
    sample: Path | None = None

    @property
    def why_not_tensorflow(self) -> str | None:
        """Reason that TensorFlow is unavailable; None if it was imported."""
        if self.framework == "torch":
            return "the trainer uses PyTorch"
        loaded = self.answers.get("import")
        if not self.framework or loaded is None or loaded.error is not None:
            return self.why_not or "TensorFlow cannot be imported"
        return None


def query_framework(subject: Subject) -> FrameworkAnswers:
    """Query the framework in a child process; without trials only of autotune's own interpreter."""
    problem = subject.problem
    interpreter = Path(sys.executable) if problem is None else _interpreter_of(problem)
    if interpreter is None:
        return FrameworkAnswers(framework="", why_not="the command starts no known Python interpreter")
    if not subject.is_run and interpreter.absolute().parent != Path(sys.executable).parent:
        why_not = "without trials, no program of the project is started, including its Python"
        return FrameworkAnswers(framework="", why_not=why_not)
    framework = _used_framework(problem, framework_versions(interpreter) if problem is None else problem.frameworks)
    if not framework:
        return FrameworkAnswers(
            framework="", why_not="neither TensorFlow nor PyTorch is imported, or none is installed"
        )
    sample = next((file for place in subject.places or () for file in place.decodable), None)
    # Frameworks start programs from PATH; without trials it must not name programs of the project.
    own = {"PATH": os.defpath} if problem is None or not subject.is_run else problem.settings.section.env
    with tempfile.TemporaryDirectory(prefix="autotune-diagnose-") as folder:
        file = Path(folder, "answers.jsonl")
        child = Path(__file__).with_name("framework_child.py").read_text()
        words = (str(interpreter.absolute()), "-c", child, framework, str(file), str(sample or ""))
        ended = run_short(words, _CHILD_LIMIT_S, env={**os.environ, **own})
        answers = _answers_in(file)
    why_silent: str | None = None
    if ended.status != 0:
        late = f"did not answer within {_CHILD_LIMIT_S:.0f} s"
        how = f"exited with {ended.status}" if ended.status is not None else late
        why_silent = f"the query of {framework} with {interpreter} {how}"
    return FrameworkAnswers(framework=framework, why_not=why_silent, answers=answers, sample=sample)


def _interpreter_of(problem: Problem) -> Path | None:
    if not problem.command:
        return None
    if problem.command[0].startswith("{python}"):
        return Path(sys.executable)
    command = python_command(problem.command, cwd=problem.settings.folder, search_path=os.environ.get("PATH"))
    if command is None:
        return None
    try:
        return resolve_executable(command.interpreter, problem.settings.folder)
    except AutotuneError:
        return None


_NO_FRAMEWORKS = frozenset(("autotune", "numpy", "yaml", "scipy", "pandas", "PIL"))


def _used_framework(problem: Problem | None, versions: Mapping[str, str]) -> str:
    """Return the framework that the trainer imports, or may import by a library; else empty."""
    installed = [name for name, row in _QUERIED.items() if not versions.keys().isdisjoint(row.distributions)]
    text = trainer_text(problem) if problem is not None else b""
    lines = re.findall(rb"^\s*(?:import\s+([\w., ]+)|from\s+([\w.]+))", text, re.M)
    modules = [
        part.split()[0] for named, source in lines for part in (named or source).decode().split(",") if part.split()
    ]
    imported = {module.split(".")[0] for module in modules}
    if used := next((name for name in installed if name in imported), ""):
        return used
    # relative imports may import a framework
    is_known = "" not in imported and imported <= sys.stdlib_module_names | _NO_FRAMEWORKS
    return "" if imported and (is_known or "jax" in imported) else next(iter(installed), "")


def _answers_in(file: Path) -> dict[str, Answer]:
    """Return the answers in a file, up to the first invalid line."""
    found: dict[str, Answer] = {}
    try:
        for line in file.read_bytes().splitlines():
            answer = msgspec.json.decode(line, type=Answer)
            found[answer.name] = answer
    except (OSError, ValueError):
        pass
    return found


def check_framework(subject: Subject, queried: FrameworkAnswers) -> CheckResult:
    """Check whether the framework loads and sees the GPUs."""
    if not queried.framework:
        return CheckResult(check="framework", why_not=queried.why_not or _NO_ANSWER)
    name = _QUERIED[queried.framework].name
    loaded, version, gpus = (queried.answers.get(question) for question in ("import", "version", "gpus"))
    if loaded is not None and loaded.error is not None:
        failed = f"{name} cannot be imported: {loaded.error}."
        found = issue("framework", failed, "Reinstall it.", severity=Severity.ERROR)
        return CheckResult(check="framework", issues=(found,))
    if version is None or gpus is None:
        return CheckResult(check="framework", why_not=queried.why_not or f"{name} did not answer")
    issues = []
    if gpus.error is not None:
        blind = f"{name} {version.value} cannot list GPUs: {gpus.error}."
        issues.append(issue("framework", blind))
    elif gpus.value == 0 and subject.gpus and (subject.problem is None or subject.problem.machine.gpus):
        built = queried.answers.get("built for GPUs")
        cpu_only = built is not None and built.value is False
        libraries = "its CUDA libraries may fail to load, or not match the driver"
        blind = (
            f"{name} {version.value} sees no GPU although {subject.gpus[0].name} is present: "
            f"{'it is a CPU-only build' if cpu_only else libraries}."
        )
        remedy = f"Install a GPU build: {_QUERIED[queried.framework].gpu_build}."
        issues.append(issue("framework", blind, remedy, limit=Limit.STEP))
    seen = counted(gpus.value if isinstance(gpus.value, int) else 0, "GPU")
    took = f"; imported in {loaded.seconds:.1f} s" if loaded is not None else ""
    sentence = f"{name} {version.value}, which sees {seen}{took}"
    return CheckResult(check="framework", issues=tuple(issues), sentence=sentence)


def check_graph(queried: FrameworkAnswers) -> CheckResult:
    """Check whether TensorFlow compiles a small function into a graph, and with XLA."""
    if why_not := queried.why_not_tensorflow:
        return CheckResult(check="graph-and-xla", why_not=why_not)
    issues, works = [], []
    for name, question in (("graph mode", "graph"), ("XLA", "xla")):
        answer = queried.answers.get(question)
        if answer is not None and answer.error is None:
            works.append(f"{name} works ({answer.seconds:.1f} s for a small function)")
            continue
        fails = f"{name} fails here: {_why_silent(queried, answer)}."
        issues.append(issue("graph-and-xla", fails, "Turn it off in the config, or fix the installation."))
    return CheckResult(check="graph-and-xla", issues=tuple(issues), sentence=" and ".join(works))


def check_native_loader(queried: FrameworkAnswers) -> CheckResult:
    """Check whether TensorFlow's own ops decode a file of the dataset."""
    if why_not := queried.why_not_tensorflow:
        return CheckResult(check="native-loader", why_not=why_not)
    if queried.sample is None:
        why_not = "the config names no folder with .wav, .png, .jpg or .tfrecord files"
        return CheckResult(check="native-loader", why_not=why_not)
    answer = queried.answers.get("decode")
    if answer is not None and answer.error is None:
        return CheckResult(check="native-loader", sentence=f"{queried.sample.name} is {answer.value}")
    found = issue(
        "native-loader",
        f"TensorFlow's own ops do not decode this file: {_why_silent(queried, answer)}.",
        "Convert the files once, e.g. to 16-bit PCM WAV or to TFRecord.",
        severity=Severity.NOTE,
        place=str(queried.sample),
        limit=Limit.PREPARING,
    )
    return CheckResult(check="native-loader", issues=(found,))


def _why_silent(queried: FrameworkAnswers, answer: Answer | None) -> str:
    return str(answer.error) if answer is not None else queried.why_not or _NO_ANSWER

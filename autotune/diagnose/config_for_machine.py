"""Values of a config that do not suit this machine: workers, precision, devices, batch."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.diagnose.config_keys import Key, issue, of_kind, written
from autotune.diagnose.findings import Issue, Limit, Severity
from autotune.messages import Message, _, listed, ngettext
from autotune.records import Gpu, Scalar
from autotune.search.problem import Problem
from autotune.space import domains
from autotune.space.batch_sizes import ACCUMULATION_NAMES, PLAIN_NAMES
from autotune.space.knob import Label, is_number, key_name

_ON_GPU_ALONE = ("pin_memory", "prefetch_to_gpu", "gpu_prefetch_strategy", "tf32", "cudnn_benchmark", "fp16")
_PRECISIONS = ("precision", "dtype", "fp16", "bf16")
_FLOAT16 = ("mixed_float16", "float16", "fp16", "16-mixed", "16", 16)
_BFLOAT16 = ("mixed_bfloat16", "bfloat16", "bf16", "bf16-mixed")
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # of NVIDIA's driver, of WSL2, of AMD's
_PREPARING = re.compile(r"binari[sz]\w*|pre_?process\w*|prepar\w*|extract\w*|prep")  # before training, once
_GPU_WORDS = re.compile(r"cuda(?::\d+)?|gpu(?::\d+)?", re.IGNORECASE)


def unsuitable_workers(problem: Problem) -> Iterator[Issue]:
    """Yield numbers of workers that are 0 on many cores, or far more than there are cores."""
    cores = problem.machine.cpu_cores
    for key in of_kind(problem, "workers"):
        assert isinstance(key.value, int), "the row of workers takes nothing else"
        if any(_PREPARING.match(section.lower()) for section in key.path.split(".")[:-1]):
            continue
        good = min(cores, 16)
        if key.value == 0 and cores >= 4:
            sentence = _(
                "{key} is 0 and this machine has {cores} cores: samples are prepared between the steps.",
                key=key.path,
                cores=cores,
            )
        elif key.value > 2 * cores:  # PyTorch warns from 1 on, and loaders that wait for a disk gain up to here
            sentence = ngettext(
                "{key} is {value} and this machine has {count} core for training.",
                "{key} is {value} and this machine has {count} cores for training.",
                cores,
                key=key.path,
                value=key.value,
            )
        else:
            continue
        remedy = _try(key.path, str(good))
        yield issue(problem, key.path, sentence, remedy, values={key.path: good}, limit=Limit.PREPARING)


def absent_gpus(problem: Problem) -> Iterator[Issue]:
    """Yield devices that are not there: training would fail."""
    gpus = len(problem.machine.gpus)
    for key in of_kind(problem, "model_gpu", "data_gpu"):
        if isinstance(key.value, int) and key.value >= gpus:
            none = _("there is none")
            there = (
                none
                if gpus == 0
                else ngettext("there is {count}, counted from 0", "there are {count}, counted from 0", gpus)
            )
            why = _(" ({text})", text=problem.why_no_gpu) if problem.why_no_gpu else ""
            yield issue(
                problem,
                key.path,
                _(
                    "{key} is GPU {value}, and {there}{why}.",
                    key=key.path,
                    value=key.value,
                    there=there,
                    why=why,
                ),
                _("Name one that is there, or null for none in particular."),
                severity=Severity.ERROR,
            )
    if gpus or problem.why_no_gpu is None or any(map(os.path.exists, _DEVICE_FILES)):
        return  # one that is there, or that may be
    for path, value in problem.settings.scalars.items():
        if key_name(path) in ("device", "devices", "accelerator") and _GPU_WORDS.fullmatch(str(value)):
            yield issue(
                problem,
                path,
                _(
                    "{key} is {value}, and there is no GPU: {why}.",
                    key=path,
                    value=value,
                    why=problem.why_no_gpu,
                ),
                _("Train on a machine with one, or on the CPU."),
                severity=Severity.ERROR,
            )


def without_effect(problem: Problem) -> Iterator[Issue]:
    """Yield what is on in the config and has no effect on this machine."""
    gpus = len(problem.machine.gpus)
    found = []
    if gpus == 0:
        found = [key for key in of_kind(problem, *_ON_GPU_ALONE) if key.value is True]
    if gpus < 2 and (buffers := list(of_kind(problem, "pipeline_buffer"))):
        placed = any(one.value is not None for one in of_kind(problem, "model_gpu", "data_gpu"))
        found += buffers if placed else []
    if found:
        there = _("no GPU") if gpus == 0 else _("one GPU")
        yield issue(
            problem,
            found[0].path,
            ngettext(
                "On this machine, with {there}, {keys} has no effect.",
                "On this machine, with {there}, {keys} have no effect.",
                len(found),
                there=there,
                keys=_listed(found),
            ),
            severity=Severity.NOTE,
        )


def slow_precision(problem: Problem) -> Iterator[Issue]:
    """Yield 16-bit types that are emulated here."""
    gpus, machine = problem.machine.gpus, problem.machine
    classes = [gpu_class(gpu) for gpu in gpus]
    for key in of_kind(problem, *_PRECISIONS):
        if not gpus and key.value in _FLOAT16 and not isinstance(key.value, bool):
            why = _("a CPU only emulates float16: a quarter of the speed of float32")
        elif not gpus and _is_bfloat16(key) and not machine.cpu_bfloat16:
            why = _("this CPU ({cpu}) does not compute in bfloat16 itself", cpu=machine.cpu_model)
        elif gpus and _is_bfloat16(key) and all(one is not None and not one.bfloat16 for one in classes):
            why = _("{gpu} does not compute in bfloat16 itself", gpu=gpus[0].name)
        else:
            continue
        other = _full_precision(key)
        float32 = _("Compute in float32 here.")
        remedy = _try(key.path, written(other)) if other is not None else float32
        values = {key.path: other} if other is not None else {}
        sentence = _("{key}: {why}.", key=key.said, why=why)
        yield issue(problem, key.path, sentence, remedy, values=values, label=Label.PRECISION, limit=Limit.STEP)


def unused_precision(problem: Problem) -> Iterator[Issue]:
    """Yield full precision on a GPU whose tensor cores would compute in 16 bits."""
    classes = [gpu_class(gpu) for gpu in problem.machine.gpus]
    keys = list(of_kind(problem, *_PRECISIONS))
    if not classes or any(_is_half(key) for key in keys):
        return
    if not all(one is not None and (one.bfloat16 or one.float16) for one in classes):
        return
    bfloat16 = all(one is not None and one.bfloat16 for one in classes)
    for key in keys:
        half = _half(key, problem, bfloat16=bfloat16)
        if half is None:
            continue
        yield issue(
            problem,
            key.path,
            _(
                "{key}: the tensor cores of {gpu} compute far faster in 16 bits.",
                key=key.said,
                gpu=problem.machine.gpus[0].name,
            ),
            _try(key.path, written(half)),
            severity=Severity.NOTE,
            values={key.path: half},
            label=Label.PRECISION,
            limit=Limit.STEP,
        )
        return


def debugging(problem: Problem) -> Iterator[Issue]:
    """Yield switches for finding bugs that are on, and graph mode that is off."""
    for key in of_kind(problem, "debugging"):
        if key.value is True:
            yield issue(
                problem,
                key.path,
                _(
                    "{key}: steps are run op by op or checked number by number, which is for finding bugs.",
                    key=key.said,
                ),
                _("Set {key} to false.", key=key.path),
                values={key.path: False},
                limit=Limit.HOST,
            )
    for key in of_kind(problem, "graph_mode"):
        if key.value is False:
            yield issue(
                problem,
                key.path,
                _("{key}: each op of the step is launched by Python.", key=key.said),
                _try(key.path, "true"),
                values={key.path: True},
                limit=Limit.HOST,
            )


def no_reading_ahead(problem: Problem) -> Iterator[Issue]:
    """Yield prefetching that is off."""
    for key in of_kind(problem, "prefetch", "prefetch_switch"):
        if key.value == 0:  # false too
            on: Scalar = True if isinstance(key.value, bool) else 2
            yield issue(
                problem,
                key.path,
                _("{key}: no batch is made ahead of the step.", key=key.said),
                _try(key.path, written(on)),
                severity=Severity.NOTE,
                values={key.path: on},
                limit=Limit.LOADING,
            )


def small_batches(problem: Problem) -> Iterator[Issue]:
    """Yield a batch that is far smaller than one to begin with on this GPU."""
    if not problem.machine.gpus or _accumulations(problem):
        return
    gpu = problem.machine.gpus[0]
    good = starting_batch(gpu)
    for key in of_kind(problem, "batch_size"):
        # small: a sixteenth of the one to begin with; a batch of 4 never is, as there are models of any size
        small = isinstance(key.value, int) and good is not None and key.value <= min(3, good // 16)
        if small and key_name(key.path) in PLAIN_NAMES:
            yield issue(
                problem,
                key.path,
                _(
                    "{key} is {value}, which is little for {gpu}: most of a step may be launches.",
                    key=key.path,
                    value=written(key.value),
                    gpu=gpu.name,
                ),
                _(
                    "Try larger ones; {batch} is usual to begin with on a GPU of its memory, if the model is small "
                    "enough.",
                    batch=good,
                ),
                severity=Severity.NOTE,
                values={key.path: good},
                label=Label.BATCH,
                limit=Limit.HOST,
                cost=_("memory, and perhaps another learning rate"),
            )


def accumulated_batches(problem: Problem) -> Iterator[Issue]:
    """Yield gradients that are accumulated over batches that might fit into memory as one."""
    batches = [key for key in of_kind(problem, "batch_size") if isinstance(key.value, int)]
    found = _accumulations(problem)
    if not problem.machine.gpus or len(found) != 1 or len(batches) != 1:
        return
    (path, steps), batch = found[0], batches[0]
    if steps % 2 or not isinstance(batch.value, int):
        return
    yield issue(
        problem,
        path,
        _(
            "{key} is {steps}: {steps} batches of {batch} make one update.",
            key=path,
            steps=steps,
            batch=batch.value,
        ),
        _(
            "Where memory suffices, {batch} and {steps} are the same training in fewer, larger steps.",
            batch=f"{batch.path}: {batch.value * 2}",
            steps=f"{path}: {steps // 2}",
        ),
        severity=Severity.NOTE,
        values={batch.path: batch.value * 2, path: steps // 2},
        limit=Limit.HOST,
        cost=_("memory"),
    )


def _try(path: str, value: str) -> Message:
    return _("Try {change}.", change=f"{path}: {value}")


def _listed(keys: list[Key]) -> str:
    names = [key.path for key in keys[:4]]
    more = [_("{count} more", count=len(keys) - 4)] if len(keys) > 4 else []
    shown: list[str] = [*names, *more]
    *most, last = shown
    return listed(" and ", (listed(", ", most), last)) if most else last


def _is_bfloat16(key: Key) -> bool:
    return key.value in _BFLOAT16 or (key.kind == "bf16" and key.value is True)


def _is_half(key: Key) -> bool:
    return key.value is True or key.value in (*_FLOAT16, *_BFLOAT16)


def _full_precision(key: Key) -> Scalar:
    if key.kind in ("fp16", "bf16"):
        return False
    spelled = {"mixed_float16": "float32", "mixed_bfloat16": "float32", "float16": "float32", "bfloat16": "float32"}
    spelled |= {"fp16": "fp32", "bf16": "fp32", "16-mixed": "32-true", "bf16-mixed": "32-true", "16": "32"}
    return 32 if key.value == 16 else spelled.get(str(key.value))


def _half(key: Key, problem: Problem, *, bfloat16: bool) -> Scalar:
    """Return the value of a key for 16 bits, in its spelling; None where it has none that is fast here."""
    if isinstance(key.value, bool):
        return True if key.kind in ("precision", "bf16" if bfloat16 else "fp16") else None
    rows = {"precision": domains.half_precision, "dtype": domains.bfloat16}
    halves = rows[key.kind](key.value, problem.machine) if key.kind in rows else ()
    wanted = [one for one in halves if (one in _BFLOAT16) is bfloat16]
    return wanted[0] if wanted else None


def _accumulations(problem: Problem) -> list[tuple[str, int]]:
    return [
        (path, int(value))
        for path, value in problem.settings.scalars.items()
        if key_name(path) in ACCUMULATION_NAMES and is_number(value) and isinstance(value, int) and value > 1
    ]


@dataclass(frozen=True, kw_only=True)
class GpuClass:
    """Class of GPUs.

    Attributes:
        models: Pattern of the names of its models, as the driver gives them.
        bfloat16: Whether its tensor cores compute in bfloat16.
    """

    name: str
    models: str
    bfloat16: bool = True
    float16: bool = True


GPU_CLASSES: tuple[GpuClass, ...] = (
    GpuClass(name="H100 or H200", models=r"H[12]00|H20\b|GH200|B[12]00"),
    GpuClass(name="A100", models=r"A100|A800|A30\b"),
    GpuClass(name="L40 or RTX Ada", models=r"L40S?|L20|RTX \d000.*Ada"),
    GpuClass(name="A10 or L4", models=r"A10G?\b|A40|L4\b|RTX A\d000|A16\b|A2\b"),
    GpuClass(name="RTX 4090", models=r"RTX 4090"),
    GpuClass(name="RTX 3090", models=r"RTX 3090"),
    GpuClass(name="RTX 3060", models=r"RTX 3060"),
    GpuClass(name="GeForce RTX 30, 40 or 50", models=r"RTX [345]0\d0"),
    GpuClass(name="Turing or Volta", models=r"V100|TITAN (V|RTX)|T4\b|RTX 20\d0|Quadro RTX", bfloat16=False),
    GpuClass(
        name="GTX, Pascal or older",
        models=r"GTX|P100|P40\b|P4\b|K80|M60|TITAN X",
        bfloat16=False,
        float16=False,
    ),
)
"""Known classes; the first that fits counts."""


def gpu_class(gpu: Gpu) -> GpuClass | None:
    """Return the class of a GPU; None for one that is not known."""
    return next((one for one in GPU_CLASSES if re.search(one.models, gpu.name)), None)


def starting_batch(gpu: Gpu) -> int | None:
    """Return a batch to begin with on a GPU; None where the driver does not say how much memory it has."""
    samples = int((gpu.memory_bytes or 0) / (1 << 30) * 1.5)  # samples for each GiB
    return 1 << (samples.bit_length() - 1) if samples else None


MISFITS: tuple[Callable[[Problem], Iterator[Issue]], ...] = (
    absent_gpus,
    slow_precision,
    debugging,
    unsuitable_workers,
    unused_precision,
    accumulated_batches,
    small_batches,
    no_reading_ahead,
    without_effect,
)
"""Kinds of misfits, the gravest first."""

"""GPUs of a search's trials: selection and availability."""

from collections.abc import Iterator
from dataclasses import replace

from autotune.clock import Clock
from autotune.config.schema import ENV
from autotune.errors import GpuError
from autotune.measure.gpu.driver import TIME_LIMIT_S, DriverError, Occupant, VisibleDevices, in_time
from autotune.measure.gpu.occupancy import GpuOccupancy, busy_gpus
from autotune.measure.probe import TrialGpus
from autotune.records import Values
from autotune.search.hardware import GPU_SELECTION_VARIABLES
from autotune.search.problem import Problem
from autotune.space.catalog import keys_with, knobs_with
from autotune.space.find import untried_placement
from autotune.trial.execution import TrialSpec
from autotune.trial.stop_rule import StopLimits

_SELECTION_PATHS = frozenset(f"{ENV}{name}" for name in GPU_SELECTION_VARIABLES)


def visible_to(problem: Problem, values: Values) -> VisibleDevices:
    """Return the GPUs visible to a trial of a point."""
    return problem.hardware.visible(problem.settings.trial_env(problem.space.keys(values)))


def trial_gpus(problem: Problem, values: Values) -> TrialGpus:
    """Return the GPUs that a trial may use, as known before its start."""
    return TrialGpus(
        uuids=visible_to(problem, values).uuids,
        model=_gpu_index(problem, values, "model"),
        data=_gpu_index(problem, values, "data"),
    )


def complete(problem: Problem, spec: TrialSpec, *, name: str, limits: StopLimits) -> TrialSpec:
    """Return the specification of a starting trial, completed from its point."""
    return replace(
        spec,
        name=name,
        limits=limits,
        keys={**problem.space.keys(spec.values), **spec.keys},
        gpus=trial_gpus(problem, spec.values),
        samples_per_step=problem.batch_size(spec.values),
    )


def watched_gpus(problem: Problem) -> tuple[str, ...]:
    """Return the UUIDs of all GPUs that trials may use."""
    return tuple(dict.fromkeys(uuid for visible in _visible(problem) for uuid in visible.uuids))


def remarks_on_gpus(problem: Problem) -> list[str]:
    """Return remarks on the GPUs and their selection; errors as for `visibility_remarks`."""
    why = _placement_remark(problem)
    return list(dict.fromkeys((*problem.hardware.remarks, *visibility_remarks(problem), *([why] if why else []))))


def visibility_remarks(problem: Problem) -> list[str]:
    """Return remarks on the GPUs that trials see.

    Raises:
        GpuError: CUDA_VISIBLE_DEVICES names a missing GPU first.
    """
    remarks = []
    for visible in _visible(problem):
        if visible.cut and not visible.uuids:
            raise GpuError(
                f"{visible.cut}: training would run without a GPU",
                remedy="Set it to an existing GPU, or unset it; an empty value means no GPU.",
            )
        if visible.cut:
            remarks.append(f"{visible.cut}: CUDA shows only the GPUs before it")
        if visible.assumed:
            remarks.append(visible.assumed)
    return list(dict.fromkeys(remarks))


def busy_remarks(problem: Problem, clock: Clock) -> list[str]:
    """Return a sentence for each GPU in use."""
    uuids = watched_gpus(problem)
    busy: tuple[GpuOccupancy, ...] | None = ()
    # the driver's last second still includes kernels of a trial that has just ended
    for look in range(3 if uuids else 0):
        if look:
            clock.wait(1.0)
        try:
            busy = in_time(lambda: busy_gpus(uuids, clock))
        except DriverError as error:
            return [error.for_people]
        if busy is None:
            return [f"the GPU's processes are unknown: the NVIDIA driver did not answer within {TIME_LIMIT_S:.0f} s"]
        if not busy:
            break
    return [_busy(gpu) for gpu in busy or ()]


def require_free_gpus(problem: Problem, clock: Clock) -> None:
    """Raise `GpuError` unless the GPUs are known to be free."""
    if remarks := busy_remarks(problem, clock):
        raise GpuError(
            "; ".join(remarks),
            where="the GPU" if len(watched_gpus(problem)) == 1 else "the GPUs",
            remedy="Wait until it is free, or choose another one with CUDA_VISIBLE_DEVICES. With --allow-busy-gpu the\n"
            "search runs anyway: it repeats disturbed trials, and reports the remaining uncertainty.",
        )


def _visible(problem: Problem) -> Iterator[VisibleDevices]:
    baseline = problem.space.baseline
    yield visible_to(problem, baseline)
    for knob in [knob for knob in problem.space.knobs if knob.path in _SELECTION_PATHS]:
        yield from (visible_to(problem, {**baseline, knob.path: choice}) for choice in knob.choices)


def _gpu_index(problem: Problem, values: Values, device: str) -> int | None:
    """Return the index of the model's or data's GPU among a trial's, if the config sets it."""
    path = next(iter(keys_with(problem.settings.scalars, device=device)), None)
    place = None if path is None else problem.space.keys(values).get(path, problem.settings.scalars[path])
    return place if isinstance(place, int) and place >= 0 else None


def _placement_remark(problem: Problem) -> str | None:
    placement = next((knob for knob in knobs_with(problem.space.knobs, device="model") if knob.carries), None)
    if placement is None or problem.settings.section.knobs is not None:
        return None
    data = placement.keys(placement.baseline)[placement.carries[0].path]
    return untried_placement(data, placement.baseline, problem.machine.gpus)


def _busy(gpu: GpuOccupancy) -> str:
    if gpu.why_unknown:
        return f"{gpu.name}: {gpu.why_unknown}"
    parts = [_occupant_text(occupant) for occupant in gpu.occupants if occupant.computes]
    if gpu.utilization is not None:
        parts.append(f"kernels ran for {100 * gpu.utilization:.0f} % of the last second")
    return f"{gpu.name} ({gpu.uuid}) is in use: {', '.join(parts)}"


def _occupant_text(occupant: Occupant) -> str:
    program = f" ({occupant.name})" if occupant.name else ""
    memory = "" if occupant.memory_bytes is None else f" with {occupant.memory_bytes / 2**30:.1f} GiB"
    return f"process {occupant.pid}{program}{memory}"

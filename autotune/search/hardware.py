"""Hardware of a search, as its trials see it."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.config.schema import ENV
from autotune.measure.gpu.driver import GpuFacts, VisibleDevices, look_for_gpus, visible_devices
from autotune.measure.host import MachineFacts, machine_facts
from autotune.records import Gpu, Machine, Scalar

GPU_SELECTION_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that select the GPUs of a process."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware of a search.

    Attributes:
        machine: With the GPUs that trials can see.
        gpus: All GPUs that the driver reports.
        remarks: On broken GPUs or drivers.
    """

    machine: Machine
    gpus: tuple[GpuFacts, ...] = ()
    why_no_gpu: str | None
    remarks: tuple[str, ...] = ()

    def visible(self, environment: Mapping[str, str]) -> VisibleDevices:
        return visible_gpus(self.gpus, environment, self.why_no_gpu)


def this_hardware(environment: Mapping[str, str], domains: Mapping[str, Sequence[Scalar]]) -> Hardware:
    """Detect the hardware of this machine; `domains` of the user's knobs may select GPUs."""
    found = look_for_gpus()
    return Hardware(
        machine=this_machine(found.gpus, environment, domains),
        gpus=found.gpus,
        why_no_gpu=visible_gpus(found.gpus, environment, found.why_none).why_none,
        remarks=found.remarks,
    )


def visible_gpus(found: Sequence[GpuFacts], environment: Mapping[str, str], why_none: str | None) -> VisibleDevices:
    """Return the GPUs visible to a process with additional variables."""
    if not found:
        return VisibleDevices(uuids=(), why_none=why_none)
    return visible_devices(found, {**os.environ, **environment})


def this_machine(
    found: Sequence[GpuFacts], environment: Mapping[str, str], domains: Mapping[str, Sequence[Scalar]]
) -> Machine:
    """Return this machine, with the GPUs visible to any trial."""
    facts = machine_facts()
    gpus = _visible_to_trials(found, environment, domains)
    return Machine(
        cpu_cores=facts.cores,
        cpu_model=facts.cpu_model,
        memory_bytes=facts.memory_bytes,
        cpu_bfloat16=facts.cpu_bfloat16,
        gpus=gpus,
        name=_name(facts, gpus),
    )


def _name(facts: MachineFacts, gpus: Sequence[Gpu]) -> str:
    """Return a name unique even for Slurm nodes on one host; GPUs count, because a confirmation uses one part of it."""
    node = os.environ.get("SLURMD_NODENAME", "")  # test clusters have several nodes on one host
    host = hashlib.sha256(f"{facts.hostname}\n{facts.boot_id}\n{node}".encode()).hexdigest()[:8]
    part = hashlib.sha256("\n".join(gpu.uuid for gpu in gpus).encode()).hexdigest()[:4]
    return f"{host}-{part}" if gpus else host


def _visible_to_trials(
    found: Sequence[GpuFacts], environment: Mapping[str, str], domains: Mapping[str, Sequence[Scalar]]
) -> tuple[Gpu, ...]:
    """Return the GPUs in CUDA's order: the baseline's, then those of other choices."""
    environments = [environment]
    for name in GPU_SELECTION_VARIABLES:
        environments += [{**environment, name: str(choice)} for choice in domains.get(f"{ENV}{name}", ())]
    uuids = [uuid for one in environments for uuid in visible_gpus(found, one, None).uuids]
    known = {gpu.uuid: Gpu(name=gpu.name, uuid=gpu.uuid, memory_bytes=gpu.memory_bytes) for gpu in found}
    for gpu in found:
        known |= {uuid: Gpu(name=f"{gpu.name} MIG", uuid=uuid, memory_bytes=None) for uuid in gpu.mig_uuids or ()}
    return tuple(known[uuid] for uuid in dict.fromkeys(uuids))

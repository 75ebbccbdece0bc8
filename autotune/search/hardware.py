"""Hardware of a search: this machine's processor, memory and GPUs, as its trials see them."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.config.schema import ENV
from autotune.measure.gpu.driver import GpuFacts, VisibleDevices, look_for_gpus, visible_devices
from autotune.measure.host import MachineFacts, machine_facts
from autotune.records import Gpu, Machine, Scalar

CHOOSING_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that say which GPUs a process sees."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware of a search.

    Attributes:
        machine: What the numbers depend on; its GPUs are those that trials can see.
        gpus: All GPUs that are there, as their driver describes them; empty if there is none that can be seen.
        why_no_gpu: Why utilization is not measured; None if it is.
        remarks: Sentences on GPUs, or a driver, that do not work, and what helps; empty where they do, and on a machine
            without a driver.
    """

    machine: Machine
    gpus: tuple[GpuFacts, ...] = ()
    why_no_gpu: str | None
    remarks: tuple[str, ...] = ()

    def visible(self, environment: Mapping[str, str]) -> VisibleDevices:
        """Return the GPUs that a trial with these variables sees."""
        return visible_gpus(self.gpus, environment, self.why_no_gpu)


def this_hardware(environment: Mapping[str, str], domains: Mapping[str, Sequence[Scalar]]) -> Hardware:
    """Look at this machine.

    Args:
        environment: Variables that trials get.
        domains: Choices of the user's own knobs by path; one may be a variable that chooses GPUs.
    """
    found = look_for_gpus()
    return Hardware(
        machine=this_machine(found.gpus, environment, domains),
        gpus=found.gpus,
        why_no_gpu=visible_gpus(found.gpus, environment, found.why_none).why_none,
        remarks=found.remarks,
    )


def visible_gpus(found: Sequence[GpuFacts], environment: Mapping[str, str], why_none: str | None) -> VisibleDevices:
    """Return the GPUs that a process of ours sees.

    Args:
        environment: Variables that the process gets besides our own.
        why_none: Why there is no GPU, for people; None if there is one.
    """
    if not found:
        return VisibleDevices(uuids=(), why_none=why_none)
    return visible_devices(found, {**os.environ, **environment})


def this_machine(
    found: Sequence[GpuFacts], environment: Mapping[str, str], domains: Mapping[str, Sequence[Scalar]]
) -> Machine:
    """Return this machine, with the GPUs of it that some trial can see.

    Args:
        domains: Choices of the user's own knobs by path; one may be a variable that chooses GPUs.
    """
    facts = machine_facts()
    gpus = _seen_by_trials(found, environment, domains)
    return Machine(
        cpu_cores=facts.cores,
        cpu_model=facts.cpu_model,
        memory_bytes=facts.memory_bytes,
        cpu_bfloat16=facts.cpu_bfloat16,
        gpus=gpus,
        name=_name(facts, gpus),
    )


def _name(facts: MachineFacts, gpus: Sequence[Gpu]) -> str:
    """Return a name that two hosts do not share, also if somebody called them the same, nor two nodes of one host.

    Behind a hyphen it names the GPUs: the pairs of a confirmation are made on one of several parts of a host.
    """
    node = os.environ.get("SLURMD_NODENAME", "")  # a cluster for tests has several on one host
    host = hashlib.sha256(f"{facts.hostname}\n{facts.boot_id}\n{node}".encode()).hexdigest()[:8]
    part = hashlib.sha256("\n".join(gpu.uuid for gpu in gpus).encode()).hexdigest()[:4]
    return f"{host}-{part}" if gpus else host


def _seen_by_trials(
    found: Sequence[GpuFacts], environment: Mapping[str, str], domains: Mapping[str, Sequence[Scalar]]
) -> tuple[Gpu, ...]:
    """Return the GPUs in CUDA's order: today's first, then those that a tuned variable leads to."""
    if not found:
        return ()
    environments = [environment]
    for name in CHOOSING_GPUS:
        environments += [{**environment, name: str(choice)} for choice in domains.get(f"{ENV}{name}", ())]
    uuids = [uuid for one in environments for uuid in visible_gpus(found, one, None).uuids]
    whole = {gpu.uuid: gpu for gpu in found}
    parts = {uuid: gpu for gpu in found for uuid in gpu.mig_uuids or ()}
    return tuple(
        Gpu(name=whole[uuid].name, uuid=uuid, memory_bytes=whole[uuid].memory_bytes)
        if uuid in whole
        else Gpu(name=f"{parts[uuid].name} MIG", uuid=uuid, memory_bytes=None)
        for uuid in dict.fromkeys(uuids)
    )

"""Machine of a search: this one's processor and memory, and the GPUs of it that trials see."""

import hashlib
import os
from collections.abc import Mapping, Sequence

from autotune.gpu.driver import GpuFacts
from autotune.gpu.visible_devices import VisibleDevices, visible_devices
from autotune.measure.host import MachineFacts, machine_facts
from autotune.records import Gpu, Machine, Scalar
from autotune.settings.schema import ENV

CHOOSING_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Variables that say which GPUs a process sees."""


def visible_gpus(found: Sequence[GpuFacts], environment: Mapping[str, str], why_none: str | None) -> VisibleDevices:
    """Return the GPUs that a process of ours sees.

    Args:
        found: All GPUs of this machine.
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
        found: All GPUs of this machine.
        environment: Variables of all trials.
        domains: Choices of the user's own knobs by path; one may be a variable that chooses GPUs.
    """
    facts = machine_facts()
    return Machine(
        cpu_cores=facts.cores,
        cpu_model=facts.cpu_model,
        memory_bytes=facts.memory_bytes,
        cpu_bfloat16=facts.cpu_bfloat16,
        gpus=_seen_by_trials(found, environment, domains),
        name=_name(facts),
    )


def _name(facts: MachineFacts) -> str:
    """Return a name that two hosts do not share, also if somebody called them the same, nor two nodes of one host."""
    node = os.environ.get("SLURMD_NODENAME", "")  # a cluster for tests has several on one host
    return hashlib.sha256(f"{facts.hostname}\n{facts.boot_id}\n{node}".encode()).hexdigest()[:8]


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

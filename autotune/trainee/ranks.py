"""Rank of this process in a distributed training, from its framework or launcher, and its clock.

It is read at the first step: by then the framework knows it, and a launcher's variables are this process's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional

# Per launcher: rank, number of ranks. Slurm's tasks of a step, because a batch script, whose allocation may have many
# tasks, runs once.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate, DeepSpeed, Ray Train
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def own_rank() -> Optional[dict[str, Any]]:
    """Return this process's rank as a field of the stream; None if it trains alone."""
    for is_joined, ranks in ((True, _of_framework()), (False, _of_launcher())):
        for number, world in ranks:
            if world > 1 and 0 <= number < world:
                return {"number": number, "world": world, "is_joined": is_joined, "node": node_name()}
    return None


def _of_framework() -> Iterator[tuple[int, int]]:
    """Yield rank and number of ranks from frameworks that have joined the ranks."""
    with contextlib.suppress(Exception):
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            yield distributed.get_rank(), distributed.get_world_size()
    with contextlib.suppress(Exception):
        # Not jax.process_index(): it would open JAX's devices before anything uses them.
        state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        if getattr(state, "client", None) is not None:
            yield state.process_id, state.num_processes
    with contextlib.suppress(Exception):
        cluster = json.loads(os.environ["TF_CONFIG"])
        sizes = {kind: len(cluster["cluster"].get(kind, ())) for kind in ("chief", "worker")}
        kind, index = cluster["task"]["type"], int(cluster["task"]["index"])
        if kind in sizes:  # parameter servers and evaluators don't train
            yield index + (sizes["chief"] if kind == "worker" else 0), sum(sizes.values())


def _of_launcher() -> Iterator[tuple[int, int]]:
    """Yield the same from launchers' variables."""
    for number_name, world_name in _VARIABLES:
        number, world = _number(number_name), _number(world_name)
        if number is not None and world is not None:
            yield number, world


def _number(name: str) -> Optional[int]:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def node_name() -> str:
    """Return the name of this process's node."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def node_in_file_names() -> str:
    """Return the name of this process's node with only the characters that are safe in a file's name."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", node_name())


# Clocks: each node has its own, which the stream's reader aligns with its own by a query.


def has_own_clock() -> bool:
    """Return whether this process's monotonic clock isn't the search's."""
    search_clock = os.environ.get("AUTOTUNE_CLOCK")
    return bool(search_clock) and search_clock != _clock_identity()


def answer_in_background(query: str, answer: Callable[[float], None]) -> None:
    """Answer the query for this process's time once it arrives, in a thread.

    Args:
        query: File with the reader's time, passed to `answer`.
    """

    def wait() -> None:
        for _ in range(1200):  # a minute
            with contextlib.suppress(OSError, ValueError), open(query, encoding="ascii") as file:
                answer(float(file.read()))
                return
            time.sleep(0.05)

    threading.Thread(target=wait, daemon=True).start()


def _clock_identity() -> str:
    """Return an identifier of the monotonic clock: boot and time namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""

"""``search --gpus``: this process has the first GPU, and a worker each of the others, with cores near its GPU."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.commands.output import say_aside
from autotune.config.load import load_settings
from autotune.environment import STORAGE_VARIABLE
from autotune.errors import ConfigError
from autotune.files import make_private_folder
from autotune.measure.gpu.devices import cores_near, look_for_gpus, visible_devices
from autotune.options import SearchRequest
from autotune.search.neighbours import FOLDER_VARIABLE
from autotune.trial.children import OWN_COMMAND, SearchChild
from autotune.trial.state_folder import StateFolder


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """GPU with its cores.

    Attributes:
        number: CUDA's, among those that the environment leaves.
    """

    number: int
    uuid: str
    cores: frozenset[int]


def share_for_search(request: SearchRequest, gpus: Sequence[int], clock: Clock) -> AbstractContextManager[None]:
    """Give this process the first of several GPUs; return the workers on the others.

    Args:
        gpus: Their numbers; empty for all.

    Returns:
        Runs the workers for the duration of a ``with`` block.

    Raises:
        ConfigError: There are not that many GPUs, or cores.
    """
    own, *others = gpu_shares(gpus)
    state = StateFolder.locate(request.config, explicit=request.state_dir, environ=os.environ)
    is_known = os.environ.get(STORAGE_VARIABLE) or load_settings(request.config).section.storage
    place = request.storage or (None if is_known else f"journal:{state.studies}")
    words = [*OWN_COMMAND, "worker", "--config", str(request.config), "--budget", f"{request.budget_s:.3f}s"]
    words += ["--storage", place] if place else []
    words += request.words("warm_start", "same_training", "batch", "allow_busy_gpu")
    commands = {
        share: (
            *(*words, "--seed", str(request.seed + number), "--state-dir", str(state.workers / share.uuid)),
            *(("--", *request.trainer) if request.trainer else ()),
        )
        for number, share in enumerate(others, start=1)
    }
    os.environ |= {"CUDA_VISIBLE_DEVICES": own.uuid, FOLDER_VARIABLE: str(state.workers / "turns")}
    os.sched_setaffinity(0, own.cores)
    return _running(commands, state.workers, clock)


@contextmanager
def _running(commands: Mapping[GpuShare, Sequence[str]], folder: Path, clock: Clock) -> Iterator[None]:
    """Run workers for the duration of a ``with`` block; report those that failed.

    Raises:
        CommandError: One of them cannot be started.
    """
    workers: dict[GpuShare, SearchChild] = {}
    own = os.sched_getaffinity(0)
    make_private_folder(folder)
    try:
        for share, words in commands.items():
            os.sched_setaffinity(0, share.cores)  # the worker inherits them
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": share.uuid}
            log, niceness = folder / f"{share.uuid}.log", os.getpriority(os.PRIO_PROCESS, 0)
            workers[share] = SearchChild.start(words, cwd=Path.cwd(), env=env, log=log, clock=clock, niceness=niceness)
        os.sched_setaffinity(0, own)
        yield
    finally:
        os.sched_setaffinity(0, own)
        failed = [share for share, worker in workers.items() if (ended := worker.poll()) and ended.code]
        for worker in workers.values():
            worker.leave()
        for worker in workers.values():
            worker.end()
        for share in failed:
            say_aside(f"autotune: the worker on GPU {share.number} failed: see {folder / share.uuid}.log")


def gpu_shares(chosen: Sequence[int] = ()) -> list[GpuShare]:
    """Share this machine out among its GPUs.

    All get as many cores, because studies are of equal machines: those near the GPU (its NUMA node) if there are
    enough.

    Args:
        chosen: Numbers of the GPUs; empty for all that the environment leaves.

    Raises:
        ConfigError: There are fewer than two GPUs, or cores.
    """
    inventory = look_for_gpus()
    visible = visible_devices(inventory.gpus, os.environ) if inventory.gpus else None
    uuids = visible.uuids if visible else ()
    if beyond := [number for number in chosen if number >= len(uuids)]:
        raise ConfigError(
            f"there is no GPU {beyond[0]}: {inventory.why_none or f'there are {len(uuids)}, numbered from 0'}",
            where="--gpus",
            remedy="Run it without this option." if inventory.why_none else "Name those that are there, or all.",
        )
    numbers = list(dict.fromkeys(chosen)) or range(len(uuids))
    cores = sorted(os.sched_getaffinity(0))
    if len(numbers) < 2 or len(cores) < len(numbers):
        why = inventory.why_none or (visible and visible.why_none) or f"{len(numbers)} GPU for {len(cores)} cores"
        raise ConfigError(
            f"it needs two GPUs, and a core for each: {why}", where="--gpus", remedy="Run it without this option."
        )
    near = {gpu.uuid: cores_near(gpu) for gpu in inventory.gpus}
    shared = share_cores(cores, [near.get(uuids[number], frozenset()) for number in numbers])
    return [
        GpuShare(number=number, uuid=uuids[number], cores=share) for number, share in zip(numbers, shared, strict=True)
    ]


def share_cores(cores: Sequence[int], near: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Share cores out, equally many to each, to those that have them near; by number if that does not work out.

    Args:
        cores: Ascending; at least as many as there are shares.
        near: For each share the cores that are near; empty where that is not known.
    """
    each = len(cores) // len(near)
    own = [sorted(one & set(cores)) for one in near]
    place, shares = {tuple(some): 0 for some in own}, []
    for some in map(tuple, own):  # GPUs of one node have the same cores near, and take them in turn
        shares.append(frozenset(some[place[some] : place[some] + each]))
        place[some] += each
    if len(frozenset().union(*shares)) == each * len(near):
        return shares
    return [frozenset(cores[number * each : (number + 1) * each]) for number in range(len(near))]

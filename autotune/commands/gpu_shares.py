"""Shares of a machine with several GPUs: one GPU each, with cores near it, for a search or worker of its own."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock
from autotune.commands.output import say_aside
from autotune.config.secrets import masked
from autotune.environment import inherited_environment
from autotune.errors import ConfigError
from autotune.measure.gpu.devices import cores_near, look_for_gpus, visible_devices
from autotune.search.neighbours import FOLDER_VARIABLE
from autotune.trial.command_group import CommandEnd, CommandGroup, OutputLine
from autotune.trial.state_folder import StateFolder


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """A GPU with its cores.

    Attributes:
        number: CUDA's, among those that the environment leaves.
        turns: Folder of the locks by which all of them take turns, see `autotune.search.neighbours`.
    """

    number: int
    uuid: str
    cores: frozenset[int]
    turns: Path

    @property
    def name(self) -> str:
        """Name for people."""
        return f"GPU {self.number}"

    @property
    def variables(self) -> dict[str, str]:
        """What its process has in its environment."""
        return {"CUDA_VISIBLE_DEVICES": self.uuid, FOLDER_VARIABLE: str(self.turns)}

    def take(self) -> None:
        """Make this process, and all that it starts, one that has this share alone."""
        os.environ.update(self.variables)
        os.sched_setaffinity(0, self.cores)


def gpu_shares(state: StateFolder, where: str, chosen: Sequence[int] = ()) -> list[GpuShare]:
    """Share this machine out among its GPUs.

    All get as many cores, as studies are of machines alike: those near the GPU (its NUMA node) if there are enough.

    Args:
        where: The option, for errors.
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
            where=where,
            remedy="Run it without this option." if inventory.why_none else "Name those that are there, or all.",
        )
    numbers = list(dict.fromkeys(chosen)) or range(len(uuids))
    cores = sorted(os.sched_getaffinity(0))
    if len(numbers) < 2 or len(cores) < len(numbers):
        why = inventory.why_none or (visible and visible.why_none) or f"{len(numbers)} GPU for {len(cores)} cores"
        raise ConfigError(
            f"it needs two GPUs, and a core for each: {why}", where=where, remedy="Run it without this option."
        )
    near = {gpu.uuid: cores_near(gpu) for gpu in inventory.gpus}
    shared = share_cores(cores, [near.get(uuids[number], frozenset()) for number in numbers])
    return [
        GpuShare(number=number, uuid=uuids[number], cores=share, turns=state.workers / "turns")
        for number, share in zip(numbers, shared, strict=True)
    ]


def share_cores(cores: Sequence[int], near: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Share cores out, as many to each, to those that have them near; by number where that does not work out.

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


@dataclass(frozen=True, kw_only=True)
class Started:
    """Command that is run as one of a group, on all cores unless some are named."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    cores: frozenset[int] = frozenset()

    @property
    def shown(self) -> tuple[str, ...]:
        """The command as it could be typed, without secrets."""
        inherited = inherited_environment()
        variables = [f"{name}={text}" for name, text in self.env.items() if inherited.get(name) != text]
        cores = ("taskset", "-c", ",".join(map(str, sorted(self.cores)))) if self.cores else ()
        return (*variables, *cores, *masked(self.words))


def workers_on(
    shares: Sequence[GpuShare], words: Sequence[str], state: StateFolder, *, seed: int, behind: Sequence[str] = ()
) -> dict[str, Started]:
    """Return a worker for each share, by its name; each has a folder of its own for its trials.

    Args:
        words: Command line of a worker, without its seed and its folder.
        behind: What stands at its end.
    """
    return {
        share.name: Started(
            words=(
                *(*words, "--seed", str(seed + place), "--state-dir", str(state.workers / share.uuid)),
                *(("--", *behind) if behind else ()),
            ),
            env={**inherited_environment(), **share.variables},
            cores=share.cores,
        )
        for place, share in enumerate(shares)
    }


@contextmanager
def working_along(started: Mapping[str, Started], clock: Clock) -> Iterator[None]:
    """Have workers at work for as long as a ``with`` block lasts; say which of them failed, and what they said last.

    Raises:
        CommandError: One of them cannot be started.
    """
    said = dict.fromkeys(started, "")
    with CommandGroup(clock, leave_s=0.0) as group:
        for name, one in started.items():
            group.start(name, one.words, one.env, one.cores)
        try:
            yield
        finally:
            for told in group.leave():
                if isinstance(told, OutputLine):
                    said[told.name] = told.text or said[told.name]
                elif isinstance(told, CommandEnd) and told.status > 0:
                    say_aside(f"autotune: the worker on {told.name} failed (status {told.status}): {said[told.name]}")

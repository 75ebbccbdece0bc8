"""CPU time of a process: for its start, and for each second from then on."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType

from autotune.clock import SystemClock
from autotune.errors import TrialError
from autotune.records import Stop, TrialPlan
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner

_STARTS = 3


def process_cost(
    command: Callable[[Path], Sequence[str]],
    *,
    start_s: float,
    seconds: float,
    env: Mapping[str, str] = MappingProxyType({}),
) -> tuple[float, float]:
    """Return the CPU seconds of a process's start, and its CPU share of one core from then on.

    Computed from short runs of it and a long one: the kernel's account of a process is exact at its end.

    Args:
        command: Returns its command line; it may write into the folder that it is given.
        start_s: Length of a short run, which covers the start.
        seconds: Additional length of the long run.
        env: Added to the environment.

    Raises:
        TrialError: The process ended by itself.
    """
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="autotune-bench-") as name, Guard() as guard:
        runner = ProcessRunner(guard, clock)

        def life(length_s: float) -> tuple[float, float]:
            """Return its real duration and its CPU seconds."""
            folder = Path(tempfile.mkdtemp(dir=name))
            argv = tuple(command(folder))
            plan = TrialPlan(
                trial_id=folder.name, folder=folder / "run", argv=argv, cwd=folder, env=env, config_text=""
            )
            ended = runner.run(plan, lambda _events: None, clock.now_s() + length_s)
            if ended.stop is not Stop.DEADLINE or ended.cpu_s is None:
                raise TrialError(f"it ended by itself: {ended.stderr_tail}", where=" ".join(argv))
            return ended.ended_s - ended.started_s, ended.cpu_s

        life(start_s)  # its files are read from the disk
        starts = [life(start_s) for _ in range(_STARTS)]
        short_s, short_cpu_s = (median(values) for values in zip(*starts, strict=True))
        long_s, long_cpu_s = life(start_s + seconds)
    cores = (long_cpu_s - short_cpu_s) / (long_s - short_s)
    return short_cpu_s - cores * short_s, cores

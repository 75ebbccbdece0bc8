"""Policy of idle machines: the limits below which nobody is there, and the times."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class IdlePolicy:
    """Limits and times by which a machine is idle, and by which somebody has come.

    Attributes:
        idle_s: Time without a break for which nobody must have been there.
        cpu_fraction: Share of the cores that others may use.
        least_cores: Cores that others may use in any case while a search runs: less cannot be told from rounding and
            from what the search itself causes in others.
        loud_s: Time for which they have to use more without a break to be somebody: a job of cron is shorter, or uses
            less.
        unlisted_bytes: GPU memory that may be held without a process: no context of CUDA is as small.
        drawing_bytes: Memory with which a process that came to draw, while a search runs, is somebody.
        busy_fraction: Share of time in which kernels of others may run: a desktop's drawing is not work.
        own_gone_s: Time since the last process of ours, from which on kernels that run are those of others.
        unknown_s: Time for which a search may run while there is no knowing who is there.
        longest_gap_s: Longest time between two readings that counts as idle.
        look_s: Time between two readings while nothing is about to start.
        close_s: Time before a start during which the machine is looked at closely.
        close_look_s: Time between two readings then, and while a search runs.
    """

    idle_s: float = 600.0
    cpu_fraction: float = 0.10
    least_cores: float = 0.25
    loud_s: float = 0.9
    unlisted_bytes: int = 256 << 20
    drawing_bytes: int = 256 << 20
    busy_fraction: float = 0.05
    own_gone_s: float = 2.0
    unknown_s: float = 10.0
    longest_gap_s: float = 35.0
    look_s: float = 10.0
    close_s: float = 2.0
    close_look_s: float = 0.25

"""Failure attribution: which points a failed trial says something about, by its ending."""

from collections.abc import Mapping
from enum import StrEnum

from autotune.records import Ending


class Attribution(StrEnum):
    """Set of points that a failure is attributed to."""

    NOTHING = "nothing"  # our doing, or somebody else's: the point may be tried again
    THIS_POINT = "this point"  # it gives no numbers here, and points like it are less likely to
    MEMORY = "memory"  # points that need at least as much will fail too


ATTRIBUTIONS: Mapping[Ending, Attribution] = {
    Ending.COMPLETED: Attribution.THIS_POINT,
    Ending.STOPPED: Attribution.THIS_POINT,
    Ending.CRASHED: Attribution.THIS_POINT,
    Ending.OUT_OF_HOST_MEMORY: Attribution.MEMORY,
    Ending.OUT_OF_GPU_MEMORY: Attribution.MEMORY,
    Ending.GPU_LOST: Attribution.NOTHING,
    Ending.DIVERGED: Attribution.THIS_POINT,
    Ending.HUNG: Attribution.THIS_POINT,
    Ending.NEVER_STARTED: Attribution.THIS_POINT,
    Ending.NO_STEPS: Attribution.THIS_POINT,
    Ending.OBSERVER_MISSING: Attribution.THIS_POINT,
    Ending.UNCOUNTED: Attribution.THIS_POINT,
    Ending.KILLED_BY_BUDGET: Attribution.NOTHING,
    Ending.INTERRUPTED: Attribution.NOTHING,
}
"""Attribution of every ending: `sampler.feasibility` predicts by it, `sampler.observations` drops those of none."""

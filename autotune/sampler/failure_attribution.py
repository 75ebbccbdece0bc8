"""What a search learns of a run that gave no numbers, by how it ended."""

from collections.abc import Mapping
from enum import StrEnum

from autotune.records import Ending


class Lesson(StrEnum):
    """What follows for other runs."""

    NOTHING = "nothing"  # our doing, or somebody else's: the point may be tried again
    THIS_POINT = "this point"  # it gives no numbers here; no other point is judged by that
    MEMORY = "memory"  # points that need at least as much will fail too
    VALUES = "values"  # what two such points have in common, and no good one has, is to blame


LESSONS: Mapping[Ending, Lesson] = {
    Ending.COMPLETED: Lesson.THIS_POINT,
    Ending.STOPPED: Lesson.THIS_POINT,
    Ending.CRASHED: Lesson.VALUES,
    Ending.OUT_OF_HOST_MEMORY: Lesson.MEMORY,
    Ending.OUT_OF_GPU_MEMORY: Lesson.MEMORY,
    Ending.GPU_LOST: Lesson.NOTHING,
    Ending.DIVERGED: Lesson.VALUES,
    Ending.HUNG: Lesson.VALUES,
    Ending.NEVER_STARTED: Lesson.VALUES,
    Ending.NO_STEPS: Lesson.VALUES,
    Ending.OBSERVER_MISSING: Lesson.THIS_POINT,
    Ending.KILLED_BY_BUDGET: Lesson.NOTHING,
    Ending.INTERRUPTED: Lesson.NOTHING,
}
"""The lesson of every ending; `sampler.feasibility` draws it, `sampler.observations` forgets what is none."""

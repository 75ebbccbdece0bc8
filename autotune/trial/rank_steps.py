"""Steps of a training of several ranks, made of those that each of them reports.

Each step of the training is complete when the last rank has completed it, holds the samples of all of them, and waited
for data as long as the rank that waited longest: the others waited for that one. So the rest of autotune sees one
training, with the pauses and the passes of its first rank.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.records import RANK_STEP, Rank, TraineeEvent

_ABOUT_THE_TRAINING = frozenset(
    ("begin", "checkpoint", "cost", "epoch_end", "eval", "in_force", "load", "phase", "stages", "unphased")
)
"""Kinds of event that every rank reports, and one is enough of."""

_PATIENCE_S = 30.0
"""Time for which the others train on, by their own clocks, before a rank that reports nothing is named."""


class RankSteps:
    """Merges the steps of ranks."""

    def __init__(self) -> None:
        self._ranks: dict[str, Rank] = {}  # by stream
        self._waiting: dict[int, deque[TraineeEvent]] = {}  # steps of each rank that others have not completed yet
        self._is_told = False

    def merge(self, events: Sequence[TraineeEvent]) -> Iterator[TraineeEvent]:
        """Yield the events of a training, for those of its processes.

        Args:
            events: New ones; those of each stream in the order in which it wrote them.
        """
        for event in events:
            if event.kind == "rank" and event.rank is not None:
                # a process that takes a rank over, after a restart, begins with a step of its own
                self._ranks[event.stream], self._waiting[event.rank.number] = event.rank, deque()
            rank = self._ranks.get(event.stream)
            if event.kind == RANK_STEP:
                if rank is None:
                    yield replace(event, kind="step")
                    continue
                self._waiting[rank.number].append(event)
            if rank is None or rank.number == 0 or event.kind not in _ABOUT_THE_TRAINING:
                yield event
        if self._ranks and not self._missing():
            in_order = [self._waiting[number] for number in sorted(self._waiting)]
            while all(in_order):
                yield _together([steps.popleft() for steps in in_order])
        if self._is_overdue():
            yield from self._without_missing()

    def _missing(self) -> list[int]:
        """Return the ranks that have not reported anything."""
        world = max(rank.world for rank in self._ranks.values())
        return [number for number in range(world) if number not in self._waiting]

    def _is_overdue(self) -> bool:
        """Return whether some ranks have made steps for a while that others keep from being complete."""
        steps = next((steps for steps in self._waiting.values() if steps), None)
        if steps is None or self._is_told or steps[-1].t_s - steps[0].t_s < _PATIENCE_S:
            return False
        return bool(self._missing())

    def _without_missing(self) -> Iterator[TraineeEvent]:
        """Yield the reason for which no step is complete, or the steps of a process that trains alone after all.

        A launcher's variables may be left over from something else; a framework that has joined its ranks is sure.
        """
        self._is_told = True
        missing, steps = self._missing(), next(steps for steps in self._waiting.values() if steps)
        if not any(rank.is_joined for rank in self._ranks.values()):
            yield from (replace(step, kind="step") for waiting in self._waiting.values() for step in waiting)
            self._ranks.clear()
            return
        names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        nodes = sorted({rank.node for rank in self._ranks.values()})
        text = (
            f"{names} of {len(missing) + len(self._waiting)} never reported a step; those on {', '.join(nodes)} did. "
            "Have the launcher forward AUTOTUNE_TRIAL_DIR and PYTHONPATH, and let every node see the state folder"
        )
        yield TraineeEvent(kind="unseen", t_s=steps[-1].t_s, stream=steps[-1].stream, text=text)


def _together(steps: Sequence[TraineeEvent]) -> TraineeEvent:
    """Return the step of the training that consists of one step of each rank, that of the first rank in front."""
    waits_s = [step.wait_s for step in steps if step.wait_s is not None]
    return replace(
        steps[0],
        kind="step",
        t_s=max(step.t_s for step in steps),
        wait_s=max(waits_s, default=None),
        samples=_sum([step.samples for step in steps]),
        work=_sum([step.work for step in steps]),
        update=all(step.update for step in steps),
    )


def _sum(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None

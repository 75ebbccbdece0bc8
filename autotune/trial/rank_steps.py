"""Steps of a training with several ranks, merged from the steps of each rank.

A merged step ends with the last rank's, holds the samples of all, and has the longest wait for data: other ranks wait
for that one. Pauses and passes are the first rank's.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.records import RANK_STEP, Rank, TraineeEvent

_ABOUT_THE_TRAINING = frozenset(
    ("begin", "checkpoint", "cost", "epoch_end", "eval", "in_force", "load", "phase", "stages", "unphased")
)
"""Kinds of event that every rank reports; only the first rank's are passed on."""

_TIMEOUT_S = 30.0
"""Training time of the others, on their clocks, after which silent ranks are reported."""


class RankSteps:
    """Merger of the ranks' steps."""

    def __init__(self) -> None:
        self._ranks: dict[str, Rank] = {}  # by stream
        self._waiting: dict[int, deque[TraineeEvent]] = {}  # by rank: steps that other ranks have not completed
        self._is_reported = False

    def merge(self, events: Sequence[TraineeEvent]) -> Iterator[TraineeEvent]:
        """Yield the events of a training from new events of its processes, in the order each wrote them."""
        for event in events:
            if event.kind == "rank" and event.rank is not None:
                # a process that takes over a rank after a restart starts with a new step
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
                yield _merged([steps.popleft() for steps in in_order])
        if self._is_overdue():
            yield from self._without_missing()

    def _missing(self) -> list[int]:
        world = max(rank.world for rank in self._ranks.values())
        return [number for number in range(world) if number not in self._waiting]

    def _is_overdue(self) -> bool:
        steps = next((steps for steps in self._waiting.values() if steps), None)
        if steps is None or self._is_reported or steps[-1].t_s - steps[0].t_s < _TIMEOUT_S:
            return False
        return bool(self._missing())

    def _without_missing(self) -> Iterator[TraineeEvent]:
        """Yield an event that names the silent ranks; without joined ranks, each process's own steps.

        A launcher's variables may be left over, while joined ranks are certain.
        """
        self._is_reported = True
        missing, steps = self._missing(), next(steps for steps in self._waiting.values() if steps)
        if not any(rank.is_joined for rank in self._ranks.values()):
            yield from (replace(step, kind="step") for waiting in self._waiting.values() for step in waiting)
            self._ranks.clear()
            return
        names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        nodes = sorted({rank.node for rank in self._ranks.values()})
        text = (
            f"{names} of {len(missing) + len(self._waiting)} never reported a step; those on {', '.join(nodes)} did. "
            "Have the launcher forward AUTOTUNE_TRIAL_DIR and PYTHONPATH, and share the state folder with every node"
        )
        yield TraineeEvent(kind="unseen", t_s=steps[-1].t_s, stream=steps[-1].stream, text=text)


def _merged(steps: Sequence[TraineeEvent]) -> TraineeEvent:
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

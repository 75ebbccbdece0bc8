"""Ranks of a distributed training: how each spends its time, and the straggler."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from autotune.records import RANK_STEP, Rank, RankMeasurement, TraineeEvent

if TYPE_CHECKING:
    from autotune.measure.window import Window

_LEAST_EXCESS = 0.1  # share of time beyond the others that makes a straggler
_NO_EXCHANGE = 0.9  # share of time outside of the exchange; above it on all ranks, backward passes have none


def ranks_of(events: Sequence[TraineeEvent], window: "Window") -> tuple[RankMeasurement, ...]:
    """Return the measurement of each rank over a trial's steady window; empty for a single process.

    Args:
        events: All events, each stream in time order.
    """
    of_stream = {event.stream: event.rank for event in events if event.kind == "rank" and event.rank is not None}
    streams = {rank.number: stream for stream, rank in of_stream.items()}  # the last of a restarted rank
    within: dict[str, list[TraineeEvent]] = {stream: [] for stream in of_stream}
    for event in events if of_stream else ():
        if event.stream in within and window.t0_s <= event.t_s <= window.t1_s:
            within[event.stream].append(event)
    measured = [_measured(of_stream[stream], within[stream]) for _, stream in sorted(streams.items())]
    return tuple(one for one in measured if one is not None)


def _measured(rank: Rank, own: Sequence[TraineeEvent]) -> RankMeasurement | None:
    steps = [event for event in own if event.kind == RANK_STEP]
    if len(steps) < 2 or steps[-1].t_s <= steps[0].t_s:
        return None
    length_s = steps[-1].t_s - steps[0].t_s
    waits_s = [step.wait_s for step in steps[1:]]
    waited = None if None in waits_s else min(1.0, sum(wait_s or 0.0 for wait_s in waits_s) / length_s)
    outside = [event for event in own if event.kind == "own" and event.duration_s is not None]
    busy = None
    if len(outside) > 1 and outside[-1].t_s > outside[0].t_s:
        spent_s = (outside[-1].duration_s or 0.0) - (outside[0].duration_s or 0.0)
        busy = min(1.0, max(0.0, spent_s / (outside[-1].t_s - outside[0].t_s)))
    return RankMeasurement(
        number=rank.number,
        node=rank.node,
        step_s=median(after.t_s - before.t_s for before, after in pairwise(steps)),
        data_wait_fraction=waited,
        own_fraction=busy,
    )


def pooled_ranks(trials: Sequence[Sequence[RankMeasurement]]) -> tuple[RankMeasurement, ...]:
    """Return the medians of each rank over the trials of a point."""
    by_number: dict[int, list[RankMeasurement]] = {}
    for one in (one for trial in trials for one in trial):
        by_number.setdefault(one.number, []).append(one)
    return tuple(
        RankMeasurement(
            number=number,
            node=of_rank[-1].node,
            step_s=median(one.step_s for one in of_rank),
            data_wait_fraction=_median([one.data_wait_fraction for one in of_rank]),
            own_fraction=_median([one.own_fraction for one in of_rank]),
        )
        for number, of_rank in sorted(by_number.items())
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """Rank that the others wait for.

    Attributes:
        excess: Share of time that it needs beyond the others.
        fraction: Share of its time waiting for data, or outside of the gradient exchange.
        others: Median of that share over the others.
    """

    rank: RankMeasurement
    excess: float
    fraction: float
    others: float
    waits_for_data: bool

    @property
    def sentence(self) -> str:
        does = "waits for data" if self.waits_for_data else "is busy outside of the gradient exchange"
        return (
            f"rank {self.rank.number} on {self.rank.node} delays the others: it {does} "
            f"{100.0 * self.fraction:.0f} % of the time (others: {100.0 * self.others:.0f} %)"
        )


def straggler(ranks: Sequence[RankMeasurement]) -> Straggler | None:
    """Return the rank that the others wait for, if any.

    Gradients are exchanged in each step, so steps take equally long on all ranks. The straggler is the rank with the
    largest share of time outside of the exchange.
    """
    waits = {one.number: one.data_wait_fraction for one in ranks if one.data_wait_fraction is not None}
    busy = {one.number: one.own_fraction for one in ranks if one.own_fraction is not None}
    # if even the idlest is hardly ever in a backward pass, gradients are exchanged elsewhere, as in DeepSpeed
    known = busy if len(busy) == len(ranks) and min(busy.values(), default=0.0) < _NO_EXCHANGE else waits
    if len(ranks) < 2 or len(known) < len(ranks):
        return None
    slowest = max(ranks, key=lambda one: known[one.number])
    others = median(share for number, share in known.items() if number != slowest.number)
    excess = known[slowest.number] - others
    if excess < _LEAST_EXCESS:
        return None
    others_wait = median([share for number, share in waits.items() if number != slowest.number] or [0.0])
    waited = waits.get(slowest.number, 0.0)
    if known is waits or waited - others_wait > 0.5 * excess:
        return Straggler(rank=slowest, excess=excess, fraction=waited, others=others_wait, waits_for_data=True)
    return Straggler(rank=slowest, excess=excess, fraction=known[slowest.number], others=others, waits_for_data=False)

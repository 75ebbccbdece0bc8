"""What the record says about each point: its level, relative to one reference run of the study."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.statistics import pooled_variance
from autotune.records import Ending, Measurement, RunRecord, Values
from autotune.score import ln_score
from autotune.space.space import Space

TYPICAL_CV = 0.08
"""Spread of ln throughput between runs of one config, as seen on unlike machines; the start of every estimate."""

_TYPICAL_CV_RUNS = 4.0  # how many degrees of freedom that experience is worth


@dataclass(frozen=True, kw_only=True)
class PointLevel:
    """A point and what its runs showed.

    Attributes:
        name: Name of the point.
        values: Its knob values.
        scores: ln score of each comparable run, relative to the reference.
        endings: How its runs that gave nothing comparable ended.
    """

    name: str
    values: Values
    scores: tuple[float, ...]
    endings: tuple[Ending, ...]

    @property
    def mean(self) -> float:
        """Mean ln score; minus infinity if no run is comparable."""
        return sum(self.scores) / len(self.scores) if self.scores else -math.inf


def reference_of(records: Iterable[RunRecord]) -> Measurement | None:
    """The study's first comparable run: the unit in which levels are counted, so that it never moves."""
    return next((measured for record in records if (measured := record.comparable)), None)


def point_levels(records: Sequence[RunRecord], space: Space, steadiness_weight: float) -> dict[str, PointLevel]:
    """Aggregates the record: one level for each point that lies in the space.

    Points of an earlier, wider domain, or with knobs that are no longer searched, are left out.
    """
    reference = reference_of(records)
    levels: dict[str, PointLevel] = {}
    for record in records:
        if not space.contains(record.values):
            continue
        known = levels.get(record.point) or PointLevel(name=record.point, values=record.values, scores=(), endings=())
        measured = record.comparable
        if measured and reference:
            scores, endings = (
                (*known.scores, ln_score(measured, reference, steadiness_weight=steadiness_weight)),
                known.endings,
            )
        else:
            scores, endings = known.scores, (*known.endings, record.ending)
        levels[record.point] = PointLevel(name=known.name, values=known.values, scores=scores, endings=endings)
    return levels


def between_run_variance(levels: Mapping[str, PointLevel]) -> tuple[float, float]:
    """Variance of ln score between runs of one point, from this study's repeats alone, and its degrees of freedom."""
    return pooled_variance([level.scores for level in levels.values()])


def expected_run_sd(levels: Mapping[str, PointLevel]) -> float:
    """Standard deviation of ln score between runs of one point: the study's repeats, pulled towards experience."""
    variance, df = between_run_variance(levels)
    return math.sqrt((_TYPICAL_CV_RUNS * TYPICAL_CV**2 + df * variance) / (_TYPICAL_CV_RUNS + df))

"""Section of the search: best speed against time, trials as points with intervals, and what runs now."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from autotune.daemon.queue.entry import Entry
from autotune.daemon.queue.queue import Queue
from autotune.daemon.search_ending import read_answer
from autotune.daemon.web.page_text import line
from autotune.daemon.web.sections.event_files import SUFFIX, StudyEvents, event_file_of
from autotune.daemon.web.sections.study_progress import StudyProgress, TrialDot
from autotune.records import Purpose

MOST_DOTS = 400
_MOST_POINTS = 8
_MOST_STEPS = 400
_PRIOR_SD = 0.08  # of ln speed between trials of one config, as `study.confirmed_speed` has it
_PRIOR_DF = 6.0
_Z = 1.959964  # 97.5 % quantile of the normal distribution


class PointPart(TypedDict):
    """Point with the speed over today's of its trials, and the 95 % interval of that."""

    changes: str
    ratio: float
    low: float
    high: float
    trials: int
    is_today: bool


class SearchPart(TypedDict):
    """Section of the search.

    Times are seconds of search time: what lies between the searches of a study is left out. `best` holds all steps of
    the best speed over today's, `dots` a choice of at most 400 trials: number, time, ratio or null, purpose, whether it
    failed. `spread` is half the width of the 95 % interval of ln speed of one trial.
    """

    entry: int
    config: str
    study: str
    is_running: bool
    verdict: str | None
    started_utc: str | None
    budget_s: float
    used_s: float
    phase: str | None
    why: str | None
    now: dict[str, Any] | None
    measures: str
    combinations: int | None
    t_s: float
    starts_s: list[float]
    trials: int
    endings: dict[str, int]
    best: list[tuple[float, float]]
    best_changes: str | None
    dots: list[tuple[int, float, float | None, str, bool]]
    spread: float | None
    points: list[PointPart]
    recent: list[dict[str, Any]]
    remarks: list[str]


class SearchFollower:
    """Follower of the search that runs, else of the one that ran last; reads what is new in its event files.

    Args:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._followed: tuple[str, object] | None = None  # the entry, and the process of its search
        self._events: StudyEvents | None = None
        self._progress = StudyProgress()
        self._shown: tuple[Entry, SearchPart] | None = None

    def section(self, entries: Sequence[Entry]) -> SearchPart | None:
        """Return the section; None if no search of the queue has begun yet."""
        entry = _entry_to_show(entries)
        if entry is None:
            return None
        self._follow(entry)
        for search, event in self._events.news() if self._events else ():
            self._progress.add(search, event)
            self._shown = None
        if self._shown is None or self._shown[0] != entry:
            self._shown = entry, _section(entry, self._progress)
        return self._shown[1]

    def _follow(self, entry: Entry) -> None:
        """Turn to the events of an entry's latest search."""
        followed = entry.id, entry.owner and entry.owner.get("pid")
        if followed == self._followed:
            return
        path = self._path(entry)
        if path is None and entry.owner is not None:
            return  # it has not begun to write
        if path is None or self._events is None or path != self._events.path:
            self._events, self._progress = StudyEvents(path) if path else None, StudyProgress()
            self._shown = None
        self._followed = followed

    def _path(self, entry: Entry) -> Path | None:
        """Return the event file of an entry's latest search; None if there is none yet."""
        if entry.owner is None:
            paths = (read_answer(self._queue.answer(entry)) or {}).get("paths")
            events = paths.get("events") if isinstance(paths, dict) else None
            if isinstance(events, str) and events.endswith(SUFFIX):
                return Path(events)
            is_same = self._followed is not None and self._followed[0] == entry.id
            return self._events.path if self._events and is_same else None
        return event_file_of(entry)


def _entry_to_show(entries: Sequence[Entry]) -> Entry | None:
    """Return the entry whose search runs, else the one whose search ran last."""
    running = [entry for entry in entries if entry.owner is not None]
    searched = [entry for entry in entries if entry.used_s > 0.0]
    return next(iter([*running, *reversed(searched)]), None)


def _section(entry: Entry, progress: StudyProgress) -> SearchPart:
    is_running = entry.owner is not None
    deviation, degrees = spread_of([values for _, values in progress.groups()])
    phase, why = progress.phase or (None, None)
    return SearchPart(
        entry=entry.number,
        config=line(entry.config) or "",
        study=progress.study,
        is_running=is_running,
        verdict=entry.answer.verdict if entry.answer and not is_running else None,
        started_utc=progress.started_utc,
        budget_s=entry.budget_s,
        used_s=round(min(entry.budget_s, entry.used_s + entry.running_s)),
        phase=phase if is_running else None,
        why=why if is_running else None,
        now=asdict(progress.running) if is_running and progress.running else None,
        measures=progress.measures,
        combinations=progress.combinations,
        t_s=round(progress.t_s, 1),
        starts_s=[round(start_s, 1) for start_s in progress.starts_s[-50:]],
        trials=len(progress.dots),
        endings=dict(progress.endings.most_common(16)),
        best=progress.best[-_MOST_STEPS:],
        best_changes=progress.best_changes,
        dots=[
            (dot.number, dot.t_s, dot.ratio, dot.purpose, dot.has_failed) for dot in thinned(progress.dots, MOST_DOTS)
        ],
        spread=round(half_width(deviation, degrees, 1.0), 4) if progress.dots else None,
        points=_points(progress, deviation, degrees),
        recent=[asdict(row) for row in reversed(progress.recent)],
        remarks=list(progress.remarks),
    )


def thinned(dots: Sequence[TrialDot], most: int) -> list[TrialDot]:
    """Return at most so many trials, in their order: of each stretch the fastest, the slowest and one that failed.

    The first and the last one are among them, and so is the fastest one of all.
    """
    if len(dots) <= most:
        return list(dots)
    kept: dict[int, TrialDot] = {0: dots[0], len(dots) - 1: dots[-1]}
    stretches = (most - 2) // 3
    for stretch in range(stretches):
        places = range(stretch * len(dots) // stretches, (stretch + 1) * len(dots) // stretches)
        measured = [place for place in places if dots[place].ratio is not None]
        failed = [place for place in places if dots[place].ratio is None]
        measured.sort(key=lambda place: dots[place].ratio or 0.0)
        kept |= {place: dots[place] for place in (*measured[:1], *measured[-1:], *failed[:1])}
    return [kept[place] for place in sorted(kept)]


def spread_of(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the standard deviation of ln speed between trials of one point, and its degrees of freedom.

    The variance within points, pooled, and moderated by the usual spread of 8 % with 6 degrees of freedom (Smyth 2004,
    see `statistics.moderated_interval`).
    """
    squares, degrees = 0.0, 0
    for values in groups:
        mean = math.fsum(values) / len(values)
        squares += math.fsum((value - mean) ** 2 for value in values)
        degrees += len(values) - 1
    total = _PRIOR_DF + degrees
    return math.sqrt((_PRIOR_DF * _PRIOR_SD**2 + squares) / total), total


def half_width(deviation: float, degrees: float, trials: float) -> float:
    """Return half the width of the 95 % interval of a mean of ln speed over some trials."""
    return t_quantile(degrees) * deviation / math.sqrt(trials)


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t for 6 degrees of freedom or more, to 1 in 1000.

    An expansion around the normal quantile (Abramowitz & Stegun 26.7.5): `statistics` has all of it, and loads numpy,
    which the daemon does without.
    """
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def _points(progress: StudyProgress, deviation: float, degrees: float) -> list[PointPart]:
    """Return the fastest points, today's values among them; the interval of the ratio holds today's own error."""
    today = next((dot.point for dot in progress.dots if dot.purpose == Purpose.BASELINE), None)
    groups = dict(progress.groups())
    todays = max(1, len(groups.get(today or "", ())))
    means = {point: math.fsum(values) / len(values) for point, values in groups.items()}
    best = sorted(means, key=lambda point: -means[point])
    shown = [point for place, point in enumerate(best) if place < _MOST_POINTS or point == today]
    parts = []
    for point in shown:
        effective = len(groups[point]) if point == today else 1 / (1 / len(groups[point]) + 1 / todays)
        half = half_width(deviation, degrees, effective)
        parts.append(
            PointPart(
                changes=progress.points[point],
                ratio=round(math.exp(means[point]), 4),
                low=round(math.exp(means[point] - half), 4),
                high=round(math.exp(means[point] + half), 4),
                trials=len(groups[point]),
                is_today=point == today,
            )
        )
    return parts

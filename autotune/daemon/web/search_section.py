"""Section of the search: best speed against time, trials as points with intervals, and what runs now."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

from autotune.daemon.queue import Entry, Queue
from autotune.daemon.searches import read_answer
from autotune.daemon.web.queue_section import line, tail
from autotune.errors import AutotuneError
from autotune.files import open_regular, read_beginning
from autotune.records import NOT_COMPARED, Ending, Purpose
from autotune.report.plain_text import changes_text
from autotune.trial.state_folder import StateFolder

MOST_DOTS = 400
_MOST_POINTS = 8
_MOST_STEPS = 400
_PRIOR_DF = 6.0


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
    """Follower of the search that runs, else of the one that ran last; reads what is new in its event files."""

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
    # of ln speed between trials of one config, as `study.confirmed_speed` has it
    return math.sqrt((_PRIOR_DF * 0.08**2 + squares) / total), total


def half_width(deviation: float, degrees: float, trials: float) -> float:
    """Return half the width of the 95 % interval of a mean of ln speed over some trials."""
    return t_quantile(degrees) * deviation / math.sqrt(trials)


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t for 6 degrees of freedom or more, to 1 in 1000.

    An expansion around the normal quantile (Abramowitz & Stegun 26.7.5): `statistics` has all of it, and loads numpy,
    which the daemon does without.
    """
    z = 1.959964  # 97.5 % quantile of the normal distribution
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


_LONGEST_PAUSE_S = 6 * 3600.0  # between two events of one search; beyond it a clock was set, or a machine slept
_UNCOMPARED = frozenset(purpose.value for purpose in NOT_COMPARED)
_NO_FAILURE = frozenset((Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED))


@dataclass(frozen=True, slots=True)
class TrialDot:
    """Trial as a picture needs it.

    Attributes:
        t_s: Its end, in seconds of search time.
        ratio: Its speed over today's; None where it gave no comparable number.
    """

    number: int
    t_s: float
    ratio: float | None
    purpose: str
    has_failed: bool
    point: str


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """Trial as a table shows it; text is fit for the page."""

    number: int
    purpose: str
    changes: str
    samples_per_s: float | None
    ratio: float | None
    gpu_utilization: float | None
    duration_s: float | None
    ending: str
    validity: str
    detail: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class RunningTrial:
    """Trial that goes on."""

    number: int
    purpose: str
    changes: str
    started_utc: str


@dataclass
class StudyProgress:
    """Progress of a study; fed with events in their order.

    Time counts while searches go on: what lies between two searches is left out.

    Attributes:
        study: Name of the study; empty before it is known.
        search: Search whose events came last.
        combinations: Number of points in its space.
        t_s: Search time up to the last event.
        phase: What it does, and why, in words; None before the first phase.
        running: The trial that goes on; None between two.
        verdict: Its verdict; None before the end, and where it has none.
        endings: Number of trials by their ending.
        best: Speed of the incumbent over today's, at the search times from which it was the best.
        best_changes: Changes of the incumbent, as text; None before one is known.
        points: By name of a point, its changes as text.
    """

    study: str = ""
    search: str = ""
    started_utc: str | None = None
    budget_s: float | None = None
    measures: str = ""
    combinations: int | None = None
    t_s: float = 0.0
    starts_s: list[float] = field(default_factory=list)
    phase: tuple[str, str] | None = None
    running: RunningTrial | None = None
    is_over: bool = False
    verdict: str | None = None
    dots: list[TrialDot] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    best: list[tuple[float, float]] = field(default_factory=list)
    best_changes: str | None = None
    points: dict[str, str] = field(default_factory=dict)
    recent: deque[TrialRow] = field(default_factory=lambda: deque(maxlen=12))
    remarks: deque[str] = field(default_factory=lambda: deque(maxlen=6))
    _last: datetime | None = None
    _numbers: set[int] = field(default_factory=set)
    _has_unit: bool = False  # today's config was measured in this search

    def add(self, search: str, event: Event) -> None:
        """Add an event; one that cannot be understood is passed over."""
        if search != self.search:
            self._begin(search)
        self._pass_time(event.get("utc"))
        try:
            self._take(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            return

    def _begin(self, search: str) -> None:
        self.search, self._last = search, None
        self.starts_s.append(self.t_s)
        self.phase, self.running, self.is_over, self.verdict = None, None, False, None
        self.started_utc, self.budget_s, self._has_unit = None, None, False
        self.remarks.clear()

    def _pass_time(self, utc: object) -> None:
        try:
            now = datetime.fromisoformat(str(utc))
            passed_s = 0.0 if self._last is None else (now - self._last).total_seconds()
        except (ValueError, TypeError):  # no stamp, or one without an offset
            return
        if 0.0 < passed_s <= _LONGEST_PAUSE_S:  # a clock may have been set
            self.t_s += passed_s
        self._last = now

    def _take(self, event: Event) -> None:
        match event.get("event"):
            case "SearchStarted":
                self.study = line(str(event["study"]), 120) or ""
                self.started_utc = line(str(event["utc"]), 40)
                self.budget_s = number(event["budget_s"])
                self.measures = line(str(event["measures"]), 120) or ""
                self.combinations = int(event["points"])
            case "TrialStarted":
                self.running = RunningTrial(
                    number=int(event["number"]),
                    purpose=_purpose(event),
                    changes=_changes(event["changes"]),
                    started_utc=line(str(event["utc"]), 40) or "",
                )
            case "TrialEnded":
                self._end_trial(event)
            case "IncumbentChanged":
                ratio = number(event["speedup"])
                if ratio is not None:
                    self.best.append((round(self.t_s, 1), round(ratio, 4)))
                    self.best_changes = _changes(event["changes"])
            case "PhaseChanged":
                self.phase = line(str(event["phase"]), 40) or "", line(str(event["why"]), 300) or ""
            case "Remark":
                self.remarks.append(line(str(event["text"]), 300) or "")
            case "SearchEnded":
                self.is_over, self.running = True, None
                self.verdict = line(event["verdict"], 20)

    def _end_trial(self, event: Event) -> None:
        trial = event["trial"]
        count = int(trial["number"])
        if self.running is not None and self.running.number == count:
            self.running = None
        if count in self._numbers:  # a write whose answer was lost may be told twice
            return
        self._numbers.add(count)
        purpose, point = str(trial["purpose"])[:20], str(trial["point"])[:80]
        measured = trial["measurement"] if isinstance(trial["measurement"], Mapping) else {}
        ratio = None if purpose in _UNCOMPARED else number(event["speedup"])
        changes = _changes(event["changes"])
        self.points.setdefault(point, changes)
        self.endings[line(str(trial["ending"]), 40) or ""] += 1
        has_failed = trial["ending"] not in _NO_FAILURE
        self.dots.append(TrialDot(count, round(self.t_s, 1), ratio and round(ratio, 4), purpose, has_failed, point))
        if purpose == Purpose.BASELINE and ratio and not self._has_unit:
            self._has_unit = True
            self.best.append((round(self.t_s, 1), 1.0))
        self.recent.append(
            TrialRow(
                number=count,
                purpose=_purpose(trial),
                changes=changes,
                samples_per_s=number(measured.get("filled_samples_per_s") or measured.get("samples_per_s")),
                ratio=ratio,
                gpu_utilization=number(measured.get("gpu_utilization")),
                duration_s=number(trial["duration_s"]),
                ending=line(str(trial["ending"]), 40) or "",
                validity=line(str(trial["validity"]), 40) or "",
                detail=line(str(trial["detail"]), 200) or "",
                stderr=tail(str(event["stderr_tail"]), 400) if has_failed else "",
            )
        )

    def groups(self) -> Iterator[tuple[str, list[float]]]:
        """Yield each point with the logarithms of the ratios of its trials."""
        found: dict[str, list[float]] = {}
        for dot in self.dots:
            if dot.ratio:
                found.setdefault(dot.point, []).append(math.log(dot.ratio))
        yield from found.items()


def number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(f"{float(value):.5g}")


def _purpose(trial: Mapping[str, Any]) -> str:
    pair = trial.get("pair")
    return line(str(trial["purpose"]), 20) or "" if not isinstance(pair, int) else f"pair {pair + 1}"


def _changes(changes: Any) -> str:
    """Return the changes of a point as one line; keys and values may hold anything."""
    short = {str(path)[:200]: value for path, value in list(changes.items())[:40]}
    return line(changes_text(short), 160) or ""


SUFFIX = ".events.jsonl"
_MOST_FILES = 200
_LONGEST_LINE_BYTES = 8 << 20
Event = Mapping[str, Any]


class EventFile:
    """Event file of one search, which may be written to meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._rest = b""
        self._is_skipping = False  # the rest of a line that is too long

    def news(self, most_bytes: int) -> Iterator[Event]:
        """Yield the events that were written since the last call; what is no event is passed over.

        Args:
            most_bytes: Where to stop; the next call goes on from there.
        """
        end = self._position + most_bytes
        try:
            with open_regular(self.path) as file:
                file.seek(self._position)
                while self._position < end and (chunk := file.read(min(4 << 20, end - self._position))):
                    self._position += len(chunk)
                    yield from self._events(chunk)
        except OSError:  # it was taken away
            return

    @property
    def read_bytes(self) -> int:
        return self._position

    def _events(self, chunk: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._is_skipping and lines:
            self._is_skipping = False
            del lines[0]
        if len(self._rest) > _LONGEST_LINE_BYTES or self._is_skipping:
            self._rest, self._is_skipping = b"", True
        for one in lines:
            if (event := _event(one)) is not None:
                yield event


class StudyEvents:
    """Events of all searches of the study that one search works on, as far as their files lie beside its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[EventFile] | None = None

    def news(self) -> Iterator[tuple[str, Event]]:
        """Yield each event that is new since the last call with the name of its search, the oldest search first."""
        if self._files is None:
            study = _study_of(self.path)
            if study is None:
                return
            self._files = [EventFile(path) for path in _siblings(self.path, study)]
        left = 32 << 20  # of one call; the rest comes with the next ones
        for file in self._files:
            before = file.read_bytes
            for event in file.news(left):
                yield file.path.name.removesuffix(SUFFIX), event
            left -= file.read_bytes - before
            if left <= 0:  # in their order, or the time of one search would be taken for that of another
                return


def event_file_of(entry: Entry) -> Path | None:
    """Return the event file of the search of an entry that runs; None if none runs, or has written anything yet."""
    if entry.owner is None:
        return None
    ending = f"-{entry.owner.get('host')}-{entry.owner.get('pid')}{SUFFIX}"
    try:
        folder = StateFolder.locate(Path(entry.config), explicit=_state_folder(entry), environ=entry.environment)
        found = [one for one in folder.searches.iterdir() if one.name.endswith(ending)]
    except (AutotuneError, OSError):
        return None
    return max(found, key=lambda path: path.name, default=None)


def _state_folder(entry: Entry) -> Path | None:
    options = entry.options[: entry.options.index("--")] if "--" in entry.options else entry.options
    for place, option in enumerate(options):
        if option == "--state-dir" and place + 1 < len(options):
            return Path(entry.cwd) / options[place + 1]
        if option.startswith("--state-dir="):
            return Path(entry.cwd) / option.partition("=")[2]
    return None


def _siblings(path: Path, study: str) -> list[Path]:
    """Return the event files of a study in a folder up to one of them; their names begin with the time in UTC."""
    try:
        found = sorted(one for one in path.parent.iterdir() if one.name.endswith(SUFFIX) and one.name < path.name)
    except OSError:
        found = []
    return [*(one for one in found[-_MOST_FILES:] if _study_of(one) == study), path]


def _study_of(path: Path) -> str | None:
    for one in read_beginning(path, 64 << 10).split(b"\n"):  # the study's name stands there, behind a few remarks
        event = _event(one)
        if event is not None and event.get("event") == "SearchStarted":
            study = event.get("study")
            return study if isinstance(study, str) else None
    return None


def _event(text: bytes) -> Event | None:
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):  # a torn last line
        return None
    return event if isinstance(event, dict) else None

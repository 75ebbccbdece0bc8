"""Progress of a study by the events of its searches: trials, points, the best speed over time, what runs now."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from autotune.daemon.web.page_text import line, tail
from autotune.daemon.web.sections.event_files import Event
from autotune.records import NOT_COMPARED, Ending, Purpose
from autotune.report.plain_text import changes_text

_RECENT = 12
_REMARKS = 6
_LONGEST_PAUSE_S = 6 * 3600.0  # between two events of one search; beyond it a clock was set, or a machine slept
_CHANGES_LETTERS = 160
_STDERR_LETTERS = 400
_UNCOMPARED = frozenset(purpose.value for purpose in NOT_COMPARED)
_NO_FAILURE = frozenset((Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED))


@dataclass(frozen=True, slots=True)
class TrialDot:
    """Trial as a picture needs it.

    Attributes:
        number: Its number in the study.
        t_s: Its end, in seconds of search time.
        ratio: Its speed over today's; None where it gave no comparable number.
        purpose: Reason for which it was made.
        has_failed: Whether it ended with an error.
        point: Name of its point.
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
        started_utc: Its start, ISO 8601.
        budget_s: Its budget.
        measures: What its score measures, in words.
        combinations: Number of points in its space.
        t_s: Search time up to the last event.
        starts_s: Start of each search in search time.
        phase: What it does, and why, in words; None before the first phase.
        running: The trial that goes on; None between two.
        is_over: Whether it has said that it is over.
        verdict: Its verdict; None before the end, and where it has none.
        dots: All trials that ended.
        endings: Number of trials by their ending.
        best: Speed of the incumbent over today's, at the search times from which it was the best.
        best_changes: Changes of the incumbent, as text; None before one is known.
        points: By name of a point, its changes as text.
        recent: The last trials.
        remarks: The last remarks.
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
    recent: deque[TrialRow] = field(default_factory=lambda: deque(maxlen=_RECENT))
    remarks: deque[str] = field(default_factory=lambda: deque(maxlen=_REMARKS))
    _last: datetime | None = None
    _numbers: set[int] = field(default_factory=set)
    _has_unit: bool = False  # today's config was measured in this search

    def add(self, search: str, event: Event) -> None:
        """Add an event; one that cannot be understood is passed over.

        Args:
            search: Name of the search that it is of.
            event: As the event file has it.
        """
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
                stderr=tail(str(event["stderr_tail"]), _STDERR_LETTERS) if has_failed else "",
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
    return line(changes_text(short), _CHANGES_LETTERS) or ""

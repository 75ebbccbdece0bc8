"""Search section of the page: best speed over time, trials and points."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from autotune.daemon.drift import half_width
from autotune.daemon.queue import Queue, QueueEntry
from autotune.daemon.searches import read_answer
from autotune.errors import AutotuneError
from autotune.files import json_object, read_beginning
from autotune.records import CONFIRMED, NOT_COMPARED, Ending, Purpose
from autotune.report.plain_text import changes_text, plain, value_text
from autotune.trial.folders import StateFolder
from autotune.trial.step_files import LineTail

MOST_DOTS = 400
SUFFIX = ".events.jsonl"
_NO_FAILURE = frozenset((Ending.COMPLETED, Ending.STOPPED, Ending.KILLED_BY_BUDGET, Ending.INTERRUPTED))
_LONGEST_PAUSE_S = 6 * 3600.0  # between two events of one search; a longer one is a clock change or a suspend
Event = Mapping[str, Any]
Dot = tuple[int, float, float | None, str, bool]
"""Trial in the plot: number, end in seconds of search time, speed over the baseline, purpose, has failed."""


def clean(value: Any, longest: int = 300) -> Any:
    """Return a JSON value with bounded texts without control characters."""
    if isinstance(value, str):
        lines = value[: 10 * longest].splitlines()[:200]
        return "\n".join(plain(line, longest) for line in lines)
    if isinstance(value, Mapping):
        return {clean(name): clean(part, longest) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(clean(part, longest) for part in value)
    return value


def number(value: object) -> float | None:
    """Return a finite number with five digits, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(f"{float(value):.5g}")


class SearchFollower:
    """Follower of the running or last search, by its event files."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._id = ""  # of the followed entry
        self._study = StudyProgress()

    def section(self, entries: Sequence[QueueEntry]) -> dict[str, Any] | None:
        """Return the section; None before the first search."""
        running = [entry for entry in entries if entry.owner is not None]
        searched = [entry for entry in entries if entry.used_s > 0.0]
        entry = next(iter([*running, *reversed(searched)]), None)
        if entry is None:
            return None
        is_running = entry.owner is not None
        path = event_file_of(entry) if is_running else self._file_of_ended(entry)
        if entry.id != self._id or path not in (None, self._study.path):
            self._id, self._study = entry.id, StudyProgress(path)
        self._study.poll()
        return {
            **section_of(self._study, is_running=is_running),
            "entry": entry.number,
            "config": clean(entry.config),
            "verdict": entry.answer.verdict if entry.answer and not is_running else None,
            "budget_s": entry.budget_s,
            "used_s": round(entry.spent_s),
        }

    def _file_of_ended(self, entry: QueueEntry) -> Path | None:
        paths = read_answer(self._queue.answer(entry)).get("paths")
        events = paths.get("events") if isinstance(paths, dict) else None
        return Path(events) if isinstance(events, str) and events.endswith(SUFFIX) else None


def event_file_of(entry: QueueEntry) -> Path | None:
    """Return the event file of an entry's running search, if any."""
    if entry.owner is None:
        return None
    named = entry.option("--state-dir")
    explicit = Path(entry.cwd) / named if named else None
    try:
        folder = StateFolder.locate(Path(entry.config), explicit=explicit, environ=entry.environment)
        return event_file_in(folder, entry.owner.get("host"), entry.owner.get("pid"))
    except (AutotuneError, OSError):
        return None


def event_file_in(folder: StateFolder, host: object, pid: object) -> Path | None:
    """Return the event file of a process's latest search, if any."""
    return max(folder.searches.glob(f"*-{host}-{pid}{SUFFIX}"), key=lambda path: path.name, default=None)


def events_of(tail: LineTail) -> Iterator[Event]:
    """Yield the events since the last call."""
    while lines := tail.read(4 << 20):
        for line in lines:
            if event := json_object(line):
                yield event


def _of_one_study(path: Path) -> list[Path]:
    """Return the event files of a search's study up to its own, oldest first; empty if unknown."""
    study = _study_of(path)
    if study is None:
        return []
    earlier = sorted(one for one in path.parent.glob(f"*{SUFFIX}") if one.name < path.name)  # names start with UTC
    return [*(one for one in earlier[-200:] if _study_of(one) == study), path]


def _study_of(path: Path) -> str | None:
    for line in read_beginning(path, 64 << 10).splitlines():  # the study's name follows a few remarks
        event = json_object(line)
        if event.get("event") == "SearchStarted":
            return str(event.get("study"))
    return None


class StudyProgress:
    """Progress of a study up to the search with the event file `path`; None for no search.

    Attributes:
        shown: Fields of the section; ``best`` has pairs of search time and non-decreasing speed over the baseline.
        t_s: Search time, without the time between searches.
        points: Changes, and ln speed over the baseline of each trial, by point.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._files: list[tuple[str, LineTail]] = []
        absent = dict.fromkeys(("phase", "why", "now", "combinations", "best_changes", "knobs"))
        self.shown: dict[str, Any] = {"study": "", "measures": "", **absent, "starts_s": [], "best": []}
        self.t_s = 0.0
        self.dots: list[Dot] = []
        self.endings: Counter[str] = Counter()
        self.points: dict[str, tuple[str, list[float]]] = {}
        self.baseline = ""
        self.verdict, self.has_ended = "", False
        self.recent: deque[dict[str, Any]] = deque(maxlen=12)
        self.remarks: deque[str] = deque(maxlen=6)
        self._search = ""
        self._last: datetime | None = None
        self._numbers: set[int] = set()

    def poll(self) -> None:
        """Read new events."""
        if not self._files and self.path is not None:
            paths = _of_one_study(self.path)
            self._files = [(one.name.removesuffix(SUFFIX), LineTail(one, longest_bytes=8 << 20)) for one in paths]
        for search, tail in self._files:
            for event in events_of(tail):
                self.add(search, event)

    def add(self, search: str, event: Event) -> None:
        """Add an event, which may be invalid."""
        if search != self._search:
            self._search, self._last = search, None
            self.shown |= {"phase": None, "why": None, "now": None}
            self.shown["starts_s"].append(round(self.t_s, 1))
            self.remarks.clear()
            self.has_ended = False
        self._pass_time(str(event.get("utc")))
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            self._apply(event)

    def _pass_time(self, utc: str) -> None:
        try:
            now = datetime.fromisoformat(utc)
            passed_s = 0.0 if self._last is None else (now - self._last).total_seconds()
        except (ValueError, TypeError):  # no time, or one without UTC offset
            return
        if 0.0 < passed_s <= _LONGEST_PAUSE_S:  # the clock may have been changed
            self.t_s += passed_s
        self._last = now

    def _apply(self, event: Event) -> None:
        match event.get("event"):
            case "SearchStarted":
                study, measures = clean(str(event["study"]), 120), clean(str(event["measures"]), 120)
                self.shown |= {"study": study, "measures": measures, "combinations": int(event["points"])}
            case "TrialStarted":
                utc = clean(str(event["utc"]), 40)
                self.shown["now"] = {**_trial(event), "changes": _changes(event), "started_utc": utc}
            case "TrialEnded":
                self._end_trial(event, event["trial"])
            case "IncumbentChanged" if not event.get("same_training"):
                if ratio := number(event["speedup"]):
                    self.shown["best_changes"] = _changes(event)
                    self._note_best(ratio)
            case "PhaseChanged":
                self.shown |= {"phase": clean(str(event["phase"]), 40), "why": clean(str(event["why"]))}
            case "KnobsRated":
                self.shown["knobs"] = _effects(event["around"], event["effects"])
            case "Remark":
                self.remarks.append(clean(str(event["text"])))
            case "SearchEnded":
                self.shown["now"], self.has_ended = None, True
                self.verdict = clean(str(event["verdict"] or ""), 40)
                if self.verdict in CONFIRMED and (ratio := number(event["speedup"])):
                    self.shown["best_changes"] = _changes(event)
                    self._note_best(ratio)

    def _note_best(self, ratio: float) -> None:
        """Record the best speed, and lower earlier values above it: they were noise."""
        best = self.shown["best"] = [(t_s, min(before, ratio)) for t_s, before in self.shown["best"]]
        if not best or ratio > best[-1][1]:
            best.append((round(self.t_s, 1), ratio))

    def _end_trial(self, event: Event, trial: Event) -> None:
        row, changes = _trial(trial), _changes(event)
        if self.shown["now"] is not None and self.shown["now"]["number"] == row["number"]:
            self.shown["now"] = None
        if row["number"] in self._numbers:  # a retried write may repeat an event
            return
        purpose, ending, point = str(trial["purpose"])[:20], clean(str(trial["ending"]), 40), str(trial["point"])
        measured = trial["measurement"] if isinstance(trial["measurement"], Mapping) else {}
        ratio = None if purpose in NOT_COMPARED else number(event["speedup"])
        has_failed = ending not in _NO_FAILURE
        row |= {
            "changes": changes,
            "samples_per_s": number(measured.get("filled_samples_per_s") or measured.get("samples_per_s")),
            "ratio": ratio,
            "gpu_utilization": number(measured.get("gpu_utilization")),
            "stall_fraction": number(measured.get("stall_fraction")),
            "duration_s": number(trial["duration_s"]),
            "ending": ending,
            "validity": clean(str(trial["validity"]), 40),
            "detail": clean(str(trial["detail"]), 200),
            "stderr": clean(str(event["stderr_tail"])[-400:], 400) if has_failed else "",
        }
        self._numbers.add(row["number"])
        self.recent.append(row)
        self.endings[ending] += 1
        self.dots.append((row["number"], round(self.t_s, 1), ratio, purpose, has_failed))
        logarithms = self.points.setdefault(point, (changes, []))[1]
        if ratio:
            logarithms.append(math.log(ratio))
        if purpose == Purpose.BASELINE:
            self.baseline = self.baseline or point
            if ratio and not self.shown["best"]:
                self._note_best(1.0)


def _effects(around: Event, effects: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the 12 knobs with the largest effects on the speed, relative to the point `around`."""
    knobs = []
    for path, slice_ in effects.items():
        values = [
            {
                "value": value_text(value)[:24],
                "is_kept": value == around[path],
                **{name: number(ratio[name]) or 1.0 for name in ("ratio", "low", "high")},
            }
            for value, ratio in slice_[:12]
        ]
        spread = max(one["ratio"] for one in values) / min(one["ratio"] for one in values)
        knobs.append({"knob": plain(str(path), 80), "spread": round(spread, 3), "values": clean(values)})
    return sorted(knobs, key=lambda one: -one["spread"])[:12]


def _trial(trial: Event) -> dict[str, Any]:
    pair = trial.get("pair")
    purpose = f"pair {pair + 1}" if isinstance(pair, int) else clean(str(trial["purpose"]), 20)
    return {"number": int(trial["number"]), "purpose": purpose}


def _changes(event: Event) -> str:
    short = {str(path)[:200]: value for path, value in list(event["changes"].items())[:40]}
    return plain(changes_text(short), 160)


def section_of(progress: StudyProgress, *, is_running: bool) -> dict[str, Any]:
    """Return the part of the section that follows from the study's events."""
    spread = half_width([values for _, values in progress.points.values() if values])
    return {
        **progress.shown,
        **({} if is_running else {"phase": None, "why": None, "now": None}),
        "is_running": is_running,
        "t_s": round(progress.t_s, 1),
        "starts_s": progress.shown["starts_s"][-50:],
        "trials": len(progress.dots),
        "endings": dict(progress.endings.most_common(16)),
        "best": progress.shown["best"][-400:],
        "dots": _thinned(progress.dots),
        "spread": round(spread, 4) if progress.dots else None,
        "points": _points(progress, spread),
        "recent": list(reversed(progress.recent)),
        "remarks": list(progress.remarks),
    }


def _thinned(dots: Sequence[Dot]) -> Sequence[Dot]:
    """Return at most `MOST_DOTS` trials: the fastest and the slowest of each bin."""
    if len(dots) <= MOST_DOTS:
        return list(dots)
    length = math.ceil(2 * len(dots) / MOST_DOTS)
    kept = set[Dot]()
    for start in range(0, len(dots), length):
        bin_ = sorted(dots[start : start + length], key=lambda dot: dot[2] or 0.0)
        kept |= {bin_[0], bin_[-1]}
    return sorted(kept, key=lambda dot: (dot[1], dot[0]))


def _points(progress: StudyProgress, spread: float) -> list[dict[str, Any]]:
    """Return the fastest points and the baseline; intervals include the baseline's error."""
    measured = {name: point for name, point in progress.points.items() if point[1]}
    means = {name: math.fsum(values) / len(values) for name, (_, values) in measured.items()}
    baselines = len(measured[progress.baseline][1]) if progress.baseline in measured else 1
    parts = []
    for place, name in enumerate(sorted(means, key=lambda name: -means[name])):
        is_baseline = name == progress.baseline
        if place >= 8 and not is_baseline:
            continue
        changes, values = measured[name]
        half = spread * math.sqrt(1 / len(values) + (0.0 if is_baseline else 1 / baselines))
        ratio, low, high = (round(math.exp(means[name] + part), 4) for part in (0.0, -half, half))
        part = {"changes": changes, "ratio": ratio, "low": low, "high": high, "is_today": is_baseline}
        parts.append({**part, "trials": len(values)})
    return parts

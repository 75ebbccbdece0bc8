"""Outcome of one row: what init, the search and the plain trainings showed."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.real_trainers.trainer import Trainer
from tests.real_trainers.watching import LOOK_S, Point, Watch

FEWEST_POINTS = 3
"""Points in time at which a trial's own log must show progress before its count is compared."""

RIGHT = 0.02
"""Largest deviation of a right count; or two updates, and those made between two looks at the log."""

LEAST_WAIT, MOST_WAIT = 0.02, 0.2
"""Share of time that a trainer at least waits that waits noticeably for data, and at most one that does not."""


@dataclass(kw_only=True)
class Outcome:
    """Findings of one row; filled in as it goes on.

    Attributes:
        name: Name of the row.
        init: How ``autotune init --yes`` ended: ``ok``, or its error.
        steps: Steps that were seen in all trials.
        counted: Samples that autotune counted over those of the trainer's own log, in the trial with the finest log.
        own_samples: Samples in the trainer's own log in that trial, from the first line seen to the last step counted.
        is_right: Whether that agrees; None where nothing can be compared.
        data_wait: Median over the trials of the share of time waiting for data.
        waits: Whether it is known to wait for data noticeably.
        verdict: Verdict or kind of error.
        why: Its reason in words.
        speedup: Ratio and its interval.
        confirmed: Ratio of the rates in plain trainings, best over today, one for each pair.
        best: Values of the answer that differ from today's.
        today: Values of today's config.
        differs: What changed in the project.
        home: What appeared in the home folder.
        remarks: Remarks and cautions of the search.
        failed: What could not be done at all.
    """

    name: str
    init: str = ""
    steps: int = 0
    counted: float | None = None
    own_samples: float = 0.0
    is_right: bool | None = None
    data_wait: float | None = None
    waits: bool | None = None
    verdict: str = ""
    why: str = ""
    speedup: tuple[float, float, float] | None = None
    confirmed: list[float] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    today: dict[str, Any] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
    home: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def is_wait_plausible(self) -> bool:
        """True if the share of time waiting for data is what can be expected, as far as anything is."""
        if self.data_wait is None or self.waits is None:
            return True
        return self.data_wait >= LEAST_WAIT if self.waits else self.data_wait <= MOST_WAIT

    def take_answer(self, answer: Mapping[str, Any]) -> None:
        """Take what ``search --json`` printed."""
        error = answer.get("error") or {}
        self.verdict = answer.get("verdict") or f"error: {error.get('kind')}"
        self.why = answer.get("why") or error.get("message") or ""
        if speedup := answer.get("speedup"):
            self.speedup = (speedup["ratio"], speedup["low"], speedup["high"])
        if answer.get("verdict") == "better":
            baseline = (answer.get("baseline") or {}).get("values", {})
            self.best = {key: value for key, value in answer["best"]["values"].items() if baseline.get(key) != value}
        self.remarks += answer.get("cautions") or ()

    def take_events(self, folder: Path) -> None:
        """Take the trials and remarks from the events of all searches in a state folder."""
        waits = []
        for path in sorted(folder.glob("searches/*.events.jsonl")):
            for event in map(json.loads, path.read_text().splitlines()):
                if event["event"] == "SearchStarted":
                    self.today = event["baseline"]
                elif event["event"] == "Remark":
                    self.remarks.append(event["text"])
                elif event["event"] == "TrialEnded" and (measured := event["trial"]["measurement"]):
                    waits.append(measured["data_wait_fraction"])
        known = [share for share in waits if share is not None]
        self.data_wait = statistics.median(known) if known else None

    def take_counts(self, trainer: Trainer, folder: Path, watch: Watch) -> None:
        """Compare the samples counted with those of the trainer's own log, in the trial where they can be told best."""
        finest = math.inf
        for trial in sorted(folder.glob("trials/*/*/")):
            steps = _steps(trial)
            self.steps += len(steps)
            points = watch.points(trial)
            values = _values(trial, self.today)
            # A trial that only the environment tells from others has an empty config.
            if len(points) < FEWEST_POINTS or not (values or isinstance(trainer.batch, int)):
                continue
            begin, end = points[0], _last_before(points, steps[-1][0] if steps else points[-1].t_s)
            batch, accumulation = number_of(values, trainer.batch), number_of(values, trainer.accumulation)
            own = trainer.log.samples(end.done - begin.done, batch=batch, accumulation=accumulation)
            looked = 2 * LOOK_S * own / (end.t_s - begin.t_s) if end.t_s > begin.t_s else 0.0
            grain = 2 * batch * accumulation + looked
            if own <= 0 or grain / own >= finest:
                continue
            within = [samples for t_s, samples in steps if begin.t_s < t_s <= end.t_s]
            seen = sum(within) or len(within) * _samples_per_step(trial)
            if within and not seen:
                continue  # a trial without numbers, such as one that diverged, of steps whose batch cannot be seen
            finest = grain / own
            self.own_samples, self.counted = own, seen / own
            self.is_right = abs(seen - own) <= max(RIGHT * own, grain)
        if self.steps == 0 and not trainer.steps:
            self.is_right = None  # as documented: the search says so, and the remedy


def _last_before(points: Sequence[Point], t_s: float) -> Point:
    return next((point for point in reversed(points) if point.t_s <= t_s), points[0])


def _steps(trial: Path) -> list[tuple[float, float]]:
    """Read the steps that were recorded: time and samples of each."""
    steps = []
    for path in trial.glob("steps.*.jsonl"):
        for line in path.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the last line of a trial that was stopped
            if event.get("k") == "step":
                steps.append((event["t_s"], event.get("samples") or 0.0))
    return sorted(steps)


def _samples_per_step(trial: Path) -> float:
    """Compute the samples of a step as the search took them, of a trainer whose batches cannot be seen."""
    result = json.loads(_log(trial / "result.json") or "{}")
    measured = result.get("measurement")
    return measured["samples_per_s"] * measured["window_s"] / measured["steps"] if measured else 0.0


def _values(trial: Path, today: Mapping[str, Any]) -> dict[str, Any]:
    """Read the values of a trial: those of its config, or today's with the overrides that it got of a Hydra config."""
    if (trial / "overrides.yaml").exists():
        overrides = yaml.safe_load((trial / "overrides.yaml").read_text())
        return {**today, **dict(override.split("=", 1) for override in overrides)}
    values = yaml.safe_load(_log(trial / "config.yaml"))
    return values if isinstance(values, dict) else {}


def number_of(values: Any, of: int | str) -> float:
    """Return a number, or the value that a config has under a key or a dotted path."""
    if isinstance(of, int):
        return float(of)
    if of in values:
        return float(values[of])
    for part in of.split("."):
        values = values[part]
    return float(values)


def _log(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""

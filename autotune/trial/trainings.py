"""Real trainings of this user on this machine: `autotune run` creates a folder for each, for its pace."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from autotune.errors import AutotuneError
from autotune.files import create_private, make_private_folder, read_beginning
from autotune.process import with_python_path
from autotune.records import Conditions, Measurement, Pauses, Scalar, Values
from autotune.trial.folders import copy_observer, delete_tree, why_exposed, why_not_ours
from autotune.trial.pace_files import PaceWindow
from autotune.trial.process_identity import git_commit, is_gone, this_process

WATCH_VARIABLE = "AUTOTUNE_WATCH_DIR"
"""Variable with the training's folder, for the observer inside the training."""

TRIAL_VARIABLE = "AUTOTUNE_TRIAL_DIR"

KEPT = 100
"""Number of ended trainings that are kept."""

_FOLDER_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]{1,10}-[0-9a-f]{8}")
_INJECT = "inject"


def is_training(name: str) -> bool:
    """Return whether a folder's name is that of a training."""
    return _FOLDER_NAME.fullmatch(name) is not None


def make_training(trainings: Path, header: TrainingHeader, now: datetime) -> Path:
    """Create the folder of a training that this process will exec, with its header and the observer.

    Raises:
        AutotuneError: It cannot be created, or other users could write to it.
    """
    try:
        make_private_folder(trainings)
        why = why_not_ours(trainings, frozenset({os.geteuid()})) or why_exposed(trainings.parent.resolve())
        if why:
            raise AutotuneError(
                f"{trainings} is not used: {why}",
                remedy="Set AUTOTUNE_DAEMON_DIR to a folder that only you can write to.",
            )
        folder = trainings / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}-{secrets.token_hex(4)}"
        make_private_folder(folder)
        copy_observer(folder / _INJECT)
        header.write(folder)
        prune_trainings(trainings, now)
    except OSError as error:
        raise AutotuneError(
            f"the training's folder cannot be created in {trainings}: {error.strerror}",
            remedy="Check disk space and permissions, or set AUTOTUNE_DAEMON_DIR to another place.",
        ) from error
    return folder


def training_names(trainings: Path) -> list[str]:
    """Return the names of the trainings' folders, oldest first; none if their place is open to other users."""
    if why_not_ours(trainings, frozenset({os.geteuid()})) is not None:
        return []
    try:
        with os.scandir(trainings) as entries:
            return sorted(
                entry.name for entry in entries if is_training(entry.name) and entry.is_dir(follow_symlinks=False)
            )
    except OSError:  # it does not exist yet
        return []


def prune_trainings(trainings: Path, now: datetime) -> None:
    """Delete trainings that are over, except the last `KEPT`, and day-old folders without a header."""
    names = training_names(trainings)
    for name in names[: max(0, len(names) - KEPT)]:
        header = TrainingHeader.read(trainings / name)
        # a new one without a header may be a training that is starting
        if is_over(trainings / name, header, now) if header else _silent_s(trainings / name, now) > 86400.0:
            delete_tree(trainings / name)


UNSEEN_S = 900.0
"""Silence after which a process in another container counts as gone."""


def is_over(folder: Path, header: TrainingHeader, now: datetime) -> bool:
    """Return whether a training's process is gone, or in another container and silent for `UNSEEN_S`."""
    this = this_process()
    is_unseen = all(header.owner.get(name) == this.get(name) for name in ("host", "boot_id"))
    is_unseen &= header.owner.get("pid_namespace") != this.get("pid_namespace")
    return header.is_over(this) or (is_unseen and _silent_s(folder, now) > UNSEEN_S)


def _silent_s(folder: Path, now: datetime) -> float:
    try:
        with os.scandir(folder) as entries:
            written_s = max(entry.stat(follow_symlinks=False).st_mtime for entry in entries)
    except (OSError, ValueError):
        return 0.0
    return now.timestamp() - written_s


def watched_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a watched training."""
    return {**with_python_path(environ, folder / _INJECT), WATCH_VARIABLE: str(folder)}


FILE = "training.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TrainingHeader:
    """Description of a training, written before it starts.

    Attributes:
        argv: With secrets masked.
        code: From `code_state`.
        study: Name of the config's study, which need not exist.
        confirmed: None if nothing is confirmed or `is_watched` is off.
        is_watched: Whether the daemon reports it when it gets slow.
        point: Name of the config's point.
        conditions: Those of a trial of that study, here and now.
        digests: As in `TrialRecord.code`.
    """

    argv: tuple[str, ...]
    cwd: str
    owner: Mapping[str, Scalar]
    started_utc: str
    hardware: str = ""
    config: str | None = None
    config_sha256: str | None = None
    values: Values | None = None
    code: Mapping[str, str] | None = None
    study: str | None = None
    confirmed: ConfirmedSpeed | None = None
    is_watched: bool = True
    point: str | None = None
    samples_per_step: float | None = None
    conditions: Conditions | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def is_over(self, this: Mapping[str, Scalar]) -> bool:
        """Return whether its process is known to be gone, or is from an earlier boot of this machine."""
        return is_gone(self.owner) or (
            self.owner.get("host") == this.get("host") and self.owner.get("boot_id") != this.get("boot_id")
        )

    def write(self, folder: Path) -> None:
        create_private(folder / FILE, (json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> TrainingHeader | None:
        """Read it; None if it is missing or has another format."""
        try:
            document = json.loads(read_beginning(folder / FILE, 256 << 10))
            return msgspec.convert(document, cls) if document["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


# State of a training's code, to detect later edits; no program is started for it.


def code_state(argv: Sequence[str], cwd: Path) -> dict[str, str]:
    """Return the git commit, and size and mtime of the command's scripts."""
    state: dict[str, str] = {}
    if (commit := git_commit(cwd)) is not None:
        state["commit"] = commit
    scripts = [word for word in argv if word.endswith((".py", ".sh"))][:16]
    for script in scripts:
        try:
            status = os.stat(cwd / script)
        except (OSError, ValueError):
            continue
        state[script] = f"{status.st_size} {status.st_mtime_ns}"
    return state


# Measurement of a real training.


LEAST_COUNTED_S = 30.0
"""Step time below which a training's speed is not reported."""


def achieved_by(windows: Iterable[PaceWindow], samples_per_step: float | None) -> Measurement | None:
    """Return the measurement of a real training's process with the most training; None below `LEAST_COUNTED_S`.

    Percentiles assume log-normal step times, since only sums are known.

    Args:
        samples_per_step: For steps that report no samples; None counts steps.
    """
    by_process: dict[str, list[PaceWindow]] = {}
    for window in windows:
        by_process.setdefault(window.process, []).append(window)
    own = max(by_process.values(), key=lambda some: math.fsum(one.train_s for one in some), default=[])
    train_s, steps = math.fsum(one.train_s for one in own), sum(one.steps for one in own)
    if train_s < LEAST_COUNTED_S or not steps:
        return None
    stepping = [one for one in own if one.steps]  # the others are one long pause
    reported = [one.samples for one in stepping if one.samples is not None]
    samples = math.fsum(reported) if len(reported) == len(stepping) else steps * (samples_per_step or 1.0)
    ln_mean = math.fsum(one.ln_sum for one in own) / steps
    ln_sd = math.sqrt(max(0.0, math.fsum(one.ln_squares for one in own) / steps - ln_mean**2))
    waits = [one.wait_fraction * one.train_s for one in stepping if one.wait_fraction is not None]
    return Measurement(
        window_s=train_s,
        steps=steps,
        samples_per_s=samples / train_s,
        cv=math.sqrt(math.expm1(min(ln_sd, 3.0) ** 2)),
        step_p50_s=math.exp(ln_mean),
        step_p95_s=math.exp(ln_mean + 1.645 * ln_sd),
        data_wait_fraction=math.fsum(waits) / train_s if len(waits) == len(stepping) else None,
        first_step_s=0.0,
        pauses=_pauses(own, samples, train_s, steps),
    )


def _pauses(windows: Sequence[PaceWindow], samples: float, train_s: float, steps: int) -> Pauses | None:
    ends, ends_s = sum(one.ends for one in windows), math.fsum(one.ends_s for one in windows)
    usual_s = (train_s - ends_s) / (steps - ends) if steps > ends else train_s / steps
    in_window_s = max(0.0, ends_s - ends * usual_s)
    left_out, left_out_s = sum(one.pauses for one in windows), math.fsum(one.pause_s for one in windows)
    pauses = Pauses(
        time_s=in_window_s + max(0.0, left_out_s - left_out * usual_s),
        samples=samples,
        epoch_ends=sum(one.epochs for one in windows),
        evaluations=sum(one.evaluations for one in windows),
        checkpoints=sum(one.checkpoints for one in windows),
        in_window_s=in_window_s,
    )
    return pauses if pauses.count else None


# Speed that a study has confirmed for a training's values.


@dataclass(frozen=True, kw_only=True)
class ConfirmedSpeed:
    """Speed of a point by the trials of its study.

    Attributes:
        samples_per_s: Geometric mean; steps per second if samples are unknown.
        low: Lower end of the prediction interval for one more training, relative to that mean.
        after_first_pass: Whether caches were filled.
    """

    samples_per_s: float
    low: float
    high: float
    trials: int
    samples_per_step: float | None = None
    after_first_pass: bool = False

    def __post_init__(self) -> None:
        if not (0.0 < self.samples_per_s < math.inf and 0.0 < self.low <= 1.0 <= self.high < math.inf):
            raise ValueError(f"invalid speed or interval: {self.samples_per_s}, {self.low} to {self.high}")

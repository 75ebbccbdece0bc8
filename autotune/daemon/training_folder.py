"""Folders of watched trainings: where they are, their names, and how one is made."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

import msgspec

from autotune.errors import AutotuneError
from autotune.files import create_private, make_private_folder, read_beginning
from autotune.records import NOT_COMPARED, Scalar, TrialRecord, Values
from autotune.trial.folders import copy_observer, why_exposed, why_not_ours
from autotune.trial.process_identity import git_commit

WATCH_VARIABLE = "AUTOTUNE_WATCH_DIR"
"""Variable that names a training's folder to the observer inside the training."""

TRIAL_VARIABLE = "AUTOTUNE_TRIAL_DIR"
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]{1,10}-[0-9a-f]{8}")
_INJECT = "inject"
EVENTS = "told.jsonl"
"""File in a training's folder of the events that were told, one a line."""


def is_training(name: str) -> bool:
    """Return whether a folder of that name is one of a watched training."""
    return _NAME.fullmatch(name) is not None


def make_training(trainings: Path, header: TrainingHeader, now: datetime) -> Path:
    """Make the folder of a training that this process is about to become.

    Args:
        trainings: Folder of all of them; made if it does not exist.

    Returns:
        The folder, with the header and the observer's copy in it.

    Raises:
        AutotuneError: It cannot be made, or others could plant something there.
    """
    try:
        make_private_folder(trainings)
        why = why_not_ours(trainings, frozenset({os.geteuid()})) or why_exposed(trainings.parent.resolve())
        if why:
            raise AutotuneError(
                f"{trainings} is not used: {why}", remedy="Name a folder that is yours alone with AUTOTUNE_DAEMON_DIR."
            )
        folder = trainings / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}-{secrets.token_hex(4)}"
        make_private_folder(folder)
        copy_observer(folder / _INJECT)
        header.write(folder)
    except OSError as error:
        raise AutotuneError(
            f"no folder can be made for it in {trainings}: {error.strerror}",
            remedy="See to that (room, permissions), or name another place with AUTOTUNE_DAEMON_DIR.",
        ) from error
    return folder


def watched_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a training that is watched."""
    # In front of the user's own path; an empty entry would mean the working directory.
    path = os.pathsep.join(filter(None, (str(folder / _INJECT), environ.get("PYTHONPATH"))))
    return {**environ, WATCH_VARIABLE: str(folder), "PYTHONPATH": path}


FILE = "training.json"
FORMAT = 1
_MOST_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class TrainingHeader:
    """Description of a training, written before it starts.

    Attributes:
        argv: Its command, with secrets masked.
        config: Real path of its config; None if it has none.
        code: What of the code is known: the git commit, and size and time of the scripts of the command.
        study: Name of the study that knows the config.
        confirmed: What that study has confirmed for these values; None if nothing.
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

    def write(self, folder: Path) -> None:
        """Write it.

        Raises:
            OSError: It cannot be written.
        """
        create_private(folder / FILE, (json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> TrainingHeader | None:
        """Read it back; None if there is none, or it is of another format or form."""
        try:
            document = json.loads(read_beginning(folder / FILE, _MOST_BYTES))
            return msgspec.convert(document, cls) if document["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


# State of a training's code, read without starting anything, to see later whether it was edited.


def code_state(argv: Sequence[str], cwd: Path) -> dict[str, str]:
    """Return what tells one state of the code from another: the commit, and size and time of the command's scripts."""
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


CONFIDENCE = 0.95
"""Coverage probability of the interval."""

_PRIOR_DF = 6.0


@dataclass(frozen=True, kw_only=True)
class ConfirmedSpeed:
    """Speed of a point by the trials of its study.

    Attributes:
        samples_per_s: Geometric mean over the trials; steps instead of samples where those are not known.
        low: Lower end of the prediction interval for one more training, over that mean.
        samples_per_step: Samples in a step where the steps do not say; None if that is not known either.
        after_first_pass: Whether it is the speed after the first pass over the data, when caches are filled.
    """

    samples_per_s: float
    low: float
    high: float
    trials: int
    samples_per_step: float | None = None
    after_first_pass: bool = False

    def __post_init__(self) -> None:
        if not (0.0 < self.samples_per_s < math.inf and 0.0 < self.low <= 1.0 <= self.high < math.inf):
            raise ValueError(f"no speed with its interval: {self.samples_per_s}, {self.low} to {self.high}")


def confirmed_speed(
    records: Sequence[TrialRecord], point: str, *, samples_per_step: float | None = None
) -> ConfirmedSpeed | None:
    """Return the speed of a point; None if fewer than two of its trials can be compared.

    The interval is that of one further observation: ``mean ± t · s · √(1 + 1/n)``. Its variance is that between
    trials, pooled over the points of the study, and moderated by the usual spread of 8 % with 6 degrees of freedom
    (Smyth 2004, see `statistics.moderated_interval`).
    """
    groups: dict[str, list[float]] = {}
    is_filled = False
    for trial in records:
        measurement = trial.comparable
        if measurement is None or trial.purpose in NOT_COMPARED:
            continue
        groups.setdefault(trial.point, []).append(math.log(measurement.speed))
        is_filled |= trial.point == point and measurement.filled_samples_per_s is not None
    own = groups.get(point, [])
    interval = prediction_interval(own, list(groups.values()))
    if interval is None:
        return None
    mean, half, trials = interval
    return ConfirmedSpeed(
        samples_per_s=math.exp(mean),
        low=math.exp(-half),
        high=math.exp(half),
        trials=trials,
        samples_per_step=samples_per_step,
        after_first_pass=is_filled,
    )


def prediction_interval(own: Sequence[float], groups: Sequence[Sequence[float]]) -> tuple[float, float, int] | None:
    """Return the interval of ln speed for one more training of a point.

    Args:
        own: ln speed of each of its trials.
        groups: ln speeds of the trials of each point of the study, this one included.

    Returns:
        Its middle, its half-width, and the number of trials that it is made of; None if these are fewer than two.
    """
    from autotune.measure.statistics import SLOW_OUTLIER_FLOOR, robust_pooled_variance, student_t_quantile

    usual = [value for value in own if value >= median(own) - SLOW_OUTLIER_FLOOR]
    if len(usual) < 2:  # trials; what was seen once is not confirmed
        return None
    pooled, pooled_df = robust_pooled_variance(groups)
    df = _PRIOR_DF + pooled_df
    # of ln speed between trials of one config: 7.5 to 9 % on quiet machines
    variance = (_PRIOR_DF * 0.08**2 + pooled_df * pooled) / df
    half = student_t_quantile((1.0 + CONFIDENCE) / 2.0, df) * math.sqrt(variance * (1.0 + 1.0 / len(usual)))
    return math.fsum(usual) / len(usual), half, len(usual)

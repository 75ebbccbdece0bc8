"""Header of a watched training's folder: what was started, and what is known of its speed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.files import create_private, read_beginning
from autotune.records import Scalar, Values
from autotune.study.confirmed_speed import ConfirmedSpeed

FILE = "training.json"
FORMAT = 1
_MOST_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class TrainingHeader:
    """Description of a training, written before it starts.

    Attributes:
        argv: Its command, with secrets masked.
        cwd: Its working directory.
        owner: Identity of its process, see `process.owner.this_process`.
        started_utc: ISO 8601 stamp.
        hardware: Class of the hardware, for people.
        config: Real path of its config; None if it has none.
        config_sha256: Hash of the config's bytes.
        values: Values of the config's knobs.
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
    def read(cls, folder: Path) -> "TrainingHeader | None":
        """Read it back; None if there is none, or it is of another format or form."""
        try:
            fields = json.loads(read_beginning(folder / FILE, _MOST_BYTES))
            return cls._parsed(fields) if fields["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    @classmethod
    def _parsed(cls, fields: Mapping[str, Any]) -> "TrainingHeader":
        confirmed = fields.get("confirmed")
        return cls(
            argv=tuple(_text(word) for word in fields["argv"]),
            cwd=_text(fields["cwd"]),
            owner=_mapping(fields["owner"]),
            started_utc=_text(fields["started_utc"]),
            hardware=_text(fields.get("hardware") or ""),
            config=None if fields.get("config") is None else _text(fields["config"]),
            config_sha256=None if fields.get("config_sha256") is None else _text(fields["config_sha256"]),
            values=None if fields.get("values") is None else _mapping(fields["values"]),
            code=None if fields.get("code") is None else _mapping(fields["code"]),
            study=None if fields.get("study") is None else _text(fields["study"]),
            confirmed=None if confirmed is None else _confirmed(_mapping(confirmed)),
        )


def _confirmed(fields: Mapping[str, Any]) -> ConfirmedSpeed:
    per_step = fields.get("samples_per_step")
    return ConfirmedSpeed(
        samples_per_s=float(fields["samples_per_s"]),
        low=float(fields["low"]),
        high=float(fields["high"]),
        trials=int(fields["trials"]),
        samples_per_step=None if per_step is None else float(per_step),
        after_first_pass=fields.get("after_first_pass") is True,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text should be")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} where an object should be")
    return value

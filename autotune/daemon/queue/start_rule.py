"""Start rule of an entry: once the machine is idle, now, or at a time of the day."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


class StartKind(StrEnum):
    """Kind of start rule."""

    IDLE = "idle"
    NOW = "now"
    AT = "at"


@dataclass(frozen=True, kw_only=True)
class StartRule:
    """Rule for the start of a search.

    Attributes:
        kind: Kind of rule.
        at: For `StartKind.AT`, the earliest start with its offset from UTC, ISO 8601.
    """

    kind: StartKind
    at: str | None = None

    @classmethod
    def parse(cls, text: str, now: datetime) -> "StartRule":
        """Parse ``idle``, ``now``, or a time of the day such as ``22:30``, the next one from now on.

        Args:
            text: What was typed.
            now: Local time of this machine, with its offset.

        Raises:
            ValueError: It is none of these.
        """
        if text in (StartKind.IDLE, StartKind.NOW):
            return cls(kind=StartKind(text))
        if not (match := _TIME.fullmatch(text)):
            raise ValueError(f"{text!r} is no start: idle, now, or a time of the day such as 22:30")
        at = now.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
        if at <= now:
            at += timedelta(days=1)
        local = at.replace(tzinfo=None).astimezone()  # with the offset of that moment: summer time may begin meanwhile
        return cls(kind=StartKind.AT, at=local.isoformat())

    def waits_for_time(self, now: datetime) -> str | None:
        """Return the time that is waited for, for people; None if it has come.

        Args:
            now: Any time with an offset.
        """
        if self.at is None:
            return None
        at = datetime.fromisoformat(self.at)
        return None if now >= at else f"{at:%H:%M}"

    @property
    def needs_idle(self) -> bool:
        """True if the machine has to be idle: who names a time has decided that it may be used then."""
        return self.kind is StartKind.IDLE

    def __str__(self) -> str:
        return f"{datetime.fromisoformat(self.at):%H:%M}" if self.at else self.kind.value

    def document(self) -> dict[str, Any]:
        """Return the rule as JSON has it."""
        return {"kind": self.kind.value, "at": self.at}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> "StartRule":
        """Return the rule of a document.

        Raises:
            ValueError: It is none.
            KeyError: It is none.
        """
        at = document["at"]
        if at is not None and datetime.fromisoformat(at).tzinfo is None:
            raise ValueError(f"{at!r} has no offset from UTC")
        return cls(kind=StartKind(document["kind"]), at=at)

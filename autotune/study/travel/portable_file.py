"""Portable file of a study: JSON lines, a header and then a trial each, sorted. Read line by line, within limits."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from autotune import __version__
from autotune.errors import StudyError
from autotune.files import open_regular, read_beginning, replace_durably
from autotune.records import Scalar, TrialRecord
from autotune.study.identity import FRAMEWORK
from autotune.study.travel.portable_trial import PortableTrial, portable_from

VERSION = 1
"""Version of the file's format."""

MOST_BYTES = 1 << 28
MOST_LINE_BYTES = 1 << 23
MOST_TRIALS = 100_000

_KIND = "autotune study"
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})")
_HARDWARE = ("cpu_model", "cpu_cores", "memory_bytes", "gpus")
_MOST_FACTS = 100
_LONGEST_FACT = 1000
_DAMAGED = "Export it again where the study is; nothing was imported."


@dataclass(frozen=True, kw_only=True)
class StudyName:
    """Name of a study, taken apart.

    Attributes:
        text: All of it.
        stem: Stem of the config.
        training: Hash of the training and the class of hardware.
        frameworks: Hash of the frameworks.
        command: Hash of the command.
    """

    text: str
    stem: str
    training: str
    frameworks: str
    command: str

    @classmethod
    def of(cls, text: object) -> "StudyName | None":
        """Return a name taken apart; None if it is none: it may come out of a file, and becomes part of paths."""
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        return match and cls(text=match[0], stem=match[1], training=match[2], frameworks=match[3], command=match[4])


@dataclass(frozen=True, kw_only=True)
class Header:
    """First line of the file.

    Attributes:
        study: Name of the study.
        hardware: Facts on the machines of its trials, for people.
        frameworks: Versions of their frameworks, for people.
        trials: Number of its trials.
        product: Version of the program that wrote it.
    """

    study: StudyName
    hardware: Mapping[str, Sequence[Scalar]]
    frameworks: Mapping[str, Sequence[Scalar]]
    trials: int
    product: str = __version__

    @classmethod
    def of(cls, study: StudyName, records: Sequence[TrialRecord]) -> "Header":
        """Return the header of these trials, the same in whichever order they are."""
        facts: dict[str, set[Scalar]] = {}
        for record in records:
            for name, value in record.conditions.items():
                if name in _HARDWARE or name.startswith(FRAMEWORK):
                    facts.setdefault(name, set()).add(value)
        listed = {name: sorted(values, key=repr)[:_MOST_FACTS] for name, values in sorted(facts.items())}
        return cls(
            study=study,
            hardware={name: listed[name] for name in _HARDWARE if name in listed},
            frameworks={
                name.removeprefix(FRAMEWORK): values for name, values in listed.items() if name.startswith(FRAMEWORK)
            },
            trials=len(records),
        )

    def line(self) -> str:
        """Return its line, without the line end."""
        return json.dumps(
            {
                "format": _KIND,
                "version": VERSION,
                "autotune": self.product,
                "study": self.study.text,
                "config": self.study.stem,
                "hardware": {name: list(values) for name, values in self.hardware.items()},
                "frameworks": {name: list(values) for name, values in self.frameworks.items()},
                "trials": self.trials,
            }
        )


class PortableFile:
    """Portable file that is open for reading; use it in a ``with`` statement.

    Args:
        path: The file, as the user named it.

    Attributes:
        path: The file.
        header: Its first line.

    Raises:
        StudyError: It cannot be read, is none, or one of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = open_regular(path.resolve())
        except (OSError, RuntimeError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise StudyError(
                f"cannot be read: {ascii(why)[1:-1]}", where=str(path), remedy="Check the path."
            ) from error
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size > MOST_BYTES:
                raise self._error(f"this is no study of ours: {size >> 20} MiB, and {MOST_BYTES >> 20} are the most")
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "PortableFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def trials(self) -> Iterator[tuple[int, PortableTrial]]:
        """Yield each trial with the offset of its line, checked.

        Raises:
            StudyError: One of them is none, or some are missing.
        """
        self._read_at(0)
        offset, number, count = self._file.tell(), 2, 0
        while line := self._line(number):
            yield offset, self._trial(line, number)
            offset, number, count = self._file.tell(), number + 1, count + 1
        if count != self.header.trials:
            raise self._error(f"it is cut off, or was changed: {self.header.trials} trials are said, {count} are there")

    def trial_at(self, offset: int) -> PortableTrial:
        """Return the trial at an offset that `trials` gave.

        Raises:
            StudyError: It is not there any more.
        """
        return self._trial(self._read_at(offset), None)

    def _read_at(self, offset: int) -> bytes:
        try:
            self._file.seek(offset)
        except OSError as error:
            raise self._error(f"it cannot be read: {error.strerror}") from error
        return self._line(None)

    def _line(self, number: int | None) -> bytes:
        try:
            line = self._file.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise self._error(f"it cannot be read: {error.strerror}") from error
        if len(line) > MOST_LINE_BYTES:
            raise self._error("a line is too long", number)
        if line and not line.endswith(b"\n"):
            raise self._error("it is cut off: the last line has no end", number)
        return line

    def _trial(self, line: bytes, number: int | None) -> PortableTrial:
        try:
            return portable_from(_parsed(line))
        except (ValueError, RecursionError) as error:
            said = str(error) if type(error) is ValueError else "no JSON"
            raise self._error(f"this is not a trial: {ascii(said)[1:-1][:120]}", number) from error

    def _header(self) -> Header:
        line = self._line(1)
        said: Any = None
        with suppress(ValueError, RecursionError):
            said = _parsed(line)
        if not isinstance(said, dict) or said.get("format") != _KIND:
            raise self._error(
                "this is not a study that travels", 1, "`autotune study export FILE` writes one where the study is."
            )
        version = said.get("version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self._error("its version is no number", 1)
        if version > VERSION:
            by = said.get("autotune")
            raise self._error(
                f"its format, {str(version)[:20]}, is newer than the one known here, {VERSION}",
                1,
                "Update autotune here"
                + (f" to {ascii(by[:40])[1:-1]} or later" if isinstance(by, str) else "")
                + ", or export it there with an older one.",
            )
        name = StudyName.of(said.get("study"))
        if name is None:
            raise self._error("the name in it is not one of a study", 1)
        trials = said.get("trials")
        if not isinstance(trials, int) or isinstance(trials, bool) or not 0 <= trials <= MOST_TRIALS:
            raise self._error(f"the number of its trials is not one from 0 to {MOST_TRIALS}", 1)
        return Header(
            study=name,
            hardware=_facts(said.get("hardware")),
            frameworks=_facts(said.get("frameworks")),
            trials=trials,
            product=str(said.get("autotune"))[:_LONGEST_FACT],
        )

    def _error(self, what: str, number: int | None = None, remedy: str = _DAMAGED) -> StudyError:
        where = str(self.path) if number is None else f"{self.path}:{number}"
        return StudyError(what, where=where, remedy=remedy)


def write_portable_file(path: Path, study: StudyName, trials: Sequence[PortableTrial]) -> None:
    """Write a portable file, in one step; the same trials give the same bytes.

    Raises:
        StudyError: It cannot be written, is too large, or another file is in its place.
    """
    beginning = read_beginning(path, 64)
    if os.path.lexists(path) and not beginning.startswith(json.dumps({"format": _KIND})[:-1].encode()):
        raise StudyError(
            "this file is not an exported study, and is not replaced", where=str(path), remedy="Name another file."
        )
    ordered = sorted(trials, key=lambda trial: trial.order)
    lines = [Header.of(study, [trial.record for trial in ordered]).line(), *(trial.line() for trial in ordered)]
    content = "".join(line + "\n" for line in lines).encode()
    longest = max(len(line) for line in lines)
    if len(trials) > MOST_TRIALS or len(content) > MOST_BYTES or longest >= MOST_LINE_BYTES:
        raise StudyError("this study is too large to travel", where=str(path), remedy="Keep it in a database.")
    try:
        replace_durably(path, content)
    except OSError as error:
        raise StudyError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            remedy="Name a file in a folder of yours, on a disk with free space.",
        ) from error


def _parsed(line: bytes) -> Any:
    return json.loads(line.decode(), parse_constant=_no_constant, object_pairs_hook=_without_doubles)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _facts(said: object) -> Mapping[str, Sequence[Scalar]]:
    """Return facts for people; what is none is left out."""
    if not isinstance(said, dict):
        return {}
    return {
        name[:_LONGEST_FACT]: [value for value in values[:_MOST_FACTS] if isinstance(value, str | int | float | None)]
        for name, values in list(said.items())[:_MOST_FACTS]
        if isinstance(values, list)
    }

"""Settings of the daemon: ``daemon.yaml`` in autotune's folder of the user's settings.

The daemon lives long and has to stay small: this is read with PyYAML alone, and checked by hand. It names a command
that the daemon runs, so that nobody but its user may be able to write to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.clock import parse_duration_s
from autotune.config.keys import did_you_mean, shown
from autotune.environment import settings_folder
from autotune.errors import ConfigError
from autotune.files import open_regular
from autotune.records import Scalar

_MOST_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class DaemonSettings:
    """Settings of the daemon.

    Attributes:
        idle_for_s: Time for which the machine has to be idle before a search starts.
        idle_cores_fraction: Load of others, as a fraction of the cores, below which the machine counts as idle.
        notify: Command that gets each event as JSON on its standard input; empty for none.
        watches_all: Whether all trainings report to the daemon that `autotune run` starts, also without ``--watch``.
        watched: Configs whose trainings do, and folders of such configs; absolute, links resolved.
    """

    idle_for_s: float = 600.0
    idle_cores_fraction: float = 0.1
    notify: tuple[str, ...] = ()
    watches_all: bool = False
    watched: tuple[Path, ...] = ()

    def watches(self, config: Path) -> bool:
        """Return whether a training with this config reports to the daemon without being asked to."""
        real = Path(os.path.realpath(config))
        return self.watches_all or any(real == place or place in real.parents for place in self.watched)


def daemon_settings_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the file; it need not exist."""
    return settings_folder(environ) / "autotune" / "daemon.yaml"


def load_daemon_settings(environ: Mapping[str, str]) -> DaemonSettings:
    """Load the settings; without a file the defaults hold.

    Args:
        environ: The environment, for ``XDG_CONFIG_HOME``.

    Raises:
        ConfigError: The file cannot be read, others could have written it, or something in it is unknown or wrong;
            file and line are named.
    """
    path = daemon_settings_path(environ)
    try:
        content = _read(path)
    except FileNotFoundError:
        return DaemonSettings()
    except OSError as error:
        raise ConfigError(
            f"the daemon's settings cannot be read: {error.strerror}",
            where=str(path),
            remedy="Put a file in its place that you may read, or take it away: then the defaults hold.",
        ) from error
    try:
        return parse_daemon_settings(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError("it is no text in UTF-8", where=str(path), remedy="Save it as UTF-8.") from error


def parse_daemon_settings(text: str, name: str) -> DaemonSettings:
    """Parse the text of the file.

    Args:
        text: The text; an empty one means the defaults.
        name: Name of the file, for messages.

    Raises:
        ConfigError: Something in it is unknown, or wrong; file and line are named.
    """
    top = read_plain_yaml(text, name)
    if top is None or top.value is None:
        return DaemonSettings()
    keys = _keys(top, "", ("idle", "notify", "watch"), name)
    settings: dict[str, Any] = {}
    if "idle" in keys:
        idle = _keys(keys["idle"], "idle", ("for", "cores"), name)
        if "for" in idle:
            settings["idle_for_s"] = _duration_s(idle["for"], name)
        if "cores" in idle:
            settings["idle_cores_fraction"] = _fraction(idle["cores"], name)
    if "notify" in keys:
        settings["notify"] = _command(keys["notify"], name)
    if "watch" in keys:
        settings |= _watch(keys["watch"], name)
    return DaemonSettings(**settings)


def _keys(entry: Entry, around: str, known: tuple[str, ...], name: str) -> dict[str, Entry]:
    if not isinstance(entry.value, dict):
        example = "{for: 10m, cores: 0.1}" if around else "notify: [...]"
        raise ConfigError(
            f"{around or 'the file'} is {_shown(entry)}, where keys with values are expected",
            where=f"{name}:{entry.line}",
            remedy=f"Write for example {around + ': ' if around else ''}{example}.",
        )
    for key, value in entry.value.items():
        if key not in known:
            full = f"{around}.{key}" if around else key
            raise ConfigError(
                f"unknown key {shown(full)}", where=f"{name}:{value.line}", remedy=did_you_mean(key, known)
            )
    return entry.value


def _duration_s(entry: Entry, name: str) -> float:
    try:
        if not isinstance(entry.value, str):
            raise ValueError(f"{_shown(entry)} has no unit")
        return parse_duration_s(entry.value)
    except ValueError as error:
        raise ConfigError(
            f"idle.for: {error}", where=f"{name}:{entry.line}", remedy="Write a duration such as 90s, 10m or 1h."
        ) from error


def _fraction(entry: Entry, name: str) -> float:
    number = entry.value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1:  # NaN is not either
        raise ConfigError(
            f"idle.cores is {_shown(entry)}, but it should be a number above 0 and at most 1",
            where=f"{name}:{entry.line}",
            remedy="Write the fraction of the cores that others may keep busy, e.g. 0.1.",
        )
    return float(number)


def _command(entry: Entry, name: str) -> tuple[str, ...]:
    words = [] if entry.value is None else entry.value
    if not isinstance(words, list):
        raise ConfigError(
            f"notify is {_shown(entry)}, but it should be a list of words; no shell splits it",
            where=f"{name}:{entry.line}",
            remedy="Write notify: [/path/to/program, first argument].",
        )
    for word in words:
        if isinstance(word.value, list | dict) or word.value is None or "\0" in word.text:
            raise ConfigError(
                f"notify holds {_shown(word)}, which is no word of a command",
                where=f"{name}:{word.line}",
                remedy="Write each word as text, in quotes where needed.",
            )
    if not words:
        return ()
    program = os.path.expanduser(words[0].text)
    if not program or (os.sep in program and not os.path.isabs(program)):
        raise ConfigError(
            f"notify starts {_shown(words[0])}, which depends on where the daemon was started",
            where=f"{name}:{words[0].line}",
            remedy="Write its absolute path, one that begins with ~/, or a name that the PATH finds.",
        )
    return (program, *(word.text for word in words[1:]))


def _watch(entry: Entry, name: str) -> dict[str, Any]:
    if entry.value in ("always", "never"):
        return {"watches_all": entry.value == "always"}
    if not isinstance(entry.value, list):
        raise ConfigError(
            f"watch is {_shown(entry)}",
            where=f"{name}:{entry.line}",
            remedy="Write watch: always, watch: never, or a list of configs, or of folders with configs.",
        )
    return {"watched": tuple(_place(one, name) for one in entry.value)}


def _place(entry: Entry, name: str) -> Path:
    path = os.path.expanduser(entry.text) if isinstance(entry.value, str) else ""
    if not os.path.isabs(path) or "\0" in path:
        raise ConfigError(
            f"watch holds {_shown(entry)}, which is no absolute path",
            where=f"{name}:{entry.line}",
            remedy="Write the path of a config, or of a folder with configs, from / or ~ on.",
        )
    return Path(os.path.realpath(path))


def _shown(entry: Entry) -> str:
    if isinstance(entry.value, dict):
        return "a mapping"
    return "a list" if isinstance(entry.value, list) else shown(entry.value)


def _read(path: Path) -> bytes:
    """Read the file, if only its owner, who is this user or root, may write to it; the user's own links are followed.

    Raises:
        OSError: It cannot be read.
        ConfigError: Others may write to it, it is another user's, or too large.
    """
    with open_regular(Path(os.path.realpath(path))) as file:
        status = os.fstat(file.fileno())
        why = None
        if status.st_uid not in (os.geteuid(), 0):
            why = f"it belongs to another user (number {status.st_uid})"
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = f"others may write to it ({stat.filemode(status.st_mode)})"
        if why is not None:
            raise ConfigError(
                f"the daemon's settings are not used: {why}",
                where=str(path),
                remedy=f"It can name a command that is run as you. Check it, then: chmod go-w {path}",
            )
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ConfigError(
            f"it has more than {_MOST_BYTES >> 10} KiB", where=str(path), remedy="Is this the file that you meant?"
        )
    return content


_DEEPEST = 8


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Value of a file, with its place.

    Attributes:
        value: A scalar, a list of entries, or entries by key.
        text: A scalar as it is written, without quotes.
        line: Its line, counted from 1.
    """

    value: Scalar | list[Entry] | dict[str, Entry]
    text: str
    line: int


def read_plain_yaml(text: str, name: str) -> Entry | None:
    """Read a file.

    Args:
        text: Its text.
        name: Its name, for messages.

    Returns:
        The value at its top; None if the file is empty.

    Raises:
        ConfigError: It is no YAML, repeats a key, or uses aliases or tags.
    """
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if root is None else _entry(root, name, 0, set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = name if mark is None else f"{name}:{mark.line + 1}"
        raise _wrong(f"it is no YAML: {error.problem or error.context}", place) from error
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise _wrong(f"it is no YAML: {str(error).splitlines()[0]}", name) from error
    except RecursionError as error:
        raise _wrong("it is nested too deeply", name) from error


def _entry(node: Any, name: str, depth: int, seen: set[int]) -> Entry:
    import yaml

    line = int(node.start_mark.line) + 1
    place = f"{name}:{line}"
    if depth > _DEEPEST:
        raise _wrong("it is nested too deeply", place)
    if id(node) in seen:
        raise _wrong("an alias repeats a value", place)
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, ArithmeticError) as error:
            raise _wrong(f"{node.value[:60]!r} cannot be read as {node.tag.rpartition(':')[2]}", place) from error
        if not isinstance(value, bool | int | float | str | None):
            value = node.value  # a date, which nothing of ours is
        return Entry(value=value, text=str(node.value), line=line)
    if isinstance(node, yaml.SequenceNode):
        return Entry(value=[_entry(item, name, depth + 1, seen) for item in node.value], text="", line=line)
    entries: dict[str, Entry] = {}
    for key, value_node in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _wrong("a key is no single word", place)
        if key.value in entries:
            raise _wrong(f"the key {key.value} is there twice", f"{name}:{key.start_mark.line + 1}")
        entries[key.value] = _entry(value_node, name, depth + 1, seen)
    return Entry(value=entries, text="", line=line)


def _wrong(message: str, place: str) -> ConfigError:
    return ConfigError(message, where=place, remedy="Write it out as plain YAML: keys with values, lists in brackets.")

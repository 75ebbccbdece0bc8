"""Settings of the daemon: ``daemon.yaml`` in autotune's folder of the user's settings.

Read with PyYAML alone, because the daemon must stay small. The file names a command that the daemon runs, so only its
user may have write access.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from autotune.clock import parse_duration_s
from autotune.config.keys import converted, shown
from autotune.errors import ConfigError
from autotune.files import open_regular
from autotune.process import settings_folder

_MOST_BYTES = 1 << 16


class _Idle(msgspec.Struct, forbid_unknown_fields=True, rename={"for_": "for"}):
    for_: str = "10m"
    cores: Annotated[float, Meta(gt=0, le=1)] = 0.1


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    idle: _Idle | None = None
    notify: list[str] | None = None
    watch: Literal["always", "never"] | list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class DaemonSettings:
    """Settings of the daemon.

    Attributes:
        idle_for_s: Idle time of the machine before a search starts.
        idle_cores_fraction: CPU load of other processes, as a fraction of the cores, below which it counts as idle.
        notify: Command that receives each event as JSON on its standard input.
        watches_all: Whether all trainings of `autotune run` report to the daemon.
        watched: Configs whose trainings do, or their folders; absolute, links resolved.
    """

    idle_for_s: float = 600.0
    idle_cores_fraction: float = 0.1
    notify: tuple[str, ...] = ()
    watches_all: bool = False
    watched: tuple[Path, ...] = ()

    def watches(self, config: Path) -> bool:
        """Return whether a training with this config reports to the daemon by default."""
        real = Path(os.path.realpath(config))
        return self.watches_all or any(real == place or place in real.parents for place in self.watched)


def daemon_settings_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the file, which may not exist."""
    return settings_folder(environ) / "autotune" / "daemon.yaml"


def load_daemon_settings(environ: Mapping[str, str]) -> DaemonSettings:
    """Load the settings; without a file, the defaults.

    Raises:
        ConfigError: The file cannot be read, other users can write to it, or it is invalid.
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
            remedy="Make it a readable file, or delete it to use the defaults.",
        ) from error
    try:
        return parse_daemon_settings(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError("the file is not UTF-8", where=str(path), remedy="Save it as UTF-8.") from error


def parse_daemon_settings(text: str, name: str) -> DaemonSettings:
    """Parse the text of the file; raises as `load_daemon_settings`."""
    lines: dict[tuple[str | int, ...], int] = {}

    def place(*keys: str | int) -> str:
        while keys not in lines:
            keys = keys[:-1]
        return f"{name}:{lines[keys]}"

    data = _plain_yaml(text, name, lines)
    keys = _Keys() if data is None else converted(data, _Keys, place, strict=False)
    idle, notify = keys.idle or _Idle(), keys.notify or []
    try:
        idle_for_s = parse_duration_s(idle.for_)
    except ValueError as error:
        remedy = "Write a duration such as 90s, 10m or 1h."
        raise ConfigError(f"idle.for: {error}", where=place("idle", "for"), remedy=remedy) from error
    program = os.path.expanduser(notify[0]) if notify else ""
    if notify and (not program or (os.sep in program and not os.path.isabs(program))):
        raise ConfigError(
            f"notify runs {shown(notify[0])}, which depends on the daemon's working directory",
            where=place("notify", 0),
            remedy="Write an absolute path, a path that starts with ~/, or a program on the PATH.",
        )
    places = [os.path.expanduser(one) for one in keys.watch] if isinstance(keys.watch, list) else []
    for index, path in enumerate(places):
        if not os.path.isabs(path):
            raise ConfigError(
                f"watch contains {shown(path)}, which is not an absolute path",
                where=place("watch", index),
                remedy="Write the path of a config, or of a folder of configs, starting with / or ~.",
            )
    return DaemonSettings(
        idle_for_s=idle_for_s,
        idle_cores_fraction=idle.cores,
        notify=(program, *notify[1:]) if notify else (),
        watches_all=keys.watch == "always",
        watched=tuple(Path(os.path.realpath(path)) for path in places),
    )


def _read(path: Path) -> bytes:
    """Read the file if only its owner, this user or root, can write to it."""
    with open_regular(Path(os.path.realpath(path))) as file:
        status = os.fstat(file.fileno())
        why = None
        if status.st_uid not in (os.geteuid(), 0):
            why = f"the file belongs to another user (uid {status.st_uid})"
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            why = f"other users can write to the file ({stat.filemode(status.st_mode)})"
        if why is not None:
            raise ConfigError(
                f"the daemon's settings are not used: {why}",
                where=str(path),
                remedy=f"It can name a command that runs as you. Check it, then: chmod go-w {path}",
            )
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ConfigError(
            f"the file is larger than {_MOST_BYTES >> 10} KiB",
            where=str(path),
            remedy="Check that it is the right file.",
        )
    return content


def _plain_yaml(text: str, name: str, lines: dict[tuple[str | int, ...], int]) -> Any:
    """Return a file's content, with texts as written; add the line of each value to `lines`."""
    import yaml

    seen: set[int] = set()

    def refuse(why: str, line: int | None) -> ConfigError:
        remedy = "Write plain YAML: keys with values, lists in brackets."
        return ConfigError(why, where=f"{name}:{line}" if line else name, remedy=remedy)

    def plain(node: Any, path: tuple[str | int, ...]) -> Any:
        line = lines[path] = node.start_mark.line + 1
        if id(node) in seen:
            raise refuse("an alias repeats a value", line)
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            if "\0" in node.value:
                raise refuse("a text contains a zero byte", line)
            return None if node.tag == "tag:yaml.org,2002:null" else node.value
        if isinstance(node, yaml.SequenceNode):
            return [plain(item, (*path, index)) for index, item in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise refuse("a key is not a single word", line)
            if key.value in found:
                raise refuse(f"duplicate key {key.value}", key.start_mark.line + 1)
            found[key.value] = plain(value, (*path, key.value))
        return found

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if root is None else plain(root, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise refuse(f"not valid YAML: {why}", mark.line + 1 if mark else None) from error
    except RecursionError as error:
        raise refuse("the file is nested too deeply", None) from error

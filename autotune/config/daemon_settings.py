"""Settings of the daemon: ``daemon.yaml`` in autotune's folder of the user's settings.

The daemon lives long and has to stay small: this is read with PyYAML alone. It names a command that the daemon runs, so
that nobody but its user may be able to write to it.
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
            f"notify starts {shown(notify[0])}, which depends on where the daemon was started",
            where=place("notify", 0),
            remedy="Write its absolute path, one that begins with ~/, or a name that the PATH finds.",
        )
    places = [os.path.expanduser(one) for one in keys.watch] if isinstance(keys.watch, list) else []
    for index, path in enumerate(places):
        if not os.path.isabs(path):
            raise ConfigError(
                f"watch holds {shown(path)}, which is no absolute path",
                where=place("watch", index),
                remedy="Write the path of a config, or of a folder with configs, from / or ~ on.",
            )
    return DaemonSettings(
        idle_for_s=idle_for_s,
        idle_cores_fraction=idle.cores,
        notify=(program, *notify[1:]) if notify else (),
        watches_all=keys.watch == "always",
        watched=tuple(Path(os.path.realpath(path)) for path in places),
    )


def _read(path: Path) -> bytes:
    """Read the file, if only its owner, this user or root, may write to it; links of the user are followed."""
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


def _plain_yaml(text: str, name: str, lines: dict[tuple[str | int, ...], int]) -> Any:
    """Return what a file holds: mappings, lists, texts as they are written, and None; notes the line of each value."""
    import yaml

    seen: set[int] = set()

    def refuse(why: str, line: int | None) -> ConfigError:
        remedy = "Write it out as plain YAML: keys with values, lists in brackets."
        return ConfigError(why, where=f"{name}:{line}" if line else name, remedy=remedy)

    def plain(node: Any, path: tuple[str | int, ...]) -> Any:
        line = lines[path] = node.start_mark.line + 1
        if id(node) in seen:
            raise refuse("an alias repeats a value", line)
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            if "\0" in node.value:
                raise refuse("a text holds a zero byte", line)
            return None if node.tag == "tag:yaml.org,2002:null" else node.value
        if isinstance(node, yaml.SequenceNode):
            return [plain(item, (*path, index)) for index, item in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise refuse("a key is no single word", line)
            if key.value in found:
                raise refuse(f"the key {key.value} is there twice", key.start_mark.line + 1)
            found[key.value] = plain(value, (*path, key.value))
        return found

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if root is None else plain(root, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise refuse(f"it is no YAML: {why}", mark.line + 1 if mark else None) from error
    except RecursionError as error:
        raise refuse("it is nested too deeply", None) from error

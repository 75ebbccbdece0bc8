"""Identity of a study: config (without knob values and output paths), command, environment, objective and hardware."""

import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.frameworks import FRAMEWORKS
from autotune.records import Machine

_GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class StudyIdentity:
    """Common properties of a study's trials.

    Attributes:
        config: Parsed config without its ``autotune:`` section.
        left_out: Dotted paths to ignore: knobs and output paths.
        command: Command with unfilled placeholders.
        machine: With the visible GPUs.
    """

    stem: str
    config: Mapping[str, Any]
    left_out: Collection[str]
    fixed: Mapping[str, Any]
    command: Sequence[str]
    environment: Mapping[str, str]
    objective: str
    machine: Machine
    frameworks: Mapping[str, str]

    @property
    def name(self) -> str:
        """Config stem and separate hashes of training with hardware, frameworks, and command."""
        stem = re.sub("[^A-Za-z0-9_.]+", "_", self.stem).strip("._")[:40] or "config"
        return (
            f"{stem}-{_digest(self._training_and_machine())[:8]}-{_digest(dict(self.frameworks))[:4]}"
            f"-{_digest(list(self.command))[:4]}"
        )

    @property
    def training(self) -> str:
        """Hash of the training alone."""
        return _digest(self._training())[:16]

    @property
    def command_hash(self) -> str:
        return _digest(list(self.command))[:16]

    def _training(self) -> dict[str, Any]:
        dropped = set(self.left_out)
        return {
            "config": _without(self.config, dropped, ()),
            "fixed": dict(self.fixed),
            "environment": {
                name: text for name, text in self.environment.items() if f"autotune.env.{name}" not in dropped
            },
            "objective": self.objective,
        }

    def _training_and_machine(self) -> dict[str, Any]:
        machine = self.machine
        return {
            **self._training(),
            "cpu": [machine.cpu_model, machine.cpu_cores, round(machine.memory_bytes / _GIB)],
            "gpus": [[gpu.name, gpu.memory_bytes and round(gpu.memory_bytes / _GIB)] for gpu in machine.gpus],
        }


def framework_versions(executable: Path, further: Iterable[Path] = ()) -> dict[str, str]:
    """Read the framework versions of a Python interpreter from package metadata.

    Args:
        further: Package folders outside its environment.
    """
    folders = [*executable.parent.parent.glob("lib/python3*/site-packages"), *further]
    if executable == Path(sys.executable):
        folders.extend(Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    path = [str(folder) for folder in dict.fromkeys(folders)]
    names = [name for framework in FRAMEWORKS for name in framework.distributions]
    found = {name: next(iter(metadata.distributions(name=name, path=path)), None) for name in names}
    return {name: package.version for name, package in found.items() if package and package.version}


def frameworks_text(frameworks: Mapping[str, str]) -> str:
    """Return names with versions."""
    return ", ".join(f"{name} {version}" for name, version in frameworks.items())


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _without(node: Any, dropped: set[str], path: tuple[str, ...]) -> Any:
    if isinstance(node, Mapping):
        kept = {str(key): (value, (*path, str(key))) for key, value in node.items()}
        return {
            key: _without(value, dropped, where)
            for key, (value, where) in kept.items()
            if ".".join(where) not in dropped
        }
    if isinstance(node, list):
        return [_without(item, dropped, (*path, str(i))) for i, item in enumerate(node)]
    return node

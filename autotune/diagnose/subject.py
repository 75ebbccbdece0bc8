"""Subject of the static checks, with data shared between them: keys, sources, the dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.clock import Clock
from autotune.config.hydra import ComposedDocument
from autotune.config.keys import scalar_text
from autotune.config.outputs import Outputs, path_of, real_path
from autotune.config.schema import ENV
from autotune.config.sources import trainer_files
from autotune.errors import CannotEditYaml
from autotune.files import read_beginning
from autotune.measure.gpu.driver import GpuFacts, in_time, look_for_gpus
from autotune.records import Scalar
from autotune.search.problem import Problem
from autotune.space.catalog import KnownKnob, is_for_validation, known_knob
from autotune.space.knob import key_name


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Subject of the static checks: without a config only the machine; `is_run` if trials follow."""

    problem: Problem | None
    clock: Clock
    is_run: bool = False

    @cached_property
    def gpus(self) -> tuple[GpuFacts, ...]:
        return look_for_gpus().gpus if self.problem is None else self.problem.hardware.gpus

    @cached_property
    def places(self) -> tuple[DatasetPlace, ...] | None:
        """Dataset named in the config; None if a file system does not respond."""
        problem = self.problem
        return () if problem is None else in_time(lambda: dataset_places(problem, self.clock))


# Keys of the config, and the trainer's sources.


@dataclass(frozen=True, kw_only=True)
class Key:
    """Key of a config that is a known knob, with its row of `space.catalog`."""

    path: str
    value: Scalar
    row: KnownKnob

    @property
    def text(self) -> str:
        """Key and value as in YAML."""
        return f"{self.path}: {scalar_text(self.value)}"


def known_keys(problem: Problem) -> tuple[Key, ...]:
    """Return the known knobs of the config, in file order, without those for validation."""
    found = ((path, value, known_knob(path, value)) for path, value in problem.settings.scalars.items())
    return tuple(
        Key(path=path, value=value, row=row)
        for path, value, row in found
        if row is not None and not is_for_validation(path) and not path.startswith(ENV)
    )


def place_of(problem: Problem, path: str) -> str:
    """Return ``file:line`` of a key, or the key if the line is unknown or Hydra composes the config."""
    document = problem.settings.document
    if isinstance(document, ComposedDocument):
        return path
    try:
        prefix, _ = document.split(path)
        line = document.line(path)
    except CannotEditYaml:
        return path
    file = problem.settings.files.get(prefix, problem.config_path)
    return f"{file}:{line}" if line is not None else path


def trainer_text(problem: Problem) -> bytes:
    """Return the text of the script that the command starts and of its modules."""
    paths = trainer_files(problem.command, problem.settings.folder) if problem.command else ()
    return b"\n".join(read_beginning(path.resolve(), 1 << 20) for path in paths)  # of each


# The dataset that the config names.


_DATA = re.compile(
    r"(?:.*_)?(?:data|dataset|datasets|corpus|train|training|wavs?|audios?|images?|manifests?|filelists?|records?"
    r"|tfrecords?|features?|dumps?)(?:_.*)?"
)
_PLACE = re.compile(r"(?:.*_)?(?:dir|directory|folder|path|paths|root|file|files)")
_TEMPLATE = re.compile(r"[${}<>\n]")
_WILDCARD = re.compile(r"[*?\[]")
_NO_DATA = re.compile(r".*\.(?:py|sh|ya?ml|json5?|toml|ckpt|pth?|h5|keras|onnx|safetensors|model|vocab)")
_DECODABLE = (".wav", ".png", ".jpg", ".jpeg", ".tfrecord", ".tfrecords")


@dataclass(frozen=True, kw_only=True)
class DatasetPlace:
    """Folder or file of a dataset: its files with sizes in bytes, and whether these are all."""

    key: str
    path: Path
    files: tuple[tuple[Path, int], ...]
    is_whole: bool

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in self.files)

    @property
    def decodable(self) -> Iterator[Path]:
        """Files that TensorFlow's own ops decode."""
        return (path for path, size in self.files if path.suffix.lower() in _DECODABLE and size > 0)


def dataset_places(problem: Problem, clock: Clock) -> tuple[DatasetPlace, ...]:
    """Return at most 4 existing paths in the config that may be a dataset, within a second."""
    bases = problem.settings.folder, Path(os.path.realpath(problem.config_path)).parent
    found: dict[Path, str] = {}
    for key, value in problem.settings.scalars.items():
        if isinstance(value, str) and not _is_output(problem.settings.outputs, key) and _may_be_data(key, value):
            for folder in bases:
                path = _existing(value, folder)
                if path is not None and not any(place.is_relative_to(path) for place in (*bases, Path.home())):
                    found.setdefault(path, key)
                    break
    outer = [path for path in found if not any(other != path and path.is_relative_to(other) for other in found)]
    deadline_s = clock.now_s() + 1.0
    return tuple(_counted(found[path], path, clock, deadline_s) for path in outer[:4])


def missing_data(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield keys and values that name data by an absolute path that does not exist."""
    for key, value in problem.settings.scalars.items():
        names_data = _DATA.fullmatch(key_name(key)) and _PLACE.fullmatch(key_name(key))
        if not names_data or not isinstance(value, str) or _is_output(problem.settings.outputs, key):
            continue
        if value.startswith("/") and not re.search(r"[*?{}<>$]", value) and not os.path.lexists(value):
            yield key, value


def _is_output(outputs: Outputs, key: str) -> bool:
    return key in outputs.redirected or key in outputs.left


def _may_be_data(key: str, value: str) -> bool:
    name = key_name(key)
    looks_so = _DATA.fullmatch(name) or _PLACE.fullmatch(name) or "/" in value
    return bool(looks_so) and len(value) > 1 and not _TEMPLATE.search(value) and not _NO_DATA.fullmatch(value.lower())


def _existing(value: str, folder: Path) -> Path | None:
    path = path_of(_WILDCARD.split(value)[0] or ".", folder)
    if path is None:
        return None
    if _WILDCARD.search(value) and not os.path.isdir(path):
        path = path.parent  # data/train-*.tfrecord
    real = real_path(path)
    return real if real is not None and os.path.exists(real) else None


def _counted(key: str, path: Path, clock: Clock, deadline_s: float) -> DatasetPlace:
    files: list[tuple[Path, int]] = []
    waiting, is_whole = [path], True
    while waiting:
        place = waiting.pop()
        try:
            if os.path.isfile(place):
                files.append((place, os.stat(place).st_size))
                continue
            with os.scandir(place) as entries:
                for entry in entries:
                    if len(files) >= 20_000 or clock.now_s() > deadline_s:
                        return DatasetPlace(key=key, path=path, files=tuple(files), is_whole=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    elif entry.is_file():
                        files.append((Path(entry.path), entry.stat().st_size))
        except OSError:
            is_whole = False
    return DatasetPlace(key=key, path=path, files=tuple(files), is_whole=is_whole)

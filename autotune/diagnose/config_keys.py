"""Keys of a config that a static check looks at: known knobs with their values, and where they stand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.config.hydra import ComposedDocument
from autotune.config.schema import ENV
from autotune.diagnose.findings import Issue, Limit, Recommendation, Severity
from autotune.errors import CannotEditYaml
from autotune.files import read_beginning
from autotune.records import Scalar, Values
from autotune.search.problem import Problem
from autotune.search.trainer_code import trainer_files
from autotune.space.catalog import is_for_validation, known_knob
from autotune.space.knob import Label

CONFIGURATION = "configuration"


@dataclass(frozen=True, kw_only=True)
class Key:
    """Key of a config.

    Attributes:
        kind: Row of `space.catalog` that it belongs to.
    """

    path: str
    value: Scalar
    kind: str

    @property
    def said(self) -> str:
        """The key with its value, as people write it."""
        return f"{self.path}: {written(self.value)}"


def known_keys(problem: Problem) -> tuple[Key, ...]:
    """Return the known knobs among the keys of the config, in file order; those for validation are left out."""
    found = ((path, value, known_knob(path, value)) for path, value in problem.settings.scalars.items())
    return tuple(
        Key(path=path, value=value, kind=row.kind)
        for path, value, row in found
        if row is not None and not is_for_validation(path) and not path.startswith(ENV)
    )


def of_kind(problem: Problem, *kinds: str) -> Iterator[Key]:
    """Yield the known knobs of these kinds."""
    return (key for key in known_keys(problem) if key.kind in kinds)


def written(value: Scalar) -> str:
    """Return a value as YAML has it."""
    return (
        {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def place_of(problem: Problem, path: str) -> str:
    """Return the file and line of a key; of a config that Hydra composes of several files the key."""
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


def issue(
    problem: Problem,
    path: str,
    sentence: str,
    remedy: str = "",
    *,
    severity: Severity = Severity.WARNING,
    values: Mapping[str, Scalar] | None = None,
    label: Label = Label.SAME_TRAINING,
    limit: Limit | None = None,
    cost: str = "",
) -> Issue:
    """Return an issue about a key.

    Args:
        values: Values to write; keys that cannot be edited are left out.
        limit: Part of the training that it is about.
    """
    refused = problem.settings.refused
    kept: Values = {path: value for path, value in (values or {}).items() if path not in refused}
    advice = (Recommendation(sentence=remedy, values=kept, label=label, cost=cost),) if remedy else ()
    return Issue(
        check=CONFIGURATION,
        severity=severity,
        sentence=sentence,
        place=place_of(problem, path),
        limit=limit,
        recommendations=advice,
    )


# Text of a trainer's own sources.


def trainer_text(problem: Problem) -> bytes:
    """Return the text of the script that the command starts and of the modules beside it; empty if it starts none."""
    paths = trainer_files(problem.command, problem.settings.folder) if problem.command else ()
    return b"\n".join(read_beginning(path.resolve(), 1 << 20) for path in paths)  # of each

"""Keys of a config that are called like a knob and are none, with the reason."""

from collections.abc import Iterator
from typing import Any

from autotune.errors import CannotEditYaml
from autotune.problem.problem import Problem
from autotune.records import Scalar
from autotune.settings.text.document import Leaf
from autotune.space.build import Skipped
from autotune.space.catalog import has_known_name, is_for_validation, known_knob
from autotune.space.not_turned import why_not_turned


def not_taken(problem: Problem) -> list[Skipped]:
    """The keys that are called like a known knob and are none here, or are known not to be one, in file order."""
    free = {path for knob in problem.space.knobs for path in knob.paths}
    reasons = {skipped.path: skipped.why for skipped in problem.skipped}
    found = []
    for path, value in _values(problem.settings.trial_document.data, ()):
        if path in free:
            continue
        if has_known_name(path):
            found.append(Skipped(path=path, why=reasons.get(path) or _why(problem, path, value)))
        elif (why := why_not_turned(path)) is not None:
            found.append(Skipped(path=path, why=why))
    return found


def _values(node: Any, above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Every value below a node that is no section, by dotted path; also what aliases and merge keys bring in."""
    inside = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in inside:
        path = (*above, str(key))
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
            yield from _values(value, path)
        else:
            yield ".".join(path), value


def _why(problem: Problem, path: str, value: Any) -> str:
    if is_for_validation(path):
        return "it is for validation, which trials do not measure"
    if isinstance(value, list):
        return "it is a list, not a single value"
    try:
        leaf = problem.settings.trial_document.leaf(path)
    except CannotEditYaml as error:
        return error.message
    if leaf.why_fixed is not None:
        return leaf.why_fixed
    if (row := known_knob(path, leaf.value)) is not None and row.only_if_listed:
        return "it is turned only where knobs: lists it"
    if row is not None:
        return "on this machine no other value makes sense"
    return _why_not_understood(leaf, leaf.value)


def _why_not_understood(leaf: Leaf, value: Scalar) -> str:
    if value is None:
        return "it is null: what the trainer then does is not known"
    if isinstance(leaf.reading_1_1, str) and not isinstance(value, str):
        return f"YAML parsers disagree on {leaf.text}: PyYAML reads a word, others a number"
    if leaf.style is not None and any(digit in leaf.text for digit in "0123456789"):
        return f"it is a word to the trainer: {leaf.text} stands in quotes"
    return f"{leaf.text} is no value that is known for it"

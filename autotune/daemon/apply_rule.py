"""Rule for applying an advice without asking: what was permitted, and what a person has decided since. Pure."""

from collections.abc import Collection, Mapping

from autotune.daemon.advice import Advice
from autotune.daemon.queue.entry import ApplyScope, Hold
from autotune.records import Scalar

_PERMITTED_BY = {"same training": ApplyScope.BETTER, "batch": ApplyScope.BATCH, "precision": ApplyScope.PRECISION}


def why_not_permitted(advice: Advice, scopes: Collection[ApplyScope]) -> str | None:
    """Return why an advice is not applied by itself, in words; None if that is permitted.

    Args:
        advice: The advice.
        scopes: What its user has permitted.
    """
    if not scopes:
        return "nothing is applied without `--apply better`"
    if not advice.answer:
        return "it is of an earlier version, which did not keep what was judged"
    beyond = [change for change in advice.changes if _PERMITTED_BY.get(change.label) not in scopes]
    if not beyond and advice.may_learn_more_slowly:
        return "no race has shown that it learns as fast as the config does now; `autotune apply` asks"
    if not beyond:
        return None
    labels = sorted({change.label for change in beyond} & set(_PERMITTED_BY))
    keys = ", ".join(change.path for change in beyond)
    how = f"; `--apply {','.join([ApplyScope.BETTER, *labels])}` permits that" if labels else ""
    return f"it changes the training itself ({keys}){how}"


def edited_since(advice: Advice, applied: Mapping[str, Scalar]) -> list[str]:
    """Return the keys of an advice that a person has given another value since autotune set them, in words.

    Args:
        advice: The advice; the old values of its changes are those that the config holds.
        applied: The values that autotune has last written into this config.
    """
    return [
        f"{change.path} is {change.old!r}, autotune had set {applied[change.path]!r}"
        for change in advice.changes
        if change.path in applied and applied[change.path] != change.old
    ]


def hold_of(*, edited: Collection[str], is_in_use: bool) -> Hold | None:
    """Return why a permitted advice has to wait; None if it need not."""
    if edited:
        return Hold.EDITED
    return Hold.TRAINING if is_in_use else None

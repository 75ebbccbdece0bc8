"""Second try of a trainer that crashed before its first step: does it take outputs written as the config has them?

Trials point output keys to absolute paths in their own folder, and not every trainer takes those. In this trial they
are relative paths, as in the config, of names that nothing has: the user's own outputs are never within reach.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from autotune.clock import Clock
from autotune.errors import TrialError
from autotune.folders.deletion import delete_tree
from autotune.problem.problem import Problem
from autotune.process.launch import Runner
from autotune.search.preflight import Preflight, run_preflight
from autotune.settings.outputs import unquoted, written_like
from autotune.settings.paths import path_of


@dataclass(frozen=True, kw_only=True)
class RelativeOutputs:
    """What a trial with relative output paths showed.

    Attributes:
        written: The keys with these paths, for people.
        proposed: The same keys, with paths for the section.
        trial: The trial.
    """

    written: Mapping[str, str]
    proposed: Mapping[str, str]
    trial: Preflight

    def __str__(self) -> str:
        return ", ".join(f"{key}: {value}" for key, value in self.written.items())

    def error(self, detail: str, *, where: str, go_on: str = "") -> TrialError:
        """Return the error for a trainer that made steps in this trial, and crashed with absolute paths.

        Args:
            detail: How it crashed.
            where: Folder of the trial in which it did.
            go_on: How to go on all the same.
        """
        keys, values = ", ".join(self.proposed), ", ".join(f"{key}: {path}" for key, path in self.proposed.items())
        return TrialError(
            f"no step was seen where autotune had pointed {keys} into the trial's folder, by absolute paths "
            f"({detail}); there were steps with {self}",
            where=where,
            remedy="It may be that the trainer takes no absolute path there. Give trials a relative one in the "
            f"section, of a name that nothing else has, such as:\n  redirect_except: [{keys}]\n  set: {{{values}}}\n"
            f"All trials share it then, and what they write there stays.{go_on}",
        )


def try_relative_outputs(
    problem: Problem, runner: Runner, clock: Clock, *, name: str, wall_s: float = math.inf
) -> RelativeOutputs | None:
    """Make one trial of today's config with relative output paths, and delete what it leaves there.

    Args:
        problem: The config and the command.
        runner: Makes the trial.
        clock: Source of time.
        name: Name of the trial, which nothing else has.
        wall_s: Time at which it is ended in any case, on that clock.

    Returns:
        What it showed; None where no key holds a relative path.
    """
    written = _beside(problem, f"-{name}")
    if not written:
        return None
    settings = problem.settings
    outputs = replace(
        settings.outputs, redirected=tuple(key for key in settings.outputs.redirected if key not in written)
    )
    section = replace(settings.section, fixed={**settings.section.fixed, **written})
    with _left_as_it_was(problem, written, name):
        trial = run_preflight(
            problem,
            runner,
            clock,
            name=name,
            settings=replace(settings, section=section, outputs=outputs),
            wall_s=wall_s,
        )
    return RelativeOutputs(written=written, proposed=_beside(problem, "-trials"), trial=trial)


def _beside(problem: Problem, tag: str) -> dict[str, str]:
    """Return the redirected keys that hold relative paths, each with a path beside it whose name has a tag more."""
    found = {}
    for key in problem.settings.outputs.redirected:
        leaf = problem.settings.trial_document.leaf(key)
        folder, slash, name = unquoted(leaf.text).rstrip("/").rpartition("/")
        stem, suffix = os.path.splitext(name)
        if leaf.why_fixed or leaf.text.startswith(("/", "~")) or "://" in leaf.text or name in ("", ".", ".."):
            continue
        found[key] = written_like(f"{folder}{slash}{stem}{tag}{suffix}", leaf.text)
    return found


@contextmanager
def _left_as_it_was(problem: Problem, written: Mapping[str, str], name: str) -> Iterator[None]:
    """Delete what a trial has left beside the user's outputs, by the name in it, and the folders made for that."""
    bases = (problem.settings.folder, problem.config_path.absolute().parent)
    places = {place for text in written.values() for base in bases if (place := path_of(unquoted(text), base))}
    absent = {above for place in places for above in place.parents if not os.path.lexists(above)}
    try:
        yield
    finally:
        for place in places:
            with suppress(OSError):
                for left in [one for one in place.parent.iterdir() if name in one.name]:
                    delete_tree(left)
        for above in sorted(absent, key=lambda path: -len(path.parts)):
            with suppress(OSError):
                above.rmdir()

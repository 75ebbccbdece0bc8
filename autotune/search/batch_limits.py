"""Limits of what a search turns, put on a problem: the effective batch, and knobs that change the training."""

from collections.abc import Iterable
from dataclasses import replace

from autotune.config.schema import DEFAULT_BATCH_LIMIT, BatchLimit, parse_batch_limit
from autotune.errors import ConfigError
from autotune.records import Purpose, TrialRecord
from autotune.search.problem import Problem
from autotune.space.knob import Knob, Label
from autotune.space.space import Space, is_batch_size


def limited(problem: Problem, *, same_training: bool = False, batch: str | None = None) -> Problem:
    """Return a problem as a search takes it; `apply` and `status` take the whole, whatever limits a search had.

    Args:
        same_training: Whether knobs that change the training itself stay as they are.
        batch: Limit of the effective batch, as typed; None takes that of the section. Where neither says one, a batch
            that the user lists under ``knobs:`` is searched as listed, others up to `DEFAULT_BATCH_LIMIT`.

    Raises:
        ConfigError: The limit is none.
    """
    problem = replace(problem, whole_space=problem.space)
    if same_training:
        excluded = frozenset(Label) - {Label.SAME_TRAINING}
        return replace(problem, space=problem.space.same_training(), allowed=frozenset(), excluded=excluded)
    limit = _limit(problem, batch)
    if limit is not None and limit.is_fixed:
        problem = replace(problem, allowed=problem.allowed - {Label.BATCH}, excluded=frozenset({Label.BATCH}))
    elif batch is not None or problem.settings.section.batch is not None:
        problem = replace(problem, allowed=problem.allowed | {Label.BATCH})
    if limit is None or limit.is_free:
        return problem
    space = problem.space.with_batch_fixed() if limit.is_fixed else problem.space.with_batch_up_to(limit.factor)
    return replace(problem, space=space, batch_limit=limit, batch_remark=_remark(problem.space, space, limit))


def growth_remark(problem: Problem, records: Iterable[TrialRecord]) -> str | None:
    """Return a sentence on a limit that `apply` has moved since the study began; None if it has not.

    The limit is relative to the baseline of now, so that search after search the batch could grow without end.
    """
    first = next((trial for trial in records if trial.purpose is Purpose.BASELINE), None)
    if first is None or problem.batch_limit is None:
        return None
    for knob in _batch_sizes(problem.space):
        began, now, largest = first.values.get(knob.path), knob.baseline, knob.choices[-1]
        if not (isinstance(began, int) and isinstance(now, int) and isinstance(largest, int)):
            continue
        if 0 < began < now < largest and largest > problem.batch_limit.factor * began:
            return (
                f"{knob.path} was {began} when this study began and is {now} now: {largest}, up to which it is "
                f"searched, is {largest / began:g} times that. --batch same leaves it at {now}."
            )
    return None


def _limit(problem: Problem, typed: str | None) -> BatchLimit | None:
    """Return the limit in force; None where the user's own list of sizes counts."""
    section = problem.settings.section
    if typed is not None:
        try:
            return parse_batch_limit(typed)
        except ValueError as error:
            raise ConfigError(str(error), where="batch", remedy="A search without it takes 4x.") from error
    if section.batch is not None:
        return section.batch
    return DEFAULT_BATCH_LIMIT if section.knobs is None else None


def _remark(whole: Space, space: Space, limit: BatchLimit) -> str | None:
    """Return the sentence on the points that a limit leaves out; None if it leaves out none."""
    if space.most_batch is not None:
        return f"Combinations of batch size and accumulation are searched up to {limit.factor:g} times today's batch."
    cut = [
        (knob, space.knob(knob.path)) for knob in whole.knobs if len(space.knob(knob.path).choices) < len(knob.choices)
    ]
    if not cut:
        return None
    if limit.is_fixed:
        return f"{' and '.join(f'{knob.path} stays {knob.baseline}' for _, knob in cut)}, because of batch: same."
    said = " and ".join(_up_to(knob, limit) for _, knob in cut)
    most = " and ".join(str(knob.choices[-1]) for knob, _ in cut)
    return (
        f"{said}: a larger batch makes more samples a second that each teach less. --batch free searches up to {most}."
    )


def _up_to(knob: Knob, limit: BatchLimit) -> str:
    times = f"at most {limit.factor:g} times today's {knob.baseline}" if limit.factor > 1 else "as it is today"
    return f"{knob.path} is searched up to {knob.choices[-1]}, {times}"


def _batch_sizes(space: Space) -> list[Knob]:
    return [knob for knob in space.knobs if is_batch_size(knob) and len(knob.choices) > 1]

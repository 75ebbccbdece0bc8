"""Which new point to try: first what an expert would, then what Optuna's TPE makes of all runs so far.

What TPE proposes is tried near the best point first: a few of its values at a time, the rest as in the best point.
Runs are dear and most combinations of many knobs are bad ones; the longer nothing helps, the further it goes.

The sampler works on an in-memory study that is rebuilt for every proposal: one aggregated observation per point,
today's domains. The record never has to be rewritten for it.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import product

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState, create_trial

from autotune.records import Ending, Values
from autotune.search.levels import PointLevel
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space, point_name

_ASKS = 30
_LISTED_POINTS = 5_000
_FEWEST_CHANGES = 2
_DRY_RUNS_A_CHANGE = 4  # after that many points without a better one, proposals change one value more
_FAILED = -1.0  # ln score told for a point that gave no numbers, below the worst that did
_MEMORY_KINDS = ("precision", "xla", "fixed_length", "graph_mode")
_OUT_OF_MEMORY = (Ending.OUT_OF_GPU_MEMORY, Ending.OUT_OF_HOST_MEMORY)


def propose(space: Space, levels: Mapping[str, PointLevel], seed: int) -> Values | None:
    """A point that nobody has measured and that may work.

    Args:
        space: What may vary.
        levels: What is known of each point.
        seed: Makes the sampler's choice repeatable.

    Returns:
        The knob values; None if no such point was found.
    """
    for values in advised(space, levels):
        if _is_new(space, levels, values):
            return values
    rng = random.Random(seed)
    best = best_level(levels)
    dry = len(levels) - 1 - list(levels).index(best.name) if best else len(levels)
    for values in _sampled(space, levels, seed):
        near = _near(best.values, values, _FEWEST_CHANGES + dry // _DRY_RUNS_A_CHANGE, rng) if best else values
        for candidate in (near, values):
            if _is_new(space, levels, candidate):
                return candidate
    if space.size > _LISTED_POINTS:
        return None
    # The sampler repeats itself on small spaces; what it never drew is still there.
    choices = [knob.choices for knob in space.knobs]
    everything = [dict(zip(space.today, values, strict=True)) for values in product(*choices)]
    rng.shuffle(everything)
    return next((values for values in everything if _is_new(space, levels, values)), None)


def best_level(levels: Mapping[str, PointLevel]) -> PointLevel | None:
    """The point with the best mean score; None if none gave numbers."""
    return max((level for level in levels.values() if level.scores), key=lambda level: level.mean, default=None)


def advised(space: Space, levels: Mapping[str, PointLevel]) -> Iterator[Values]:
    """What an expert would try next, given what is known: one piece of advice after the other, on the best so far.

    The first sets all bundled knobs at once (they are cheap, safe, and rarely hurt each other); then each other
    advice that no run has tried yet is added to the best point so far. So what helped is kept. Of a knob's further
    advice (the next larger batch) a value comes only after the one before it has helped.
    """
    bundle = dict(space.today)
    for knob in space.knobs:
        if knob.bundled and knob.advice:
            bundle[knob.path] = knob.advice[0]
    if point_name(bundle) not in levels:
        yield bundle
    best = best_level(levels)
    start = best.values if best else bundle
    for knob in space.knobs:
        for before, value in zip((None, *knob.advice), knob.advice, strict=False):
            has_helped = before is None or same_scalar(start[knob.path], before)
            if has_helped and not any(same_scalar(level.values[knob.path], value) for level in levels.values()):
                yield space.with_advice(start, knob.path, value)


def _near(best: Values, sampled: Values, changes: int, rng: random.Random) -> Values:
    """The best point with a few values of the sampled one."""
    differing = [path for path in best if not same_scalar(best[path], sampled[path])]
    return {**best, **{path: sampled[path] for path in rng.sample(differing, min(changes, len(differing)))}}


def _sampled(space: Space, levels: Mapping[str, PointLevel], seed: int) -> Iterator[Values]:
    if not space.knobs:
        return
    distributions = {knob.path: _distribution(knob) for knob in space.knobs}
    study = optuna.create_study(direction="maximize", sampler=TPESampler(seed=seed))
    worst = min((level.mean for level in levels.values() if level.scores), default=0.0)
    for level in levels.values():
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                value=level.mean if level.scores else worst + _FAILED,
                params={knob.path: knob.index(level.values[knob.path]) for knob in space.knobs},
                distributions=distributions,
            )
        )
    for _ in range(_ASKS):
        # Unfinished trials count as bad ones ("constant liar"), so asking again moves on.
        params = study.ask(distributions).params
        yield {knob.path: knob.choices[params[knob.path]] for knob in space.knobs}


def _distribution(knob: Knob) -> BaseDistribution:
    last = len(knob.choices) - 1
    return IntDistribution(0, last) if knob.ordered else CategoricalDistribution(range(last + 1))


def _is_new(space: Space, levels: Mapping[str, PointLevel], values: Values) -> bool:
    return (
        point_name(values) not in levels
        and space.why_infeasible(values) is None
        and not _must_run_out_of_memory(space, levels, values)
    )


def _must_run_out_of_memory(space: Space, levels: Mapping[str, PointLevel], values: Values) -> bool:
    """Whether a batch no larger than this one ran out of memory, all that memory depends on being the same.

    What ran out of memory at a batch that has run elsewhere did so for another reason, and proves nothing.
    """
    batches = [knob.path for knob in space.knobs if knob.kind == "batch_size"]
    if not batches:
        return False

    def alike(level: PointLevel, gpu_only: bool) -> bool:
        shared = (k for k in space.knobs if k.path not in batches and (k.kind in _MEMORY_KINDS or not gpu_only))
        return all(same_scalar(level.values[knob.path], values[knob.path]) for knob in shared)

    def size(point: Values) -> float:
        return max(float(point[path] or 0) for path in batches)

    for level in levels.values():
        failed = next((ending for ending in level.endings if ending in _OUT_OF_MEMORY), None)
        if failed is None or level.scores or size(level.values) > size(values):
            continue
        gpu_only = failed is Ending.OUT_OF_GPU_MEMORY
        runs_all_the_same = any(
            other.scores and alike(other, gpu_only) and size(other.values) >= size(level.values)
            for other in levels.values()
        )
        if alike(level, gpu_only) and not runs_all_the_same:
            return True
    return False

"""Values that always fail: a value, a pair, or the product of two that failed points share and no other point has."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from math import prod

from autotune.config.keys import scalar_text
from autotune.records import Ending, Scalar, TrialRecord, Values
from autotune.sampler.observations import EXTERNAL, Observation
from autotune.space.catalog import Demand, traits_of
from autotune.space.knob import Knob, is_number, number_of, same_scalar
from autotune.space.space import Space

_LATEST = 20  # failed points considered
_MEMORY = (Ending.OUT_OF_GPU_MEMORY, Ending.OUT_OF_HOST_MEMORY)
_MOST_SIZES = 3  # tensor sizes of a step at which values run out of memory, to assume that they do at any


@dataclass(frozen=True, kw_only=True)
class FailingValues:
    """Values that fail, including those further from the baseline.

    Attributes:
        points: Number of points that failed.
        only_with: Memory-relevant values of other knobs under which they failed.
        is_product: Whether any two with at least this product fail.
    """

    values: Values
    ending: Ending
    points: int
    only_with: Values = field(default_factory=dict)
    is_product: bool = False

    def are_in(self, values: Values, space: Space) -> bool:
        if not all(same_scalar(values[path], value) for path, value in self.only_with.items()):
            return False
        if self.is_product:
            return _product(values, self.values) >= _product(self.values, self.values)
        return _holds(values, self.values, space)

    def covers(self, other: "FailingValues") -> bool:
        return self.is_product and self.values.keys() == other.values.keys()

    def text(self, space: Space) -> str:
        if self.is_product:
            return f"{' x '.join(self.values)}: {_product(self.values, self.values):g} or more"
        return " with ".join(
            f"{path}: {scalar_text(value)}{' and beyond' if space.knob(path).ordered else ''}"
            for path, value in self.values.items()
        )

    def where(self, space: Space) -> str:
        if not self.only_with:
            return "in every trial"
        pairs = self.only_with.items()
        changed = [(path, value) for path, value in pairs if not same_scalar(value, space.knob(path).baseline)]
        with_others = [f"{path}: {scalar_text(value)}" for path, value in changed]
        return f"with {', '.join(with_others)}" if with_others else f"with the current {', '.join(self.only_with)}"

    def remedy(self, space: Space) -> str:
        if self.only_with:
            return "it may fit if a step needs less memory"
        if self.is_product:
            return f"keep the product below {_product(self.values, self.values):g}"
        if len(self.values) > 1:
            return "use only one of them at a time"
        ((path, value),) = self.values.items()
        knob = space.knob(path)
        rest = ", ".join(scalar_text(choice) for choice in knob.choices if not _is_at_or_beyond(knob, choice, value))
        return f"to exclude it permanently, set `{path}: [{rest}]` under `knobs:`"


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Failure attribution.

    Attributes:
        failing: Values with at least two equal failures, one of them with no other change.
        deciding: Point to run next to confirm a suspect.
        ending: Expected ending of `deciding`.
    """

    failing: Sequence[FailingValues] = ()
    deciding: Values | None = None
    ending: Ending | None = None


def blame(space: Space, observations: Mapping[str, Observation], lacks_memory: Callable[[Values], bool]) -> Blame:
    """Attribute failures to values that failed points share."""
    known = [one for one in observations.values() if space.contains(one.values)]
    failed = [(one.values, ending) for one in known if (ending := _ending(one)) is not None][-_LATEST:]
    if len(failed) < 2:
        return Blame()
    worked = [one.values for one in known if one.scores or one.rough_scores]
    if not worked:  # no value explains what the baseline does too, unless a smaller one needs less memory
        also = {ending for values, ending in failed if not space.changes(values)}.difference(_MEMORY)
        failed = [(values, ending) for values, ending in failed if ending not in also]
    # the first trials that hang are stopped early; only a deciding trial gets the full timeout
    hung = [one for one in known if _ending(one) is Ending.HUNG][:2]
    brief = [one.values for one in hung if one.trials == 1]
    tried = [one.values for one in known if one.values not in brief]
    failing: list[FailingValues] = []
    undecided: list[tuple[Values, Ending]] = []
    for suspects in _suspects(space, worked, failed, brief, lacks_memory):
        failing += suspects.confirmed()
        undecided += suspects.undecided(tried)
    failing = _generalized(failing)
    for point, ending in undecided:
        is_decided = any(one.are_in(point, space) for one in failing)
        if not is_decided and space.why_infeasible(point) is None:
            return Blame(failing=failing, deciding=point, ending=ending)
    return Blame(failing=failing)


def _suspects(
    space: Space,
    worked: Sequence[Values],
    failed: Sequence[tuple[Values, Ending]],
    brief: Sequence[Values],
    lacks_memory: Callable[[Values], bool],
) -> Iterator["_Suspects"]:
    """Yield suspects of memory failures for each tensor size, then of other failures."""
    sizes = [knob.path for knob in space.knobs if traits_of(knob).gpu_memory is Demand.VARIES]
    lacked = [(point, ending) for point, ending in failed if ending in _MEMORY]
    for size in {tuple(point[path] for path in sizes): None for point, _ in lacked}:
        only_with = dict(zip(sizes, size, strict=True))
        same = [(point, ending) for point, ending in lacked if only_with.items() <= point.items()]
        fit = [point for point in worked if only_with.items() <= point.items()]
        yield _Suspects(space=space, worked=fit, failed=same, only_with=only_with, is_known_to_fail=lacks_memory)
    others = [(point, ending) for point, ending in failed if ending not in _MEMORY]
    yield _Suspects(space=space, worked=worked, failed=others, brief=brief)


def _generalized(failing: Sequence[FailingValues]) -> list[FailingValues]:
    """Drop tensor sizes from values that run out of memory at several."""
    found: list[FailingValues] = []
    for one in failing:
        same = [other for other in failing if (other.values, other.ending) == (one.values, one.ending)]
        points = sum(other.points for other in same)
        one = replace(one, only_with={}, points=points) if len(same) >= _MOST_SIZES else one
        found += [one] if one not in found else []
    return found


def failing_in_pairs(space: Space, trials: Iterable[TrialRecord]) -> list[FailingValues]:
    """Return the one value shared by the points that failed in confirming pairs; empty if not exactly one.

    Args:
        trials: Confirming trials of this space, oldest first.
    """
    latest = {trial.point: trial for trial in trials if space.contains(trial.values) and space.changes(trial.values)}
    failed = [one for one in latest.values() if one.ending not in EXTERNAL and not one.comparable]
    if len(failed) < 2:
        return []
    shared = []
    for path in space.changes(failed[0].values):
        knob = space.knob(path)
        values = [one.values[path] for one in failed]
        nearest = next((one for one in values if all(_is_at_or_beyond(knob, other, one) for other in values)), None)
        worked = (one.values[path] for one in latest.values() if one.comparable)
        if nearest is not None and not any(_is_at_or_beyond(knob, other, nearest) for other in worked):
            shared.append(FailingValues(values={path: nearest}, ending=failed[-1].ending, points=len(failed)))
    return shared if len(shared) == 1 else []  # several: ambiguous


def _ending(one: Observation) -> Ending | None:
    if one.scores or one.rough_scores:
        return None
    return next((ending for ending in one.endings if ending not in EXTERNAL), None)


@dataclass(frozen=True, kw_only=True)
class _Suspects:
    """Values that at least two failed points share.

    Attributes:
        brief: Points whose trial was too short to distinguish a hang from a slow start.
        only_with: Unsuspected values that all points share.
    """

    space: Space
    worked: Sequence[Values]
    failed: Sequence[tuple[Values, Ending]]
    brief: Sequence[Values] = ()
    only_with: Values = field(default_factory=dict)
    is_known_to_fail: Callable[[Values], bool] = lambda _values: False

    def confirmed(self) -> list[FailingValues]:
        failing: list[FailingValues] = []
        for one in sorted(self.found, key=lambda one: -one.points):
            point = {**self.space.baseline, **self.only_with, **one.values}
            if self._is_confirmed(one) and not any(other.are_in(point, self.space) for other in failing):
                failing.append(one)
        products = list(self._products([one for one in self.found if len(one.values) == 1]))
        return [*(one for one in failing if not any(other.covers(one) for other in products)), *products]

    def undecided(self, tried: Sequence[Values]) -> Iterator[tuple[Values, Ending]]:
        """Yield points that can confirm a suspect, with the expected ending."""
        for one in sorted(self.found, key=lambda one: (len(one.values), -one.points)):
            point = {**self.space.baseline, **self.only_with, **self._nearest(one.values)}
            if point not in tried:
                yield point, one.ending

    @cached_property
    def found(self) -> Sequence[FailingValues]:
        found = []
        suspected = [(values, ending) for point, ending in self.failed for values in self._of(point)]
        for values, ending in [*self._nearer(suspected), *suspected]:
            one = FailingValues(values=values, ending=ending, points=0, only_with=self.only_with)
            points = sum(how is ending and one.are_in(other, self.space) for other, how in self.failed)
            if points >= 2:
                found.append(replace(one, points=points))
        return found

    def _of(self, point: Values) -> Iterator[Values]:
        """Yield the single changes of a failed point that may be the cause, or else pairs."""
        changes = self._changes(point)
        for size in (1, 2):
            shared = [{path: changes[path] for path in paths} for paths in combinations(changes, size)]
            if found := [values for values in shared if not self._have_worked(values)]:
                yield from found
                return

    def _changes(self, point: Values) -> Values:
        return {path: value for path, value in self.space.changes(point).items() if path not in self.only_with}

    def _nearer(self, suspected: Sequence[tuple[Values, Ending]]) -> Iterator[tuple[Values, Ending]]:
        """Yield the values nearer to the baseline of each two suspects, which may exceed one limit."""
        for (one, how), (other, how_other) in combinations(suspected, 2):
            if how is how_other and one.keys() == other.keys() and one != other:
                pairs = ((path, one[path], other[path]) for path in one)
                values = {path: a if _is_at_or_beyond(self.space.knob(path), b, a) else b for path, a, b in pairs}
                if not self._have_worked(values):
                    yield values, how

    def _products(self, others: Sequence[FailingValues]) -> Iterator[FailingValues]:
        """Yield products of two numbers that separate failed points from those that worked.

        Needs three failed points, two of which trade one number for the other, that none of `others` explains.
        """
        failed = [one for one in self.failed if not any(other.are_in(one[0], self.space) for other in others)]
        numbers = [knob.path for knob in self.space.knobs if knob.ordered and is_number(number_of(knob.choices[-1]))]
        for (one, other), ending in product(combinations(numbers, 2), dict.fromkeys(how for _, how in failed)):
            points = [{one: point[one], other: point[other]} for point, how in failed if how is ending]
            is_trade = any(
                (_number(a[one]) - _number(b[one])) * (_number(a[other]) - _number(b[other])) < 0.0
                for a, b in combinations(points, 2)
            )
            if len(points) >= 3 and is_trade:
                values = min(points, key=lambda point: _product(point, point))
                found = FailingValues(values=values, ending=ending, points=len(points), only_with=self.only_with)
                least = replace(found, is_product=True)
                if not any(least.are_in(point, self.space) for point in self.worked):
                    yield least

    def _have_worked(self, values: Values) -> bool:
        return any(_holds(point, values, self.space) for point in self.worked)

    def _is_confirmed(self, one: FailingValues) -> bool:
        if self.is_known_to_fail({**self.space.baseline, **self.only_with, **one.values}):
            return True
        conclusive = (point for point, how in self.failed if how is one.ending and point not in self.brief)
        changes = [self._changes(point) for point in conclusive]
        if one.values in changes:
            return True
        same = (change for change in changes if change.keys() == one.values.keys())
        return len(one.values) == 1 and any(_holds(change, one.values, self.space) for change in same)

    def _nearest(self, values: Values) -> Values:
        if len(values) > 1:
            return values
        ((path, value),) = values.items()
        knob = self.space.knob(path)
        baseline = knob.index(knob.baseline) or 0
        between = (choice for choice in knob.choices if _is_at_or_beyond(knob, value, choice))
        nearer = [choice for choice in between if not self._have_worked({path: choice})]
        return {path: min(nearer, key=lambda choice: abs((knob.index(choice) or 0) - baseline), default=value)}


def _product(point: Values, paths: Iterable[str]) -> float:
    return prod(_number(point[path]) for path in paths)


def _number(value: Scalar) -> float:
    number = number_of(value)
    return max(1.0, float(number)) if isinstance(number, int | float) else 1.0


def _holds(point: Values, values: Values, space: Space) -> bool:
    return all(_is_at_or_beyond(space.knob(path), point[path], value) for path, value in values.items())


def _is_at_or_beyond(knob: Knob, value: Scalar, than: Scalar) -> bool:
    """Return whether a value is at least as far from the baseline as another, on the same side."""
    place, other, baseline = knob.index(value), knob.index(than), knob.index(knob.baseline)
    assert place is not None
    assert other is not None
    assert baseline is not None
    return place >= other > baseline or place <= other < baseline if knob.ordered else place == other

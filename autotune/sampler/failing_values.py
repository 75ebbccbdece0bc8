"""Values that fail wherever they are tried: what failed points share, and no point has survived.

A single value may be to blame, or two together, or the product of two. Of ordered knobs, all values further from
today's are blamed with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from math import prod

from autotune.config.keys import scalar_text
from autotune.records import Ending, Scalar, TrialRecord, Values
from autotune.sampler.observations import FAILURE_SCOPES, FailureScope, Observation
from autotune.space.catalog import Demand, traits_of
from autotune.space.knob import Knob, is_number, number_of, same_scalar
from autotune.space.space import Space

_LATEST = 20  # failed points that are looked at
_MEMORY = (Ending.OUT_OF_GPU_MEMORY, Ending.OUT_OF_HOST_MEMORY)
_MOST_SIZES = 3  # of a step's tensors, with each of which values lack memory: then they do with any


@dataclass(frozen=True, kw_only=True)
class FailingValues:
    """Values that fail, with all that are further from today's.

    Attributes:
        values: By path, one or two.
        ending: Of the trials that failed with them.
        points: Number of these points.
        only_with: Values under which they were seen to fail, of knobs by which a point may need less memory.
        is_product: Whether their product is to blame: then any two that multiply to as much fail.
    """

    values: Values
    ending: Ending
    points: int
    only_with: Values = field(default_factory=dict)
    is_product: bool = False

    def are_in(self, values: Values, space: Space) -> bool:
        """Return whether a point holds them."""
        if not all(same_scalar(values[path], value) for path, value in self.only_with.items()):
            return False
        if self.is_product:
            return _product(values, self.values) >= _product(self.values, self.values)
        return _holds(values, self.values, space)

    def covers(self, other: "FailingValues") -> bool:
        """Return whether it names what others do, of the same two knobs, and more."""
        return self.is_product and self.values.keys() == other.values.keys()

    def text(self, space: Space) -> str:
        """Name them, for people."""
        if self.is_product:
            return f"{' x '.join(self.values)}: {_product(self.values, self.values):g} and beyond"
        return " with ".join(
            f"{path}: {scalar_text(value)}{' and beyond' if space.knob(path).ordered else ''}"
            for path, value in self.values.items()
        )

    def where(self, space: Space) -> str:
        """Tell under which other values they fail, for people."""
        if not self.only_with:
            return "wherever it is tried"
        with_others = [
            f"{path}: {scalar_text(value)}"
            for path, value in self.only_with.items()
            if not same_scalar(value, space.knob(path).baseline)
        ]
        return f"with {', '.join(with_others)}" if with_others else f"with today's {', '.join(self.only_with)}"

    def advice(self, space: Space) -> str:
        """Return what leaves them out of later searches, too, or of the trainer's use, for people."""
        if self.only_with:
            return "what makes a step need less memory may let it fit"
        if self.is_product:
            return f"keep that below {_product(self.values, self.values):g}"
        if len(self.values) > 1:
            return "use one of them at a time"
        ((path, value),) = self.values.items()
        knob = space.knob(path)
        rest = ", ".join(scalar_text(choice) for choice in knob.choices if not _is_as_far(knob, choice, value))
        return f"`{path}: [{rest}]` under `knobs:` leaves it out for good"


@dataclass(frozen=True, kw_only=True)
class Blame:
    """What failed points have in common.

    Attributes:
        failing: Values that are to blame: at least two points failed alike with them, and one with nothing else, or it
            is known that such a one fails.
        deciding: Point that tells whether values are to blame that two failed points share; None for none.
        ending: How these two points ended.
    """

    failing: Sequence[FailingValues] = ()
    deciding: Values | None = None
    ending: Ending | None = None


def blame(space: Space, observations: Mapping[str, Observation], lacks_memory: Callable[[Values], bool]) -> Blame:
    """Return what failed points have in common.

    Args:
        lacks_memory: Tells of a point whether it needs as much memory as one that ran out of it.
    """
    known = [one for one in observations.values() if space.contains(one.values)]
    failed = [(one.values, ending) for one in known if (ending := _ending(one)) is not None][-_LATEST:]
    if len(failed) < 2:
        return Blame()
    worked = [one.values for one in known if one.scores or one.rough_scores]
    # the first ones that idle are ended soon: only one that is made to decide is waited for
    hung = [one for one in known if _ending(one) is Ending.HUNG][:2]
    brief = [one.values for one in hung if one.trials == 1]
    tried = [one.values for one in known if one.values not in brief]
    failing: list[FailingValues] = []
    undecided: list[tuple[Values, Ending]] = []
    for suspects in _apart(space, worked, failed, brief, lacks_memory):
        failing += suspects.shown()
        undecided += suspects.undecided(tried)
    failing = _anywhere(failing)
    for point, ending in undecided:
        is_told = any(one.are_in(point, space) for one in failing)
        if not is_told and space.why_infeasible(point) is None:
            return Blame(failing=failing, deciding=point, ending=ending)
    return Blame(failing=failing)


def _apart(
    space: Space,
    worked: Sequence[Values],
    failed: Sequence[tuple[Values, Ending]],
    brief: Sequence[Values],
    lacks_memory: Callable[[Values], bool],
) -> Iterator["_Suspects"]:
    """Yield what is suspected of failures of memory by the sizes of a step's tensors, then of all others."""
    sizes = [knob.path for knob in space.knobs if traits_of(knob).gpu_memory is Demand.VARIES]
    lacked = [(point, ending) for point, ending in failed if ending in _MEMORY]
    for size in {tuple(point[path] for path in sizes): None for point, _ in lacked}:
        only_with = dict(zip(sizes, size, strict=True))
        alike = [(point, ending) for point, ending in lacked if only_with.items() <= point.items()]
        fit = [point for point in worked if only_with.items() <= point.items()]
        yield _Suspects(space=space, worked=fit, failed=alike, only_with=only_with, surely_fails=lacks_memory)
    others = [(point, ending) for point, ending in failed if ending not in _MEMORY]
    yield _Suspects(space=space, worked=worked, failed=others, brief=brief)


def _anywhere(failing: Sequence[FailingValues]) -> list[FailingValues]:
    """Return values that lack memory by several sizes of a step's tensors as failing whatever these are."""
    found: list[FailingValues] = []
    for one in failing:
        alike = [other for other in failing if (other.values, other.ending) == (one.values, one.ending)]
        points = sum(other.points for other in alike)
        one = replace(one, only_with={}, points=points) if len(alike) >= _MOST_SIZES else one
        found += [one] if one not in found else []
    return found


def failing_in_pairs(space: Space, trials: Iterable[TrialRecord]) -> list[FailingValues]:
    """Return the value that all points share which failed in confirming pairs, after trials that had gone well.

    Those were too short to show it, so the points that worked say nothing against it, but for those whose pairs did.

    Args:
        trials: Confirming trials of this space, oldest first.
    """
    latest = {trial.point: trial for trial in trials if space.contains(trial.values) and space.changes(trial.values)}
    failed = [one for one in latest.values() if _is_failure(one.ending) and not one.comparable]
    if len(failed) < 2:
        return []
    shared = []
    for path in space.changes(failed[0].values):
        knob = space.knob(path)
        values = [one.values[path] for one in failed]
        nearest = next((one for one in values if all(_is_as_far(knob, other, one) for other in values)), None)
        worked = (one.values[path] for one in latest.values() if one.comparable)
        if nearest is not None and not any(_is_as_far(knob, other, nearest) for other in worked):
            shared.append(FailingValues(values={path: nearest}, ending=failed[-1].ending, points=len(failed)))
    return shared if len(shared) == 1 else []  # of several it may be any


def _is_failure(ending: Ending) -> bool:
    return FAILURE_SCOPES[ending] is not FailureScope.NOTHING


def _ending(one: Observation) -> Ending | None:
    """Return how a point failed by its own values; None if it did not."""
    if one.scores or one.rough_scores:
        return None
    return next(filter(_is_failure, one.endings), None)


@dataclass(frozen=True, kw_only=True)
class _Suspects:
    """Values that at least two failed points share.

    Attributes:
        worked: Points that gave numbers.
        failed: Points that did not, with how they ended.
        brief: Those whose trial was too short to tell a hang from a slow start.
        only_with: Values that all these points have, and that are not suspected.
        surely_fails: Tells of a point whether it needs no trial to know that it fails.
    """

    space: Space
    worked: Sequence[Values]
    failed: Sequence[tuple[Values, Ending]]
    brief: Sequence[Values] = ()
    only_with: Values = field(default_factory=dict)
    surely_fails: Callable[[Values], bool] = lambda _values: False

    def shown(self) -> list[FailingValues]:
        """Return the values that are to blame."""
        failing: list[FailingValues] = []
        for one in sorted(self.found, key=lambda one: -one.points):
            point = {**self.space.baseline, **self.only_with, **one.values}
            if self._are_shown(one) and not any(other.are_in(point, self.space) for other in failing):
                failing.append(one)
        products = list(self._products([one for one in self.found if len(one.values) == 1]))
        return [*(one for one in failing if not any(other.covers(one) for other in products)), *products]

    def undecided(self, tried: Sequence[Values]) -> Iterator[tuple[Values, Ending]]:
        """Yield points that tell whether values are to blame, the most suspect first, with how others ended."""
        for one in sorted(self.found, key=lambda one: (len(one.values), -one.points)):
            point = {**self.space.baseline, **self.only_with, **self._nearest(one.values)}
            if point not in tried:
                yield point, one.ending

    @cached_property
    def found(self) -> Sequence[FailingValues]:
        """Values that may be to blame, most of them not shown yet."""
        found = []
        suspected = [(values, ending) for point, ending in self.failed for values in self._of(point)]
        for values, ending in [*self._nearer(suspected), *suspected]:
            one = FailingValues(values=values, ending=ending, points=0, only_with=self.only_with)
            points = sum(how is ending and one.are_in(other, self.space) for other, how in self.failed)
            if points >= 2:
                found.append(replace(one, points=points))
        return found

    def _of(self, point: Values) -> Iterator[Values]:
        """Yield the changes of a failed point that may be to blame: single ones; without any, pairs of them."""
        changes = self._changes(point)
        for size in (1, 2):
            shared = [{path: changes[path] for path in paths} for paths in combinations(changes, size)]
            if found := [values for values in shared if not self._work(values)]:
                yield from found
                return

    def _changes(self, point: Values) -> Values:
        return {path: value for path, value in self.space.changes(point).items() if path not in self.only_with}

    def _nearer(self, suspected: Sequence[tuple[Values, Ending]]) -> Iterator[tuple[Values, Ending]]:
        """Yield of each two suspects the values nearer to today's: it may be their sum that is too large."""
        for (one, how), (other, how_other) in combinations(suspected, 2):
            if how is how_other and one.keys() == other.keys() and one != other:
                pairs = ((path, one[path], other[path]) for path in one)
                values = {path: a if _is_as_far(self.space.knob(path), b, a) else b for path, a, b in pairs}
                if not self._work(values):
                    yield values, how

    def _products(self, others: Sequence[FailingValues]) -> Iterator[FailingValues]:
        """Yield products of two numbers that tell all points that failed alike from those that worked.

        Three failed points show one, two of which have more of the one number and less of the other.

        Args:
            others: Single values that may be to blame instead.
        """
        failed = [one for one in self.failed if not any(other.are_in(one[0], self.space) for other in others)]
        numbers = [knob.path for knob in self.space.knobs if knob.ordered and is_number(number_of(knob.choices[-1]))]
        for (one, other), ending in product(combinations(numbers, 2), dict.fromkeys(how for _, how in failed)):
            points = [{one: point[one], other: point[other]} for point, how in failed if how is ending]
            points.sort(key=lambda point: _product(point, point))
            trade = any(
                (_number(a[one]) - _number(b[one])) * (_number(a[other]) - _number(b[other])) < 0.0
                for a, b in combinations(points, 2)
            )
            if len(points) >= 3 and trade:
                values, count = points[0], len(points)
                least = FailingValues(
                    values=values, ending=ending, points=count, is_product=True, only_with=self.only_with
                )
                if not any(least.are_in(point, self.space) for point in self.worked):
                    yield least

    def _work(self, values: Values) -> bool:
        return any(_holds(point, values, self.space) for point in self.worked)

    def _are_shown(self, one: FailingValues) -> bool:
        """Return whether a point fails that changes nothing else; a single value may be further away there."""
        if self.surely_fails({**self.space.baseline, **self.only_with, **one.values}):
            return True
        telling = (point for point, how in self.failed if how is one.ending and point not in self.brief)
        changes = [self._changes(point) for point in telling]
        return any(
            change == one.values
            or (len(one.values) == 1 and change.keys() == one.values.keys() and _holds(change, one.values, self.space))
            for change in changes
        )

    def _nearest(self, values: Values) -> Values:
        """Return of a single value the one nearest to today's that nothing shows to work; of two the same two."""
        if len(values) > 1:
            return values
        ((path, value),) = values.items()
        knob = self.space.knob(path)
        today = knob.index(knob.baseline) or 0
        nearer = [
            choice for choice in knob.choices if _is_as_far(knob, value, choice) and not self._work({path: choice})
        ]
        return {path: min(nearer, key=lambda choice: abs((knob.index(choice) or 0) - today), default=value)}


def _product(point: Values, paths: Iterable[str]) -> float:
    return prod(_number(point[path]) for path in paths)


def _number(value: Scalar) -> float:
    """Return a value as a factor: 1 for none, or an automatic one."""
    number = number_of(value)
    return max(1.0, float(number)) if isinstance(number, int | float) else 1.0


def _holds(point: Values, values: Values, space: Space) -> bool:
    """Return whether a point has these values, or values further from today's."""
    return all(_is_as_far(space.knob(path), point[path], value) for path, value in values.items())


def _is_as_far(knob: Knob, value: Scalar, than: Scalar) -> bool:
    """Return whether a value is at least as far from today's as another, on the same side; of categories, the same."""
    place, other, today = knob.index(value), knob.index(than), knob.index(knob.baseline)
    assert place is not None
    assert other is not None
    assert today is not None
    return place >= other > today or place <= other < today if knob.ordered else place == other

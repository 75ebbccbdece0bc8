"""Feasibility: points predicted to fail: invalid, out of memory, or with a value that always fails."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from autotune.config.keys import scalar_text
from autotune.records import Ending, Machine, Values
from autotune.sampler.failing_values import FailingValues, blame
from autotune.sampler.observations import Observation
from autotune.space.catalog import Demand, traits_of
from autotune.space.knob import Knob, number_of, same_scalar
from autotune.space.space import Space, is_batch


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """GPU, host or shared memory.

    Attributes:
        more: Knobs whose larger values need more.
        same: Knobs whose other values may need more or less.
        is_product: Whether the need is the product of `more`.
    """

    ending: Ending
    more: Sequence[Knob]
    same: Sequence[Knob] = ()
    is_product: bool = False

    def sizes(self, values: Values) -> Values:
        """Return the values that need more than the baseline, or else all."""
        sizes = {knob.path: values[knob.path] for knob in self.more}
        raised = {knob.path for knob in self.more if not same_scalar(values[knob.path], knob.baseline)}
        return {path: value for path, value in sizes.items() if path in raised} or sizes

    def needs_as_much(self, values: Values, other: Values) -> bool:
        if not self.more:
            return False
        if self.is_product:
            needs, lacked = (prod(max(1.0, _size(one, knob)) for knob in self.more) for one in (values, other))
            return needs >= lacked
        is_as_large = all(_size(values, knob) >= _size(other, knob) for knob in self.more)
        return is_as_large and _are_equal(values, other, self.same)


@dataclass(frozen=True, kw_only=True)
class MemoryHint:
    """Point, perhaps between choices, that ran out of memory on another machine with at least as much."""

    values: Values
    ending: Ending


class Feasibility:
    """Predictor of failures.

    Args:
        memory_margin: Fraction of memory that must stay free, 0 to 1.
        failing_in_pairs: Values that fail only in trials longer than those observed.
    """

    def __init__(
        self,
        space: Space,
        observations: Mapping[str, Observation],
        machine: Machine,
        *,
        memory_margin: float,
        hints: Sequence[MemoryHint] = (),
        failing_in_pairs: Sequence[FailingValues] = (),
    ) -> None:
        self._space = space
        self._batches = [knob for knob in space.knobs if is_batch(knob)]
        demands = [(knob, traits_of(knob)) for knob in space.knobs]
        kinds = ((Ending.OUT_OF_GPU_MEMORY, "gpu_memory"), (Ending.OUT_OF_HOST_MEMORY, "host_memory"))
        self._grown = [
            _Memory(
                ending=ending,
                more=[knob for knob, traits in demands if getattr(traits, kind) is Demand.GROWS],
                same=[knob for knob, traits in demands if getattr(traits, kind) is Demand.VARIES],
            )
            for ending, kind in kinds
        ]
        # each worker of a loader keeps its prefetched batches in shared memory
        prefetching = [knob for knob, traits in demands if traits.host_memory is Demand.GROWS and knob.ordered]
        shared = _Memory(ending=Ending.OUT_OF_SHARED_MEMORY, more=prefetching, is_product=True)
        self._memories = [*self._grown, shared]
        self._good = [one for one in observations.values() if one.scores]
        self._failed = [one for one in observations.values() if not one.scores and one.endings]
        found = blame(space, observations, lambda values: self._why_out_of_memory(values) is not None)
        self.blame = replace(found, failing=[*found.failing, *failing_in_pairs])
        self._failing_in_pairs = failing_in_pairs
        self._host_limit_bytes = (1 - memory_margin) * machine.memory_bytes
        self._memory_margin = memory_margin
        self._hints = hints
        self._gpu_bytes = [gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes is not None]

    def why_not(self, values: Values) -> str | None:
        """Return why a point is predicted to fail, if it is."""
        always = (one for one in self.blame.failing if one.are_in(values, self._space))
        return (
            self._space.why_infeasible(values)
            or next((f"{one.text(self._space)} fails {one.where(self._space)}" for one in always), None)
            or self._why_out_of_memory(values)
            or self._why_over_limit(values)
        )

    def what_fails(self) -> dict[tuple[Ending, frozenset[str]], str]:
        """Return a sentence for each exclusion, by ending, paths and condition."""
        found = {}
        for one in self.blame.failing:
            how = f"{one.ending.value}, {one.points} points"
            where = "in confirming pairs" if one in self._failing_in_pairs else one.where(self._space)
            what = f"{one.text(self._space)} fails {where} ({how}) and is excluded"
            found[one.ending, frozenset((*one.values, where))] = f"{what}; {one.remedy(self._space)}."
        for ending, sizes in self._too_large():
            point = {**self._space.baseline, **sizes}
            if not any(one.ending is ending and one.are_in(point, self._space) for one in self.blame.failing):
                what = f"{_text(sizes)} failed: {ending.value}; points that need as much memory are excluded."
                found[ending, frozenset(sizes)] = what
        return found

    def is_doubtful(self, values: Values) -> bool:
        """Return whether a point needs as much memory as a hint, unlike all that succeeded."""
        return any(self._lacked(values, hint.values, {hint.ending}) for hint in self._hints)

    def _lacked(self, values: Values, failed: Values, endings: Collection[Ending]) -> _Memory | None:
        """Return the memory of which a point needs as much as a failed one, unless such a need also succeeded."""
        for memory in self._memories:
            has_lacked = memory.ending in endings and memory.needs_as_much(values, failed)
            if has_lacked and not any(memory.needs_as_much(other.values, failed) for other in self._good):
                return memory
        return None

    # Memory

    def _too_large(self) -> Iterator[tuple[Ending, Values]]:
        """Yield the smallest points that ran out of each kind of memory."""
        for memory in self._memories:
            least: list[Values] = []
            for one in self._failed:
                has_lacked = self._lacked(one.values, one.values, {memory.ending} & set(one.endings))
                if has_lacked and not any(memory.needs_as_much(one.values, other) for other in least):
                    least = [other for other in least if not memory.needs_as_much(other, one.values)] + [one.values]
            yield from ((memory.ending, memory.sizes(values)) for values in least)

    def _why_out_of_memory(self, values: Values) -> str | None:
        for observation in self._failed:
            if memory := self._lacked(values, observation.values, observation.endings):
                return f"{_text(memory.sizes(observation.values))} failed: {memory.ending.value}"
        return None

    def _why_over_limit(self, values: Values) -> str | None:
        """Extrapolate peak memory linearly in the batch size or another knob."""
        for what, memory in zip(("GPU", "host"), self._grown, strict=True):
            others = [[knob] for knob in memory.more if knob not in self._batches and knob.ordered]
            for knobs in (self._batches, *others):
                if knobs and (why := self._extrapolated_excess(values, knobs, memory, what)):
                    return why
        return None

    def _extrapolated_excess(self, values: Values, knobs: Sequence[Knob], memory: _Memory, what: str) -> str | None:
        size = max(_size(values, knob) for knob in knobs)
        fixed = [*memory.same, *(knob for knob in memory.more if knob not in knobs)]
        if any(
            max(_size(one.values, knob) for knob in knobs) >= size and _are_equal(one.values, values, fixed)
            for one in reversed(self._good)
        ):
            return None  # extrapolate only beyond measured sizes
        observations = [one for one in self._good if _are_equal(one.values, values, fixed)]
        limit_bytes = self._gpu_limit_bytes(observations) if what == "GPU" else self._host_limit_bytes
        if limit_bytes is None:
            return None
        seen: dict[float, float] = {}
        for one in observations:
            used = one.gpu_memory_bytes if what == "GPU" else one.host_memory_bytes
            if used is not None:
                other = max(_size(one.values, knob) for knob in knobs)
                seen[other] = max(used, seen.get(other, 0.0))
        # No slope from a single size, or if the framework reserves all memory.
        if len(seen) < 2 or size <= max(seen) or max(seen.values()) > limit_bytes:
            return None
        slope, base = np.polyfit(list(seen), list(seen.values()), 1)
        expected_bytes = base + slope * size
        if slope <= 0 or expected_bytes <= limit_bytes:
            return None
        of = "a batch of" if knobs == self._batches else f"{knobs[0].path}:"
        return f"{of} {size:g} would need about {expected_bytes / 2**30:.1f} GiB of {what} memory"

    def _gpu_limit_bytes(self, observations: Iterable[Observation]) -> float | None:
        totals = [one.gpu_memory_total_bytes for one in observations]
        sizes = [total for total in totals if total is not None] or self._gpu_bytes
        return (1 - self._memory_margin) * min(sizes) if sizes else None


def _text(values: Values) -> str:
    return " with ".join(f"{path}: {scalar_text(value)}" for path, value in values.items())


def _size(values: Values, knob: Knob) -> float:
    value = number_of(values[knob.path])
    return float(value) if isinstance(value, int | float) else 0.0  # automatic: unknown


def _are_equal(one: Values, other: Values, knobs: Iterable[Knob]) -> bool:
    return all(same_scalar(one[knob.path], other[knob.path]) for knob in knobs)

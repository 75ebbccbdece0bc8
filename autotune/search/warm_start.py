"""Warm start: a search first tries the best points of studies of similar trainings, on any hardware."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from autotune.errors import StudyError
from autotune.records import NOT_COMPARED, Ending, Machine, Scalar, TrialRecord, Values
from autotune.sampler.feasibility import MemoryHint
from autotune.sampler.observations import Observation, Observations, expected_trial_sd, of_space
from autotune.search.confirm import Candidate, better_than_baseline
from autotune.search.problem import Problem
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, is_number
from autotune.space.space import Space
from autotune.study import profiles
from autotune.study.profiles import ExhaustedPoint, Likeness, Profile, ProfilePoint, Sibling
from autotune.study.record import StudyRecord

KNOWN_POINTS = 10
"""Number of recorded points at which a study's own model knows more than another machine's points."""

_INTERLEAVE = 2  # every other initial proposal is imported


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Imported points and memory limits of one search.

    Attributes:
        hints: Points that ran out of memory elsewhere with at least as much.
    """

    points: tuple[ImportedPoint, ...] = ()
    hints: tuple[MemoryHint, ...] = ()

    def among(
        self,
        heuristics: Iterator[Values],
        space: Space,
        observations: Mapping[str, Observation],
        is_doubtful: Callable[[Values], bool],
    ) -> Iterator[Values]:
        """Yield initial proposals: imported points interleaved with heuristics, doubtful ones last."""
        waiting, imported_tried = self._waiting(space, observations)
        sure = [values for values in waiting if not is_doubtful(values)]
        tried = len(observations) - 1  # without the baseline
        if sure and tried >= _INTERLEAVE * imported_tried:
            yield sure[0]
        doubtful = [values for values in waiting if is_doubtful(values)]
        for values in heuristics:
            if is_doubtful(values):
                doubtful.append(values)
            else:
                yield values
        yield from sure
        yield from doubtful

    def _waiting(self, space: Space, observations: Mapping[str, Observation]) -> tuple[list[Values], int]:
        """Return the imported points still to try, and the number tried."""
        baseline = observations.get(space.name(space.baseline))
        waiting: list[tuple[str, Values]] = []
        disappointing: set[str] = set()
        imported_tried = 0
        for point in self.points:
            values = {
                knob.path: knob.baseline if knob.index(point.values[knob.path]) is None else point.values[knob.path]
                for knob in space.knobs
            }
            study, known = point.sibling.profile.study, observations.get(space.name(values))
            if known is None:
                waiting.append((study, values))
                continue
            imported_tried += 1
            if baseline is not None and known.scores and known.mean <= baseline.mean:
                disappointing.add(study)  # its optimum is elsewhere
        return [values for study, values in waiting if study not in disappointing], imported_tried

    @property
    def sentence(self) -> str:
        if not self.points:
            return ""
        origins = dict.fromkeys(point.sibling.text for point in self.points)
        best = max(self.points, key=lambda point: point.gain)
        count = "a point" if len(self.points) == 1 else f"the best {len(self.points)} points"
        gain = f"up to {math.exp(best.gain):.2f}x today's score there"
        starts = f"The search starts with {count} of {' and of '.join(origins)} ({gain})"
        return f"{starts}; their gain here is re-measured. --no-warm-start skips them."

    def of_answer(self, values: Values, trials: Sequence[TrialRecord], space: Space) -> str:
        """Return a remark on the imported point that became the answer; empty if none did."""
        name, baseline = space.name(values), space.name(space.baseline)
        for point in self.points:
            if space.is_named(name, point.values):
                tried = [one for one in dict.fromkeys(trial.point for trial in trials) if one != baseline]
                return f"The answer, point {tried.index(name) + 1} of those tried, came from {point.sibling.text}."
        return ""


def warm_start(problem: Problem, records: Sequence[TrialRecord] = ()) -> WarmStart:
    """Return the warm start of a problem; trials of earlier code in its own records also give points."""
    try:
        own = _empty_profile(problem)
    except ValueError:  # keys or texts beyond what a profile holds
        return WarmStart()
    found = _of_earlier_code(problem, records)
    found += profiles.siblings(own, profiles.ProfileIndex(problem.storage, problem.state.studies).profiles())
    margin = problem.limits.memory_margin
    points = imported_points(problem.space, found, problem.machine, memory_margin=margin)
    return WarmStart(points=tuple(points), hints=tuple(memory_hints(problem.space, found, problem.machine)))


def keep_profile(problem: Problem, study: StudyRecord, better: Sequence[Candidate], sd: float, utc: str) -> None:
    """Store the profile of a study for others, if possible."""
    try:
        profile = profile_of(problem, study.records(), better, sd, utc)
    except ValueError:  # keys or values beyond what a profile holds
        return
    with suppress(StudyError):
        study.note(profiles.PROFILE, profiles.attribute_of(profile))
    with suppress(OSError):
        profiles.ProfileIndex(problem.storage, problem.state.studies).keep(profile)


def profile_of(
    problem: Problem, records: Sequence[TrialRecord], better: Sequence[Candidate], sd: float, utc: str
) -> Profile:
    """Return the profile of a study."""
    points = [
        ProfilePoint(
            values=candidate.observation.values,
            gain=candidate.gain,
            sd=sd / math.sqrt(max(1, len(candidate.observation.scores))),
            gpu_memory_bytes=candidate.observation.gpu_memory_bytes,
            host_memory_bytes=candidate.observation.host_memory_bytes,
        )
        for candidate in better
        if candidate.gain > 0.0
    ]
    paths = {knob.path for knob in problem.space.knobs}
    lacked = [one for one in records if one.ending in (Ending.OUT_OF_GPU_MEMORY, Ending.OUT_OF_HOST_MEMORY)]
    here = (one for one in lacked if one.values.keys() <= paths)
    exhausted = {one.point: ExhaustedPoint(values=one.values, ending=one.ending) for one in here}
    return replace(
        _empty_profile(problem),
        points=profiles.distinct(points, profiles.MOST_POINTS),
        exhausted=tuple(exhausted.values())[-profiles.MOST_EXHAUSTED :],
        ended_utc=utc,
    )


def _of_earlier_code(problem: Problem, records: Sequence[TrialRecord]) -> list[Sibling]:
    current = {trial.number for trial in problem.code.of_now(records)}
    others = [trial for trial in records if trial.number not in current and trial.purpose not in NOT_COMPARED]
    earlier = of_space((trial for trial in others if trial.shares_code_with(others[-1])), problem.space)
    observations = Observations(problem.space, problem.objective, earlier)
    believed = {name: one.mean for name, one in observations.items() if one.scores}
    better = better_than_baseline(observations, believed, problem.space) if believed else []
    if not better:
        return []
    profile = profile_of(problem, earlier, better, expected_trial_sd(observations), earlier[-1].ended_utc)
    return [Sibling(profile=profile, likeness=Likeness.EARLIER_CODE, distance=0.0)]


def _empty_profile(problem: Problem) -> Profile:
    """Return the profile of a study without trials."""
    return Profile(
        study=problem.study,
        training=problem.place.training,
        command=problem.place.identity.command_hash,
        objective=problem.objective.name,
        kinds={knob.path: knob.kind for knob in problem.space.knobs},
        hardware=profiles.Hardware.of(problem.machine),
        points=(),
        exhausted=(),
        ended_utc="",
    )


MOST_IMPORTED_POINTS = 4
"""Most imported points of a search."""

_MOST_OF_A_SIBLING = {Likeness.SAME_COMMAND: 2, Likeness.SAME_KNOBS: 1}  # of others, 3


@dataclass(frozen=True, kw_only=True)
class ImportedPoint:
    """Point of another study, to try here.

    Attributes:
        gain: In ln score over the baseline there.
    """

    values: Values
    sibling: Sibling
    gain: float


def imported_points(
    space: Space, found: Iterable[Sibling], machine: Machine, *, memory_margin: float
) -> list[ImportedPoint]:
    """Return distinct points to try: by rank in their study, then by similarity of the study."""
    columns = [
        [
            ImportedPoint(
                values=_values_here(space, sibling.profile, point, machine, memory_margin),
                sibling=sibling,
                gain=point.gain,
            )
            for point in sibling.profile.points[: _MOST_OF_A_SIBLING.get(sibling.likeness, 3)]
        ]
        for sibling in found
    ]
    baseline = space.indices(space.baseline)
    chosen: dict[tuple[int, ...], ImportedPoint] = {}
    for rank in range(max(map(len, columns), default=0)):
        for column in columns:
            for point in column[rank : rank + 1]:
                if (place := space.indices(point.values)) != baseline:
                    chosen.setdefault(place, point)
    return list(chosen.values())[:MOST_IMPORTED_POINTS]


def memory_hints(space: Space, found: Iterable[Sibling], machine: Machine) -> list[MemoryHint]:
    """Return the points that ran out of memory elsewhere with at least as much."""
    return [
        MemoryHint(
            values={**space.baseline, **_original_values(space, sibling.profile, point.values)}, ending=point.ending
        )
        for sibling in found
        if sibling.likeness in (Likeness.EARLIER_CODE, Likeness.SAME_TRAINING)
        for point in sibling.profile.exhausted
        if _had_as_much(sibling, machine, point.ending)
    ]


def _had_as_much(sibling: Sibling, machine: Machine, ending: Ending) -> bool:
    hardware = sibling.profile.hardware
    if ending is Ending.OUT_OF_HOST_MEMORY:
        return machine.memory_bytes <= hardware.memory_bytes
    here, there = _gpu_memory_bytes(machine), hardware.gpu_memory_bytes
    return here is not None and there is not None and here <= there


def _values_here(space: Space, profile: Profile, point: ProfilePoint, machine: Machine, memory_margin: float) -> Values:
    """Return a point's values here: the nearest choices, else the baseline's.

    A batch that needs more memory than available shrinks, and a worker per core there becomes one per core here.
    """
    of_gpu = _share(_gpu_memory_bytes(machine), point.gpu_memory_bytes)
    fits = (1.0 - memory_margin) * min(of_gpu, _share(machine.memory_bytes, point.host_memory_bytes))
    values = {**space.baseline}
    for path, value, near in _placed(space, profile, point.values):
        knob = space.knob(path)
        values[path], counts = near, traits_of(knob).counts
        if counts == "samples" and is_number(value) and fits < 1.0:
            values[path] = _largest(knob, fits * value)
        elif counts == "workers" and is_number(value) and value >= profile.hardware.cpu_cores:
            index = nearest(knob, machine.cpu_cores)
            values[path] = near if index is None else knob.choices[index]
    return space.reset_inactive(values)


def _share(memory_bytes: int | None, used_bytes: int | None) -> float:
    """Return the available memory relative to that used elsewhere; infinity if unknown."""
    return memory_bytes / used_bytes if memory_bytes and used_bytes else math.inf


def _gpu_memory_bytes(machine: Machine) -> int | None:
    return min((gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes is not None), default=None)


def _largest(knob: Knob, most: float) -> Scalar:
    fitting = [choice for choice in knob.choices if is_number(choice) and choice <= most]
    return fitting[-1] if fitting else knob.choices[0]


def _original_values(space: Space, profile: Profile, values: Values) -> Values:
    """Return a point's values for the knobs here, with numbers as they were."""
    placed = _placed(space, profile, values)
    return {path: value if is_number(near) and is_number(value) else near for path, value, near in placed}


def _placed(space: Space, profile: Profile, values: Values) -> Iterator[tuple[str, Scalar, Scalar]]:
    """Yield (path, value, nearest choice) for each value that has a knob here."""
    for knob in space.knobs:
        path = _path_there(knob, space, profile.kinds)
        if path is not None and path in values:
            index = nearest(knob, values[path])
            if index is not None:
                yield knob.path, values[path], knob.choices[index]


def _path_there(knob: Knob, space: Space, kinds: Mapping[str, str | None]) -> str | None:
    if knob.path in kinds:
        return knob.path if kinds[knob.path] == knob.kind else None
    there = [path for path, kind in kinds.items() if knob.kind is not None and kind == knob.kind]
    here = [other for other in space.knobs if other.kind == knob.kind]
    return there[0] if len(there) == len(here) == 1 else None


def nearest(knob: Knob, value: Scalar) -> int | None:
    """Return the index of the choice nearest to a value, by ratio if all are positive."""
    index = knob.index(value)
    if index is not None or not knob.ordered or not is_number(value):
        return index
    numbers = [float(choice) for choice in knob.choices if isinstance(choice, int | float)]
    by_ratio = min(*numbers, value) > 0
    distances = [abs(math.log(number / value)) if by_ratio else abs(number - value) for number in numbers]
    return distances.index(min(distances))

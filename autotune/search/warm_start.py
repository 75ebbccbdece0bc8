"""Warm start: a search that begins with the best points of studies of like trainings, on this hardware or another.

They are proposals among others, a trial each: no number that was measured elsewhere is mixed with those of this study.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from autotune.errors import StudyError
from autotune.problem.problem import Problem
from autotune.records import NOT_COMPARED, Ending, TrialRecord, Values
from autotune.sampler.feasibility import MemoryHint
from autotune.sampler.observations import Observation, Observations, expected_trial_sd, of_space
from autotune.search.confirm import Candidate, better_than_baseline
from autotune.search.imported_points import ImportedPoint, imported_points, memory_hints
from autotune.space.space import Space
from autotune.study.profile_index import ProfileIndex
from autotune.study.profiles import (
    MOST_EXHAUSTED,
    MOST_POINTS,
    PROFILE,
    ExhaustedPoint,
    Hardware,
    Profile,
    ProfilePoint,
    attribute_of,
    distinct,
)
from autotune.study.record import Study
from autotune.study.siblings import Likeness, Sibling, siblings

KNOWN_POINTS = 10
"""Points on record from which on a study needs no warm start: its own model knows more than another machine."""

_TURNS = 2  # of two proposals at the beginning one is imported, the other an expert's


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Imported points of one search, and what it knows of memory from elsewhere.

    Attributes:
        points: The points, in the order in which they are tried.
        hints: Points that ran out of memory where there was at least as much.
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
        """Yield first proposals: the imported points in turn with those of an expert, what is doubtful last.

        The other points of a study are left out once one of them was no better than today's here: its optimum lies
        elsewhere.

        Args:
            heuristics: Proposals of an expert, the most urgent first.
            space: The space.
            observations: Observation of each point.
            is_doubtful: Returns whether a point may run out of memory, by what is known from elsewhere.
        """
        waiting, made = self._waiting(space, observations)
        sure = [values for values in waiting if not is_doubtful(values)]
        tried = len(observations) - 1  # the baseline is no proposal
        if sure and tried >= _TURNS * made:
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
        """Return the imported points that are still to be tried, and the number of those that were."""
        baseline = observations.get(space.name(space.baseline))
        waiting: list[tuple[str, Values]] = []
        disappointing: set[str] = set()
        made = 0
        for point in self.points:
            values = {
                knob.path: knob.baseline if knob.index(point.values[knob.path]) is None else point.values[knob.path]
                for knob in space.knobs
            }
            study, known = point.sibling.profile.study, observations.get(space.name(values))
            if known is None:
                waiting.append((study, values))
                continue
            made += 1
            if baseline is not None and known.scores and known.mean <= baseline.mean:
                disappointing.add(study)
        return [values for study, values in waiting if study not in disappointing], made

    @property
    def sentence(self) -> str:
        """What the search begins with, for people; empty if it begins with nothing."""
        if not self.points:
            return ""
        origins = dict.fromkeys(point.sibling.text for point in self.points)
        best = max(self.points, key=lambda point: point.gain)
        count = "a point" if len(self.points) == 1 else f"the best {len(self.points)} points"
        return (
            f"A search begins with {count} of {' and of '.join(origins)} (up to {_times(best.gain)} today's score "
            "there); what they are worth here is measured anew. --no-warm-start leaves them out."
        )

    def of_answer(self, values: Values, trials: Sequence[TrialRecord], space: Space) -> str:
        """Return which imported point became the answer, and when it was tried; empty if none did.

        Args:
            values: The answer.
            trials: All trials of the study, oldest first.
            space: The space.
        """
        name = space.name(values)
        for point in self.points:
            if space.contains(point.values) and space.name(point.values) == name:
                tried = [one for one in dict.fromkeys(trial.point for trial in trials) if one != _baseline_name(space)]
                return (
                    f"The answer is the {_ordinal(tried.index(name) + 1)} point that was tried; it came from "
                    f"{point.sibling.text}."
                )
        return ""


def warm_start(problem: Problem, records: Sequence[TrialRecord] = ()) -> WarmStart:
    """Return what a search of a problem may begin with; nothing where no study of a like training is found.

    Args:
        problem: What is tuned.
        records: The study's own record: what trials of the trainer's code as it was before have shown is worth a trial,
            and no more.
    """
    try:
        own = _own(problem)
    except ValueError:  # keys or texts beyond what a profile holds
        return WarmStart()
    found = _of_earlier_code(problem, records)
    found += siblings(own, ProfileIndex(problem.storage, problem.state.studies).profiles())
    margin = problem.limits.memory_margin
    return WarmStart(
        points=tuple(imported_points(problem.space, found, problem.machine, memory_margin=margin)),
        hints=tuple(memory_hints(problem.space, found, problem.machine)),
    )


def keep_profile(problem: Problem, study: Study, better: Sequence[Candidate], sd: float, utc: str) -> None:
    """Leave the profile of a study for others, as far as it can be written.

    Args:
        problem: What was tuned.
        study: Its study.
        better: Points that are believed to be better than today's, best first.
        sd: Standard deviation of ln score between trials of one point.
        utc: The present, ISO 8601.
    """
    try:
        profile = profile_of(problem, study.records(), better, sd, utc)
    except ValueError:  # keys or values beyond what a profile holds
        return
    with suppress(StudyError):
        study.note(PROFILE, attribute_of(profile))
    with suppress(OSError):
        ProfileIndex(problem.storage, problem.state.studies).keep(profile)


def profile_of(
    problem: Problem, records: Sequence[TrialRecord], better: Sequence[Candidate], sd: float, utc: str
) -> Profile:
    """Return the profile of a study; for the arguments see `keep_profile`."""
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
    space = problem.space
    exhausted = {
        trial.point: ExhaustedPoint(values=trial.values, ending=trial.ending)
        for trial in records
        if trial.ending in (Ending.OUT_OF_GPU_MEMORY, Ending.OUT_OF_HOST_MEMORY)
        and trial.values.keys() <= {knob.path for knob in space.knobs}
    }
    return replace(
        _own(problem),
        points=distinct(points, MOST_POINTS),
        exhausted=tuple(exhausted.values())[-MOST_EXHAUSTED:],
        ended_utc=utc,
    )


def _of_earlier_code(problem: Problem, records: Sequence[TrialRecord]) -> list[Sibling]:
    """Return the study's trials of the code before the present one as a sibling of it."""
    current = {trial.number for trial in problem.of_this_code(records)}
    others = [trial for trial in records if trial.number not in current and trial.purpose not in NOT_COMPARED]
    earlier = of_space((trial for trial in others if trial.shares_code_with(others[-1])), problem.space)
    observations = Observations(problem.space, problem.objective, earlier)
    believed = {name: one.mean for name, one in observations.items() if one.scores}
    better = better_than_baseline(observations, believed, problem.space) if believed else []
    if not better:
        return []
    profile = profile_of(problem, earlier, better, expected_trial_sd(observations), earlier[-1].ended_utc)
    return [Sibling(profile=profile, likeness=Likeness.EARLIER_CODE, distance=0.0)]


def _own(problem: Problem) -> Profile:
    """Return the profile of a problem's study before its first trial."""
    return Profile(
        study=problem.study,
        training=problem.training,
        command=problem.identity.command_hash,
        objective=problem.objective.name,
        kinds={knob.path: knob.kind for knob in problem.space.knobs},
        hardware=Hardware.of(problem.machine),
        points=(),
        exhausted=(),
        ended_utc="",
    )


def _baseline_name(space: Space) -> str:
    return space.name(space.baseline)


def _times(gain: float) -> str:
    return f"{math.exp(gain):.2f}x"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

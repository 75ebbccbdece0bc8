"""Scope of a search: the knobs and values that are varied now, as what is known of the trainer widens or narrows it."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from autotune.measure.phases import CANNOT_MATTER
from autotune.records import Purpose, Scalar, TrialRecord, Values
from autotune.sampler.importance import without_turning
from autotune.sampler.observations import of_space
from autotune.search.findings import Findings
from autotune.search.problem import Problem
from autotune.search.trials import SearchTrials
from autotune.space.catalog import traits_of
from autotune.space.knob import same_scalar
from autotune.space.space import Space

_STARVED, _IDLE = 0.2, 0.7  # share of the time that waits for data, and of the cores that are busy meanwhile
_LEAP = 4


class Scope:
    """Scope of a search.

    Attributes:
        space: What is searched: the problem's, without what was found to be of no use.
        filling: True if caches take too long to fill, and are filled in every trial.
        outposts: Points beyond what was tried so far, to be tried next.
    """

    def __init__(self, problem: Problem, findings: Findings, trials: SearchTrials) -> None:
        self._problem = problem
        self._findings = findings
        self._trials = trials
        self._whole = problem.space
        self._further: dict[str, float] = {}
        self._irrelevant_knobs: IrrelevantKnobs | None = None
        self.filling = False
        self.outposts: list[Values] = []
        self.update()

    def update(self) -> None:
        """Follow what is known of the trainer by now."""
        self._further = self._further_on_record()
        self.space = without_turning(self._whole.within_reach(self._further), self._findings.inert)

    @property
    def is_outgrown(self) -> bool:
        """Whether the record has trials of values beyond it."""
        return self._further_on_record() != self._further

    def allows(self, values: Values) -> bool:
        """Return whether a point leaves the knobs alone that cannot matter yet."""
        return self._irrelevant_knobs is None or self._irrelevant_knobs.allows(values)

    def leave_alone(self, point: str, machine: str) -> str:
        """Leave those knobs alone that cannot matter yet, by what phases of a point have shown.

        Returns:
            Which, and why; empty if there are none.
        """
        self._irrelevant_knobs = irrelevant_knobs(self._trials.of_study(), self.space, point, machine)
        return self._irrelevant_knobs.why if self._irrelevant_knobs else ""

    def take_up_again(self) -> None:
        """Search over the knobs that were left alone, once training is so much faster that they may matter."""
        alone = self._irrelevant_knobs
        speeds = [(trial.point, trial.comparable.speed) for trial in self._trials.own if trial.comparable]
        then = [speed for point, speed in speeds if alone and point == alone.point]
        if alone and then and max(speed for _, speed in speeds) >= alone.until * median(then):
            self._irrelevant_knobs = None
            paths = ", ".join(sorted(alone.paths))
            self._findings.remark(f"What limits training has changed: {paths} may matter now.")

    def leave_caches_alone(self) -> None:
        """Vary caches no longer, from the next update on; those of today's config are filled in every trial."""
        self.filling = self.space.settles(self._problem.space.baseline)
        self._whole = self._whole.without_settling()

    def reach_further(self, record: TrialRecord) -> bool:
        """Search larger values, too, of what the best point has at its largest, if that waits with the CPU idle.

        Args:
            record: Latest trial of the best point.

        Returns:
            Whether the scope is wider after the next update.
        """
        measured = record.comparable
        if measured is None:
            return False
        waits, busy, cores = measured.data_wait_fraction, measured.cpu_cores, self._problem.machine.cpu_cores
        if waits is None or busy is None or waits < _STARVED or busy > _IDLE * cores:
            return False
        why = "training waits for data, with the CPU idle"
        memory_bytes = (1.0 - self._problem.limits.memory_margin) * self._problem.machine.memory_bytes
        leap = min(_LEAP, memory_bytes / (measured.peak_memory_bytes or 1))  # each worker may need as much as all now
        outpost: dict[str, Scalar] = {}
        for knob in self._whole.knobs:
            value = record.values[knob.path]
            numbers = [choice for choice in knob.choices if isinstance(choice, int | float)]
            if not knob.ordered or not isinstance(value, int | float) or knob.path in self._findings.inert:
                continue
            # 0 is the framework's own choice, or nothing ahead
            further = max(choice for choice in numbers if choice <= max(value, leap * (value or cores)))
            if knob.reach is not None and further > self._further.get(knob.path, knob.reach):
                outpost[knob.path] = self._further[knob.path] = further
            elif value == numbers[-1] and traits_of(knob).beyond:
                self._findings.say(
                    f"At {knob.path}: {value}, the largest that is tried, {why}: list larger values under knobs: to "
                    "try them."
                )
        if outpost:
            # together: more samples at a time want more threads
            self.outposts.append({**record.values, **outpost})
            tried = " and ".join(f"{path} up to {value}" for path, value in outpost.items())
            self._findings.remark(f"{why[0].upper()}{why[1:]}: a search tries {tried}.")
        return bool(outpost)

    def _further_on_record(self) -> dict[str, float]:
        """Return the largest values of knobs that are tried by now, where some trial was beyond `Knob.reach`."""
        further = dict(self._further)
        for trial in of_space(self._trials.of_study(), self._problem.space):
            for knob in self._whole.knobs:
                value = trial.values[knob.path]
                if knob.reach is not None and isinstance(value, int | float):
                    further[knob.path] = max(value, further.get(knob.path, knob.reach))
        return further


@dataclass(frozen=True, kw_only=True)
class IrrelevantKnobs:
    """Knobs that cannot matter yet.

    Attributes:
        point: Name of the point that was taken through phases.
        until: Speed over that point's from which on they may matter.
    """

    paths: frozenset[str]
    point: str
    values: Values
    until: float
    why: str

    def allows(self, values: Values) -> bool:
        """Return whether a point leaves these knobs alone."""
        return all(same_scalar(values[path], self.values[path]) for path in self.paths)


def irrelevant_knobs(records: Iterable[TrialRecord], space: Space, point: str, machine: str) -> IrrelevantKnobs | None:
    """Return the knobs that cannot matter by what the latest trial in phases of a point has shown, if any."""
    shown = [
        (trial.values, trial.conditions)
        for trial in records
        if trial.purpose is Purpose.DIAGNOSE
        and trial.point == point
        and trial.machine == machine
        and trial.conditions.free_data_ratio
        and trial.conditions.free_step_ratio
    ]
    if not shown:
        return None
    values, latest = shown[-1]
    free_data, free_step = latest.free_data_ratio_high or 0.0, latest.free_step_ratio_high or 0.0
    if min(free_data, free_step) > CANNOT_MATTER:
        return None
    on_step = free_step < free_data
    free = [knob for knob in space.knobs if len(knob.choices) > 1]
    paths = frozenset(knob.path for knob in free if traits_of(knob).on_step is on_step)
    if not 0 < len(paths) < len(free):
        return None
    what, other = ("the step", "the input") if on_step else ("the input", "the step")
    most = free_step if on_step else free_data
    return IrrelevantKnobs(
        paths=paths,
        point=point,
        values=values,
        until=0.8 * ((latest.free_data_ratio if on_step else latest.free_step_ratio) or 0.0),
        why=f"{other} is the limit: with {what} free, training would be at most {most:.2f}x as fast; "
        f"{', '.join(sorted(paths))} {'is' if len(paths) == 1 else 'are'} left alone for now",
    )

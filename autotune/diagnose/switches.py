"""Switches: changes of one knob each, their trials interleaved with today's config, and their gains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.config.keys import counted, scalar_text
from autotune.diagnose.findings import (
    CheckResult,
    GainBasis,
    Issue,
    Limit,
    Recommendation,
    Severity,
    ratio_text,
)
from autotune.measure.phases import CANNOT_MATTER, Bounds
from autotune.measure.statistics import pooled_variance, student_t_quantile
from autotune.records import DataFinding, Ratio, Scalar, TrialPhase, TrialRecord, Values
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, Label, is_number, number_of, same_scalar
from autotune.space.space import Space
from autotune.study.data_effects import label_found


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Change of one knob with the knobs that it needs, or several such changes.

    Attributes:
        changes: Values that differ from today's.
    """

    knobs: tuple[Knob, ...]
    values: Values
    changes: Values
    label: Label

    @property
    def on_step(self) -> bool:
        return any(traits_of(knob).on_step for knob in self.knobs)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Speed ratio of a switch to today's config, or why it has none, and the comparison of the data."""

    switch: Switch
    gain: Ratio | None
    why_not: str = ""
    data: DataFinding | None = None


@dataclass(frozen=True, kw_only=True)
class SwitchPlan:
    """Plan of the switches to try, the most promising first.

    Attributes:
        irrelevant: Knobs that cannot matter.
        not_tried: Switches that may help, but need more than a few short trials.
    """

    tried: tuple[Switch, ...]
    irrelevant: tuple[Knob, ...] = ()
    not_tried: tuple[Switch, ...] = ()

    def without(self, known: Sequence[Switch], *, most: int) -> "SwitchPlan":
        """Return the plan without switches of known gain, and with at most `most` to try."""
        tried = [one for one in self.tried if one not in known]
        rest = tuple(one for one in self.not_tried if one not in known)
        return replace(self, tried=tuple(tried[:most]), not_tried=(*rest, *tried[most:]))


def plan_switches(
    space: Space,
    bounds: Bounds | None,
    *,
    may_settle: bool,
    is_compiling: bool = False,
    is_restarting: bool = False,
    is_unsteady: bool = False,
    is_reading: bool = False,
) -> SwitchPlan:
    """Plan the switches that can gain by the bounds, one value for each knob.

    Args:
        may_settle: Whether a trial covers all data, so that caches that fill first can be measured.
        is_compiling: Whether compilation repeats: batches of one shape come first.
        is_restarting: Whether restarting workers takes time: nothing else is gained by keeping them.
        is_unsteady: Whether slow steps recur: tries to turn off XLA, which compiles for each new shape.
        is_reading: Whether loading waits for files: allows more workers than cores.
    """
    found: list[Switch] = []
    not_tried: list[Switch] = []
    irrelevant: list[Knob] = []
    for knob in space.knobs:
        wished = next((value for value in knob.heuristic_values if not same_scalar(value, knob.baseline)), None)
        traits = traits_of(knob)
        fixes_shapes = is_compiling and traits.shapes == "fixed" and knob.baseline is False
        leaves_xla = is_unsteady and traits.shapes == "compiled" and knob.baseline is True
        is_due = fixes_shapes or leaves_xla
        wished = fixes_shapes if is_due else wished
        if is_reading and traits.counts == "workers":
            wished = _workers_that_wait(knob, bounds)
        keeps_workers = knob.kind == "persistent_workers"
        if wished is None or knob.is_inactive(space.baseline) or (keeps_workers and not is_restarting):
            continue
        if bounds is not None and not is_due and not bounds.may_gain(on_step=traits.on_step):
            irrelevant.append(knob)
            continue
        values = space.with_heuristic(space.baseline, knob.path, wished)
        if space.why_infeasible(values) is None:
            settles = space.settles(values) and not may_settle
            (not_tried if settles else found).append(switch_to(space, values, knob))
    # with a certain gain of 10 % with free data, changes of the input come first
    input_first = bounds is not None and bounds.free_data is not None and bounds.free_data.low > 1.1
    # shapes first; a stable sort, so otherwise in the order of the space
    found.sort(key=lambda switch: (not _is_about_shapes(switch), switch.on_step is input_first))
    return SwitchPlan(tried=tuple(found), irrelevant=tuple(irrelevant), not_tried=tuple(not_tried))


def _workers_that_wait(knob: Knob, bounds: Bounds | None) -> Scalar:
    """Return the number of workers that hides waiting for files, twice as many as needed; None if none is larger."""
    choices = [one for one in map(number_of, knob.choices) if isinstance(one, int)]
    today = number_of(knob.baseline)
    now = max(1, today) if isinstance(today, int) else 1
    needed = 2.0 * now * (bounds.free_data.ratio if bounds and bounds.free_data else 2.0)
    more = sorted(one for one in choices if one > now)
    return next((one for one in more if one >= needed), more[-1] if more else None)


def _is_about_shapes(switch: Switch) -> bool:
    shapes = traits_of(switch.knobs[0]).shapes
    return shapes == "fixed" or (shapes == "compiled" and switch.knobs[0].baseline is True)


def explained(steadiness: CheckResult, measured: Sequence[Gain]) -> CheckResult:
    """Attribute slow steps to compilation if turning off XLA helps."""
    about_shapes = (one for one in measured if _is_about_shapes(one.switch))
    gains = [one.gain for one in about_shapes if traits_of(one.switch.knobs[0]).shapes == "compiled"]
    if not any(gain is not None and gain.low > 1.2 for gain in gains):
        return steadiness
    issues = [
        replace(
            one,
            sentence=f"{one.sentence} XLA compiles the step again for each shape: without XLA they are gone.",
            limit=Limit.COMPILING,
        )
        for one in steadiness.issues
    ]
    return replace(steadiness, issues=tuple(issues))


def together(space: Space, measured: Sequence[Gain]) -> Switch | None:
    """Return all improvements that keep the training unchanged as one switch; None if fewer than two."""
    winners = [
        one.switch
        for one in measured
        if one.gain and one.gain.low > CANNOT_MATTER and one.switch.label is Label.SAME_TRAINING
    ]
    values: Values = space.baseline
    for switch in winners:
        values = {**values, **switch.changes}
    if len(winners) < 2 or space.why_infeasible(values) is not None:
        return None
    return switch_to(space, values)


def switch_to(space: Space, values: Values, knob: Knob | None = None) -> Switch:
    """Return the switch from today's values to these; `knob` is the one that needs the others, if any."""
    changes = space.changes(values)
    knobs = (knob,) if knob is not None else tuple(one for one in space.knobs if one.path in changes)
    labels = [space.label_of(path, value) for path, value in changes.items()]
    changing = (label for label in labels if label is not Label.SAME_TRAINING)
    return Switch(knobs=knobs, values=values, changes=changes, label=next(changing, Label.SAME_TRAINING))


def most_switches(most_trials: int) -> int:
    """Return how many switches can be tried twice each, with three trials of today's config, or one for one switch."""
    return max((most_trials - 3) // 2, 1 if most_trials >= 3 else 0)


class SwitchTrials:
    """Results of trials by index of the switch, None for today's config: ln speeds, and failed endings."""

    def __init__(self, switches: Sequence[Switch]) -> None:
        self.switches = list(switches)
        self.speeds: dict[int | None, list[float]] = {None: []}
        self.endings: dict[int | None, str] = {}

    def interleaved(self, most_trials: int) -> list[int | None]:
        """Return the order of trials, a palindrome that cancels a steady drift."""
        if not self.switches:
            return []
        there: list[int | None] = [*range(len(self.switches))]
        order = [*there, None, *reversed(there)]
        return order if len(order) + 2 > most_trials else [None, *order, None]

    def note(self, place: int | None, record: TrialRecord) -> None:
        if record.comparable:
            self.speeds.setdefault(place, []).append(math.log(record.comparable.speed))
        else:
            self.endings[place] = record.detail or record.ending.value

    def gains(self) -> list[Gain]:
        """Return the gains with 95 % intervals from the pooled variance of all trials."""
        variance, df = pooled_variance(list(self.speeds.values()))
        prior_df = 3.0  # prior of the SD of ln speed between trials of one point, 0.025
        variance = (df * variance + prior_df * 0.025**2) / (df + prior_df)
        quantile = student_t_quantile(0.975, df + prior_df)
        baseline, found = self.speeds[None], []
        for place, switch in enumerate(self.switches):
            speeds, ending = self.speeds.get(place, []), self.endings.get(place, "")
            if not speeds or not baseline or ending:
                found.append(Gain(switch=switch, gain=None, why_not=ending or "no trial has a measurement"))
                continue
            mean = fmean(speeds) - fmean(baseline)
            half = quantile * math.sqrt(variance * (1.0 / len(speeds) + 1.0 / len(baseline)))
            low, high = math.exp(mean - half), math.exp(mean + half)
            found.append(Gain(switch=switch, gain=Ratio(ratio=math.exp(mean), low=low, high=high)))
        return found


def judge_switches(plan: SwitchPlan, measured: Sequence[Gain], bounds: Bounds | None, why_not: str = "") -> CheckResult:
    """Judge the gains: one issue for each switch that helps, and one for those not tried."""
    issues, parts = [], []
    for one in measured:
        change = _change(one.switch)
        if one.gain is None:
            parts.append(f"{change} has no measurement ({one.why_not})")
            continue
        parts.append(f"{change} {ratio_text(one.gain)} as fast")
        if one.gain.low > CANNOT_MATTER:
            issues.append(_helps(one.switch, one.gain, one.data))
    for on_step, side in ((False, "the input"), (True, "the step")):
        left = [one for one in plan.not_tried if one.on_step is on_step and not _was_slower(one, measured)]
        issues += [_not_tried(left, bounds)] if left else []
        if paths := [knob.path for knob in plan.irrelevant if traits_of(knob).on_step is on_step]:
            parts.append(f"{', '.join(paths)} not tried, because {side} cannot matter now")
    if not parts:
        why_not = why_not or "no knob of this config has another value worth trying"
        return CheckResult(check="switches", issues=tuple(issues), why_not=why_not)
    return CheckResult(check="switches", issues=tuple(issues), sentence=f"{'; '.join(parts)}.")


def _was_slower(switch: Switch, measured: Sequence[Gain]) -> bool:
    """Return whether a change was measured only with others, and always slower than today's config."""
    gains = [one.gain for one in measured if one.gain and switch.changes.items() <= one.switch.changes.items()]
    return bool(gains) and all(gain.ratio < 1.0 for gain in gains)


def _helps(switch: Switch, gain: Ratio, data: DataFinding | None) -> Issue:
    return Issue(
        check="switches",
        sentence=f"{_change(switch)} is {ratio_text(gain)} as fast.",
        place=", ".join(knob.path for knob in switch.knobs),
        bound=gain,
        limit=Limit.STEP if switch.on_step else Limit.LOADING,
        recommendations=(_recommendation(switch, gain, GainBasis.MEASURED, data),),
    )


def _not_tried(switches: Sequence[Switch], bounds: Bounds | None) -> Issue:
    advice = []
    for switch in switches:
        bound = None if bounds is None else bound_of(switch, bounds)
        if bound is not None and bound.ratio < CANNOT_MATTER:
            continue
        advice.append(_recommendation(switch, bound, GainBasis.BOUNDED if bound else GainBasis.NOT_TRIED))
    side = "the step" if switches[0].on_step else "the input"
    return Issue(
        check="switches",
        severity=Severity.NOTE,
        sentence=f"{counted(len(switches), 'more change')} of {side} may help, which takes a search to measure.",
        limit=Limit.STEP if switches[0].on_step else Limit.LOADING,
        recommendations=tuple(advice),
    )


THREADS = ("threads", "torch_threads", "intra_op_threads", "inter_op_threads", "loader_threads", "thread_variable")
_AHEAD = (
    *("prefetch", "prefetch_switch", "prefetch_factor", "persistent_workers", "pipeline_buffer"),
    *("pin_memory", "prefetch_to_gpu"),
)
_BOUND_MARGIN = 1.1  # error of the loader's own speed, which is measured in rounds of a second


def bound_of(switch: Switch, bounds: Bounds) -> Ratio | None:
    """Return the upper bound of a switch's gain; None if unknown.

    N times the workers load at most N times as fast. An N times larger batch divides the fixed cost per sample by N.
    Prefetching speeds up neither loading nor the step alone. Threads have no bound, because they serve both.
    """
    knob = switch.knobs[0]
    if knob.kind in THREADS:
        return None
    whole = bounds.free_step if switch.on_step else bounds.free_data
    loading, counts = bounds.speeds.get(TrialPhase.LOAD), traits_of(knob).counts
    before, after = number_of(knob.baseline), number_of(switch.changes[knob.path])
    times = math.inf
    if counts in ("workers", "samples") and is_number(before) and is_number(after) and after > 0:
        times = max(1.0, float(after) / max(1.0, float(before)))
    if whole is None or (loading is None and not switch.on_step) or (switch.on_step and math.isinf(times)):
        return whole
    most = times
    if not switch.on_step:
        assert loading is not None, "else the bound is that of free data"
        faster = loading * (1.0 if knob.kind in _AHEAD else times)
        most = _BOUND_MARGIN * min(faster, bounds.speeds[TrialPhase.REPLAY]) / bounds.speeds[TrialPhase.TRAIN]
    most = bounds.in_whole(max(1.0, most))
    return Ratio(ratio=min(whole.ratio, most), low=min(whole.low, most), high=min(whole.high, most))


def _recommendation(
    switch: Switch, gain: Ratio | None, evidence: GainBasis, data: DataFinding | None = None
) -> Recommendation:
    meanings = [meaning for knob in switch.knobs if (meaning := traits_of(knob).meaning)]
    sentence: str = _change(switch)
    if meanings:
        sentence = f"{sentence} ({'; '.join(meanings)})"
    is_larger_batch = switch.label is Label.BATCH and evidence is GainBasis.MEASURED
    label = (label_found(data.effect) if data else None) or switch.label
    return Recommendation(
        sentence=sentence,
        values=switch.changes,
        gain=gain,
        evidence=evidence,
        label=label.value,
        data=data,
        cost="convergence per sample may be slower" if is_larger_batch else "",
    )


def _change(switch: Switch) -> str:
    return ", ".join(f"{path}: {scalar_text(value)}" for path, value in switch.changes.items())

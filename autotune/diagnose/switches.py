"""Switches: changes of one knob each, tried in turn with today's config, and what each gains."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from autotune.diagnose.findings import CheckResult, GainBasis, Issue, Limit, Recommendation, Severity, ratio_text
from autotune.diagnose.subject import written
from autotune.measure.phases import CANNOT_MATTER, Bounds
from autotune.measure.statistics import pooled_variance, student_t_quantile
from autotune.records import DataFinding, Ratio, Scalar, TrialPhase, TrialRecord, Values
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, Label, is_number, number_of, same_scalar
from autotune.space.space import Space
from autotune.study.data_effects import label_found


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Change of one knob, with the others that it needs; or several of these together.

    Attributes:
        changes: Its values, as far as they differ from today's.
    """

    knobs: tuple[Knob, ...]
    values: Values
    changes: Values
    label: Label

    @property
    def on_step(self) -> bool:
        """True if it makes the step itself faster, and not the loading of its data alone."""
        return any(traits_of(knob).on_step for knob in self.knobs)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Measured gain of a switch.

    Attributes:
        gain: Speed with it over that of today; None if no trial of it gave numbers.
        why_not: How its trials ended, where they gave no numbers.
        data: What their samples show of its data; None where these were not compared.
    """

    switch: Switch
    gain: Ratio | None
    why_not: str = ""
    data: DataFinding | None = None


@dataclass(frozen=True, kw_only=True)
class SwitchPlan:
    """Plan of which switches are tried.

    Attributes:
        tried: Switches to try, the most promising first.
        irrelevant_knobs: Paths of knobs whose change cannot matter, by whether they act on the step.
        not_tried: Switches that may help, and for which a few short trials are not enough.
    """

    tried: tuple[Switch, ...]
    irrelevant_knobs: Mapping[bool, tuple[str, ...]] = field(default_factory=dict)
    not_tried: tuple[Switch, ...] = ()

    def without(self, known: Sequence[Switch], *, most: int) -> "SwitchPlan":
        """Return it with so many switches at most, and without those of which the gain is known."""
        tried = [one for one in self.tried if one not in known]
        rest = tuple(one for one in self.not_tried if one not in known)
        return replace(self, tried=tuple(tried[:most]), not_tried=(*rest, *tried[most:]))


def plan_switches(
    space: Space,
    bounds: Bounds | None,
    *,
    may_settle: bool,
    is_compiling: bool = False,
    is_unsteady: bool = False,
    is_reading: bool = False,
) -> SwitchPlan:
    """Plan which switches are tried: those that the bounds allow a gain, one value for each knob.

    Args:
        bounds: What a change of the input, or of the step, can gain at most; None if that is not known.
        may_settle: Whether a trial goes over all data, so that those can be measured that fill a cache first.
        is_compiling: Whether something is compiled again and again: batches of one shape come first.
        is_unsteady: Whether slow steps recur: XLA, which compiles for each shape unseen, is tried without.
        is_reading: Whether loading waits for its files: then more workers than cores help, as many as there may be.
    """
    found: list[Switch] = []
    not_tried: list[Switch] = []
    irrelevant_knobs: dict[bool, list[str]] = {False: [], True: []}
    for knob in space.knobs:
        wished = next((value for value in knob.heuristic_values if not same_scalar(value, knob.baseline)), None)
        traits = traits_of(knob)
        fixes_shapes = is_compiling and traits.shapes == "fixed" and knob.baseline is False
        leaves_xla = is_unsteady and traits.shapes == "compiled" and knob.baseline is True
        is_due = fixes_shapes or leaves_xla
        wished = fixes_shapes if is_due else wished
        if is_reading and traits.counts == "workers":
            wished = _workers_that_wait(knob, bounds)
        if wished is None or knob.is_inactive(space.baseline):
            continue
        if bounds is not None and not is_due and not bounds.may_gain(on_step=traits.on_step):
            irrelevant_knobs[traits.on_step].append(knob.path)
            continue
        values = space.with_heuristic(space.baseline, knob.path, wished)
        if space.why_infeasible(values) is None:
            settles = space.settles(values) and not may_settle
            (not_tried if settles else found).append(switch_to(space, values, knob))
    # to be gained for certain with free data, for changes of the input to be tried first
    input_first = bounds is not None and bounds.free_data is not None and bounds.free_data.low > 1.1
    # stable: then as an expert would turn them; what is compiled again and again comes first
    found.sort(key=lambda switch: (not _is_about_shapes(switch), switch.on_step is input_first))
    return SwitchPlan(
        tried=tuple(found),
        irrelevant_knobs={side: tuple(paths) for side, paths in irrelevant_knobs.items()},
        not_tried=tuple(not_tried),
    )


def _workers_that_wait(knob: Knob, bounds: Bounds | None) -> Scalar:
    """Return the number of workers that makes waiting for files no limit, twice for certain; None if there are so many.

    As they wait themselves, they are not limited by the cores.
    """
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
    """Return what was found of slow steps, with the reason where they are gone without XLA."""
    about_shapes = (one for one in measured if _is_about_shapes(one.switch))
    gains = [one.gain for one in about_shapes if traits_of(one.switch.knobs[0]).shapes == "compiled"]
    if not any(gain is not None and gain.low > 1.2 for gain in gains):
        return steadiness
    issues = [
        replace(
            one,
            sentence=f"{one.sentence} XLA compiles the step anew for each shape: without it they are gone.",
            limit=Limit.COMPILING,
        )
        for one in steadiness.issues
    ]
    return replace(steadiness, issues=tuple(issues))


def together(space: Space, measured: Sequence[Gain]) -> Switch | None:
    """Return all changes that leave the training the same and were measured to help; None of fewer than two."""
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
    """Return the change from today's values to these.

    Args:
        knob: The knob that it is about, where others change only because this one needs it; None for all that differ.
    """
    changes = space.changes(values)
    knobs = (knob,) if knob is not None else tuple(one for one in space.knobs if one.path in changes)
    labels = [space.label_of(path, value) for path, value in changes.items()]
    changing = (label for label in labels if label is not Label.SAME_TRAINING)
    return Switch(knobs=knobs, values=values, changes=changes, label=next(changing, Label.SAME_TRAINING))


class SwitchTrials:
    """Switches that are tried, and what their trials have shown so far.

    Attributes:
        speeds: ln speed of the trials of each switch, by its place; None is today's config.
        endings: How the last trial ended of those that gave no numbers.
    """

    def __init__(self, switches: Sequence[Switch]) -> None:
        self.switches = list(switches)
        self.speeds: dict[int | None, list[float]] = {None: []}
        self.endings: dict[int | None, str] = {}

    def in_turn(self) -> list[int | None]:
        """Return the order of trials, a palindrome: a steady drift cancels out."""
        there: list[int | None] = [None, *range(len(self.switches))]
        return [*there, None, *reversed(there)] if self.switches else []

    def note(self, place: int | None, record: TrialRecord) -> None:
        """Take note of a trial of a switch."""
        if record.comparable:
            self.speeds.setdefault(place, []).append(math.log(record.comparable.speed))
        else:
            self.endings[place] = record.detail or record.ending.value

    def gains(self) -> list[Gain]:
        """Return what each switch gains, with an interval of 95 % from the pooled spread of all trials."""
        variance, df = pooled_variance(list(self.speeds.values()))
        prior_df = 3.0  # of ln speed between trials of one point: the prior of a study's first trials
        variance = (df * variance + prior_df * 0.025**2) / (df + prior_df)
        quantile = student_t_quantile(0.975, df + prior_df)
        baseline, found = self.speeds[None], []
        for place, switch in enumerate(self.switches):
            speeds, ending = self.speeds.get(place, []), self.endings.get(place, "")
            if not speeds or not baseline or ending:
                why_not = ending or "no trial of it gave numbers"
                found.append(Gain(switch=switch, gain=None, why_not=why_not))
                continue
            mean = fmean(speeds) - fmean(baseline)
            half = quantile * math.sqrt(variance * (1.0 / len(speeds) + 1.0 / len(baseline)))
            low, high = math.exp(mean - half), math.exp(mean + half)
            found.append(Gain(switch=switch, gain=Ratio(ratio=math.exp(mean), low=low, high=high)))
        return found


def judge_switches(plan: SwitchPlan, measured: Sequence[Gain], bounds: Bounds | None, why_not: str = "") -> CheckResult:
    """Judge what the switches gain: one issue for each that helps, and one for those that were not tried.

    Args:
        bounds: What those that were not tried can gain at most; None if that is not known.
        why_not: Reason for which none was tried; empty if some were.
    """
    issues, told = [], []
    for one in measured:
        change = _change(one.switch)
        if one.gain is None:
            told.append(f"{change} gave no numbers ({one.why_not})")
            continue
        told.append(f"{change} {ratio_text(one.gain)} as fast")
        if one.gain.low > CANNOT_MATTER:
            issues.append(_helps(one.switch, one.gain, one.data))
    for on_step in (False, True):
        left = [one for one in plan.not_tried if one.on_step is on_step]
        issues += [_not_tried(left, bounds)] if left else []
    for on_step, paths in plan.irrelevant_knobs.items():
        if paths:
            side = "the step cannot matter now" if on_step else "the input cannot matter now"
            told.append(f"{', '.join(paths)} left alone, as {side}")
    if not told:
        why_not = why_not or "no knob of this config has another value worth trying"
        return CheckResult(check="switches", issues=tuple(issues), why_not=why_not)
    return CheckResult(check="switches", issues=tuple(issues), sentence=f"{'; '.join(told)}.")


def _helps(switch: Switch, gain: Ratio, data: DataFinding | None) -> Issue:
    return Issue(
        check="switches",
        severity=Severity.WARNING,
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
        sentence=f"{len(switches)} more of {side} may help, and a few short trials do not show it: a search does.",
        limit=Limit.STEP if switches[0].on_step else Limit.LOADING,
        recommendations=tuple(advice),
    )


THREADS = ("threads", "torch_threads", "intra_op_threads", "inter_op_threads", "loader_threads", "thread_variable")
_AHEAD = (
    *("prefetch", "prefetch_switch", "prefetch_factor", "persistent_workers", "pipeline_buffer"),
    *("pin_memory", "prefetch_to_gpu"),
)
_BOUND_MARGIN = 1.1  # the loader alone is measured in rounds of a second


def bound_of(switch: Switch, bounds: Bounds) -> Ratio | None:
    """Return what a switch gains at most by the part of the training that it acts on; None where that is not known.

    So many times the workers load at most so many times as fast, and a batch so many times as large makes what a step
    takes whatever its batch so many times less for a sample; what only loads ahead makes neither loading nor the step
    faster than it is alone; threads serve both.
    """
    knob = switch.knobs[0]
    if knob.kind in THREADS:
        return None
    whole = bounds.free_step if switch.on_step else bounds.free_data
    loading, counts = bounds.speeds.get(TrialPhase.LOAD), traits_of(knob).counts
    before, after = number_of(knob.baseline), number_of(switch.changes[knob.path])
    times = math.inf
    if counts in ("workers", "samples") and is_number(before) and is_number(after) and after > 0:  # type: ignore[operator]
        times = max(1.0, float(after) / max(1.0, float(before)))  # type: ignore[arg-type]
    if whole is None or (loading is None and not switch.on_step) or (switch.on_step and math.isinf(times)):
        return whole
    if switch.on_step:
        most = times
    else:
        faster = 1.0 if knob.kind in _AHEAD else times
        speeds = bounds.speeds
        most = (
            _BOUND_MARGIN * min(faster * speeds[TrialPhase.LOAD], speeds[TrialPhase.REPLAY]) / speeds[TrialPhase.TRAIN]
        )
    most = bounds.in_whole(max(1.0, most))
    return Ratio(ratio=min(whole.ratio, most), low=min(whole.low, most), high=min(whole.high, most))


def _recommendation(
    switch: Switch, gain: Ratio | None, evidence: GainBasis, data: DataFinding | None = None
) -> Recommendation:
    meanings = [meaning for knob in switch.knobs if (meaning := traits_of(knob).meaning)]
    sentence: str = _change(switch)
    if meanings:
        sentence = f"{sentence} ({'; '.join(meanings)})"
    cost = "each sample may teach less" if switch.label is Label.BATCH and evidence is GainBasis.MEASURED else ""
    label = (label_found(data.effect) if data else None) or switch.label
    return Recommendation(
        sentence=sentence,
        values=switch.changes,
        gain=gain,
        evidence=evidence,
        label=label.value,
        data=data,
        cost=cost,
    )


def _change(switch: Switch) -> str:
    return ", ".join(f"{path}: {written(value)}" for path, value in switch.changes.items())

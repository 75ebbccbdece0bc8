"""Check of the input: how fast training would be if data cost nothing, and what the loader spends its time on."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, milliseconds, percent, ratio_text
from autotune.measure.phases import Bounds, without
from autotune.measure.window import PAUSES, main_stream
from autotune.messages import Message, _, listed
from autotune.records import Ratio, TraineeEvent, TrialPhase

INPUT_LIMIT = "input"
WORTH_TELLING = 1.05
"""Gain from which on it is an issue: less is not told from the noise of a few short trials."""

_TRAIN, _LOAD, _REPLAY = TrialPhase.TRAIN, TrialPhase.LOAD, TrialPhase.REPLAY
_MEANING = {
    Limit.OVERLAP: _("Loading and the step take turns: loading ahead of the step is what helps"),
    Limit.READING: _("Reading is the limit, not preparing"),
    Limit.PREPARING: _("Preparing is the limit, not reading"),
    Limit.LOADING: _("Whether reading or preparing is the limit is not known"),
}


def judge_input(bounds: Bounds, machine_cores: int, *, loads_ahead: bool | None = None) -> CheckResult:
    """Judge whether the input limits the training.

    Args:
        bounds: What the phased trial showed.
        loads_ahead: Whether the config says that batches are loaded ahead of the step; None if it says nothing of it.
    """
    gain = bounds.free_data
    if gain is None:
        return CheckResult(check=INPUT_LIMIT, why_not=listed("; ", bounds.why_not) or _why_not(bounds))
    if gain.low <= WORTH_TELLING:
        sentence = _("With free data it would be {gain} as fast.", gain=ratio_text(gain))
        return CheckResult(check=INPUT_LIMIT, sentence=sentence)
    limit = _limit(bounds, machine_cores, loads_ahead=loads_ahead)
    waiting = 1.0 - 1.0 / gain.ratio
    sentence = _(
        "The input takes {waiting} of the time; with free data it would be {gain} as fast. {meaning}.{work}",
        waiting=percent(waiting),
        gain=ratio_text(gain),
        meaning=_MEANING[limit],
        work=_work(bounds),
    )
    numbers = {f"{phase.value}_{_unit(bounds)}_per_s": speed for phase, speed in bounds.speeds.items()}
    numbers |= {f"{phase.value}_cores": cores for phase, cores in bounds.cores.items()}
    issue = Issue(
        check=INPUT_LIMIT, severity=Severity.WARNING, sentence=sentence, numbers=numbers, bound=gain, limit=limit
    )
    return CheckResult(check=INPUT_LIMIT, issues=(issue,))


def _why_not(bounds: Bounds) -> Message:
    if bounds.speeds:
        return _("the trial was too short for it")
    return _(
        "its batches do not come from a tf.data iterator, Keras' fit or a PyTorch DataLoader that could be replayed",
    )


def _limit(bounds: Bounds, machine_cores: int, *, loads_ahead: bool | None) -> Limit:
    """Return the part of loading that is the limit.

    Loader and step take turns where the loop waits for a batch as long as that takes to load, and training is as fast
    as one after the other. Where it is slower still, or batches are loaded ahead all the same, they hold each other up:
    they share the cores, or Python's lock. Frameworks may load a part of a batch ahead by themselves: where the config
    says that nothing is, waiting for half of the time is enough.
    """
    speeds, cores = bounds.speeds, bounds.cores
    loading, training = speeds.get(_LOAD), speeds[_TRAIN]
    if loading is None:
        return Limit.LOADING
    is_saturated = cores.get(_TRAIN, 0.0) >= 0.85 * machine_cores  # of the machine's cores
    slower = min(loading, speeds[_REPLAY])
    in_turn = loading * speeds[_REPLAY] / (loading + speeds[_REPLAY])
    # no slower than one after the other, as far as rounds tell; overlapped it has the speed of the slower of the two
    may_overlap = 0.88 * in_turn <= training < 0.9 * slower
    # with free data that loading ahead has to bring: else the loader itself is what counts
    may_overlap &= math.log(slower / training) >= 0.3 * math.log(speeds[_REPLAY] / training)
    if may_overlap and not is_saturated and not loads_ahead and bounds.wait_s is not None and bounds.batch is not None:
        batch_s = bounds.batch / loading
        # of the time that a batch takes to load: nothing of it passes during the step, or the config itself says so
        if bounds.wait_s >= (0.85 if loads_ahead is None else 0.5) * batch_s:
            return Limit.OVERLAP
    if _LOAD not in cores:
        return Limit.LOADING
    # below which a loader that works all the time is waiting for something
    return Limit.READING if cores[_LOAD] < 0.5 else Limit.PREPARING


def _work(bounds: Bounds) -> str:
    """Return what the loader does with its time, as a sentence; empty where that is not known."""
    loading, cores = bounds.speeds.get(_LOAD), bounds.cores.get(_LOAD)
    if loading is None or bounds.batch is None:
        return ""
    took = milliseconds(bounds.batch / loading)
    if cores is None:
        return _(" The loader alone takes {time} for a batch.", time=took)
    return _(
        " The loader alone takes {time} for a batch and keeps {cores:.1f} cores busy.",
        time=took,
        cores=cores,
    )


def _unit(bounds: Bounds) -> str:
    return "samples" if bounds.counts_samples else "batches"


FIXED_COST = "fixed-cost"
_RETRACED = re.compile(
    r"calls to <(?:bound method|[^>]*?function) ([\w.<>]+?) (?:at|of) [^\n]*triggered tf\.function retracing"
)


@dataclass(frozen=True, kw_only=True)
class ReplayedSteps:
    """Times of steps with free data at one size of the batch."""

    batch: float
    step_s: Sequence[float]


def retraced_function(stderr: str) -> str | None:
    """Return the function that TensorFlow warns about, as it traces it again and again; None without a warning."""
    found = _RETRACED.search(stderr)
    return found[1] if found else None


def judge_fixed_cost(
    one: ReplayedSteps | None, other: ReplayedSteps | None, bounds: Bounds, *, retraced: str | None = None
) -> CheckResult:
    """Judge how much of a step does not depend on the batch.

    Args:
        one: Steps of today's batch; None if they were not seen.
        other: Steps of a larger batch; None if they were not seen.
        bounds: What a step that costs nothing gains, which bounds what this gains.
        retraced: Function that TensorFlow traces again and again; None if it does not say so.
    """
    if one is None or other is None or not one.step_s or not other.step_s:
        return CheckResult(
            check=FIXED_COST,
            why_not=_("it takes steps with free data at two sizes of the batch"),
        )
    factor = other.batch / one.batch
    if factor < 1.5:  # between the two batches
        why_not = _("the two batches are too alike: {one:g} and {other:g}", one=one.batch, other=other.batch)
        return CheckResult(check=FIXED_COST, why_not=why_not)
    today_s, larger_s = median(one.step_s), median(other.step_s)
    ln_ratio, error = math.log(larger_s / today_s), 1.96 * math.sqrt(2.0) * 0.04  # of ln step time between two trials
    share, least, most = (_share(math.exp(ln_ratio + shift), factor) for shift in (0.0, error, -error))
    seen = _(
        "Of the {today} of a step with free data, {share} is taken whatever the batch ({larger} with {factor:g} times "
        "the batch)",
        today=milliseconds(today_s),
        share=percent(share),
        larger=milliseconds(larger_s),
        factor=factor,
    )
    bound = _bounded(share, least, most, bounds)
    # of the step for certain: up to there it may be the update of the weights, which is work
    if least < 0.6 or bound.low <= WORTH_TELLING:
        return CheckResult(check=FIXED_COST, sentence=_("{clause}.", clause=seen))
    issue = Issue(
        check=FIXED_COST,
        severity=Severity.WARNING,
        sentence=_("{seen}: {remedy}", seen=seen, remedy=_remedy(retraced)),
        numbers={"step_s": today_s, "larger_step_s": larger_s, "batch_factor": factor, "fixed_fraction": share},
        bound=bound,
        limit=Limit.HOST,
    )
    return CheckResult(check=FIXED_COST, issues=(issue,))


def retracing_sentence(retraced: str) -> Message:
    """Return what to do about a function that is traced again and again, as a sentence."""
    return _(
        "TensorFlow says that it traces {function} again and again. Make it once, and give it tensors of few shapes "
        "in place of Python numbers.",
        function=retraced,
    )


def _remedy(retraced: str | None) -> Message:
    if retraced is None:
        return _(
            "it may be launches and Python, or the update of the weights. Graph mode, XLA or a larger batch can help.",
        )
    return retracing_sentence(retraced)


def _share(ratio: float, factor: float) -> float:
    """Return the fixed share of a step whose time is `ratio` times as long with `factor` times the batch, 0..1."""
    return min(1.0, max(0.0, (factor - ratio) / (factor - 1.0)))


def _bounded(share: float, least: float, most: float, bounds: Bounds) -> Ratio:
    """Return the speed without the fixed part over today's: no more than with a step that costs nothing at all."""
    free_step, of_training = bounds.free_step, 1.0 / bounds.free_data.ratio if bounds.free_data else 1.0
    ratio, low, high = (1.0 / (1.0 - min(part * of_training, 0.99)) for part in (share, least, most))
    if free_step is None:
        return Ratio(ratio=ratio, low=low, high=high)
    return Ratio(ratio=min(ratio, free_step.ratio), low=min(low, free_step.low), high=min(high, free_step.high))


# Check of the time outside of steps: evaluations, checkpoints and the like, as shares of the whole.


OUTSIDE_STEPS = "outside-steps"
_MOST_SHARE = 0.99
_NOUNS = {
    "eval": _("evaluation"),
    "checkpoint": _("checkpoint"),
}
_REMEDIES = {
    "eval": _("evaluate more seldom, on fewer samples, or in a process of its own"),
    "checkpoint": _("save more seldom, less, or while training goes on"),
}


def judge_outside_steps(events: Sequence[TraineeEvent]) -> CheckResult:
    """Judge how much of the time passes between steps, in what the trainer does besides.

    Args:
        events: All events of a trial that went on through an evaluation and a checkpoint where it came to these.
    """
    stream = main_stream(events)
    ends_s = [event.t_s for event in events if event.kind == "step" and event.stream == stream]
    if len(ends_s) < 5:
        return CheckResult(check=OUTSIDE_STEPS, why_not=_("too few steps were seen"))
    pauses_s = _pauses(events, stream)
    all_s = ends_s[-1] - ends_s[0]
    shares = {kind: min(_MOST_SHARE, _typical_s(spent_s) / all_s) for kind, spent_s in pauses_s.items()}
    told = listed(
        ", ",
        (_("{what} {share}", what=_NOUNS[kind], share=percent(share)) for kind, share in shares.items()),
    )
    nothing = _("No evaluation and no checkpoint was seen.")
    return CheckResult(
        check=OUTSIDE_STEPS,
        issues=tuple(_issue(kind, share, pauses_s[kind]) for kind, share in shares.items() if share > 0.05),
        sentence=_("Of the time seen: {shares}.", shares=told) if told else nothing,
    )


def _pauses(events: Sequence[TraineeEvent], stream: str | None) -> dict[str, list[float]]:
    """Return the time of each pause by its kind, a usual step taken off; one that no step came after does not count."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    steps = [event for event in events if event.kind == "step" and event.stream == stream]
    usual_s = median(after.t_s - before.t_s for before, after in pairwise(steps))
    before_s: float | None = None
    kinds: set[str] = set()
    for event in events:
        if event.kind in PAUSES and before_s is not None:
            kinds.add(event.kind)
        elif event.kind == "step" and event.stream == stream:
            # The step after a pause may have filled the pipeline anew: that is a cost of the pause.
            for kind in kinds if before_s is not None else ():
                found[kind].append(max(0.0, event.t_s - (before_s or 0.0) - usual_s) / len(kinds))
            before_s, kinds = event.t_s, set()
    return found


def _typical_s(spent_s: Sequence[float]) -> float:
    return median(spent_s) * len(spent_s)


def _issue(kind: str, share: float, spent_s: Sequence[float]) -> Issue:
    times = len(spent_s)
    # What recurs takes at least the share that was seen since the start, as the latest cycle was cut short, and at most
    # that of one time more.
    # of the time of the only one that was seen is certain: the first compiles what it needs
    low, high = (share if times > 1 else 0.5 * share), min(_MOST_SHARE, share * (times + 1) / times)
    each = milliseconds(median(spent_s))
    one = _("one of {time}", time=each)
    often = _("{times} of {time}", times=times, time=each) if times > 1 else one
    return Issue(
        check=OUTSIDE_STEPS,
        severity=Severity.WARNING,
        sentence=_(
            "The {what} takes {share} of the time ({often} was seen): {remedy}.",
            what=_NOUNS[kind],
            share=percent(share),
            often=often,
            remedy=_REMEDIES[kind],
        ),
        numbers={"time_fraction": share, "times": float(times), "each_s": median(spent_s)},
        bound=Ratio(ratio=1.0 / (1.0 - share), low=1.0 / (1.0 - low), high=1.0 / (1.0 - high)),
        limit=Limit.OUTSIDE,
    )


STEADINESS = "steadiness"
_REGULAR = 0.2  # variation of the distances between slow steps


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Step with the time that it took.

    Attributes:
        duration_s: Time since the end of the one before.
        wait_s: Time of this that it waited for data; None if it is not reported.
        begins_epoch: Whether an epoch ended just before it.
    """

    number: int
    end_s: float
    duration_s: float
    wait_s: float | None
    begins_epoch: bool


def timed_steps(events: Sequence[TraineeEvent]) -> list[TimedStep]:
    """Return the steps of a trial, without its warm-up and without those that have a pause in them.

    Args:
        events: All events of the trial, in the order of time.
    """
    stream = main_stream(events)
    found: list[TimedStep] = []
    before: TraineeEvent | None = None
    number, has_pause, begins_epoch = 0, False, False
    for event in events:
        if event.kind in PAUSES:
            has_pause = True
        elif event.kind == "epoch_end":
            begins_epoch = True
        elif event.kind == "step" and event.stream == stream:
            number += 1
            if before is not None and not has_pause and event.t_s > before.t_s:
                found.append(
                    TimedStep(
                        number=number,
                        end_s=event.t_s,
                        duration_s=event.t_s - before.t_s,
                        wait_s=event.wait_s,
                        begins_epoch=begins_epoch,
                    )
                )
            before, has_pause, begins_epoch = event, False, False
    return found[min(20, int(0.2 * len(found))) :]  # of the steps; they trace, compile and fill caches


def judge_steadiness(steps: Sequence[TimedStep], *, retraced: str | None = None) -> CheckResult:
    """Judge whether slow steps recur, and cost much of the time.

    Args:
        retraced: Function that TensorFlow traces again and again; None if it does not say so. Slow steps that come
            irregularly and do not wait for data are those that trace it.
    """
    if len(steps) < 30:
        why_not = _("{steps} steps are too few for it", steps=len(steps))
        return CheckResult(check=STEADINESS, why_not=why_not)
    usual_s = median(step.duration_s for step in steps)
    # three times the median step, and 5 ms more: less is the machine's own unrest
    slow = [step for step in steps if step.duration_s > max(3.0 * usual_s, usual_s + 0.005)]
    all_s = sum(step.duration_s for step in steps)
    excess_s = sum(step.duration_s - usual_s for step in slow)
    share = excess_s / all_s
    times = _apart(slow)
    if share < 0.05 or len(times) < 3:  # of the time; and what comes three times recurs
        return CheckResult(check=STEADINESS)
    when = _recurrence(times)
    if when is not None:
        # What recurs was cut short once, at the end of what was seen.
        least = share * len(times) / (len(times) + 1)
        bound = Ratio(ratio=1.0 / (1.0 - share), low=1.0 / (1.0 - least), high=_most(share, times))
    else:
        # Their number is as uncertain as that of any rare event (Poisson): two standard errors.
        bound = without(share, 2.0 * share / len(times) ** 0.5)
    traces = retracing_sentence(retraced) if retraced and when is None and not _waits(slow, usual_s) else ""
    where = "" if traces else _cause(slow, usual_s)
    sentence = _(
        "{slow} of {steps} steps take {time} instead of {usual}: {share} of the time. They come {when}{where}.",
        slow=len(slow),
        steps=len(steps),
        time=milliseconds(median(step.duration_s for step in slow)),
        usual=milliseconds(usual_s),
        share=percent(share),
        when=when or _("irregularly"),
        where=where,
    )
    sentence = listed(" ", (sentence, traces)) if traces else sentence
    issue = Issue(
        check=STEADINESS,
        severity=Severity.WARNING,
        sentence=sentence,
        numbers={"slow_steps": float(len(slow)), "usual_step_s": usual_s, "time_fraction": share},
        bound=bound,
        limit=Limit.HOST if traces else Limit.STALLS,
    )
    return CheckResult(check=STEADINESS, issues=(issue,))


def _most(share: float, times: Sequence[TimedStep]) -> float:
    return 1.0 / (1.0 - min(_MOST_SHARE, share * (len(times) + 1) / len(times)))


def _apart(slow: Sequence[TimedStep]) -> list[TimedStep]:
    return [
        step
        for before, step in zip([None, *slow], slow, strict=False)
        # slow ones no further apart are one event, such as something else on the machine
        if before is None or step.number - before.number > 3
    ]


def _recurrence(slow: Sequence[TimedStep]) -> Message | None:
    """Return how slow steps recur, in words; None if they do so irregularly."""
    if sum(step.begins_epoch for step in slow) > 0.5 * len(slow):
        return _("at the beginning of each epoch")
    apart = [after.number - before.number for before, after in pairwise(slow)]
    apart_s = [after.end_s - before.end_s for before, after in pairwise(slow)]
    if _variation(apart) < _REGULAR:
        return _("every {steps:.0f} steps", steps=fmean(apart))
    if _variation(apart_s) < _REGULAR:
        return _("every {seconds:.1f} s", seconds=fmean(apart_s))
    return None


def _variation(amounts: Sequence[float]) -> float:
    return pstdev(amounts) / fmean(amounts)


def _waits(slow: Sequence[TimedStep], usual_s: float) -> bool:
    """Return whether the time of slow steps is known to go into waiting for data."""
    waits_s = [step.wait_s for step in slow if step.wait_s is not None]
    excess_s = sum(step.duration_s - usual_s for step in slow)
    return len(waits_s) == len(slow) and sum(waits_s) >= 0.7 * excess_s  # of the excess is waiting for data


def _cause(slow: Sequence[TimedStep], usual_s: float) -> str:
    """Return what the time of slow steps goes to, as part of a sentence; empty where waiting is not reported."""
    if any(step.wait_s is None for step in slow):
        return ""
    if _waits(slow, usual_s):
        return _(", and wait for data")
    return _(
        ", and do not wait for data meanwhile: look for what the training loop does then besides steps",
    )

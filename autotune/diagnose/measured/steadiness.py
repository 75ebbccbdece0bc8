"""Check of steadiness: steps that are far slower than the others, how much time they take, and how they recur."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity
from autotune.diagnose.measured.fixed_cost import retracing_sentence
from autotune.diagnose.messages.message import Message, listed, said
from autotune.diagnose.wording import milliseconds, percent
from autotune.measure.speed_ratio import without
from autotune.measure.window import PAUSES, main_stream
from autotune.records import TraineeEvent
from autotune.results import Ratio

CHECK = "steadiness"

_FAR_SLOWER = 3.0  # times the median step
_LEAST_EXCESS_S = 5e-3  # of a slow step over the median: less is the machine's own unrest
_MUCH = 0.05  # of the time
_LEAST_SLOW = 3  # times that steps are slow, to say that they recur
_IN_A_ROW = 3  # steps: slow ones no further apart are one event, such as something else on the machine
_LEAST_STEPS = 30
_MOST_SHARE = 0.99
_REGULAR = 0.2  # variation of the distances between slow steps
_WARM_UP = 0.2  # of the steps; they trace, compile and fill caches
_MOST_WARM_UP = 20
_IN_THE_LOADER = 0.7  # of the excess is waiting for data


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """Step with the time that it took.

    Attributes:
        number: Its number in the trial.
        end_s: Its end.
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
    return found[min(_MOST_WARM_UP, int(_WARM_UP * len(found))) :]


def judge_steadiness(steps: Sequence[TimedStep], *, retraced: str | None = None) -> CheckResult:
    """Judge whether slow steps recur, and cost much of the time.

    Args:
        steps: Steps of training, see `timed_steps`.
        retraced: Function that TensorFlow traces again and again; None if it does not say so. Slow steps that come
            irregularly and do not wait for data are those that trace it.
    """
    if len(steps) < _LEAST_STEPS:
        why_not = said("steadiness.few-steps", "{steps} steps are too few for it", steps=len(steps))
        return CheckResult(check=CHECK, why_not=why_not)
    usual_s = median(step.duration_s for step in steps)
    slow = [step for step in steps if step.duration_s > max(_FAR_SLOWER * usual_s, usual_s + _LEAST_EXCESS_S)]
    all_s = sum(step.duration_s for step in steps)
    excess_s = sum(step.duration_s - usual_s for step in slow)
    share = excess_s / all_s
    times = _apart(slow)
    if share < _MUCH or len(times) < _LEAST_SLOW:
        return CheckResult(check=CHECK)
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
    sentence = said(
        "steadiness.slow",
        "{slow} of {steps} steps take {time} instead of {usual}: {share} of the time. They come {when}{where}.",
        slow=len(slow),
        steps=len(steps),
        time=milliseconds(median(step.duration_s for step in slow)),
        usual=milliseconds(usual_s),
        share=percent(share),
        when=when or said("steadiness.irregularly", "irregularly"),
        where=where,
    )
    sentence = listed(" ", (sentence, traces)) if traces else sentence
    issue = Issue(
        check=CHECK,
        severity=Severity.WARNING,
        sentence=sentence,
        numbers={"slow_steps": float(len(slow)), "usual_step_s": usual_s, "time_fraction": share},
        bound=bound,
        limit=Limit.HOST if traces else Limit.STALLS,
    )
    return CheckResult(check=CHECK, issues=(issue,))


def _most(share: float, times: Sequence[TimedStep]) -> float:
    return 1.0 / (1.0 - min(_MOST_SHARE, share * (len(times) + 1) / len(times)))


def _apart(slow: Sequence[TimedStep]) -> list[TimedStep]:
    """Return the first of each run of slow steps."""
    return [
        step
        for before, step in zip([None, *slow], slow, strict=False)
        if before is None or step.number - before.number > _IN_A_ROW
    ]


def _recurrence(slow: Sequence[TimedStep]) -> Message | None:
    """Return how slow steps recur, in words; None if they do so irregularly.

    Args:
        slow: The first of each run of them.
    """
    if sum(step.begins_epoch for step in slow) > 0.5 * len(slow):
        return said("steadiness.epochs", "at the beginning of each epoch")
    apart = [after.number - before.number for before, after in pairwise(slow)]
    apart_s = [after.end_s - before.end_s for before, after in pairwise(slow)]
    if _variation(apart) < _REGULAR:
        return said("steadiness.steps", "every {steps:.0f} steps", steps=fmean(apart))
    if _variation(apart_s) < _REGULAR:
        return said("steadiness.seconds", "every {seconds:.1f} s", seconds=fmean(apart_s))
    return None


def _variation(amounts: Sequence[float]) -> float:
    return pstdev(amounts) / fmean(amounts)


def _waits(slow: Sequence[TimedStep], usual_s: float) -> bool:
    """Return whether the time of slow steps is known to go into waiting for data."""
    waits_s = [step.wait_s for step in slow if step.wait_s is not None]
    excess_s = sum(step.duration_s - usual_s for step in slow)
    return len(waits_s) == len(slow) and sum(waits_s) >= _IN_THE_LOADER * excess_s


def _cause(slow: Sequence[TimedStep], usual_s: float) -> str:
    """Return what the time of slow steps goes to, as part of a sentence; empty where waiting is not reported."""
    if any(step.wait_s is None for step in slow):
        return ""
    if _waits(slow, usual_s):
        return said("steadiness.waits", ", and wait for data")
    return said(
        "steadiness.besides",
        ", and do not wait for data meanwhile: look for what the training loop does then besides steps",
    )

"""Check of the step: how much of it is taken whatever the batch, as launches and Python are.

The time of a step with free data is taken as ``t = a + b * batch``, from two sizes of the batch; ``a / t`` is the share
of what graph mode, XLA or a larger batch can take away.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity
from autotune.diagnose.measured.input_limit import WORTH_TELLING
from autotune.diagnose.messages.message import Message, said
from autotune.diagnose.wording import milliseconds, percent
from autotune.measure.bounds import Bounds
from autotune.results import Ratio

CHECK = "fixed-cost"

_MUCH = 0.6  # of the step for certain: up to there it may be the update of the weights, which is work
_STEP_SD = 0.04  # of ln step time between two trials
_RETRACED = re.compile(
    r"calls to <(?:bound method|[^>]*?function) ([\w.<>]+?) (?:at|of) [^\n]*triggered tf\.function retracing"
)
_LEAST_FACTOR = 1.5  # between the two batches


@dataclass(frozen=True, kw_only=True)
class ReplayedSteps:
    """Times of steps with free data at one size of the batch.

    Attributes:
        batch: Samples in a step.
        step_s: Time of each step.
    """

    batch: float
    step_s: Sequence[float]


def retraced_function(stderr: str) -> str | None:
    """Return the function that TensorFlow warns about, as it traces it again and again; None without a warning.

    Args:
        stderr: What the trainer wrote.
    """
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
            check=CHECK, why_not=said("fixed-cost.two-sizes", "it takes steps with free data at two sizes of the batch")
        )
    factor = other.batch / one.batch
    if factor < _LEAST_FACTOR:
        why_not = said(
            "fixed-cost.alike", "the two batches are too alike: {one:g} and {other:g}", one=one.batch, other=other.batch
        )
        return CheckResult(check=CHECK, why_not=why_not)
    today_s, larger_s = median(one.step_s), median(other.step_s)
    ln_ratio, error = math.log(larger_s / today_s), 1.96 * math.sqrt(2.0) * _STEP_SD
    share, least, most = (_share(math.exp(ln_ratio + shift), factor) for shift in (0.0, error, -error))
    seen = said(
        "fixed-cost.seen",
        "Of the {today} of a step with free data, {share} is taken whatever the batch ({larger} with {factor:g} times "
        "the batch)",
        today=milliseconds(today_s),
        share=percent(share),
        larger=milliseconds(larger_s),
        factor=factor,
    )
    bound = _bounded(share, least, most, bounds)
    if least < _MUCH or bound.low <= WORTH_TELLING:
        return CheckResult(check=CHECK, sentence=said("sentence", "{clause}.", clause=seen))
    issue = Issue(
        check=CHECK,
        severity=Severity.WARNING,
        sentence=said("fixed-cost.much", "{seen}: {remedy}", seen=seen, remedy=_remedy(retraced)),
        numbers={"step_s": today_s, "larger_step_s": larger_s, "batch_factor": factor, "fixed_fraction": share},
        bound=bound,
        limit=Limit.HOST,
    )
    return CheckResult(check=CHECK, issues=(issue,))


def retracing_sentence(retraced: str) -> Message:
    """Return what to do about a function that is traced again and again, as a sentence."""
    return said(
        "fixed-cost.retraced",
        "TensorFlow says that it traces {function} again and again. Make it once, and give it tensors of few shapes "
        "in place of Python numbers.",
        function=retraced,
    )


def _remedy(retraced: str | None) -> Message:
    if retraced is None:
        return said(
            "fixed-cost.remedy",
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

"""Check of the input: how fast training would be if data cost nothing, and what the loader spends its time on."""

import math

from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity
from autotune.diagnose.messages.message import Message, listed, said
from autotune.diagnose.wording import milliseconds, percent, ratio_text
from autotune.measure.bounds import Bounds
from autotune.records import TrialPhase

CHECK = "input"
WORTH_TELLING = 1.05
"""Gain from which on it is an issue: less is not told from the noise of a few short trials."""

_TRAIN, _LOAD, _REPLAY = TrialPhase.TRAIN, TrialPhase.LOAD, TrialPhase.REPLAY
_TAKES_TURNS = 0.9  # of the speed of the slower of loader and step: overlapped, training has that
_NO_SLOWER = 0.88  # than one after the other, as far as rounds tell
_PART_OF_THE_GAIN = 0.3  # with free data that loading ahead has to bring: else the loader itself is what counts
_WHOLE_WAIT = 0.85  # of the time that a batch takes to load: nothing of it passes during the step
_HALF_WAIT = 0.5  # the same, where the config itself says that no batch is loaded ahead
_WAITING_CORES = 0.5  # below which a loader that works all the time is waiting for something
_SATURATED = 0.85  # of the machine's cores

_MEANING = {
    Limit.OVERLAP: said("input.overlap", "Loading and the step take turns: loading ahead of the step is what helps"),
    Limit.READING: said("input.reading", "Reading is the limit, not preparing"),
    Limit.PREPARING: said("input.preparing", "Preparing is the limit, not reading"),
    Limit.LOADING: said("input.loading", "Whether reading or preparing is the limit is not known"),
}


def judge_input(bounds: Bounds, machine_cores: int, *, loads_ahead: bool | None = None) -> CheckResult:
    """Judge whether the input limits the training.

    Args:
        bounds: What the phased trial showed.
        machine_cores: Cores that the trainer may use.
        loads_ahead: Whether the config says that batches are loaded ahead of the step; None if it says nothing of it.
    """
    gain = bounds.free_data
    if gain is None:
        return CheckResult(check=CHECK, why_not=listed("; ", bounds.why_not) or _why_not(bounds))
    if gain.low <= WORTH_TELLING:
        sentence = said("input.little", "With free data it would be {gain} as fast.", gain=ratio_text(gain))
        return CheckResult(check=CHECK, sentence=sentence)
    limit = _limit(bounds, machine_cores, loads_ahead=loads_ahead)
    waiting = 1.0 - 1.0 / gain.ratio
    sentence = said(
        "input.limit",
        "The input takes {waiting} of the time; with free data it would be {gain} as fast. {meaning}.{work}",
        waiting=percent(waiting),
        gain=ratio_text(gain),
        meaning=_MEANING[limit],
        work=_work(bounds),
    )
    numbers = {f"{phase.value}_{_unit(bounds)}_per_s": speed for phase, speed in bounds.speeds.items()}
    numbers |= {f"{phase.value}_cores": cores for phase, cores in bounds.cores.items()}
    issue = Issue(check=CHECK, severity=Severity.WARNING, sentence=sentence, numbers=numbers, bound=gain, limit=limit)
    return CheckResult(check=CHECK, issues=(issue,))


def _why_not(bounds: Bounds) -> Message:
    if bounds.speeds:
        return said("input.too-short", "the trial was too short for it")
    return said(
        "input.no-batches",
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
    is_saturated = cores.get(_TRAIN, 0.0) >= _SATURATED * machine_cores
    slower = min(loading, speeds[_REPLAY])
    in_turn = loading * speeds[_REPLAY] / (loading + speeds[_REPLAY])
    may_overlap = _NO_SLOWER * in_turn <= training < _TAKES_TURNS * slower
    may_overlap &= math.log(slower / training) >= _PART_OF_THE_GAIN * math.log(speeds[_REPLAY] / training)
    if may_overlap and not is_saturated and not loads_ahead and bounds.wait_s is not None and bounds.batch is not None:
        batch_s = bounds.batch / loading
        if bounds.wait_s >= (_WHOLE_WAIT if loads_ahead is None else _HALF_WAIT) * batch_s:
            return Limit.OVERLAP
    if _LOAD not in cores:
        return Limit.LOADING
    return Limit.READING if cores[_LOAD] < _WAITING_CORES else Limit.PREPARING


def _work(bounds: Bounds) -> str:
    """Return what the loader does with its time, as a sentence; empty where that is not known."""
    loading, cores = bounds.speeds.get(_LOAD), bounds.cores.get(_LOAD)
    if loading is None or bounds.batch is None:
        return ""
    took = milliseconds(bounds.batch / loading)
    if cores is None:
        return said("input.loader", " The loader alone takes {time} for a batch.", time=took)
    return said(
        "input.loader-cores",
        " The loader alone takes {time} for a batch and keeps {cores:.1f} cores busy.",
        time=took,
        cores=cores,
    )


def _unit(bounds: Bounds) -> str:
    return "samples" if bounds.counts_samples else "batches"

"""Explanation of each ending to a user: a sentence and a remedy. For its meaning to a search see `sampler/`."""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.records import Ending, TrialRecord


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Meaning of an ending to a user, and what they can do about it."""

    sentence: str
    remedy: str


EXPLANATIONS: Mapping[Ending, Explanation] = {
    Ending.COMPLETED: Explanation(
        sentence="The trainer ran to its end.",
        remedy="If it was too short to measure, let it train longer, e.g. more epochs under `set:`.",
    ),
    Ending.STOPPED: Explanation(
        sentence="The trial was stopped because enough was known.",
        remedy="Nothing to do.",
    ),
    Ending.CRASHED: Explanation(
        sentence="The trainer failed, or was killed.",
        remedy="Read stderr.log in the trial's folder; start the command by hand with the config beside it. In that "
        "one the output keys point into the trial's folder: if the trainer does not take that, see redirect_except.",
    ),
    Ending.OUT_OF_HOST_MEMORY: Explanation(
        sentence="Memory ran out: an error of the trainer says so, or the kernel ended a process for want of it.",
        remedy="Lower the upper ends of batch size, workers, buffers or caching, or free memory.",
    ),
    Ending.OUT_OF_GPU_MEMORY: Explanation(
        sentence="GPU memory ran out, as the trainer's output says.",
        remedy="Lower the upper end of the batch size, or end whatever else uses the GPU.",
    ),
    Ending.GPU_LOST: Explanation(
        sentence="The NVIDIA driver failed, or reported the GPU as lost.",
        remedy="See what `nvidia-smi` and `dmesg` (lines with Xid) say; it may take a reset of the GPU, or a reboot. "
        "Then start the search again.",
    ),
    Ending.DIVERGED: Explanation(
        sentence="The loss became NaN or infinite, or grew far beyond today's at the same step.",
        remedy="Leave out the precision or batch sizes that do this, or lower the learning rate.",
    ),
    Ending.HUNG: Explanation(
        sentence="Steps came, then none for too long.",
        remedy="Read stderr.log in the trial's folder; a loader with many workers can deadlock.",
    ),
    Ending.NEVER_STARTED: Explanation(
        sentence="The trainer ran, and no step of it was seen.",
        remedy="Report the trainer's steps: from autotune.trainee import step, and step(samples=...) in the training "
        "loop. If it only needs longer to start: trial.start_timeout_s, or a larger --budget of a search.",
    ),
    Ending.NO_STEPS: Explanation(
        sentence="The trainer ended by itself and no step of it was seen.",
        remedy="If it did train, report its steps: from autotune.trainee import step, and step() in the training loop. "
        "A command that leaves the training in the background is over too soon: keep it in the foreground.",
    ),
    Ending.OBSERVER_MISSING: Explanation(
        sentence="Nothing inside the trainer reported to autotune. It may be no Python, or keep out its environment.",
        remedy="Start Python without -I, -E and -S, and keep PYTHONPATH as it is; a program in another language has to "
        "write its steps into the folder that AUTOTUNE_TRIAL_DIR names (autotune/trainee/stream.py has the format).",
    ),
    Ending.UNCOUNTED: Explanation(
        sentence="Steps came, but no speed could be made of them: a pause was seen in each.",
        remedy="Report the trainer's steps: from autotune.trainee import step, and step(samples=...) in the training "
        "loop; or let it validate and save less often, e.g. by values under `set:`.",
    ),
    Ending.KILLED_BY_BUDGET: Explanation(
        sentence="The budget ended while it ran.",
        remedy="Give a larger --budget, or train less per run.",
    ),
    Ending.INTERRUPTED: Explanation(
        sentence="It was interrupted: autotune was, or a signal came that autotune did not send.",
        remedy="Start the same search again; it goes on where it was.",
    ),
}
"""A sentence and a remedy for every ending."""


def failure_text(trial: TrialRecord) -> str:
    """Return what a trial that gave no numbers came to, with what is known of the reason."""
    sentence = EXPLANATIONS[trial.ending].sentence.removesuffix(".")
    return f"{sentence} ({trial.detail})" if trial.detail else sentence

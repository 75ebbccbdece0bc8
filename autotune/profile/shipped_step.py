"""Profile of the step of the shipped text-to-speech model, on random batches, in a process of its own."""

import os
import sys

from autotune.errors import TrialError
from autotune.process.short_command import run_short
from autotune.profile.step_phases import StepProfile, step_profile
from autotune.profile.step_times import parse_step_times

BATCH_SIZE = 8
ROUNDS = 20
_PROGRAM = "autotune.workloads.tts.step_profile"
_MARKER = "autotune-step-profile "
_LIMIT_S = 300.0


def profile_shipped_step(python: str = sys.executable) -> StepProfile:
    """Time the step of the shipped text-to-speech model on random batches, in a process of its own.

    Args:
        python: Interpreter that has TensorFlow.

    Raises:
        TrialError: That process failed, or took too long.
    """
    argv = [python, "-m", _PROGRAM, str(BATCH_SIZE), str(ROUNDS)]
    ended = run_short(argv, _LIMIT_S, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    line = next((line for line in reversed(ended.text.splitlines()) if line.startswith(_MARKER)), None)
    if ended.status != 0 or line is None:
        last = ended.text.splitlines()[-1] if ended.text else "it printed nothing"
        raise TrialError(
            f"the step was not measured: {last}",
            where=" ".join(argv),
            remedy="It needs an interpreter with TensorFlow: pip install '.[tensorflow]' in a clone.",
        )
    return step_profile(parse_step_times(line.removeprefix(_MARKER)))

"""Step reports of a training process; a no-op outside a trial.

For trainers whose steps ``autotune search`` can't observe (observe.py, injected as ``_autotune_trainee``):

    from autotune.trainee import step

    for batch in batches:
        train(batch)
        step(samples=len(batch))
"""

import sys
from typing import TYPE_CHECKING

_INJECTED = "_autotune_trainee.stream"

if TYPE_CHECKING or _INJECTED not in sys.modules:
    from autotune.trainee.stream import announce, epoch_end, mark, step
else:
    # The observer runs in this process: both write into one file, and the trainer's reports replace observed steps.
    _injected = sys.modules[_INJECTED]
    announce, epoch_end, mark, step = _injected.announce, _injected.epoch_end, _injected.mark, _injected.step
    # The search may then wait longer for the first step; an observer of another version may lack this function.
    getattr(_injected, "will_report", bool)()

__all__ = ["announce", "epoch_end", "mark", "step"]

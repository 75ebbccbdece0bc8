"""Step reports of a training process; standard library only, and a no-op outside a trial.

Under ``autotune search`` the steps of most trainers are observed without a change (observe.py, injected into the
process under the name ``_autotune_trainee``). Where they are not, call `step` once per batch. Under a search this
writes one line per step into the trial's folder; anywhere else it does nothing and costs next to nothing:

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
    # The observer is in this process: both write into one file, and its own steps end when the trainer reports some.
    _injected = sys.modules[_INJECTED]
    announce, epoch_end, mark, step = _injected.announce, _injected.epoch_end, _injected.mark, _injected.step
    # The search may wait longer for the first step then; an observer of another version may not know this.
    getattr(_injected, "will_report", bool)()

__all__ = ["announce", "epoch_end", "mark", "step"]

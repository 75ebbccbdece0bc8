"""What a training process says about itself; standard library only, and harmless outside a run.

Call `step` once per batch. Under ``autotune search`` this writes one line per step into the run's
folder; anywhere else it does nothing and costs next to nothing:

    from autotune.trainee import step

    for batch in batches:
        train(batch)
        step(samples=len(batch))
"""

from autotune.trainee.stream import announce, epoch_end, mark, step

__all__ = ["announce", "epoch_end", "mark", "step"]

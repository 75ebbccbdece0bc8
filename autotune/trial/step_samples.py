"""Check that the steps of a trial held as many samples as the config's batch size says.

Speed is computed from the samples that were seen, so a difference makes no number wrong. But it may mean that the
trainer does not use this key, and a user who reads of a batch of 32 should know that steps hold 16.
"""

from collections.abc import Mapping

import numpy as np

from autotune.records import Scalar
from autotune.space.batch_sizes import batch_count, is_global, is_per_device
from autotune.statistics import Series

_MOST_STEPS = 0.5  # share of the steps that have to hold one and the same number of samples


def unlike_the_config(
    path: str, size: float, samples: Series, *, config: Mapping[str, Scalar], devices: int
) -> str | None:
    """Return a sentence if the steps' samples do not fit the config's batch size; None if they do or are too few.

    Batches that differ in size, a smaller last batch, and whole multiples or fractions due to several devices or to
    gradient accumulation are taken to fit.

    Args:
        path: The key of the batch size.
        size: Its value in that trial.
        samples: Samples of each step of the steady window, as they were seen.
        config: Every scalar of the config.
        devices: Accelerators that the trial could use; at least 1.
    """
    held = float(np.median(samples))
    # Where several steps are only seen together, their samples are means, with smaller last batches in them.
    is_last_batch = size / 2 < held < size
    if size in samples or is_last_batch or np.mean(samples == held) < _MOST_STEPS:
        return None
    accumulated = batch_count(path, config).accumulated
    expected = {size * many for many in (devices, accumulated, devices * accumulated)}
    expected |= {size / many for many in (devices, accumulated, devices * accumulated)}
    part_of_a_whole = is_global(path) and (size / held).is_integer()
    sum_of_parts = is_per_device(path) and (held / size).is_integer()
    if held in expected or part_of_a_whole or sum_of_parts:
        return None
    return (
        f"{path} is {size:g}, but each step held {held:g} samples, and speed is counted in those. See whether a flag "
        "or another key beats it, or whether it counts something else than the samples of a step"
    )

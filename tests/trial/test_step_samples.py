"""Check of the samples in a step against the config."""

import numpy as np
import pytest

from autotune.search.findings import batch_size_mismatch


def said(path: str, size: float, *samples: float, devices: int = 1, nodes: int = 1, **config: int) -> str | None:
    """Return the sentence about steps with these samples."""
    seen = np.array(samples, dtype=float)
    return batch_size_mismatch(path, size, seen, config={path: 8, **config}, devices=devices, nodes=nodes)


def test_steps_that_hold_other_samples_than_the_config_says() -> None:
    """The sentence names the key, both numbers, what the speed is made of, and what to look at."""
    assert said("data.batch_size", 32, 16, 16, 16, 16) == (
        "data.batch_size is 32, but each step had 16 samples, and speed counts those. Check whether a flag or another "
        "key overrides it, or whether it counts something other than the samples of a step"
    )
    assert said("data.batch_size", 8, 64, 64, 64, 32) is not None


@pytest.mark.parametrize(
    "samples",
    [
        (32, 32, 32, 32, 8),
        (32, 8, 32, 8),  # two batches in an epoch
        (8, 32, 8),
        (29.6, 29.6, 29.6),  # of ten batches in one look, the last one smaller
        (20, 20, 20),  # of two
        (12, 7, 31, 30, 64),  # buckets by length
    ],
)
def test_last_batches_and_batches_of_any_size_are_no_difference(samples: tuple[float, ...]) -> None:
    """Nor are means over several steps with smaller ones among them."""
    assert said("batch_size", 32, *samples) is None


def test_a_batch_size_per_node() -> None:
    """Four ranks on two nodes hold it twice together; three times is no number of nodes."""
    assert said("batch_size_per_node", 16, 32, 32, 32, devices=4) is None
    assert said("batch_size_per_node", 16, 48, 48, 48, devices=4) is not None
    assert said("batch_size", 16, 32, 32, 32, devices=4, nodes=2) is None
    assert said("batch_size", 16, 32, 32, 32, devices=4) is not None

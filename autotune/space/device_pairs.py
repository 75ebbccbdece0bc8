"""Pairs of the GPU that prepares the data and the GPU that trains: two keys, one decision."""

from autotune.records import Scalar


def device_pairs(data: Scalar, model: Scalar, gpus: int) -> tuple[tuple[Scalar, Scalar], ...]:
    """Return the (data GPU, model GPU) pairs that are worth trying: one GPU for both, and one for each.

    Args:
        data: The present GPU of the data, its number; None leaves it to the trainer.
        model: The same of the model.
        gpus: Number of GPUs.

    Returns:
        The baseline's pair first, then the others; each model GPU once. Only the baseline's if exactly one of its two
        values is None, since the meaning of that is not known.
    """
    baseline = (data, model)
    if gpus < 2 or (data is None) != (model is None):
        return (baseline,)
    if data is None:
        return (baseline, (0, 1))
    if data == model:
        return (baseline, (data, 1 if data == 0 else 0))
    return (baseline, (data, data))

"""The GPU that prepares the data and the one that trains: two keys, one decision."""

from autotune.records import Scalar


def device_pairs(data: Scalar, model: Scalar, gpus: int) -> tuple[tuple[Scalar, Scalar], ...]:
    """Which (data GPU, model GPU) are worth trying: one GPU for both, and one for each.

    Args:
        data: The present GPU of the data, its number; None leaves it to the trainer.
        model: The same of the model.
        gpus: How many there are.

    Returns:
        Today's pair first, then what else there is; each model GPU once. Today's alone where one of them is None and
        the other is not: what that means is not known.
    """
    today = (data, model)
    if gpus < 2 or (data is None) != (model is None):
        return (today,)
    if data is None:
        return (today, (0, 1))
    if data == model:
        return (today, (data, 1 if data == 0 else 0))
    return (today, (data, data))

"""Placements: pairs of the GPU that prepares the data and the GPU that trains, which one knob writes.

A placement is named by the model's GPU, so that the knob's choices are values of a key of the config: null is one GPU
for both, and each number comes with one number of the data's GPU.
"""

from collections.abc import Sequence

from autotune.records import Gpu, Scalar


def placements(data: Scalar, model: Scalar, gpus: Sequence[Gpu]) -> tuple[Scalar, ...]:
    """Return the placements that are worth trying, by the model's GPU.

    They are one GPU for both, one GPU for each, and, where the two GPUs are unlike, the same two the other way round.

    Args:
        data: The baseline's GPU of the data, its number; None leaves it to the trainer.
        model: The same of the model.
        gpus: The GPUs in the order of their numbers.

    Returns:
        The baseline's placement first. It alone with fewer than two GPUs, and if exactly one of its two values is None,
        since the meaning of that is not known.
    """
    if len(gpus) < 2 or (data is None) != (model is None):
        return (model,)
    if data is None:
        return (None, 1, 0) if _are_unlike(0, 1, gpus) else (None, 1)
    if data == model:
        return (model, 1 if model == 0 else 0)
    return (model, data, None) if _are_unlike(data, model, gpus) else (model, None)


def data_gpu(choice: Scalar, data: Scalar, model: Scalar) -> Scalar:
    """Return the GPU of the data at a placement.

    Args:
        choice: The placement: the model's GPU.
        data: The baseline's GPU of the data.
        model: The baseline's GPU of the model.
    """
    if choice == model or (data is None) != (model is None):
        return data
    if choice is None:
        return None  # one GPU for both
    if data is None:
        return 1 if choice == 0 else 0
    return model if choice == data else data


def untried_placement(data: Scalar, model: Scalar, gpus: Sequence[Gpu]) -> str | None:
    """Return the reason, for people, for which GPUs are tried one way round only; None if they are tried both ways."""
    found = placements(data, model, gpus)
    apart = [(data_gpu(choice, data, model), choice) for choice in found]
    apart = [(one, other) for one, other in apart if not shares_gpu(one, other)]
    if len(found) == 1 or len(apart) != 1:
        return None
    first, second = apart[0]
    if not _are_unlike(first, second, gpus):
        return (
            f"GPUs {first} and {second} are alike: data on {first} and training on {second} stands for both ways round"
        )
    return (
        f"data on {second} and training on {first} is not tried, because today both are on {first}: with null for both "
        "keys it would be"
    )


def shares_gpu(data: Scalar, model: Scalar) -> bool:
    """Return whether data and model are on one GPU, so that there is no buffer between two."""
    return data == model


def _are_unlike(one: Scalar, other: Scalar, gpus: Sequence[Gpu]) -> bool:
    """Return whether two GPUs differ, or one of them is not among those that are known."""
    pair = [gpus[place] if isinstance(place, int) and place < len(gpus) else None for place in (one, other)]
    return None in pair or len({(gpu.name, gpu.memory_bytes) for gpu in pair if gpu}) > 1

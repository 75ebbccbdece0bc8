"""Batch sizes: the devices and steps that they count, and gradient accumulation that makes up for a smaller one."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autotune.errors import ConfigError
from autotune.records import Scalar
from autotune.space.catalog import BATCH_NAMES
from autotune.space.knob import BatchCount, Carried, Knob, Label, key_name

PLAIN_NAMES = BATCH_NAMES.plain
PER_DEVICE_NAMES = BATCH_NAMES.per_device
GLOBAL_NAMES = BATCH_NAMES.all_devices
ACCUMULATION_NAMES = BATCH_NAMES.accumulation

_LARGEST_STEPS = 2**31
_WHERE = "autotune.keep_effective_batch"


def is_global(path: str) -> bool:
    """Return whether a key is the size of the batch of all devices and accumulated steps together."""
    return key_name(path) in GLOBAL_NAMES


def is_per_device(path: str) -> bool:
    """Return whether the name of a batch size says that it counts one device only."""
    return key_name(path) in PER_DEVICE_NAMES


def batch_count(path: str, config: Mapping[str, Scalar]) -> BatchCount:
    """Return the devices and accumulated steps that a batch size counts, as far as its name and the config tell."""
    if is_global(path):
        return BatchCount(where="of all devices together", accumulated=1)
    steps = list(_accumulations(config).values())
    return BatchCount(
        where="of each device" if is_per_device(path) else "", accumulated=steps[0] if len(steps) == 1 else 1
    )


def dividing(knob: Knob, whole: Scalar) -> Knob:
    """Restrict a per-device batch to the divisors of the global one; the trainer's accumulation keeps the global batch.

    Returns:
        The knob with those sizes that divide it.
    """
    fitting = [size for size in knob.choices if _size(whole) % _size(size) == 0 or size == knob.baseline]
    return replace(knob.narrowed(fitting), label=Label.SAME_TRAINING)


def made_up_for(knob: Knob, config: Mapping[str, Scalar], taken: Iterable[str], refused: Mapping[str, str]) -> Knob:
    """Couple a batch size with the accumulation steps, so that batch x accumulation stays constant.

    Args:
        refused: Keys whose value cannot be edited, with the reason.

    Returns:
        The knob with those sizes that divide batch x accumulation; the accumulation moves along.

    Raises:
        ConfigError: The config has no key for accumulation, several, or one that cannot follow.
    """
    found = _accumulations(config)
    if not found:
        raise ConfigError(
            "keep_effective_batch: true, but no key of this config says how many batches are accumulated",
            where=_WHERE,
            remedy=f"Known are {', '.join(ACCUMULATION_NAMES[:4])} and the like, with a whole number from 1 on. "
            "Leave keep_effective_batch out if the trainer has none.",
        )
    if len(found) > 1:
        raise ConfigError(
            f"keep_effective_batch: true, but several keys may mean accumulation: {', '.join(found)}",
            where=_WHERE,
            remedy="Leave keep_effective_batch out, and see to the batch by hand.",
        )
    (path, steps) = next(iter(found.items()))
    if path in taken or path in refused:
        why = "it is a knob too" if path in taken else refused[path]
        raise ConfigError(
            f"keep_effective_batch: true, but {path} cannot follow the batch: {why}",
            where=_WHERE,
            remedy=f"Leave out one of the two: keep_effective_batch, or {path} where it is tied.",
        )
    whole = _size(knob.baseline) * steps
    kept = knob.narrowed([size for size in knob.choices if whole % _size(size) == 0])
    along = Carried(path=path, values=tuple(whole // _size(size) for size in kept.choices))
    return replace(kept, carries=(*kept.carries, along), label=Label.SAME_TRAINING)


def _accumulations(config: Mapping[str, Scalar]) -> dict[str, int]:
    return {
        path: value
        for path, value in config.items()
        if key_name(path) in ACCUMULATION_NAMES
        and isinstance(value, int)
        and not isinstance(value, bool)
        and 1 <= value <= _LARGEST_STEPS
    }


def _size(value: Scalar) -> int:
    assert isinstance(value, int)  # the table's row accepts nothing else
    return value

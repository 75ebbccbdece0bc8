"""Keys of a config that say how training itself goes: the learning rate and the seed, known by their names.

They are no knobs: a search never turns them. A race gives each round a seed of its own, and tries the learning rate
that belongs to another batch.
"""

import math
import re
from dataclasses import dataclass

from autotune.records import Scalar, Values
from autotune.space.knob import is_number, key_name

_LEARNING_RATE = re.compile(r"(?:.*_)?(?:learning_?rate|(?:base|init|initial|max|peak)?_?lr)")
_MAIN_LEARNING_RATE = ("learning_rate", "lr")
_OTHER_RATE = re.compile(r".*(?:decay|discriminator|disc|end|eta_min|final|min|schedule|start|warm_?up).*")
_SEED = re.compile(r"(?:global_|manual_|random_|rng_|torch_|np_|numpy_|tf_)*seed(?:_value)?|random_state")
_OPTIMIZER = re.compile(r"(?:.*_)?optim(?:izer)?(?:_(?:name|type))?")
_LINEAR = re.compile(r"(?:.*\W)?(?:sgd|momentum|nesterov|lars|gradientdescent)(?:\W.*)?", re.IGNORECASE)
_LARGEST_SEED = 2**31


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Learning rate of a config.

    Attributes:
        path: Its key.
        value: Its value, above 0.
        is_linear: Whether it is scaled linearly with the batch, as of SGD (Goyal et al., "Accurate, large minibatch
            SGD", 2017); else with its square root, as of Adam and its kin (Malladi et al., "On the SDEs and scaling
            rules for adaptive gradient algorithms", 2022), and where the optimizer is not known.
    """

    path: str
    value: float
    is_linear: bool

    def scaled(self, batch_ratio: float) -> float:
        """Return the rate that belongs to a batch of so many times the size, to three digits."""
        factor = batch_ratio if self.is_linear else math.sqrt(batch_ratio)
        return float(f"{self.value * factor:.3g}")


def learning_rate(scalars: Values) -> LearningRate | None:
    """Return the learning rate of a config; None where no key says it, or several may.

    Args:
        scalars: The values of the config by dotted path.
    """
    found = {
        path: float(value)
        for path, value in scalars.items()
        if isinstance(value, int | float)
        and is_number(value)
        and value > 0
        and _LEARNING_RATE.fullmatch(key_name(path))
        and not _OTHER_RATE.fullmatch(path.lower())
    }
    main = [path for path in found if key_name(path) in _MAIN_LEARNING_RATE]
    chosen = main if len(main) == 1 else list(found)
    if len(chosen) != 1:
        return None
    return LearningRate(path=chosen[0], value=found[chosen[0]], is_linear=_is_linear(scalars))


def seed(scalars: Values) -> tuple[str, int] | None:
    """Return the key of a config that seeds training, and its value; None where no key does, or several do.

    Args:
        scalars: The values of the config by dotted path.
    """
    found = [
        (path, value)
        for path, value in scalars.items()
        if isinstance(value, int)
        and not isinstance(value, bool)
        and 0 <= value < _LARGEST_SEED
        and _SEED.fullmatch(key_name(path))
    ]
    return found[0] if len(found) == 1 else None


def _is_linear(scalars: Values) -> bool:
    """Return whether the optimizer is known to be one whose rate goes linearly with the batch."""
    names: list[Scalar] = [
        value
        for path, value in scalars.items()
        if any(_OPTIMIZER.fullmatch(part) for part in path.lower().split("."))
        and (
            path.lower().split(".")[-1] in ("name", "type", "_target_", "class") or _OPTIMIZER.fullmatch(key_name(path))
        )
    ]
    return any(isinstance(name, str) and _LINEAR.fullmatch(name) for name in names)

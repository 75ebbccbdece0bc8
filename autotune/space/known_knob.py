"""Known knob: one row of the catalog, with its effects on memory and on the step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from autotune.records import Machine, Scalar
from autotune.space.domains import Choices
from autotune.space.knob import Label


class Demand(Enum):
    """Dependence of a trial's memory on a knob."""

    NONE = "none"  # not at all
    VARIES = "varies"  # another value may need more or less
    GROWS = "grows"  # the larger the value, the more


@dataclass(frozen=True, kw_only=True)
class Effects:
    """Effects of a knob, as far as its row says; the defaults are those of a knob that no row describes.

    Attributes:
        gpu_memory: Dependence of the GPU's memory on it.
        host_memory: The same of the host's.
        on_step: Whether it makes the step itself faster, and not the loading of its data.
    """

    gpu_memory: Demand = Demand.NONE
    host_memory: Demand = Demand.VARIES
    on_step: bool = False


@dataclass(frozen=True, kw_only=True)
class KnownKnob:
    """Row of the table of known knobs.

    Attributes:
        kind: Name of the row.
        names: Last parts of the key paths that mean it, lower case; of ambiguous ones with the section:
            ``trainer.benchmark``.
        accepts: Whether a present value is one that the row understands.
        domain: (present value, machine) → the values worth trying.
        heuristic_values: (present value, machine) → values that an expert would try, best guess first.
        label: Effect of a change on the training itself.
        sentence: Description for the user.
        effects: Effects on memory and on the step.
        bundled: Whether the first proposal sets it, with the other bundled rows: the cheap, safe ones.
        settling: Values whose speed shows only after one pass over the data.
        needs: Values of this row → what other rows must then hold, as far as they are knobs too.
        excludes: A value of this row → by row, the values that are an error together with it, whether they are knobs or
            not.
        is_one_switch: Whether all keys of a config that mean it are one switch, and move together.
        only_if_listed: Whether it is left as it is unless the user lists it under ``knobs:``.
    """

    kind: str
    names: tuple[str, ...]
    accepts: Callable[[Scalar], bool]
    domain: Callable[[Scalar, Machine], Choices]
    heuristic_values: Callable[[Scalar, Machine], Choices]
    label: Label
    sentence: str
    effects: Effects = field(default_factory=Effects)
    bundled: bool = False
    settling: Choices = ()
    needs: Mapping[Scalar, Mapping[str, Scalar]] = field(default_factory=dict)
    excludes: Callable[[Scalar], Mapping[str, Choices]] = lambda _value: {}
    is_one_switch: bool = False
    only_if_listed: bool = False

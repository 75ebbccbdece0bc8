"""Effective batch: the knobs that change it, and how large it is relative to the baseline's."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from autotune.records import Scalar, Values
from autotune.space.batch_sizes import ACCUMULATION_NAMES
from autotune.space.catalog import is_for_validation
from autotune.space.knob import Knob, Label, is_number, key_name


def is_batch_size(knob: Knob) -> bool:
    """Return whether a knob is a batch size whose change changes the effective batch of the training."""
    return knob.kind == "batch_size" and knob.label is Label.BATCH and not is_for_validation(knob.path)


def is_accumulation(knob: Knob) -> bool:
    """Return whether a knob is the number of batches that are accumulated for an update."""
    return key_name(knob.path) in ACCUMULATION_NAMES and all(is_number(n) and _number(n) >= 1 for n in knob.choices)


def effective_batch_ratio(knobs: Sequence[Knob], values: Values) -> float:
    """Return the effective batch of a point over that of the baseline; of several batch sizes the largest counts."""
    sizes = [_ratio(knob, values[knob.path]) for knob in knobs if is_batch_size(knob)]
    return max(sizes, default=1.0) * prod(_ratio(knob, values[knob.path]) for knob in knobs if is_accumulation(knob))


def up_to(knob: Knob, factor: float) -> Knob:
    """Return a batch size without the choices that are more than `factor` times the baseline's; others unchanged.

    Where none is left that an expert would try, the largest size is.
    """
    if not is_batch_size(knob):
        return knob
    kept = knob.narrowed([choice for choice in knob.choices if _ratio(knob, choice) <= factor])
    if knob.heuristic_values and not kept.heuristic_values and kept.choices[-1] != knob.baseline:
        kept = replace(kept, heuristic_values=kept.choices[-1:])
    return kept


def fixed(knob: Knob) -> Knob:
    """Return a knob with the baseline's value alone, and with none that an expert would try."""
    return replace(knob.narrowed([knob.baseline]), heuristic_values=())


def _ratio(knob: Knob, value: Scalar) -> float:
    return _number(value) / _number(knob.baseline)


def _number(value: Scalar) -> float:
    assert isinstance(value, int | float), "a batch or a number of them"
    return value

"""Page of the words in answers: endings of trials, their validity, verdicts, metrics, and the knobs that are known."""

import re
from collections.abc import Iterable

from autotune.config.keys import listed
from autotune.metrics import GPU_METRICS, METRICS, Direction, Metric
from autotune.records import Ending
from autotune.space.catalog import BATCH_NAMES, KNOWN_KNOBS, KnownKnob
from autotune.trial.outcome import EXPLANATIONS
from scripts.documentation.tables import code, table


def endings_page() -> str:
    """Return the page of the ways in which trials end."""
    rows = [(code(one.value), EXPLANATIONS[one].sentence, EXPLANATIONS[one].remedy) for one in Ending]
    return "\n\n".join(
        (
            "# Endings of trials",
            "Each trial has one, on the screen, under `outcomes` in [the JSON object](json.md), and in the record.",
            table(("ending", "what happened", "what to do"), rows),
        )
    )


def metrics_page() -> str:
    """Return the page of the numbers of a trial, and of its GPUs."""
    return "\n\n".join(
        (
            "# Metrics",
            "`metrics` of a side in [the JSON object](json.md) are medians over its trials. What was not measured is "
            "null, and `-` on the screen, never 0.",
            "## Of a trial",
            _metrics(METRICS.values()),
            "## Of a GPU",
            _metrics(GPU_METRICS.values()),
        )
    )


def knobs_page() -> str:
    """Return the page of the knobs that are found by their names."""
    rows = [
        (", ".join(map(code, _names(knob))), knob.meaning, knob.label.value, "yes" if knob.bundled else "")
        for knob in KNOWN_KNOBS
    ]
    return "\n\n".join(
        (
            "# Known knobs",
            "Found by the last part of the key, in any section, and only if the present value is one that fits. "
            "[The config](../config.md#the-known-knobs) says more. Of a batch size, "
            f"`{{device}}` is one of {listed([*map(code, BATCH_NAMES.devices)], 'or')}.",
            table(("names", "what it does", "for the training", "in the first proposal"), rows),
        )
    )


def _names(knob: KnownKnob) -> Iterable[str]:
    """Return the names of a known knob; of batch sizes that differ in the word for a device, the pattern."""
    if knob.counts != "samples":
        return knob.names
    device = re.compile(f"(?<=per_)({'|'.join(BATCH_NAMES.devices)})(?=_|$)")
    return dict.fromkeys(device.sub("{device}", name) for name in knob.names)


def _metrics(metrics: Iterable[Metric]) -> str:
    better = {Direction.HIGHER: "more is better", Direction.LOWER: "less is better", Direction.NONE: ""}
    rows = [(code(metric.name), metric.label, metric.unit, better[metric.better]) for metric in metrics]
    return table(("name", "on the screen", "unit", ""), rows)

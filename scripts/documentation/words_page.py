"""Reference pages of endings, metrics and known knobs."""

import re
from collections.abc import Iterable

from autotune.config.keys import listed
from autotune.metrics import GPU_METRICS, METRICS, Direction, Metric
from autotune.records import Ending
from autotune.space.catalog import BATCH_NAMES, KNOWN_KNOBS, KnownKnob
from autotune.trial.outcome import EXPLANATIONS
from scripts.documentation.tables import code, table


def endings_page() -> str:
    """Return the page of the endings of trials."""
    rows = [(code(one.value), EXPLANATIONS[one].sentence, EXPLANATIONS[one].remedy) for one in Ending]
    return "\n\n".join(
        (
            "# Endings of trials",
            "Find out why a trial ended, and what to do. The screen, `outcomes` of [the JSON object](json.md) and the "
            "record name the ending.",
            table(("ending", "meaning", "remedy"), rows),
        )
    )


def metrics_page() -> str:
    """Return the page of the metrics of a trial and of its GPUs."""
    return "\n\n".join(
        (
            "# Metrics",
            "Look up what a metric measures, and its unit. `metrics` of a side in [the JSON object](json.md) are "
            "medians over its trials. A missing measurement is null in JSON and `-` on the screen, never 0.",
            "## Of a trial",
            _metrics(METRICS.values()),
            "## Of a GPU",
            _metrics(GPU_METRICS.values()),
        )
    )


def knobs_page() -> str:
    """Return the page of the known knobs."""
    rows = [
        (", ".join(map(code, _names(knob))), knob.meaning, knob.label.value, "yes" if knob.bundled else "")
        for knob in KNOWN_KNOBS
    ]
    return "\n\n".join(
        (
            "# Known knobs",
            "Look up which keys of your config autotune varies. It finds them by the last part of the key, in any "
            "section, if the current value fits ([more](../config.md#the-known-knobs)). In names of batch sizes, "
            f"`{{device}}` is {listed([*map(code, BATCH_NAMES.devices)], 'or')}.",
            table(("names", "purpose", "effect on training", "in the first proposal"), rows),
        )
    )


def _names(knob: KnownKnob) -> Iterable[str]:
    """Return the names of a known knob; for batch sizes, one pattern for all device names."""
    if knob.counts != "samples":
        return knob.names
    device = re.compile(f"(?<=per_)({'|'.join(BATCH_NAMES.devices)})(?=_|$)")
    return dict.fromkeys(device.sub("{device}", name) for name in knob.names)


def _metrics(metrics: Iterable[Metric]) -> str:
    better = {Direction.HIGHER: "higher", Direction.LOWER: "lower", Direction.NONE: ""}
    rows = [(code(metric.name), metric.label, metric.unit, better[metric.better]) for metric in metrics]
    return table(("name", "on the screen", "unit", "better"), rows)

"""The summary says every option with the value that it has."""

from dataclasses import fields

from autotune.tf.options import Cache, PipelineOptions, RuntimeOptions, StepOptions, TextOptions
from autotune.tf.step import summary


def test_every_option_is_named_with_its_value() -> None:
    """One paragraph a record, no line too wide, no option left out."""
    records = {
        "runtime": RuntimeOptions(),
        "texts": TextOptions(workers=3),
        "pipeline": PipelineOptions(batch_size=8, cache=Cache.DISK, fixed_length=True),
        "step": StepOptions(),
    }
    text = summary(**records)
    assert max(map(len, text.splitlines())) <= 120
    one_line = " ".join(text.split())
    for name, record in records.items():
        assert f"{name} {fields(record)[0].name} " in one_line
        assert all(f"{item.name} " in one_line for item in fields(record))
    for said in ("workers 3,", "cache disk,", "fixed_length yes,", "throughput no", "precision float32"):
        assert said in one_line
    assert len([line for line in text.splitlines() if not line.startswith(" ")]) == len(records)

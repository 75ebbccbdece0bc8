"""Promises of the GPU collector's lines: what is written is read back, and nothing unknown breaks a reader."""

import json
from types import NoneType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.gpu.records import Record, of_line, to_line

SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(0, 2**53),
    str: st.text(max_size=40),
    bool: st.booleans(),
    NoneType: st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of the type of a field."""
    parts = get_args(kind)
    if get_origin(kind) is tuple and parts[-1] is ...:
        return st.lists(values_of(parts[0]), max_size=4).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*map(values_of, parts))
    return st.one_of(*map(values_of, parts)) if parts else SIMPLE[kind]


def records_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return records of one kind."""
    return st.builds(kind, **{field.name: values_of(field.type) for field in msgspec.structs.fields(kind)})


records = st.one_of(*map(records_of, get_args(Record)))


@given(records)
def test_every_record_survives_the_wire(record):
    """One line, and the same record from it."""
    line = to_line(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert of_line(line) == record


@given(records)
def test_fields_of_a_later_version_are_ignored(record):
    """A reader takes what it knows."""
    row = {**json.loads(to_line(record)), "invented_later": [1, 2]}
    assert of_line(json.dumps(row)) == record


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"k":"gpu","t_s":1',
        "17",
        "null",
        "[" * 100_000,
        '{"k":"gpu","t_s":1.0}',
        '{"k":"weather","t_s":1.0}',
        b"\xff",
    ],
)
def test_what_is_no_whole_record_is_none(line):
    """Torn lines, garbage, and kinds of a later version: none of it stops the reader."""
    assert of_line(line) is None

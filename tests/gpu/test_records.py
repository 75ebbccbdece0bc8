"""Promises of the GPU collector's lines: what is written is read back, and nothing unknown breaks a reader."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.gpu.records import (
    BusyWindows,
    CapabilityOff,
    GpuFound,
    GpuLost,
    GpuState,
    ProcessShares,
    StreamStarted,
    UnitActivity,
    of_line,
    to_line,
)

numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**53)
uuids = st.text(max_size=40)


def some(values):
    """The value, or not known."""
    return st.none() | values


def several(*columns):
    """A tuple of rows."""
    return st.lists(st.tuples(*columns), max_size=4).map(tuple)


records = st.one_of(
    st.builds(StreamStarted, t_s=numbers, v=counts, pid=counts, driver=st.text()),
    st.builds(GpuFound, t_s=numbers, uuid=uuids, name=st.text(), memory_bytes=some(counts)),
    st.builds(BusyWindows, t_s=numbers, uuid=uuids, source=st.text(), windows=several(numbers, numbers, numbers)),
    st.builds(
        GpuState,
        t_s=numbers,
        uuid=uuids,
        memory_bytes=some(counts),
        power_w=some(numbers),
        energy_j=some(numbers),
        temperature_c=some(counts),
        sm_clock_mhz=some(counts),
        reasons=some(st.lists(st.text()).map(tuple)),
        holders=some(several(counts, some(counts), st.booleans())),
    ),
    st.builds(ProcessShares, t0_s=numbers, t_s=numbers, uuid=uuids, shares=several(counts, numbers)),
    st.builds(
        UnitActivity,
        t0_s=numbers,
        t_s=numbers,
        uuid=uuids,
        sm=some(numbers),
        tensor=some(numbers),
        dram=some(numbers),
    ),
    st.builds(CapabilityOff, t_s=numbers, uuid=uuids, capability=st.text(), why=st.text()),
    st.builds(GpuLost, t_s=numbers, uuid=some(uuids), name=st.text(), why=st.text()),
)


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

"""Profiles: what is written is read back, and what no study can have left is not."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.study.profiles import MOST_POINTS, ProfilePoint, attribute_of, distinct, profile_of_attribute
from tests.study.profiles import A100, GIB, profile

_POINT = {"data.batch_size": 32, "data.num_workers": 4, "data.cache": "memory"}


def test_is_read_back_as_it_was_written() -> None:
    """A profile comes through JSON whole, with the types of its values."""
    kinds = {"a": None, "b": "batch_size", "c": None, "d": None}
    one = profile("s", ({"a": True, "b": 1, "c": 1.5, "d": None}, 0.5), kinds=kinds, exhausted=[{"b": 64}])
    assert profile_of_attribute(json.loads(json.dumps(attribute_of(one)))) == one


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"study": 5},
        {"study": "x" * 500},
        {"hardware": {"cpu_model": "x\x1b[2J", "cpu_cores": 1, "memory_bytes": 1, "gpus": []}},
        {"hardware": {"cpu_model": "x", "cpu_cores": 1, "memory_bytes": 1, "gpus": [["a\nb", 1]]}},
        {"kinds": {f"k{number}": None for number in range(300)}},
        {"points": [{"values": {"unknown": 1}, "gain": 0.1, "sd": 0.1}]},
        {"points": [{"values": {"data.batch_size": "9" * 500}, "gain": 0.1, "sd": 0.1}]},
        {"points": [{"values": {"data.batch_size": [1]}, "gain": 0.1, "sd": 0.1}]},
        {"points": [{"values": {"data.batch_size": 1}, "gain": 1e9, "sd": 0.1}]},
        {"points": [{"values": {"data.batch_size": 1}, "gain": math.nan, "sd": 0.1}]},
        {"points": [{"values": {"data.batch_size": 1}, "gain": 0.1, "sd": 0.1}] * (MOST_POINTS + 1)},
        {"exhausted": [{"values": {"data.batch_size": 1}, "ending": "crashed"}]},
        {"hardware": {"cpu_model": "x", "cpu_cores": 0, "memory_bytes": 1, "gpus": []}},
        {"hardware": {"cpu_model": "x", "cpu_cores": 1, "memory_bytes": 1 << 70, "gpus": []}},
    ],
)
def test_what_no_study_can_have_left_is_not_read(change: dict[str, Any]) -> None:
    """Another format, another type, a number out of range, or too much of anything makes it none of ours."""
    written = attribute_of(profile("s", (_POINT, 0.5)))
    assert profile_of_attribute(written) is not None
    assert profile_of_attribute({**written, **change}) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(field=st.sampled_from([*attribute_of(profile()), "more"]), value=_JSON)
def test_whatever_stands_in_a_field_is_read_or_refused(field: str, value: Any) -> None:
    """A storage that others write to may hold anything; reading never raises."""
    profile_of_attribute({**attribute_of(profile("s", (_POINT, 0.5))), field: value})
    profile_of_attribute(value)


def test_points_alike_are_kept_once() -> None:
    """A neighbour that differs in one knob gives its place to the next one that differs in more."""
    best = {"a": 1, "b": 1, "c": 1}
    points = [
        ProfilePoint(values={**best, **changes}, gain=0.5, sd=0.0)
        for changes in ({}, {"a": 2}, {"a": 2, "b": 2}, {"a": 3, "b": 3, "c": 3})
    ]
    assert [point.values for point in distinct(points, 3)] == [points[0].values, points[2].values, points[3].values]


def test_a_class_of_hardware_does_not_depend_on_some_bytes() -> None:
    """Memory is compared in whole GiB, as for the identity of studies."""
    assert A100.is_class_of(replace(A100, memory_bytes=A100.memory_bytes - 1000))
    assert not A100.is_class_of(replace(A100, memory_bytes=64 * GIB))

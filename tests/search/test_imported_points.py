"""Imported points: values of another machine, or another config, in the terms of this space."""

from dataclasses import replace

import pytest

from autotune.records import Ending, Gpu, Machine, Scalar
from autotune.search.warm_start import MOST_IMPORTED_POINTS, imported_points, memory_hints
from autotune.space.knob import Label
from autotune.space.space import Space
from autotune.study.profiles import Hardware, Likeness, ProfilePoint, Sibling
from tests.runs import knob
from tests.study.profiles import GIB, profile

SPACE = Space(
    knobs=(
        knob("data.batch_size", 8, 16, 32, 64, kind="batch_size", label=Label.BATCH),
        knob("data.num_workers", 1, 2, 4, kind="workers"),
        knob("data.cache", "none", "memory", kind="cache"),
    )
)
MACHINE = Machine(
    cpu_cores=4, cpu_model="x", memory_bytes=64 * GIB, gpus=(Gpu(name="x", uuid="GPU-1", memory_bytes=20 * GIB),)
)
POINT: dict[str, Scalar] = {"data.batch_size": 32, "data.num_workers": 2, "data.cache": "memory"}


def _sibling(
    *points: tuple[dict[str, Scalar], float], likeness: Likeness = Likeness.SAME_TRAINING, **more: object
) -> Sibling:
    return Sibling(profile=profile("s", *points, **more), likeness=likeness, distance=1.0)  # type: ignore[arg-type]


def _values(*found: Sibling) -> list[object]:
    return [dict(point.values) for point in imported_points(SPACE, found, MACHINE, memory_margin=0.08)]


def test_a_key_of_another_name_is_known_by_its_kind() -> None:
    """Where each side has one knob of a kind, it is the same one."""
    kinds = {"loader.workers": "workers", "train.bs": "batch_size", "x": None}
    point: dict[str, Scalar] = {"loader.workers": 4, "train.bs": 64, "x": 5}
    assert _values(_sibling((point, 0.5), kinds=kinds)) == [
        {"data.batch_size": 64, "data.num_workers": 4, "data.cache": "none"}
    ]


def test_siblings_take_turns_nearest_first() -> None:
    """The best of each comes before the second best of any, and there are only a few in all."""
    near = _sibling((POINT, 0.2), ({**POINT, "data.batch_size": 64}, 0.1))
    far = _sibling(({**POINT, "data.cache": "none"}, 0.9))
    assert [point.gain for point in imported_points(SPACE, [near, far], MACHINE, memory_margin=0.08)] == [0.2, 0.9, 0.1]
    many = [
        _sibling(({**POINT, "data.batch_size": size, "data.num_workers": w}, 0.1))
        for size in (8, 16, 64)
        for w in (1, 4)
    ]
    assert len(imported_points(SPACE, many, MACHINE, memory_margin=0.08)) == MOST_IMPORTED_POINTS


@pytest.mark.parametrize(("here", "counts"), [(24, True), (40, True), (80, False), (None, False)])
def test_what_ran_out_of_memory_counts_where_there_is_no_more(here: int | None, counts: bool) -> None:
    """A batch that was too large for 40 GiB may be fine with 80; numbers stay as they were, not the ladder's."""
    gpu = Gpu(name="x", uuid="GPU-1", memory_bytes=here and here * GIB)
    machine = Machine(cpu_cores=8, cpu_model="x", memory_bytes=32 * GIB, gpus=(gpu,))
    hints = memory_hints(SPACE, [_sibling(exhausted=[{"data.batch_size": 256}])], machine)
    assert [hint.values["data.batch_size"] for hint in hints] == ([256] if counts else [])
    assert all(hint.ending is Ending.OUT_OF_GPU_MEMORY for hint in hints)


@pytest.mark.parametrize(
    ("gpu_gib", "host_gib", "batch"),
    [(None, None, 64), (18, 32, 64), (36, 32, 32), (18, 116, 32), (300, None, 8), (0, 0, 64)],
)
def test_a_batch_that_used_more_memory_than_there_is_becomes_smaller(
    gpu_gib: int | None, host_gib: int | None, batch: int
) -> None:
    """In proportion to the memory of the kind that is short; where the use is not known, it stays."""
    point = ProfilePoint(
        values={**POINT, "data.batch_size": 64},
        gain=0.5,
        sd=0.1,
        gpu_memory_bytes=gpu_gib and gpu_gib * GIB,
        host_memory_bytes=host_gib and host_gib * GIB,
    )
    sibling = _sibling()
    found = replace(sibling, profile=replace(sibling.profile, points=(point,)))
    assert _values(found) == [{**POINT, "data.batch_size": batch}]


def test_as_many_workers_as_cores_become_as_many_as_there_are_here() -> None:
    """What the other machine's cores had limited is limited by this one's; fewer workers were enough, and stay."""
    few = Hardware(cpu_model="x", cpu_cores=2, memory_bytes=128 * GIB)
    assert _values(_sibling(({**POINT, "data.num_workers": 2}, 0.5), hardware=few)) == [
        {**POINT, "data.num_workers": 4}
    ]
    assert _values(_sibling(({**POINT, "data.num_workers": 1}, 0.5), hardware=few)) == [
        {**POINT, "data.num_workers": 1}
    ]

"""Runs as a study keeps them, for tests of what is made of them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from autotune.records import Ending, Measurement, Purpose, RunRecord, Scalar, Validity, Values
from autotune.search.levels import PointLevel
from autotune.space.knob import Knob, Label
from autotune.space.space import Space, point_name

MakeRun = Callable[..., RunRecord]


def knob(path: str, today: Scalar, *others: Scalar, **changes: Any) -> Knob:
    """A knob of the user's own; numbers are ordered."""
    choices: Any = (today, *others)
    ordered = all(isinstance(choice, int) and not isinstance(choice, bool) for choice in choices)
    fields = {
        "path": path,
        "paths": (path,),
        "choices": tuple(sorted(choices)) if ordered else choices,
        "ordered": ordered,
        "today": today,
        "label": Label.SAME_TRAINING,
    }
    return Knob(**{**fields, **changes})


def level(
    space: Space,
    *scores: float,
    endings: tuple[Ending, ...] = (),
    memory: Mapping[str, Any] = MappingProxyType({}),
    **changes: Scalar,
) -> PointLevel:
    """What is known of today's point with these changes; a knob is named by the last part of its path."""
    paths = {path.rpartition(".")[2]: path for path in space.today}
    values = {**space.today, **{paths[name]: value for name, value in changes.items()}}
    durations_s = (5.0,) * (len(scores) + len(endings))
    return PointLevel(
        name=point_name(values), values=values, scores=scores, endings=endings, durations_s=durations_s, **memory
    )


def named(*levels: PointLevel) -> dict[str, PointLevel]:
    """Levels as the search passes them on."""
    return {level.name: level for level in levels}


@pytest.fixture
def make_run() -> MakeRun:
    """Makes one finished run with the given speed; ``samples_per_s=None`` makes a crashed one."""
    count = iter(range(10_000))

    def make(values: Values, samples_per_s: float | None, **changes: Any) -> RunRecord:
        measurement = samples_per_s and Measurement(
            window_s=2.0,
            steps=20,
            samples_per_s=samples_per_s,
            cv=0.1,
            step_p50_s=0.1,
            step_p95_s=0.12,
            data_wait_fraction=0.5,
            first_step_s=8.0,
        )
        fields: dict[str, Any] = {
            "number": next(count),
            "search": "s1",
            "point": point_name(values),
            "values": values,
            "purpose": Purpose.EXPLORE,
            "ending": Ending.STOPPED if measurement else Ending.CRASHED,
            "validity": Validity.GOOD if measurement else Validity.UNMEASURED,
            "ended_utc": "2026-01-01T00:00:00+00:00",
            "duration_s": 10.0,
            "measurement": measurement or None,
        }
        return RunRecord(**{**fields, **changes})

    return make

"""Checks of a recorded trial when it is read back."""

import contextlib
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.measure.score import OBJECTIVES
from autotune.records import Conditions, GpuConditions, LossCurve, Purpose, RaceArm, RaceLeg, TrialRecord, Validation
from autotune.space.space import Space
from autotune.study.entry import attributes_of, record_of
from autotune.study.summary import latest_search, summarize
from tests.runs import MakeTrial, gpu, knob, on_gpu

VALUES = {"data.batch_size": 8, "x.rate": 1e-4}
SPACE = Space(knobs=(knob("data.batch_size", 8, 16), knob("x.rate", 1e-4, 1e-3)))


def written(trial: TrialRecord) -> dict[str, Any]:
    """A trial as the journal gives it back."""
    attributes: dict[str, Any] = json.loads(json.dumps(attributes_of(trial)))
    return attributes


def test_a_run_is_read_as_it_was_written(make_trial: MakeTrial) -> None:
    """With its GPUs, a share that rounding has put above 1, and values that are no number at all."""
    trial = on_gpu(
        make_trial({"a": float("inf"), "b": None, "c": "x"}, 60.0, number=3), gpu([0.5, 1.0], own_fraction=1.4), 1.0
    )  # sums over processes
    assert record_of(3, written(trial)) == trial
    assert trial.measurement
    full = replace(trial, measurement=replace(trial.measurement, gpu_utilization=1.0 + 1e-12))
    assert record_of(3, written(full)) == full
    losses = LossCurve(ends_s=(0.5, 1.0), losses=(2.0, 1.5), samples=(8.0, 16.0))
    leg = RaceLeg(arm=RaceArm.WINNER, pair=0, trained_s=1.0, curve=losses, evaluation_loss=1.5, held_out=losses)
    raced = replace(trial, purpose=Purpose.RACE, race=leg)
    assert record_of(3, written(raced)) == raced
    validation = Validation(trained_s=61.5, checkpoints=2, speed_ratio=1.5, broke=("crashed after 1m",))
    validated = replace(trial, purpose=Purpose.VALIDATE, validation=validation)
    assert record_of(3, written(validated)) == validated


def test_conditions_are_stored_as_flat_scalars(make_trial: MakeTrial) -> None:
    """In the order of the fields; a search stores the absence of a GPU, and what another version wrote is kept."""
    conditions = Conditions(
        autotune="1.0",
        host="a",
        frameworks={"torch": "2.9"},
        gpu=GpuConditions(driver=None, readings={"gpu0.name": "A100", "gpu0.clock_reasons": None}, not_measured="lost"),
        changes=("batch", "precision"),
        alone=False,
        unheeded=("a.b", "a.c"),
        free_data_ratio=1.5,
        further={"gpu1": 7, "later": None},
    )
    trial = make_trial(VALUES, 60.0, conditions=conditions)
    assert written(trial)["conditions"] == {
        "autotune": "1.0",
        "host": "a",
        "machine": None,
        "gpus": None,
        "framework.torch": "2.9",
        "gpu_driver": None,
        "gpu0.name": "A100",
        "gpu0.clock_reasons": None,
        "gpu_not_measured": "lost",
        "changes": "batch,precision",
        "alone": False,
        "unheeded": "a.b\na.c",
        "free_data_ratio": 1.5,
        "gpu1": 7,
        "later": None,
    }
    read = record_of(0, written(trial))
    assert read.conditions == conditions
    assert list(written(read)["conditions"]) == list(written(trial)["conditions"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("search", 5),
        ("values", {"a": [1]}),
        ("purpose", "fun"),
        ("duration_s", "5"),
        ("duration_s", float("nan")),
        ("pair", True),
        ("detail", "\ud800"),
        ("conditions", {"gpus": [1]}),
        ("conditions", {"another": [1]}),
        ("conditions", {"changes": 1}),
        ("conditions", {"pairs_planned": "6"}),
        ("conditions", {"pairs_planned": -1}),
        ("conditions", [1]),
        ("measurement", {}),
        ("measurement.window_s", 0.0),
        ("measurement.steps", 10**400),
        ("measurement.samples_per_s", 1e300),
        ("measurement.cv", float("inf")),
        ("measurement.gpu_utilization", float("nan")),
        ("measurement.gpu_memory_bytes", 1 << 80),
        ("measurement.gpus", [{}]),
        ("measurement.gpus.0.figures.utilization", float("nan")),
        ("measurement.gpus.0.busy_windows", [[1.0, 0.5, 2.0]]),
        ("measurement.gpus.0.busy_windows.0.1", 1e300),
        ("measurement.gpus.0.figures.sm_activity", 1.5),
        ("format", True),
        ("format", 3),
    ],
)
def test_what_no_trial_can_hold_is_not_read(make_trial: MakeTrial, path: str, value: object) -> None:
    """Wrong types and absurd numbers, wherever they stand; the reason is one printable line."""
    attributes = written(on_gpu(make_trial(VALUES, 60.0), gpu([0.5, 1.0])))
    place: Any = attributes
    *folders, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in folders:
        place = place[part]
    place[last] = value
    with pytest.raises(ValueError, match=r"^[ -~]+$"):
        record_of(0, attributes)


@pytest.mark.parametrize("name", ["search", "values", "measurement", "pair", "detail", "format"])
def test_what_is_missing_is_not_made_up(make_trial: MakeTrial, name: str) -> None:
    """A trial of ours has all its fields."""
    attributes = written(make_trial(VALUES, 60.0))
    del attributes[name]
    with pytest.raises(ValueError, match=r"is missing|another format"):
        record_of(0, attributes)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**40), max_value=10**40),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["good", "confirm", "today", "\x1b[2J", "\ud800", [], {}, [[]], {"a": {}}, -0.0, 5e-324, 1.7e308]),
)


def places(value: Any, *path: str | int) -> list[tuple[str | int, ...]]:
    """All places of a JSON value."""
    below = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path, *(place for key, part in below for place in places(part, *path, key))]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_changed_in_a_record_gives_an_answer_or_leaves_the_trial_out(
    make_trial: MakeTrial, data: st.DataObject
) -> None:
    """Nothing that passes the door can break what works out the answer."""
    trials = [
        make_trial(VALUES, 60.0, purpose=Purpose.BASELINE),
        make_trial({**VALUES, "x.rate": 1e-3}, 80.0),
        *(make_trial(VALUES, 60.0 + pair, purpose=Purpose.CONFIRM, pair=pair) for pair in range(4)),
        *(make_trial({**VALUES, "x.rate": 1e-3}, 80.0 + pair, purpose=Purpose.CONFIRM, pair=pair) for pair in range(4)),
    ]
    record = [copy.deepcopy(written(on_gpu(trial, gpu([0.5, 0.75, 1.0] * 30)))) for trial in trials]
    for _ in range(data.draw(st.integers(1, 3))):
        changed = data.draw(st.sampled_from(record))
        *folders, last = data.draw(st.sampled_from([place for place in places(changed) if place]))
        place: Any = changed
        for part in folders:
            place = place[part]
        if isinstance(place, dict) and data.draw(st.booleans()):
            del place[last]
        else:
            place[last] = data.draw(ODD)
    read = []
    for number, attributes in enumerate(record):
        with contextlib.suppress(ValueError):
            read.append(record_of(number, attributes))
    for objective in OBJECTIVES.values():
        search = latest_search(read, objective)
        result = search and summarize(read, search, SPACE, objective=objective)
        if result:
            json.dumps(result.outcomes)
            assert result.baseline is not None

"""Reading of step files, whatever a training process writes into them."""

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.records import TraineeEvent
from autotune.stage_times import PipelineTimes, StageTimes
from autotune.trial.step_files import StepReader

HEADER = {"v": 1, "pid": 47, "clock": "monotonic", "start_s": 1.5, "source": "step", "devices": ["GPU-1"]}


def write(folder: Path, *lines: object, name: str = "steps.47.0.jsonl") -> None:
    """Append lines: objects as JSON, texts as they are."""
    with (folder / name).open("a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def test_events_arrive_with_their_units(tmp_path: Path) -> None:
    """The header, a step and the other kinds become events; what is not known is None."""
    write(
        tmp_path,
        HEADER,
        {"k": "step", "t_s": 2.0, "wait_s": 0.25, "samples": 8, "work": 4520, "update": True},
        {"k": "step", "t_s": 3.0, "loss": 0.5, "update": False},
        {"k": "epoch_end", "t_s": 4.0},
    )
    assert StepReader(tmp_path).poll() == [
        TraineeEvent(kind="start", t_s=1.5, stream="47.0", devices=("GPU-1",)),
        TraineeEvent(kind="step", t_s=2.0, stream="47.0", wait_s=0.25, samples=8.0, work=4520.0),
        TraineeEvent(kind="step", t_s=3.0, stream="47.0", update=False, loss=0.5),
        TraineeEvent(kind="epoch_end", t_s=4.0, stream="47.0"),
    ]


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        (["GPU-8932f937-d72c", "MIG-GPU-8932f937/1/0"], ("GPU-8932f937-d72c", "MIG-GPU-8932f937/1/0")),
        (["GPU-1", 7, None, "cuda:0"], ("GPU-1",)),
        ("GPU-1", ()),
        (None, ()),
    ],
)
def test_devices_are_taken_only_if_they_look_like_uuids(tmp_path: Path, devices: object, told: tuple[str, ...]) -> None:
    """A trainer may name its devices in another way, which is passed over."""
    write(tmp_path, {**HEADER, "devices": devices})
    assert [event.devices for event in StepReader(tmp_path).poll()] == [told]


@pytest.mark.parametrize(
    ("written", "loss"),
    [
        ("NaN", math.nan),
        ("-Infinity", -math.inf),
        ('"nan"', math.nan),
        ('"-inf"', -math.inf),
        ('"0.5"', None),
        ("null", None),
        ("1e999", math.inf),
        ("true", None),
        ("7", 7.0),
    ],
)
def test_a_loss_may_be_no_number(written: str, loss: float | None, tmp_path: Path) -> None:
    """NaN and infinities arrive in both spellings; other texts are no loss."""
    write(tmp_path, f'{{"k": "loss", "t_s": 1.0, "loss": {written}}}')
    (event,) = StepReader(tmp_path).poll()
    assert repr(event.loss) == repr(loss)


NO_EVENTS = {
    "nothing": "",
    "rubbish": "rubbish",
    "a list": "[1, 2]",
    "a number": "3",
    "no time": '{"k": "step"}',
    "a text for a time": '{"k": "step", "t_s": "1"}',
    "a truth for a time": '{"k": "step", "t_s": true}',
    "no number for a time": '{"k": "step", "t_s": NaN}',
    "a time that no float holds": '{"k": "step", "t_s": 1' + "0" * 400 + "}",
    "a time that Python refuses": '{"k": "step", "t_s": 1' + "0" * 5000 + "}",
    "a kind of tomorrow": '{"k": "of tomorrow", "t_s": 1.0}',
    "a list for a kind": '{"k": ["step"], "t_s": 1.0}',
    "half a header": '{"v": 1, "pid": 47}',
    "nested": "[" * 10_000,
    "long": '{"k": "step", "t_s": 1.0, "note": "' + "x" * 20_000 + '"}',
}


@pytest.mark.parametrize("name", NO_EVENTS)
def test_what_is_no_event_is_passed_over(name: str, tmp_path: Path) -> None:
    """One bad line costs itself and nothing else."""
    write(tmp_path, {"k": "step", "t_s": 1.0}, NO_EVENTS[name], {"k": "step", "t_s": 2.0})
    reader = StepReader(tmp_path)
    assert [event.t_s for event in reader.poll()] == [1.0, 2.0]


def test_amounts_that_cannot_be_are_not_known(tmp_path: Path) -> None:
    """A negative or infinite number of samples is no number, but the step has happened."""
    write(tmp_path, '{"k": "step", "t_s": 1.0, "samples": -8, "work": Infinity, "wait_s": "long"}')
    assert StepReader(tmp_path).poll() == [TraineeEvent(kind="step", t_s=1.0, stream="47.0")]


@pytest.mark.parametrize("change", [{"v": 2}, {"v": None}, {"clock": "wall"}])
def test_a_stream_that_would_be_misread_is_not_read(change: dict[str, object], tmp_path: Path) -> None:
    """Another version, or another clock: not one of its steps counts, now or later."""
    reader = StepReader(tmp_path)
    write(tmp_path, HEADER | change, {"k": "step", "t_s": 1.0})
    assert reader.poll() == []
    write(tmp_path, {"k": "step", "t_s": 2.0})
    assert reader.poll() == []


def test_a_flood_costs_a_bounded_read_and_starves_nobody(tmp_path: Path) -> None:
    """Of a stream of 100 MB without an end, one poll reads about a mebibyte; another stream is read as well."""
    flood = tmp_path / "steps.1.0.jsonl"
    with flood.open("wb") as file:
        file.truncate(100 << 20)
    write(tmp_path, {"k": "step", "t_s": 1.0}, name="steps.2.0.jsonl")
    reader = StepReader(tmp_path)
    assert [event.stream for event in reader.poll()] == ["2.0"]
    for _ in range(300):
        assert reader.poll() == []
    with flood.open("ab") as file:
        file.write(b'\n{"k": "step", "t_s": 2.0}\n')
    assert [event.stream for event in reader.poll()] == ["1.0"]


LINES = st.lists(
    st.one_of(
        st.builds(
            lambda t_s, loss: json.dumps({"k": "step", "t_s": t_s, "loss": loss}).encode(),
            st.floats(0, 1e6),
            st.none() | st.floats(),
        ),
        st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    ),
    max_size=20,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_where_the_writing_is_cut_makes_no_difference(
    lines: list[bytes], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any content in any pieces gives the same events, and never an error."""
    data = b"".join(line + b"\n" for line in lines)
    folder = tmp_path_factory.mktemp("steps")
    path = folder / "steps.47.0.jsonl"
    reader = StepReader(folder)
    pieces: list[TraineeEvent] = []
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        with path.open("ab") as file:
            file.write(data[start:end])
        pieces += reader.poll()
    whole = StepReader(folder)
    assert sorted(map(repr, pieces)) == sorted(map(repr, whole.poll()))


STAGE = {"batches": 40, "busy_s": 1.5, "input_s": 0.25, "room_s": 0.0}


def test_times_of_stages_come_with_their_event(tmp_path: Path) -> None:
    """Both stages and the time passed; times that are none are left out, and the event stays."""
    good = {"passed_s": 2.0, "data": STAGE, "model": {**STAGE, "busy_s": 1.75}}
    bad: list[object] = [
        None,
        [],
        "x",
        {},
        {**good, "passed_s": -1},
        {**good, "data": None},
        {**good, "model": {**STAGE, "busy_s": "1"}},
        {**good, "model": {**STAGE, "batches": math.nan}},
        {**good, "data": {"batches": 40}},
    ]
    write(tmp_path, HEADER, *({"k": "stages", "t_s": 2.0, "stages": stages} for stages in (good, *bad)))
    read = [event.stages for event in StepReader(tmp_path).poll() if event.kind == "stages"]
    assert read[0] == PipelineTimes(
        passed_s=2.0, data=StageTimes(**STAGE), model=StageTimes(**{**STAGE, "busy_s": 1.75})
    )
    assert read[1:] == [None] * len(bad)

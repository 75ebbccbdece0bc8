"""Labels of values are what the samples of trials show, whatever the key is called."""

from dataclasses import replace

import pytest

from autotune.records import DataEffect, DataFinding, TrialRecord, Values
from autotune.space.knob import Label
from autotune.space.space import Space
from autotune.study.data_effects import finding_of, labelled
from tests.runs import MakeTrial, knob

SPACE = Space(
    knobs=(
        knob("workers", 0, 2, 4, kind="workers"),
        knob("threads", 1, 2, kind="torch_threads"),
        knob("size", 8, 16, label=Label.BATCH, kind="batch_size"),
        knob("mine", 1, 2, label=Label.UNKNOWN),
    )
)


@pytest.fixture
def trial(make_trial: MakeTrial):
    """Makes a trial of some changes, whose data were found to be like this."""

    def made(effect: DataEffect, **changes: int) -> TrialRecord:
        values: Values = {**SPACE.baseline, **changes}
        return replace(make_trial(values, 50.0), data=DataFinding(effect, "evidence"))

    return made


def _labels(*records: TrialRecord) -> dict[tuple[str, object], Label]:
    return dict(labelled(SPACE, records).relabelled)


def test_a_change_is_blamed_that_all_trials_which_differ_have(trial) -> None:
    """Of several that they all have, the one that is about how batches are made; never one of a trial that is alike."""
    different, same = DataEffect.DIFFERENT, DataEffect.SAME
    assert _labels(trial(different, workers=2)) == {("workers", 2): Label.DATA}
    assert _labels(trial(different, workers=2, threads=2)) == {("workers", 2): Label.DATA}
    assert _labels(trial(different, workers=2, threads=2), trial(different, workers=4)) == {
        ("workers", 2): Label.DATA,
        ("workers", 4): Label.DATA,
    }
    innocent = trial(same, workers=2)
    assert _labels(trial(different, workers=2, threads=2), innocent) == {("threads", 2): Label.DATA}
    assert _labels(innocent, trial(DataEffect.UNVERIFIED, threads=2)) == {}


def test_what_other_batches_have_without_a_difference_is_not_blamed(trial) -> None:
    """Their samples were compared, too, but for the batch; not even where a trial saw no difference once."""
    batch, different = DataEffect.BATCH, DataEffect.DIFFERENT
    without = [trial(batch, workers=2, size=16), *(trial(batch, workers=2, threads=2, size=16) for _ in range(2))]
    differs = trial(different, workers=2, threads=2, size=16, mine=2)
    once_not = trial(batch, workers=4, size=16, mine=2)
    assert _labels(*without, differs) == {("mine", 2): Label.DATA}
    assert _labels(*without, differs, once_not, differs) == {("mine", 2): Label.DATA}


def test_a_batch_by_another_name_is_a_batch(trial) -> None:
    """Unless a batch size explains it."""
    assert _labels(trial(DataEffect.BATCH, mine=2)) == {("mine", 2): Label.BATCH}
    assert _labels(trial(DataEffect.BATCH, mine=2, size=16)) == {}


def test_labels_follow_the_value(trial) -> None:
    """A point with it is another training; one without it is not."""
    space = labelled(SPACE, [trial(DataEffect.DIFFERENT, workers=2)])
    assert space.labels_of({**SPACE.baseline, "workers": 2}) == {Label.DATA}
    assert space.is_same_training({**SPACE.baseline, "workers": 4})


def test_one_trial_that_differs_speaks_for_its_point(trial) -> None:
    """Short trials may see too little; none of them sees a difference that is not there."""
    alike, differs, unseen = (
        trial(effect, workers=2) for effect in (DataEffect.SAME, DataEffect.DIFFERENT, DataEffect.UNVERIFIED)
    )
    point = alike.point
    assert finding_of([unseen, alike], point) == alike.data
    assert finding_of([unseen, alike, differs], point) == differs.data
    assert finding_of([], point) is None

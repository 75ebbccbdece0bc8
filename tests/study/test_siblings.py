"""Siblings: which studies of other machines and configs tell something about this one."""

from dataclasses import replace

from autotune.study.profiles import Likeness, siblings
from tests.study.profiles import A100, CPU, KINDS, L40S, profile

OWN = profile("own", hardware=L40S)


def _names(*others: object) -> list[str]:
    return [sibling.profile.study for sibling in siblings(OWN, others)]  # type: ignore[arg-type]


def test_the_nearest_hardware_comes_first() -> None:
    """The same class before another GPU, and that before a machine without one."""
    others = [profile("cpu", hardware=CPU), profile("a100", hardware=A100), profile("same", hardware=L40S)]
    assert _names(*others) == ["same", "a100", "cpu"]


def test_of_equals_the_latest_comes_first() -> None:
    """Of two studies on the same hardware the one that ended later counts more."""
    assert _names(profile("old", ended_utc="2025"), profile("new", ended_utc="2026")) == ["new", "old"]


def test_the_same_training_goes_before_a_like_one() -> None:
    """Another config of the same command says nothing where this very training was searched elsewhere."""
    other = profile("other", training="t2", hardware=L40S)
    assert _names(other, profile("same", hardware=CPU)) == ["same"]
    assert _names(other) == ["other"]


def test_a_like_training_is_known_by_command_and_knobs() -> None:
    """With another command nearly all knobs have to be the same, by name and kind; with the same one half of them."""
    half = {"data.batch_size": "batch_size", "data.num_workers": "workers"}
    found = siblings(OWN, [profile("s", training="t2", command="c2")])
    assert [sibling.likeness for sibling in found] == [Likeness.SAME_KNOBS]
    found = siblings(OWN, [profile("s", training="t2", kinds=half)])
    assert [sibling.likeness for sibling in found] == [Likeness.SAME_COMMAND]
    assert not siblings(OWN, [profile("s", training="t2", command="c2", kinds=half)])
    assert not siblings(OWN, [profile("s", training="t2", kinds={f"x.{path}": None for path in KINDS})])


def test_another_objective_is_no_sibling() -> None:
    """Points that keep a GPU busy are not those that train fast."""
    assert not siblings(OWN, [replace(profile("s"), objective="utilization")])


def test_a_study_is_no_sibling_of_its_own() -> None:
    """What a study knows itself comes from its record."""
    assert not siblings(OWN, [OWN])

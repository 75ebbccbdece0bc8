"""Advice on disk, and the rule for applying it."""

from pathlib import Path

import pytest

from autotune.daemon.advice import AdviceState, Recommendations, advice_id, edited_since, why_not_permitted
from autotune.daemon.queue import ApplyScope
from autotune.errors import AutotuneError
from tests.daemon.advised import ANSWER, advice

BETTER, BATCH, PRECISION = ApplyScope.BETTER, ApplyScope.BATCH, ApplyScope.PRECISION


def test_an_advice_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    """What was kept is what is explained, also in another process."""
    recommendations = Recommendations(tmp_path / "advice")
    recommendations.keep(advice())
    assert Recommendations(tmp_path / "advice").advice(advice().id) == advice()
    assert recommendations.all() == [advice()]


def test_the_same_advice_has_the_same_id() -> None:
    """The id comes from config, study and values alone: of two copies of a config each has its own."""
    assert advice(why="measured again").id == advice().id
    assert advice(best={"values": {"data.num_workers": 2}}).id != advice().id
    assert advice_id("c", "a", {"x": 1, "y": True}) == advice_id("c", "a", {"y": True, "x": 1})
    assert advice_id("c", "a", {"x": 1}) != advice_id("copy of c", "a", {"x": 1})


@pytest.mark.parametrize("id", ["../../etc", "", "0000000", "ABCDEF01", "00000000/..", "0000000\n0"])
def test_an_id_is_never_a_path(tmp_path: Path, id: str) -> None:
    """What is no id is refused before anything is opened."""
    with pytest.raises(AutotuneError, match="invalid recommendation id"):
        Recommendations(tmp_path).advice(id)


def test_a_missing_or_damaged_advice_is_said(tmp_path: Path) -> None:
    """An id that nothing is known of, and a file that cannot be understood."""
    with pytest.raises(AutotuneError, match="no recommendation 00000000"):
        Recommendations(tmp_path).advice("00000000")
    for content in (b"{", b"[]", b'{"format": 9}', b"[" * 100_000):
        (tmp_path / "00000000.json").write_bytes(content)
        with pytest.raises(AutotuneError, match="cannot be read"):
            Recommendations(tmp_path).advice("00000000")
        assert Recommendations(tmp_path).all() == []


def test_what_was_applied_last_counts(tmp_path: Path) -> None:
    """Of several recommendations for a config the values of the last one that was applied are known, by key."""
    recommendations = Recommendations(tmp_path)
    first, second = (
        advice(),
        advice(best={"values": {"data.num_workers": 8}}, changes=[{**ANSWER["changes"][0], "new": 8}]),
    )
    for one in (first, second):
        recommendations.keep(one)
    assert recommendations.applied_values("/project/1.yaml") == {}
    recommendations.mark_applied(first.id, "2030-01-01T01:00:00+00:00")
    recommendations.mark_applied(second.id, "2030-01-01T02:00:00+00:00")
    assert recommendations.applied_values("/project/1.yaml") == {"data.num_workers": 8, "data.batch_size": 32}
    assert recommendations.applied_values("/project/2.yaml") == {}
    assert recommendations.advice(first.id).state is AdviceState.APPLIED


def test_an_advice_that_is_given_again_does_not_forget_that_it_was_applied(tmp_path: Path) -> None:
    """A value that was taken back by hand is proposed again with the same id: that it was set once is still known."""
    recommendations = Recommendations(tmp_path)
    recommendations.keep(advice())
    recommendations.mark_applied(advice().id, "2030-01-01T01:00:00+00:00")
    again = recommendations.keep(advice(changes=ANSWER["changes"][:1]))
    assert again.state is AdviceState.GIVEN
    assert recommendations.advice(again.id) == again
    applied = recommendations.applied_values("/project/1.yaml")
    assert applied == {"data.num_workers": 4, "data.batch_size": 32}
    assert edited_since(again, applied) == ["data.num_workers is 1, autotune had set 4"]


def test_only_what_was_permitted_is_applied() -> None:
    """A change of the batch needs a word of its own, and the message says which."""
    workers = advice(changes=ANSWER["changes"][:1])
    assert why_not_permitted(workers, {BETTER}) is None
    assert why_not_permitted(workers, set()) is not None
    refused = why_not_permitted(advice(), {BETTER, PRECISION})
    assert "data.batch_size" in refused
    assert "--apply better,batch" in refused
    assert why_not_permitted(advice(), {BETTER, BATCH}) is None
    unraced = why_not_permitted(advice(may_learn_more_slowly=True), {BETTER, BATCH})
    assert "no race has shown that it converges as fast" in unraced
    unknown = advice(changes=[{**ANSWER["changes"][0], "label": "unknown"}])
    assert why_not_permitted(unknown, {BETTER, BATCH, PRECISION}) is not None


def test_a_person_wins() -> None:
    """A value that autotune had set, and that somebody has changed since, is theirs."""
    assert edited_since(advice(), {"data.num_workers": 1, "other": 3}) == []
    (said,) = edited_since(advice(), {"data.num_workers": 2})
    assert said == "data.num_workers is 1, autotune had set 2"

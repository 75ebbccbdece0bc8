"""Words of the final screen on a race."""

from dataclasses import replace

import pytest

from autotune.records import Change, Learning, LossDifference, Race, Raced, SearchResult, Verdict
from autotune.report.answer import race_notes, why_it_needs_consent

LOSSES = LossDifference(today=3.12, other=2.95, low=-0.21, high=-0.12)
UNKNOWN = dict.fromkeys(("baseline", "best", "candidate", "speedup", "score_ratio", "smallest_gain", "same_training"))
WORKERS = Change(path="workers", old=1, new=2, worth=None, group=0, label="same training")
BATCH = Change(path="batch", old=8, new=32, worth=None, group=1, label="batch")
RESULT = SearchResult(
    verdict=Verdict.BETTER, why="confirmed", trials=9, outcomes={}, changes=(WORKERS, BATCH), **UNKNOWN
)


def race(learning: Learning, **details: object) -> Race:
    """Race with this outcome."""
    raced = Raced(learning=learning, at_equal_time=LOSSES, learning_speed=1.5)
    return Race(winner=replace(raced, **details), trained_s=120.0, pairs=4)  # type: ignore[arg-type]


def said(result: SearchResult) -> str:
    """All notes."""
    return "\n".join(note.plain for note in race_notes(result))


def test_the_losses_stand_with_their_interval() -> None:
    """And where the trainings began."""
    text = said(replace(RESULT, race=race(Learning.FASTER)))
    assert text == (
        "Converges faster: after 2m of training each, the loss is 2.95, and 3.12 today (97.5 % interval of the "
        "difference -0.21 to -0.12); it converges faster, 1.50x as fast.\nRaced from scratch, 4 interleaved rounds."
    )
    resumed = replace(race(Learning.FASTER), checkpoint="runs/ckpt-7")
    assert "from a copy of the newest checkpoint, runs/ckpt-7" in said(replace(RESULT, race=resumed))


def test_what_is_not_known_says_what_would_tell() -> None:
    """A longer race, or the reason why none can."""
    text = said(replace(RESULT, race=race(Learning.UNKNOWN, needed_s=1200.0)))
    assert "inconclusive; a race of 20m would probably decide" in text
    unseen = replace(race(Learning.UNKNOWN, at_equal_time=None), why_unknown="too few losses were seen in that time")
    assert "inconclusive: too few losses were seen" in said(replace(RESULT, race=unseen))
    assert said(replace(RESULT, why_not_raced="the trainer reports no loss that can be seen")) == (
        "Convergence: unknown if it also converges faster: the trainer reports no loss that can be seen."
    )
    assert said(RESULT) == ""


def test_what_memorises_says_by_what_that_is_seen() -> None:
    """With the held-out loss where there is one; it is never safe, whatever the change is called."""
    details = {"held_out": replace(LOSSES, other=3.4, low=0.2, high=0.4), "after_s": 90.0, "learning_speed": None}
    memorises = race(Learning.MEMORISES, why="its training loss is lower", **details)
    result = replace(RESULT, race=memorises)
    assert said(result).startswith(
        "Overfits: after 1m30s of training each, the held-out loss is 3.4, and 3.12 today (97.5 % interval of the "
        "difference +0.2 to +0.4); not comparable: its training loss is lower.\n"
    )
    alone = replace(result, changes=RESULT.changes[:1])
    assert alone.may_learn_more_slowly
    assert why_it_needs_consent(alone).startswith("It overfitted in the race: after 1m30s of")
    unsure = race(Learning.UNKNOWN, why="no held-out loss is reported", learning_speed=None)
    assert "inconclusive: no held-out loss is reported." in said(replace(RESULT, race=unsure))


def test_a_proposed_rate_says_how_it_is_written() -> None:
    """Only where it is the better one."""
    slower = race(Learning.SLOWER)
    better = Raced(learning=Learning.FASTER, at_equal_time=LOSSES, learning_speed=2.0)
    scaled = replace(slower, scaled=better, learning_rate_key="lr", learning_rate=0.2)
    assert scaled.proposed_rate == ("lr", 0.2)
    assert "With lr: 0.2 as well" in said(replace(RESULT, race=scaled))
    assert "apply --learning-rate" in said(replace(RESULT, race=scaled))
    worse = replace(scaled, scaled=replace(better, learning=Learning.UNKNOWN))
    assert "proposed" not in said(replace(RESULT, race=worse))
    assert worse.proposed_rate is None
    assert "apply --learning-rate" not in said(replace(RESULT, race=worse))


def test_a_rate_that_is_sooner_at_todays_loss_and_ends_no_lower_is_not_proposed() -> None:
    """The loss after equal time decides between two configs that both learn faster than today's."""
    higher = replace(LOSSES, other=3.0, low=-0.18, high=-0.06)
    sooner = Raced(learning=Learning.FASTER, at_equal_time=higher, learning_speed=4.0)
    both = replace(race(Learning.FASTER), scaled=sooner, learning_rate_key="lr", learning_rate=0.2)
    assert both.proposed_rate is None
    assert "Not proposed: the loss is not lower" in said(replace(RESULT, race=both))
    lower = replace(sooner, at_equal_time=replace(LOSSES, other=2.5, low=-0.7, high=-0.5))
    assert replace(both, scaled=lower).proposed_rate == ("lr", 0.2)


@pytest.mark.parametrize(
    ("raced", "reason"),
    [
        (None, "It changes the batch; unknown if it also converges faster: no time."),
        (race(Learning.SLOWER), "It changes the batch, and it converged more slowly in the race: after 2m"),
        (race(Learning.UNKNOWN), "It changes the batch, and the race did not show that it converges equally fast: aft"),
        (race(Learning.ALIKE), "It changes the batch, and it converged at least equally fast in the race: after 2m"),
    ],
)
def test_the_reason_to_ask_names_what_changes(raced: Race | None, reason: str) -> None:
    """And what is known of how it learns: a race that is not lost opens the way for a batch, and for no other data."""
    result = replace(RESULT, race=raced, why_not_raced="" if raced else "no time")
    assert why_it_needs_consent(result).startswith(reason)
    assert result.needs_consent is (raced is None or not raced.winner.learning.is_safe)
    assert result.may_learn_more_slowly is result.needs_consent
    others = replace(result, changes=(*result.changes, replace(WORKERS, label="different data")))
    assert others.needs_consent
    alike = replace(result, changes=(WORKERS,))
    assert not alike.needs_consent
    assert not alike.may_learn_more_slowly


def test_keys_of_unknown_effect_are_named() -> None:
    """Beside what is known to change."""
    keys = [Change(path=path, old=1, new=2, worth=None, group=2, label="unknown") for path in ("model.a", "model.b")]
    result = replace(RESULT, changes=(*RESULT.changes, *keys), why_not_raced="no time")
    assert why_it_needs_consent(result).startswith(
        "It changes the batch and model.a, model.b (effect on the training unknown); unknown if it also converges"
    )

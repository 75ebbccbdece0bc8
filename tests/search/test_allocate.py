"""Where the next run goes."""

from autotune.search.allocate import LARGEST_REPEATS, WORTH_A_RUN, Allocation, allocate, new_point_gain, repeat_gain
from autotune.search.levels import PointLevel
from autotune.space.space import Space
from tests.search.conftest import knob, level, named

SPACE = Space(knobs=(knob("n", 0, *range(1, 20)),))
SD = 0.08
TODAY = level(SPACE, 0.0)


def _choice(*levels: PointLevel, gains: tuple[float, ...] = (), proposal: bool = True) -> Allocation:
    return allocate(named(*levels), TODAY.name, SD, gains, has_proposal=proposal, has_advice=False)


def test_the_first_choice_is_something_new() -> None:
    """With today's config measured and nothing else, a new point promises the most."""
    choice = _choice(TODAY)
    assert choice.repeat is None
    assert choice.gain > 0.05


def test_dry_runs_lower_the_promise_until_it_stops() -> None:
    """Each new point that gains nothing makes the next one less promising; in the end none is worth a run."""
    promises = [new_point_gain([0.0] * dry) for dry in range(41)]
    assert promises == sorted(promises, reverse=True)
    assert len(set(promises)) == len(promises)
    assert promises[5] > WORTH_A_RUN > promises[40]


def test_a_gain_revives_the_promise_and_luck_does_not_drown_it() -> None:
    """One good find after a dry spell makes new points pay again; a monstrous one counts as a large one only."""
    dry = [0.0] * 20
    assert new_point_gain([*dry, 0.3]) > 10 * new_point_gain(dry)
    assert new_point_gain([*dry, 50.0]) == new_point_gain([*dry, 0.5])


def test_untried_advice_keeps_new_points_promising() -> None:
    """However dry it was, what an expert would try is tried before the search stops."""
    levels = named(TODAY)
    dry = [0.0] * 60
    assert allocate(levels, TODAY.name, SD, dry, has_proposal=True, has_advice=True).gain > 0.01
    assert allocate(levels, TODAY.name, SD, dry, has_proposal=True, has_advice=False).gain < WORTH_A_RUN
    assert allocate(levels, TODAY.name, SD, dry, has_proposal=False, has_advice=True).gain == 0.0


def test_a_close_rival_is_repeated_and_a_clear_loser_is_not() -> None:
    """Once new points are dry, time goes to the points that may be the best: never to one that is far behind."""
    best, rival, loser = level(SPACE, 0.5, 0.52, n=1), level(SPACE, 0.49, n=2), level(SPACE, -0.5, n=3)
    choice = _choice(TODAY, best, rival, loser, gains=(0.0,) * 40)
    assert choice.repeat == rival
    everybody = (TODAY, best, rival, loser)
    assert repeat_gain(rival, everybody, SD) > WORTH_A_RUN > repeat_gain(loser, everybody, SD)


def test_of_two_close_points_the_less_known_is_repeated() -> None:
    """A run teaches most where there were fewest."""
    known, guessed = level(SPACE, *(0.30, 0.31, 0.29), n=1), level(SPACE, 0.30, n=2)
    assert _choice(TODAY, known, guessed, proposal=False).repeat == guessed


def test_a_clear_winner_is_not_repeated_for_ever() -> None:
    """Where one point is far ahead, another run of it changes nothing, and the search ends."""
    choice = _choice(TODAY, level(SPACE, 1.0, n=1), gains=(0.0,) * 60)
    assert choice.gain < WORTH_A_RUN


def test_no_point_is_run_more_often_than_six_times() -> None:
    """Two points that stay equal do not take the whole budget."""
    one, other = level(SPACE, *[0.3] * LARGEST_REPEATS, n=1), level(SPACE, *[0.3] * LARGEST_REPEATS, n=2)
    assert _choice(TODAY, one, other, proposal=False) == Allocation(repeat=None, gain=0.0)


def test_todays_config_and_failed_points_are_never_repeated() -> None:
    """The confirmation measures today's config anyway; a point that failed is not tried once more."""
    failed = level(SPACE, n=1)
    assert _choice(TODAY, failed, proposal=False) == Allocation(repeat=None, gain=0.0)

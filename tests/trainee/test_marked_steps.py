"""Tests of the borders between the steps of a training."""

from autotune.trainee.step_profile_torch import Borders

CRITIC, MAKER, RARE = 1, 2, 3
LOADER = 0


def borders_of(turn: list[int]) -> int:
    """Return the borders in ten turns of a loop, after 20 others: 0 is a fetch, else an update."""
    borders = Borders()

    def one_turn() -> int:
        return sum(borders.updated(one) if one else borders.fetches() for one in turn)

    for _ in range(20):
        one_turn()
    borders.settle()
    one_turn()
    return sum(one_turn() for _ in range(10))


def test_a_batch_and_its_update_are_a_step() -> None:
    """The usual loop."""
    assert borders_of([LOADER, MAKER]) == 10


def test_accumulated_batches_are_one_step() -> None:
    """A step has as many fetches as it takes to an update."""
    assert borders_of([LOADER, LOADER, LOADER, MAKER]) == 10


def test_several_optimizers_on_a_batch_are_one_step() -> None:
    """As with two models that are trained against each other."""
    assert borders_of([LOADER, CRITIC, MAKER]) == 10


def test_an_optimizer_with_more_updates_makes_no_borders_without_fetches() -> None:
    """The one with the fewest does; without a loader, too, there is one step in each turn."""
    assert borders_of([CRITIC, CRITIC, CRITIC, MAKER]) == 10
    assert borders_of([CRITIC, MAKER]) == 10


def test_an_update_with_a_batch_each_is_a_step() -> None:
    """Where each update has a batch of its own, steps are of different kinds, and count one by one."""
    assert borders_of([LOADER, CRITIC, LOADER, CRITIC, LOADER, CRITIC, MAKER]) == 30


def test_a_step_that_overflowed_is_one() -> None:
    """Gradients that overflow are left out by the optimizer, and the next fetch begins a step all the same."""
    borders = Borders()
    for _ in range(20):
        borders.fetches()
        borders.updated(MAKER)
    borders.settle()
    borders.fetches()
    assert not borders.updated(None)
    assert borders.fetches()


def test_an_optimizer_that_hardly_ever_steps_makes_no_borders() -> None:
    """One that made a single update in the beginning must not hold up the others."""
    borders = Borders()
    borders.updated(RARE)
    for _ in range(20):
        borders.updated(MAKER)
    borders.settle()
    assert borders.updated(MAKER)

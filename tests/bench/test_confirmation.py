"""Simulated confirmations: the promise of the verdict under each noise, with numbers that a test has the time for."""

import pytest

from scripts.bench.confirmation import NOISES, benchmark_confirmation, judged, simulate

SEARCHES = 200


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_a_sequential_confirmation_keeps_its_promise(noise):
    """Equal configs are hardly ever called better, and the interval holds; 1.5 % and 94 % in the long run."""
    searches = [simulate(noise, seed) for seed in range(SEARCHES)]
    verdicts = [judged(search, 0.0, 6, first=2) for search in searches]
    assert sum(verdict.better for verdict in verdicts) / SEARCHES <= 0.03
    assert sum(verdict.holds for verdict in verdicts) / SEARCHES >= 0.92
    large = [judged(search, 1.0, 6, first=2) for search in searches]
    assert sum(verdict.better for verdict in large) / SEARCHES > 0.95
    assert sum(verdict.pairs for verdict in large) / SEARCHES < 3.0


def test_slow_trials_hide_no_gain():
    """+10 % with 12 pairs, where one trial in ten runs at 0.6 times its speed."""
    searches = [simulate(NOISES["10 % of trials at 0.6x"], seed) for seed in range(SEARCHES)]
    assert sum(judged(search, 0.1, 12, first=None).better for search in searches) / SEARCHES > 0.7


def test_the_table_has_a_row_for_each_noise_and_number_of_pairs():
    """Eight noises: three numbers of pairs each, one that grows, and two where no trial was repeated before."""
    rows = [line for line in benchmark_confirmation(searches=2, seed=0).splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 8 * 4 + 2 + 8 * 2

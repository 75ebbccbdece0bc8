"""NK landscapes."""

from itertools import product

import numpy as np
import pytest

from scripts.bench.landscape_statistics import Landscape, main_effects
from scripts.bench.simulation.nk_landscape import draw_components, landscape_at

COUNTS = (2, 3, 4, 2)
POINTS = np.array(list(product(*map(range, COUNTS))))


def test_the_same_seed_is_the_same_landscape() -> None:
    """Another one is another."""
    first, again, other = (
        landscape_at(draw_components(np.random.default_rng(seed), COUNTS, others=2), POINTS) for seed in (1, 1, 2)
    )
    assert first == pytest.approx(again)
    assert first != pytest.approx(other)


def test_a_point_has_its_value_alone_too() -> None:
    """Without the other points."""
    components = draw_components(np.random.default_rng(1), COUNTS, others=2)
    assert landscape_at(components, POINTS[7:8]) == pytest.approx(landscape_at(components, POINTS)[7:8])


def test_without_other_knobs_there_are_only_main_effects() -> None:
    """With them there is more."""
    left = {}
    for others in (0, 2):
        logs = landscape_at(draw_components(np.random.default_rng(1), COUNTS, others=others), POINTS)
        left[others] = np.std(logs - main_effects(Landscape(positions=POINTS, logs=logs)))
    assert left[0] == pytest.approx(0.0, abs=1e-9)
    assert left[2] > 0.2


def test_each_knob_has_a_component_with_as_many_others() -> None:
    """With all others, where there are fewer."""
    for others, size in ((2, 3), (9, 4)):
        components = draw_components(np.random.default_rng(1), COUNTS, others=others)
        assert len(components) == len(COUNTS)
        for knob, component in enumerate(components):
            assert knob in component.knobs
            assert len(set(component.knobs)) == size
            assert component.values.shape == tuple(COUNTS[number] for number in component.knobs)


def test_the_variance_is_one() -> None:
    """Over many landscapes."""
    values = [
        landscape_at(draw_components(np.random.default_rng(seed), COUNTS, others=2), POINTS) for seed in range(99)
    ]
    assert np.mean(values) == pytest.approx(0.0, abs=0.1)
    assert np.var(values) == pytest.approx(1.0, abs=0.15)

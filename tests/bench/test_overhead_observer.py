"""The benchmark of the observer, on the style that starts fastest."""

import pytest

from scripts.bench.overhead.observed_trainers import STYLES as TRAINERS
from scripts.bench.overhead.observer import STYLES, benchmark_observer
from tests.trainee.conftest import interpreter_with


def test_prints_what_is_seen_and_what_that_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each style; one that cannot train says why, and the others are measured."""
    benchmark_observer(python=interpreter_with("torch"), styles=["torch", "jax"], pairs=1, steps=20)
    torch = capsys.readouterr().out.splitlines()[2].split(" | ")
    style, steps, samples, _wait, is_right, step_us, own_us, cost_us = torch
    assert (style, steps, samples, is_right) == ("| torch", "40 of 40", "312 of 312", "yes")
    assert 0.0 < float(own_us.split()[0]) < float(step_us)
    assert "[" in cost_us


def test_every_style_is_measured() -> None:
    """Each trainer there is belongs to one framework."""
    assert sorted(style for styles in STYLES.values() for style in styles) == sorted(TRAINERS)

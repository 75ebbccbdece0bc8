"""Whole searches in virtual time, on a GPU that others use, that gets hot, that is lost, or that is simply watched."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.events import TrialEnded
from autotune.measure.probe import GpuProbe, GpuUsage, TrialGpus
from autotune.records import DISTURBED, Ending, GpuFigures, GpuMeasurement, Purpose, TrialRecord, Validity, Verdict
from autotune.search.explore import WARM_UP_FROM_S
from autotune.search.trial_maker import MOST_IN_A_SEARCH, MOST_REPEATS
from tests.search.simulated import Searched, plain, searches_in

WINDOW_S = 1 / 6
CLEAN = GpuUsage(utilization=0.5)
OTHERS = replace(CLEAN, spoiled=Validity.CONTAMINATED, remark="H100: other processes (47) used it 20 % of the time")
HOT = replace(CLEAN, spoiled=Validity.THROTTLED, remark="H100: its clocks were throttled 50 % of the time")
LOST = "GPU lost: the NVIDIA driver reports: GPU is lost"


class Shows:
    """GPUs of which the tests say what each trial shows.

    Args:
        of_run: (number of the trial, length of its window) → what it shows; a sentence if its GPU is lost.
    """

    def __init__(self, of_run: Callable[[int, float], GpuUsage | str]) -> None:
        self._of_run = of_run
        self._run = -1

    def open(self, kept: Path) -> None:
        """See `GpuProbe.open`."""
        self._run += 1

    def lost(self, trial: TrialGpus) -> str | None:
        """See `GpuProbe.lost`."""
        shown = self._of_run(self._run, 1.0)
        return shown if isinstance(shown, str) else None

    def between(
        self, t0_s: float, t1_s: float, trial: TrialGpus, *, own_pids: Collection[int], started_s: float
    ) -> GpuUsage | None:
        """See `GpuProbe.between`."""
        shown = self._of_run(self._run, t1_s - t0_s)
        assert isinstance(shown, GpuUsage)
        return shown

    def close(self) -> None:
        """See `GpuProbe.close`."""


_is_a_gpu_probe: type[GpuProbe] = Shows


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Callable[..., Searched]]:
    """Search on a GPU that shows what the test says; the trial that only warms up is left out."""
    with searches_in(tmp_path) as search_plain:

        def searched(of_run: Callable[[int, float], GpuUsage | str], *, budget_s: float = WARM_UP_FROM_S) -> Searched:
            found = search_plain(plain, gpus=lambda _simulator: Shows(of_run), budget_s=budget_s)
            first = next(event for event in found.events if isinstance(event, TrialEnded))
            found.events.remove(first)
            return found

        yield searched


def counting(searched: Searched) -> list[TrialRecord]:
    """Return the trials whose numbers count."""
    return [trial for trial in searched.trials if trial.comparable]


def same(one: TrialRecord, other: TrialRecord) -> bool:
    """Return True if one trial was made in place of the other."""
    return (one.point, one.purpose, one.pair) == (other.point, other.purpose, other.pair)


def with_successors(trials: list[TrialRecord]) -> Iterable[tuple[TrialRecord, TrialRecord]]:
    """Pair each disturbed trial with the trial after it."""
    return ((trial, after) for trial, after in pairwise(trials) if trial.validity in DISTURBED)


def disturbed_by(searched):
    """Cautions of the answer about disturbed trials; it may hold others, about knobs that do nothing."""
    return [caution for caution in searched.result.cautions if caution.startswith("During ")]


@pytest.mark.parametrize("disturbed", [OTHERS, HOT])
def test_a_disturbed_trial_is_repeated_and_not_learned_from(search, disturbed):
    """The repetition comes at once, with the same purpose and half of its pair; the answer is what it would be."""
    searched = search(lambda trial, _: disturbed if trial in (1, 4, 9, 14) else CLEAN)
    spoiled = [trial for trial in searched.trials if trial.validity is disturbed.spoiled]
    assert len(spoiled) == 4
    assert all(trial.measurement and not trial.comparable and trial.detail == disturbed.remark for trial in spoiled)
    assert all(same(trial, after) and after.comparable for trial, after in with_successors(searched.trials))
    assert searched.result.verdict is Verdict.BETTER
    assert searched.result.best.values["data.batch_size"] == 32
    assert disturbed_by(searched) == []


def test_the_numbers_of_a_lasting_disturbance_count_after_all_with_a_caution(search):
    """The third try is the best there is; the answer says what could not be excluded."""
    searched = search(lambda trial, _: OTHERS if trial in (3, 4, 5) else CLEAN)
    tries = searched.trials[2:5]
    assert [trial.validity for trial in tries] == [Validity.CONTAMINATED, Validity.CONTAMINATED, Validity.GOOD]
    assert all(same(tries[0], trial) for trial in tries)
    assert tries[-1].detail == OTHERS.remark
    (caution,) = disturbed_by(searched)
    assert caution.startswith(
        f"During 1 of the {len(counting(searched))} trials that count, other processes used the GPU"
    )
    assert OTHERS.remark in caution
    assert MOST_REPEATS == 2


def test_a_machine_that_is_never_free_does_not_make_a_search_endless(search):
    """The whole search has a limit of repeats too; it comes to an answer, with the caution."""
    searched = search(lambda trial, _: OTHERS)
    assert sum(trial.validity in DISTURBED for trial in searched.trials) == MOST_IN_A_SEARCH
    assert searched.result.verdict is Verdict.BETTER
    (caution,) = disturbed_by(searched)
    assert caution.startswith(f"During {len(counting(searched))} of the {len(counting(searched))} trials")


def test_a_gpu_that_was_lost_and_came_back_costs_one_trial(search):
    """The trial is repeated, and the search goes on."""
    searched = search(lambda trial, _: LOST if trial == 3 else CLEAN)
    lost, after = searched.trials[2:4]
    assert (lost.ending, lost.detail, lost.measurement) == (Ending.GPU_LOST, LOST, None)
    assert same(lost, after)
    assert after.comparable
    assert searched.result.verdict is Verdict.BETTER


def test_a_gpu_that_stays_lost_ends_the_search_with_what_it_has(search):
    """The search waits a little, then gives its answer so far; no time is spent on a confirmation."""
    searched = search(lambda trial, _: LOST if trial >= 7 else CLEAN)
    assert [trial.ending for trial in searched.trials[6:]] == [Ending.GPU_LOST] * (1 + MOST_REPEATS)
    assert f"the GPU does not come back ({LOST})" in searched.said()
    assert searched.result.candidate is not None
    assert searched.took_s < 120.0


def watched(period_s: float | None = None) -> Callable[[int, float], GpuUsage]:
    """GPU whose driver windows are there: at work for half of the time, in a wave if it has a period."""

    def show(trial: int, length_s: float) -> GpuUsage:
        ends_s = [WINDOW_S * (place + 1) for place in range(int(length_s / WINDOW_S))]
        wave = [0.9 if period_s and end_s % period_s < period_s / 2 else 0.1 for end_s in ends_s]
        windows = tuple((end_s, WINDOW_S, busy) for end_s, busy in zip(ends_s, wave, strict=True))
        covered = len(ends_s) * WINDOW_S / length_s
        figures = GpuFigures(uuid="GPU-1", name="H100", utilization=0.5, covered_fraction=covered)
        gpu = GpuMeasurement(figures=figures, busy_windows=windows)
        return GpuUsage(utilization=0.5, devices=(gpu,))

    return show


def lengths_s(searched: Searched, *purposes: Purpose) -> list[float]:
    """Measured durations of the trials of these purposes, in seconds."""
    return [trial.measurement.window_s for trial in counting(searched) if trial.purpose in purposes]


def test_confirming_trials_last_for_a_verdict_on_the_gpu(search):
    """Confirming trials take 20 s if there is time; exploring ones stay short."""
    searched = search(watched(), budget_s=1800.0)
    assert min(lengths_s(searched, Purpose.CONFIRM)) >= 20.0
    assert max(lengths_s(searched, Purpose.EXPLORE, Purpose.REPEAT)) < 5.0
    assert searched.result.verdict is Verdict.BETTER


def test_a_short_budget_confirms_in_shorter_trials(search):
    """All pairs fit, within the share of the budget that a confirmation may take."""
    searched = search(watched(), budget_s=300.0)
    confirming = [trial for trial in searched.trials if trial.purpose is Purpose.CONFIRM]
    usual_s = max(lengths_s(searched, Purpose.EXPLORE))
    assert usual_s + 1.0 < min(lengths_s(searched, Purpose.CONFIRM)) < 20.0
    assert sum(trial.duration_s for trial in confirming) < 0.5 * 300.0
    assert searched.result.verdict is Verdict.BETTER

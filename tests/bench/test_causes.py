"""The benchmark of verdicts: its cases, its scores and its table."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.diagnose.findings import Limit, Verdict
from autotune.errors import ConfigError
from scripts.bench.causes.benchmark_causes import CausesBenchmark, benchmark_causes
from scripts.bench.causes.cases import HEALTHY, Case, Outcome, score_of
from scripts.bench.causes.confusion import report_of
from scripts.bench.causes.foreign_load import ForeignLoad
from scripts.bench.causes.kept_outcomes import keep_outcome, read_outcomes
from scripts.bench.causes.real_cases import real_cases
from scripts.bench.causes.trainers.recipe import Recipe


def _case(name: str, cause: str, *expected: Limit, told: Limit | None = None) -> Case:
    def run(_budget_s: float) -> Verdict:
        return Verdict(sentence=f"says {told}", limit=told)

    return Case(name=name, cause=cause, expected=frozenset(expected), run=run, is_real=False)


def _outcome(case: Case, limit: Limit | None) -> Outcome:
    return Outcome(case=case, limit=limit, sentence="a | b")


DISK = _case("disk", "slow disk", Limit.READING)
DISKS = _case("disks", "slow disk", Limit.READING, Limit.LOADING)
FINE = _case("fine", HEALTHY, Limit.STEP)
FAST = _case("fast", HEALTHY, Limit.STEP)
OUTCOMES = (
    _outcome(DISK, Limit.PREPARING),
    _outcome(DISKS, Limit.LOADING),
    _outcome(FINE, Limit.STEP),
    _outcome(FAST, Limit.HOST),
)


def test_scores_count_right_verdicts_and_false_alarms_apart() -> None:
    """A healthy case is no right verdict, and a missed cause no false alarm."""
    score = score_of(OUTCOMES)
    assert (score.cases, score.right, score.healthy, score.false_alarms) == (2, 1, 2, 1)


def test_no_verdict_is_wrong() -> None:
    """A diagnosis that failed names no cause, and is an alarm on a healthy training."""
    assert not _outcome(DISK, None).is_right
    assert _outcome(FINE, None).is_false_alarm


def test_the_table_has_a_row_for_each_cause_and_a_column_for_each_limit_told() -> None:
    """Right ones are bold, healthy cases stand last."""
    rows = [line for line in report_of(OUTCOMES, {}, command="c").splitlines() if line.startswith("|")]
    head = next(row for row in rows if row.startswith("| cause"))
    assert head == "| cause, and the limit that the verdict names | preparing | loading | host | step |"
    assert "| slow disk | 1 | **1** |  |  |" in rows
    assert rows.index("| slow disk | 1 | **1** |  |  |") < rows.index("| healthy |  |  | 1 | **1** |")


def test_the_report_names_what_has_no_outcome_and_keeps_its_cells_whole() -> None:
    """A bar in a sentence does not add a cell."""
    report = report_of(OUTCOMES[:1], {"loud": "others kept 1.0 cores busy"}, command="c")
    assert "loud (others kept 1.0 cores busy)" in report
    assert "| disk | reading | **wrong** | a / b |" in report


def test_outcomes_in_a_file_are_read_again(tmp_path: Path) -> None:
    """The last outcome of a case counts; cases that are not asked for are left out."""
    path = tmp_path / "new" / "outcomes.jsonl"
    for outcome in (_outcome(DISK, None), _outcome(DISK, Limit.READING), _outcome(FINE, Limit.STEP)):
        keep_outcome(path, outcome)
    assert read_outcomes(path, [DISK, DISKS]) == [_outcome(DISK, Limit.READING)]


def test_real_cases_have_names_and_recipes_of_their_own() -> None:
    """At least 25 with a cause and 10 healthy ones; each key of a recipe is one that the trainers know."""
    cases = real_cases(None)
    assert len({case.name for case in cases}) == len(cases)
    assert sum(case.cause != HEALTHY for case in cases) >= 25
    assert sum(case.cause == HEALTHY for case in cases) >= 10
    healthy = [case.expected for case in cases if case.cause == HEALTHY]
    assert all(Limit.STEP in expected <= {Limit.STEP, Limit.NOT_SEEN} for expected in healthy)
    for case in cases:
        assert isinstance(case.run, partial)
        Recipe(**case.run.args[0].recipe)


def test_cases_on_pytorch_need_an_interpreter() -> None:
    """Without one they are named with the reason; with one they are run there."""
    without = {case.name: case.why_not for case in real_cases(None) if case.why_not}
    assert "torch-throttled-file" in without
    assert all("torch" in name for name in without)
    assert not any(case.why_not for case in real_cases(None, "/usr/bin/python3"))


def test_an_unknown_name_is_refused_with_the_names_that_there_are() -> None:
    """Nothing is run then."""
    asked = CausesBenchmark(
        real=True, simulated=False, only=["no-such"], budget_s=1.0, calm_s=0.0, record=None, keep=None, command="c"
    )
    with pytest.raises(ConfigError, match="no case") as caught:
        benchmark_causes(asked)
    assert "slow-disk-3x" in str(caught.value)


def _busy(clock: VirtualClock, cores: Callable[[float], float]) -> Callable[[], float]:
    """Return a reader of the CPU time of a machine on which others use that many cores at a time."""
    total, last = 0.0, clock.now_s()

    def busy_s() -> float:
        nonlocal total, last
        total += (clock.now_s() - last) * cores(last)
        last = clock.now_s()
        return total

    return busy_s


def test_the_benchmark_waits_for_a_calm_machine() -> None:
    """It goes on when others have left, and gives up at the limit."""
    clock = VirtualClock(0.0)
    load = ForeignLoad(clock, _busy(clock, lambda t_s: 2.0 if t_s < 20.0 else 0.0))
    assert not load.wait_for_calm(5.0)
    assert load.wait_for_calm(60.0)
    assert 20.0 <= clock.now_s() < 40.0


def test_use_by_others_is_told_in_cores() -> None:
    """Half of a core over ten seconds, less what this process took itself."""
    clock = VirtualClock(0.0)
    load = ForeignLoad(clock, _busy(clock, lambda _t_s: 0.5))
    load.begin()
    clock.wait(10.0)
    assert load.cores() == pytest.approx(0.5, abs=0.2)

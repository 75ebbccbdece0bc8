"""``python -m scripts.bench machines``: order of the virtual time, whole searches, and the tables made of them."""

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from scripts.bench.__main__ import main
from scripts.bench.confirmation import NOISES
from scripts.bench.joint.joint_search import JointSearch, search_together
from scripts.bench.joint.machines_report import machines_report
from scripts.bench.joint.made_searches import Ground, JointPiece, MadeSearch
from scripts.bench.joint.simulated_site import SPREAD, SiteMachine, site
from scripts.bench.joint.two_machine_confirmations import confirmed_on_two
from scripts.bench.joint.virtual_time import MachineClock, SharedTime
from scripts.bench.simulation.scenarios import null_scenario, scenario


def in_turn(machines: int, work: Callable[[SharedTime, MachineClock], None]) -> None:
    """Let machines work, each in a thread of its own, as a search does."""
    time = SharedTime(machines)

    def begin(clock: MachineClock) -> None:
        try:
            time.turn(clock)
            work(time, clock)
        finally:
            time.leave(clock)

    threads = [threading.Thread(target=partial(begin, clock)) for clock in reversed(time.clocks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()


def test_what_is_shared_is_used_in_the_order_of_virtual_time() -> None:
    """Whoever is behind comes first, of equals the first machine; a machine that has ended holds nobody up."""
    used: list[tuple[float, int]] = []

    def work(time: SharedTime, clock: MachineClock) -> None:
        for _ in range(4 + clock.number):
            clock.wait(1.0 + 0.5 * clock.number)
            time.turn(clock)
            used.append((clock.now_s(), clock.number))

    in_turn(3, work)
    assert used == sorted(used)
    assert len(used) == 4 + 5 + 6


def test_one_machine_is_at_work_at_a_time() -> None:
    """Also between its uses: nothing depends on the threads of this process."""
    at_work: list[int] = []

    def work(time: SharedTime, clock: MachineClock) -> None:
        for _ in range(20):
            at_work.append(clock.number)
            clock.wait(1.0)
            assert at_work.pop() == clock.number
            time.turn(clock)

    in_turn(4, work)
    assert at_work == []


def test_a_clock_does_what_is_due_at_regular_times() -> None:
    """Signs of life come by virtual time, at the first wait that passes the time for one."""
    clock, done = MachineClock(0), []
    clock.do_every(10.0, lambda: done.append(clock.now_s()))
    for _ in range(10):
        clock.wait(4.0)
    assert done == [1012.0, 1024.0, 1036.0]


def test_fewer_machines_are_the_first_of_more() -> None:
    """Up to 20 % slower or faster, and one of them a black hole where that is asked for."""
    machines = site(3, 8)
    assert site(3, 2) == machines[:2]
    assert all(1 / (1 + SPREAD) <= machine.speed <= 1 + SPREAD for machine in machines)
    assert len({machine.name for machine in machines}) == 8
    assert [machine.fails_from_s for machine in site(4, 4, black_hole=True)].count(0.0) == 1
    late = [machine.fails_from_s for machine in site(5, 4, black_hole=True) if machine.fails_from_s is not None]
    assert len(late) == 1
    assert 60.0 <= late[0] <= 180.0


def shown(search: JointSearch) -> list[tuple[float, str, float | None]]:
    """What a search has measured, in order."""
    return [
        (ended_s, trial.point, trial.measurement.samples_per_s if trial.measurement else None)
        for ended_s, trial in search.trials
    ]


def test_a_simulation_repeats_exactly(in_memory: Path) -> None:
    """The same trials at the same times with the same numbers, whatever the threads did."""
    one, machines = scenario(1000), site(1000, 3)
    first = search_together(one, machines, 100.0, in_memory / "first")
    assert shown(first) == shown(search_together(one, machines, 100.0, in_memory / "again"))
    assert {part.machine.number for part in first.parts if part.trials} == {0, 1, 2}
    assert all(part.ended_s <= 100.0 for part in first.parts)


def test_all_machines_write_one_study(in_memory: Path) -> None:
    """Each trial says on which machine it ran, and how fast that is."""
    fast, slow = SiteMachine(number=0, speed=1.5), SiteMachine(number=1, speed=0.75)
    search = search_together(null_scenario(1003), [fast, slow], 60.0, in_memory / "search")
    assert {trial.machine for _, trial in search.trials} == {fast.name, slow.name}
    assert len({trial.number for _, trial in search.trials}) == len(search.trials)
    mean = {
        machine: [
            trial.measurement.samples_per_s
            for _, trial in search.trials
            if trial.machine == machine and trial.measurement
        ]
        for machine in (fast.name, slow.name)
    }
    ratio = (sum(mean[fast.name]) / len(mean[fast.name])) / (sum(mean[slow.name]) / len(mean[slow.name]))
    assert ratio == pytest.approx(2.0, rel=0.15)


def test_every_trial_fails_on_a_black_hole(in_memory: Path) -> None:
    """From its time on; the machine beside it works."""
    hole = SiteMachine(number=0, speed=1.0, fails_from_s=40.0)
    search = search_together(scenario(1000), [hole, SiteMachine(number=1, speed=1.0)], 100.0, in_memory / "search")
    broken, working = search.parts
    assert any(trial.comparable for _, trial in broken.trials)
    late = [trial for ended_s, trial in broken.trials if ended_s - trial.duration_s >= 40.0]
    assert late
    assert not any(trial.comparable for trial in late)
    assert all(trial.detail for trial in late)
    assert sum(bool(trial.comparable) for _, trial in working.trials) > 5


# The confirmation on two machines


def test_equal_points_are_hardly_ever_called_better_on_two_machines() -> None:
    """Up to 20 % between the machines are no gain, and a gain of half as much again is seen."""
    verdicts = [
        confirmed_on_two(NOISES["normal, 8 %"], seed, (0.0, 0.0), pairs=4, sequential=False) for seed in range(100)
    ]
    assert sum(verdict.better for verdict in verdicts) <= 4
    large = [
        confirmed_on_two(NOISES["normal, 8 %"], seed, (1.0, 1.0), pairs=12, sequential=False) for seed in range(20)
    ]
    assert sum(verdict.better for verdict in large) >= 18


# The report


def made(ground: Ground, seed: int, machines: int, **found: object) -> MadeSearch:
    """A search that was made."""
    piece = JointPiece(ground=ground, seed=seed, machines=machines, budget_s=600.0)
    usual: dict[str, object] = {
        "is_solved": False,
        "baseline_s": 12.0,
        "found_s": None,
        "answered_s": None,
        "says_better": False,
        "ended_s": 500.0,
        "trials": 50,
        "doubles": 5,
        "named": None,
        "named_s": None,
        "lost_trials": 0,
        "wronged": 0,
        "reasons": (),
        "cpu_s": 1.0,
    }
    return MadeSearch(piece=piece, **{**usual, **found})  # type: ignore[arg-type]


def test_times_are_compared_with_one_machine() -> None:
    """Of the same scenario; one that never finds counts with its budget, one with nothing to find not at all."""
    searches = [
        made(Ground.FINDS, 0, 1, found_s=300.0, answered_s=320.0),
        made(Ground.FINDS, 1, 1),
        made(Ground.FINDS, 2, 1, is_solved=True, found_s=1.0),
        made(Ground.FINDS, 0, 4, found_s=100.0, answered_s=200.0),
        made(Ground.FINDS, 1, 4, found_s=150.0),
        made(Ground.FINDS, 2, 4, is_solved=True, found_s=1.0),
    ]
    lines = machines_report(searches).splitlines()
    assert lines[-2].startswith("| 1 | 2 | 12s | 7m30s, 7m30s, 9m30s | 1.0, 1.0, 1.0; 1.0 |")
    assert lines[-1].startswith("| 4 | 2 | 12s | 2m05s, 2m05s, 2m25s | 3.6, 3.6, 3.9; 3.5 |")
    assert "10.0%" in lines[-1]


def test_false_wins_and_black_holes_have_tables_of_their_own() -> None:
    """How many said "better" where nothing matters, and how many black holes were named, early and late ones."""
    searches = [
        *(made(Ground.NULL, seed, 2, says_better=seed == 0) for seed in range(4)),
        *(made(Ground.BLACK_HOLE, seed, 4, named=seed < 3, named_s=30.0, wronged=seed // 3) for seed in range(4)),
    ]
    report = machines_report(searches)
    assert "| 2 | 4 | 1 | 25.0% |" in report
    assert "| from the beginning | 2 | 2 |" in report
    assert "| after one to three minutes | 2 | 1 | 30s | 0 | 1 |" in report


def test_a_whole_benchmark_goes_on_where_it_stopped(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All kinds of searches on stdout and in a file; what was made is not made again."""
    monkeypatch.chdir(in_memory)
    small = ["--machines", "1,2", "--workloads", "1", "--aa", "0", "--black-holes", "1", "--confirmations", "2"]
    monkeypatch.setattr(sys, "argv", ["scripts.bench", "machines", *small, "--budget", "40s", "--out", "out"])
    assert main() == 0
    out, err = capsys.readouterr()
    assert "3 of 3" in err
    assert all(title in out for title in ("Time to within 5%", "every trial fails", "Confirmations on two machines"))
    assert (in_memory / "out/machines.md").read_text() == out
    assert main() == 0
    again = capsys.readouterr()
    assert again.out == out
    assert again.err == ""


def test_an_error_of_one_machine_holds_nobody_up(in_memory: Path) -> None:
    """A folder that is in the way ends the simulation with its error, not with threads that wait for ever."""
    machines = site(0, 2)
    (in_memory / "search").mkdir()
    (in_memory / "search" / machines[0].name).write_text("")
    with pytest.raises((OSError, AutotuneError)):
        search_together(scenario(1000), machines, 30.0, in_memory / "search")

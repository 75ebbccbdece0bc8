"""Benchmark of machines that share a study: simulated searches of one machine alone, and of several together.

Each has a simulated trainer and a virtual clock of its own; they take turns, the one whose clock is behind first, and
meet in a journal, or in the database that AUTOTUNE_STORAGE names. What is judged is the answer of the first machine.
"""

import argparse
import math
import os
import tempfile
import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from autotune.clock import VirtualClock
from autotune.events import EventBus
from autotune.options import SearchOptions
from autotune.records import CONFIRMED, SearchResult
from autotune.search.open import join
from autotune.search.parts import SearchParts
from autotune.search.tuner import Tuner
from autotune.search.warm_start import WarmStart
from autotune.study.claims import RENEWAL_S, Owner
from autotune.study.members import Role
from autotune.study.record import StudyRecord
from autotune.study.storage.address import address_in_environment, address_of
from autotune.study.storage.journal import open_storage
from scripts.bench.harness import OURS, Harness
from scripts.bench.results import Commands, markdown_table, parse_seeds
from scripts.bench.simulation.scenarios import Scenario, null_scenario, scenario


class Turns:
    """Clocks of threads that take turns: time passes for one when no other is behind it."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._now_s = [0.0] * count

    def reach(self, place: int, now_s: float) -> None:
        """Let a thread reach a time; it waits for those that are behind. Infinity for one that has ended."""
        with self._changed:
            self._now_s[place] = now_s
            self._changed.notify_all()
            if now_s < math.inf:
                self._changed.wait_for(lambda: min(zip(self._now_s, range(len(self._now_s)), strict=True))[1] == place)


class TurnClock(VirtualClock):
    """Clock of one of them; gives a sign of life for its study as the real one does."""

    def __init__(self, turns: Turns, place: int) -> None:
        super().__init__()
        self._turns, self._place = turns, place
        self._signed_s = self.now_s()
        self.study: StudyRecord | None = None

    def wait(self, seconds: float) -> None:
        until_s = self.now_s() + max(0.0, seconds)
        while self.now_s() < until_s:  # in steps, between which others give theirs
            super().wait(min(RENEWAL_S, until_s - self.now_s()))
            self._turns.reach(self._place, self.now_s())
            if self.study is not None and self.now_s() >= self._signed_s + RENEWAL_S:
                self._signed_s = self.now_s()
                self.study.renew()


def search_together(one: Scenario, seed: int, count: int, budget_s: float) -> tuple[float, float, SearchResult | None]:
    """Search on several machines at once.

    Returns:
        Of the first one: regret of its answer, the time in seconds until its answers were within 5 %, and its result.
    """
    turns, found = Turns(count), dict[int, tuple[Harness, SearchResult | None]]()
    with tempfile.TemporaryDirectory() as folder:
        name = f"machines-{uuid.uuid4().hex[:12]}"
        threads = [
            threading.Thread(target=_search, args=(turns, place, one, seed, budget_s, Path(folder), name, found))
            for place in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    harness, result = found[0]
    if result is not None and result.best is not None and result.verdict in CONFIRMED:
        values = result.best.values
    else:
        values = harness.problem.space.baseline
    close_s = next((since_s for since_s, regret in harness.curve(None).regrets if regret <= 0.05), math.inf)
    return max(0.0, 1.0 - one.speed(values) / one.best()[1]), close_s, result


def _search(
    turns: Turns,
    place: int,
    one: Scenario,
    seed: int,
    budget_s: float,
    folder: Path,
    name: str,
    found: dict[int, tuple[Harness, SearchResult | None]],
) -> None:
    try:
        clock = TurnClock(turns, place)
        harness = Harness(one, budget_s, folder / str(place), method=f"{OURS}{place or ''}", clock=clock)
        machine = replace(harness.problem.machine, name=f"{place:08x}")
        problem = replace(harness.problem, hardware=replace(harness.problem.hardware, machine=machine))
        storage = open_storage(address_of(address_in_environment(os.environ, folder)), folder / "shared")
        budget = harness.budget()
        owner = Owner(about={"host": str(place)}, is_gone=lambda _: False, clock=clock, ends_s=budget.wall_s)
        study = clock.study = StudyRecord(name, storage, pending=folder / f"{place}.pending", owner=owner)
        turns.reach(place, clock.now_s())
        join(study, problem, Role.SEARCH, f"search-{place}", clock, lambda _: None)
        parts = SearchParts(
            name=f"search-{place}",
            options=SearchOptions(seed=seed + place, race_s=0.0),
            problem=problem,
            study=study,
            runner=harness.runner,
            budget=budget,
            clock=clock,
            events=EventBus([harness.note]),
            instruments=harness.instruments,
            warm_start=WarmStart(),
        )
        tuner = Tuner(parts)
        found[place] = harness, tuner.run()
        clock.study = None
        study.close()
    finally:
        turns.reach(place, math.inf)


def _run(arguments: argparse.Namespace) -> None:
    rows, make = [], null_scenario if arguments.null else scenario
    for count in arguments.machines:
        made = [search_together(make(seed), seed, count, arguments.budget) for seed in arguments.seeds]
        rows.append([str(count), *_row(made)])
        print(*rows[-1], flush=True)
    heads = ["machines", "searches", "better", "regret: mean, median", "within 5 % after, median", "interval, median"]
    print(markdown_table(heads, rows))


def _row(made: Sequence[tuple[float, float, SearchResult | None]]) -> list[str]:
    regrets = [regret for regret, _, _ in made]
    told = [one.speedup for _, _, one in made if one and one.verdict in CONFIRMED and one.speedup]
    widths = [one.high / one.low for one in told if one.high is not None and one.low]
    return [
        str(len(made)),
        str(len(told)),
        f"{fmean(regrets):.3f}, {median(regrets):.3f}",
        f"{median(close_s for _, close_s, _ in made):.0f} s",
        f"{median(widths):.2f}" if widths else "-",
    ]


def add_machines(commands: Commands) -> None:
    """Add the parser of ``machines``."""
    parser = commands.add_parser("machines", help="simulated searches of one machine, and of several together")
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seeds", type=parse_seeds, default=range(40))
    parser.add_argument("--null", action="store_true", help="trainers whose knobs do nothing")
    parser.add_argument("--budget", type=float, default=600.0, help="of each machine, in seconds")
    parser.set_defaults(run=_run)

"""Benchmark of warm starts: the search on a machine whose sibling has searched already, with and without that.

Each workload is tuned on machine A, and then on machine B of another class: cold, with the profile that A left, and
with that of another training that looks the same, whose optimum lies elsewhere. The time counts until the point that
the search holds for the best is within 5 % of B's best for good; a search that does not come to that counts with its
whole budget. The confirmation is left out: it takes as long with and without, and its accidents are chance.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median

from autotune import __version__
from autotune.clock import format_duration
from autotune.errors import TrialError
from autotune.records import Values
from autotune.search.warm_start import WarmStart, profile_of, warm_start
from autotune.study.profiles import Profile, ProfileIndex
from autotune.study.record import Study
from scripts.bench.markdown import markdown_table
from scripts.bench.peers.anytime_curve import CLOSE
from scripts.bench.peers.harness import Harness
from scripts.bench.resumable import make_missing, work_folder
from scripts.bench.simulation.scenarios import Scenario, scenario
from scripts.bench.simulation.sibling_scenarios import another_training, on_another_machine

FORMAT = 1
"""Version of the lines of ``siblings.jsonl``."""

_EARLY_S = 120.0
_UTC = "2000-01-01T00:00:00+00:00"


@dataclass(frozen=True, kw_only=True)
class SecondSearch:
    """Search of a workload on machine B.

    Attributes:
        close_s: Time from which its best point is within 5 % of the best of all; None if the last one is not.
        early_regret: Regret of its best point after two minutes.
        last_regret: Regret of the last one.
        imported_regret: Regret of the best imported point; None where there was none.
        answer_is_imported: Whether its best point is an imported one in the end.
    """

    close_s: float | None
    early_regret: float
    last_regret: float
    imported_regret: float | None
    answer_is_imported: bool


@dataclass(frozen=True, kw_only=True)
class SiblingSearches:
    """Searches of one workload.

    Attributes:
        seed: Number of the scenario.
        family: Kind of bottleneck on A.
        machines: Names of A and B.
        budget_s: Budget of each search.
        baseline_regret: Regret of today's config on B.
        cold: The search on B without a warm start.
        warm: The same with A's profile.
        misled: The same with the profile of another training.
    """

    seed: int
    family: str
    machines: tuple[str, str]
    budget_s: float
    baseline_regret: float
    cold: SecondSearch
    warm: SecondSearch
    misled: SecondSearch

    @property
    def piece(self) -> int:
        """The scenario."""
        return self.seed


def benchmark_siblings(*, seeds: range, budget_s: float, jobs: int, out: Path) -> str:
    """Run the missing workloads, and return the table.

    Args:
        seeds: The scenarios.
        budget_s: Budget of each search.
        jobs: Number of processes.
        out: Folder of the results; an existing one is resumed.

    Raises:
        ConfigError: The folder holds results of another benchmark.
    """
    done = make_missing(
        partial(search_siblings, budget_s=budget_s),
        list(seeds),
        path=out / "siblings.jsonl",
        head={"format": FORMAT, "autotune": __version__, "budget_s": budget_s},
        kind=SiblingSearches,
        jobs=jobs,
        describe=lambda one: (
            f"{one.seed}: cold {_shown(one.cold)}, warm {_shown(one.warm)}, misled {_shown(one.misled)}"
        ),
    )
    return report(done)


def search_siblings(seed: int, *, budget_s: float) -> SiblingSearches:
    """Search one workload on both machines."""
    first = scenario(seed)
    other = on_another_machine(first)
    with work_folder() as folder:
        profile = _left_by(first, budget_s, folder / "first")
        misleading = _left_by(another_training(first), budget_s, folder / "unlike")
        cold = _searched(other, budget_s, folder / "cold", None)
        warm = _searched(other, budget_s, folder / "warm", profile)
        misled = _searched(other, budget_s, folder / "misled", misleading)
    return SiblingSearches(
        seed=seed,
        family=first.family,
        machines=(first.machine_name, other.machine_name),
        budget_s=budget_s,
        baseline_regret=_regret(other, {}),
        cold=cold,
        warm=warm,
        misled=misled,
    )


def _left_by(one: Scenario, budget_s: float, folder: Path) -> Profile:
    """Search a scenario, and return the profile that its study leaves."""
    harness = Harness(one, budget_s, folder, method="first")
    with harness.tuner(harness.budget(), ()) as tuner:
        with suppress(TrialError):
            tuner.run()
        better, sd = tuner.state.better(), tuner.state.sd
    study = Study(harness.problem.study, harness.problem.storage, reads_only=True)
    records = study.records()
    study.close()
    return profile_of(harness.problem, records, better, sd, _UTC)


def _searched(one: Scenario, budget_s: float, folder: Path, profile: Profile | None) -> SecondSearch:
    """Search a scenario; the method has one name, so that all searches meet the same noise."""
    harness = Harness(one, budget_s, folder, method="second")
    problem, start = harness.problem, WarmStart()
    if profile is not None:
        ProfileIndex(problem.storage, problem.state.studies).keep(profile)
        start = warm_start(problem)
    harness.search(harness.budget(), only_confirmed=False, warm_start=start)
    curve = harness.curve(None)
    return SecondSearch(
        close_s=curve.close_s(),
        early_regret=curve.regret_at(_EARLY_S),
        last_regret=curve.regrets[-1][1],
        imported_regret=min((_regret(one, point.values) for point in start.points), default=None),
        answer_is_imported=any(dict(point.values) == dict(curve.answer) for point in start.points),
    )


def _regret(one: Scenario, values: Values) -> float:
    return 1.0 - one.speed(values) / one.best()[1]


def report(done: Sequence[SiblingSearches]) -> str:
    """Return the table of all searches, and a line on how often an imported point was the best in the end."""
    hard = [one for one in done if one.baseline_regret > CLOSE]
    rows = [
        _row("all where today's config is not within 5 % of the best", hard, _warm),
        _row("an imported point is within 5 % of B's best", [one for one in hard if _is_near(one.warm)], _warm),
        _row("none is: B's optimum lies elsewhere", [one for one in hard if _is_elsewhere(one.warm)], _warm),
        _row("another training's profile: elsewhere", [one for one in hard if _is_elsewhere(one.misled)], _misled),
    ]
    heads = (
        "workloads",
        "number",
        "time, cold",
        "with the profile",
        "times shorter: median, geometric mean",
        "regret after 2 minutes, cold, with it",
        "found, cold, with it",
    )
    imported = sum(one.warm.answer_is_imported for one in hard)
    none = sum(one.warm.imported_regret is None for one in hard)
    return (
        f"{markdown_table(heads, rows)}\n\nThe best point in the end was an imported one in {imported} of {len(hard)}; "
        f"the profile gave no point in {none}.\n"
    )


def _warm(one: SiblingSearches) -> SecondSearch:
    return one.warm


def _misled(one: SiblingSearches) -> SecondSearch:
    return one.misled


def _is_near(second: SecondSearch) -> bool:
    return second.imported_regret is not None and second.imported_regret <= CLOSE


def _is_elsewhere(second: SecondSearch) -> bool:
    return second.imported_regret is not None and second.imported_regret > CLOSE


def _row(what: str, searches: Sequence[SiblingSearches], begun: Callable[[SiblingSearches], SecondSearch]) -> list[str]:
    if not searches:
        return [what, "0", "", "", "", "", ""]
    sides = [one.cold for one in searches], [begun(one) for one in searches]
    times_s = [
        [one.budget_s if second.close_s is None else second.close_s for one, second in zip(searches, side, strict=True)]
        for side in sides
    ]
    ratios = [before / max(after, 1.0) for before, after in zip(*times_s, strict=True)]
    return [
        what,
        str(len(searches)),
        *(format_duration(median(side_s)) for side_s in times_s),
        f"{median(ratios):.2f}x, {math.exp(fmean(map(math.log, ratios))):.2f}x",
        ", ".join(f"{median(second.early_regret for second in side):.1%}" for side in sides),
        ", ".join(str(sum(second.close_s is not None for second in side)) for side in sides),
    ]


def _shown(second: SecondSearch) -> str:
    return "not found" if second.close_s is None else format_duration(second.close_s)

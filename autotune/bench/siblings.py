"""Benchmark of warm starts: the search on a machine whose sibling has searched already, with and without that.

Each workload is tuned on machine A, and then on machine B of another class: cold, with the profile that A left, and
with that of another training that looks the same, whose optimum lies elsewhere. The time counts until the answer is
within 5 % of B's best for good; a search that does not come to that counts with its whole budget.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median

from pydantic import TypeAdapter

from autotune import __version__
from autotune.bench.markdown import markdown_table
from autotune.bench.peers.anytime_curve import CLOSE
from autotune.bench.peers.harness import Harness
from autotune.bench.resumable import make_missing, work_folder
from autotune.bench.simulation.scenarios import Scenario, scenario
from autotune.bench.simulation.sibling_scenarios import another_training, on_another_machine
from autotune.durations import format_duration
from autotune.errors import TrialError
from autotune.search.warm_start import WarmStart, profile_of, warm_start
from autotune.study.profile_index import ProfileIndex
from autotune.study.profiles import Profile
from autotune.study.record import Study

FORMAT = 1
"""Version of the lines of ``siblings.jsonl``."""

_UTC = "2000-01-01T00:00:00+00:00"


@dataclass(frozen=True, kw_only=True)
class SiblingSearches:
    """Searches of one workload on machine B.

    Attributes:
        seed: Number of the scenario.
        family: Kind of bottleneck on A.
        machines: Names of A and B.
        budget_s: Budget of each search.
        baseline_regret: Share of the best speed that today's config leaves unused on B.
        imported_regret: The same of the best of the points that A's profile gave; None where it gave none.
        cold_s: Time to the optimum without a warm start; None if it was not found.
        warm_s: The same with A's profile.
        misled_s: The same with the profile of another training.
        misled_regret: Regret of the best of the points of that profile; None where it gave none.
        was_imported: Whether the warm search's answer was a point of A's profile.
    """

    seed: int
    family: str
    machines: tuple[str, str]
    budget_s: float
    baseline_regret: float
    imported_regret: float | None
    cold_s: float | None
    warm_s: float | None
    misled_s: float | None
    misled_regret: float | None
    was_imported: bool

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
        lines=TypeAdapter(SiblingSearches),
        jobs=jobs,
        describe=lambda one: f"{one.seed}: cold {_shown(one.cold_s)}, warm {_shown(one.warm_s)}",
    )
    return report(done)


def search_siblings(seed: int, *, budget_s: float) -> SiblingSearches:
    """Search one workload on both machines."""
    first = scenario(seed)
    other = on_another_machine(first)
    with work_folder() as folder:
        profile = _left_by(first, budget_s, folder / "a")
        misleading = _left_by(another_training(first), budget_s, folder / "c")
        cold_s, _, _ = _searched(other, budget_s, folder / "cold", None)
        warm_s, imported_regret, was_imported = _searched(other, budget_s, folder / "warm", profile)
        misled_s, misled_regret, _ = _searched(other, budget_s, folder / "misled", misleading)
    return SiblingSearches(
        seed=seed,
        family=first.family,
        machines=(first.machine_name, other.machine_name),
        budget_s=budget_s,
        baseline_regret=1.0 - other.speed({}) / other.best()[1],
        imported_regret=imported_regret,
        cold_s=cold_s,
        warm_s=warm_s,
        misled_s=misled_s,
        misled_regret=misled_regret,
        was_imported=was_imported,
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


def _searched(
    one: Scenario, budget_s: float, folder: Path, profile: Profile | None
) -> tuple[float | None, float | None, bool]:
    """Search a scenario; return the time to its optimum, the regret of the imported points, and if one is the answer.

    The method has one name, so that all searches meet the same noise.
    """
    harness = Harness(one, budget_s, folder, method="second")
    problem, start = harness.problem, WarmStart()
    if profile is not None:
        ProfileIndex(problem.storage, problem.state.studies).keep(profile)
        start = warm_start(problem)
    result = harness.search(harness.budget(), warm_start=start)
    regrets = [1.0 - one.speed(point.values) / one.best()[1] for point in start.points]
    answer = result.best.values if result and result.best else {}
    was_imported = any(dict(point.values) == dict(answer) for point in start.points)
    return harness.curve(None).close_s(), min(regrets, default=None), was_imported


def report(done: Sequence[SiblingSearches]) -> str:
    """Return the table of all searches, and a line on how often the answer was imported."""
    hard = [one for one in done if one.baseline_regret > CLOSE]
    near = [one for one in hard if one.imported_regret is not None and one.imported_regret <= CLOSE]
    elsewhere = [one for one in hard if one.imported_regret is not None and one.imported_regret > CLOSE]
    misled = [one for one in hard if one.misled_regret is not None and one.misled_regret > CLOSE]
    rows = [
        _row("all where there is something to find", hard, [one.warm_s for one in hard]),
        _row("an imported point is within 5 % of B's best", near, [one.warm_s for one in near]),
        _row("none is: B's optimum lies elsewhere", elsewhere, [one.warm_s for one in elsewhere]),
        _row("profile of another training, optimum elsewhere", misled, [one.misled_s for one in misled]),
    ]
    heads = ("workloads", "number", "cold", "warm", "times shorter, median", "geometric mean", "found cold, warm")
    imported = sum(one.was_imported for one in hard)
    return (
        markdown_table(heads, rows) + f"\n\nThe answer was an imported point in {imported} of {len(hard)}; in "
        f"{len(done) - len(hard)} of {len(done)} workloads today's config was within 5 % of the best already.\n"
    )


def _row(what: str, cold: Sequence[SiblingSearches], warm: Sequence[float | None]) -> list[str]:
    if not cold:
        return [what, "0", "", "", "", "", ""]
    cold_s = [one.budget_s if one.cold_s is None else one.cold_s for one in cold]
    warm_s = [one.budget_s if time_s is None else time_s for one, time_s in zip(cold, warm, strict=True)]
    ratios = [before / max(after, 1.0) for before, after in zip(cold_s, warm_s, strict=True)]
    found = sum(one.cold_s is not None for one in cold), sum(time_s is not None for time_s in warm)
    return [
        what,
        str(len(cold)),
        format_duration(median(cold_s)),
        format_duration(median(warm_s)),
        f"{median(ratios):.2f}x",
        f"{math.exp(fmean(map(math.log, ratios))):.2f}x",
        f"{found[0]}, {found[1]}",
    ]


def _shown(time_s: float | None) -> str:
    return "not found" if time_s is None else format_duration(time_s)

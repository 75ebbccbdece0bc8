"""Benchmark of placements: whole searches on two simulated GPUs, and how often their answers place data and model well.

An answer is right where no other placement and no other depth of the buffer between the GPUs, with all else as the
answer has it, is faster by more than `RIGHT_WITHIN`: by the true speeds, which only the benchmark knows. The answer is
what the search confirmed, else today's config.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from autotune import __version__
from autotune.records import Values
from scripts.bench.markdown import markdown_table
from scripts.bench.peers.harness import Harness
from scripts.bench.resumable import make_missing, work_folder
from scripts.bench.simulation.placed_scenarios import DEPTH, MODEL_GPU, placed_scenario

FORMAT = 1
"""Version of the lines of ``placement.jsonl``."""

RIGHT_WITHIN = 0.03
"""Largest loss of speed against the best placement and depth at which an answer is right."""

_MUCH = 0.9  # of the best placement's speed: where another one is below it, much depends on the placement


@dataclass(frozen=True, kw_only=True)
class PlacedSearch:
    """Search of one workload; placements by the model's GPU, None for one GPU.

    Attributes:
        seed: Number of the scenario.
        family: Kind of bottleneck.
        gpu_speeds: Speeds of the two GPUs.
        feature_share: Time of the features of a batch over that of its step, on equal GPUs.
        jitter: Coefficient of variation of these times.
        today: Placement and depth of the baseline.
        answer: The same of the answer.
        of_best: True speed of the answer over that with the best placement and depth.
        placement_of_best: The same with the answer's placement and its best depth.
        worst_of_best: The same with the worst placement and its best depth.
        speedup: True speed of the answer over the baseline's.
        trials: Number of trials.
    """

    seed: int
    family: str
    gpu_speeds: tuple[float, float]
    feature_share: float
    jitter: float
    today: tuple[int | None, int]
    answer: tuple[int | None, int]
    of_best: float
    placement_of_best: float
    worst_of_best: float
    speedup: float
    trials: int

    @property
    def piece(self) -> int:
        """The scenario."""
        return self.seed

    @property
    def is_right(self) -> bool:
        """True if placement and depth are as good as any."""
        return self.of_best >= 1.0 - RIGHT_WITHIN

    @property
    def is_right_placement(self) -> bool:
        """True if the placement is, with its best depth."""
        return self.placement_of_best >= 1.0 - RIGHT_WITHIN


def benchmark_placement(*, seeds: range, budget_s: float, jobs: int, out: Path) -> str:
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
        partial(search_placement, budget_s=budget_s),
        list(seeds),
        path=out / "placement.jsonl",
        head={"format": FORMAT, "autotune": __version__, "budget_s": budget_s},
        kind=PlacedSearch,
        jobs=jobs,
        describe=_described,
    )
    return report(done)


def search_placement(seed: int, *, budget_s: float) -> PlacedSearch:
    """Search one workload."""
    one = placed_scenario(seed)
    with work_folder() as folder:
        harness = Harness(one, budget_s, folder / "search", method="placement")
        harness.search(harness.budget())
    answer = harness.answers[-1][1]
    best = one.best_speed(answer)
    today = one.values(one.config_text)
    return PlacedSearch(
        seed=seed,
        family=one.family,
        gpu_speeds=one.gpu_speeds,
        feature_share=one.feature_share,
        jitter=one.training.workload.jitter,
        today=_placed(today),
        answer=_placed(answer),
        of_best=one.speed(answer) / best,
        placement_of_best=one.placement_speed(answer, answer[MODEL_GPU]) / best,
        worst_of_best=one.worst_placement_speed(answer) / best,
        speedup=one.speed(answer) / one.speed({}),
        trials=harness.trials,
    )


def _placed(values: Values) -> tuple[int | None, int]:
    model, depth = values[MODEL_GPU], values[DEPTH]
    assert isinstance(depth, int)
    assert not isinstance(model, str | float)
    return model, depth


def _described(one: PlacedSearch) -> str:
    return f"{one.seed}: {_words(one.today)} to {_words(one.answer)}, {one.of_best:.3f} of the best"


def _words(placed: tuple[int | None, int]) -> str:
    model, depth = placed
    return "one GPU" if model is None else f"data {1 - model}, model {model}, buffer {depth}"


def report(done: Sequence[PlacedSearch]) -> str:
    """Return the table of all searches, and the wrong answers."""
    rows = [
        _row("all", done, lambda _: True),
        _row("alike GPUs", done, lambda one: one.gpu_speeds[0] == one.gpu_speeds[1]),
        _row("unlike GPUs", done, lambda one: one.gpu_speeds[0] != one.gpu_speeds[1]),
        _row(f"the worst placement is below {_MUCH:g}", done, lambda one: one.worst_of_best < _MUCH),
        _row("today's placement is another", done, lambda one: one.today[0] != one.answer[0]),
    ]
    heads = (
        "workloads",
        "number",
        f"placement and depth within {RIGHT_WITHIN:.0%} of the best",
        "placement alone",
        "of the best: median, worst",
        "speed over today's, median",
    )
    wrong = [one for one in done if not one.is_right]
    lines = [f"\n{_described(one)} (jitter {one.jitter:.2f}, features {one.feature_share:.2f})" for one in wrong]
    return f"{markdown_table(heads, rows)}\n\nWrong:{''.join(lines) or ' none'}\n"


def _row(what: str, done: Sequence[PlacedSearch], counts: Callable[[PlacedSearch], bool]) -> list[str]:
    some = [one for one in done if counts(one)]
    if not some:
        return [what, "0", "", "", "", ""]
    return [
        what,
        str(len(some)),
        str(sum(one.is_right for one in some)),
        str(sum(one.is_right_placement for one in some)),
        f"{median(one.of_best for one in some):.3f}, {min(one.of_best for one in some):.3f}",
        f"{median(one.speedup for one in some):.2f}",
    ]

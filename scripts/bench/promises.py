"""Benchmark of promises: what a search foretells to gain, and what it truly gained, on tables and on the simulator.

Every finished search is a line of ``promises.jsonl``, so that the same command resumes after an interruption. The
report shows what was promised, by deciles, beside what was gained, and where exploring might end.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune import __version__
from autotune.errors import TrialError
from autotune.events import Event, PhaseChanged, TrialStarted
from autotune.records import Purpose, Scalar
from autotune.search.model import REALIZED
from autotune.search.schedule import MOSTLY_TRIED, Budget
from autotune.search.state import SearchState
from scripts.bench.harness import OURS, Harness, SimulatedTrainer
from scripts.bench.results import Commands, add_pieces, make_missing, markdown_table, parse_seeds, work_folder
from scripts.bench.simulation.scenarios import scenario
from scripts.bench.tables.searches import ENDLESS_S, EXPLORING, Piece, TrialsBudget, pieces, trainer_of
from scripts.bench.tables.table import USUAL, Option, Row, Table, read_tables

APART = 10
"""Trials between two moments that ask what is promised to users, and that count in tables of promises."""

_EXPLORING = frozenset({Purpose.EXPLORE, Purpose.REPEAT})


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Moment of a search that explores.

    Attributes:
        ln_speed: True ln speed of the answer, the point that is believed to be best.
        tried_share: Share of the points of the space that were tried.
        rest: Gain in ln score that exploring on promises; None at the end of it.
        ahead: Gain in ln score that the model promises for what users are told of, `REALIZED` of which they are told;
            None where it was not asked for, or is not told yet.
    """

    trials: int
    elapsed_s: float
    ln_speed: float
    tried_share: float
    rest: float | None
    ahead: float | None


def watched_search(
    harness: Harness,
    one: SimulatedTrainer,
    budget: Budget,
    consumers: Sequence[Callable[[Event], None]],
    *,
    promised_to_users: Callable[[SearchState], float | None],
    confirms: bool = True,
) -> list[Moment]:
    """Run our tuner, which explores to the end of its budget whatever is promised.

    Args:
        promised_to_users: Asks what users are told to gain, e.g. 0.02.
        confirms: As in `SearchParts`.

    Returns:
        A moment before each trial that explores, and the end of exploring; none if no trial gave numbers.
    """
    moments: list[Moment] = []

    def add(rest: float | None, ahead: float | None) -> None:
        better = tuner.state.model.better()
        values = better[0].observation.values if better else harness.problem.space.baseline
        moments.append(
            Moment(
                trials=len(tuner.state.trials.own),
                elapsed_s=budget.elapsed_s(),
                ln_speed=math.log(one.speed(values)),
                tried_share=tuner.state.model.tried_share(tuner.state.model.space),
                rest=rest,
                ahead=ahead,
            )
        )

    def note(event: Event) -> None:
        if isinstance(event, TrialStarted) and event.purpose in _EXPLORING:
            is_asked = len(tuner.state.trials.own) % APART == 0
            told = promised_to_users(tuner.state) if is_asked else None
            add(tuner.explorer.promised, None if told is None else math.log1p(told) / REALIZED)
        elif (
            isinstance(event, PhaseChanged) and event.phase != "exploring" and moments and moments[-1].rest is not None
        ):
            add(None, None)  # before the confirmation

    with harness.tuner(budget, [*consumers, note], exhaust=True, confirms=confirms) as tuner:
        try:
            tuner.run()
        except TrialError:
            return []
        if tuner.ended_by is not None:
            raise tuner.ended_by
    return moments


FEWEST_POINTS = 9
MOST_POINTS = 40
"""Most points of a part that run."""

_PARTS = 2
_OPTIONS = (2, 3, 4)
_PART_DRAWS = 300


def small_parts(table: Table) -> list[Table]:
    """Return some parts of a table, the same ones each time; fewer, or none, of one without such parts."""
    rng = random.Random(table.digest)
    columns = range(len(table.options))
    rows = list(table.throughputs)
    found: dict[str, Table] = {}
    for _ in range(_PART_DRAWS):
        free = rng.sample(columns, min(rng.choice(_OPTIONS), len(columns)))
        part = _part(table, rng.choice(rows), sorted(free))
        if FEWEST_POINTS <= len(part.throughputs) <= MOST_POINTS and len(free) < len(columns):
            found[part.name] = part
        if len(found) == _PARTS:
            break
    return list(found.values())


def _part(table: Table, row: Row, free: Sequence[int]) -> Table:
    """Return the part in which these columns vary, and the others are as in a row."""
    fixed = [column for column in range(len(row)) if column not in free]
    rows = [other for other in table.throughputs if all(other[column] == row[column] for column in fixed)]
    varying = [column for column in free if len({other[column] for other in rows}) > 1]
    held = ", ".join(f"{table.options[column].name}={row[column]}" for column in fixed)
    return Table(
        name=f"{table.name} with {held}",
        digest=table.digest,
        options=[_only(table.options[column], {other[column] for other in rows}) for column in varying],
        throughputs={tuple(other[column] for column in varying): table.throughputs[other] for other in rows},
    )


def _only(option: Option, values: set[Scalar]) -> Option:
    return replace(option, choices=tuple(choice for choice in option.choices if choice in values))


THRESHOLDS: Sequence[float] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Promises, in ln score, below which exploring might end."""

MOST_LOST_IN_THE_MEAN = 0.003
MOST_LOST = 0.01
"""Most that a threshold may cost in ln score, on average and in nine of ten searches that it ends."""

_FEW = 10  # searches ended, that tell nothing of nine in ten
_GROUPS = 10
_DRAWS = 1_000

_Array = NDArray[np.float64]
_Pair = tuple[float, float]  # promised, gained


@dataclass(frozen=True, kw_only=True)
class WatchedSearch:
    """Search that explored to the end of its budget.

    Attributes:
        moments: Its moments, the last one the end of exploring; none if no trial gave numbers.
        trials_ahead: Number of trials that the promise to users is for; infinite if it is for a time.
        ahead_s: Time that it is for; infinite if it is for a number of trials.
    """

    moments: Sequence[Moment]
    trials_ahead: float = math.inf
    ahead_s: float = math.inf

    def by_the_rest(self, moment: Moment) -> float:
        """Return what exploring on from a moment has truly gained, in ln score."""
        return self.moments[-1].ln_speed - moment.ln_speed

    def pairs_of_the_rest(self) -> list[_Pair]:
        """Return what exploring on promised, in ln score, and gained, at each tenth trial."""
        return [
            (moment.rest, self.by_the_rest(moment))
            for moment in self.moments
            if moment.rest is not None and moment.trials % APART == 0
        ]

    def pairs_ahead(self) -> list[_Pair]:
        """Return what was promised to users, in ln score, and gained, where that many trials or minutes followed."""
        pairs = []
        for moment in self.moments:
            later = [
                other
                for other in self.moments
                if other.trials >= moment.trials + self.trials_ahead
                or other.elapsed_s >= moment.elapsed_s + self.ahead_s
            ]
            if moment.ahead is not None and later:
                pairs.append((REALIZED * moment.ahead, self._at(moment, later[0]) - moment.ln_speed))
        return pairs

    def _at(self, moment: Moment, first_later: Moment) -> float:
        """Return the true ln speed of the answer at the end of what was promised for."""
        if self.trials_ahead < math.inf:
            return first_later.ln_speed
        # The moment behind the end has seen one more trial.
        until_s = moment.elapsed_s + self.ahead_s
        return [other for other in self.moments if other.elapsed_s <= until_s][-1].ln_speed

    def first_below(self, threshold: float, tried_share: float) -> Moment | None:
        """Return the first moment at which the rest promises less and so many points were tried; None without one."""
        return next(
            (
                moment
                for moment in self.moments
                if moment.rest is not None and moment.rest < threshold and moment.tried_share >= tried_share
            ),
            None,
        )


def calibration_report(searches: Mapping[str, Sequence[WatchedSearch]]) -> str:
    """Return all tables, for each kind of searches and for all together."""
    kinds = {name: [one for one in some if one.moments] for name, some in searches.items()}
    kinds = {name: some for name, some in kinds.items() if some}
    if len(kinds) > 1:
        kinds["All together"] = [one for some in kinds.values() for one in some]
    parts = ["Gains are in ln score; 1 % is 0.01."]
    for name, some in kinds.items():
        parts += [
            f"## {name} ({len(some)} searches)",
            "### Stopping: what exploring on promised, and truly gained",
            deciles_table([pair for one in some for pair in one.pairs_of_the_rest()]),
            "If exploring ended at the first promise below a threshold:",
            thresholds_table(some, tried_share=0.0),
            f"If it ended so only once {MOSTLY_TRIED:.0%} of all points were tried, as it does:",
            thresholds_table(some, tried_share=MOSTLY_TRIED),
            "### What was promised to users, and truly gained",
            deciles_table([pair for one in some for pair in one.pairs_ahead()]),
            unbiased_line(some),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def deciles_table(pairs: Sequence[_Pair]) -> str:
    """Return a line for each tenth of the promises, lowest first; empty without any."""
    if not pairs:
        return ""
    table = np.array(sorted(pairs))
    rows = []
    for group in (some for some in np.array_split(table, _GROUPS) if len(some)):
        promised, gained = group.T
        figures = (promised.min(), promised.max(), *_middle(promised), *_middle(gained))
        rows.append([str(len(group)), *(f"{figure:.2%}" for figure in figures)])
    promised, gained = table.T
    rows.append(["all", "", "", *(f"{figure:.2%}" for figure in (*_middle(promised), *_middle(gained)))])
    return markdown_table(
        ["moments", "promise from", "to", "promised: mean", "median", "truly gained: mean", "median"], rows
    )


def thresholds_table(searches: Sequence[WatchedSearch], *, tried_share: float) -> str:
    """Return a line for each threshold: how many searches it ends, when, and what that costs them.

    Whether it costs no more than is allowed is known `so far` only, where it ends few of them.

    Args:
        tried_share: Share of the points that has to be tried before.
    """
    rows = []
    for threshold in THRESHOLDS:
        ended = [(one, moment) for one in searches if (moment := one.first_below(threshold, tried_share)) is not None]
        cells = [f"{threshold:g}", f"{len(ended)} ({len(ended) / len(searches):.0%})"]
        if ended:
            lost = np.array([one.by_the_rest(moment) for one, moment in ended])
            left = np.median([1 - moment.trials / one.moments[-1].trials for one, moment in ended])
            mean, high = float(lost.mean()), float(np.percentile(lost, 90))
            holds = mean < MOST_LOST_IN_THE_MEAN and high < MOST_LOST
            cells += [
                f"{np.median([moment.trials for _, moment in ended]):.0f}",
                f"{left:.0%}",
                *(f"{figure:.2%}" for figure in (float(np.median(lost)), mean, high)),
                ("yes" if len(ended) >= _FEW else "so far") if holds else "no",
            ]
        rows.append([*cells, *[""] * (8 - len(cells))])
    allowed = f"mean < {MOST_LOST_IN_THE_MEAN:.1%}, p90 < {MOST_LOST:.0%}"
    heads = [
        "threshold",
        "searches it ends",
        "at trial (median)",
        "trials left",
        "lost: median",
        "mean",
        "p90",
        allowed,
    ]
    return markdown_table(heads, rows)


def unbiased_line(searches: Sequence[WatchedSearch]) -> str:
    """Return the share of the model's promise to users that was gained, with its interval; empty without any.

    The interval is of a bootstrap of the searches.
    """
    sums = np.array([np.sum(one.pairs_ahead() or [(0.0, 0.0)], axis=0) for one in searches])
    if not sums[:, 0].sum():
        return ""
    drawn = np.random.default_rng(0).integers(0, len(sums), (_DRAWS, len(sums)))
    promised, gained = sums[drawn].sum(axis=1).T
    low, high = np.percentile(REALIZED * gained / np.maximum(promised, 1e-12), (2.5, 97.5))
    share = REALIZED * sums[:, 1].sum() / sums[:, 0].sum()
    return (
        f"Of what the model promised, {share:.2f} was gained ({low:.2f} to {high:.2f}); "
        f"what is shown takes it as {REALIZED:.2f}."
    )


def _middle(values: _Array) -> _Pair:
    return float(values.mean()), float(np.median(values))


FORMAT = 3
"""Version of the lines of ``promises.jsonl``."""

_TRIALS = 120  # of a search on a table
_TRIALS_AHEAD = 20  # there, in place of ten minutes
_BUDGET_S = 1800.0  # of a search on the simulator
_AHEAD_S = 600.0


@dataclass(frozen=True, kw_only=True)
class ScenarioPiece:
    """One search to make on the simulator."""

    scenario: int
    budget_s: float

    def __str__(self) -> str:
        """Say which one it is."""
        return f"{OURS} on scenario {self.scenario}"


@dataclass(frozen=True, kw_only=True)
class _Search:
    """Search that was made."""

    table_piece: Piece | None = None
    scenario_piece: ScenarioPiece | None = None
    moments: tuple[Moment, ...]

    @property
    def piece(self) -> Piece | ScenarioPiece:
        """The piece that it is of."""
        piece = self.table_piece or self.scenario_piece
        assert piece
        return piece


def benchmark_promises(
    *, folder: Path | None, seeds: Sequence[int], scenarios: Sequence[int], jobs: int, out: Path
) -> str:
    """Make the missing searches.

    Args:
        folder: Folder of the tables; None for the simulator alone.
        out: Folder of the results; an existing one is gone on with.

    Returns:
        The report, as Markdown; it is written there, too.

    Raises:
        ConfigError: A table, or an earlier result, cannot be used.
    """
    whole = read_tables(folder) if folder else []
    parts = [part for table in whole for part in small_parts(table)]
    tables = {table.name: table for table in (*whole, *parts)}
    searches = make_missing(
        partial(_make, tables=tables),
        list(_pieces(list(tables.values()), seeds, scenarios)),
        path=out / "promises.jsonl",
        head={"format": FORMAT, "autotune": __version__},
        kind=_Search,
        jobs=jobs,
        describe=lambda search: str(search.piece),
    )
    report = calibration_report(
        {
            f"Measured tables, {_TRIALS} trials, {_TRIALS_AHEAD} more for ten minutes": _on(searches, whole),
            f"Small parts of these tables, {FEWEST_POINTS} to {MOST_POINTS} points": _on(searches, parts),
            f"Simulator, {_BUDGET_S / 60:g} minutes": [
                WatchedSearch(moments=search.moments, ahead_s=_AHEAD_S) for search in searches if search.scenario_piece
            ],
        }
    )
    (out / "promises.md").write_text(report, encoding="utf-8")
    return report


def _on(searches: Sequence[_Search], tables: Sequence[Table]) -> list[WatchedSearch]:
    """Return the searches on these tables."""
    names = {table.name for table in tables}
    return [
        WatchedSearch(moments=search.moments, trials_ahead=_TRIALS_AHEAD)
        for search in searches
        if search.table_piece and search.table_piece.table in names
    ]


def _pieces(tables: Sequence[Table], seeds: Sequence[int], scenarios: Sequence[int]) -> Iterator[Piece | ScenarioPiece]:
    yield from pieces(tables, methods=[EXPLORING], noises=[USUAL], seeds=seeds, trials=[_TRIALS])
    for number in scenarios:
        yield ScenarioPiece(scenario=number, budget_s=_BUDGET_S)


def _make(piece: Piece | ScenarioPiece, tables: dict[str, Table]) -> _Search:
    with work_folder() as folder:
        if isinstance(piece, Piece):
            return _Search(table_piece=piece, moments=tuple(_on_table(piece, tables[piece.table], folder)))
        return _Search(scenario_piece=piece, moments=tuple(_on_scenario(piece, folder)))


def _on_table(piece: Piece, table: Table, folder: Path) -> list[Moment]:
    trainer = trainer_of(piece, table)
    harness = Harness(trainer, ENDLESS_S, folder, method=piece.method)
    budget = TrialsBudget(harness.clock, trials=max(piece.trials), runner=harness.runner)
    return watched_search(
        harness,
        trainer,
        budget,
        [budget.note],
        promised_to_users=lambda state: state.model.gain_of(_TRIALS_AHEAD),
        confirms=False,
    )


def _on_scenario(piece: ScenarioPiece, folder: Path) -> list[Moment]:
    one = scenario(piece.scenario)
    harness = Harness(one, piece.budget_s, folder, method=OURS)
    return watched_search(
        harness, one, harness.budget(), [], promised_to_users=lambda state: state.model.gain_of_ten_minutes()
    )


def add_promises(commands: Commands) -> None:
    """Add the parser of ``promises``."""
    parser = commands.add_parser("promises", help="what a search promises to gain, beside what it truly gained")
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="folder of tables (default: the simulator alone)"
    )
    parser.add_argument("--seeds", type=parse_seeds, default=range(2), metavar="0-9", help="on tables (default: 0-1)")
    parser.add_argument(
        "--scenarios", type=parse_seeds, default=range(1000, 1024), metavar="0-31", help="default: 1000-1023"
    )
    add_pieces(parser, out="bench-promises")
    parser.set_defaults(run=_promises)


def _promises(arguments: argparse.Namespace) -> None:
    report = benchmark_promises(
        folder=arguments.folder,
        seeds=arguments.seeds,
        scenarios=arguments.scenarios,
        jobs=arguments.jobs,
        out=arguments.out,
    )
    print(report, end="")

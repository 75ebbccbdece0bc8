"""Report of the benchmark as Markdown: regrets by method, wins against each peer, how sure the order is, where we lose.

Regrets of all tables are pooled, each search counting once. Intervals and chances come from a paired bootstrap: tables
are drawn with replacement, and then the seeds within each table and start, the same draws for all methods.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scripts.bench.markdown import markdown_table, regret_cells
from scripts.bench.peers.anytime_curve import OURS
from scripts.bench.tables.pieces import Piece
from scripts.bench.tables.searches import EXPLORING, Answers

_DRAWS = 2_000
_SAME = 1e-9  # regrets closer than this are a tie

_Key = tuple[str, str, int]  # table, start, seed
_Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Search:
    """Search that was made.

    Attributes:
        piece: What was to be done.
        answers: What came of it.
    """

    piece: Piece
    answers: Answers


def report(searches: Sequence[Search]) -> str:
    """Return all tables of these searches."""
    parts = [f"{len(searches)} searches, {sum(search.answers.cpu_s for search in searches) / 60:.0f} minutes of CPU."]
    for noise in dict.fromkeys(search.piece.noise for search in searches):
        some = [search for search in searches if search.piece.noise == noise]
        names = sorted({search.piece.table for search in some})
        parts.append(f"## Noise: {noise} ({len(names)} tables: {', '.join(names)})")
        for trials in sorted({number for search in some for number in search.answers.regrets}):
            parts += [f"### After {trials} trials", regrets_table(some, trials), wins_table(some, trials)]
        if losses := losses_table(some):
            parts += ["### Table by table", losses]
    return "\n\n".join(part for part in parts if part) + "\n"


def regrets_table(searches: Sequence[Search], trials: int) -> str:
    """Return a line for each method: its regrets, and the chance that no method has a lower mean."""
    regrets = _regrets(searches, trials)
    first = _first(regrets)
    rows = []
    for method, found in regrets.items():
        values = np.array(list(found.values()))
        close = np.mean(values <= 0.05)
        rows.append(
            [
                method,
                str(len(values)),
                *regret_cells(values),
                f"{close:.0%}",
                f"{first[method]:.0%}",
            ]
        )
    return markdown_table(
        ["method", "searches", "median regret", "mean", "p90", "within 5 %", "first in mean (bootstrap)"], rows
    )


def wins_table(searches: Sequence[Search], trials: int) -> str:
    """Return our regrets, wins and losses beside each other method's on searches that both made; empty without such."""
    regrets = _regrets(searches, trials)
    rows = []
    for ours in (OURS, EXPLORING):
        for method in regrets:
            both = [key for key in regrets.get(ours, {}) if key in regrets[method]]
            if method in (OURS, EXPLORING) or not both:
                continue
            gaps = {key: regrets[ours][key] - regrets[method][key] for key in both}
            wins, losses = (sum(sign * gap > _SAME for gap in gaps.values()) for sign in (-1, 1))
            low, high = np.percentile(_draws({"": gaps})[""], (2.5, 97.5))
            mean = float(np.mean(list(gaps.values())))
            rows.append(
                [
                    ours,
                    method,
                    *(", ".join(regret_cells([regrets[one][key] for key in both])) for one in (ours, method)),
                    *(str(count) for count in (wins, losses, len(both) - wins - losses)),
                    f"{mean:+.1%} ({low:+.1%} to {high:+.1%})",
                ]
            )
    if not rows:
        return ""
    return markdown_table(
        [
            "",
            "against",
            "median, mean, p90 of the regret",
            "theirs",
            "wins",
            "losses",
            "ties",
            "mean difference (95 %)",
        ],
        rows,
    )


def losses_table(searches: Sequence[Search]) -> str:
    """Return a line for each table: the medians of our regret and of the best other method's, by number of trials.

    What we lose most on comes first. Of so many methods the best one on a table has been lucky, too, so that a loss may
    be chance where a gain is none; both medians are of the searches that both made. Empty if we made none.
    """
    numbers = sorted({number for search in searches for number in search.answers.regrets})
    rows: list[tuple[float, list[str]]] = []
    for table in sorted({search.piece.table for search in searches}):
        some = [search for search in searches if search.piece.table == table]
        lost, cells = [], []
        for trials in numbers:
            regrets = _regrets(some, trials)
            ours = regrets.get(EXPLORING, {})
            others = {
                method: [(ours[key], regret) for key, regret in found.items() if key in ours]
                for method, found in regrets.items()
                if method not in (OURS, EXPLORING) and ours.keys() & found
            }
            if not others:
                cells.append("")
                continue
            medians = {method: np.median(pairs, axis=0) for method, pairs in others.items()}
            best = min(medians, key=lambda method: medians[method][1])
            our, other = medians[best].tolist()
            lost.append(our - other)
            cells.append(f"{our:.1%}, {other:.1%} {best} ({len(others[best])})")
        if lost:
            rows.append((max(lost), [table, *cells, f"{max(lost):+.1%}"]))
    if not rows:
        return ""
    return markdown_table(
        ["table", *(f"after {trials}: ours, best other (searches)" for trials in numbers), "most lost"],
        [cells for _, cells in sorted(rows, key=lambda row: -row[0])],
    )


def _regrets(searches: Sequence[Search], trials: int) -> dict[str, dict[_Key, float]]:
    """Return the regrets after so many trials by method and search."""
    found: dict[str, dict[_Key, float]] = {}
    for search in searches:
        if trials in search.answers.regrets:
            piece = search.piece
            key = (piece.table, piece.start, piece.seed)
            found.setdefault(piece.method, {})[key] = search.answers.regrets[trials]
    return found


def _first(regrets: Mapping[str, Mapping[_Key, float]]) -> dict[str, float]:
    """Return for each method the share of the draws in which its mean is the lowest; ties are shared."""
    draws = _draws(regrets)
    means = np.array([draws[method] for method in regrets])
    is_first = means <= means.min(axis=0) + _SAME
    shares = (is_first / is_first.sum(axis=0)).mean(axis=1)
    return dict(zip(regrets, shares.tolist(), strict=True))


def _draws(regrets: Mapping[str, Mapping[_Key, float]]) -> dict[str, _Array]:
    """Return bootstrap draws of each method's mean: drawn tables, in these the searches of each start."""
    tables = sorted({key[0] for found in regrets.values() for key in found})
    seeds = sorted({key[2] for found in regrets.values() for key in found})
    rng = np.random.default_rng(0)
    weights = rng.multinomial(len(tables), np.full(len(tables), 1 / len(tables)), size=_DRAWS).astype(np.float64)
    # One drawing of seeds for all methods; a method that lacks some has its weight on the others.
    counts = 1e-6 + rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=(_DRAWS, len(tables)))
    draws: dict[str, _Array] = {}
    for method, found in regrets.items():
        cells: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for (table, start, seed), regret in found.items():
            cells[table, start][seed] = regret
        total, weight = np.zeros(_DRAWS), np.zeros(_DRAWS)
        for (table, _), by_seed in cells.items():
            at = tables.index(table)
            drawn = counts[:, at, [seeds.index(seed) for seed in by_seed]]
            means = drawn @ np.array(list(by_seed.values())) / drawn.sum(axis=1)
            total += weights[:, at] * means
            weight += weights[:, at]
        draws[method] = total / np.maximum(weight, 1e-9)
    return draws

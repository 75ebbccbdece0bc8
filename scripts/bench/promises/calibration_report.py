"""Report of the calibration as Markdown: what was promised, by deciles, beside what was gained, and where to stop."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.schedule import MOSTLY_TRIED
from autotune.search.state import REALIZED
from scripts.bench.markdown import markdown_table
from scripts.bench.promises.moments import APART, Moment

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
    """Return all tables, for each kind of searches and for all together.

    Args:
        searches: Searches by heading.
    """
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
        searches: The searches.
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

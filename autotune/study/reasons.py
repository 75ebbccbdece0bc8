"""Rules that led to the verdict of a study, in the order in which they were applied: for `autotune status --why`.

Each rule calls the same function that the answer was computed with, so that both say the same.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.measure.score import (
    FEWEST_PAIRS,
    LEAST_PAIRS,
    LEAST_SCORE_GAIN,
    LEAST_SPEED,
    Judgement,
    Objective,
)
from autotune.records import CONFIRMED, NO_SEARCH, Purpose, Ratio, SearchResult, TrialRecord, Values
from autotune.study.answer import (
    Finalist,
    chosen_finalist,
    comparable_trials,
    judged_finalists,
    standing_answers,
    withheld,
)


@dataclass(frozen=True, kw_only=True)
class VerdictRule:
    """One rule that a verdict rests on: what it asks, what it looked at, and what came of it."""

    rule: str
    inputs: str
    result: str


def rules_of(
    records: Sequence[TrialRecord],
    result: SearchResult,
    objective: Objective,
    *,
    of_other_code: int = 0,
) -> Iterator[VerdictRule]:
    """Yield the rules that led to an answer.

    Args:
        records: The study's record, trials of other code left out.
        result: The answer, see `autotune.study.summary.answer_of`.
        of_other_code: Number of trials that were left out.
    """
    yield VerdictRule(
        rule="trials of the trainer's code as it is now count",
        inputs=f"{len(records) + of_other_code} on record",
        result=f"{len(records)} count",
    )
    searches = list(dict.fromkeys(trial.search for trial in records if trial.purpose not in NO_SEARCH))
    stood = standing_answers(records, objective)
    answer = stood[None]
    yield VerdictRule(
        rule="the answer that the study stands by is shown; without one, the latest search that has a result",
        inputs=f"{len(searches)} {'search' if len(searches) == 1 else 'searches'}; "
        + (f"the answer of {answer.search} stands" if answer else "no answer stands"),
        result=result.search,
    )
    trials = [trial for trial in records if trial.search == result.search]
    first = trials[0]
    made = [trial for trial in trials if trial.point == first.point]
    good = comparable_trials(made, objective)
    yield VerdictRule(
        rule="the baseline has numbers", inputs=f"{len(good)} of its {len(made)} trials have", result=_yes(bool(good))
    )
    if good:
        judged = judged_finalists(records, result.search, objective)
        explored = {trial.point for trial in trials if trial.purpose is Purpose.EXPLORE}
        yield VerdictRule(
            rule="only points that were measured in interleaved pairs with the baseline can win",
            inputs=f"{len(explored)} points explored",
            result=", ".join(_name(one.trial, first.values) for one in judged) or f"none: {result.why}",
        )
        for finalist in judged:
            yield from _rules_of_finalist(finalist, _name(finalist.trial, first.values))
        standing = None if first.conditions.left_out_answer is not None else stood[result.search]
        chosen = chosen_finalist(judged, standing, records, result.search, objective)
        yield VerdictRule(
            rule="the answer that stood before is replaced only by what beats it in pairs, or where it failed",
            inputs=f"{_name(standing.trial, first.values)} of {standing.search}" if standing else "none stood",
            result=_name(chosen.trial, first.values) if chosen else "no new answer",
        )
        for held in withheld(judged, chosen, standing, first):
            yield VerdictRule(
                rule="a winner may be held back", inputs=_name(held.finalist.trial, first.values), result=held.why
            )
    yield VerdictRule(rule="verdict", inputs=result.why, result=result.verdict.value)
    if result.verdict in CONFIRMED:
        learning = result.race.winner.learning.value if result.race else result.why_not_raced or "needs no race"
        yield VerdictRule(
            rule="`apply` writes what leaves the training unchanged, and all other changes only with --all",
            inputs=f"learning: {learning}",
            result=_written(result, first.values),
        )


def _written(result: SearchResult, baseline: Values) -> str:
    """Return what ``apply`` writes without ``--all``, in words."""
    if result.applies_same_training and result.same_training:
        changes = _changes(result.same_training[0].values, baseline)
        return f"{changes} (the confirmed change without effect on the training)"
    if result.needs_consent or result.best is None:
        return "nothing without --all"
    return _changes(result.best.values, baseline)


def _rules_of_finalist(finalist: Finalist, name: str) -> Iterator[VerdictRule]:
    pairs_made, judgement = len(finalist.pairs), finalist.judgement
    planned = f" of at most {finalist.planned_pairs}" if finalist.planned_pairs else ""
    ratios = ", ".join(f"{other.speed / one.speed:.2f}" for one, other in finalist.pairs)
    yield VerdictRule(
        rule=f"{name}: at least {LEAST_PAIRS} pairs, {FEWEST_PAIRS} for a large gain; all count",
        inputs=f"{pairs_made}{planned} pairs; speed ratios {ratios or 'none'}",
        result="judged" if judgement else "not judged",
    )
    if judgement is None:
        return
    yield from _rules_of_judgement(judgement, name)
    if finalist.validation is not None:
        yield VerdictRule(
            rule=f"{name}: it holds in a longer training",
            inputs="validated",
            result="; ".join(finalist.validation.broke) or "it holds",
        )


def _rules_of_judgement(judgement: Judgement, name: str) -> Iterator[VerdictRule]:
    machines = f" on {len(judgement.of_machines)} machines" if judgement.of_machines else ""
    yield VerdictRule(
        rule=f"{name}: interval of the speed ratio, {judgement.confidence:.1%}",
        inputs=f"{judgement.pairs} pairs{machines}; standard error "
        f"{math.expm1(judgement.standard_error):.1%} ({judgement.df:.0f} degrees of freedom)",
        result=_ratio(judgement.speed),
    )
    yield VerdictRule(
        rule=f"{name}: better if the interval of score begins above {LEAST_SCORE_GAIN}, of speed above {LEAST_SPEED}",
        inputs=f"score {_ratio(judgement.score)}, speed {_ratio(judgement.speed)}",
        result=_yes(judgement.better),
    )
    if not judgement.better:
        known = {"steadiness": judgement.steadiness, "GPU utilization": judgement.utilization}
        shown = ", ".join(f"{what} {_ratio(ratio)}" for what, ratio in known.items() if ratio)
        yield VerdictRule(
            rule=f"{name}: steadier, at no less speed",
            inputs=shown or "neither is known",
            result=_yes(judgement.steadier),
        )


def _name(trial: TrialRecord, baseline: Values) -> str:
    return _changes(trial.values, baseline)


def _changes(values: Values, baseline: Values) -> str:
    return " ".join(f"{path}={value}" for path, value in values.items() if baseline.get(path) != value) or "baseline"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f}x ({ratio.low:.3f} to {ratio.high:.3f})"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"

"""Rules that led to the verdict of a study, in order of application, for `autotune status --why`."""

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
    answers_by_search,
    chosen_finalist,
    comparable_trials,
    judged_finalists,
    withheld,
)


@dataclass(frozen=True)
class VerdictRule:
    """Rule, its inputs and its result."""

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
        records: Trials of the current code.
        result: Result of `autotune.study.summary.answer_of`.
        of_other_code: Number of trials left out.
    """
    yield VerdictRule(
        "only trials of the current trainer code count",
        f"{len(records) + of_other_code} on record",
        f"{len(records)} count",
    )
    searches = {trial.search for trial in records if trial.purpose not in NO_SEARCH}
    answers = answers_by_search(records, objective)
    answer = answers[None]
    yield VerdictRule(
        "the current answer is shown, otherwise the latest search with a result",
        f"searches: {len(searches)}; " + (f"current answer from {answer.search}" if answer else "no current answer"),
        result.search,
    )
    trials = [trial for trial in records if trial.search == result.search]
    first = trials[0]

    def name(trial: TrialRecord) -> str:
        return _changes(trial.values, first.values)

    own = [trial for trial in trials if trial.point == first.point]
    good = comparable_trials(own, objective)
    yield VerdictRule("the baseline is measured", f"{len(good)} of its {len(own)} trials", _yes(bool(good)))
    if good:
        judged = judged_finalists(records, result.search, objective)
        explored = {trial.point for trial in trials if trial.purpose is Purpose.EXPLORE}
        yield VerdictRule(
            "only points measured in interleaved pairs with the baseline can win",
            f"{len(explored)} points explored",
            ", ".join(name(one.trial) for one in judged) or f"none: {result.why}",
        )
        for finalist in judged:
            yield from _rules_of_finalist(finalist, name(finalist.trial))
        previous = None if first.conditions.left_out_answer is not None else answers[result.search]
        chosen = chosen_finalist(judged, previous, records, result.search, objective)
        yield VerdictRule(
            "the previous answer is superseded only by a point that beats it in pairs, or if it failed",
            f"{name(previous.trial)} from {previous.search}" if previous else "none",
            name(chosen.trial) if chosen else "no new answer",
        )
        for held in withheld(judged, chosen, previous, first):
            yield VerdictRule("a winner may be held back", name(held.finalist.trial), held.why)
    yield VerdictRule("verdict", result.why, result.verdict.value)
    if result.verdict in CONFIRMED:
        learning = result.race.winner.learning.value if result.race else result.why_not_raced or "needs no race"
        yield VerdictRule(
            "`apply` writes changes that keep the training unchanged; others need --all",
            f"learning: {learning}",
            _written(result, first.values),
        )


def _written(result: SearchResult, baseline: Values) -> str:
    """Return what ``apply`` writes without ``--all``."""
    if result.applies_same_training and result.same_training:
        changes = _changes(result.same_training[0].values, baseline)
        return f"{changes} (confirmed, training unchanged)"
    if result.needs_consent or result.best is None:
        return "nothing without --all"
    return _changes(result.best.values, baseline)


def _rules_of_finalist(finalist: Finalist, name: str) -> Iterator[VerdictRule]:
    pairs_made, judgement = len(finalist.pairs), finalist.judgement
    planned = f" of at most {finalist.planned_pairs}" if finalist.planned_pairs else ""
    ratios = ", ".join(f"{other.speed / one.speed:.2f}" for one, other in finalist.pairs)
    yield VerdictRule(
        f"{name}: at least {LEAST_PAIRS} pairs, {FEWEST_PAIRS} for a large gain; all count",
        f"{pairs_made}{planned} pairs; speed ratios {ratios or 'none'}",
        "judged" if judgement else "not judged",
    )
    if judgement is None:
        return
    yield from _rules_of_judgement(judgement, name)
    if finalist.validation is not None:
        passed = "; ".join(finalist.validation.broke) or "passed"
        yield VerdictRule(f"{name}: it does not break in a longer training", "validated", passed)


def _rules_of_judgement(judgement: Judgement, name: str) -> Iterator[VerdictRule]:
    machines = f" on {len(judgement.of_machines)} machines" if judgement.of_machines else ""
    speed = _ratio(judgement.speed)
    yield VerdictRule(
        f"{name}: interval of the speed ratio, {100 * judgement.confidence:.1f} %",
        f"{judgement.pairs} pairs{machines}; standard error {100 * math.expm1(judgement.standard_error):.1f} % "
        f"({judgement.df:.0f} degrees of freedom)",
        speed,
    )
    yield VerdictRule(
        f"{name}: better if the interval of score starts above {LEAST_SCORE_GAIN}, of speed above {LEAST_SPEED}",
        f"score {_ratio(judgement.score)}, speed {speed}",
        _yes(judgement.better),
    )
    if not judgement.better:
        known = {"steadiness": judgement.steadiness, "GPU utilization": judgement.utilization}
        shown = ", ".join(f"{what} {_ratio(ratio)}" for what, ratio in known.items() if ratio)
        yield VerdictRule(
            f"{name}: steadier without a loss of speed", shown or "not measured", _yes(judgement.steadier)
        )


def _changes(values: Values, baseline: Values) -> str:
    return " ".join(f"{path}={value}" for path, value in values.items() if baseline.get(path) != value) or "baseline"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f}x ({ratio.low:.3f}-{ratio.high:.3f})"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"

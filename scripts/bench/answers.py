"""Benchmark of answers: what searches on simulated trainers say of a whole answer and of each of its changes.

The truth is known: the speed of the answer, and of the answer without each change, or each group of them.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from autotune.records import CONFIRMED, Change, Ratio, SearchResult
from scripts.bench.harness import OURS, Harness, SimulatedTrainer
from scripts.bench.results import Commands, markdown_table, parse_seeds
from scripts.bench.simulation.scenarios import null_scenario, scenario

_NOTHING = 0.002
"""Loss of speed, as a share, up to which a change that is taken back did nothing."""


def answer_of(one: SimulatedTrainer, budget_s: float) -> dict[str, Any]:
    """Search once, and compare what is said with the truth."""
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(one, budget_s, Path(folder) / "search", method=OURS)
        result = harness.search(harness.budget())
        curve = harness.curve(None)
    said: dict[str, Any] = {
        "seed": one.seed,
        "used_s": curve.used_s,
        "trials": curve.trials,
        "regret": curve.regret_at(budget_s),
    }
    if result is None or result.baseline is None:
        return {**said, "verdict": "none"}
    said["verdict"] = result.verdict.value
    shown = result.best if result.verdict in CONFIRMED else result.candidate
    if result.speedup is None or shown is None:
        return said
    baseline, speed = one.speed(result.baseline.values), one.speed(shown.values)
    said["total"] = _told(result.speedup, speed / baseline if baseline else math.inf)
    if result.verdict in CONFIRMED:
        said["changes"] = [_of_group(one, result, group) for group in _groups(result.changes)]
    return said


def _groups(changes: Sequence[Change]) -> list[list[Change]]:
    groups: dict[object, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.path if change.worth is None else change.group, []).append(change)
    return list(groups.values())


def _of_group(one: SimulatedTrainer, result: SearchResult, group: Sequence[Change]) -> dict[str, Any]:
    """Return what is said of changes that stand together, and what taking back all of them, or each, truly costs."""
    assert result.best is not None
    assert result.baseline is not None
    best, today = dict(result.best.values), result.baseline.values
    speed = one.speed(best)

    def loss(paths: Sequence[str]) -> float:
        left = one.speed({**best, **{path: today[path] for path in paths}})
        return speed / left if left else math.inf

    paths = [change.path for change in group]
    true = loss(paths)
    if group[0].worth is not None and group[0].worth == result.same_training_confirmed:  # by its pairs: over today's
        true = one.speed({**today, **{path: best[path] for path in paths}}) / one.speed(today)
    told = _told(group[0].worth, true)
    if group[0].needed:
        told |= {"told": [math.inf] * 3, "holds": math.isinf(loss(paths))}
    return {
        **told,
        "paths": paths,
        "needless": [path for path in paths if loss([path]) < 1.0 + _NOTHING],
        "label": group[0].label,
    }


def _told(ratio: Ratio | None, true: float) -> dict[str, Any]:
    told = None if ratio is None else [ratio.low, ratio.ratio, ratio.high]
    return {"told": told, "true": true, "holds": ratio is not None and ratio.low <= true <= ratio.high}


def report(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of some answers."""
    better = [one for one in answers if one["verdict"] in ("better", "steadier")]
    totals = [one["total"] for one in answers if "total" in one]
    groups = [group for one in better for group in one.get("changes", ())]
    told = [group for group in groups if group["told"]]
    changes = sum(len(group["paths"]) for group in groups)
    needless = sum(len(group["needless"]) for group in groups)
    widths = [one["total"]["told"][2] / one["total"]["told"][0] for one in better]

    def share(part: int, whole: Sequence[object] | int) -> str:
        count = whole if isinstance(whole, int) else len(whole)
        return f"{part / count:.1%} ({part} of {count})" if count else "-"

    falsely = [one for one in better if one["total"]["true"] < 1.005]
    rows = [
        ("searches", str(len(answers))),
        ("better or steadier", share(len(better), answers)),
        ("of these with less than 0.5 % to gain", share(len(falsely), answers)),
        (
            "regret: mean, median",
            f"{fmean(one['regret'] for one in answers):.3f}, {median(one['regret'] for one in answers):.3f}",
        ),
        (
            "time used, trials: medians",
            f"{median(one['used_s'] for one in answers):.0f} s, {median(one['trials'] for one in answers):.0f}",
        ),
        ("the total's interval holds the truth", share(sum(one["holds"] for one in totals), totals)),
        ("its upper end over the lower, median", f"{median(widths):.2f}" if widths else "-"),
        ("changes an answer", f"{changes / len(better):.2f}" if better else "-"),
        ("needless changes an answer", f"{needless / len(better):.2f}" if better else "-"),
        ("needless of all changes", share(needless, changes)),
        (
            "changes with an interval above 1.00",
            share(sum(len(g["paths"]) for g in told if g["told"][0] > 1.0), changes),
        ),
        ("changes' intervals that hold the truth", share(sum(g["holds"] for g in told), told)),
    ]
    return markdown_table(("", ""), rows)


def _run(arguments: argparse.Namespace) -> None:
    make = null_scenario if arguments.null else scenario
    answers = []
    for seed in arguments.seeds:
        answers.append(answer_of(make(seed), arguments.budget))
        if arguments.out:
            with arguments.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(answers[-1]) + "\n")
    print(report(answers))


def add_answers(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("answers", help="what answers on simulated trainers say, against the truth")
    parser.add_argument("--seeds", type=parse_seeds, default=range(100))
    parser.add_argument("--budget", type=float, default=600.0, help="seconds (600)")
    parser.add_argument("--null", action="store_true", help="trainers whose knobs do nothing")
    parser.add_argument("--out", type=Path, help="file to which each answer is added as a line of JSON")
    parser.set_defaults(run=_run)

"""Report on races: what they say of equal configs, of unlike ones, and of batches whose time to a loss is known."""

import sys
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from autotune.records import Learning, Race, Scalar
from autotune.report.race_notes import outcome
from autotune.space.knob import Label
from scripts.bench.markdown import markdown_table
from scripts.bench.races.simulated import (
    CASES,
    FAMILIES,
    Config,
    Data,
    Family,
    each_family,
    held_out_after,
    simulated_race,
)
from scripts.bench.races.trained import PROBLEMS, Problem, python_for, real_race, speech, time_to_target

_LEARNING_SPEEDS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
_ROUNDS, _TRAINS_S = 4, 25.0
_EVALUATIONS = 6
_TODAY = 16
_ALIKE = 1.1  # of the time to a loss: less is no claim that is wrong
_PERCENT = 100


def simulated_report(times: int) -> str:
    """Race simulated trainings; return three tables.

    Args:
        times: Races of each family and learning speed.
    """
    rows = []
    for name, races in each_family(partial(_simulated, learning_speed=1.0), times).items():
        rows.append([name, str(len(races)), *_shares(races)])
    powers = []
    for learning_speed in _LEARNING_SPEEDS:
        found = each_family(partial(_simulated, learning_speed=learning_speed), max(1, times // 4))
        races = [race for of_family in found.values() for race in of_family]
        powers.append([f"{learning_speed:g}x", str(len(races)), *_shares(races)])
    heads = ["races", *(learning.value for learning in Learning)]
    return (
        f"Equal configs, {_ROUNDS} rounds of {_TRAINS_S:g} s:\n\n{markdown_table(['family', *heads], rows)}\n\n"
        f"Another batch that learns so much faster:\n\n{markdown_table(['truth', *heads], powers)}\n\n"
        f"What memorises, and what does not:\n\n{_memorising(times)}\n"
    )


def _memorising(times: int) -> str:
    """Race what is known to memorise and what is not, with and without evaluations; return the table.

    A wrong word is ``faster`` or ``alike`` where the held-out loss ends higher, or where it was not to be seen and
    something memorises.
    """
    rows = []
    for name, case in CASES.items():
        for evaluations in (0, _EVALUATIONS):
            data = Data(passes=case.passes, tells_epochs=case.tells_epochs, evaluations=evaluations)
            fastest = max(case.today.speed, case.other.speed)
            today, other = (
                held_out_after(FAMILIES["plain"], config, data, fastest=fastest) for config in (case.today, case.other)
            )
            races = [
                race
                for seed in range(times)
                if (race := simulated_race(
                    FAMILIES["plain"], case.other, today=case.today, data=data, changes=case.changes, rounds=_ROUNDS,
                    trains_s=_TRAINS_S, seed=seed,
                ))
            ]  # fmt: skip
            unseen = not evaluations and not name.startswith("honest")
            wrong = sum(race.winner.learning.is_safe for race in races) if unseen or other > today else 0
            seen = "yes" if evaluations else ""
            rows.append([name, seen, f"{today / other:.2f}x", str(len(races)), *_shares(races), str(wrong)])
    heads = ["case", "evaluates", "held-out loss today over its", "races", *(learning.value for learning in Learning)]
    return markdown_table([*heads, "wrong"], rows)


def equal_report(times: int, race_s: float, with_torch: str | None) -> str:
    """Race equal configs of real trainers, in turn; return the table.

    Args:
        times: Number of races.
        race_s: Length of each.
        with_torch: Interpreter with PyTorch; None leaves out what needs it.
    """
    names = [name for name in PROBLEMS if name != "language" or with_torch]
    rows = []
    for number in range(times):
        name = names[number % len(names)]
        trained = replace(PROBLEMS[name], recipe={**PROBLEMS[name].recipe, "seed": 100 * number, "unused": 0})
        race = real_race(trained, {"unused": 1}, set(), race_s=race_s, python=python_for(name, with_torch))
        rows.append([name, *_told(race)])
        print(*rows[-1], flush=True)
    return markdown_table(["problem", *_HEADS], rows) + "\n"


def batch_report(
    names: Sequence[str],
    batches: Sequence[int],
    *,
    seeds: int,
    race_s: float,
    limit_s: float,
    with_torch: str | None,
) -> str:
    """Train problems to their loss with each batch, and race the batches; return the table.

    Args:
        names: The problems, and ``speech`` for that of the shipped trainer.
        batches: The batches beside today's.
        seeds: Trainings to the loss of each.
        race_s: Length of each race.
        limit_s: Longest training to the loss.
        with_torch: Interpreter with PyTorch; None leaves out what needs it.
    """
    rows = []
    with ExitStack() as stack:
        for name in names:
            if name == "language" and not with_torch:
                continue
            problem = PROBLEMS.get(name) or speech(Path(stack.enter_context(TemporaryDirectory()), "corpus"))
            python = python_for(name, with_torch)
            needed_s = partial(_median_time, problem, seeds=seeds, python=python, limit_s=limit_s)
            today_s = needed_s(_TODAY)
            for batch in batches:
                truth = today_s / needed_s(batch)
                race = real_race(problem, {problem.batch_key: batch}, {Label.BATCH}, race_s=race_s, python=python)
                judged = _judged(race.winner.learning if race else Learning.UNKNOWN, truth)
                rows.append([name, str(batch), f"{today_s:.1f} s", f"{truth:.2f}x", *_told(race), judged])
                print(*rows[-1], flush=True)
    return markdown_table(["problem", "batch", f"to the loss with {_TODAY}", "truth", *_HEADS, "judged"], rows) + "\n"


def fault_report(faults: Sequence[str], times: int, race_s: float) -> str:
    """Race what is sold as the same training and is not; return the table.

    Args:
        faults: What is wrong with it.
        times: Races of each.
        race_s: Length of each.
    """
    rows = []
    for fault in faults:
        found = 0
        for number in range(times):
            recipe = {
                **PROBLEMS["network"].recipe,
                "seed": 100 * number,
                "samples": 1000,
                "augmentation": 0.3,
                "fault": "none",
            }
            trained = replace(PROBLEMS["network"], recipe=recipe)
            race = real_race(trained, {"fault": fault}, {Label.SAME_TRAINING}, race_s=race_s, python=sys.executable)
            found += bool(race and race.cautions)
            print(fault, race.cautions if race else "no race", flush=True)
        rows.append([fault, f"{found} of {times}"])
    return markdown_table(["fault", "found"], rows) + "\n"


def memorising_report(times: int, race_s: float) -> str:
    """Race an augmentation that is frozen along with a larger batch, and a larger batch alone; return the table.

    Args:
        times: Races of each.
        race_s: Length of each.
    """
    small: dict[str, Scalar] = {"samples": 500, "augmentation": 0.3, "fault": "none"}
    frozen: dict[str, Scalar] = {"fault": "frozen", "batch_size": 4 * _TODAY}
    both = {Label.SAME_TRAINING, Label.BATCH}
    cases: Sequence[tuple[str, dict[str, Scalar], dict[str, Scalar], Set[Label]]] = (
        (f"frozen, batch {4 * _TODAY}, no evaluations", {**small, "evaluate_s": 0.0}, frozen, both),
        (f"frozen, batch {4 * _TODAY}", small, frozen, both),
        (f"honest, batch {_TODAY} for 4", {"batch_size": 4}, {"batch_size": _TODAY}, {Label.BATCH}),
    )
    rows = []
    for number in range(times):
        for name, today, changes, labels in cases:
            recipe = {**PROBLEMS["network"].recipe, "seed": 1 + 100 * number, **today}
            trained = replace(PROBLEMS["network"], recipe=recipe)
            race = real_race(trained, changes, labels, race_s=race_s, python=sys.executable)
            rows.append([name, *_told(race)])
            print(name, outcome(race, race.winner) if race else "no race", sep=": ", flush=True)
    return markdown_table(["race", *_HEADS], rows) + "\n"


_HEADS = (
    "the race says",
    "x as fast",
    "loss today",
    "loss of the other",
    "97.5 % interval of the difference",
    "scaled rate",
)


def _median_time(problem: Problem, batch: int, *, seeds: int, python: str, limit_s: float) -> float:
    """Return the median time to the loss; the limit for a training that does not come there."""
    times_s = [time_to_target(problem, batch=batch, seed=seed, python=python, limit_s=limit_s) for seed in range(seeds)]
    return median(limit_s if time_s is None else time_s for time_s in times_s)


def _simulated(family: Family, seed: int, *, learning_speed: float) -> Race | None:
    speed = 1.0 if learning_speed == 1.0 else 4.0
    other = Config(speed=speed, batch=speed, worth=learning_speed / speed)
    return simulated_race(family, other, rounds=_ROUNDS, trains_s=_TRAINS_S, seed=seed)


def _shares(races: Sequence[Race]) -> list[str]:
    counts = Counter(race.winner.learning for race in races)
    return [f"{_PERCENT * counts[learning] / max(1, len(races)):.1f} %" for learning in Learning]


def _told(race: Race | None) -> list[str]:
    if race is None or race.winner.at_equal_time is None:
        return [race.why_unknown if race else "no race", "", "", "", "", ""]
    losses, speed = race.winner.deciding or race.winner.at_equal_time, race.winner.learning_speed
    return [
        race.winner.learning.value,
        f"{speed:.2f}" if speed else "?",
        f"{losses.today:.4g}",
        f"{losses.other:.4g}",
        f"{losses.low:+.2g} to {losses.high:+.2g}",
        race.scaled.learning.value if race.scaled else "",
    ]


def _judged(learning: Learning, truth: float) -> str:
    if learning is Learning.UNKNOWN:
        return "not told"
    is_right = {
        Learning.FASTER: truth > 1.0 / _ALIKE,
        Learning.SLOWER: truth < _ALIKE,
        Learning.ALIKE: 1.0 / _ALIKE**2 < truth < _ALIKE**2,
    }
    return "right" if is_right[learning] else "wrong"

"""Report on races: what they say of equal configs, of unlike ones, and of batches whose time to a loss is known."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from autotune.bench.markdown import markdown_table
from autotune.bench.races.simulated import Family, each_family, simulated_race
from autotune.bench.races.trained import PROBLEMS, Problem, python_for, real_race, speech, time_to_target
from autotune.results import Learning, Race

_LEARNING_SPEEDS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
_ROUNDS, _TRAINS_S = 4, 25.0
_TODAY = 16
_ALIKE = 1.1  # of the time to a loss: less is no claim that is wrong
_PERCENT = 100


def simulated_report(times: int) -> str:
    """Race simulated trainings; return two tables.

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
        f"Another batch that learns so much faster:\n\n{markdown_table(['truth', *heads], powers)}\n"
    )


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
        race = real_race(trained, "unused", 1, race_s=race_s, python=python_for(name, with_torch))
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
                race = real_race(problem, problem.batch_key, batch, race_s=race_s, python=python)
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
            race = real_race(trained, "fault", fault, race_s=race_s, python=sys.executable, same_training=True)
            found += bool(race and race.cautions)
            print(fault, race.cautions if race else "no race", flush=True)
        rows.append([fault, f"{found} of {times}"])
    return markdown_table(["fault", "found"], rows) + "\n"


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
    return simulated_race(
        family, learning_speed=learning_speed, speed=1.0 if learning_speed == 1.0 else 4.0, rounds=_ROUNDS,
        trains_s=_TRAINS_S, seed=seed,
    )  # fmt: skip


def _shares(races: Sequence[Race]) -> list[str]:
    counts = Counter(race.winner.learning for race in races)
    return [f"{_PERCENT * counts[learning] / max(1, len(races)):.1f} %" for learning in Learning]


def _told(race: Race | None) -> list[str]:
    if race is None or race.winner.at_equal_time is None:
        return [race.why_unknown if race else "no race", "", "", "", "", ""]
    losses, speed = race.winner.at_equal_time, race.winner.learning_speed
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

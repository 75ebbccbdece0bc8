"""Real races: trainers that really learn, raced as a search does it, and trained to a held-out loss for the truth."""

import json
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autotune.bench.races import trainers
from autotune.clock import SystemClock
from autotune.environment import inherited_environment
from autotune.errors import TrialError
from autotune.problem.problem import open_problem
from autotune.process.short_command import run_short
from autotune.records import Purpose, Scalar
from autotune.results import Race
from autotune.search.findings import Findings
from autotune.search.narrator import Narrator
from autotune.search.open import SearchOptions, open_parts
from autotune.search.racer import Racer
from autotune.search.state import SearchState
from autotune.search.trial_maker import PlannedTrial, TrialMaker
from autotune.study.race_judgement import judge_race

_LEARNER = Path(trainers.__file__).parent / "learner.py"
_GRACE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Problem that is trained.

    Attributes:
        recipe: Keys of its config.
        target: Held-out loss that training is to come to.
    """

    recipe: dict[str, Scalar]
    target: float


_STEPS: dict[str, Scalar] = {"fixed_s": 0.004, "sample_s": 0.00002, "seed": 1}
PROBLEMS = {
    "logistic": Problem(recipe={"problem": "logistic", "batch_size": 16, "learning_rate": 0.1, **_STEPS}, target=0.21),
    "network": Problem(recipe={"problem": "network", "batch_size": 16, "learning_rate": 0.02, **_STEPS}, target=0.4),
    "language": Problem(
        recipe={"problem": "language", "batch_size": 16, "learning_rate": 0.001, "samples": 100_000, **_STEPS},
        target=2.1,
    ),
}
FAULTS = ("drop", "repeat", "frozen")


def time_to_target(problem: Problem, *, batch: int, seed: int, python: str, limit_s: float) -> float | None:
    """Train to the held-out loss of a problem; return the time that it takes, None if it does not come there.

    Raises:
        TrialError: The trainer failed.
    """
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.json"
        config.write_text(json.dumps({**problem.recipe, "batch_size": batch, "seed": seed}))
        argv = [python, str(_LEARNER), str(config), "--until", str(problem.target), "--limit", str(limit_s)]
        ended = run_short(argv, limit_s + _GRACE_S, env=dict(inherited_environment()), cwd=Path(name))
    try:
        trained_s = float(json.loads(ended.text.strip().splitlines()[-1])["trained_s"])
    except (ValueError, LookupError) as error:
        raise TrialError(f"the trainer ended with {ended.status}: {ended.text}") from error
    return trained_s if trained_s <= limit_s else None


def real_race(
    recipe: dict[str, Scalar], knob: str, other: Scalar, *, race_s: float, python: str, same_training: bool = False
) -> Race | None:
    """Race a config with another value of one key against it, in trials, as a search does.

    Args:
        recipe: Keys of the config.
        knob: The key.
        other: Its other value.
        race_s: Time for the race.
        python: Interpreter of the trainer.
        same_training: Whether the key is sold as one that leaves training the same.

    Returns:
        The judgement; None if there was none.
    """
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.json"
        config.write_text(json.dumps(recipe))
        command = f"{shlex.join([python, str(_LEARNER)])} {{config}}"
        section = {"command": command, "knobs": {knob: [recipe[knob], other]}}
        (Path(name) / "config.autotune.yaml").write_text(json.dumps({"autotune": section}))  # JSON is YAML, too
        problem = open_problem(config, command=None, state_dir=Path(name) / "state")
        options = SearchOptions(budget_s=4 * race_s, started_s=clock.now_s(), race_s=race_s)
        with open_parts(problem, options, clock, lambda _event: None) as opened:
            parts = opened.parts
            findings = Findings(problem, clock, cwd=Path.cwd())
            state = SearchState(
                problem, parts.study, findings, sampler=parts.sampler, seed=0, warm_start=parts.warm_start
            )
            narrator = Narrator(opened.consumers, findings.remarks)
            trials = TrialMaker(parts, state, findings, narrator)
            trials.make_once(PlannedTrial(values=problem.space.baseline, purpose=Purpose.BASELINE))
            values = {**problem.space.baseline, knob: other}
            racer = Racer(parts, state, trials, narrator, asked_s=race_s)
            racer.race(values)
            if racer.why_not:
                raise TrialError(f"there was no race: {racer.why_not}")
            return judge_race(parts.study.records(), problem.space.name(values), same_training=same_training)


def python_for(problem: str, with_torch: str | None) -> str:
    """Return the interpreter for a problem; that with PyTorch where it is needed."""
    return with_torch or sys.executable if problem == "language" else sys.executable

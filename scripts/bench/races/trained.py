"""Real races: trainers that really learn, raced as a search does it, and trained to a held-out loss for the truth."""

import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.clock import SystemClock
from autotune.environment import inherited_environment
from autotune.errors import TrialError
from autotune.records import Purpose, Race, Scalar
from autotune.search.findings import Findings
from autotune.search.open import SearchOptions, open_parts
from autotune.search.parts import Narrator
from autotune.search.problem import open_problem
from autotune.search.race import Racer
from autotune.search.state import SearchState
from autotune.search.trial_maker import PlannedTrial, TrialMaker
from autotune.space.knob import Label
from autotune.study.race_judgement import judge_race
from autotune.trial.search_child import run_short
from scripts.bench.races import trainers

_TRAINERS = Path(trainers.__file__).parent
_LEARNER, _SPEECH = str(_TRAINERS / "learner.py"), str(_TRAINERS / "speech.py")
_GRACE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Problem that is trained.

    Attributes:
        recipe: Keys of its config, by their paths.
        target: Held-out loss that training is to come to.
        trainer: Its trainer, behind the interpreter; it trains for ever.
        to_target: The same to the loss.
        batch_key: Path of the batch size.
        seed_key: Path of the seed.
    """

    recipe: dict[str, Scalar]
    target: float
    trainer: tuple[str, ...] = (_LEARNER, "{config}")
    to_target: tuple[str, ...] = (_LEARNER, "{config}")
    batch_key: str = "batch_size"
    seed_key: str = "seed"

    def config(self, changes: Mapping[str, Scalar]) -> str:
        """Return the text of its config, with other values of some keys."""
        sections: dict[str, Any] = {}
        for path, value in {**self.recipe, **changes}.items():
            *outer, key = path.split(".")
            section = sections
            for name in outer:
                section = section.setdefault(name, {})
            section[key] = value
        return json.dumps(sections)  # JSON is YAML, too


_STEPS: dict[str, Scalar] = {"fixed_s": 0.004, "sample_s": 0.00002, "seed": 1, "evaluate_s": 0.5}
PROBLEMS = {
    "logistic": Problem(recipe={"problem": "logistic", "batch_size": 16, "learning_rate": 0.1, **_STEPS}, target=0.21),
    "network": Problem(recipe={"problem": "network", "batch_size": 16, "learning_rate": 0.02, **_STEPS}, target=0.4),
    "language": Problem(
        recipe={"problem": "language", "batch_size": 16, "learning_rate": 0.001, "samples": 100_000, **_STEPS},
        target=2.1,
    ),
}


def speech(folder: Path, clips: int = 2000) -> Problem:
    """Write a corpus into a new folder; return the problem of the shipped text-to-speech trainer on it."""
    from autotune.workloads.tts.corpus import write_corpus

    write_corpus(folder, clips=clips)
    return Problem(
        recipe={
            "data.dataset_path": str(folder),
            "data.batch_size": 16,
            "data.num_workers": 2,
            "data.use_tf_native_loading": True,
            "training.seed": 1,
            "training.checkpoint_dir": "checkpoints",
            "training.checkpoint_every_steps": 0,
        },
        target=0.865,
        trainer=("-m", "autotune.workloads.tts", "--config", "{config}"),
        to_target=(_SPEECH, "{config}"),
        batch_key="data.batch_size",
        seed_key="training.seed",
    )


def time_to_target(problem: Problem, *, batch: int, seed: int, python: str, limit_s: float) -> float | None:
    """Train to the held-out loss of a problem; return the time that it takes, None if it does not come there.

    Raises:
        TrialError: The trainer failed.
    """
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.json"
        config.write_text(problem.config({problem.batch_key: batch, problem.seed_key: seed}))
        words = [str(config) if word == "{config}" else word for word in problem.to_target]
        argv = [python, *words, "--until", str(problem.target), "--limit", str(limit_s)]
        ended = run_short(argv, limit_s + _GRACE_S, env=dict(inherited_environment()), cwd=Path(name))
    try:
        trained_s = float(json.loads(ended.text.strip().splitlines()[-1])["trained_s"])
    except (ValueError, LookupError) as error:
        raise TrialError(f"the trainer ended with {ended.status}: {ended.text}") from error
    return trained_s if trained_s <= limit_s else None


def real_race(
    trained: Problem, changes: Mapping[str, Scalar], labels: Set[Label], *, race_s: float, python: str
) -> Race | None:
    """Race a config with other values of some keys against it, in trials, as a search does.

    Args:
        trained: What is trained.
        changes: The other values, by key.
        labels: What they are sold as.
        race_s: Time for the race.
        python: Interpreter of the trainer.

    Returns:
        The judgement; None if there was none.
    """
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "config.json"
        config.write_text(trained.config({}))
        knobs = {knob: [trained.recipe[knob], other] for knob, other in changes.items()}
        section = {"command": shlex.join([python, *trained.trainer]), "knobs": knobs}
        (Path(name) / "config.autotune.yaml").write_text(json.dumps({"autotune": section}))
        problem = open_problem(config, command=None, state_dir=Path(name) / "state")
        options = SearchOptions(budget_s=4 * race_s, started_s=clock.now_s(), race_s=race_s)
        with open_parts(problem, options, clock, lambda _event: None) as opened:
            parts = opened.parts
            findings = Findings(problem, clock)
            state = SearchState(
                problem, parts.study, findings, sampler=parts.sampler, seed=0, warm_start=parts.warm_start
            )
            narrator = Narrator(opened.consumers, findings.remarks)
            trials = TrialMaker(parts, state, findings, narrator)
            trials.make_once(PlannedTrial(values=problem.space.baseline, purpose=Purpose.BASELINE))
            values = {**problem.space.baseline, **changes}
            racer = Racer(parts, state, trials, narrator, asked_s=race_s)
            racer.race(values)
            if racer.why_not:
                raise TrialError(f"there was no race: {racer.why_not}")
            return judge_race(parts.study.records(), problem.space.name(values), changes=labels)


def python_for(problem: str, with_torch: str | None) -> str:
    """Return the interpreter for a problem by its name: that with PyTorch where it is needed."""
    return with_torch or sys.executable if problem == "language" else sys.executable

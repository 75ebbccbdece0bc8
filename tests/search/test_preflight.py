"""Preflight of init: a trial of a real trainer shows its steps, and whether it reads its copy of the config."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.clock import Clock, SystemClock, VirtualClock
from autotune.records import Ending
from autotune.search import preflight as preflight_module
from autotune.search.preflight import Preflight, Reached, run_preflight
from autotune.search.problem import open_problem
from autotune.trial import stop_rule
from autotune.trial.launch import Guard, ProcessRunner, Runner
from scripts.bench.simulated_runner import SimulatedRunner, Training

PREFIX = "import sys, time\nfrom autotune.trainee import step\n"
READS = "open(sys.argv[1]).read()\n"
TRAINS = "while True:\n    time.sleep(0.001)\n    step(samples=1)\n"


@pytest.fixture
def guard() -> Iterator[Guard]:
    """Owner of the trial's processes."""
    with Guard() as guard:
        yield guard


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder where training is started, with a hostile name."""
    folder = tmp_path / 'it\'s a "folder"\n'
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def preflight_of(
    folder: Path,
    guard: Guard,
    script: str,
    *,
    command: str = "{config}",
    section: str = "",
    with_section: bool = False,
    training: Training | None = None,
    prefix: str = PREFIX,
    tell: Callable[[str], object] = print,
) -> Preflight:
    """Run the preflight of a trainer with this code, or of a simulated training."""
    (folder / "train.py").write_text(prefix + script)
    (folder / "config.yaml").write_text(
        f"batch_size: 4\nout_dir: out\nautotune:\n{section}  command: \"'{sys.executable}' train.py {command}\"\n"
    )
    problem = open_problem(Path("config.yaml"), command=None, state_dir=None)
    problem.state.create()
    clock: Clock = SystemClock()
    runner: Runner = ProcessRunner(guard, clock)
    if training is not None:
        clock = VirtualClock()
        runner = SimulatedRunner(clock, lambda _text: training)
    return run_preflight(problem, runner, clock, name="preflight", with_section=with_section, tell=tell)


def test_a_trainer_that_reads_its_config_and_steps(folder: Path, guard: Guard) -> None:
    """The trial is stopped after a few steps, and both are known."""
    preflight = preflight_of(folder, guard, READS + TRAINS)
    assert preflight.reached is Reached.READ
    assert preflight.steps >= 3
    assert preflight.first_step_s is not None
    assert preflight.first_step_s > 0
    assert preflight.ending is Ending.STOPPED


def test_a_config_that_nobody_opens(folder: Path, guard: Guard) -> None:
    """The command names one file, the trainer reads another: tuning would change nothing."""
    preflight = preflight_of(folder, guard, "open('config.yaml').read()\n" + TRAINS)
    assert preflight.reached is Reached.NOT_READ
    assert preflight.steps >= 3


@pytest.mark.parametrize(
    ("training", "ending"),
    [
        (Training(steps=0, exit_code=1, stderr="ValueError: no such layer"), Ending.CRASHED),
        (Training(steps=0), Ending.NO_STEPS),
        (Training(start_s=math.inf), Ending.NEVER_STARTED),
    ],
    ids=["crashes", "ends", "sleeps"],
)
def test_a_trainer_without_steps(folder: Path, guard: Guard, training: Training, ending: Ending) -> None:
    """The preflight tells how the trainer ended, and the end of its stderr."""
    preflight = preflight_of(folder, guard, "", training=training)
    assert (preflight.steps, preflight.first_step_s, preflight.ending) == (0, None, ending)
    assert ("no such layer" in preflight.stderr_tail) == (ending is Ending.CRASHED)


@pytest.mark.parametrize("with_section", [False, True])
def test_a_trainer_that_rejects_unknown_keys_fails_with_the_section_only(
    folder: Path, guard: Guard, with_section: bool
) -> None:
    """The copy with the section is the user's file but for `set` and the outputs, which are moved as ever."""
    script = (
        "import yaml\nfrom pathlib import Path\nconfig = yaml.safe_load(open(sys.argv[1]))\n"
        "out = Path(config['out_dir']).parts\n"
        "assert out[-1] == 'out' and 'preflight' in out and config['batch_size'] == 2\n"
        "if 'autotune' in config:\n    raise TypeError(f'unexpected keys {sorted(config)}')\n"
    )
    section = "  set: {batch_size: 2}\n"
    preflight = preflight_of(folder, guard, script + TRAINS, section=section, with_section=with_section)
    if with_section:
        assert (preflight.steps, preflight.ending) == (0, Ending.CRASHED)
        assert "TypeError: unexpected keys ['autotune', 'batch_size', 'out_dir']" in preflight.detail
    else:
        assert (preflight.steps >= 3, preflight.ending) == (True, Ending.STOPPED)


@pytest.mark.services
def test_a_trainer_in_plain_python_is_not_waited_for_until_the_limit(
    folder: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works without any framework; its latest output is shown meanwhile. The waiting times are shortened."""
    monkeypatch.setattr(stop_rule, "_GRACE_SHARE", 0.01)
    monkeypatch.setattr(stop_rule, "_LEAST_GRACE_S", 2.0)
    monkeypatch.setattr(preflight_module, "_REPORT_AFTER_S", 0.5)
    told: list[str] = []
    trains = "print('epoch 1: loss 0.5', flush=True)\nwhile True:\n    sum(range(1000))\n"
    preflight = preflight_of(folder, guard, READS + trains, prefix="import sys\n", tell=told.append)
    assert (preflight.steps, preflight.ending) == (0, Ending.NEVER_STARTED)
    assert "without PyTorch, TensorFlow or JAX" in preflight.detail
    assert ["latest output: epoch 1: loss 0.5. " in sentence for sentence in told] == [True]

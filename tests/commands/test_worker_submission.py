"""``autotune worker --submit`` as it is typed."""

import os
import sys

import pytest

from tests.command_line import CommandLine

WORKER = ("worker", "--config", "config.yaml")


def test_options_reach_the_workers(simulated: CommandLine) -> None:
    """Those of the study and of the machine; what stands behind -- is the engine's."""
    options = (
        "--submit",
        "slurm",
        "-n",
        "2",
        "--dry-run",
        "--reachable",
        "--same-training",
        "--no-warm-start",
        "--budget",
        "1h30m",
    )
    done = simulated(*WORKER, *options, "--allow-busy-gpu", "--seed", "5", "--", "--partition", "gpu")
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-2]
    assert command.startswith(f"exec {sys.executable} -P -m autotune worker --config config.yaml --storage ")
    assert "--allow-busy-gpu --same-training --no-warm-start --budget 5400s --seed" in command
    assert command.endswith('"$((5 + SLURM_ARRAY_TASK_ID))"')
    assert "sbatch --parsable --partition gpu " in done.stderr
    assert os.listdir(simulated.folder / ".autotune") == []


def test_a_manifest_is_all_that_is_on_stdout(simulated: CommandLine) -> None:
    """It goes into kubectl as it is."""
    done = simulated(*WORKER, "--submit", "kubernetes", "--image", "lab/trainer", "-n", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Workers of autotune")


def test_options_of_a_submission_alone_are_wrong(simulated: CommandLine) -> None:
    """Whoever types -n means workers elsewhere."""
    for options in (("-n", "4"), ("--dry-run",), ("--submit", "kubernetes"), ("--submit", "pbs")):
        done = simulated(*WORKER, *options)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", [("kubernetes", "--image", "lab/trainer"), ("slurm",), ("ssh", "--", "node1")])
def test_what_a_worker_would_refuse_is_not_submitted(simulated: CommandLine, engine: tuple[str, ...]) -> None:
    """Each of them would end at once: the same message, here, and nothing to start."""
    config = simulated.folder / "config.yaml"
    whole = config.read_text()
    for old, new, said in (
        ("data.num_workers: [1, 2]", "data.none_such: [1, 2]", "data.none_such"),
        ("{config}", "{config} {no.such.key}", "no.such.key"),
        ("knobs:\n        data.batch_size: [4, 16, 64]\n        data.num_workers: [1, 2]", "knobs: {}", "no knob"),
    ):
        assert old in whole
        config.write_text(whole.replace(old, new))
        done = simulated(*WORKER, "--reachable", "--dry-run", "--submit", *engine)
        assert (done.returncode, done.stdout) == (1, ""), done.stdout
        assert said in done.stderr


def test_the_program_of_the_image_need_not_be_here(simulated: CommandLine) -> None:
    """It does where workers start what is at the same path."""
    config = simulated.folder / "config.yaml"
    config.write_text(config.read_text().replace('"{python} ', '"no-such-program '))
    done = simulated(*WORKER, "--submit", "kubernetes", "--image", "lab/trainer")
    assert (done.returncode, done.stderr) == (0, "")
    done = simulated(*WORKER, "--reachable", "--dry-run", "--submit", "slurm")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no-such-program" in done.stderr

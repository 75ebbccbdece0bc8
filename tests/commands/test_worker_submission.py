"""``autotune worker --submit`` as it is typed."""

import sys
from pathlib import Path

from tests.commands.conftest import Autotune

WORKER = ("worker", "--config", "config.yaml")


def test_options_reach_the_workers(autotune: Autotune, project: Path) -> None:
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
    done = autotune(*WORKER, *options, "--allow-busy-gpu", "--seed", "5", "--", "--partition", "gpu")
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[-2]
    assert command.startswith(f"exec {sys.executable} -P -m autotune worker --config config.yaml --storage ")
    assert "--allow-busy-gpu --same-training --no-warm-start --budget 5400s --seed" in command
    assert command.endswith('"$((5 + SLURM_ARRAY_TASK_ID))"')
    assert "sbatch --parsable --partition gpu " in done.stderr
    assert not (project / ".autotune").exists()


def test_a_manifest_is_all_that_is_on_stdout(autotune: Autotune) -> None:
    """It goes into kubectl as it is."""
    done = autotune(*WORKER, "--submit", "kubernetes", "--image", "lab/trainer", "-n", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Workers of autotune")


def test_options_of_a_submission_alone_are_wrong(autotune: Autotune) -> None:
    """Whoever types -n means workers elsewhere."""
    for options in (("-n", "4"), ("--dry-run",), ("--submit", "kubernetes"), ("--submit", "pbs")):
        done = autotune(*WORKER, *options)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr

"""A real race: a faster batch that learns more slowly is not applied, and the rate that mends it is proposed."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.commands.conftest import Autotune

TRAINER = Path(__file__).parents[1] / "trainers" / "learns.py"
CONFIG = f"""\
batch_size: 4   # fast ones are large
learning_rate: 0.0003
seed: 1
checkpoint_dir: checkpoints
autotune:
  command: "{{python}} {TRAINER} {{config}}"
  knobs: {{batch_size: [4, 64]}}
  trial: {{min_s: 0.5, min_steps: 10, max_s: 1}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project whose training has come some way."""
    folder = tmp_path_factory.mktemp("learns")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "checkpoints").mkdir()
    weights = 0.5 * np.random.default_rng(0).normal(size=(32, 1))
    np.savez(folder / "checkpoints" / "last.npz", weights=weights, made=1000)
    return folder


@pytest.fixture
def project(folder: Path) -> Path:
    """The one project of this module."""
    return folder


@pytest.mark.services
def test_a_faster_batch_that_learns_more_slowly(autotune: Autotune, project: Path) -> None:
    """`search --apply` leaves the config as it is and says why; `apply` wants a yes, with the rate or by force."""
    before = (project / "config.yaml").read_bytes()
    checkpoint = (project / "checkpoints" / "last.npz").read_bytes()
    done = autotune("search", "--config", "config.yaml", "--budget", "110s", "--race", "50s", "--apply", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["verdict"], answer["best"]["values"]) == ("better", {"batch_size": 64})
    race = answer["race"]
    assert race["winner"]["learning"] == "slower", race
    assert race["scaled"]["learning"] == "faster", race
    assert race["proposed"] == {"path": "learning_rate", "value": 0.0012}
    assert race["checkpoint"] == "checkpoints/last.npz"
    assert "Not applied. It changes the batch, and in the race it learned more slowly" in done.stderr
    assert (project / "config.yaml").read_bytes() == before
    assert (project / "checkpoints" / "last.npz").read_bytes() == checkpoint

    refused = autotune("apply", "--config", "config.yaml")
    assert refused.returncode == 1
    assert "in the race it learned more slowly" in refused.stderr
    assert "--force" in refused.stderr
    assert (project / "config.yaml").read_bytes() == before

    shown = autotune("status", "--config", "config.yaml")
    assert "Learns slower: after the same" in shown.stdout
    assert "With learning_rate: 0.0012 as well" in shown.stdout

    applied = autotune("apply", "--config", "config.yaml", "--learning-rate")
    assert applied.returncode == 0, applied.stderr
    text = (project / "config.yaml").read_text()
    assert text == CONFIG.replace("batch_size: 4", "batch_size: 64").replace("0.0003", "0.0012"), text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--race", "2m", "--no-race"), "exclude each other"),
        (("--race", "5s"), "too short to show anything"),
        (("--race", "20m"), "at most half of it"),
    ],
)
def test_races_that_cannot_be(autotune: Autotune, arguments: tuple[str, ...], said: str) -> None:
    """Wrong usage, said before anything is started."""
    done = autotune("search", "--config", "config.yaml", "--budget", "30m", *arguments)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())

"""Longer trainings at the end of a search, ``--race`` and ``--validate``: what the commands do with what they show."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG as TOYS_CONFIG
from tests.command_line import CommandLine, project_in, toy

CONFIG = TOYS_CONFIG.replace("{min_s: 0.15, min_steps: 10, max_s: 0.5}", "{min_s: 1, min_steps: 10, max_s: 3}")
RATE = f"learning_rate: 0.01\nseed: 1\n{TOYS_CONFIG}"


def slow(config: Mapping[str, Any]) -> Training:
    """Train like the toy, with a fifth of the steps in a minute."""
    training = toy(config)
    return replace(training, step_s=5 * training.step_s, epoch=40)


def learns(config: Mapping[str, Any]) -> Training:
    """Train so that samples of a large batch teach little, unless the learning rate is larger, too."""
    rng, batch = random.Random(0), config["data"]["batch_size"]
    worth = 1.0 if batch == 4 or config["learning_rate"] > 0.015 else 0.2

    def loss(step: int) -> float:
        return 0.5 + 3.0 / (1.0 + worth * batch * step / 500.0) ** 0.5 + rng.gauss(0.0, 0.02)

    return replace(toy(config), loss=loss, held_out=loss, pauses=dict.fromkeys(range(60, 60_000, 60), "eval"))


def breaks(config: Mapping[str, Any]) -> Training:
    """Train so that large batches crash after some seconds."""
    training = slow(config)
    if config["data"]["batch_size"] != 64:
        return training
    return replace(training, steps=60, exit_code=1, stderr="OSError: [Errno 28] No space left on device")


def test_a_faster_batch_that_learns_more_slowly(tmp_path: Path) -> None:
    """`search --apply` and `apply` leave the config as it is and say why; --learning-rate writes it with the rate."""
    config = RATE.replace("        data.num_workers: [1, 2]\n", "").replace("[4, 16, 64]", "[4, 64]")
    commands = project_in(tmp_path, learns, config)
    done = commands.search("--race", "4m", "--apply", "--json", budget="20m")
    answer = done.document
    race = answer["race"]
    assert (answer["verdict"], answer["best"]["values"]) == ("better", {"data.batch_size": 64})
    assert (race["winner"]["learning"], race["scaled"]["learning"]) == ("slower", "faster")
    assert race["proposed"] == {"path": "learning_rate", "value": 0.04}
    assert "unchanged was confirmed: it changes the batch, and it converged more slowly in the race" in done.stderr
    said = commands("apply", "--config", "config.yaml").refusal()
    assert "it converged more slowly in the race" in said
    assert "`autotune apply --config config.yaml --all`" in said
    assert (tmp_path / "config.yaml").read_text() == config
    shown = commands("status", "--config", "config.yaml").stdout
    assert "Converges more slowly: after" in shown
    assert "With learning_rate: 0.04 as well" in shown
    assert commands("apply", "--config", "config.yaml", "--learning-rate").returncode == 0
    written = config.replace("batch_size: 4 ", "batch_size: 64 ").replace("0.01", "0.04")
    assert (tmp_path / "config.yaml").read_text() == written


def test_what_breaks_in_a_longer_training_is_not_the_answer(tmp_path: Path) -> None:
    """The next best is, as soon as it has come through; screens, JSON and `apply` agree."""
    commands = project_in(tmp_path, breaks, CONFIG)
    answer = commands.search("--validate", "1m", "--json", budget="15m").document
    assert answer["verdict"] == "better"
    assert answer["validation"]["broke"] == []
    assert "No space left on device" in answer["broken"][0]["validation"]["broke"][0]
    assert answer["best"]["values"]["data.batch_size"] != 64
    known = commands("status", "--config", "config.yaml").stdout
    assert "broke in a longer training" in known
    assert "No space left on device" in known
    assert commands("apply", "--config", "config.yaml", "--all").returncode == 0
    assert f"batch_size: {answer['best']['values']['data.batch_size']} " in (tmp_path / "config.yaml").read_text()


def test_a_part_of_a_validated_answer_is_not_applied_as_validated(simulated: CommandLine) -> None:
    """`--apply` writes what leaves the training unchanged; the message names the command for what was validated."""
    done = simulated.search("--validate", "20s", "--apply")
    assert "Validated: " in done.stdout
    assert "the values that leave the training unchanged were not validated" in done.stderr
    assert "autotune apply --config config.yaml --all" in done.stderr
    assert (simulated.folder / "config.yaml").read_text() == TOYS_CONFIG


@pytest.mark.parametrize("options", [(), ("--apply",)])
def test_an_answer_that_was_to_be_validated_and_is_not_is_not_offered(tmp_path: Path, options: tuple[str, ...]) -> None:
    """There was no time for another one after the first broke: it is neither asked about nor applied."""
    commands = project_in(tmp_path, breaks, CONFIG)
    search = ("search", "--config", "config.yaml", "--budget", "4m", "--validate", "50s")
    done = commands(*search, *options, answers="y\n")
    assert "The answer is not validated, although requested" in done.stdout
    assert "[y/N]" not in done.stdout + done.stderr
    assert ("Not applied: the answer is not validated" in done.stderr) is bool(options)
    assert (tmp_path / "config.yaml").read_text() == CONFIG

"""``autotune status --why``: the rules that it shows lead to the verdict, by the numbers of the answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine, project_in, toy


def _slower_with_all(config: Mapping[str, Any]) -> Training:
    data = config["data"]
    return Training(samples=4, step_s=0.01 * data["num_workers"] * data["batch_size"], noise=0.03, epoch=200)


def _noisy(config: Mapping[str, Any]) -> Training:
    return Training(samples=4, step_s=0.01 - 0.0003 * config["data"]["num_workers"], noise=0.3, epoch=200)


@pytest.mark.parametrize("trainer", [toy, _slower_with_all, _noisy])
def test_rules_lead_to_the_verdict(trainer: Any, tmp_path: Path) -> None:
    """The last rule has the verdict, and those before it the numbers of the answer."""
    commands = project_in(tmp_path / "project", trainer)
    commands.search().well()
    answer = commands("status", "--config", "config.yaml", "--why", "--json").document
    rules = {rule["rule"].rsplit(": ", 1)[-1]: rule for rule in answer["rules"]}
    assert rules["verdict"]["result"] == answer["verdict"]
    assert rules["verdict"]["inputs"] == answer["why"]
    if answer["verdict"] == "better":
        speed = answer["speedup"]
        shown = f"{speed['ratio']:.3f}x ({speed['low']:.3f}-{speed['high']:.3f})"
        assert shown in [rule["result"] for rule in answer["rules"] if "interval of the speed ratio" in rule["rule"]]
    screen = commands("status", "--config", "config.yaml", "--why").well().stdout
    assert [rule["rule"] for rule in answer["rules"] if rule["rule"] not in screen] == []


def test_it_says_how_many_trials_count(simulated: CommandLine) -> None:
    """Trials of other code would not."""
    simulated.search().well()
    document = simulated("status", "--config", "config.yaml", "--why", "--json").document
    assert document["rules"][0]["result"] == f"{document['trials']} count"


def test_it_says_that_the_baseline_failed(tmp_path: Path) -> None:
    """Then there is nothing to compare with."""

    def fails(config: Mapping[str, Any]) -> Training:
        works = config["data"]["num_workers"] == 2
        return toy(config) if works else Training(samples=4, step_s=0.01, steps=0, exit_code=1)

    commands = project_in(tmp_path / "project", fails)
    commands.search()
    rules = commands("status", "--config", "config.yaml", "--why", "--json").document["rules"]
    assert [rule["result"] for rule in rules if rule["rule"] == "the baseline is measured"] == ["no"]
    assert rules[-1]["result"] == "no_baseline"

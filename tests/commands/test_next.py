"""The commands that an answer ends with: each can be typed as it stands, and does what its line says."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.bench.simulated_runner import Training
from tests.command_line import CommandLine, Trainer, project_in
from tests.commands.test_race import CONFIG, RATE, learns, slow
from tests.commands.test_search import fails_today, flat

WORKERS, BATCH = "        data.num_workers: [1, 2]\n", "        data.batch_size: [4, 16, 64]\n"


def of_knob(key: str, *values: str) -> str:
    """Return a config with one knob, which stands in the section of the data."""
    knob = f"        data.{key}: [{', '.join(values)}]\n"
    return CONFIG.replace(BATCH, knob).replace(WORKERS, "").replace("data:\n", f"data:\n    {key}: {values[0]}\n")


def learns_as_much(config: Mapping[str, Any]) -> Training:
    """Train with a loss that falls with the steps, faster with other values than today's."""
    data = config["data"]
    step_s = 0.1 if data.get("mixed_precision", "float32") == "float32" and data.get("mode", "a") == "a" else 0.04
    return Training(samples=4, step_s=step_s, noise=0.02, epoch=40, loss=lambda step: 3.0 / (1.0 + step / 50.0))


def batch_with_loss(config: Mapping[str, Any]) -> Training:
    """Train like the slow toy, with a loss."""
    return replace(slow(config), loss=lambda step: 3.0 / (1.0 + step / 50.0))


def stalls(config: Mapping[str, Any]) -> Training:
    """Train as fast with either mode, with stalls in one; reports no loss, so that no race would show anything."""
    training = Training(samples=4, step_s=0.02, noise=0.01, step_noise=0.02)
    if config["data"]["mode"] == "b":
        return training
    return replace(training, step_s=0.016, stall_every=20, stall_s=0.08)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Kind of answer.

    Attributes:
        options: Options of its search.
        says: Purposes that stand behind the commands, as expressions.
        writes: Keys of the data that each ``apply`` among them changes.
    """

    config: str
    trainer: Trainer
    options: tuple[str, ...] = ()
    budget: str = "5m"
    says: tuple[str, ...] = ()
    writes: tuple[set[str], ...] = ()


RACE = "compares convergence"
KINDS = {
    "same training": Kind(config=CONFIG.replace(BATCH, ""), trainer=slow, says=("",), writes=({"num_workers"},)),
    "batch": Kind(
        config=CONFIG.replace(WORKERS, ""),
        trainer=batch_with_loss,
        says=(r"\d\.\d\dx, changes the batch", RACE),
        writes=({"batch_size"},),
    ),
    "both": Kind(
        config=CONFIG,
        trainer=batch_with_loss,
        says=(r"\d\.\d\dx, training unchanged", r"\d\.\d\dx, with all changes", RACE),
        writes=({"num_workers"}, {"num_workers", "batch_size"}),
    ),
    "both, with a limit": Kind(
        config=CONFIG, trainer=slow, options=("--same-training",), says=("",), writes=({"num_workers"},)
    ),
    "precision": Kind(
        config=of_knob("mixed_precision", "float32", "mixed_bfloat16"),
        trainer=learns_as_much,
        says=(r"\d\.\d\dx, changes the precision", RACE),
        writes=({"mixed_precision"},),
    ),
    "unknown": Kind(
        config=of_knob("mode", "a", "b"),
        trainer=learns_as_much,
        says=(r"\d\.\d\dx, changes data\.mode \(effect on the training unknown\)", RACE),
        writes=({"mode"},),
    ),
    "raced and lost": Kind(
        config=RATE.replace(WORKERS, "").replace("[4, 16, 64]", "[4, 64]"),
        trainer=learns,
        options=("--race", "4m"),
        budget="20m",
        says=(r"\d\.\d\dx, changes the batch",),
        writes=({"batch_size"},),
    ),
    "steadier": Kind(
        config=of_knob("mode", "a", "b"),
        trainer=stalls,
        says=(r"changes data\.mode .*",),
        writes=({"mode"},),
    ),
    "no change": Kind(config=CONFIG, trainer=flat),
    "no baseline": Kind(
        config=CONFIG, trainer=fails_today, says=("never compared with today's config",), writes=(set(),)
    ),
}


def commands_in(screen: str) -> dict[str, str]:
    """Return the commands that a screen ends with, and their purposes."""
    lines = re.findall(r"^(?:Next:  |or     )(autotune .*)$", screen, re.MULTILINE)
    return {command: purpose for command, _, purpose in (line.partition("  ") for line in lines)}


def data_of(commands: CommandLine) -> dict[str, Any]:
    """Return the section of the data in the config."""
    data: dict[str, Any] = yaml.safe_load((commands.folder / "config.yaml").read_text())["data"]
    return data


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_follows_an_answer_can_be_typed_and_does_what_is_said(tmp_path: Path, kind: Kind) -> None:
    """Of a search and of `status` the same; each begins with the config as the search found it."""
    project = project_in(tmp_path, kind.trainer, kind.config)
    searched = project.search("--no-apply", *kind.options, budget=kind.budget).well().stdout
    offered = commands_in(searched)
    assert offered == commands_in(project("status", "--config", "config.yaml").well().stdout)
    assert len(offered) == len(kind.says), searched
    before, writes = data_of(project), iter(kind.writes)
    for (command, purpose), expected in zip(offered.items(), kind.says, strict=True):
        assert re.fullmatch(f"{expected}.*", purpose.strip())
        typed = shlex.split(command)[1:]
        if typed[0] == "search":
            assert project(*typed, "--json").well().document["race"] is not None
            continue
        project(*typed).well()
        changed = {key for key, value in data_of(project).items() if value != before[key]}
        written = next(writes)
        assert changed == written or (not written and changed), command
        (tmp_path / "config.yaml").write_text(kind.config)


@pytest.mark.parametrize("name", ["batch", "precision", "unknown", "raced and lost", "steadier"])
def test_what_changes_the_training_alone_is_written_only_with_all(tmp_path: Path, name: str) -> None:
    """Neither by `apply`, nor with --force, nor by `search --apply`; each names the commands that work."""
    kind = KINDS[name]
    project = project_in(tmp_path, kind.trainer, kind.config)
    done = project.search("--apply", *kind.options, budget=kind.budget).well()
    refusals = [project("apply", "--config", "config.yaml", *more).refusal() for more in ((), ("--force",))]
    for said in (done.stderr.partition("Not applied: ")[2], *refusals):
        assert "no change that leaves the training unchanged was confirmed" in said
        for command in commands_in(done.stdout):
            assert f"`{command}`" in said
    assert (tmp_path / "config.yaml").read_text() == kind.config

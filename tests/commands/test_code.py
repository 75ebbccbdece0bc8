"""An answer belongs to the trainer that it was measured with: copied, edited, moved and linked projects."""

import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG, CommandLine, Done, toy

EDITED = "\nEDITED = True\n"


def said_by(commands: CommandLine, *words: str) -> Done:
    """Run one command on the config."""
    return commands(*words, "--config", "config.yaml")


def verdict(commands: CommandLine) -> str | None:
    """Return what ``status --json`` says; None for an error."""
    return said_by(commands, "status", "--json").document.get("verdict")


def edit(commands: CommandLine, added: str = EDITED) -> None:
    """Add something to the trainer."""
    with (commands.folder / "train.py").open("a") as file:
        file.write(added)


def test_another_trainer_beside_a_copied_config_has_no_answer(
    recorded: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study is the same by its name, and none of its trials are of that trainer: nothing is said, or written."""
    other = CommandLine(recorded.folder.with_name("other"))
    shutil.copytree(recorded.folder, other.folder, ignore=shutil.ignore_patterns(".autotune"))
    monkeypatch.setenv("AUTOTUNE_DIR", str(recorded.folder / ".autotune"))
    assert verdict(other) == "better"
    edit(other)
    applied = said_by(other, "apply")
    assert (applied.returncode, (other.folder / "config.yaml").read_text()) == (1, CONFIG)
    assert "train.py differs" in applied.stderr
    (other.folder / "train.py").unlink()
    assert "train.py" in said_by(other, "status", "--json").document["error"]["message"]
    assert verdict(recorded) == "better"


def test_an_edited_trainer_has_no_answer_until_the_edit_is_undone(recorded: CommandLine) -> None:
    """Nothing is applied either; comments and layout are no edit."""
    edit(recorded, "\n\n# how often, and when next\n")
    assert verdict(recorded) == "better"
    edit(recorded)
    assert said_by(recorded, "status").returncode == 1
    applied = said_by(recorded, "apply")
    assert (applied.returncode, (recorded.folder / "config.yaml").read_text()) == (1, CONFIG)
    assert "train.py differs" in applied.stderr
    text = (recorded.folder / "train.py").read_text()
    (recorded.folder / "train.py").write_text(text.replace(EDITED, ""))
    assert verdict(recorded) == "better"


def test_trials_of_other_code_are_in_no_verdict_and_their_best_point_is_tried_first(recorded: CommandLine) -> None:
    """A search after an edit measures anew; the answer of before is a proposal."""

    def slower(config: Mapping[str, Any]) -> Training:
        return Training(samples=4, step_s=0.02 / min(config["data"]["num_workers"], 2), noise=0.03, epoch=200)

    edit(recorded)
    recorded.trainer = slower
    done = recorded.search("--no-apply", "--json", budget="2m")
    assert "The search starts with" in done.stderr
    assert "earlier code" in done.stderr
    assert done.document["speedup"]["ratio"] < 2.3
    now = said_by(recorded, "status", "--json").document
    assert (now["speedup"], now["answer"]) == (done.document["speedup"], done.document["answer"])
    assert "used other code: train.py differs" in said_by(recorded, "status").stdout


def test_an_edit_during_a_search_ends_it_without_an_answer(simulated: CommandLine) -> None:
    """What was measured before says nothing of the trainer as it is now, and the config stays."""

    def edited(config: Mapping[str, Any]) -> Training:
        if len(simulated.simulator.plans) == 3:
            edit(simulated)
        return toy(config)

    simulated.trainer = edited
    done = simulated.search("--apply", "--json", budget="2m")
    assert (done.returncode, done.document["error"]["kind"]) == (1, "code_changed")
    assert "train.py" in done.document["error"]["message"]
    assert (simulated.folder / "config.yaml").read_text() == CONFIG

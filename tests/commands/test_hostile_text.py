"""Text from outside (files, configs, records, backups) that would steer the terminal: it is shown, and does nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG, CommandLine, Done, project_in, toy

TITLE = "\x1b]0;owned\x07"
"""Sets the title of a terminal's window."""


def _is_harmless(done: Done) -> bool:
    said = done.stdout + done.stderr
    return all(character.isprintable() or character in "\n\t" for character in said)


@pytest.fixture
def hostile(tmp_path: Path) -> CommandLine:
    """Project with control characters in a key and a value of its config, and a trainer that leaves such a file."""

    def train(config: Mapping[str, Any]) -> Training:
        (autotune.folder / f"left{TITLE}.txt").touch()
        return toy(config)

    text = CONFIG.replace("out:", '"no\\e[2Jte": {"batch_size\\u202e": 4}\nout:')
    text = text.replace("data.num_workers: [1, 2]", '"no\\e[2Jte.batch_size\\u202e": [4, 8]')
    autotune = project_in(tmp_path / "project", train, text)
    return autotune


def test_keys_in_an_error(hostile: CommandLine) -> None:
    """Messages escape the keys that they name, too."""
    config = hostile.folder / "config.yaml"
    config.write_text(config.read_text().replace('"no\\e[2Jte.batch', '"so\\e[2Jte.batch'))
    failed = hostile("search", "--config", "config.yaml", "--dry-run")
    assert failed.returncode == 1
    assert "\\x1b[2J" in failed.stderr
    assert _is_harmless(failed)


@pytest.mark.parametrize("arguments", [("search", f"--{TITLE}"), (f"sea{TITLE}rch",)])
def test_typed_words_in_a_usage_error(hostile: CommandLine, arguments: tuple[str, ...]) -> None:
    """Names of options are quoted back, as is a command that does not exist."""
    refused = hostile(*arguments)
    assert refused.returncode == 2
    assert "owned" in refused.stderr
    assert _is_harmless(refused)


def test_a_search_and_the_commands_on_its_answer(hostile: CommandLine) -> None:
    """Names of files that a trial left, a record's details, a manifest's values: none reaches the terminal raw."""
    searched = hostile.search(budget="1m").well()
    assert "left\\x1b]0;owned\\x07.txt" in searched.stderr, searched.stderr
    assert _is_harmless(searched)

    (journal,) = hostile.folder.glob(".autotune/studies/*.journal")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        attributes = line.get("user_attr", {}).get("record", {})
        if attributes.get("purpose") == "explore":
            attributes |= {"detail": f"heat{TITLE}", "validity": "throttled"}
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = hostile("status", "--config", "config.yaml", "--details")
    assert "\\x1b]0;owned" in known.stdout + known.stderr
    assert _is_harmless(known)

    assert hostile("apply", "--config", "config.yaml", "--trial", "2", "--force").returncode == 0
    (manifest,) = hostile.folder.glob(".autotune/backups/*/*.json")
    entry = json.loads(manifest.read_text())
    for change in entry["changes"]:
        change["new"] = f"32{TITLE}"
    manifest.write_text(json.dumps(entry))
    refused = hostile("revert", "--config", "config.yaml")
    assert refused.returncode == 1
    assert "\\x1b]0;owned" in refused.stderr
    assert _is_harmless(refused)

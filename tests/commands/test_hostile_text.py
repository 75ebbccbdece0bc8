"""Text from outside (files, configs, records, backups) that would steer the terminal: it is shown, and does nothing."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.commands.conftest import CONFIG, TRAINER, Autotune

TITLE = "\x1b]0;owned\x07"
"""Sets the title of a terminal's window."""


def _is_harmless(done: "subprocess.CompletedProcess[str]") -> bool:
    said = done.stdout + done.stderr
    return all(character.isprintable() or character in "\n\t" for character in said)


@pytest.fixture
def hostile(project: Path) -> Path:
    """Config with control characters in a key and a value, and a trainer that writes such."""
    trainer = project / "trainer.py"
    unfit = f"numbers{TITLE} found another HOME"
    leaves = (
        "import os, numpy",
        f"open({f'left{TITLE}.txt'!r}, 'a').close()",
        "if os.path.exists('first') and not os.path.exists('was unfit'):",  # trials are forks from the second on
        "    open('was unfit', 'x').close()",
        "    with open(os.path.join(os.environ['AUTOTUNE_TRIAL_DIR'], 'unfit.txt'), 'w') as file:",
        f"        file.write({unfit!r})",
        "    os._exit(0)",
        "open('first', 'a').close()",
    )
    trainer.write_text("\n".join((*leaves, TRAINER.read_text())))
    text = (CONFIG % trainer.name).replace("out:", '"no\\e[2Jte": {"batch_size\\u202e": 4}\nout:')
    text = text.replace("data.num_workers: [1, 2]", '"no\\e[2Jte.batch_size\\u202e": [4, 8]')
    (project / "config.yaml").write_text(text)
    return project


def test_keys_in_an_error(hostile: Path, autotune: Autotune) -> None:
    """Messages escape the keys that they name, too."""
    config = hostile / "config.yaml"
    config.write_text(config.read_text().replace('"no\\e[2Jte.batch', '"so\\e[2Jte.batch'))
    failed = autotune("search", "--config", "config.yaml", "--dry-run")
    assert failed.returncode == 1
    assert "\\x1b[2J" in failed.stderr
    assert _is_harmless(failed)


@pytest.mark.usefixtures("hostile")
def test_typed_words_in_a_usage_error(autotune: Autotune) -> None:
    """Names of options are quoted back, as is a command that does not exist."""
    for arguments in (["search", f"--{TITLE}"], [f"sea{TITLE}rch"]):
        refused = autotune(*arguments)
        assert refused.returncode == 2
        assert "owned" in refused.stderr
        assert _is_harmless(refused)


@pytest.mark.services
def test_a_search_and_the_commands_on_its_answer(hostile: Path, autotune: Autotune) -> None:
    """Names of files that a trial left, a record's details, a manifest's values: none reaches the terminal raw."""
    searched = autotune("search", "--config", "config.yaml", "--budget", "12s")
    assert searched.returncode == 0, searched.stderr
    assert "left\\x1b]0;owned\\x07.txt" in searched.stderr, searched.stderr
    assert "owned found another HOME" in searched.stderr
    assert _is_harmless(searched)

    (journal,) = hostile.glob(".autotune/studies/*.journal")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        attributes = line.get("user_attr", {}).get("record", {})
        if attributes.get("purpose") == "explore":
            attributes |= {"detail": f"heat{TITLE}", "validity": "throttled"}
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = autotune("status", "--config", "config.yaml", "--details")
    assert "\\x1b]0;owned" in known.stdout + known.stderr
    assert _is_harmless(known)

    assert autotune("apply", "--config", "config.yaml", "--trial", "1", "--force").returncode == 0
    (manifest,) = hostile.glob(".autotune/backups/*/*.json")
    entry = json.loads(manifest.read_text())
    for change in entry["changes"]:
        change["new"] = f"32{TITLE}"
    manifest.write_text(json.dumps(entry))
    refused = autotune("revert", "--config", "config.yaml")
    assert refused.returncode == 1
    assert "\\x1b]0;owned" in refused.stderr
    assert _is_harmless(refused)

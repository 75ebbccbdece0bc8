"""Fingerprints of what is to be searched."""

import os
import subprocess
from pathlib import Path

from autotune.daemon.queue.fingerprint import config_sha256, fingerprint


def test_an_edit_of_any_of_its_files_is_seen(tmp_path: Path) -> None:
    """A config may have further files, and values are written into each of them."""
    configs = (tmp_path / "config.yaml", tmp_path / "data.yaml")
    for config in configs:
        config.write_text("a: 1\n")
    before = config_sha256(configs)
    assert before == config_sha256(configs)
    configs[1].write_text("a: 2\n")
    assert config_sha256(configs) not in (None, before)
    configs[1].unlink()
    assert config_sha256(configs) is None


def test_a_fifo_in_its_place_does_not_block(tmp_path: Path) -> None:
    """Anything but a regular file cannot be read."""
    os.mkfifo(tmp_path / "config.yaml")
    assert config_sha256((tmp_path / "config.yaml",)) is None


def test_commit_and_uncommitted_changes_are_known(tmp_path: Path) -> None:
    """The project's commit, and whether tracked files differ from it; files that git does not know do not count."""
    config = tmp_path / "config.yaml"
    config.write_text("a: 1\n")
    assert fingerprint((config,)).git_commit is None
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    for words in (("init", "-q"), ("add", "config.yaml"), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "new").write_text("")
    clean = fingerprint((config,))
    assert clean.git_commit is not None
    assert clean.git_is_dirty is False
    config.write_text("a: 2\n")
    dirty = fingerprint((config,))
    assert dirty.git_is_dirty is True
    assert clean.differences(dirty) == ["the config was edited", "the project has uncommitted changes"]

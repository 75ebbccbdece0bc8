"""Fingerprints of what is to be searched."""

import subprocess
from pathlib import Path

from autotune.daemon.queue import config_sha256, fingerprint


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


def test_the_commit_of_the_project_is_known(tmp_path: Path) -> None:
    """Of the project that holds the config, once it has one."""
    config = tmp_path / "config.yaml"
    config.write_text("a: 1\n")
    before = fingerprint((config,))
    assert before.git_commit is None
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    for words in (("init", "-q"), ("add", "config.yaml"), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], check=True)
    after = fingerprint((config,))
    said = f"the project's commit changed from none to {after.git_commit[:8]}"
    assert before.differences(after) == [said]
    config.write_text("a: 2\n")
    assert after.differences(fingerprint((config,))) == ["the config was edited"]

"""Settings of the daemon: read from the user's own file, which nobody else may write to."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config.daemon_settings import (
    DaemonSettings,
    daemon_settings_path,
    load_daemon_settings,
    parse_daemon_settings,
)
from autotune.errors import ConfigError
from tests.users import MALLORY, only_root

WHOLE = """\
# The daemon of this machine.
idle: {for: 5m, cores: 0.25}
notify: [notify-send, "a b", --urgency=low, 5]
watch:
    - /data/projects
    - ~/one/config.yaml
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Path of the settings, in a folder that exists."""
    path = daemon_settings_path({"XDG_CONFIG_HOME": str(tmp_path)})
    path.parent.mkdir()
    return path


def load(file: Path) -> DaemonSettings:
    """Settings as the daemon reads them."""
    return load_daemon_settings({"XDG_CONFIG_HOME": str(file.parents[1])})


def write(file: Path, text: str, mode: int = 0o644) -> None:
    """Write the settings, with a mode whatever the umask."""
    file.write_text(text)
    file.chmod(mode)


def test_every_key_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its type; a home in front of a path is filled in, words of the command stay texts."""
    monkeypatch.setenv("HOME", "/home/me")
    write(file, WHOLE)
    assert load(file) == DaemonSettings(
        idle_for_s=300.0,
        idle_cores_fraction=0.25,
        notify=("notify-send", "a b", "--urgency=low", "5"),
        watched=(Path("/data/projects"), Path("/home/me/one/config.yaml")),
    )


def test_defaults_hold_without_a_file(tmp_path: Path) -> None:
    """Ten minutes below a tenth of the cores; nobody is told, nothing is watched that did not ask."""
    settings = load_daemon_settings({"XDG_CONFIG_HOME": str(tmp_path)})
    assert settings == DaemonSettings(idle_for_s=600.0, idle_cores_fraction=0.1, notify=(), watches_all=False)
    assert not settings.watches(tmp_path / "config.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "\ufeff", "notify:\nwatch: never\n"])
def test_an_empty_file_means_the_defaults(file: Path, text: str) -> None:
    """So does one whose keys are all comments."""
    write(file, text)
    assert load(file) == DaemonSettings()


def test_configs_and_folders_are_watched(tmp_path: Path) -> None:
    """A folder stands for all that is below it; links lead to the same place."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    settings = parse_daemon_settings(f"watch: [{tmp_path}/link, {tmp_path}/b/one.yaml]", "x")
    watched = {"a/deep/c.yaml": True, "b/one.yaml": True, "b/two.yaml": False, "ab/c.yaml": False}
    assert {name: settings.watches(tmp_path / name) for name in watched} == watched
    assert parse_daemon_settings("watch: always", "x").watches(Path("/any/where.yaml"))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("idle: {for: 10m}\nnotfy: [a]", 2, "unknown key notfy"),
        ("idle:\n  for: 10m\n  core: 0.1", 3, "unknown key idle.core"),
        ("idle: 10m", 1, "idle is '10m'"),
        ("idle: {for: 600}", 1, "'600' is not a duration"),
        ("idle: {cores: 10%}", 1, "idle.cores is '10%'"),
        ("idle: {cores: 0}", 1, "above 0"),
        ("idle: {cores: 1.5}", 1, "at most 1"),
        ("\nnotify: notify-send me", 2, "should be a list"),
        ("notify: [[a]]", 1, "should be text"),
        ('notify: ["a\\0b"]', 1, "zero byte"),
        ("notify: [bin/tell]", 1, "working directory"),
        ("watch: sometimes", 1, "watch is 'sometimes'"),
        ("watch: [configs/a.yaml]", 1, "not an absolute path"),
        ("- a\n- b", 1, "it is"),
        ("idle: {for: 10m}\nidle: {for: 1m}", 2, "duplicate key"),
        ("a: &x [*x]", 1, "alias"),
        ("idle: &x {for: 10m}\nnotify: *x", 1, "alias"),
        ("idle: {", 1, "not valid YAML"),
        ("? [a]\n: b", 1, "not a single word"),
        ("a: \x01", None, "not valid YAML"),
        ("[\n" * 2_000, None, "deeply"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int | None, words: str) -> None:
    """Before the daemon starts, not when it first needs the value."""
    with pytest.raises(ConfigError, match=words) as caught:
        parse_daemon_settings(text, "daemon.yaml")
    assert caught.value.where is not None
    if line is not None:
        assert caught.value.where == f"daemon.yaml:{line}"
    assert caught.value.remedy


@given(st.text(max_size=100) | st.text("idlenotifywatch: \n-{}[],&*!?|>'\"#%@0.1", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """The parser's own errors never reach the user."""
    with suppress(ConfigError):
        parse_daemon_settings(text, "daemon.yaml")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_to_is_refused(file: Path, mode: int) -> None:
    """It can name a command; the remedy closes it."""
    write(file, "notify: [tell]", mode)
    with pytest.raises(ConfigError, match="other users can write to the file") as caught:
        load(file)
    assert f"chmod go-w {file}" in (caught.value.remedy or "")


@only_root
def test_a_file_of_another_user_is_refused(file: Path) -> None:
    """Root reads its own; another user may use what root has written."""
    write(file, "notify: [tell]")
    os.chown(file, MALLORY, MALLORY)
    with pytest.raises(ConfigError, match=r"another user \(uid 4343\)"):
        load(file)
    os.chown(file, 0, 0)
    assert load(file).notify == ("tell",)


def test_a_link_to_ones_own_file_is_followed(file: Path, tmp_path: Path) -> None:
    """Settings are kept in a repository of dotfiles."""
    write(tmp_path / "dotfile", "notify: [tell]")
    file.symlink_to(tmp_path / "dotfile")
    assert load(file).notify == ("tell",)


@pytest.mark.parametrize(
    "plant",
    [
        Path.mkdir,
        os.mkfifo,
        lambda file: file.symlink_to(file),
        lambda file: file.write_text("# x\n" * 50_000),
        lambda file: file.write_bytes(b"\xff\xfe\x00"),
    ],
    ids=["folder", "fifo", "loop", "large", "binary"],
)
def test_what_is_no_settings_file_is_an_error(file: Path, plant: Callable[[Path], object]) -> None:
    """Nothing is waited for, and nothing large is read."""
    plant(file)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(file) in str(caught.value.where)

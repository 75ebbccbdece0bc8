"""Writing of values into the user's config and reverting, on real files and with real failures."""

import contextlib
import itertools
import json
import os
import re
import signal
import stat
from datetime import UTC, datetime, timedelta

import pytest

from autotune.clock import SystemClock
from autotune.config.apply import create_file, plan_edit, plan_reverts, plan_section, write_edits
from autotune.errors import ConfigError
from tests.conftest import fill
from tests.users import acting_as

CONFIG = "# mine\r\ndata:\r\n  batch_size: 16  # per GPU\r\n  workers: 2\r\noptim: {lr: 1e-4, name: 'adam'}\r\nseed:"


def write_edit(edit, backups, clock):
    """Carry out one plan; return the backup, None if there was nothing to do."""
    return write_edits([edit], backups, clock).get(edit.path)


def plan_revert(config, backups):
    """Plan to undo the last write to one config."""
    return plan_reverts([config], backups)[0]


class TickingClock(SystemClock):
    """A wall clock that a test can predict: one second later each time, or too coarse to tell two writes apart."""

    def __init__(self, tick_s=1):
        self._now, self._tick = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC), timedelta(seconds=tick_s)

    def utc(self):
        """The next moment."""
        self._now += self._tick
        return self._now


@pytest.fixture
def config(tmp_path):
    """A config in a folder with an awkward name."""
    folder = tmp_path / "my 'configs'\n"
    folder.mkdir()
    path = folder / "con fig.yaml"
    path.write_bytes(CONFIG.encode())
    return path


@pytest.fixture
def backups(tmp_path):
    """The state folder's backups."""
    return tmp_path / "state" / "backups"


def apply(config, backups, clock=None, **values):
    """Plan and write, as the command does; the names of the values are their last parts."""
    sections = {"batch_size": "data", "workers": "data", "lr": "optim", "name": "optim"}
    edit = plan_edit(config, {f"{sections[k]}.{k}" if k in sections else k: v for k, v in values.items()})
    return write_edit(edit, backups, clock or TickingClock())


def revert(config, backups, clock=None):
    """Undo the last apply; return the plan."""
    edit = plan_revert(config, backups)
    write_edit(edit, backups, clock or TickingClock())
    return edit


def beside(config):
    """Return the names of the other files in the config's folder."""
    return [path.name for path in config.parent.iterdir() if path != config]


def test_only_the_values_change(config, backups):
    """The applied file is the old one but for the values, and the plan shows the difference before."""
    edit = plan_edit(config, {"data.batch_size": 32, "optim.lr": 3e-5})
    assert config.read_bytes() == CONFIG.encode()
    assert "-  batch_size: 16  # per GPU" in edit.diff
    assert "+  batch_size: 32  # per GPU" in edit.diff
    assert [(c.dotted, c.old, c.new) for c in edit.changes] == [("data.batch_size", 16, 32), ("optim.lr", 0.0001, 3e-5)]
    write_edit(edit, backups, TickingClock())
    assert config.read_bytes().decode() == CONFIG.replace("16", "32").replace("1e-4", "3.0e-05")
    assert beside(config) == []


def test_the_diff_says_that_a_final_newline_is_missing(config):
    """As every other diff does, so that it can be fed to patch."""
    diff = plan_edit(config, {"seed": 7}).diff
    assert diff.endswith("-seed:\n\\ No newline at end of file\n+seed: 7\n\\ No newline at end of file\n")


def test_the_backup_is_the_file_as_it_was(config, backups):
    """It lies where the design says, for its owner alone."""
    backup = apply(config, backups, batch_size=32)
    assert backup.read_bytes() == CONFIG.encode()
    assert re.fullmatch(r"con fig-\w+/20250102T030406\.000000Z-.*", str(backup.relative_to(backups)))
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


@pytest.mark.parametrize("tick_s", [1, 0])
def test_reverts_undo_applies_one_after_another(config, backups, tick_s):
    """Applies and an init, each reverted byte for byte, also when the wall clock stands still."""
    clock = TickingClock(tick_s)
    states = [config.read_bytes()]
    for values in ({"batch_size": 32, "seed": 1}, {"lr": 0.5, "batch_size": 64}, {"name": "it's", "seed": 2}):
        apply(config, backups, clock, **values)
        states.append(config.read_bytes())
    init(config, backups, clock)
    states.append(config.read_bytes())
    write_edit(plan_edit(config, {"autotune.env.MODE": "b", "data.workers": 9}), backups, clock)
    assert len(set(states)) == 5
    for state in reversed(states):
        revert(config, backups, clock)
        assert config.read_bytes() == state
    with pytest.raises(ConfigError, match="no apply or init to undo"):
        plan_revert(config, backups)


@pytest.mark.parametrize(
    "text", ["a:", "# c\r\na:\r\nb: 1\r\n", "b: 1\na:  # none\n", "{b: 1, a: , c: 2}", "\ufeffa: \n"]
)
def test_an_empty_value_is_empty_again_after_a_revert(config, backups, text):
    """Byte for byte: the blank that an apply puts behind the colon goes too, and no other does."""
    config.write_bytes(text.encode())
    apply(config, backups, a=3)
    assert config.read_bytes() == text.replace("a:", "a: 3").encode()
    revert(config, backups)
    assert config.read_bytes() == text.encode()


def test_revert_keeps_edits_to_other_lines(config, backups):
    """Edits that the user made meanwhile stay, also when they moved the tuned lines."""
    apply(config, backups, batch_size=32, lr=3e-5)
    edited = config.read_bytes().decode().replace("# mine", "# mine,\r\n# all mine").replace("workers: 2", "workers: 4")
    config.write_bytes(edited.encode())
    assert revert(config, backups).conflicts == ()
    assert config.read_bytes().decode() == edited.replace("32", "16").replace("3.0e-05", "1e-4")


def test_a_key_that_is_gone_is_a_conflict_that_stays(config, backups):
    """Revert never adds a key; the other values are taken back."""
    apply(config, backups, batch_size=32, workers=8)
    config.write_bytes(config.read_bytes().replace(b"  batch_size: 32  # per GPU\r\n", b""))
    edit = revert(config, backups)
    assert edit.conflicts[0].present is None
    assert b"workers: 2" in config.read_bytes()


def test_a_symbolic_link_stays_one_and_mode_and_owner_stay(config, backups, tmp_path):
    """The file that it points to is written, for whoever could read it; both names share one history."""
    link = tmp_path / "link.yaml"
    link.symlink_to(config)
    config.chmod(0o664)
    if os.geteuid() == 0:
        os.chown(config, 12345, 54321)
    before = config.stat()
    apply(link, backups, batch_size=32)
    assert link.is_symlink()
    assert b"batch_size: 32" in config.read_bytes()
    assert config.stat()[:1] + config.stat()[4:6] == before[:1] + before[4:6]
    revert(config, backups)
    assert config.read_bytes() == CONFIG.encode()


@pytest.mark.parametrize("text", [b"data: {batch_size: 16}\n", b"", CONFIG.encode() + b"\n"])
def test_a_file_changed_meanwhile_is_not_overwritten(config, backups, text):
    """Between the plan and the write the user saved something: it stays."""
    edit = plan_edit(config, {"data.batch_size": 32})
    config.write_bytes(text)
    with pytest.raises(ConfigError, match="changed in the meantime"):
        write_edit(edit, backups, TickingClock())
    assert config.read_bytes() == text
    assert list(backups.rglob("*.yaml")) == []


def bound_by_permissions():
    """Act for a while as a user whom permissions bind, though root."""
    return acting_as(65534) if os.geteuid() == 0 else contextlib.nullcontext()


@pytest.fixture
def open_path(tmp_path):
    """A folder that another user can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | 0o755)
    return tmp_path


@pytest.mark.parametrize("what", ["folder", "file", "backups"])
def test_without_permission_nothing_changes(open_path, what):
    """A read-only folder, file, or state folder: an error with the place and a remedy, and all is as before."""
    folder, backups = open_path / "configs", open_path / "backups"
    folder.mkdir()
    backups.mkdir()
    config = folder / "config.yaml"
    config.write_text("data: {batch_size: 16}\n")
    if os.geteuid() == 0:
        for path in (folder, backups, config):
            os.chown(path, 65534, 65534)
    {"folder": folder, "file": config, "backups": backups}[what].chmod(0o444 if what == "file" else 0o555)
    with bound_by_permissions(), pytest.raises(ConfigError) as caught:
        write_edit(plan_edit(config, {"data.batch_size": 32}), backups, TickingClock())
    assert ("read-only" if what == "file" else "Permission denied") in caught.value.message
    assert str(backups if what == "backups" else config) in caught.value.where
    assert caught.value.remedy
    assert (config.read_text(), beside(config)) == ("data: {batch_size: 16}\n", [])
    assert [path for path in backups.rglob("*") if path.is_file()] == []


def test_a_full_disk_leaves_the_config_whole(small_disk, backups):
    """ENOSPC while writing the new file: the old one stays, no temporary file is left, the backup is taken back."""
    config = small_disk / "config.yaml"
    text = "data: {batch_size: 16}\n" + "# padding\n" * 2000
    config.write_text(text)
    fill(small_disk)
    edit = plan_edit(config, {"data.batch_size": 32})
    with pytest.raises(ConfigError, match="No space left on device; it is unchanged") as caught:
        write_edit(edit, backups, TickingClock())
    assert caught.value.remedy
    assert (config.read_text(), beside(config)) == (text, ["filler"])
    assert list(backups.rglob("*.yaml")) == []
    (small_disk / "filler").unlink()
    assert write_edit(edit, backups, TickingClock()) is not None


def test_no_room_for_the_backup_means_no_write(small_disk, config):
    """Without a backup the config is not touched."""
    fill(small_disk)
    edit = plan_edit(config, {"data.batch_size": 32})
    with pytest.raises(ConfigError, match=r"the backup cannot be written: .*; the config is unchanged"):
        write_edit(edit, small_disk / "backups", TickingClock())
    assert config.read_bytes() == CONFIG.encode()
    assert [path for path in (small_disk / "backups").rglob("*") if path.is_file()] == []


LOOP = """
import itertools, sys
from dataclasses import replace
from pathlib import Path
from autotune.clock import SystemClock
from autotune.config.apply import plan_edit, write_edits
config, backups = map(Path, sys.argv[1:])
forth = plan_edit(config, {"data.batch_size": 32})
for edit in itertools.cycle((forth, replace(forth, old=forth.new, new=forth.old))):
    write_edits([edit], backups, SystemClock())
    print("written", flush=True)
"""


@pytest.mark.parametrize("writes", [1, 12])
def test_a_killed_write_leaves_the_old_file_or_the_new(tmp_path, backups, start, writes):
    """SIGKILL in the middle of writing, at arbitrary points: the file is always whole."""
    config = tmp_path / "config.yaml"
    old = "data: {batch_size: 16}\n" + "# padding\n" * 5000
    config.write_text(old)
    writer = start(LOOP, str(config), str(backups))
    assert list(itertools.islice(writer.stdout, writes)) == ["written\n"] * writes
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    assert config.read_text() in (old, old.replace("16", "32"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("number", "1"), ("number", None), ("inserted", "\ud800"), ("changes", None), ("changes", [5])),
        *(("path", [1.5]), ("path", {"a": 1}), ("old", {"a": 1}), ("format", 99), (None, None)),
    ],
)
def test_a_damaged_record_says_so(config, backups, key, value):
    """Any wrong content is named with a remedy, and nothing is written: revert does not guess."""
    manifest = apply(config, backups, batch_size=32).with_suffix(".json")
    before, content = config.read_bytes(), json.loads(manifest.read_text())
    (content if key in content else content["changes"][0])[key] = value
    manifest.write_text(json.dumps(content) if key else "{")
    with pytest.raises(ConfigError, match="format 99" if key == "format" else "cannot be read") as caught:
        plan_revert(config, backups)
    assert str(manifest) in caught.value.where
    assert config.read_bytes() == before


SECTION = ["autotune:", "  command: t {config}", "  env: {MODE: a}"]


def init(config, backups, clock):
    """Add a section, as the command does."""
    assert write_edit(plan_section(config, SECTION), backups, clock) is not None


def test_a_section_is_added_with_the_same_care(config, backups):
    """Backup, mode, link and line ends; the old bytes are the new file's beginning."""
    config.chmod(0o640)
    link = config.with_name("link.yaml")
    link.symlink_to(config.name)
    init(link, backups, TickingClock())
    assert (link.is_symlink(), stat.S_IMODE(config.stat().st_mode)) == (True, 0o640)
    assert config.read_bytes() == CONFIG.encode() + b"\r\n\r\n" + "\r\n".join(SECTION).encode()
    assert [path.read_bytes() for path in backups.rglob("*.yaml")] == [CONFIG.encode()]


def test_a_section_that_was_edited_is_not_taken_out(config, backups):
    """Somebody's work is in it."""
    init(config, backups, TickingClock())
    config.write_bytes(config.read_bytes().replace(b"MODE: a", b"MODE: mine"))
    with pytest.raises(ConfigError, match="edited since") as caught:
        plan_revert(config, backups)
    assert "by hand" in caught.value.remedy
    config.write_bytes(CONFIG.encode())
    with pytest.raises(ConfigError, match="no apply or init to undo"):
        plan_revert(config, backups)


@pytest.fixture
def two(open_path):
    """Two configs, each in a folder of its own."""
    paths = []
    for name in ("model", "data"):
        folder = open_path / name
        folder.mkdir()
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(f"{name}: 16  # why\n")
        if os.geteuid() == 0:
            for path in (folder, paths[-1]):
                os.chown(path, 65534, 65534)
    return paths


def edit_both(two):
    """Plan a change to both files."""
    return [plan_edit(path, {path.stem: 32}) for path in two]


def test_one_revert_undoes_an_apply_to_several_files(two, tmp_path):
    """Their entries belong together; what was applied to one of them before is undone next."""
    clock, backups = TickingClock(), tmp_path / "state"
    write_edit(plan_edit(two[1], {"data": 8}), backups, clock)
    kept = write_edits(edit_both(two), backups, clock)
    assert [kept[path].read_text() for path in two] == ["model: 16  # why\n", "data: 8  # why\n"]
    assert [path.read_text() for path in two] == ["model: 32  # why\n", "data: 32  # why\n"]
    write_edits(plan_reverts(two, backups), backups, clock)
    assert [path.read_text() for path in two] == ["model: 16  # why\n", "data: 8  # why\n"]
    write_edits(plan_reverts(two, backups), backups, clock)
    assert two[1].read_text() == "data: 16  # why\n"
    with pytest.raises(ConfigError, match="no apply or init to undo"):
        plan_reverts(two, backups)


@pytest.mark.parametrize("of", [0, 1])
def test_one_of_several_files_is_not_reverted_alone(two, tmp_path, of):
    """Half of a change is a config that nobody has trained with."""
    write_edits(edit_both(two), tmp_path / "state", TickingClock())
    with pytest.raises(ConfigError, match="changed 2 files, and some") as caught:
        plan_revert(two[of], tmp_path / "state")
    assert "files:" in caught.value.remedy


def test_a_failure_at_the_second_file_puts_the_first_one_back(two, open_path):
    """All or none: no entry stays of what did not happen."""
    backups = open_path / "state"
    backups.mkdir()
    if os.geteuid() == 0:
        os.chown(backups, 65534, 65534)
    two[1].parent.chmod(0o555)
    with bound_by_permissions(), pytest.raises(ConfigError, match="Permission denied") as caught:
        write_edits(edit_both(two), backups, TickingClock())
    assert str(two[1]) in caught.value.where
    assert [path.read_text() for path in two] == ["model: 16  # why\n", "data: 16  # why\n"]
    assert [path for path in backups.rglob("*") if path.is_file()] == []


def test_a_change_to_one_of_several_files_keeps_all_as_they_are(two, tmp_path):
    """All are looked at before the first one is written."""
    edits = edit_both(two)
    two[1].write_text("data: 17\n")
    with pytest.raises(ConfigError, match="changed in the meantime"):
        write_edits(edits, tmp_path / "state", TickingClock())
    assert [path.read_text() for path in two] == ["model: 16  # why\n", "data: 17\n"]


def test_a_new_file_is_there_whole_or_not_at_all(small_disk):
    """On a full disk none is left, nor where the folder is gone; one that is there stays."""
    with pytest.raises(ConfigError, match="cannot be written"):
        create_file(small_disk / "new.yaml", "a: " + "x" * 2**20)
    assert list(small_disk.iterdir()) == []
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        create_file(small_disk / "nowhere" / "new.yaml", "a: 1\n")
    assert str(small_disk / "nowhere") in caught.value.remedy
    create_file(small_disk / "new.yaml", "a: 1\r\n")
    with pytest.raises(ConfigError, match="not overwritten"):
        create_file(small_disk / "new.yaml", "b: 2\n")
    assert (small_disk / "new.yaml").read_bytes() == b"a: 1\r\n"


def test_a_second_section_is_refused(config, backups):
    """The place of the first one is named."""
    init(config, backups, TickingClock())
    with pytest.raises(ConfigError, match="already") as caught:
        plan_section(config, SECTION)
    assert caught.value.where == f"{config}:9"

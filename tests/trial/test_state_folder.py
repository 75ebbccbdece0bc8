"""Location, contents and pruning of the state folder."""

import os
from collections import namedtuple
from pathlib import Path

import pytest

from autotune.errors import AutotuneError, TrialError
from autotune.trial.folders import LEAST_FREE_BYTES, StateFolder, TrialFolder
from tests.users import ALICE, MALLORY, acting_as, made, only_root


def located(config: Path, explicit: Path | None = None, **environ: str) -> Path:
    """Return the state folder of a config."""
    return StateFolder.locate(config, explicit=explicit, environ=environ).path


def test_what_is_named_wins(tmp_path: Path) -> None:
    """The option before the variable, the variable before the project."""
    (tmp_path / ".git").mkdir()
    config = tmp_path / "c.yaml"
    assert located(config, Path("/a"), AUTOTUNE_DIR="/b") == Path("/a")
    assert located(config, AUTOTUNE_DIR="/b") == Path("/b")
    assert located(config, AUTOTUNE_DIR="") == tmp_path / ".autotune"
    assert located(config, Path("rel")) == Path.cwd() / "rel"


def test_the_nearest_project_is_taken(hostile: Path) -> None:
    """The nearest folder above the config with .autotune or .git, which may be a file."""
    inner = hostile / "repo" / "configs" / "deep"
    inner.mkdir(parents=True)
    (hostile / "repo" / ".git").write_text("gitdir: elsewhere")
    assert located(inner / "c.yaml") == hostile / "repo" / ".autotune"
    (hostile / "repo" / "configs" / ".autotune").mkdir()
    assert located(inner / "c.yaml") == hostile / "repo" / "configs" / ".autotune"


def test_a_link_that_was_found_is_passed_over(tmp_path: Path) -> None:
    """The state is kept in the user's own folder instead, and that is said, with the way to have it elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".autotune").symlink_to(tmp_path / "elsewhere")
    state = StateFolder.locate(tmp_path / "c.yaml", explicit=None, environ={"XDG_STATE_HOME": str(tmp_path / "xdg")})
    assert state.path == tmp_path / "xdg" / "autotune"
    (remark,) = state.remarks
    assert f"{tmp_path / '.autotune'} is not used: it is a symbolic link" in remark
    assert "--state-dir" in remark


@only_root
def test_a_folder_of_another_user_is_passed_over_or_refused(shared: Path) -> None:
    """In a place like /tmp anybody can be there first; neither their folder nor their repository decides anything."""
    config = made(shared / "alice", owner=ALICE, mode=0o755) / "c.yaml"
    with acting_as(MALLORY):
        (shared / ".git").mkdir()
    with acting_as(ALICE):
        assert located(config) == shared / "alice" / ".autotune"
    with acting_as(MALLORY):
        (shared / ".autotune").mkdir(mode=0o755)
    with acting_as(ALICE):
        assert located(config, XDG_STATE_HOME=str(shared / "alice")) == shared / "alice" / "autotune"
        with pytest.raises(AutotuneError, match=f"belongs to user {MALLORY}"):
            located(config, shared / ".autotune")


@only_root
def test_a_folder_that_another_user_makes_in_the_last_moment_is_not_used(shared: Path) -> None:
    """Between the look and the making, whoever is faster has the place."""
    with acting_as(ALICE):
        state = StateFolder.locate(shared / "c.yaml", explicit=None, environ={})
    with acting_as(MALLORY):
        state.path.mkdir(mode=0o755)
    with acting_as(ALICE), pytest.raises(AutotuneError, match="cannot be written"):
        state.create()


@only_root
def test_root_uses_the_folder_of_the_owner_of_a_config(shared: Path) -> None:
    """Not that of somebody else, and not for a config of somebody else."""
    folder = made(shared / "alice", owner=ALICE, mode=0o755)
    made(folder / ".autotune", owner=ALICE, mode=0o700)
    (folder / "c.yaml").write_text("")
    assert located(folder / "c.yaml", XDG_STATE_HOME=str(shared / "root")) == shared / "root" / "autotune"
    os.chown(folder / "c.yaml", ALICE, ALICE)
    assert located(folder / "c.yaml") == folder / ".autotune"


@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_a_folder_that_others_may_write_to_is_passed_over_or_refused(mode: int, tmp_path: Path) -> None:
    """Passed over where it was found; where it was named, the user hears how to close it."""
    (tmp_path / ".autotune").mkdir()
    (tmp_path / ".autotune").chmod(mode)
    config = tmp_path / "c.yaml"
    assert located(config, HOME=str(tmp_path / "home")) == tmp_path / "home" / ".local" / "state" / "autotune"
    with pytest.raises(AutotuneError, match="others may write to it") as caught:
        located(config, tmp_path / ".autotune")
    assert "chmod go-w" in (caught.value.remedy or "")
    with pytest.raises(AutotuneError, match="others may write to it"):
        located(config, AUTOTUNE_DIR=str(tmp_path / ".autotune"))


def test_a_place_open_to_all_gets_no_folder(tmp_path: Path) -> None:
    """Others could take ours away and put one of theirs into its place; one that the user names is made."""
    place = tmp_path / "scratch"
    place.mkdir()
    place.chmod(0o777)
    assert located(place / "c.yaml", XDG_STATE_HOME=str(tmp_path)) == tmp_path / "autotune"
    assert located(place / "c.yaml", place / "named") == place / "named"
    with pytest.raises(AutotuneError, match="no safe place for the state folder") as caught:
        located(place / "c.yaml", XDG_STATE_HOME=str(place))
    assert "--state-dir" in (caught.value.remedy or "")


def test_a_new_folder_is_private_and_ignored_by_git(hostile: Path) -> None:
    """Nobody else can read it, git does not see it, and making it again changes nothing."""
    state = StateFolder(hostile / ".autotune")
    state.create()
    state.create()
    assert state.path.stat().st_mode & 0o777 == 0o700
    assert (state.path / ".gitignore").read_text() == "*\n"
    assert sorted(os.listdir(state.path)) == [".gitignore", "backups", "cache", "kept", "searches", "studies", "trials"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """The place, the system's reason and the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(AutotuneError, match="cannot be written: Not a directory") as caught:
        StateFolder(tmp_path / "file" / ".autotune").create()
    assert "--state-dir" in (caught.value.remedy or "")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "-rf", ".hidden", "a\nb", "é", "x" * 200])
def test_a_name_never_leads_elsewhere(name: str, tmp_path: Path) -> None:
    """Names come out of a storage that others can write; none of them is a path."""
    state = StateFolder(tmp_path)
    with pytest.raises(ValueError, match="invalid folder name"):
        state.trial("study", name)
    with pytest.raises(ValueError, match="invalid folder name"):
        state.trials(name)


@pytest.mark.parametrize(("free", "refused"), [(LEAST_FREE_BYTES, False), (LEAST_FREE_BYTES - 1, True)])
def test_a_trial_needs_a_gibibyte(free: int, refused: bool, tmp_path: Path, monkeypatch) -> None:
    """Exactly 1 GiB is enough, one byte less is not."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(free, 0, free))
    if refused:
        with pytest.raises(TrialError, match="only 1023 MiB are free; a trial needs at least 1 GiB"):
            StateFolder(tmp_path).require_space()
    else:
        StateFolder(tmp_path).require_space()


def aged(state: StateFolder, count: int) -> list[TrialFolder]:
    """Make trial folders, the oldest first."""
    folders = [state.trial("study", f"trial-{count - index}") for index in range(count)]
    for index, folder in enumerate(folders):
        folder.create()
        os.utime(folder.path / ".autotune-trial", (1e9 + index, 1e9 + index))
    return folders


def test_pruning_keeps_the_latest_and_the_protected(tmp_path: Path) -> None:
    """The oldest go, by age and not by name; protected ones stay."""
    state = StateFolder(tmp_path)
    folders = aged(state, 6)
    protected = folders[1].path.name
    state.prune("study", protected={protected}, keep=3)
    assert [folder.path.exists() for folder in folders] == [False, True, False, True, True, True]


def test_pruning_touches_nothing_else(tmp_path: Path) -> None:
    """Folders without the marker, files and links in the same place stay, and links lead nowhere."""
    state = StateFolder(tmp_path)
    (folder,) = aged(state, 1)
    elsewhere = TrialFolder(tmp_path / "elsewhere")
    elsewhere.create()
    study = folder.path.parent
    (study / "link").symlink_to(elsewhere.path)
    (study / "mine").mkdir()
    (study / "notes.txt").write_text("")
    state.prune("study", protected=(), keep=0)
    assert sorted(os.listdir(study)) == ["link", "mine", "notes.txt"]
    assert elsewhere.is_ours()

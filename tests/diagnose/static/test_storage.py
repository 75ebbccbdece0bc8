"""Check of the dataset's storage, on real files."""

import os
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.diagnose import machine_checks
from autotune.diagnose.findings import Severity
from autotune.diagnose.machine_checks import ReadingRate, Reads, check_storage, reading_rate
from autotune.diagnose.subject import Subject
from autotune.measure.host import is_network, is_rotating
from tests.diagnose.static.problems import problem_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Folder of a dataset: 30 files in two folders."""
    folder = tmp_path / "corpus"
    for place in ("a", "b"):
        (folder / place).mkdir(parents=True)
        for number in range(15):
            (folder / place / f"{number}.wav").write_bytes(os.urandom(20_000))
    return folder


def look_at(folder: Path, config: str) -> Subject:
    """Return the look at a problem of a config."""
    return Subject(problem=problem_of(folder, config), clock=SystemClock())


def test_the_dataset_is_found_and_read(tmp_path: Path, data: Path) -> None:
    """Its key, its files and size, the file system, and a rate; outputs and what is inside it do not count again."""
    config = f"data: {{dataset_path: {data}, train_dir: {data}/a}}\ncheckpoint_dir: {tmp_path}\n"
    result = check_storage(look_at(tmp_path, config))
    assert result.sentence.startswith("data.dataset_path: 30 files, 0.00 GiB")
    assert "MB/s" in result.sentence
    assert result.issues == ()


@pytest.mark.parametrize("written", ["corpus", "./corpus/", "corpus/*/*.wav"])
def test_paths_are_relative_to_the_config_too(tmp_path: Path, data: Path, written: str) -> None:
    """And a pattern stands for its folder."""
    look = look_at(tmp_path, f"data_dir: '{written}'\n")
    assert [(place.key, place.path, len(place.files)) for place in look.places or ()] == [("data_dir", data, 30)]


@pytest.mark.parametrize("written", ["${oc.env:DATA}", "<root>/wavs", ".", "..", "/", "*.wav", "{config}"])
def test_templates_and_the_folders_of_the_project_are_no_dataset(tmp_path: Path, written: str) -> None:
    """Nothing is read where it is not known what a value stands for."""
    assert look_at(tmp_path, f"data_dir: '{written}'\n").places == ()


def test_a_dataset_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """An absolute path of data that is not there; words, templates, patterns and outputs are none."""
    config = "data_path: /no/such/corpus\ntrain: train\nwav_dir: ${root}/wavs\noutput_dir: /no/such/place\n"
    result = check_storage(look_at(tmp_path, config))
    (issue,) = result.issues
    assert issue.severity is Severity.ERROR
    assert issue.sentence == "data_path is /no/such/corpus, which does not exist on this machine."
    assert issue.place == f"{tmp_path / 'config.yaml'}:1"


def test_without_a_dataset_it_says_why(tmp_path: Path) -> None:
    """No config, or one that names no data."""
    assert "no config" in check_storage(Subject(problem=None, clock=SystemClock())).why_not
    assert "names no dataset" in check_storage(look_at(tmp_path, "batch_size: 4\n")).why_not


def test_a_sample_says_what_came_from_memory(tmp_path: Path, data: Path) -> None:
    """What has just been written is in the page cache, where the file system tells; files that are gone are counted."""
    files = [(path, 20_000) for path in sorted(data.rglob("*.wav"))]
    rate = reading_rate([*files, (data / "gone.wav", 1)], SystemClock())
    assert rate.disk.files + rate.cache.files == 30
    assert rate.disk.size_bytes + rate.cache.size_bytes == 30 * 20_000
    assert rate.cache.files == (30 if rate.knows_cache else 0)


def test_links_to_files_are_read_and_a_file_system_that_hangs_is_named(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset may be made of links; one on a server that is gone ends the check and not the diagnosis."""
    links = tmp_path / "links"
    links.mkdir()
    for path in (data / "a").iterdir():
        (links / path.name).symlink_to(path)
    look = look_at(tmp_path, f"data_dir: {links}\n")
    assert look.places is not None
    rate = reading_rate(look.places[0].files, SystemClock())
    assert rate.disk.files + rate.cache.files == 15
    look = look_at(tmp_path, f"data_dir: {links}\n")
    monkeypatch.setattr("autotune.diagnose.subject.in_time", lambda _question: None)
    (issue,) = check_storage(look).issues
    assert issue.severity is Severity.ERROR


def test_a_network_and_a_slow_disk_are_named(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do: the dataset is small enough for memory."""
    slow = ReadingRate(disk=Reads(files=20, size_bytes=400_000, duration_s=1.0), cache=Reads(), knows_cache=True)
    monkeypatch.setattr(machine_checks, "reading_rate", lambda _files, _clock: slow)
    (issue,) = check_storage(look_at(tmp_path, f"data_dir: {data}\n")).issues
    assert "gave 0 MB/s and 20 files/s from the disk (20 files), which is slow" in issue.sentence
    assert "Cache the dataset in memory" in issue.recommendations[0].sentence
    monkeypatch.setattr(machine_checks, "file_system", lambda _path: "nfs4")
    (issue,) = check_storage(look_at(tmp_path, f"data_dir: {data}\n")).issues
    assert "on another machine (nfs4)" in issue.sentence


def test_file_systems_of_networks_are_told_by_their_names() -> None:
    """Those that people mount; local ones, containers' and memory's are none."""
    assert all(map(is_network, ("nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "fuse.sshfs", "fuse.gcsfuse")))
    assert not any(map(is_network, ("ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuse.fuse-overlayfs", "fuseblk")))


def test_whether_a_disk_rotates_is_known_or_not_and_never_raises(tmp_path: Path) -> None:
    """A file, and one that is not there."""
    assert is_rotating(tmp_path) in (True, False, None)
    assert is_rotating(tmp_path / "gone") is None

"""Search for files that some process has open for writing."""

from pathlib import Path

from autotune.measure.processes import files_being_written


def test_files_that_are_open_for_writing_are_found(tmp_path: Path) -> None:
    """Those that are only read, or closed again, are none."""
    names = ("written", "added to", "read", "closed")
    for name in names:
        (tmp_path / name).touch()
    with (tmp_path / "written").open("r+b"), (tmp_path / "added to").open("ab"), (tmp_path / "read").open("rb"):
        found = files_being_written()
    inodes = {(about.st_dev, about.st_ino): name for name in names for about in [(tmp_path / name).stat()]}
    assert sorted(name for file, name in inodes.items() if file in found) == ["added to", "written"]

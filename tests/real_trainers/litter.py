"""Files that appear or change: in a project, in a home folder, and in the folders for temporary files."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

DEEPEST = 3
"""Levels of the folders for temporary files that are looked at."""


def tree(root: Path) -> dict[str, str]:
    """Hash each file below a folder, by its relative name; autotune's own folder is left out."""
    found = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name != ".autotune"]
        for name in files:
            path = Path(folder, name)
            whole = path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(root))] = hashlib.sha256(whole).hexdigest()
    return found


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Name what appeared (+), is gone (-) or changed (~); folders that are wholly new stand for their files."""
    old_folders = {".", *(str(parent) for name in before for parent in Path(name).parents)}
    changes = set()
    for name in before.keys() | after.keys():
        if name not in after:
            changes.add(f"-{name}")
        elif name not in before:
            new = [str(parent) for parent in Path(name).parents if str(parent) not in old_folders]
            changes.add(f"+{new[-1]}/" if new else f"+{name}")
        elif before[name] != after[name]:
            changes.add(f"~{name}")
    return sorted(changes)


class TemporaryFiles:
    """Files of one group of processes in the system's folders for temporary files.

    Others use these folders at the same time, so files are told apart by their group id, which the processes of one
    trainer have to themselves. Only the superuser can give processes such a group; for others nothing is listed.

    Args:
        own: Folders of this command, which are left out.
    """

    def __init__(self, *own: Path) -> None:
        self.group = 1_000_000 + os.getpid() if os.geteuid() == 0 else None
        self._own = own
        self._roots = [root for root in (Path(tempfile.gettempdir()), Path("/dev/shm")) if root.is_dir()]

    def left(self) -> list[Path]:
        """List files and folders of the group, the outermost ones."""
        if self.group is None:
            return []
        return [path for root in self._roots for path in self._of_group(root, DEEPEST)]

    def remove(self) -> None:
        """Remove them."""
        for path in self.left():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _of_group(self, folder: Path, levels: int) -> Iterator[Path]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        for entry in entries:
            path = Path(entry.path)
            if path in self._own:
                continue
            try:
                of_group = entry.stat(follow_symlinks=False).st_gid == self.group
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            if of_group:
                yield path
            elif is_folder and levels > 1:
                yield from self._of_group(path, levels - 1)

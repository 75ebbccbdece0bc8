"""Files that appear or change in a project or in a home folder."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path


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

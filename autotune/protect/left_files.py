"""Files that trials have left around them, told by what changes when anybody touches a file."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from autotune.files import create_private, make_private_folder, read_beginning
from autotune.protect.kept_file import Stamp

FORMAT = 1
_LARGEST_BYTES = 1 << 22


class LeftFiles:
    """Record of the files that the trials of earlier searches have left.

    A time alone would not tell them from a file that the user puts there meanwhile.

    Args:
        path: Its file; need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[Path, Stamp]:
        """Return the files with their stamps; none if there is no record, or it cannot be read."""
        try:
            data = json.loads(read_beginning(self._path, _LARGEST_BYTES) or b"{}")
            if data.get("format") != FORMAT:
                return {}
            # Only compared: a wrong stamp makes the file the user's.
            return {Path(name): tuple(stamp) for name, stamp in data["files"].items()}
        except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
            return {}

    def write(self, files: Mapping[Path, Stamp]) -> None:
        """Write the record anew, if that is possible: what is missing in it is the user's."""
        if not files and not self._path.exists():
            return
        text = json.dumps({"format": FORMAT, "files": {os.fspath(path): stamp for path, stamp in files.items()}})
        with contextlib.suppress(OSError, ValueError):
            make_private_folder(self._path.parent)
            beside = self._path.with_suffix(".new")
            create_private(beside, text.encode())
            beside.replace(self._path)

"""Copy of the step observer, for the import path of a trainer."""

import re
from pathlib import Path

from autotune.files import create_private, make_private_folder

_TRAINEE = Path(__file__).parents[1] / "trainee"
_INJECTED = "_autotune_trainee"
_OWN_IMPORT = re.compile(r"^( *)from autotune\.trainee\b", re.MULTILINE)


def copy_observer(folder: Path) -> None:
    """Copy the step observer under a name that no trainer imports, so that autotune itself is not importable there.

    Args:
        folder: Folder that is put on the trainer's import path; made if it does not exist.

    Raises:
        OSError: It cannot be made or written to.
    """
    package = folder / _INJECTED
    make_private_folder(folder)
    make_private_folder(package)
    for source in _TRAINEE.glob("*.py"):
        place = folder if source.name == "sitecustomize.py" else package
        text = source.read_text(encoding="utf-8")
        create_private(place / source.name, _OWN_IMPORT.sub(rf"\1from {_INJECTED}", text).encode())

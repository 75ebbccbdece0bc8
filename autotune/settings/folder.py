"""Folder that a section's command runs in: the one that it records, or of a section that records none its project's."""

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from autotune.errors import ConfigError
from autotune.folders.state_folder import project_folder
from autotune.settings.paths import path_of
from autotune.settings.schema import Section
from autotune.settings.script import find_script, own_words
from autotune.settings.text.keys import shown
from autotune.settings.text.scalars import new_scalar


def command_folder(config: Path, section: Section, command: Sequence[str] | None) -> tuple[Path, str | None]:
    """Find the folder that the command of a section runs in; that of the shell where there is no command.

    Links are resolved first, so that it is the same one by whatever name the config is reached, and moves with it.

    Returns:
        The folder, absolute, which need not exist; and a sentence that says why it is this one, None where the section
        records it.

    Raises:
        ConfigError: The section names no path.
    """
    if section.source is None or (section.folder is None and command is None):
        return Path.cwd(), None
    beside = Path(os.path.realpath(section.source.document.name)).parent
    if section.folder is None:
        return _found(config, command or (), beside)
    named = path_of(section.folder, beside)
    if named is None:
        raise ConfigError(
            f"{shown(section.folder)} is no path",
            where=section.place("folder"),
            remedy="Name a folder, as in: folder: ..",
        )
    return Path(os.path.realpath(named)), None


def _found(config: Path, words: Sequence[str], beside: Path) -> tuple[Path, str]:
    """Return the folder of a section that records none: the first one of its project that has the command's script.

    It is looked for in the project's folder, in those above the config, and in the shell's if that is part of the
    project: never in another project, whose script may have the same name. Where nothing but the config tells what its
    project is, a shell's folder that holds the config is part of it. Of a command without such a script it is the first
    folder with a file that the command names; of one that names none, the shell's or the project's.
    """
    root, here, real = project_folder(config), Path.cwd(), Path(os.path.realpath(config))
    above = [folder for folder in real.parents if folder != root and folder.is_relative_to(root)]
    is_unmarked = root == real.parent and not os.path.lexists(root / ".git")
    own_here = [here] if here.is_relative_to(root) or (is_unmarked and root.is_relative_to(here)) else []
    folders, script = [root, *above, *own_here], words[own_words(words) - 1]
    with_script = ((folder, script) for folder in folders if _has_script(words, folder))
    with_file = ((folder, word) for folder in folders for word in words if _has_file(word, folder))
    path, name = next(chain(with_script, with_file), ([*own_here, root][0], ""))
    why = f"where {name} is" if name else "the folder of the config's project" if path == root else "where you are"
    likely, whose = path, ""
    if not name and script.endswith(".py") and not os.path.isabs(script):
        why += f"; {script} is not there"
        if _has_script(words, here):  # perhaps another project's
            likely, whose = here, ", for the folder that you are in,"
    line = f"folder: {new_scalar(os.path.relpath(likely, beside))}"
    return path, (
        "The autotune section does not say in which folder its command runs. "
        f"It runs in {path}, {why}. To settle it, add{whose} this line to the section:  {line}"
    )


def _has_script(words: Sequence[str], folder: Path) -> bool:
    path = find_script(words, folder).path
    return path is not None and not os.path.isabs(words[own_words(words) - 1])


def _has_file(word: str, folder: Path) -> bool:
    return "{" not in word and not os.path.isabs(word) and os.path.isfile(folder / word)

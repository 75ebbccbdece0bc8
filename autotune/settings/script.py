"""Script that a command starts, read as text and never executed: it tells which words the trainer understands."""

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.files import read_beginning
from autotune.settings.paths import path_of, real_path

_LARGEST_BYTES = 2**20
_SHORT = re.compile(r"-[A-Za-z][\w-]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_LONG = re.compile(r"--[A-Za-z][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Script:
    """Source text of a trainer.

    Attributes:
        path: Its file; None if the command starts no Python script or module that could be found.
        text: Its text; empty if there is none.
    """

    path: Path | None = None
    text: str = ""

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree of the text; an empty one for a text that is no Python."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module(body=[], type_ignores=[])

    @cached_property
    def imported(self) -> dict[str, str]:
        """Whole names of what the text imports, by the names that it has there: ``{"main": "hydra.main"}``."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    top = name.name.partition(".")[0]  # `import hydra.utils` is a name for hydra
                    found[name.asname or top] = name.name if name.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        return found

    @cached_property
    def long_options(self) -> dict[str, str]:
        """Long names of options that take one value, by their short ones: ``{"-b": "--batch-size"}``.

        They are read from calls such as ``add_argument("-b", "--batch-size")`` of argparse and ``option(...)``
        of click. An option that is declared in several ways is left out.
        """
        found: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call):
                continue
            names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            long = next((name for name in names if _LONG.fullmatch(name)), None)
            for short in filter(_SHORT.fullmatch, names):
                found.setdefault(short, set()).add(long if long and _takes_a_value(node) else "")
        return {short: long for short, (long, *more) in found.items() if long and not more}

    def imports(self, package: str) -> bool:
        """Return whether the text imports a package, or something out of it."""
        return any(name.partition(".")[0] == package for name in self.imported.values())


def _takes_a_value(call: ast.Call) -> bool:
    """Return whether an option that is declared by a call takes exactly one value, as far as its keywords tell."""
    said = {one.arg: one.value.value for one in call.keywords if one.arg and isinstance(one.value, ast.Constant)}
    unclear = {one.arg for one in call.keywords} & {
        "action",
        "nargs",
        "is_flag",
        "count",
        "multiple",
        "flag_value",
        None,
    }
    return unclear <= {
        name for name in ("action", "is_flag", "count", "multiple") if said.get(name) in ("store", False)
    }


def own_words(words: Sequence[str]) -> int:
    """Return the index of the trainer's own words: after the script, or the module's name, or else the program."""
    for position, word in enumerate(words):
        if word.endswith(".py"):
            return position + 1
        if position and words[position - 1] == "-m" and _MODULE.fullmatch(word) and not words[0].endswith(".sh"):
            return position + 1
    return 1


def find_script(words: Sequence[str], cwd: Path) -> Script:
    """Find the script or module that a command starts, and read it.

    Args:
        words: The command, split.
        cwd: The directory that it is started in.
    """
    start = own_words(words)
    for path in _candidates(words[start - 1] if words else "", cwd):
        real = real_path(path)
        if real is not None and os.path.isfile(real):
            return Script(path=path, text=read_beginning(real, _LARGEST_BYTES).decode("utf-8", "replace"))
    return Script()


def _candidates(word: str, cwd: Path) -> Iterator[Path]:
    if word.endswith(".py"):
        names: tuple[str, ...] = (word,)
    else:
        module = word.replace(".", "/")
        names = (f"{module}.py", f"{module}/__main__.py", f"src/{module}.py", f"src/{module}/__main__.py")
    for name in names:
        path = path_of(name, cwd)
        if path is not None:
            yield path

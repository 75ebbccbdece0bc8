r"""Hydra trainers: recognition by their script, and the overrides on their command line.

A word ``data.batch_size=64`` (also with ``+`` or ``++`` in front) is an override. Hydra writes its log, its copy of
the config and, with ``hydra.job.chdir``, everything else into ``hydra.run.dir``, which is an override too. The grammar
is that of hydra.cc, "Override grammar/Basic": outside of quotes only letters of ASCII, digits, blanks and
``/-\+.$%*@?|:`` are text; inside of quotes a quote is escaped, and backslashes right in front of one are doubled.
"""

import ast
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.records import Scalar
from autotune.settings.script import Script, find_script, own_words

RUN_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
"""Keys of the folder that a run, or a series of runs, writes into."""

OWN_FLAGS = frozenset(
    (
        *("cfg", "config-dir", "config-name", "config-path", "experimental-rerun", "help", "hydra-help", "info"),
        *("multirun", "package", "resolve", "run", "shell-completion", "version"),
    )
)
"""Names of the flags that Hydra takes for itself."""

_MAIN = ("hydra.main", "nemo.core.config.hydra_runner")  # NeMo's is a `hydra.main` with a schema
_BARE = re.compile(r"[\w/.:@%+-]*", re.ASCII)
_WORD = re.compile(r"(?!(?:true|false|null|inf|nan)$)[A-Za-z_./][\w/.:@%+-]*", re.ASCII | re.IGNORECASE)
_OVERRIDE = re.compile(r"(?:\+{0,2}|~)[A-Za-z_$][^=\s]*=.*|~[A-Za-z_].*", re.DOTALL)
_RUN_FOLDER = re.compile(r"\+{0,2}hydra\.(?:run|sweep)\.dir=.*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class HydraMain:
    """Decorator ``hydra.main`` of a script.

    Attributes:
        config_folder: The folder of its configs; None if there is none, or it is not known.
        config_name: The name of its primary config, without a suffix; None if it is not known.
    """

    config_folder: Path | None
    config_name: str | None

    @property
    def groups(self) -> frozenset[str]:
        """Names of the groups of configs right below the folder."""
        try:
            with os.scandir(self.config_folder or "") as entries:
                return frozenset(entry.name for entry in entries if entry.is_dir())
        except OSError:
            return frozenset()


def hydra_main(script: Script) -> HydraMain | None:
    """Return the ``hydra.main`` of a script; None if it has none."""
    for node in ast.walk(script.tree):
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Name | ast.Attribute) and _whole_name(called, script.imported) in _MAIN:
            given = {word.arg: word.value for word in node.keywords} if isinstance(node, ast.Call) else {}
            folder, name = _text(given.get("config_path")), _text(given.get("config_name"))
            return HydraMain(
                config_folder=script.path.parent / folder if script.path and folder is not None else None,
                config_name=None if name is None else re.sub(r"\.ya?ml$", "", name),
            )
    return None


def uses_hydra(words: Sequence[str], cwd: Path) -> bool:
    """Return whether a command starts a script with a ``hydra.main``."""
    return hydra_main(find_script(words, cwd)) is not None


def with_run_folder(argv: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the command of a Hydra trainer with the folder that it writes into; the user's own is left out.

    Args:
        argv: The command, placeholders filled in.
        folder: The folder, for single runs and for series of them.
    """
    start = own_words(argv)
    without = (*argv[:start], *(word for word in argv[start:] if not _RUN_FOLDER.fullmatch(word)))
    return with_overrides(without, [f"{key}={hydra_text(os.fspath(folder))}" for key in RUN_FOLDERS])


def with_overrides(argv: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a Hydra trainer with more overrides, which count where they repeat a key."""
    start = own_words(argv)
    own = argv[start:]
    # Overrides have to stand together: behind a flag, argparse takes no more of them.
    behind = max((i + 1 for i, word in enumerate(own) if _OVERRIDE.fullmatch(word)), default=len(own))
    return (*argv[:start], *own[:behind], *added, *own[behind:])


def hydra_text(text: str) -> str:
    """Return a text as the value of an override, in quotes if it has to be."""
    if _BARE.fullmatch(text):
        return text
    quoted = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return "'" + quoted.replace("${", "\\${") + "'"


def hydra_value(value: Scalar) -> str:
    """Return a value as an override has it; a text that looks like another type is quoted."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    text = hydra_text(value)
    return f"'{text}'" if text == value and not _WORD.fullmatch(text) else text


def _whole_name(node: ast.expr, imported: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return imported.get(node.id)
    if isinstance(node, ast.Attribute) and (above := _whole_name(node.value, imported)):
        return f"{above}.{node.attr}"
    return None


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

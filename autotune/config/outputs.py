"""Output keys of a config, detected by name, and their paths in a trial.

Trials must never overwrite checkpoints, so any name that may mean an output counts; ``redirect_except`` excludes keys.
The folder tree is kept: equal paths stay equal, nested ones nested.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config.document import Document, Leaf
from autotune.config.keys import did_you_mean
from autotune.errors import CannotEditYaml, ConfigError

_WHAT = (
    "artifacts?|checkpoints?|chkpts?|ckpts?|dumps?|events?|exps?|experiments?|logs?|logging|out|outputs?|profiles?|results?"
    "|runs?|saves?|saved_models?|save_model|snapshots?|summary|summaries|tb|tensorboard|wandb|work"
)
_PLACE = "dir|directory|folder|path|root|file|filename"
_OUTPUT = re.compile(rf"(?:.*_)?(?:{_WHAT})_?(?:{_PLACE})|outf")  # PyTorch's examples have an --outf
_PLACE_ALONE = re.compile(_PLACE)  # `logging: {dir: ...}` is a logging_dir
_NO_PATH = re.compile("none|null|nil|~|true|false|yes|no|on|off", re.IGNORECASE)
"""Null and boolean words that YAML reads as text: in Python's spelling, or quoted."""

_QUOTED = re.compile(r"""(?P<quote>['"])(?P<path>[^'"\\]+)(?P=quote)""")
_READ_OR_WRITTEN = re.compile(
    r"(?:.*_)?(?:checkpoints?|chkpts?|ckpts?|saved_models?|snapshots?)_(?:path|file|filename)"
)
# `project: runs` is YOLO's; a tracker's project is not a path
_OUTPUT_ALONE = re.compile(
    "artifacts|checkpoints|chkpts|ckpts|logs|out|outputs?|project|results|runs|save|save_data|save_model|snapshots|tensorboard"
)
_MODEL_FILE = re.compile(r"[\w.-]+\.(?:bin|ckpt|h5|keras|npz|onnx|pickle|pkl|pt|pth|safetensors)")
_BUILT_ON = re.compile(r"\$\{(?P<key>[\w.]+)\}/[^$]+")
_PATH = re.compile(r"\.{0,2}/.*|[^/:]+/[^:]*", re.DOTALL)


# Keys that make a trainer upload something.
_UPLOADS = re.compile(r"(?:.*_)?push_to_hub|(?:.*_)?upload(?:_(?:artifacts|checkpoints?|models?))?")
_SERVER = re.compile(r"(?:mlflow_)?tracking_ur[il]")
_TRACKER_MODE = re.compile(r"(?:.*_)?(?:wandb|swanlab|neptune|comet)_mode")


# A checkpoint to start from is read, not written; so are features of a data set, dumped by an earlier step.
_READ = re.compile(
    r"(?:.*_)?(?:finetune|from|init|input|load|pretrain|pretrained|reload|restore|resume|source|teacher|warm)(?:_.*)?"
    r"|(?:.*_)?(?:train|dev|valid|val|eval|test)_dump_?(?:dir|root|path)"
)


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Output keys: redirected into a trial's folder, left with the reason, and those that start uploads."""

    redirected: tuple[str, ...]
    left: Mapping[str, str]
    uploads: tuple[str, ...] = ()


def find_outputs(
    document: Document,
    redirect: Sequence[str],
    redirect_except: Sequence[str],
    where: str,
    ignore: str,
    *,
    overridable: bool = False,
) -> Outputs:
    """Find the output paths of a config by their names.

    Args:
        redirect: The user's additional output keys.
        redirect_except: Keys that the user excludes, and flags (``--outdir``).
        where: Place of the ``autotune:`` section, for errors.
        ignore: Top-level key of that section.
        overridable: Whether trials get overrides: then ``${root}/logs`` is redirected if its root is not an output.
    """
    redirected: list[str] = []
    left: dict[str, str] = {}
    uploads: list[str] = []
    requested = {_named_leaf(document, key, where).dotted for key in redirect}
    excepted = {_named_leaf(document, key, where).dotted for key in redirect_except if not key.startswith("--")}
    for leaf in document.leaves:
        if leaf.path[0] == ignore:
            continue
        if _uploads(leaf):
            uploads.append(leaf.dotted)
        if leaf.dotted not in requested and (not _looks_like_output(leaf) or leaf.dotted in excepted):
            continue
        why = None if overridable and _has_own_suffix(leaf) else _why_not_redirected(leaf)
        if why is None:
            redirected.append(leaf.dotted)
        elif leaf.dotted in requested:
            raise ConfigError(
                f"{leaf.dotted} cannot be redirected: {why}",
                where=where,
                remedy="Remove it from redirect, or write it as a plain path.",
            )
        else:
            left[leaf.dotted] = why
    return Outputs(redirected=tuple(redirected), left=left, uploads=tuple(uploads))


def is_output_flag(flag: str, path: str) -> bool:
    """Return whether a flag with this value is an output path."""
    return bool(path) and _is_output([_snake(part) for part in flag.removeprefix("--").split(".")], path)


def output_flags(words: Sequence[str], redirect_except: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Return flag, with any ``=``, and path of each output flag in a command, by the index of the path's word."""
    found: dict[int, tuple[str, str]] = {}
    for place, (word, following) in enumerate(zip(words, [*words[1:], ""], strict=True)):
        flag, equals, value = word.partition("=")
        path = value if equals else following
        if not flag.startswith("--") or flag in redirect_except or path.startswith("-") or "{" in path:
            continue
        if is_output_flag(flag, path):
            found[place if equals else place + 1] = (f"{flag}{equals}", path)
    return found


def non_empty_outputs(document: Document, keys: Iterable[str], *folders: Path) -> tuple[str, ...]:
    """Return the output keys whose path is not empty."""
    places = {key: [path_of(unquoted(document.leaf(key).text), folder) for folder in folders] for key in keys}
    return tuple(key for key, found in places.items() if any(path and is_non_empty(path) for path in found))


def unquoted(text: str) -> str:
    """Return an output path without Python quotes."""
    match = _QUOTED.fullmatch(text)
    return match["path"] if match else text


def written_like(path: str, text: str) -> str:
    """Return a path in Python quotes if the text that it replaces has them."""
    return repr(path) if _QUOTED.fullmatch(text) else path


def redirected_path(value: str, outputs: Path) -> str:
    """Return the path of an output in a trial, below `outputs`; a final slash is kept, as trainers append to it."""
    value = unquoted(value)
    parts = [part for part in value.split("/") if part not in ("", ".")]
    # Template syntax must not be expanded again.
    inside = [re.sub(r"[^\w.=@,+~ -]", "_", "_up" if part == ".." else part) for part in parts]
    path = os.fspath(outputs.joinpath(*inside))
    return f"{path}/" if value.endswith("/") else path


def _looks_like_output(leaf: Leaf) -> bool:
    if not isinstance(leaf.value, str) or leaf.value in ("", "???") or not isinstance(leaf.path[-1], str):
        return False
    return _is_output(_words(leaf), leaf.value)


def _is_output(words: Sequence[str], value: str) -> bool:
    if _READ.fullmatch("_".join(words)):
        return False
    if _OUTPUT_ALONE.fullmatch(words[-1]):
        # `output: output` is a folder, `save: model.pt` a file.
        return any(kind.fullmatch(value) for kind in (_PATH, _OUTPUT_ALONE, _MODEL_FILE))
    if _PLACE_ALONE.fullmatch(words[-1]) and len(words) > 1:
        name = "_".join(words[-2:])
        return bool(_OUTPUT.fullmatch(name)) and not _READ_OR_WRITTEN.fullmatch(name)
    return bool(_OUTPUT.fullmatch(words[-1]))


def _uploads(leaf: Leaf) -> bool:
    words = _words(leaf)
    if leaf.value is True:
        return bool(_UPLOADS.fullmatch(words[-1]))
    if not isinstance(leaf.value, str):
        return False
    return bool(
        (_SERVER.fullmatch(words[-1]) and "://" in leaf.value and not leaf.value.startswith(("file:", "sqlite:")))
        or (_TRACKER_MODE.fullmatch("_".join(words)) and leaf.value == "online")
    )


def _words(leaf: Leaf) -> list[str]:
    """Return the parts of a key path, splitting keys with dots too."""
    return [_snake(word) for part in leaf.path for word in str(part).split(".")]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")


def _why_not_redirected(leaf: Leaf) -> str | None:
    if not isinstance(leaf.value, str):
        return "it is not a path"
    if _NO_PATH.fullmatch(leaf.text):
        return f"{leaf.text} is not a path"
    if leaf.computed:
        # `<output_folder>/save` and `${exp_dir}/ckpt` follow the folder that they are built on.
        return "it is built on another key" if leaf.text.startswith(("<", "${", "{")) else None
    return leaf.why_fixed


def _has_own_suffix(leaf: Leaf) -> bool:
    match = _BUILT_ON.fullmatch(leaf.text) if leaf.computed else None
    return match is not None and not _OUTPUT.fullmatch(_snake(match["key"].rpartition(".")[2]))


def _named_leaf(document: Document, key: str, where: str) -> Leaf:
    try:
        return document.leaf(key)
    except CannotEditYaml as error:
        raise ConfigError(
            f"{key} cannot be redirected: {error.message}",
            where=where,
            remedy=did_you_mean(key, document.scalars),
        ) from error


# File system queries for texts that may be paths: config values, words of a command.


_LONGEST_BYTES = 4096
"""PATH_MAX of Linux, including the final zero byte."""

_PATH_ERRORS = (OSError, ValueError, RecursionError)  # RecursionError: a chain of a thousand links


def path_of(text: str, folder: Path) -> Path | None:
    """Return the path that a text names, possibly with ``~``; None if it cannot be one."""
    try:
        usable = 0 < len(os.fsencode(text)) < _LONGEST_BYTES and "\0" not in text
        return folder / os.path.expanduser(text) if usable else None
    except _PATH_ERRORS:
        return None


def real_path(path: Path) -> Path | None:
    """Resolve links in the existing part of a path; None if it cannot be one."""
    try:
        return Path(os.path.realpath(path))
    except _PATH_ERRORS:
        return None


def exists(path: Path) -> bool:
    """Return whether a path exists and is visible to this user."""
    return os.path.exists(path)  # `Path.exists` raises for too long names and unreadable folders


def is_program(path: Path) -> bool:
    """Return whether an executable file has this path."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to the same existing file."""
    try:
        return os.path.samefile(one, other)
    except _PATH_ERRORS:
        return False


def is_non_empty(path: Path) -> bool:
    """Return whether a path is a file or a non-empty, readable folder."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    except NotADirectoryError:
        return os.path.exists(path)  # a file, or a path through one
    except _PATH_ERRORS:
        return False


# Experiment trackers are disabled: short trials must not fill dashboards, uploads must not slow trials down.


def quiet_trackers(outputs: Path) -> Mapping[str, str]:
    """Return the environment variables that disable experiment trackers, or keep them in a trial's folder."""
    neptune = str(outputs / "neptune")
    return {
        "WANDB_MODE": "disabled",
        "MLFLOW_TRACKING_URI": str(outputs / "mlflow"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "COMET_MODE": "DISABLED",
        "COMET_START_ONLINE": "false",
        "COMET_OFFLINE_DIRECTORY": str(outputs / "comet"),
        "NEPTUNE_MODE": "offline",
        "NEPTUNE_DATA_DIRECTORY": neptune,
        "NEPTUNE_LOG_DIRECTORY": neptune,
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "disabled",
    }

"""Command line of the trainer: split once, filled in token by token, never run through a shell."""

import ast
import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.config.document import Document, Leaf
from autotune.config.keys import closest, shown
from autotune.config.outputs import exists, is_program, path_of, real_path
from autotune.config.secrets import is_secret_name
from autotune.errors import CannotEditYaml, CommandError, ConfigError
from autotune.files import read_beginning

_FIELD = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_SWITCH_FIELD = re.compile(r"\{[^{}]*\?[^{}]*\}")
_OVERRIDE = re.compile(r"(?P<key>[^-{}=][^{}=]*)=(?P<field>\{[^{}?]+\})")
_OPERATORS = "|&;<>()"
IN_A_SHELL = """put the line into a script and name that, or name a shell yourself:
  bash -c 'python train.py --config "$0" | tee log' {config}"""
"""Remedy for a command that needs a shell."""


def split_command(text: str, where: str) -> tuple[str, ...]:
    """Split a command as a POSIX shell would; refuse syntax that only a shell could carry out.

    Args:
        text: The command; a backslash at the end of a line continues it.

    Raises:
        ConfigError: It is empty, has an open quote, or needs a shell: pipes, redirections, ``&&``, variables,
            substitutions, a second line, variables set in front.
    """
    text = text.strip().replace("\\\r\n", " ").replace("\\\n", " ")
    syntax = _shell_syntax(text)
    if syntax is not None:
        raise ConfigError(
            f"the command holds {syntax}, which only a shell understands, and none runs it",
            where=where,
            remedy=f"Quote it if it is meant literally, {IN_A_SHELL}",
        )
    try:
        tokens = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"the command cannot be split: {str(error).lower()}", where=where, remedy="Close the quote."
        ) from error
    if not tokens:
        raise ConfigError(
            "the command is empty", where=where, remedy="Write for example: python train.py --config {config}"
        )
    if re.match(r"[A-Za-z_]\w*=", tokens[0]):
        name, _, value = tokens[0].partition("=")
        raise ConfigError(
            f"the command sets {name} in front, which only a shell understands",
            where=where,
            remedy=f"Set it before: export {name}=...; trials get the environment of whoever starts the search."
            if is_secret_name(name)
            else f"Put it into the autotune section: env: {{{name}: {value!r}}}",
        )
    return tokens


def fill_command(
    tokens: tuple[str, ...],
    *,
    config: Path,
    python: str,
    trial_config: Document,
    where: str,
    quote: Callable[[str], str] | None = None,
    further: Mapping[str, Path] | None = None,
    needs_values: bool = True,
) -> tuple[str, ...]:
    """Fill in the placeholders.

    Args:
        config: Value of ``{config}``: the trial's own copy.
        python: Value of ``{python}``: the interpreter that runs autotune.
        trial_config: The trial's config; ``{dotted.key}`` is the text of a scalar as it stands there. Of a switch,
            ``{dotted.key?--word}`` is the word if it is on, ``{!dotted.key?--word}`` if it is off, and
            ``{dotted.key!=8?--word=}`` the word and the value unless that is 8; a token that is left with nothing in it
            is left out.
        further: Values of ``{config:NAME}``: the copies of further configs.
        needs_values: Whether values reach the trainer through placeholders only, not as overrides or variables.
        quote: Writes a value where the word is an override of it, ``key={key}``; None leaves it as it is.

    Raises:
        ConfigError: An unknown placeholder or single brace, a word that no program can be given, or the config would
            never reach the trainer.
    """
    own = {"config": os.fspath(config), "python": python}
    own |= {f"config:{name}": os.fspath(path) for name, path in (further or {}).items()}
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        name = match["name"]
        if not name:
            raise ConfigError(
                f"the command holds a lone {match[0]}", where=where, remedy="Write {{ and }} for literal braces."
            )
        key, asks, word = name.partition("?")
        if asks and "!=" in key:
            key, _, usual = key.partition("!=")
            used.add(key)
            text = _leaf_of(key, trial_config, where).text
            return "" if text == usual else f"{word}{text}"
        if asks:
            used.add(key)
            wanted = not key.startswith("!")
            return word if _switch(key.removeprefix("!"), trial_config, where) is wanted else ""
        used.add(name)
        if name.startswith("config:") and name not in own:
            known = [f"{{{one}}}" for one in own if one.startswith("config:")]
            raise ConfigError(
                f"the command holds {{{name}}}, and there is no such file",
                where=where,
                remedy=f"There are {', '.join(known)}." if known else "Name the file in the section: files: [...]",
            )
        return own[name] if name in own else _leaf_of(name, trial_config, where).text

    def fill_token(token: str) -> str:
        override = _OVERRIDE.fullmatch(token) if quote is not None else None
        if quote is None or override is None:
            return _FIELD.sub(fill, token)
        return f"{override['key']}={quote(_FIELD.sub(fill, override['field']))}"

    filled = tuple(text for token in tokens if (text := fill_token(token)) or not _SWITCH_FIELD.fullmatch(token))
    if needs_values and not used - {"python"}:
        raise ConfigError(
            "the command names neither {config} nor a {key} of it, so no tuned value would reach the trainer",
            where=where,
            remedy="Put {config} where the command takes the config's path: --config {config}",
        )
    for word in filled:
        if not is_word(word):
            raise ConfigError(
                f"the command holds {shown(word)}, which no program can be given",
                where=where,
                remedy="Leave out the zero byte, or the half of a surrogate pair (\\ud800 to \\udfff).",
            )
    return filled


def takes_values(tokens: Sequence[str]) -> bool:
    """Return whether a command has a place for its config, or for a value of it."""
    return any(match["name"] not in (None, "", "python") for token in tokens for match in _FIELD.finditer(token))


def names_config(tokens: Sequence[str]) -> bool:
    """Return whether a command, placeholders not filled in, takes the path of its config: ``{config}``."""
    return any(match["name"] == "config" for token in tokens for match in _FIELD.finditer(token))


def is_word(text: str) -> bool:
    """Return whether a program can be given a text, as an argument or in its environment."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half a surrogate pair; not so a byte that is no text, which Python writes as one
        return False


def resolve_executable(program: str, cwd: Path, search_path: str | None = None) -> Path:
    """Return the path of a command's program; a bare name is looked up as the shell does it.

    Args:
        cwd: The working directory of the trials.
        search_path: The trials' ``PATH``; None for that of this process.

    Raises:
        CommandError: There is no such program, or it cannot be executed.
    """
    if os.sep in program:
        path = cwd / program
        if is_program(path):
            return path
        why = "cannot be executed" if exists(path) else "does not exist"
        remedy = f"Make it executable (chmod +x {shlex.quote(program)})." if os.path.isfile(path) else "Check the path."
        raise CommandError(f"{program} {why}", where=f"command, in {cwd}", remedy=remedy)
    found = shutil.which(program, path=search_path)
    if found is None:
        raise CommandError(
            f"there is no program {program} on the PATH",
            where="command",
            remedy="Activate the trainer's environment, or write the program's whole path.",
        )
    return cwd / found


def _switch(name: str, trial_config: Document, where: str) -> bool:
    value = _leaf_of(name, trial_config, where).value
    if not isinstance(value, bool):
        raise ConfigError(
            f"the command asks whether {name} is on, but it is {shown(value)}",
            where=where,
            remedy=f"Write {{{name}}} for its value; only true and false can be asked for.",
        )
    return value


def _leaf_of(name: str, trial_config: Document, where: str) -> Leaf:
    try:
        return trial_config.leaf(name)
    except CannotEditYaml as error:
        guess = closest(name, ("config", "python", *trial_config.scalars))
        raise ConfigError(
            f"the command holds {{{name}}}: {error.message}",
            where=where,
            remedy=(f"Did you mean {{{guess}}}? " if guess else "")
            + "Known are {config}, {python} and the config's keys; "
            "write {{ and }} for literal braces.",
        ) from error


def _shell_syntax(text: str) -> str | None:
    """Return the first part of a command that needs a shell, quotes respected; None if nothing does."""
    quote = ""
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and quote != "'":
            position += 2
            continue
        if quote:
            if character == quote:
                quote = ""
            elif quote == '"' and character in "$`":
                return text[position : position + 12].split()[0]
        elif character in "'\"":
            quote = character
        elif character == "\n":
            return "a second line"
        elif character in _OPERATORS or character in "$`" or (character == "~" and not text[:position][-1:].strip()):
            return re.match(r"[|&;<>()]+|\S+", text[position:])[0]  # type: ignore[index]  # not blank
        position += 1
    return None


_SHORT = re.compile(r"-[A-Za-z][\w-]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_LONG = re.compile(r"--[A-Za-z][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Script:
    """Source text of a trainer.

    Attributes:
        path: Its file; None if the command starts no Python script or module that could be found.
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
        of click. One of argparse that has no long name gets that which its help begins with, ``help="batch size for
        the loader"``, or its own letters. An option that is declared in several ways is left out.
        """
        found: dict[str, set[str]] = {}
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Call):
                continue
            names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            long = next((name for name in names if _LONG.fullmatch(name)), None)
            for short in filter(_SHORT.fullmatch, names):
                is_option = long or getattr(node.func, "attr", "") == "add_argument"
                name = long or _named_by_help(node) or f"-{short}"
                found.setdefault(short, set()).add(name if is_option and _takes_a_value(node) else "")
        return {short: long for short, (long, *more) in found.items() if long and not more}

    @cached_property
    def defaults(self) -> dict[str, int]:
        """Values of options that the text declares, by their long names: whole numbers, and switches that are off.

        They are read from ``add_argument("--workers", type=int, default=4)`` of argparse, ``option(...)`` of click, and
        the fields of a dataclass of which tyro or Transformers makes options; those of the latter's own are known. One
        that is declared in several ways is left out.
        """
        found: dict[str, set[int]] = {}
        overridden: set[str] = set()
        if "HfArgumentParser" in self.text and "TrainingArguments" in self.text:
            found = {"--dataloader_num_workers": {0}, "--per_device_train_batch_size": {8}}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                texts = (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))
                name = next(filter(_LONG.fullmatch, texts), None)
                given = {one.arg: getattr(one.value, "value", None) for one in node.keywords}
                is_switch = given.get("action") == "store_true" and given.get("default", False) is False
                default = False if is_switch else given.get("default")
                if getattr(node.func, "attr", "") == "set_defaults":  # the parser's, in the place of an option's
                    overridden |= {f"--{one}".replace("_", "-") for one in given if one}
                if name and isinstance(default, int) and (is_switch or _takes_a_value(node)):
                    found.setdefault(name, set()).add(default)
            elif isinstance(node, ast.ClassDef) and self._makes_options_of(node):
                for field in node.body:
                    default = getattr(getattr(field, "value", None), "value", None)
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and type(default) is int:
                        found.setdefault(f"--{field.target.id}", set()).add(default)
        alone = {name: default for name, (default, *more) in found.items() if not more}
        return {name: default for name, default in alone.items() if name.replace("_", "-") not in overridden}

    def _makes_options_of(self, node: ast.ClassDef) -> bool:
        is_data = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        return is_data and (self.imports("tyro") or "HfArgumentParser" in self.text)

    def imports(self, package: str) -> bool:
        """Return whether the text imports a package, or something out of it."""
        return any(name.partition(".")[0] == package for name in self.imported.values())


_HELP = re.compile(
    r"(?:the )?(?:(?P<batch>(?:mini-?)?batch[ -]?size)|num(?:ber of)? (?:data(?:[ -]?load(?:er|ing))? )?workers)"
    r"(?= *$| *[(,;:=]| for (?:the )?(?:data|load|train))",
    re.I,
)


def _named_by_help(call: ast.Call) -> str:
    """Return the long name of a known knob that an option's help begins with; empty if it begins with none."""
    text = next((getattr(one.value, "value", None) for one in call.keywords if one.arg == "help"), None)
    match = _HELP.match(text) if isinstance(text, str) else None
    return "" if match is None else "--batch-size" if match["batch"] else "--num-workers"


def _takes_a_value(call: ast.Call) -> bool:
    """Return whether an option takes one value: nothing says another shape."""
    plain = {"action": "store", "is_flag": False, "count": False, "multiple": False, "nargs": ..., "flag_value": ...}
    return all(
        one.arg is not None
        and (one.arg not in plain or (isinstance(one.value, ast.Constant) and one.value.value == plain[one.arg]))
        for one in call.keywords
    )


_SHELL = re.compile("(?:ba|da|k|z)?sh")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")


def own_words(words: Sequence[str]) -> int:
    """Return the index of the trainer's own words: after the script, or the module's name, or else the program."""
    for position, word in enumerate(words):
        if word.endswith(".py"):
            return position + 1
        is_module = position and words[position - 1] == "-m" and _MODULE.fullmatch(word)
        if is_module and word not in _LAUNCHERS and not words[0].endswith(".sh"):
            return position + 1
    return 1


def find_script(words: Sequence[str], cwd: Path) -> Script:
    """Find the script or module that a command starts, and read it.

    Of a shell script, of what is behind ``sh -c``, or of a target of a Makefile, it is the first that one of its lines
    starts.
    """
    start = own_words(words)
    for path in _candidates(words[start - 1] if words else "", cwd):
        text = _text(path)
        if text is not None:
            return Script(path=path, text=text)
    found = (find_script(line, cwd) for line in _lines(words, cwd) if own_words(line) > 1)
    return next((script for script in found if script.path is not None), Script())


def _lines(words: Sequence[str], cwd: Path) -> Iterator[list[str]]:
    """Yield the commands of a shell script, of ``sh -c``, or of a target of a Makefile, that a command runs."""
    name = next((word for word in words if word.endswith((".sh", ".bash"))), None)
    is_make = bool(words) and os.path.basename(words[0]) == "make"
    path = path_of("Makefile" if is_make else name or "", cwd)
    text = (_text(path) if path and (is_make or name) else None) or ""
    if is_make:
        target = re.escape(next((word for word in words[1:] if word[:1] != "-" and "=" not in word), "")) or "[\\w-]+"
        recipe = re.search(rf"^{target}[ \t]*:(?!=)[^\n]*\n((?:\t[^\n]*(?:\n|\Z))*)", text, re.MULTILINE)
        text = re.sub(r"^\t[@-]*", "", recipe[1], flags=re.MULTILINE) if recipe else ""
    if len(words) > 2 and _SHELL.fullmatch(os.path.basename(words[0])) and re.fullmatch("-[a-z]*c", words[1]):
        text = words[2]
    for line in text.replace("\\\n", " ").splitlines():
        with contextlib.suppress(ValueError):  # an open quote: part of something longer
            yield shlex.split(line, comments=True)


def _text(path: Path) -> str | None:
    real = real_path(path)
    if real is None or not os.path.isfile(real):
        return None
    return read_beginning(real, 2**20).decode("utf-8", "replace")


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

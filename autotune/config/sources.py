"""Source files of a trainer, parsed but never imported, and the part that runs in training.

A function or class counts as reached if its name is used. Not reached is what only evaluation names, and code under
``if __name__ == "__main__"`` of imported modules.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.config.command import takes_values
from autotune.config.outputs import path_of, real_path
from autotune.files import read_beginning
from autotune.frameworks import FRAMEWORKS
from autotune.records import Scalar

_MOST_FILES = 500
_MOST_BYTES = 4 << 20  # of a file that is searched for imports
_LARGEST_BYTES = 1 << 20  # of a parsed file: larger ones are not written by hand
_MOST_PARSED_BYTES = 2 << 20  # of all parsed files: a few seconds
_FRAMEWORKS = {*(name for row in FRAMEWORKS for name in (row.module, *row.built_on_it)), "accelerate", "flax"}
_IMPORT = re.compile(
    r"^[ \t]*(?:import[ \t]+([^\n#;(]+)|from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]+))", re.M
)
_NAME = re.compile(r"[^\W\d][\w.]*")


def trainer_files(words: Sequence[str], cwd: Path) -> tuple[Path, ...]:
    """Return the script that a command starts and its local imports; at most 500 files."""
    script = find_script(words, cwd)
    return tuple(sorted(_imported_files(script, cwd), key=lambda path: path != script.path))


def opens_by_name(words: Sequence[str], cwd: Path, configs: Iterable[Path]) -> bool:
    """Return whether a command names no config, but the trainer's source names all."""
    if takes_values(words):
        return False
    texts = [read_beginning(path, _MOST_BYTES) for path in trainer_files(words, cwd)]
    ends = (re.escape(os.fsencode(config.name)) for config in configs)
    return all(any(re.search(rb"""['"](?:[^'"\n]*/)?%b['"]""" % end, text) for text in texts) for end in ends)


def _imported_files(script: Script, cwd: Path) -> list[Path]:
    if script.path is None:
        return []
    roots = tuple(dict.fromkeys((str(script.path.parent), _package_parent(script.path), str(cwd))))
    found, waiting, seen = {str(script.path)}, [str(script.path)], set[str]()
    while waiting and len(found) < _MOST_FILES:
        names = set(_imports(waiting.pop(), roots)) - seen
        seen |= names
        new = {path for name in names for path in _files_of(name, roots)} - found
        found |= new
        waiting += sorted(new)
    return [Path(path) for path in sorted(found)[:_MOST_FILES]]


def _package_parent(script: Path) -> str:
    folder = script.parent
    while (folder / "__init__.py").is_file() and folder.parent != folder:
        folder = folder.parent
    return str(folder)


def _imports(path: str, roots: Sequence[str]) -> Iterator[str]:
    """Yield names of modules that a file may import, by matching lines: faster than parsing."""
    for plain, start, named in _IMPORT.findall(read_beginning(Path(path), _MOST_BYTES).decode("utf-8", "replace")):
        if plain:
            yield from _NAME.findall(plain)
            continue
        module = start.lstrip(".")
        package = _package(path, len(start) - len(module), roots) if start.startswith(".") else ""
        if package is not None:
            base = ".".join(filter(None, (package, module)))
            yield base
            yield from (f"{base}.{name}".lstrip(".") for name in _NAME.findall(named))


def _package(path: str, level: int, roots: Sequence[str]) -> str | None:
    folder = path
    for _level in range(level):
        folder = os.path.dirname(folder)
    for root in roots:
        if folder == root or folder.startswith(root.rstrip(os.sep) + os.sep):
            return folder[len(root) :].strip(os.sep).replace(os.sep, ".")
    return None


def _files_of(name: str, roots: Sequence[str]) -> Iterator[str]:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return
    for root in roots:
        for length in range(1, len(parts) + 1):
            place = os.path.join(root, *parts[:length])
            found = [path for path in (f"{place}.py", os.path.join(place, "__init__.py")) if os.path.isfile(path)]
            yield from found
            if not found and not os.path.isdir(place):
                break


# Script that a command starts, and its declared options.


_SHORT = re.compile(r"-[A-Za-z][\w-]*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_LONG = re.compile(r"--[A-Za-z][\w.-]*")


_RAY_RANKS = "ScalingConfig"  # its `num_workers` are ranks, not loader workers


@dataclass(frozen=True, kw_only=True)
class Script:
    """Source text of a trainer; the path is None if no Python script was found."""

    path: Path | None = None
    text: str = ""

    @cached_property
    def tree(self) -> ast.Module:
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module(body=[], type_ignores=[])

    @cached_property
    def imported(self) -> dict[str, str]:
        """Full names of imports by local name: ``{"main": "hydra.main"}``."""
        return _imported_names(self.tree)

    @cached_property
    def long_options(self) -> dict[str, str]:
        """Long names of argparse and click options with one value, by short name: ``{"-b": "--batch-size"}``.

        An argparse option without a long name is named by its help, or its own letters.
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
    def defaults(self) -> dict[str, int | str]:
        """Defaults of options by long name: integers, texts, and switches that are off.

        From argparse, click, and dataclasses for tyro or Transformers.
        """
        found: dict[str, set[int | str]] = {}
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
                if getattr(node.func, "attr", "") == "set_defaults":  # overrides an option's default
                    overridden |= {f"--{one}".replace("_", "-") for one in given if one}
                if name and isinstance(default, int | str) and (is_switch or _takes_a_value(node)):
                    found.setdefault(name, set()).add(default)
            elif isinstance(node, ast.ClassDef) and self._makes_options_of(node):
                for field in node.body:
                    default = getattr(getattr(field, "value", None), "value", None)
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and type(default) is int:
                        found.setdefault(f"--{field.target.id}", set()).add(default)
        alone = {name: default for name, (default, *more) in found.items() if not more}
        return {name: default for name, default in alone.items() if name.replace("_", "-") not in overridden}

    @property
    def rank_counts(self) -> Iterator[set[str]]:
        """Names in each ``ScalingConfig(num_workers=...)`` of Ray Train, such as the keys of a config."""
        for node in ast.walk(self.tree) if _RAY_RANKS in self.text else ():  # most sources need no parsing
            if isinstance(node, ast.Call) and last_part(node.func) == _RAY_RANKS:
                for value in (one.value for one in node.keywords if one.arg == "num_workers"):
                    texts = (getattr(one, "attr", getattr(one, "value", None)) for one in ast.walk(value))
                    yield {text for text in texts if isinstance(text, str)}

    @cached_property
    def constants(self) -> list[tuple[int, str, int]]:
        """Integers in assignments and call arguments: line, ``name`` or ``callee.name``, value."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                named = [(node.lineno, spelled(node.targets[0]), node.value)]
            elif isinstance(node, ast.Call) and not is_evaluation(*map(last_part, (node.func, *node.args))):
                callee = last_part(node.func)
                if callee == _RAY_RANKS:
                    continue
                named = [(node.lineno, f"{callee}.{one.arg}", one.value) for one in node.keywords if one.arg]
            else:
                continue
            values = ((line, name, getattr(value, "value", None)) for line, name, value in named)
            found += [(line, name, value) for line, name, value in values if name and type(value) is int]
        return found

    def _makes_options_of(self, node: ast.ClassDef) -> bool:
        is_data = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        return is_data and (self.imports("tyro") or "HfArgumentParser" in self.text)

    def imports(self, package: str) -> bool:
        return any(name.partition(".")[0] == package for name in self.imported.values())


_HELP = re.compile(
    r"(?:the )?(?:(?P<batch>(?:mini-?)?batch[ -]?size)|num(?:ber of)? (?:data(?:[ -]?load(?:er|ing))? )?workers)"
    r"(?= *$| *[(,;:=]| for (?:the )?(?:data|load|train))",
    re.I,
)


def _named_by_help(call: ast.Call) -> str:
    text = next((getattr(one.value, "value", None) for one in call.keywords if one.arg == "help"), None)
    match = _HELP.match(text) if isinstance(text, str) else None
    return "" if match is None else "--batch-size" if match["batch"] else "--num-workers"


def _takes_a_value(call: ast.Call) -> bool:
    plain = {"action": "store", "is_flag": False, "count": False, "multiple": False, "nargs": ..., "flag_value": ...}
    return all(
        one.arg is not None
        and (one.arg not in plain or (isinstance(one.value, ast.Constant) and one.value.value == plain[one.arg]))
        for one in call.keywords
    )


_SHELL = re.compile("(?:ba|da|k|z)?sh")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")


def own_words(words: Sequence[str]) -> int:
    """Return the index of the words after the script, module name, or program."""
    for position, word in enumerate(words):
        if word.endswith(".py"):
            return position + 1
        is_module = position and words[position - 1] == "-m" and _MODULE.fullmatch(word)
        if is_module and word not in _LAUNCHERS and not words[0].endswith(".sh"):
            return position + 1
    return 1


def find_script(words: Sequence[str], cwd: Path) -> Script:
    """Find and read the script or module that a command starts, also by ``sh -c``, a shell script or a Makefile."""
    for path in _candidates(words[own_words(words) - 1] if words else "", cwd):
        text = _text(path)
        if text is not None:
            return Script(path=path, text=text)
    found = (find_script(line, cwd) for line in _lines(words, cwd) if own_words(line) > 1)
    return next((script for script in found if script.path is not None), Script())


def _lines(words: Sequence[str], cwd: Path) -> Iterator[list[str]]:
    """Yield the commands of a shell script, of ``sh -c``, or of a Makefile target."""
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
        with contextlib.suppress(ValueError):  # an open quote: the line continues
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


# Reading of sources.


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Sources of a trainer: code that runs in training, number of files, reasons why others were not read."""

    code: LiveCode
    files: int
    unread: tuple[str, ...]


def read_sources(paths: Sequence[Path], folder: Path, named: Iterable[str], relevant: re.Pattern[bytes]) -> Sources:
    """Read sources; those that do not match `relevant` contribute only the names that they use.

    Args:
        paths: The sources, the script first; it is always parsed.
        folder: Folder that their names are relative to.
        named: Words that may name classes and functions.
    """
    files: list[SourceFile] = []
    unread: list[str] = []
    words = set(named)
    budget_bytes, seen = _MOST_PARSED_BYTES, 0
    for path in paths:
        parts = path.relative_to(folder).parts if path.is_relative_to(folder) else ()
        if parts[:1] and (parts[0] in _FRAMEWORKS or (parts[0] == "autotune" and parts[1:2] != ("workloads",))):
            continue  # training in a checkout of a framework or of autotune
        name, why = str(Path(*parts) if parts else path), ""
        content = read_beginning(path.resolve(), _LARGEST_BYTES + 1)
        seen += 1
        if len(content) > _LARGEST_BYTES:
            why = f"{name} was not read: larger than {_LARGEST_BYTES >> 20} MiB"
        elif path == paths[0] or relevant.search(content):
            if len(content) <= budget_bytes:
                parsed = parse(name, content, is_script=path == paths[0])
                if isinstance(parsed, SourceFile):
                    files.append(parsed)
                    budget_bytes -= len(content)
                    continue
                why = parsed
            else:
                why = f"{name} was not read: the sources exceed {_MOST_PARSED_BYTES >> 20} MiB in total"
        words |= _words_of_code(content)
        unread += [why] if why else []
    return Sources(code=LiveCode(files, words), files=seen - len(unread), unread=tuple(unread))


def words_in(values: Iterable[Scalar]) -> Iterator[str]:
    """Yield possible names in texts: models and net in ``models.net:Net``."""
    for text in values:
        if isinstance(text, str):
            yield from text.replace("/", ".").replace("=", ".").split(".")


def _words_of_code(content: bytes) -> set[str]:
    imports = rb"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]*(?:\([^)]*\)|[^\n]*)"
    return {word.decode() for word in re.findall(rb"[A-Za-z_]\w*", re.sub(imports, b"", content, flags=re.M))}


# Code that runs in training: reachable by name from the script, without evaluation.


Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceFile:
    """Source file of a trainer, the script or an imported module."""

    name: str
    tree: ast.Module
    is_script: bool

    @cached_property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """Full names of imports and aliases (``k = keras``); relative ones start with a dot."""
        found = _imported_names(self.tree)
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                first, _, rest = spelled(node.value).partition(".")
                if first in found:
                    found.setdefault(node.targets[0].id, f"{found[first]}.{rest}" if rest else found[first])
        return found

    def full_name(self, node: ast.AST) -> str:
        return full_name(node, self.imported)

    def imports(self, *packages: str) -> bool:
        return any(whole.partition(".")[0] in packages for whole in self.imported.values())

    def above(self, node: ast.AST, top: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield a node's ancestors below `top`, innermost first, each with its child on the way."""
        while (parent := self.parents.get(node)) is not None and parent is not top:
            yield parent, node
            node = parent


def parse(name: str, content: bytes, *, is_script: bool) -> SourceFile | str:
    """Parse a source file, or return why that is impossible."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the trainer's invalid escapes
            return SourceFile(name=name, tree=ast.parse(content), is_script=is_script)
    except SyntaxError as error:
        place = f"{name}:{error.lineno or 1}"
        return f"{place} is not valid in this Python version: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{name} cannot be parsed as Python: {error}"


def full_name(node: ast.AST, imported: Mapping[str, str]) -> str:
    """Return an expression's full name, given those of imports; empty if it has none."""
    first, _, rest = spelled(node).partition(".")
    return ".".join(filter(None, (imported.get(first, first), rest)))


def _imported_names(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]  # `import hydra.utils` binds hydra
                found[one.asname or top] = one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {one.asname or one.name: f"{module}.{one.name}" for one in node.names}
    return found


def spelled(node: ast.AST) -> str:
    """Return a name or attribute as written; empty for anything else."""
    if isinstance(node, ast.Attribute):
        inner = spelled(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def last_part(node: ast.AST) -> str:
    """Return the last part of a name; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def line_of(node: ast.AST) -> int:
    """Return the line of a node; for a call of a method that of its name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return int(getattr(node, "lineno", 1))


def has_unpacking(call: ast.Call) -> bool:
    """Return whether a call has ``*`` or ``**`` arguments."""
    return any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)


@dataclass(frozen=True, kw_only=True, eq=False)
class CodeScope:
    """Function, class, or module-level code; `outer` contains it."""

    file: SourceFile
    node: Definition | ast.Module
    outer: CodeScope | None = None

    @property
    def name(self) -> str:
        return "" if isinstance(self.node, ast.Module) else self.node.name

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Nodes without evaluation; of inner definitions only decorators and defaults."""
        waiting: list[ast.AST] = list(self.node.body)
        found = []
        while waiting:
            node = waiting.pop()
            found.append(node)
            inner = node.body if isinstance(node, Definition) else ()
            parts = (part for part in ast.iter_child_nodes(node) if part not in inner)
            waiting += (part for part in parts if not _is_evaluation_part(self.file, node, part))
        return tuple(found)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that it uses, and texts that may be names."""
        found = set[str]()
        for node in self.nodes:
            if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
                found.add(last_part(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.ImportFrom):
                found |= {one.name for one in node.names if one.asname}
        return frozenset(found)

    @property
    def calls(self) -> Iterator[ast.Call]:
        return (node for node in self.nodes if isinstance(node, ast.Call))

    def loops_around(self, node: ast.AST) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
        """Yield the loops around a node, innermost first."""
        for parent, part in self.file.above(node, self.node):
            if isinstance(parent, Loop) and part in parent.body:
                yield parent

    def innermost_loop(self, node: ast.AST) -> ast.AST | None:
        return next(self.loops_around(node), None)

    def is_conditional(self, node: ast.AST, top: ast.AST | None = None) -> bool:
        """Return whether only some rounds of `top`, a loop or this scope, evaluate a node."""
        return any(
            isinstance(parent, ast.ExceptHandler | ast.Lambda)
            or (isinstance(parent, ast.If | ast.IfExp) and part is not parent.test)
            or (isinstance(parent, ast.BoolOp) and part is not parent.values[0])
            for parent, part in self.file.above(node, top or self.node)
        )


class LiveCode:
    """Code that runs in training: reached modules, functions and classes; `named` are used elsewhere."""

    def __init__(self, files: Sequence[SourceFile], named: Iterable[str] = ()) -> None:
        self.files = tuple(files)
        reached = [CodeScope(file=file, node=file.tree) for file in self.files]
        waiting = [inner for unit in reached for inner in _definitions(unit)]
        names = set(named).union(*(unit.names for unit in reached))
        while new := [unit for unit in waiting if _is_reached(unit, names)]:
            waiting = [unit for unit in waiting if unit not in new]
            waiting += [inner for unit in new for inner in _definitions(unit)]
            names = names.union(*(unit.names for unit in new))
            reached += new
        overridden = _overridden(reached)
        self.units = tuple(unit for unit in reached if unit not in overridden)
        self.functions: dict[str, list[CodeScope]] = {}
        for unit in self.units:
            if isinstance(unit.node, Function):
                self.functions.setdefault(unit.name, []).append(unit)

    def calls(self, *names: str) -> Iterator[tuple[CodeScope, ast.Call]]:
        for unit in self.units:
            yield from ((unit, call) for call in unit.calls if unit.file.full_name(call.func) in names)

    def nodes(self) -> Iterator[tuple[CodeScope, ast.AST]]:
        return ((unit, node) for unit in self.units for node in unit.nodes)


def _definitions(unit: CodeScope) -> list[CodeScope]:
    return [CodeScope(file=unit.file, node=node, outer=unit) for node in unit.nodes if isinstance(node, Definition)]


def _is_reached(unit: CodeScope, names: set[str]) -> bool:
    node, outer = unit.node, unit.outer
    assert not isinstance(node, ast.Module), "modules are reached from the beginning"
    decorators = {_called(unit.file, one) for one in node.decorator_list}
    if is_evaluation(node.name) or decorators & _GRADIENTS_OFF:
        return False
    if node.name in names or (node.name.startswith("__") and node.name.endswith("__")):
        return True
    if decorators - {"property", "staticmethod", "classmethod", "tensorflow.function", "abstractmethod"}:
        return True  # it may be a registry
    # The base class may call a method of its subclass.
    return outer is not None and isinstance(outer.node, ast.ClassDef) and bool(outer.node.bases)


def _overridden(reached: Sequence[CodeScope]) -> set[CodeScope]:
    """Return methods that all subclasses override, of classes without instances."""
    below: dict[str, list[set[str]]] = {}
    for unit in reached:
        methods = {node.name for node in unit.nodes if isinstance(node, Definition)}
        for base in unit.node.bases if isinstance(unit.node, ast.ClassDef) else ():
            below.setdefault(last_part(base), []).append(methods)
    made = {last_part(call.func) for unit in reached for call in unit.calls}
    called_above = set[str]().union(*(unit.names for unit in reached if "super" in unit.names))
    return {
        unit
        for unit in reached
        if unit.outer is not None
        and (subclasses := below.get(unit.outer.name))
        and unit.outer.name not in made
        and unit.name not in called_above
        and all(unit.name in names for names in subclasses)
    }


def _called(file: SourceFile, node: ast.expr) -> str:
    return file.full_name(node.func if isinstance(node, ast.Call) else node)


# Parts of sources that do not train, by their names: validation, testing, inference and debugging.


_EVALUATION = re.compile(
    r"(?:val|valid|validat\w*|eval|evaluat\w*|tests?|testing|infer|inference|predict|predictor|demo|export|visuali[sz]e"
    r"|plot|dev)|(?:val|valid|validation|eval|test|dev)(?:set|loader|data|dataset|dataloader|ds|dl|iter|step|gen)s?"
)
_GRADIENTS_OFF = frozenset(("torch.no_grad", "torch.inference_mode"))


def words_of(*names: str) -> set[str]:
    """Return the words of names in lower case: val, loader and 2 of ``valLoader_2``."""
    spaced = (re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name) for name in names)
    return {word for name in spaced for word in re.split(r"[\W_]+", name.lower()) if word}


def is_evaluation(*names: str) -> bool:
    """Return whether names mean evaluation only, not training."""
    words = words_of(*names)
    trains = any(word == "fit" or word.startswith("train") for word in words)
    return not trains and any(_EVALUATION.fullmatch(word) for word in words)


def _is_evaluation_part(file: SourceFile, node: ast.AST, part: ast.AST) -> bool:
    """Return whether a part of a node does not train, such as a value of ``val_data``."""
    if isinstance(node, ast.If) and "__name__" in _names(node.test):
        return part in node.body and not file.is_script
    if isinstance(node, ast.If | ast.IfExp):
        return _is_evaluation_branch(node, part)
    if isinstance(node, ast.Assign):
        return part is node.value and is_evaluation(*(name for target in node.targets for name in _names(target)))
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return part is node.value and is_evaluation(*_names(node.target))
    if isinstance(node, ast.Call):  # evaluate(x), val_loaders.append(x)
        return part is not node.func and is_evaluation(*spelled(node.func).split("."))
    if isinstance(node, ast.keyword):
        return is_evaluation(node.arg or "")
    if isinstance(node, ast.Dict):
        keys = [key for key, value in zip(node.keys, node.values, strict=True) if value is part]
        return is_evaluation(*(str(key.value) for key in keys if isinstance(key, ast.Constant)))
    if isinstance(node, ast.With | ast.AsyncWith):
        return part in node.body and any(_called(file, item.context_expr) in _GRADIENTS_OFF for item in node.items)
    return False


def _is_evaluation_branch(node: ast.If | ast.IfExp, part: ast.AST) -> bool:
    if part is node.test:
        return False
    in_body = part in node.body if isinstance(node.body, list) else part is node.body
    is_negated = any(isinstance(one, ast.Not | ast.NotEq | ast.NotIn) for one in ast.walk(node.test))
    names = _names(node.test)
    words = words_of(*names)
    if in_body is is_negated:  # the condition does not hold
        mode = {"is", "train", "training", "self", "mode", "split", "phase", "stage", "args", "cfg", "config"}
        return bool(words & {"train", "training"}) and words <= mode
    # Whether the config enables debugging does not matter.
    return is_evaluation(*names) or (in_body and bool(words & {"debug", "debugging", "eager"}))


def _names(node: ast.AST) -> list[str]:
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [*texts, *filter(None, (last_part(one) for one in ast.walk(node)))]


# Datasets of tf.data.


_DATASET_ONLY = frozenset(("prefetch", "interleave", "padded_batch", "with_options", "as_numpy_iterator"))
_CHAINING = (
    *("map", "flat_map", "batch", "shuffle", "repeat", "cache", "take", "skip", "filter", "shard", "unbatch"),
    "concatenate",
)
CHAINED = _DATASET_ONLY.union(_CHAINING, ("apply",))


DATA_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
TRAINING_ARGUMENTS = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")


def dataset_calls(code: LiveCode, *methods: str) -> Iterator[tuple[CodeScope, ast.Call]]:
    """Yield calls of these methods on tf.data datasets, ordered by file and line."""
    for unit in sorted(code.units, key=lambda unit: (not unit.file.is_script, unit.file.name)):
        if not unit.file.imports("tensorflow", "tensorflow_datasets"):
            continue
        known = _dataset_names(unit)
        found = [
            call
            for call in unit.calls
            if isinstance(call.func, ast.Attribute)
            and call.func.attr in methods
            and _is_dataset(unit.file, call.func.value, known)
        ]
        yield from ((unit, call) for call in sorted(found, key=lambda call: (call.lineno, call.col_offset)))


def _dataset_names(unit: CodeScope) -> set[str]:
    """Return names of datasets, by the methods called on them and by assignments."""
    known: set[str] = set()
    for node in unit.calls:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _DATASET_ONLY:
            root = node.func.value
            while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and root.func.attr in CHAINED:
                root = root.func.value
            known.add(spelled(root))
    assigned = [node for node in unit.nodes if isinstance(node, ast.Assign)]
    for _round in range(3):  # follows chains of assignments
        known |= {spelled(to) for one in assigned if _is_dataset(unit.file, one.value, known) for to in one.targets}
    return known - {""}


def _is_dataset(file: SourceFile, node: ast.expr, known: set[str]) -> bool:
    if spelled(node) in known:
        return True
    if not isinstance(node, ast.Call):
        return False
    whole = file.full_name(node.func)
    makers = r"(?:tensorflow\.data|tensorflow_datasets|(?:tensorflow\.)?keras\.utils)\."
    if re.match(makers + r"(?:.*Dataset|load$|.*_dataset_from_directory$)", whole):
        return True
    is_chained = isinstance(node.func, ast.Attribute) and node.func.attr in CHAINED
    return is_chained and isinstance(node.func, ast.Attribute) and _is_dataset(file, node.func.value, known)

"""Arguments of calls in the trainer's code, as values that may vary like keys of the config.

A literal or omitted argument such as ``num_workers`` of a DataLoader is named ``code:train.py:41
DataLoader.num_workers``. `autotune.trainee.code_values` replaces it in a trial; sources are parsed, never executed, and
only `autotune apply --code` writes them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from autotune.config.keys import shown
from autotune.config.sources import (
    DATA_LOADERS,
    TRAINING_ARGUMENTS,
    CodeScope,
    Definition,
    LiveCode,
    SourceFile,
    dataset_calls,
    has_unpacking,
    is_evaluation,
    last_part,
    line_of,
    parse,
    read_sources,
    trainer_files,
    words_in,
)
from autotune.errors import ConfigError
from autotune.records import CODE, Scalar, Values

_MOST_CALLS = 4  # of one kind: a project with more calls has several trainings
_RELEVANT = re.compile(
    rb"DataLoader|TrainingArguments|DistributedDataParallel|\.(?:map|interleave|prefetch|batch|padded_batch|compile)\("
)
_CLASSES = (
    *DATA_LOADERS,
    *TRAINING_ARGUMENTS,
    *("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"),
)
_CLASS_NAMES = {name.rpartition(".")[2] for name in _CLASSES}
_PREFETCH = "prefetch"


@dataclass(frozen=True)
class _Argument:
    """Argument of a call.

    Attributes:
        position: From 0; positional arguments are kept fixed, except in ``prefetch(2)``.
        is_added: Whether it is a chained call: ``batch(8).prefetch(2)``.
    """

    name: str
    default: Scalar
    position: int | None = None
    is_added: bool = False


# Without `num_parallel_calls`, elements are computed one by one, as with one worker.
_ARGUMENTS: Mapping[str, tuple[_Argument, ...]] = {
    "batch": (_Argument(_PREFETCH, 0, is_added=True),),
    "padded_batch": (_Argument(_PREFETCH, 0, is_added=True),),
    "prefetch": (_Argument("buffer_size", None, 0),),
    "map": (_Argument("num_parallel_calls", 1, 1),),
    "interleave": (_Argument("num_parallel_calls", 1, 3),),
    "compile": (_Argument("steps_per_execution", 1),),
    "DataLoader": (
        _Argument("num_workers", 0, 5),
        _Argument("pin_memory", False, 7),
        _Argument("persistent_workers", False),
    ),
    "DistributedDataParallel": (
        _Argument("bucket_cap_mb", 25),
        _Argument("gradient_as_bucket_view", False),
        _Argument("find_unused_parameters", False),
    ),
    **dict.fromkeys(
        ("TrainingArguments", "Seq2SeqTrainingArguments"),
        (_Argument("dataloader_num_workers", 0), _Argument("dataloader_persistent_workers", False)),
    ),
}
"""Arguments by callee: a class of PyTorch or Transformers, a method of a tf.data dataset or of a Keras model."""

_SETTINGS = {"torch": "set_num_threads", "tensorflow": "config.threading.set_intra_op_parallelism_threads"}
"""Calls with one number that a script makes after its imports, by framework; 0 means the framework's default."""

_METHODS = {"compile": "Model.compile", **{name: f"Dataset.{name}" for name in ("map", "interleave")}}


@dataclass(frozen=True, kw_only=True)
class CodeArgument:
    """Argument of a call in the trainer's code, named by its path.

    Attributes:
        callee: Last part of the callee's name; of a setting all of it after the framework.
        lines: First and last line of the call; of a missing setting the empty line that it takes.
        end: Line and byte column of the call's end.
        is_alone: Whether no other call of that name is in the same lines.
        argument: None for a setting.
        value: Literal value, or the default if omitted.
        span: Byte range of the value; None if omitted.
    """

    path: str
    file: Path
    callee: str
    lines: tuple[int, int]
    end: tuple[int, int]
    is_alone: bool = True
    argument: _Argument | None = None
    value: Scalar
    span: tuple[int, int] | None


def place_of(path: str) -> tuple[str, str]:
    """Split an argument's name into place and call: ``train.py:41``, ``DataLoader.num_workers``."""
    place, _, call = path.removeprefix(CODE).rpartition(" ")
    return place, call


def find_arguments(words: Sequence[str], folder: Path, values: Iterable[Scalar]) -> dict[str, CodeArgument]:
    """Return the arguments in the code that a command trains with, by name; `values` may name classes."""
    real = folder.resolve()
    paths = [path for path in trainer_files(words, folder) if path.is_relative_to(folder)]
    paths = [path for path in paths if ".." not in path.parts and path.resolve().is_relative_to(real)]
    try:
        stamps = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
        return dict(_found(stamps, folder, tuple(dict.fromkeys(words_in((*values, *words))))))
    except OSError:  # a file is being replaced; the next command sees it
        return {}


@lru_cache(maxsize=4)  # a command reads its config several times; a large project takes 0.5 s
def _found(stamps: tuple[tuple[Path, int, int], ...], folder: Path, named: tuple[str, ...]) -> dict[str, CodeArgument]:
    paths = [path for path, *_ in stamps]
    if not paths:
        return {}
    code = read_sources(paths, folder, named, _RELEVANT).code
    files = {str(path.relative_to(folder)): path for path in paths}
    live: dict[str, set[tuple[str, int]]] = {}
    aliases = {file.name: _aliases(file.tree) for file in code.files}
    for name, call in _calls(code):
        live.setdefault(name, set()).add((_callee(call, aliases[name]), line_of(call)))
    script = [file.name for file in code.files if file.is_script]
    set_elsewhere = {last_part(call.func) for unit in code.units if not unit.file.is_script for call in unit.calls}
    found = {
        path: one
        for name in dict.fromkeys((*live, *script))
        for path, one in arguments_of(files[name], name, files[name].read_bytes()).items()
        if (one.callee, one.lines[0]) in live.get(name, ())
        or (one.argument is None and name in script and one.callee.rpartition(".")[2] not in set_elsewhere)
    }
    if any(one.argument for one in found.values()):
        return found
    # PyTorch starts a thread per core even on a busy machine; TensorFlow's threads matter only next to a loader.
    return {path: one for path, one in found.items() if one.callee == _SETTINGS["torch"]}


def arguments_of(file: Path, name: str, content: bytes) -> dict[str, CodeArgument]:
    """Return all arguments in a source file by name, which begins with `name`; none if it is not Python."""
    source = parse(name, content, is_script=False)
    if isinstance(source, str) or not _is_plain(content):
        return {}
    starts, aliases = _line_starts(content), _aliases(source.tree)
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    places = [(_callee(call, aliases), line_of(call)) for call in calls]
    found: dict[str, CodeArgument] = {}
    for callee, arguments in _ARGUMENTS.items():  # an existing `prefetch` replaces one that would be added
        named = [call for call, place in zip(calls, places, strict=True) if place[0] == callee]
        for call in named:
            place = callee, line_of(call)
            if places.count(place) > 1 or has_unpacking(call):
                continue
            overlapping = [
                one for one in named if one.lineno <= (call.end_lineno or 0) and call.lineno <= (one.end_lineno or 0)
            ]
            for argument in arguments:
                node = _passed(call, argument)
                value = argument.default if node is None else getattr(node, "value", None)
                if type(value) is not (int if argument.default is None else type(argument.default)):
                    continue
                path = f"{CODE}{name}:{_label(call, callee, argument)}"
                found[path] = CodeArgument(
                    path=path,
                    file=file,
                    callee=callee,
                    lines=(place[1], call.end_lineno or place[1]),
                    end=(call.end_lineno or place[1], call.end_col_offset or 0),
                    is_alone=len(overlapping) == 1,
                    argument=argument,
                    value=value,
                    span=None if node is None else _span(node, starts),
                )
    for whole, callee, line, node in _settings(source.tree, content):
        path = f"{CODE}{name}:{line} {whole}"
        value, span = (0, None) if node is None else (node.value, _span(node, starts))
        assert isinstance(value, int)
        found[path] = CodeArgument(
            path=path,
            file=file,
            callee=callee,
            lines=(line, line),
            end=(line, 0),
            value=value,
            span=span,
        )
    return found


def with_values(content: bytes, arguments: Iterable[CodeArgument], values: Values) -> bytes:
    """Return a source with other values of some arguments; raise a ConfigError if all else cannot stay."""
    for argument in arguments:
        content = _with_value(content, argument, values[argument.path])
    return content


def without_values(tree: ast.AST) -> ast.AST:
    """Return a syntax tree without the values of such arguments, to compare code."""
    return _WithoutValues().visit(tree)  # type: ignore[no-any-return]


def calls_of_trial(arguments: Mapping[str, CodeArgument], values: Values) -> str:
    """Return as JSON the values that a trial replaces; empty if there are none."""
    replaced = [
        {
            "path": path,
            "file": str(one.file.resolve()),
            "callee": one.callee,
            "lines": one.lines,
            "end": one.end,
            "is_alone": one.is_alone,
            "is_there": one.span is not None,
            "name": one.argument.name if one.argument else None,
            "position": one.argument.position if one.argument else None,
            "value": values[path],
        }
        for path, one in arguments.items()
        if path in values and values[path] != one.value
    ]
    return json.dumps(replaced) if replaced else ""


def _calls(code: LiveCode) -> Iterator[tuple[str, ast.Call]]:
    """Yield the first calls of each kind that load training data, with their file names."""
    is_prefetched = any(isinstance(node, ast.Attribute) and node.attr == _PREFETCH for _, node in code.nodes())
    found = [list(code.calls(*_CLASSES))]
    found += [list(dataset_calls(code, name)) for name in ("map", "interleave", _PREFETCH)]
    if not is_prefetched:  # the loop gets the result of the last batch call
        found.append(list(dataset_calls(code, "batch", "padded_batch"))[-1:])
    found.append([(unit, call) for unit in code.units for call in unit.calls if _compiles_a_model(unit, call)])
    for calls in found:
        trained = [(unit, call) for unit, call in calls if not _is_of_evaluation(call)]
        first = sorted(trained, key=lambda one: (not one[0].file.is_script, one[0].file.name, one[1].lineno))
        yield from ((unit.file.name, call) for unit, call in first[:_MOST_CALLS])


def _is_of_evaluation(call: ast.Call) -> bool:
    data = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "dataset")]
    return last_part(call.func) == "DataLoader" and is_evaluation(*map(last_part, data))


def _compiles_a_model(unit: CodeScope, call: ast.Call) -> bool:
    if not _is_of_model(call):
        return False
    fits = any(isinstance(node, ast.Attribute) and node.attr == "fit" for node in ast.walk(unit.file.tree))
    return fits and unit.file.imports("keras", "tensorflow")


def _is_of_model(call: ast.Call) -> bool:
    names = {one.arg for one in call.keywords}
    return last_part(call.func) == "compile" and not names.isdisjoint(("loss", "optimizer"))


def _settings(tree: ast.Module, content: bytes) -> Iterator[tuple[str, str, int, ast.Constant | None]]:
    """Yield each setting of a script: full name, name without the framework, line, number.

    A missing one takes the first empty line after the imports at the top.
    """
    top = list(takewhile(lambda node: not isinstance(node, Definition), tree.body))
    imports = [node for node in top if isinstance(node, ast.Import | ast.ImportFrom)]
    for alias in (one for node in imports if isinstance(node, ast.Import) for one in node.names):
        callee = _SETTINGS.get(alias.name)
        if callee is None:
            continue
        full_name = f"{alias.asname or alias.name}.{callee}"
        last = callee.rpartition(".")[2]
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and last_part(node.func) == last]
        top_level = [node.value for node in tree.body if isinstance(node, ast.Expr) and node.value in calls]
        numbers = [
            one.args[0]
            for one in top_level
            if isinstance(one, ast.Call) and len(one.args) == 1 and _is_whole(one.args[0])
        ]
        if len(calls) == len(numbers) == 1 and isinstance(numbers[0], ast.Constant):
            yield full_name, callee, numbers[0].lineno, numbers[0]
        elif not calls:
            lines = re.split(rb"\r\n|\r|\n", content)
            taken = {line for node in tree.body for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
            after = range((imports[-1].end_lineno or imports[-1].lineno) + 1, len(lines))
            free = next((line for line in after if line not in taken and not lines[line - 1].strip()), None)
            if free is not None:
                yield full_name, callee, free, None


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Return the original names of imports by their aliases."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {alias.asname: alias.name for node in imports for alias in node.names if alias.asname}


def _callee(call: ast.Call, aliases: Mapping[str, str]) -> str:
    written = last_part(call.func)
    return aliases.get(written, written) if isinstance(call.func, ast.Name) else written


def _label(call: ast.Call, callee: str, argument: _Argument) -> str:
    """Return line, callee and argument: ``41 DataLoader.num_workers``."""
    if _PREFETCH in (callee, argument.name):  # the same name for an existing and an added one
        return f"{call.end_lineno if argument.is_added else line_of(call)} Dataset.{_PREFETCH}"
    return f"{line_of(call)} {_METHODS.get(callee, callee)}.{argument.name}"


def _is_plain(content: bytes) -> bool:
    """Return whether positions in the syntax tree match: UTF-8 without BOM or form feed."""
    if content.startswith(b"\xef\xbb\xbf") or b"\f" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    cookie = re.search(rb"\A(?:.*\n)?[ \t]*#.*?coding[:=][ \t]*([-\w.]+)", content)
    return cookie is None or cookie[1].lower() in (b"utf-8", b"utf8")


def _passed(call: ast.Call, argument: _Argument) -> ast.expr | None:
    place = argument.position
    if place is not None and place < len(call.args):
        return call.args[place] if last_part(call.func) == _PREFETCH else call
    return next((one.value for one in call.keywords if one.arg == argument.name), None)


def _line_starts(content: bytes) -> list[int]:
    return [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", content))]


def _span(node: ast.expr, starts: Sequence[int]) -> tuple[int, int]:
    end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
    return starts[node.lineno - 1] + node.col_offset, end


def _with_value(content: bytes, one: CodeArgument, value: Scalar) -> bytes:
    name = place_of(one.path)[0].rpartition(":")[0]
    before = arguments_of(one.file, name, content)
    for start, end, text in _edits(content, before.get(one.path), value):
        after = content[:start] + text.encode() + content[end:]
        values = {path: other.value for path, other in arguments_of(one.file, name, after).items()}
        others = {path: other.value for path, other in before.items() if path != one.path}
        if values == others | {one.path: value} and _is_same_code(content, after):
            return after
    raise ConfigError(
        f"{one.path} cannot be set to {shown(value)} automatically",
        where=f"{one.file}:{one.lines[0]}",
        remedy="Change that call by hand.",
    )


def _edits(content: bytes, one: CodeArgument | None, value: Scalar) -> Iterator[tuple[int, int, str]]:
    """Yield edits that may set a value: start and end of the replaced bytes, new text."""
    if one is None:
        return
    if one.span is not None:
        yield (*one.span, repr(value))
        return
    starts = _line_starts(content)
    if one.argument is None:
        start = starts[one.lines[0] - 1]
        yield start, start + len(re.match(rb"[ \t]*", content[start:])[0]), f"{place_of(one.path)[1]}({value!r})"  # type: ignore[index]
        return
    source = parse("", content, is_script=False)
    assert isinstance(source, SourceFile), "the argument was found in it"
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    aliases = _aliases(source.tree)
    call = next(call for call in calls if (_callee(call, aliases), line_of(call)) == (one.callee, one.lines[0]))
    _, end = _span(call, starts)
    if one.argument.is_added:
        yield end, end, f".{one.argument.name}({value!r})"
        return
    passed = [*call.args, *(keyword.value for keyword in call.keywords)]
    last = max((_span(node, starts)[1] for node in passed), default=end - 1)
    text = f"{', ' if passed else ''}{one.argument.name}={value!r}"
    # after the last argument, or after parentheses around it
    for place in (last, *(last + match.end() for match in re.finditer(rb"\)", content[last : end - 1]))):
        yield place, place, text


def _is_same_code(one: bytes, other: bytes) -> bool:
    trees = [parse("", content, is_script=False) for content in (one, other)]
    try:
        dumps = [ast.dump(without_values(source.tree)) for source in trees if isinstance(source, SourceFile)]
    except RecursionError:
        return False
    return len(dumps) == len(trees) and dumps[0] == dumps[1]


class _WithoutValues(ast.NodeTransformer):
    def __init__(self) -> None:
        self._packages: set[str] = set()
        self._aliases: Mapping[str, str] = {}

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self._aliases = _aliases(node)
        for one in ast.walk(node):
            names = [one.module or ""] if isinstance(one, ast.ImportFrom) else []
            names += [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
            self._packages |= {name.partition(".")[0] for name in names}
        self.generic_visit(node)
        node.body = [one for one in node.body if not self._sets(one)]
        return node

    def _sets(self, node: ast.stmt) -> bool:
        call = node.value if isinstance(node, ast.Expr) else None
        lasts = {callee.rpartition(".")[2] for callee in _SETTINGS.values()}
        return isinstance(call, ast.Call) and last_part(call.func) in lasts and all(map(_is_whole, call.args))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        callee = _callee(node, self._aliases)
        known = {"torch", "transformers"} if callee in _CLASS_NAMES else {"tensorflow", "keras"}
        if self._packages.isdisjoint(known):
            return node
        if callee == _PREFETCH and isinstance(node.func, ast.Attribute):
            passed = [*node.args, *(one.value for one in node.keywords)]
            return node.func.value if len(passed) == 1 and _is_whole(passed[0]) else node
        if callee not in _ARGUMENTS or callee == _PREFETCH or (callee == "compile" and not _is_of_model(node)):
            return node
        names = {one.name for one in _ARGUMENTS[callee] if not one.is_added}
        node.keywords = [one for one in node.keywords if one.arg not in names or not _is_literal(one.value)]
        node.keywords.append(ast.keyword("line", ast.Constant(line_of(node))))
        return node


def _is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _is_whole(node: ast.expr) -> bool:
    return _is_literal(node) and not isinstance(getattr(node, "value", None), bool)

"""Arguments in the trainer's own code that may vary like keys of the config.

What makes loading fast is often written into the code: ``DataLoader(data, batch_size=cfg.batch, num_workers=4)``. Such
an argument, a literal or left out, is a value by the name ``code:train.py:41 DataLoader.num_workers``. A trial has the
call made with another value, from inside (`autotune.trainee.code_values`); the sources are read by their syntax, and
only `autotune apply --code` writes them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autotune.config.code_source import LiveCode, Unit, dataset_calls, last_part, parse
from autotune.config.keys import shown
from autotune.config.sources import read_sources, trainer_files, words_in
from autotune.errors import ConfigError
from autotune.records import CODE, Scalar, Values

_MOST_CALLS = 4  # of one kind: a project with more has them for several trainings
_TELLING = re.compile(rb"DataLoader|TrainingArguments|\.(?:map|interleave|prefetch|batch|padded_batch|compile)\(")
_CLASSES = (
    *("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"),
    *("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"),
)
_PREFETCH = "prefetch"


@dataclass(frozen=True)
class _Argument:
    """Argument of a call.

    Attributes:
        default: What leaving it out means.
        position: Its position, from 0, where it may be given without its name.
        is_added: Whether it is a call behind the call: ``batch(8).prefetch(2)``.
    """

    name: str
    default: Scalar
    position: int | None = None
    is_added: bool = False


# Without `num_parallel_calls`, elements are made one after the other, as by one worker.
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
    **dict.fromkeys(
        ("TrainingArguments", "Seq2SeqTrainingArguments"),
        (_Argument("dataloader_num_workers", 0), _Argument("dataloader_persistent_workers", False)),
    ),
}
"""Arguments by what is called: a class of PyTorch or Transformers, a method of a dataset of tf.data, or of a model."""

_METHODS = {"compile": "Model.compile", **{name: f"Dataset.{name}" for name in ("map", "interleave")}}


@dataclass(frozen=True, kw_only=True)
class CodeArgument:
    """Argument of a call in the trainer's code.

    Attributes:
        path: Its name among the values of a search.
        file: The source file.
        callee: What is called, by the last part of its name.
        lines: First and last line of the call; of a method's the first is that of its name.
        argument: The argument itself.
        value: The value that is written, or that leaving it out means.
        span: Bytes of the file in which the value stands; None where it is left out.
    """

    path: str
    file: Path
    callee: str
    lines: tuple[int, int]
    argument: _Argument
    value: Scalar
    span: tuple[int, int] | None


def place_of(path: str) -> tuple[str, str]:
    """Return file and line of an argument, by its name, and what it is: ``train.py:41``, ``DataLoader.num_workers``."""
    place, _, call = path.removeprefix(CODE).rpartition(" ")
    return place, call


def find_arguments(words: Sequence[str], folder: Path, values: Iterable[Scalar]) -> dict[str, CodeArgument]:
    """Return the arguments in the code that a command trains with, by name; those of evaluation are left out.

    Args:
        words: The command, placeholders filled in or not.
        folder: The folder that it runs in; names of files are relative to it.
        values: The values of the config, which may name classes.
    """
    paths = [path for path in trainer_files(words, folder) if path.is_relative_to(folder)]
    try:
        stamps = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths)
        return dict(_found(stamps, folder, tuple(dict.fromkeys(words_in((*values, *words))))))
    except OSError:  # a file is being replaced: the next command sees it
        return {}


@lru_cache(maxsize=4)  # a command reads its config several times, and a large project takes half a second
def _found(stamps: tuple[tuple[Path, int, int], ...], folder: Path, named: tuple[str, ...]) -> dict[str, CodeArgument]:
    paths = [path for path, *_ in stamps]
    if not paths:
        return {}
    code = read_sources(paths, folder, named, _TELLING).code
    files = {str(path.relative_to(folder)): path for path in paths}
    live: dict[str, set[tuple[str, int]]] = {}
    for name, call in _calls(code):
        live.setdefault(name, set()).add((last_part(call.func), _line(call)))
    return {
        path: one
        for name, places in live.items()
        for path, one in arguments_of(files[name], name, files[name].read_bytes()).items()
        if (one.callee, one.lines[0]) in places
    }


def arguments_of(file: Path, name: str, content: bytes) -> dict[str, CodeArgument]:
    """Return all arguments in a source file by name, as its syntax alone tells them; none of what is no Python.

    Args:
        name: The file's name in the names of arguments.
    """
    source = parse(name, content, is_script=False)
    if isinstance(source, str) or not _is_plain(content):
        return {}
    starts = _line_starts(content)
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    places = [(last_part(call.func), _line(call)) for call in calls]
    found: dict[str, CodeArgument] = {}
    for callee, arguments in _ARGUMENTS.items():  # a `prefetch` that is there comes behind one that is not
        for call, place in zip(calls, places, strict=True):
            if place[0] != callee or places.count(place) > 1 or _is_open(call):
                continue
            for argument in arguments:
                node = _given(call, argument)
                value = argument.default if node is None else getattr(node, "value", None)
                if not isinstance(value, int):
                    continue
                path = f"{CODE}{name}:{_shown(call, argument)}"
                found[path] = CodeArgument(
                    path=path,
                    file=file,
                    callee=callee,
                    lines=(place[1], call.end_lineno or place[1]),
                    argument=argument,
                    value=value,
                    span=None if node is None else _span(node, starts),
                )
    return found


def with_values(content: bytes, arguments: Iterable[CodeArgument], values: Values) -> bytes:
    """Return a source with other values of some of its arguments; lines stay, and all else byte for byte.

    Raises:
        ConfigError: That is not possible by itself.
    """
    for argument in arguments:
        content = _with_value(content, argument, values[argument.path])
    return content


def without_values(tree: ast.AST) -> ast.AST:
    """Return a syntax tree without the values of such arguments: what differs in them alone is the same code."""
    return _WithoutValues().visit(tree)  # type: ignore[no-any-return]


def calls_of_trial(arguments: Mapping[str, CodeArgument], values: Values) -> str:
    """Return what a trial is told: as JSON the values that are not those that are written; empty if there are none."""
    told = [
        {
            "path": path,
            "file": str(one.file.resolve()),
            "callee": one.callee,
            "lines": one.lines,
            "name": one.argument.name,
            "position": one.argument.position,
            "value": values[path],
        }
        for path, one in arguments.items()
        if path in values and values[path] != one.value
    ]
    return json.dumps(told) if told else ""


def _calls(code: LiveCode) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls that load the data of training, the first few of each kind, each with the name of its file."""
    is_prefetched = any(isinstance(node, ast.Attribute) and node.attr == _PREFETCH for _, node in code.nodes())
    found = [list(code.calls(*_CLASSES))]
    found += [list(dataset_calls(code, name)) for name in ("map", "interleave", _PREFETCH)]
    if not is_prefetched:  # the last batch is what the loop is given
        found.append(list(dataset_calls(code, "batch", "padded_batch"))[-1:])
    found.append([(unit, call) for unit in code.units for call in unit.calls if _compiles_a_model(unit, call)])
    for calls in found:
        yield from ((unit.file.name, call) for unit, call in calls[:_MOST_CALLS])


def _compiles_a_model(unit: Unit, call: ast.Call) -> bool:
    given = {one.arg for one in call.keywords}
    is_keras = unit.file.imports("keras", "tensorflow") and not given.isdisjoint(("loss", "optimizer"))
    return is_keras and last_part(call.func) == "compile"


def _line(call: ast.Call) -> int:
    """Return the line of a call: of a method's that of its name."""
    return call.func.end_lineno or call.lineno


def _shown(call: ast.Call, argument: _Argument) -> str:
    """Return line, callee and argument: ``41 DataLoader.num_workers``, ``52 Dataset.map.num_parallel_calls``."""
    callee = last_part(call.func)
    if _PREFETCH in (callee, argument.name):  # the same name, whether it is there or not
        return f"{call.end_lineno if argument.is_added else _line(call)} Dataset.{_PREFETCH}"
    return f"{_line(call)} {_METHODS.get(callee, callee)}.{argument.name}"


def _is_plain(content: bytes) -> bool:
    """Return whether bytes are UTF-8 as they stand: what a syntax tree says of places holds then."""
    if content.startswith(b"\xef\xbb\xbf") or b"\f" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    cookie = re.search(rb"\A(?:.*\n)?[ \t]*#.*?coding[:=][ \t]*([-\w.]+)", content)
    return cookie is None or cookie[1].lower() in (b"utf-8", b"utf8")


def _is_open(call: ast.Call) -> bool:
    """Return whether arguments are given that nobody sees there."""
    return any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)


def _given(call: ast.Call, argument: _Argument) -> ast.expr | None:
    place = argument.position
    positional = call.args[place] if place is not None and place < len(call.args) else None
    return next((one.value for one in call.keywords if one.arg == argument.name), positional)


def _line_starts(content: bytes) -> list[int]:
    return [0, *(match.end() for match in re.finditer(rb"\r\n|\r|\n", content))]


def _span(node: ast.expr, starts: Sequence[int]) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


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
        f"{one.path} cannot be set to {shown(value)} by itself",
        where=f"{one.file}:{one.lines[0]}",
        remedy="Change that call by hand.",
    )


def _edits(content: bytes, one: CodeArgument | None, value: Scalar) -> Iterator[tuple[int, int, str]]:
    """Yield the edits that may set a value: start and end of the bytes that are replaced, and by what."""
    if one is None:
        return
    if one.span is not None:
        yield (*one.span, repr(value))
        return
    starts = _line_starts(content)
    calls = [node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Call)]
    call = next(call for call in calls if (last_part(call.func), _line(call)) == (one.callee, one.lines[0]))
    _, end = _span(call, starts)
    if one.argument.is_added:
        yield end, end, f".{one.argument.name}({value!r})"
        return
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    last = max((_span(node, starts)[1] for node in given), default=end - 1)
    text = f"{', ' if given else ''}{one.argument.name}={value!r}"
    # behind the last argument, or behind parentheses around that
    for place in (last, *(last + match.end() for match in re.finditer(rb"\)", content[last : end - 1]))):
        yield place, place, text


def _is_same_code(one: bytes, other: bytes) -> bool:
    try:
        return ast.dump(without_values(ast.parse(one))) == ast.dump(without_values(ast.parse(other)))
    except (SyntaxError, ValueError):
        return False


class _WithoutValues(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        callee = last_part(node.func)
        if callee == _PREFETCH and isinstance(node.func, ast.Attribute):
            given = [*node.args, *(one.value for one in node.keywords)]
            return node.func.value if len(given) == 1 and _is_whole(given[0]) else node
        for argument in _ARGUMENTS.get(callee, ()):
            place = argument.position
            node.keywords = [one for one in node.keywords if one.arg != argument.name or not _is_whole(one.value)]
            if place is not None and place < len(node.args) and _is_whole(node.args[place]):
                node.args[place] = ast.Constant(None)
        return node


def _is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)

"""Traps in a trainer's sources: code in which other values of a knob give other data; `traps.toml` is the table.

Sources are parsed, never imported. Ambiguous names and branches give no finding.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from autotune.config.sources import CHAINED, CodeScope, LiveCode, dataset_calls, last_part, read_sources, spelled
from autotune.files import read_beginning
from autotune.records import Scalar
from autotune.space.knob import Knob, is_among, same_scalar
from autotune.space.space import Space

_LOADS = re.compile(rb"DataLoader\(|Trainer\(|\.cache\(")
_TELLING = re.compile(rb"Dataset|DataLoader|\.cache\(|\brandom|Random[A-Z]")


class Trap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Row of the table of traps; `traps.toml` explains the columns."""

    id: str
    find: str
    sentence: str
    remedy: str
    kinds: tuple[str, ...]
    above: int | None = None
    needs_gpu: bool = False

    def late_values(self, knob: Knob) -> tuple[Scalar, ...]:
        """Return the values of a knob that give other data than its baseline."""
        if knob.kind not in self.kinds:
            return ()
        snapping = knob.settling
        if self.above is not None:
            snapping = tuple(one for one in knob.choices if isinstance(one, int | float) and one > self.above)
        if is_among(knob.baseline, snapping):
            return tuple(one for one in knob.choices if not same_scalar(one, knob.baseline))
        return snapping


_TABLE = tomllib.loads(Path(__file__).with_name("traps.toml").read_text("utf-8"))
TRAPS = msgspec.convert(_TABLE["trap"], tuple[Trap, ...])


@dataclass(frozen=True, kw_only=True)
class FoundTrap:
    """Trap at a place in the trainer's sources; the name is of a class, attribute or function."""

    trap: Trap
    place: str
    name: str

    @property
    def sentence(self) -> str:
        return self.trap.sentence.format(name=self.name)

    def remark(self, space: Space) -> str:
        """Return a remark for a search; empty if no knob of the space is affected."""
        late = [text for knob in space.knobs if (text := self._late_text(knob))]
        verb = "is" if len(late) == 1 else "are"
        return f"{self.place}: {self.sentence}; {' and '.join(late)} {verb} tried last" if late else ""

    def _late_text(self, knob: Knob) -> str:
        late, above = self.trap.late_values(knob), self.trap.above
        if late and above is not None and isinstance(knob.baseline, int | float) and knob.baseline <= above:
            return f"{knob.path} above {above}"
        return f"{knob.path}: {' or '.join(map(str, late))}" if late else ""


def find_traps(paths: Sequence[Path], folder: Path, named: Iterable[str], *, has_gpu: bool) -> tuple[FoundTrap, ...]:
    """Return the traps in a trainer's sources, ordered by table row, file and line.

    Args:
        paths: The sources, the script first.
        named: Words of the config, which may name classes and functions.
    """
    if not any(_LOADS.search(read_beginning(path, 1 << 20)) for path in paths):
        return ()
    code = _Code(read_sources(paths, folder, named, _TELLING).code)
    found = []
    for trap in TRAPS:
        finder: Callable[[_Code], _Places] = globals()[trap.find]
        places = {(unit.file.name, line, name) for unit, line, name in finder(code) if has_gpu or not trap.needs_gpu}
        found += [FoundTrap(trap=trap, place=f"{file}:{line}", name=name) for file, line, name in sorted(places)]
    return tuple(found)


def with_traps(space: Space, traps: Iterable[FoundTrap]) -> Space:
    """Return a space that tries values affected by a trap last."""
    kinds = dict.fromkeys(found.trap for found in traps)
    late = ((knob, (one for trap in kinds for one in trap.late_values(knob))) for knob in space.knobs)
    return replace(space, knobs=tuple(replace(knob, late=tuple(dict.fromkeys(values))) for knob, values in late))


# Finders; `traps.toml` names each by its trap. Each yields the function or class, the line and the name for people.


_Places = Iterator[tuple[CodeScope, int, str]]

_KNOWS_WORKERS = re.compile(r"worker|shard|split_(?:by_node|dataset_by_node)", re.IGNORECASE)
_OTHERS_STREAM = re.compile(
    r"\w*(?:dataset|stream|loader|pipe|source|generat|iterator|queue|env|buffer|agent)\w*|ds|it", re.IGNORECASE
)
_STREAM_LIBRARIES = ("datasets", "webdataset", "wids", "litdata", "streaming", "torchdata", "tensorflow_datasets")
_HANDLES = re.compile(
    r"(?:io\.|gzip\.|bz2\.|lzma\.|lmdb\.|tarfile\.)?open|h5py\.File|zipfile\.ZipFile|tarfile\.TarFile|sqlite3\.connect"
)


def repeated_streams(code: _Code) -> _Places:
    """Yield iterable datasets of a loader that neither query their worker nor are random."""
    if code.mentions("worker_init_fn") or any(file.imports(*_STREAM_LIBRARIES) for file in code.live.files):
        return
    for one in code.readers:
        reads = code.methods(one).get("__iter__")
        is_plain = _is_iterable(one) and not code.reads_another(one) and not code.knows_workers(one)
        if reads and is_plain and not any(code.draws(reads, node, set()) for node in reads.nodes):
            yield reads, _line(reads.node), one.name


def shared_handles(code: _Code) -> _Places:
    """Yield files that a dataset opens in its constructor and reads in its workers."""
    if "__getstate__" in code.live.functions or code.mentions("spawn", "forkserver"):
        return
    for one, readers in code.readers.items():
        for unit in code.reached(one, "__init__"):
            for target, value in (pair for node in unit.nodes for pair in _assignments(node)):
                name = own(target)
                if name and _opens(unit, value) and code.is_kept(one, name) and _is_read(readers, name):
                    yield unit, value.lineno, f"{one.name}.{name}"


def frozen_pipelines(code: _Code) -> _Places:
    """Yield tf.data caches after a map whose function draws random numbers."""
    for unit, cache in dataset_calls(code.live, "cache"):
        for mapped in code.maps_before(unit, cache):
            if _run_together(unit, mapped, cache) and code.draws(unit, mapped.args[0], set()):
                names = [last_part(one) for one in ast.walk(mapped.args[0]) if code.named(unit, one)]
                yield unit, _line(cache), names[0] if names else "a map"


def frozen_samples(code: _Code) -> _Places:
    """Yield places where a PyTorch dataset stores the result of a random transform for reuse."""
    for one, readers in code.readers.items():
        parts = [node for unit in readers for node in unit.nodes if isinstance(node, ast.Subscript | ast.Attribute)]
        parts = [node for node in parts if isinstance(node.ctx, ast.Load) and getattr(node, "attr", "get") == "get"]
        taken = {own(node.value) for node in parts}
        for unit in readers:
            for node, kept, value in _kept(unit):
                if kept and kept in taken and code.is_transformed(unit, value):
                    yield unit, node.lineno, f"{one.name}.{kept}"


def cuda_in_workers(code: _Code) -> _Places:
    """Yield uses of CUDA where a dataset creates a sample."""
    if code.mentions("spawn", "forkserver"):
        return
    for one, readers in code.readers.items():
        calls = ((unit, call) for unit in readers for call in unit.calls)
        yield from ((unit, _line(call), f"{one.name}.{unit.name}") for unit, call in calls if code.is_cuda(unit, call))


def _is_iterable(one: CodeScope) -> bool:
    """Return whether a class extends PyTorch's iterable dataset, and nothing else."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in getattr(one.node, "bases", ())]
    names = {one.file.full_name(base) for base in bases}
    streams = {name for name in names if re.fullmatch(r"torch\.utils\.data\.(?:\w+\.)*IterableDataset", name)}
    return bool(streams) and all(name.startswith("typing.") for name in names - streams)


def _is_read(readers: Iterable[CodeScope], name: str) -> bool:
    """Return whether methods use an open file of ``self``, except by `os.pread` or mmap."""
    nodes = [(unit, node) for unit in readers for node in unit.nodes if own(node) == name]
    return any(getattr(unit.file.parents[node], "attr", "") not in ("fileno", "filename") for unit, node in nodes)


def _opens(unit: CodeScope, node: ast.expr) -> bool:
    """Return whether an expression opens a file for reading that processes cannot share."""
    if not isinstance(node, ast.Call) or not _HANDLES.fullmatch(unit.file.full_name(node.func)):
        return False
    given = {one.arg: getattr(one.value, "value", None) for one in node.keywords}
    mode = given.get("mode", getattr(node.args[1], "value", "") if len(node.args) > 1 else "")
    return not re.search("[wax]", str(mode)) and given.get("lock") is not False


def _kept(unit: CodeScope) -> Iterator[tuple[ast.stmt | ast.Call, str, ast.expr]]:
    for node in unit.nodes:
        if isinstance(node, ast.Assign):
            yield from ((node, own(to.value), node.value) for to in node.targets if isinstance(to, ast.Subscript))
        elif isinstance(node, ast.Call) and last_part(node.func) in ("append", "setdefault") and node.args:
            yield node, own(getattr(node.func, "value", node)), node.args[-1]


def _run_together(unit: CodeScope, mapped: ast.AST, cache: ast.AST) -> bool:
    """Return whether a map runs in training whenever a cache does."""
    of_map, of_cache = _branches(unit, mapped), _branches(unit, cache)
    further = of_map - of_cache
    trains = all(is_body and last_part(branch.test) in ("train", "training") for branch, is_body in further)
    return not further or (trains and of_cache <= of_map)


def _branches(unit: CodeScope, node: ast.AST) -> set[tuple[ast.If | ast.IfExp, bool]]:
    """Return the conditions above a node, each with whether the node is in its body."""
    return {
        (parent, part is parent.body or (isinstance(parent.body, list) and part in parent.body))
        for parent, part in unit.file.above(node, unit.node)
        if isinstance(parent, ast.If | ast.IfExp) and part is not parent.test
    }


_DRAWS = re.compile(
    r"tensorflow\.(?:compat\.v1\.)?(?:random\.(?:normal|uniform|truncated_normal|gamma|poisson|categorical|shuffle"
    r"|random_\w+)|random_(?:normal|uniform|shuffle|crop)|image\.random_\w+|image\.sample_distorted_bounding_box)"
    r"|numpy\.random\.(?!seed|default_rng|RandomState|Generator|SeedSequence|[gs]et_state|PCG64)\w+"
    r"|random\.(?:random|uniform|randint|randrange|choice|choices|sample|shuffle|gauss|normalvariate|betavariate)"
    r"|torch\.(?:rand|randn|randint|randperm|bernoulli|normal|multinomial|rand_like|randn_like)"
)
_GENERATORS = re.compile(
    r"numpy\.random\.(?:default_rng|RandomState|Generator)|random\.Random|tensorflow\.random\..*Generator"
)
_KERAS_LAYER = re.compile(r"(?:tensorflow\.)?keras\.(?:\w+\.)*layers\.(?:\w+\.)*Random[A-Z]\w*")
_TRANSFORM = re.compile(r"Random(?!State|Sampler|Forest)[A-Z]\w*|RandAugment|ColorJitter|\w+Augment(?:Wide)?|AugMix")


class _Code:
    """Index of a trainer's code: definitions and assignments by name.

    Attributes:
        readers: Datasets of PyTorch loaders, with their methods that create samples.
    """

    def __init__(self, live: LiveCode) -> None:
        self.live = live
        self._definitions = defaultdict[str, list[CodeScope]](list)
        self._inside = defaultdict[ast.AST, list[CodeScope]](list)
        self._assigned = defaultdict[tuple[str, str], list[tuple[CodeScope, ast.expr]]](list)
        for unit in live.units:
            if unit.outer is not None:
                self._definitions[unit.name].append(unit)
                self._inside[unit.outer.node].append(unit)
            for target, value in (pair for node in unit.nodes for pair in _assignments(node)):
                self._assigned[unit.file.name, spelled(target)].append((unit, value))
        names = ("__getitem__", "__getitems__", "__iter__", "__next__")
        self.readers = {one: self.reached(one, *names) for one in self._datasets()}

    def _datasets(self) -> Iterator[CodeScope]:
        for unit, call in ((one, call) for one in self.live.units for call in one.calls):
            name = unit.file.full_name(call.func)
            is_loader = re.fullmatch(r"(?:torch|torchdata|torch_geometric)\..*DataLoader", name)
            given = call.args[:1] if is_loader else []
            if is_loader or re.fullmatch(r"transformers\.(?:\w+\.)*\w*Trainer", name):
                given = [one.value for one in call.keywords if one.arg in ("dataset", "train_dataset")] or given
            for where, made in (pair for one in given for pair in self._values(unit, one)):
                if isinstance(made, ast.Call):
                    yield from (one for one in self.named(where, made.func) if isinstance(one.node, ast.ClassDef))

    def _values(self, unit: CodeScope, node: ast.expr) -> list[tuple[CodeScope, ast.expr]]:
        """Return an expression and the values assigned to it in a function, or else in its file."""
        assigned = self._assigned[unit.file.name, spelled(node)] if spelled(node) else []
        return [(unit, node), *([pair for pair in assigned if pair[0] is unit] or assigned)]

    def _before(self, unit: CodeScope, node: ast.expr, line: int) -> ast.expr | None:
        values = [value for where, value in self._values(unit, node)[1:] if where is unit and value.lineno < line]
        return max(values, key=lambda value: value.lineno, default=None)

    def named(self, unit: CodeScope, node: ast.AST) -> list[CodeScope]:
        """Return the function or class that an expression names, in its file or imported by name."""
        module, _, name = (own(node) or unit.file.full_name(node)).rpartition(".")
        if module and spelled(node).partition(".")[0] not in unit.file.imported:
            return []
        file = f"/{module.lstrip('.').replace('.', '/')}.py"
        found = [
            one
            for one in self._definitions[name]
            if (one.outer is not None and isinstance(one.outer.node, ast.ClassDef)) is bool(own(node))
            and (f"/{one.file.name}".endswith(file) if module else one.file is unit.file)
        ]
        return found if len(found) == 1 else []

    def mentions(self, *words: str) -> bool:
        """Return whether a string or a keyword argument's name is one of these words."""
        nodes = (node for _, node in self.live.nodes() if isinstance(node, ast.keyword | ast.Constant))
        return any(getattr(node, "arg", getattr(node, "value", None)) in words for node in nodes)

    # Classes

    def methods(self, one: CodeScope) -> dict[str, CodeScope]:
        return {unit.name: unit for unit in self._inside[one.node]}

    def reached(self, one: CodeScope, *names: str) -> list[CodeScope]:
        """Return methods of a class, those that they call, and nested functions."""
        methods = self.methods(one)
        found = [methods[name] for name in names if name in methods]
        for unit in found:  # grows during iteration
            called = [methods[name] for node in unit.nodes if (name := own(node)) in methods]
            found += [other for other in dict.fromkeys((*called, *self._inside[unit.node])) if other not in found]
        return found

    def knows_workers(self, one: CodeScope) -> bool:
        """Return whether a class, or a definition whose name it uses, refers to workers."""
        found = [one]
        for unit in found:  # grows during iteration
            names = {last_part(node) or getattr(node, "arg", None) or "" for node in unit.nodes}
            if any(map(_KNOWS_WORKERS.search, names)):
                return True
            further = [*self._inside[unit.node], *(other for name in names for other in self._definitions[name])]
            found += [other for other in dict.fromkeys(further) if other not in found]
        return False

    def reads_another(self, one: CodeScope) -> bool:
        """Return whether a stream may read another one that handles workers."""
        methods = self.methods(one)
        for unit in self.reached(one, "__iter__"):
            made = {call.func for call in unit.calls if not call.args}
            given = [node for node in unit.nodes if own(node) and own(node) not in methods]
            if any(node in made or _OTHERS_STREAM.fullmatch(own(node)) for node in given):
                return True
        return False

    def is_kept(self, one: CodeScope, name: str) -> bool:
        """Return whether an attribute is assigned once, and not closed there."""
        pairs = ((target, unit) for (_, target), made in self._assigned.items() for unit, _ in made)
        named = ((target, unit) for target, unit in pairs if target.endswith(f".{name}"))
        made = [unit for target, unit in named if unit.outer is one or not target.startswith("self.")]
        return len(made) == 1 and not any(spelled(node) == f"self.{name}.close" for node in made[0].nodes)

    # Randomness

    def maps_before(self, unit: CodeScope, cache: ast.Call) -> Iterator[ast.Call]:
        """Yield the maps in a cache's chain, including earlier assignments of its dataset."""
        node: ast.expr | None = cache
        line = cache.lineno
        while node is not None:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHAINED:
                if node.func.attr == "map" and node.args:
                    yield node
                node = node.func.value
            elif (node := self._before(unit, node, line)) is not None:
                line = node.lineno

    def draws(self, unit: CodeScope, top: ast.AST, seen: set[ast.AST]) -> bool:
        """Return whether code, including functions that it names, always draws random numbers."""
        if any(isinstance(node, ast.Call) and last_part(node.func) in ("seed", "set_seed") for node in ast.walk(top)):
            return False  # seeded, perhaps by the sample
        seen.add(top)
        nodes = _always(top)
        named = (one for node in nodes for one in self.named(unit, node) if not isinstance(one.node, ast.ClassDef))
        return any(isinstance(node, ast.Call) and self._is_draw(unit, node) for node in nodes) or any(
            one.node not in seen and self.draws(one, one.node, seen) for one in named
        )

    def _is_draw(self, unit: CodeScope, call: ast.Call) -> bool:
        name = unit.file.full_name(call.func)
        if _DRAWS.fullmatch(name) and spelled(call.func).partition(".")[0] in unit.file.imported:
            return True
        if isinstance(call.func, ast.Attribute) and call.func.attr not in ("split", "seed", "spawn"):
            for where, made in self._values(unit, call.func.value):
                if isinstance(made, ast.Call) and _GENERATORS.fullmatch(where.file.full_name(made.func)):
                    may_be_seeded = made.args or made.keywords  # by the sample
                    return where is not unit or not unit.name or not may_be_seeded
        is_on = all(getattr(one.value, "value", None) is True for one in call.keywords if one.arg == "training")
        return is_on and any(  # on is Keras's default
            isinstance(one, ast.Call) and _KERAS_LAYER.fullmatch(where.file.full_name(one.func))
            for where, made in self._values(unit, call.func)
            for one in ast.walk(made)
        )

    def is_transformed(self, unit: CodeScope, value: ast.expr) -> bool:
        """Return whether a value comes from a random transform in the same function."""
        found = [value]
        for made in found:  # grows during iteration
            parts = list(ast.walk(made))
            if any(isinstance(part, ast.Call) and self._is_transform(unit, part.func) for part in parts):
                return True
            earlier = [self._before(unit, part, made.lineno) for part in parts if isinstance(part, ast.Name)]
            found += [one for one in dict.fromkeys(earlier) if one is not None and one not in found]
        return False

    def _is_transform(self, unit: CodeScope, node: ast.expr) -> bool:
        if own(node) in ("transform", "transforms"):  # random if any is
            calls = (call for one in self.live.units for call in one.calls)
            return any(_TRANSFORM.fullmatch(last_part(call.func)) for call in calls)
        return bool(re.search("augment|random", own(node))) or self.draws(unit, node, set())

    def is_cuda(self, unit: CodeScope, call: ast.Call) -> bool:
        """Return whether a call moves or creates data on a GPU."""
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        named = [one.value for one in call.keywords if one.arg == "device"]
        devices = [*named, *call.args[: method == "to"]]
        values = (value for device in devices for _, value in self._values(unit, device))
        texts = (getattr(part, "value", None) for value in values for part in ast.walk(value))
        return method == "cuda" or any(isinstance(text, str) and re.fullmatch(r"cuda(:\d+)?", text) for text in texts)


def _line(node: ast.AST) -> int:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return int(getattr(node, "lineno", 0))


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (target, value) of an assignment; unpacked targets get the whole value."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = (part for to in targets for part in (to.elts if isinstance(to, ast.Tuple | ast.List) else [to]))
        yield from ((part, node.value) for part in parts)


def _always(top: ast.AST) -> list[ast.AST]:
    """Return the nodes below `top` that are always evaluated, except sleeps."""
    found = [top]
    for node in found:  # grows during iteration
        parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.If | ast.IfExp):
            parts = [node.test]
        elif isinstance(node, ast.BoolOp):
            parts = node.values[:1]
        elif isinstance(node, ast.Call) and last_part(node.func) == "sleep":
            parts = []
        for part in parts:
            found.append(part)
            if isinstance(part, ast.If) and any(isinstance(one, ast.Return) for one in ast.walk(part)):
                break  # what follows may not be reached
    return found


def own(node: ast.AST) -> str:
    """Return the attribute of ``self`` that an expression is, or an empty string."""
    return node.attr if isinstance(node, ast.Attribute) and spelled(node.value) == "self" else ""

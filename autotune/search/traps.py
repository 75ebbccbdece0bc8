"""Traps in a trainer's sources: code with which other values of a knob give other data; `traps.toml` is the table.

Sources are read with `ast` and never imported. Where it is not clear what a name stands for, nothing is found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from autotune.config.sources import CHAINED, CodeScope, Function, dataset_calls, last_part, read_sources
from autotune.config.value_flow import Conditions, ValueFlow, assigned_to, assignments, bound, own, parameters
from autotune.files import read_beginning
from autotune.records import Scalar
from autotune.space.knob import Knob, is_number, same_scalar
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
        """Return the values of a knob that give other data than its baseline, because of this trap."""
        if knob.kind not in self.kinds:
            return ()
        if self.above is None:
            snapping: Sequence[Scalar] = knob.settling
        else:
            snapping = [one for one in knob.choices if isinstance(one, int | float) and one > self.above]
        if any(same_scalar(one, knob.baseline) for one in snapping):
            return tuple(one for one in knob.choices if not same_scalar(one, knob.baseline))
        return tuple(snapping)


TRAPS = msgspec.convert(
    msgspec.toml.decode(Path(__file__).with_name("traps.toml").read_bytes())["trap"], tuple[Trap, ...]
)


@dataclass(frozen=True, kw_only=True)
class FoundTrap:
    """Trap at a place in the trainer's sources.

    Attributes:
        place: File and line.
        name: Class, attribute or function that it is about.
    """

    trap: Trap
    place: str
    name: str

    @property
    def sentence(self) -> str:
        """What goes wrong, for people."""
        return self.trap.sentence.format(name=self.name)

    def remark(self, space: Space) -> str:
        """Return a line on it for whoever searches; empty if no knob of the space makes it snap."""
        late = [text for knob in space.knobs if (text := self._late_text(knob))]
        verb = "is" if len(late) == 1 else "are"
        return f"{self.place}: {self.sentence}; {' and '.join(late)} {verb} tried last" if late else ""

    def _late_text(self, knob: Knob) -> str:
        late = self.trap.late_values(knob)
        if not late:
            return ""
        above = self.trap.above
        if (
            above is not None
            and is_number(knob.baseline)
            and all(isinstance(v, int | float) and v > above for v in late)
        ):
            return f"{knob.path} above {above}"
        return f"{knob.path}: {' or '.join(map(str, late))}"


def find_traps(paths: Sequence[Path], folder: Path, named: Iterable[str], *, has_gpu: bool) -> tuple[FoundTrap, ...]:
    """Read a trainer's sources and find the traps in them, in the order of the table, files and lines.

    Args:
        paths: The sources, the script first.
        folder: Folder that their names are relative to, where they are in it.
        named: Words of the config, which may name classes and functions.
    """
    if not any(_LOADS.search(read_beginning(path, 1 << 20)) for path in paths):
        return ()
    flow = _Data(read_sources(paths, folder, named, _TELLING).code)
    found = []
    for trap in TRAPS:
        finder: Callable[[_Data], _Places] = globals()[trap.find]
        places = {(unit.file.name, line, name) for unit, line, name in finder(flow) if has_gpu or not trap.needs_gpu}
        found += [FoundTrap(trap=trap, place=f"{file}:{line}", name=name) for file, line, name in sorted(places)]
    return tuple(found)


def with_traps(space: Space, traps: Iterable[FoundTrap]) -> Space:
    """Return a space in which the values that give other data because of a trap are tried last."""
    kinds = {found.trap.id: found.trap for found in traps}.values()
    return replace(
        space,
        knobs=tuple(
            replace(knob, late=tuple(dict.fromkeys(one for trap in kinds for one in trap.late_values(knob))))
            for knob in space.knobs
        ),
    )


# Finders; `traps.toml` names each by its trap. Each yields the function or class, the line and the name for people.


_Places = Iterator[tuple[CodeScope, int, str]]

_KNOWS_WORKERS = re.compile(r"\w*worker\w*|shard|split_(?:by_node|dataset_by_node)", re.IGNORECASE)
_OTHERS_STREAM = re.compile(
    r"\w*(?:dataset|stream|loader|pipe|source|generat|iterator|queue|env|buffer|agent)\w*|ds|it", re.IGNORECASE
)
_STREAM_LIBRARIES = ("datasets", "webdataset", "wids", "litdata", "streaming", "torchdata", "tensorflow_datasets")
_HANDLES = re.compile(
    r"(?:io\.|gzip\.|bz2\.|lzma\.|lmdb\.|tarfile\.)?open|h5py\.File|zipfile\.ZipFile|tarfile\.TarFile|sqlite3\.connect"
    r"|lmdb\.Environment|tables\.open_file|netCDF4\.Dataset"
)
_READERS = ("__getitem__", "__getitems__", "__iter__", "__next__")
_HARMLESS_CUDA = re.compile(r"torch\.cuda\.(?:is_\w+|device_count|empty_cache|(?:manual_)?seed\w*|amp\..*|nvtx\..*)")
_RANDOM_TRANSFORM = re.compile(r"Random[A-Z]\w*|RandAugment|ColorJitter|AutoAugment|TrivialAugment\w*|AugMix")


def repeated_streams(flow: _Data) -> _Places:
    """Yield iterable datasets that a loader reads, and that do not ask which worker they are in."""
    for loader, sets in flow.loaders:
        if flow.may_set_up_workers(loader) or any(map(flow.knows_workers, sets)):
            continue
        for one in sets:
            reads = flow.methods(one).get("__iter__")
            if reads and flow.is_iterable(one) and not flow.is_random_stream(reads) and not flow.reads_another(one):
                yield reads, _line(reads.node), one.name


def shared_handles(flow: _Data) -> _Places:
    """Yield files that a dataset opens as it is made, and reads in its workers."""
    for one in flow.datasets_read:
        methods = flow.methods(one)
        if "__getstate__" in methods or flow.starts_by_spawning:
            continue
        for unit, line, attribute in flow.handles(one):
            if flow.is_read_in_workers(one, attribute):
                yield unit, line, f"{one.name}.{attribute}"


def frozen_pipelines(flow: _Data) -> _Places:
    """Yield caches of tf.data behind a map whose function draws random numbers."""
    for unit, call in dataset_calls(flow.code, "cache"):
        assert isinstance(call.func, ast.Attribute), "a method"
        conditions = flow.conditions(unit, call)
        for inner, mapped in flow.mapped_before(unit, call.func.value, call, set()):
            together = inner is not unit or flow.may_hold(unit, conditions | flow.conditions(unit, mapped))
            if together and (draws := flow.drawn_by(inner, mapped.args[0])):
                yield unit, call.func.end_lineno or call.lineno, draws


def frozen_samples(flow: _Data) -> _Places:
    """Yield where a dataset of PyTorch keeps the result of a random transform."""
    for one in flow.datasets_read:
        for unit in flow.reached(one, *_READERS):
            for node, attribute, value in _kept(unit):
                if flow.is_collection(one, attribute) and flow.is_random_value(unit, value, node):
                    yield unit, node.lineno, f"{one.name}.{attribute}"


def cuda_in_workers(flow: _Data) -> _Places:
    """Yield what a dataset does with CUDA where it makes a sample, or tensors there that were made on a GPU before."""
    if flow.starts_by_spawning:
        return
    for one in flow.datasets_read:
        readers = flow.reached(one, *_READERS)
        used = {node.attr for unit in readers for node in unit.nodes if isinstance(node, ast.Attribute)}
        for unit in (*readers, *flow.reached(one, "__init__")):
            for call in unit.calls:
                kept = flow.attribute_of(unit, call)
                if flow.is_cuda(unit, call) and (unit in readers or kept in used):
                    name = f"{one.name}.{unit.name if unit in readers else kept}"
                    yield unit, getattr(call.func, "end_lineno", None) or call.lineno, name


def _kept(unit: CodeScope) -> Iterator[tuple[ast.stmt | ast.Call, str, ast.expr]]:
    """Yield what is put into collections of an object: the statement, the attribute, the value."""
    for node in unit.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and (name := own(target.value)):
                    yield node, name, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            name = own(node.func.value)
            if name and node.func.attr in ("append", "setdefault"):
                yield node, name, node.args[-1]


_DRAWS = re.compile(
    r"tensorflow\.(?:compat\.v1\.)?(?:random\.(?:normal|uniform|truncated_normal|gamma|poisson|categorical|shuffle"
    r"|random_\w+)|random_(?:normal|uniform|shuffle|crop)|image\.random_\w+|image\.sample_distorted_bounding_box)"
    r"|(?:tensorflow\.)?keras\.preprocessing\.image\.random_\w+"
    r"|numpy\.random\.(?!seed|default_rng|RandomState|Generator|SeedSequence|[gs]et_state|PCG64)\w+"
    r"|random\.(?:random|uniform|randint|randrange|choice|choices|sample|shuffle|gauss|normalvariate|betavariate)"
    r"|torch\.(?:rand|randn|randint|randperm|bernoulli|normal|multinomial|rand_like|randn_like)"
)
_GENERATORS = re.compile(
    r"numpy\.random\.(?:default_rng|RandomState|Generator)|random\.Random|tensorflow\.random\.(?:\w+\.)*Generator.*"
    r"|tensorflow\.random\.get_global_generator"
)
_KERAS_LAYER = re.compile(
    r"(?:tensorflow\.)?(?:\w+\.)*(?:layers|preprocessing)\.(?:\w+\.)*Random[A-Z]\w*|Random[A-Z]\w*"
)
_MAPS = ("map", "flat_map", "interleave")


class _Data(ValueFlow):
    """Data of a trainer: its datasets and loaders, and what they do in workers, in caches and at random."""

    def is_dataset(self, one: CodeScope) -> bool:
        return any(
            re.fullmatch(r"torch\.utils\.data\.(?:\w+\.)*(?:Iterable)?Dataset", name) for name in self.bases(one)
        )

    def is_iterable(self, one: CodeScope) -> bool:
        return any(re.fullmatch(r"torch\.utils\.data\.(?:\w+\.)*IterableDataset", name) for name in self.bases(one))

    # Loaders

    @cached_property
    def loaders(self) -> list[tuple[ast.Call, list[CodeScope]]]:
        """Loaders of PyTorch, each with the datasets of the trainer's own that it reads."""
        found = []
        for unit in self.code.units:
            for call in unit.calls:
                name = unit.file.full_name(call.func)
                is_loader = re.fullmatch(r"(?:torch|torchdata|torch_geometric)\..*DataLoader", name)
                is_trainer = re.fullmatch(r"transformers\.(?:\w+\.)*\w*Trainer", name)
                given = self.argument(call, "dataset", 0) if is_loader else None
                given = self.argument(call, "train_dataset", 2) if is_trainer else given
                if given is not None:
                    sets = [one for one in self.made(unit, given) if self.is_dataset(one)]
                    found.append((call, list(dict.fromkeys(sets))))
        return found

    @cached_property
    def datasets_read(self) -> list[CodeScope]:
        """Datasets of the trainer's own that loaders read."""
        return list(dict.fromkeys(one for _, sets in self.loaders for one in sets))

    @cached_property
    def starts_by_spawning(self) -> bool:
        """Whether workers may be started in another way than by forking."""
        return any(
            isinstance(node, ast.Constant) and node.value in ("spawn", "forkserver") for _, node in self.code.nodes()
        )

    def argument(self, call: ast.Call, name: str, place: int) -> ast.expr | None:
        named = next((one.value for one in call.keywords if one.arg == name), None)
        return named or next(iter(call.args[place:]), None)

    def may_set_up_workers(self, loader: ast.Call) -> bool:
        """Return whether a loader is given a ``worker_init_fn``, or a dict of options that may hold one."""
        if any(one.arg is None for one in loader.keywords):
            names = (
                node.arg if isinstance(node, ast.keyword) else getattr(node, "value", None)
                for _, node in self.code.nodes()
            )
            return "worker_init_fn" in names
        return self.argument(loader, "worker_init_fn", 9) is not None

    # Randomness

    def drawn_by(self, unit: CodeScope, node: ast.expr) -> str:
        """Return the name of the function, given to a map, that draws random numbers; empty if none is known to."""
        if not self._draws(unit, list(ast.walk(node)), {}, set(), self.conditions(unit, node)):
            return ""
        names = [last_part(one) for one in ast.walk(node) if self.functions_named(unit, one)]
        return names[0] if names else "a map"

    def _draws(
        self,
        unit: CodeScope,
        nodes: Sequence[ast.AST],
        given: Mapping[str, ast.expr],
        seen: set[ast.AST],
        held: Conditions = frozenset(),
    ) -> bool:
        """Return whether these nodes of a function draw random numbers, also in the functions that they name.

        Args:
            given: What the function's parameters are, as far as it is known: what stands under a condition counts if
                these make it true.
            held: Conditions that hold anyway.
        """
        if any(isinstance(one, ast.Call) and last_part(one.func) in ("seed", "set_seed") for one in nodes):
            return False  # drawn from what the sample is
        for node in nodes:
            is_draw = isinstance(node, ast.Call) and self._is_draw(unit, node)
            named = self.functions_named(unit, node) if isinstance(node, ast.Name | ast.Attribute) else []
            if not is_draw and not named:
                continue
            if any(self.truth(test, given) is not holds for test, holds in self.conditions(unit, node) - held):
                continue
            if is_draw:
                return True
            for one in named:
                if one.node not in seen:
                    seen.add(one.node)
                    parts = [part for inner in (one, *self._all_inside(one)) for part in inner.nodes]
                    if self._draws(one, parts, self._arguments_at(unit, node, one), seen):
                        return True
        return False

    def _all_inside(self, unit: CodeScope) -> Iterator[CodeScope]:
        for inner in self.inner.get(unit.node, ()):
            yield inner
            yield from self._all_inside(inner)

    def _arguments_at(self, unit: CodeScope, node: ast.AST, one: CodeScope) -> dict[str, ast.expr]:
        """Return what a function is given where it is named: called, or bound by `functools.partial`."""
        assert isinstance(one.node, Function)
        call = unit.file.parents.get(node)
        args, keywords = [], []
        if isinstance(call, ast.Call) and call.func is node:
            args, keywords = call.args, call.keywords
        elif isinstance(call, ast.Call) and last_part(call.func) == "partial" and call.args[:1] == [node]:
            args, keywords = call.args[1:], call.keywords
        return bound(one.node, args, keywords, is_method=bool(own(node)))

    def _is_draw(self, unit: CodeScope, call: ast.Call) -> bool:
        whole, parent = unit.file.full_name(call.func), unit.file.parents.get(call)
        if isinstance(parent, ast.Call) and last_part(parent.func) == "sleep":
            return False
        if _DRAWS.fullmatch(whole):
            return whole.partition(".")[0] in {name.partition(".")[0] for name in unit.file.imported.values()}
        if isinstance(call.func, ast.Attribute) and call.func.attr not in ("split", "seed", "spawn"):
            made = list(self.origins(unit, call.func.value, set()))
            if any(self._is_generator(where, one, unit) for where, one in made):
                return True
        is_on = all(getattr(one.value, "value", None) is True for one in call.keywords if one.arg == "training")
        return is_on and self._is_augmenter(unit, call.func)  # Keras's own default is to be on

    def _is_generator(self, unit: CodeScope, node: ast.expr, used_in: CodeScope) -> bool:
        if not isinstance(node, ast.Call) or not _GENERATORS.fullmatch(unit.file.full_name(node.func)):
            return False
        is_of_sample = unit is used_in and isinstance(unit.node, Function) and bool(node.args or node.keywords)
        return not is_of_sample

    def _is_augmenter(self, unit: CodeScope, node: ast.expr) -> bool:
        return any(
            isinstance(one, ast.Call)
            and _KERAS_LAYER.fullmatch(where.file.full_name(one.func))
            and where.file.imports("tensorflow", "keras")
            for where, one in self.origins(unit, node, set())
        )

    # Pipelines of tf.data

    def mapped_before(
        self, unit: CodeScope, node: ast.expr, before: ast.AST, seen: set[tuple[ast.AST, int]]
    ) -> Iterator[tuple[CodeScope, ast.Call]]:
        """Yield the maps that a dataset has gone through.

        Args:
            before: Node before which the dataset is what it is, where it is a name.
        """
        line = _line(before)
        if (node, line) in seen:
            return
        seen.add((node, line))
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in CHAINED:
                if node.func.attr in _MAPS and node.args:
                    yield unit, node
                yield from self.mapped_before(unit, node.func.value, before, seen)
                return
            for one in self.functions_named(unit, node.func):
                for part in one.nodes:
                    if isinstance(part, ast.Return) and part.value is not None and self._runs_at(unit, node, one, part):
                        yield from self._mapped_within(unit, node, one, part, seen)
        elif isinstance(node, ast.Name):
            now = self.conditions(unit, before)
            earlier = [
                (_line(made), made, value)
                for made in unit.nodes
                for value in assigned_to(made, node.id)
                if _line(made) < line and _go_together(now, self.conditions(unit, made))
            ]
            for _, made, value in sorted(earlier, key=lambda one: -one[0]):
                yield from self.mapped_before(unit, value, made, seen)
                if self.conditions(unit, made) <= now:
                    return  # what was before is overwritten
            if isinstance(unit.node, Function) and node.id in parameters(unit.node):
                for where, given in self.given(unit):
                    if node.id in given and self.meets(given, now):
                        yield from self.mapped_before(where, given[node.id], given[node.id], seen)

    def _runs_at(self, unit: CodeScope, call: ast.Call, one: CodeScope, part: ast.AST) -> bool:
        return self.meets(self._arguments_at(unit, call.func, one), self.conditions(one, part))

    def _mapped_within(
        self, unit: CodeScope, call: ast.Call, one: CodeScope, part: ast.Return, seen: set[tuple[ast.AST, int]]
    ) -> Iterator[tuple[CodeScope, ast.Call]]:
        assert part.value is not None
        for inner, mapped in self.mapped_before(one, part.value, part, seen):
            if inner is not one or self._runs_at(unit, call, one, mapped):
                yield inner, mapped

    # Datasets of PyTorch

    def knows_workers(self, one: CodeScope) -> bool:
        """Return whether a class, or a function that it may call, says anything of workers."""
        waiting, seen = list(self.lineage(one)), set[CodeScope]()
        while waiting:
            unit = waiting.pop()
            if unit in seen:
                continue
            seen.add(unit)
            if any(_KNOWS_WORKERS.fullmatch(name) for name in _identifiers(unit)):
                return True
            waiting += self.inner.get(unit.node, ())
            for name in {last_part(node) for node in unit.nodes} - {""}:
                waiting += [*self.code.functions.get(name, ()), *self.classes.get(name, ())]
        return False

    def is_random_stream(self, reads: CodeScope) -> bool:
        """Return whether a stream has no order that workers could repeat: it draws each sample, or goes on forever."""
        units = [reads, *self._all_inside(reads)]
        nodes = [node for unit in units for node in unit.nodes]
        if not self._draws(reads, nodes, {}, set()) and not any(
            isinstance(node, ast.Call) and self._is_draw(reads, node) for node in nodes
        ):
            return False
        loops = [node for node in nodes if isinstance(node, ast.For)]
        reads_data = any(not (isinstance(one.iter, ast.Call) and last_part(one.iter.func) == "range") for one in loops)
        endless = any(isinstance(one, ast.While) and getattr(one.test, "value", None) for one in nodes)
        return endless or not reads_data

    def reads_another(self, one: CodeScope) -> bool:
        """Return whether a stream reads something that it is given, and that may know of workers."""
        uses_library = any(file.imports(*_STREAM_LIBRARIES) for file in self.code.files)
        for unit in self.reached(one, "__iter__"):
            for node in unit.nodes:
                name, parent = own(node), unit.file.parents.get(node)
                if not name or not isinstance(node, ast.Attribute):
                    continue
                is_source = _OTHERS_STREAM.fullmatch(name) or (
                    isinstance(parent, ast.Call) and parent.func is node and _is_gone_through(unit, parent)
                )
                for where, value in self.attribute_values(unit, node):
                    is_given = isinstance(value, ast.Name) and value.id in parameters(where.node)
                    if (is_given or isinstance(value, ast.Call)) and (uses_library or is_source):
                        return True
        return False

    def handles(self, one: CodeScope) -> Iterator[tuple[CodeScope, int, str]]:
        """Yield the attributes that a class keeps open files in from the beginning, each where it is opened."""
        made = self.reached(one, "__init__")
        for unit in made:
            for node in unit.nodes:
                for target, value in assignments(node):
                    name = own(target)
                    opened = self._opened(unit, value, set()) if name else None
                    if opened is not None and not self._is_given_up(one, name, made):
                        yield unit, opened.lineno, name

    def _opened(self, unit: CodeScope, node: ast.expr, seen: set[ast.AST]) -> ast.Call | None:
        """Return the call that opens the file that an expression is, or reads on demand; None if it is none."""
        if node in seen:
            return None
        seen.add(node)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                return self._opened(unit, node.func.value, seen)
            if not _HANDLES.fullmatch(unit.file.full_name(node.func)):
                return None
            mode = self.argument(node, "mode", 1)
            writes = isinstance(mode, ast.Constant) and re.search("[wax]", str(mode.value))
            is_unlocked = any(one.arg == "lock" and getattr(one.value, "value", 1) is False for one in node.keywords)
            return None if writes or is_unlocked else node
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            return self._opened(unit, node.value, seen)  # a data set of HDF5
        if isinstance(node, ast.ListComp):
            return self._opened(unit, node.elt, seen)
        if isinstance(node, ast.DictComp):
            return self._opened(unit, node.value, seen)
        if isinstance(node, ast.Name):
            values = [value for one in unit.nodes for value in assigned_to(one, node.id)]
            return self._opened(unit, values[0], seen) if len(values) == 1 else None
        return None

    def _is_given_up(self, one: CodeScope, name: str, made: Sequence[CodeScope]) -> bool:
        """Return whether an attribute is closed or emptied as the object is made, or assigned again later."""
        lineage = {unit.node for unit in self.lineage(one)}
        for unit in self.code.units:
            is_method = unit.outer is not None and unit.outer.node in lineage
            for node in unit.nodes:
                for target, value in assignments(node):
                    is_it = isinstance(target, ast.Attribute) and target.attr == name and (is_method or not own(target))
                    if is_it and (unit not in made or self._opened(unit, value, set()) is None):
                        return True
                closes = isinstance(node, ast.Attribute) and node.attr == "close" and last_part(node.value) == name
                if closes and unit in made:
                    return True
        return False

    def is_read_in_workers(self, one: CodeScope, attribute: str) -> bool:
        """Return whether workers read an open file, other than by `os.pread` or a map of it."""
        for unit in self.reached(one, *_READERS):
            for node in unit.nodes:
                parent = unit.file.parents.get(node)
                is_positional = isinstance(parent, ast.Attribute) and parent.attr in ("fileno", "name", "filename")
                if own(node) == attribute and not is_positional:
                    return True
        return False

    def is_collection(self, one: CodeScope, attribute: str) -> bool:
        """Return whether an attribute begins as an empty list or dict, and samples are taken from it."""
        values = [
            value
            for unit in self.reached(one, "__init__")
            for part in unit.nodes
            for target, value in assignments(part)
            if own(target) == attribute
        ]
        begins = any(
            isinstance(value, ast.Dict | ast.List | ast.BinOp)
            or (isinstance(value, ast.Call) and last_part(value.func) in ("dict", "list", "OrderedDict"))
            for value in values
        )
        return begins and any(
            isinstance(node, ast.Return | ast.Assign) and node.value is not None and _is_taken(node.value, attribute)
            for unit in self.reached(one, *_READERS)
            for node in unit.nodes
        )

    def is_random_value(self, unit: CodeScope, value: ast.expr, before: ast.AST) -> bool:
        """Return whether something was transformed at random in a function before a node."""
        now, seen = self.conditions(unit, before), set[ast.AST]()
        if isinstance(value, ast.Call) and self._is_draw(unit, value):
            return False  # drawn to be kept
        waiting = [value]
        while waiting:
            expression = waiting.pop()
            if expression in seen:
                continue
            seen.add(expression)
            parts = list(ast.walk(expression))
            if any(isinstance(part, ast.Call) and self._transforms(unit, part) for part in parts):
                return True
            for name in {part.id for part in parts if isinstance(part, ast.Name)}:
                waiting += [
                    made
                    for node in unit.nodes
                    for made in assigned_to(node, name)
                    if _line(node) < _line(before) and _go_together(now, self.conditions(unit, node))
                ]
        return False

    def _transforms(self, unit: CodeScope, call: ast.Call) -> bool:
        """Return whether a call applies a random transform."""
        if self._is_draw(unit, call) or self._draws(unit, [call.func], {}, set()):
            return True
        return any(
            isinstance(one, ast.Call) and _RANDOM_TRANSFORM.fullmatch(last_part(one.func))
            for _, one in self.origins(unit, call.func, set())
        )

    # CUDA

    def is_cuda(self, unit: CodeScope, call: ast.Call) -> bool:
        """Return whether a call computes on a GPU, or moves something there."""
        name = unit.file.full_name(call.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" and not name.startswith("torch."):
            return True
        if name.startswith("torch.cuda."):
            return not _HARMLESS_CUDA.fullmatch(name)
        is_move = isinstance(call.func, ast.Attribute) and call.func.attr == "to"
        devices = [one.value for one in call.keywords if one.arg == "device"] if is_move or "torch" in name else []
        return any(self._is_gpu(unit, one) for one in (*devices, *(call.args[:1] if is_move else ())))

    def _is_gpu(self, unit: CodeScope, node: ast.expr) -> bool:
        """Return whether a device is a GPU wherever there is one."""
        return any(
            isinstance(one, ast.Constant) and isinstance(one.value, str) and re.fullmatch(r"cuda(?::\d+)?", one.value)
            for _, one in self.origins(unit, node, set())
        )

    def attribute_of(self, unit: CodeScope, node: ast.AST) -> str:
        """Return the attribute of ``self`` that an expression is assigned to; empty for none."""
        statement = next((one for one, _ in unit.file.above(node, unit.node) if isinstance(one, ast.stmt)), None)
        return next(filter(None, map(own, getattr(statement, "targets", ()))), "")


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _go_together(some: Conditions, others: Conditions) -> bool:
    return not any((test, not holds) in some for test, holds in others)


def _is_gone_through(unit: CodeScope, call: ast.Call) -> bool:
    """Return whether a function loops over the result of a call, or returns it."""
    names = {last_part(one) for node in unit.nodes if isinstance(node, ast.For) for one in ast.walk(node.iter)}
    statement = next((one for one, _ in unit.file.above(call, unit.node) if isinstance(one, ast.stmt)), call)
    is_iterated = isinstance(statement, ast.For | ast.Return) or last_part(unit.file.parents[call]) == "iter"
    return is_iterated or any(
        isinstance(one, ast.Name) and one.id in names for one in getattr(statement, "targets", ())
    )


def _identifiers(unit: CodeScope) -> Iterator[str]:
    """Yield the names in a function or class, those of parameters and arguments included."""
    yield from parameters(unit.node)
    for node in unit.nodes:
        yield last_part(node)
        if isinstance(node, ast.keyword | ast.arg):
            yield node.arg or ""


def _is_taken(node: ast.expr, attribute: str) -> bool:
    """Return whether an expression takes something out of a collection of ``self``."""
    return any(
        (isinstance(one, ast.Subscript) and own(one.value) == attribute)
        or (isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and own(one.func.value) == attribute)
        for one in ast.walk(node)
    )

"""Imports of a zygote: made once before the fork, and handed out after it in the order of a fresh interpreter.

Part of zygote_process.py, which executes the text of this file in its own namespace: Python 3.9 syntax, and
the standard library only.

A trial is to find in ``sys.modules``, and in the modules themselves, what its own imports would have put there:

* Modules are parked outside of ``sys.modules`` until the trainer imports them.
* A package is handed out with all that its import brought along, the standard library's modules included.
* A module of the standard library is handed out with its family: those whose objects it holds, such as its C half.
  Objects find their module by ``sys.modules[object.__module__]``.
* What a later import has changed in modules of earlier ones (a submodule as an attribute, a function replaced by one
  of its own) is taken back until that import is made.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # executed in the same namespace
    from autotune.trial.zygote_forkable import (
        OwnModules,
        _is_elsewhere,
        _is_import,
        _place_of,
        _threads,
        _try,
        _why_not_forkable,
    )

AT_START: frozenset[str]
"""Modules that an interpreter has loaded when it comes to the trainer's code; set by `zygote_process.BOOTSTRAP`."""

LATE_VARIABLES = frozenset(
    (
        # Of each trial.
        "AUTOTUNE_TRIAL_ID",
        "AUTOTUNE_TRIAL_DIR",
        "AUTOTUNE_CACHE_DIR",
        # Of each trial too; the interpreter itself keeps to the system's, which outlives the trials.
        "TMPDIR",
        # TensorFlow reads these at the first operation, not at import.
        "TF_XLA_FLAGS",
        "XLA_FLAGS",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
    )
)
"""Variables that may differ from trial to trial: no import reads them."""

# A trainer may have put a FIFO, or a link, where one of our files is to be.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | _SAFELY
_APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFELY
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
_TRIAL_DIR = "\0trial"  # stands for the trial's own folder in values; no real value holds a NUL
_TEMPORARY = "\0temporary"  # stands for the folder for temporary files of the process
_ABSENT = object()


class Package:
    """Package that was imported for the trials, with all modules that it brought along.

    Args:
        modules: Names in ``sys.modules`` that its import added.

    Attributes:
        packages: Top-level names among its modules that are not the standard library's.
        late: What its import changed in modules of earlier ones: their namespace, name, value before and after.
    """

    def __init__(self, modules: set[str], before: dict[str, str], after: dict[str, str]) -> None:
        self.modules = modules
        self.packages = {_top(name) for name in modules if not _is_standard(name)}
        self.before = before
        self.changes = {
            name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        }
        self.late: list[tuple[dict[str, Any], str, Any, Any]] = []


def _top(module: str) -> str:
    return module.partition(".")[0]


class Folders:
    """Folders of this process that no other trial has, with a placeholder for each in the values of variables.

    PyTorch sets a variable to a folder below the one for temporary files when it is imported, for instance.

    Args:
        temporary: The folder for temporary files; None if it is the same for all trials.
    """

    def __init__(self, trial_dir: str, temporary: str | None) -> None:
        # The latter first: it may lie inside the former.
        self._placeholders = [
            (folder, word) for folder, word in ((temporary, _TEMPORARY), (trial_dir, _TRIAL_DIR)) if folder
        ]

    def environ(self) -> dict[str, str]:
        """Return the environment without the variables that are read late, with placeholders in all values."""
        environ = {name: value for name, value in os.environ.items() if name not in LATE_VARIABLES}
        for folder, word in self._placeholders:
            environ = {name: value.replace(folder, word) for name, value in environ.items()}
        return environ

    def change_environ(self, changes: Mapping[str, str | None]) -> None:
        """Set variables, and remove those whose value is None."""
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
                continue
            for folder, word in self._placeholders:
                value = value.replace(word, folder)
            os.environ[name] = value


# Modules, looked at without running code of theirs: a lazy one would be loaded by reading an attribute.


def _namespace(module: Any) -> dict[str, Any]:
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names if isinstance(names, dict) else {}


def _spec_of(module: str) -> importlib.machinery.ModuleSpec | None:
    return _namespace(sys.modules.get(module)).get("__spec__")


def _home_of(value: Any) -> str | None:
    kind = type(value)
    if issubclass(kind, ModuleType):
        home = _namespace(value).get("__name__")
    elif kind is FunctionType or kind is BuiltinFunctionType:
        home = value.__module__
    else:
        home = type.__dict__["__module__"].__get__(value if issubclass(kind, type) else kind)
    return home if isinstance(home, str) else None


@functools.cache
def _site_folders() -> tuple[str, ...]:
    """Return the folders of installed packages: not the trainer's own modules, nor projects installed for editing."""
    return tuple(
        path.rstrip(os.sep) + os.sep
        for path in sys.path
        if os.path.basename(path.rstrip(os.sep)) in ("site-packages", "dist-packages")
    )


@functools.cache
def _standard_folders() -> tuple[str, ...]:
    # Not by sysconfig, which loads a module of its own when it is asked first, and only then.
    folders = {os.path.dirname(os.__file__), *(path for path in sys.path if os.path.basename(path) == "lib-dynload")}
    return tuple(folder + os.sep for folder in folders)


def _is_installed(spec: importlib.machinery.ModuleSpec | None, folders: tuple[str, ...]) -> bool:
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and all(place.startswith(folders) for place in places)


def _is_standard(module: str) -> bool:
    spec = _spec_of(_top(module))
    if spec is None or not spec.origin:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    return spec.origin.startswith(_standard_folders()) and not spec.origin.startswith(_site_folders())


# Imports before the fork.


def _import_all(
    imports: Sequence[dict[str, Any]], left_out: set[str], folders: Folders, is_tried: bool
) -> tuple[list[Package], dict[str, Any]]:
    """Import the requested modules in order, each in the environment in which the trainer did it.

    Args:
        left_out: Modules that must not be imported, nor what the trainer imports after them of the same package.
        folders: Those of the trial that waits, and of this interpreter.
        is_tried: Whether each is imported by a process of its own first; those that cannot be are left out, too.

    Returns:
        The packages, and what to answer to the guard.
    """
    started_s = time.monotonic()
    site_folders = _site_folders()
    installed: dict[str, bool] = {}
    start = dict(os.environ)
    packages: list[Package] = []
    found: list[dict[str, Any]] = []
    # Of modules that only we needed so far, each is loaded by the package that imports it.
    ours = ParkedModules([], None, folders)
    ours.park()
    # In front of all others, so that no package is given an installed module in place of the trainer's own.
    own = OwnModules({wanted["module"] for wanted in imports if _is_elsewhere(wanted)})
    sys.meta_path.insert(0, own)

    def why_not(threads: tuple[int, int]) -> str | None:
        return "needs a module of the trainer's own" if own.is_asked else _why_not_forkable(threads)

    known = {name: dict(_namespace(module)) for name, module in (*sys.modules.items(), *ours.parked.items())}
    for wanted in imports:
        module = wanted["module"]
        top = _top(module)
        if module in left_out or top == "autotune" or _is_elsewhere(wanted):
            installed[top] = False
        if module in sys.modules:
            continue
        if top not in installed:
            installed[top] = _is_installed(importlib.machinery.PathFinder.find_spec(top), site_folders)
        if not installed[top]:
            continue
        folders.change_environ({name: start.get(name) for name in os.environ.keys() | start.keys()})
        folders.change_environ(wanted["environ"])
        if is_tried:
            why, took_s = _try(module, why_not)
            if why is not None:
                found.append({"module": module, "why": why, "took_s": took_s})
                installed[top] = False
                continue
        before, loaded, threads = folders.environ(), set(sys.modules), _threads() if is_tried else (1, 0)
        with contextlib.suppress(BaseException):  # it may need a setup that only the trainer makes
            __import__(module)
        new = sys.modules.keys() - loaded
        packages.append(Package(new, before, folders.environ()))
        known.update((name, dict(_namespace(sys.modules[name]))) for name in new)
        if why_not(threads) is not None:
            return packages, {"not_forkable": module}
    sys.meta_path.remove(own)
    sys.meta_path.remove(ours)
    sys.modules.update(ours.parked)
    _find_late_changes(packages, known)
    return packages, {"took_s": time.monotonic() - started_s, "left_out": found}


def _find_late_changes(packages: Sequence[Package], known: Mapping[str, Mapping[str, Any]]) -> None:
    """Find what each package put into modules of earlier ones: without it, there was no such object."""
    owners = {name: index for index, package in enumerate(packages) for name in package.modules}
    for name, early in known.items():
        names, owner = _namespace(sys.modules.get(name)), owners.get(name, -1)
        for key, value in list(names.items()):
            before = early.get(key, _ABSENT)
            if value is not before:
                index = owners.get(_home_of(value) or "", -1)
                if index > owner:
                    packages[index].late.append((names, key, before, value))


# The trial's side of the fork.


class ParkedModules:
    """Finder that hands out modules imported before the fork, when the trainer comes to import them.

    Args:
        packages: The packages imported beforehand, in that order.
        unfit: File for the reason for which a fresh interpreter has to make the trial; None in the zygote itself.
    """

    def __init__(self, packages: Sequence[Package], unfit: str | None, folders: Folders, trial_dir: str = "") -> None:
        self._packages = list(packages)
        self._folders = folders
        self._trial_dir = trial_dir
        self._unfit = unfit
        self._pid = os.getpid()
        self._handed_out: set[str] = set()
        self._modules: dict[str, ModuleType] = {}
        self._standard: set[str] = set()
        self.parked: dict[str, ModuleType] = {}
        self.on_hand_out: Callable[[], None] = lambda: None

    def park(self) -> None:
        """Remove the modules from ``sys.modules``: a trainer may look there for what it has imported."""
        names = sys.modules.keys() - AT_START  # noqa: F821 - see there
        self._standard = {name for name in names if _is_standard(name)}
        ours: set[str] = set().union(*(package.modules for package in self._packages))
        # What has no file of its own was put there by another module, and cannot be found again without it.
        names = {name for name in names if name in ours or _spec_of(_top(name)) is not None}
        for name in names:
            self.parked[name] = self._modules[name] = sys.modules.pop(name)
        for package in reversed(self._packages):
            for namespace, key, before, _ in package.late:
                _set(namespace, key, before)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.parked:
            return None
        if _is_import():
            return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        spec = self._found_behind(name, path)
        loader = getattr(spec, "loader", None)
        if name not in self._standard and hasattr(loader, "exec_module") and hasattr(loader, "__dict__"):
            loader.exec_module = functools.partial(self._load_by_hand, name, loader.exec_module)  # type: ignore
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """See importlib.abc.Loader; a module may replace itself in ``sys.modules`` when it is executed."""

    def exec_module(self, module: ModuleType) -> None:
        """Put back the module, and the modules that were imported along with it."""
        name = module.__name__
        if name not in self._standard and any(name in package.modules for package in self._packages):
            self._check_origins({_top(name)} - self._handed_out, is_wanted=True)
            # With those before it: had the trainer not imported them yet, this import would have.
            while not self._hand_out(self._packages.pop(0), name):
                pass
        elif name in self.parked:
            family = self._family(name) if name in self._standard else {name}
            self._check_origins({_top(name)}, is_wanted=True)
            self._check_origins({_top(member) for member in family})
            self._put_back(family)
        sys.modules[name] = self._modules[name]  # also if another thread has just put it back
        with contextlib.suppress(Exception):
            self.on_hand_out()

    def _load_by_hand(self, name: str, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        if name in self.parked:
            self._give_up(_top(name), "copy", name)
        execute(module)

    def _family(self, name: str) -> set[str]:
        """Return a module of the standard library, its parents, and those of its modules that they hold objects of."""
        # Such as `typing.io`, which `typing` itself makes.
        made = [name for name, module in self.parked.items() if "." in name and not _namespace(module).get("__spec__")]
        family: set[str] = set()
        found = [name]
        while found:
            name = found.pop()
            if name in family or name not in self.parked or name not in self._standard:
                continue
            family.add(name)
            found.append(name.rpartition(".")[0])
            found += [member for member in made if member.startswith(name + ".")]
            found += {_home_of(value) or "" for value in list(_namespace(self.parked[name]).values())}
        return family

    def _put_back(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            module = self.parked.pop(name, None)
            if module is None:
                continue
            if name in sys.modules and getattr(_spec_of(name), "loader", None) is not self:
                self._give_up(_top(name), "copy", name)  # the trainer has loaded one of its own
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if name in self._standard and parent in sys.modules:
                _namespace(sys.modules[parent]).setdefault(child, module)  # as its own import does

    def _hand_out(self, package: Package, wanted: str) -> bool:
        if not package.packages <= self._handed_out:  # else the trainer has this package already
            environ = self._folders.environ()
            differing = {
                name for name in environ.keys() | package.before.keys() if environ.get(name) != package.before.get(name)
            }
            if differing:
                self._give_up(_top(wanted), "variable", sorted(differing)[0])
        self._check_origins({_top(name) for name in package.modules} - self._handed_out)
        self._handed_out |= package.packages
        self._folders.change_environ(package.changes)
        self._put_back(package.modules)
        for namespace, key, before, value in package.late:
            if namespace.get(key, _ABSENT) is before:
                _set(namespace, key, value)
        return wanted in package.modules

    def _check_origins(self, names: set[str], *, is_wanted: bool = False) -> None:
        """Check that the trainer's own folder, which comes first on its path, holds no module of that name.

        Args:
            is_wanted: Whether the trainer imports them itself, which needs them to be found.
        """
        for name in names:
            spec = _namespace(self.parked.get(name)).get("__spec__")
            # C modules are known by a second name that no import finds: SciPy's `scipy._cyutility` is `_cyutility` too.
            if spec is not None and (spec.name == name or is_wanted):
                found = self._found_behind(name, None)
                if (is_wanted or found is not None) and getattr(found, "origin", None) != spec.origin:
                    self._give_up(name, "module", name)

    def _found_behind(self, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
        return None

    def _give_up(self, package: str, kind: str, name: str) -> None:
        if self._unfit is None or _has_trained(self._trial_dir):  # too late to begin again: its steps count already
            return
        try:
            with os.fdopen(os.open(self._unfit, _NEW_FLAGS, 0o600), "w", encoding="utf-8") as file:
                json.dump({"package": package, "kind": kind, "name": name}, file)
        except OSError:
            return
        os.kill(self._pid, signal.SIGKILL)  # not only this process, which may be a worker of the trial


def _set(namespace: dict[str, Any], key: str, value: Any) -> None:
    if value is _ABSENT:
        namespace.pop(key, None)
    else:
        namespace[key] = value


def _has_trained(trial_dir: str) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(trial_dir):
            if re.fullmatch(r"steps\.\d+\.\d+\.jsonl", name):
                with os.fdopen(os.open(os.path.join(trial_dir, name), _READ_FLAGS), "rb") as file:
                    if b'"k": "step"' in file.read(1 << 14):
                        return True
    return False


class Recorder:
    """Finder that finds nothing, and records the modules that are imported: later trials import them beforehand.

    Args:
        path: The file for it, a line of JSON for each module.
    """

    def __init__(self, path: str, folders: Folders) -> None:
        self._path = path
        self._folders = folders
        self._pid = os.getpid()
        self._at_start = folders.environ()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Record the module, and the changes of the environment since the start of the trial."""
        if os.getpid() != self._pid or not _is_import():
            return
        environ = self._folders.environ()
        changes = {
            variable: environ.get(variable)
            for variable in environ.keys() | self._at_start.keys()
            if environ.get(variable) != self._at_start.get(variable)
        }
        place = None
        with contextlib.suppress(Exception):  # a path that a trainer has put together may hold anything
            place = None if "." in name else _place_of(importlib.machinery.PathFinder.find_spec(name))
        line = {"t_s": time.monotonic(), "module": name, "environ": changes, "place": place}
        # Opened anew for each line: a trainer may close descriptors that it does not know.
        with contextlib.suppress(OSError):
            file = os.open(self._path, _APPEND_FLAGS, 0o600)
            try:
                os.write(file, json.dumps(line).encode("ascii") + b"\n")
            finally:
                os.close(file)

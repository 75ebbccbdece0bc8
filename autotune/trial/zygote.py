"""Zygote: an interpreter that has done the trainer's imports and is forked for each trial.

It is started by the trainer's command, without arguments. Before the trainer's code, the ``sitecustomize`` in the
trial's ``inject`` folder executes this file and calls `serve`, which returns in forks only. These continue like a fresh
process. Python 3.9 syntax and standard library only.

A socket from the guard is command channel and lifeline. A message is one byte with descriptors: a file with the request
as JSON, then a pipe for the answer::

    {"imports": [{"module", "environ"}], "folder", "trial_dir", "temporary", "env"}
    → {"took_s"}, or {"module", "why"} if that module must not be imported before a fork: this interpreter exits

    {"argv", "arguments", "cwd", "env", "guard", "unfit", "temporary"}, with the ends of the trial's output pipes
    → {"pid"} just before the trial continues, or {"step", "errno", "error"}

A trial is forked twice, so that the guard, the child subreaper, becomes its parent.

Imported modules are *parked* outside of ``sys.modules`` until the trainer imports them. An installed one returns with
all that its import added and changed; one of the standard library with those whose objects it holds. If the import
would now differ (another environment, or a trainer's module of that name), an untrained trial writes the reason into
the file ``unfit`` and exits, and a fresh process runs it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

AT_START: frozenset[str] = globals().get("AT_START", frozenset())
"""Modules loaded before this file is executed; set by ``sitecustomize``."""

LATE_VARIABLES = frozenset(
    (
        # Of each trial; the zygote uses the system's temporary folder, which outlives the trials.
        *("AUTOTUNE_TRIAL_ID", "AUTOTUNE_TRIAL_DIR", "AUTOTUNE_CACHE_DIR", "AUTOTUNE_CONFIGS", "TMPDIR"),
        # TensorFlow reads these at the first operation, not at import.
        *("TF_XLA_FLAGS", "XLA_FLAGS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"),
        # cuBLAS reads the first with its first handle, torch.distributed the others when it connects.
        *("CUBLAS_WORKSPACE_CONFIG", "MASTER_ADDR", "MASTER_PORT"),
    )
)
"""Variables that may differ between trials, because no import reads them."""

# Python reads its hash seed at start: trainers set it for other processes, plans for the trial.
_READ_BY_NO_IMPORT = LATE_VARIABLES | {"PYTHONHASHSEED"}

# Imported by other packages to look up versions; independent of the trainer's settings.
_PACKAGING = frozenset(("pkg_resources", "setuptools"))

# Placeholders for a trial's folders in variables; no real value holds a NUL.
TRIAL_DIR, TEMPORARY = "\0trial", "\0temporary"

_SITE = tuple(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
_STANDARD = (os.path.dirname(os.__file__), *(path for path in sys.path if os.path.basename(path) == "lib-dynload"))
_ABSENT = object()


def _top(module: str) -> str:
    return module.partition(".")[0]


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes of an environment; None for removed variables."""
    return {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _namespace(module: Any) -> dict[str, Any]:
    """Return a module's namespace without loading a lazy module."""
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names if isinstance(names, dict) else {}


def _lies_in(folders: Sequence[str], spec: Any) -> bool:
    places = [spec.origin] if spec and spec.origin else list(getattr(spec, "submodule_search_locations", None) or ())
    return bool(places) and all(place.startswith(tuple(folder + os.sep for folder in folders)) for place in places)


def _is_standard(spec: Any) -> bool:
    return getattr(spec, "origin", "") in ("built-in", "frozen") or (
        _lies_in(_STANDARD, spec) and not _lies_in(_SITE, spec)
    )


def _is_import() -> bool:
    """Return whether the calling finder serves an import, not importlib.util.find_spec."""
    frame = sys._getframe(2)
    # Other finders, such as the observer's hook, may be in between.
    while frame is not None and (
        frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "find_spec"
    ):
        if frame.f_code.co_name == "_find_and_load_unlocked":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Recorder:
    """Finder that records the installed modules that a trial imports directly, and finds nothing."""

    def __init__(self) -> None:
        self._path = os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], "imports.jsonl")
        self._pid = os.getpid()
        self._at_start = dict(os.environ)
        self._latest = ""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        spec = _namespace(sys.modules.get(self._latest)).get("__spec__")
        if os.getpid() != self._pid or getattr(spec, "_initializing", False) or not _is_import():
            return
        with contextlib.suppress(Exception):  # a trainer's sys.path may hold anything
            if _top(name) == "autotune" or not _lies_in(_SITE, importlib.machinery.PathFinder.find_spec(_top(name))):
                return
            self._latest = name
            changes = _changes(self._at_start, os.environ)
            line = json.dumps({"t_s": time.monotonic(), "module": name, "environ": changes})
            # Opened for each line: a trainer may close unknown descriptors.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line.encode("ascii") + b"\n")
            os.close(file)


class Folders:
    """Folders of one trial, and their placeholders in variables that imports set, as PyTorch does.

    Args:
        temporary: None if all trials share it.
    """

    def __init__(self, trial_dir: str, temporary: str | None) -> None:
        # Temporary first: it may lie inside the trial's folder.
        self._words = [(path, word) for path, word in ((temporary, TEMPORARY), (trial_dir, TRIAL_DIR)) if path]

    def environ(self) -> dict[str, str]:
        """Return the environment without variables that are read late."""
        environ = {name: value for name, value in os.environ.items() if name not in _READ_BY_NO_IMPORT}
        for folder, word in self._words:
            environ = {name: value.replace(folder, word) for name, value in environ.items()}
        return environ

    def change_environ(self, changes: Mapping[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
                continue
            for folder, word in self._words:
                value = value.replace(word, folder)
            os.environ[name] = value


class ImportedUnit:
    """Module imported for the trials.

    Attributes:
        modules: Names added to ``sys.modules``.
        before: Environment before the import, without `changes` to it.
        late: Changes to earlier modules: namespace, name, value before and after.
    """

    def __init__(self, name: str, folders: Folders) -> None:
        early = {other: dict(_namespace(module)) for other, module in sys.modules.items()}
        self.before = folders.environ()
        with contextlib.suppress(BaseException):  # it may need a setup by the trainer
            __import__(name)
        self.changes = _changes(self.before, folders.environ())
        self.modules = sys.modules.keys() - early.keys()
        self.late = [
            (names, key, known.get(key, _ABSENT), value)
            for other, known in early.items()
            for names in (_namespace(sys.modules.get(other)),)
            for key, value in list(names.items())
            if value is not known.get(key, _ABSENT) and _home_of(value) in self.modules
        ]

    def why_not(self, folder: str) -> str | None:
        """Return why it must not be imported before a fork, if so.

        Args:
            folder: Folder of the trainer's modules; an environment in it doesn't count.
        """
        for name in self.modules:
            spec = _namespace(sys.modules[name]).get("__spec__")
            if _lies_in((folder,), spec) and not _lies_in(_SITE, spec) and not _is_standard(spec):
                return "needs one of the trainer's modules"
        return _why_not_forkable()


def _home_of(value: Any) -> str | None:
    """Return the module that an object says it is from; of a module, its name."""
    kind = type(value)
    if issubclass(kind, ModuleType):
        home = _namespace(value).get("__name__")
    elif kind is FunctionType or kind is BuiltinFunctionType:
        home = value.__module__
    else:
        home = type.__dict__["__module__"].__get__(value if issubclass(kind, type) else kind)
    return home if isinstance(home, str) else None


def _fork() -> int:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which are checked below
        return os.fork()


def _why_not_forkable() -> str | None:
    """Return why this process must not be forked, if so.

    At import, only OpenBLAS and jemalloc (with PyArrow) start threads, and handle forks (pthread_atfork;
    background_thread.c). Checked: NumPy, SciPy, scikit-learn, pandas, Numba, librosa, PyTorch, Lightning, transformers,
    JAX, TensorFlow, Keras, OpenCV.
    """
    process = _fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    for _ in range(20):  # a joined thread may still be listed for a moment
        names = []
        for task in os.listdir("/proc/self/task"):
            with (
                contextlib.suppress(OSError),
                open("/proc/self/task/" + task + "/comm", "rb") as file,
            ):  # it may have ended
                names.append(file.read())
        if len(names) - names.count(b"jemalloc_bg_thd\n") <= 1:
            break
        time.sleep(0.005)
    else:
        return "starts threads"
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + number).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri")):
                return "opens the accelerator's device file"
        except OSError:  # the descriptor of the listing itself
            continue
    return None


class ParkedModules:
    """Finder that returns modules imported before the fork when the trainer imports them.

    Args:
        units: In the order of import.
        unfit: File for the reason to use a fresh process.
    """

    def __init__(self, units: Sequence[ImportedUnit], folders: Folders, unfit: str) -> None:
        self._units = list(units)
        self._folders = folders
        self._unfit = unfit
        self._pid = os.getpid()
        self._specs = {name: _namespace(module).get("__spec__") for name, module in sys.modules.items()}
        self._parked = {name: sys.modules.pop(name) for name in sys.modules.keys() - AT_START}
        self._modules = dict(self._parked)
        self._standard = {name for name in self._parked if _is_standard(self._specs.get(_top(name)))}
        self._tops: set[str] = set()  # of installed packages that the trainer has
        for unit in reversed(self._units):
            for names, key, before, _ in unit.late:
                _put(names, key, before)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._parked:
            return None
        if _is_import():
            return importlib.machinery.ModuleSpec(name, self)  # type: ignore[arg-type]
        spec = self._find_after(name, path)
        loader: Any = getattr(spec, "loader", None)
        if name not in self._standard and hasattr(loader, "exec_module") and hasattr(loader, "__dict__"):
            execute = loader.exec_module

            def load_by_hand(module: ModuleType) -> None:
                if name in self._parked:
                    self._give_up(f"the trainer loads {name} without importing it")
                execute(module)

            loader.exec_module = load_by_hand
        return spec

    def create_module(self, spec: Any) -> None:
        """Implement importlib.abc.Loader; a module may replace itself in ``sys.modules`` when executed."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in self._parked and name in self._standard:
            family = self._family(name)
            self._check_origins({_top(member) for member in family}, name)
            self._restore(family)
        while name in self._parked and self._units:
            # With those before it, which this import would have imported.
            self._release(self._units.pop(0), name)
        self._restore({name})  # if it was loaded by a function called at a fork
        sys.modules[name] = self._modules[name]  # also if another thread has just restored it
        for finder in sys.meta_path:
            # The import of a package may load a framework.
            if type(finder).__module__ == "_autotune_trainee.observe":
                finder.run_loaded()  # type: ignore[attr-defined]

    def _family(self, name: str) -> set[str]:
        """Return a standard library module, its parents, and those of its modules whose objects they hold."""
        family: set[str] = set()
        found = [name]
        while found:
            name = found.pop()
            if name in family or name not in self._parked or name not in self._standard:
                continue
            family.add(name)
            found.append(name.rpartition(".")[0])
            # Such as `typing.io`, which `typing` creates.
            found += [other for other, spec in self._specs.items() if spec is None and other.startswith(name + ".")]
            found += {_home_of(value) or "" for value in list(_namespace(self._parked[name]).values())}
            found += self._imported_by(name)
        return family

    def _imported_by(self, name: str) -> list[str]:
        """Return submodules that its code imports, as runpy's does with ``import importlib.util``."""
        with contextlib.suppress(Exception):
            code = self._specs[name].loader.get_code(name)  # type: ignore[union-attr]
            return [part for part in code.co_names if "." in part]
        return []

    def _release(self, unit: ImportedUnit, wanted: str) -> None:
        tops = {_top(name) for name in unit.modules if name not in self._standard}
        if not tops <= self._tops and _top(wanted) not in _PACKAGING:  # else the trainer has imported this package
            for name in sorted(_changes(unit.before, self._folders.environ()))[:1]:
                self._give_up(f"when the trainer imports {_top(wanted)}, {name} differs from the first trial")
        self._check_origins({_top(name) for name in unit.modules} - self._tops, wanted)
        self._tops |= tops
        self._folders.change_environ(unit.changes)
        self._restore(unit.modules)
        for names, key, before, value in unit.late:
            if names.get(key, _ABSENT) is before:
                _put(names, key, value)

    def _check_origins(self, tops: set[str], wanted: str) -> None:
        for top in tops & self._parked.keys():
            spec = self._specs[top]
            # C modules have a second name that no import finds: SciPy's `scipy._cyutility` is `_cyutility` too.
            if spec is not None and (spec.name == top or top == _top(wanted)):
                found = self._find_after(top, None)
                if (found or top == _top(wanted)) and getattr(found, "origin", None) != spec.origin:
                    self._give_up(f"the trainer has its own module {top} in front of the installed one")

    def _restore(self, names: Iterable[str]) -> None:
        for name in sorted(self._parked.keys() & names):
            module = self._parked.pop(name)
            there = _namespace(sys.modules.get(name)).get("__spec__")
            if name in sys.modules and getattr(there, "loader", None) is not self:
                self._give_up(f"the trainer loads {name} without importing it")
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if name in self._standard and parent in sys.modules:
                _namespace(sys.modules[parent]).setdefault(child, module)  # as an import does

    def _find_after(self, name: str, path: Any) -> Any:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
        return None

    def _give_up(self, why: str) -> None:
        """End the trial, so that a fresh process runs it, unless it has reported steps."""
        folder = os.path.dirname(self._unfit)
        try:
            for name in os.listdir(folder):
                if name.startswith("steps."):
                    with open(os.path.join(folder, name), "rb") as steps:
                        if b'"k": "step"' in steps.read(1 << 14):
                            return
            file = os.open(self._unfit, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(file, why.encode("utf-8", "backslashreplace"))
        except OSError:
            return
        os.kill(self._pid, 9)  # this process may be a worker of the trial


def _put(names: dict[str, Any], key: str, value: Any) -> None:
    if value is _ABSENT:
        names.pop(key, None)
    else:
        names[key] = value


# Main loop and fork.


def serve(number: int, inject: str) -> str:
    """Serve requests from a channel; return in a trial's process, with its ``inject`` folder in place of this one's."""
    import ctypes
    import gc
    import socket

    if sys.getfilesystemencoding() != "utf-8":
        os._exit(1)  # texts in requests would mean other bytes
    # Drop this file's imports, so that modules are loaded as the trainer's imports load them.
    for name in sys.modules.keys() - AT_START:
        del sys.modules[name]
    channel = socket.socket(fileno=number)
    os.set_inheritable(number, False)

    def receive() -> tuple[dict[str, Any], list[int]]:
        data, descriptors, _, _ = socket.recv_fds(channel, 1, 4)
        if not data:  # the guard is gone
            os._exit(0)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        request = json.loads(os.pread(descriptors[0], 1 << 24, 0))
        os.close(descriptors[0])
        return request, descriptors[1:]

    request, (answer,) = receive()
    # Changed by a wrapper around the interpreter, the C locale, or a ``.pth`` file.
    changed_at_start = _changes(request["env"], os.environ)
    started_s = time.monotonic()
    units, words = _import_all(request)
    _answer(answer, **(words or {"took_s": time.monotonic() - started_s}))
    if words:
        os._exit(0)
    # Without garbage collections of these objects, their pages stay shared with the trials.
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    why = None
    while True:
        request, (answer, *outputs) = receive()
        if why is None:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            libc.fflush(None)  # else every trial prints the output of imports again
            between = _fork()
            if between == 0:
                # Its parent exits, so that the guard inherits it.
                try:
                    if _fork() != 0:
                        os._exit(0)
                except OSError:
                    os._exit(1)
                channel.close()
                return _begin(request, units, changed_at_start, inject, (answer, *outputs), libc.prctl)
            os.waitpid(between, 0)
        else:
            _answer(os.dup(answer), step="fork", errno=None, error="the warm interpreter " + why)
        for descriptor in (answer, *outputs):
            os.close(descriptor)
        why = why or _why_not_forkable()


def _answer(descriptor: int, **words: Any) -> None:
    with contextlib.suppress(OSError):  # the guard is gone, and this process exits soon
        os.write(descriptor, json.dumps(words).encode("ascii"))
    os.close(descriptor)


def _import_all(request: Mapping[str, Any]) -> tuple[list[ImportedUnit], dict[str, Any] | None]:
    """Import the modules in order; return the units, and the answer if one must not be imported."""
    folders = Folders(request["trial_dir"], request["temporary"])
    start, units = dict(os.environ), []
    is_safe_path = sys.flags.isolated or getattr(sys.flags, "safe_path", False)  # the latter since Python 3.11
    if not is_safe_path:
        sys.path.insert(0, request["folder"])  # of the trainer's modules
    for wanted in request["imports"]:
        if wanted["module"] in sys.modules:
            continue
        folders.change_environ(_changes(os.environ, start))
        folders.change_environ(wanted["environ"])
        unit = ImportedUnit(wanted["module"], folders)
        units.append(unit)
        why = unit.why_not(request["folder"])
        if why is not None:
            return units, {"module": wanted["module"], "why": why}
    if not is_safe_path and request["folder"] in sys.path:
        sys.path.remove(request["folder"])
    return units, None


def _begin(
    request: Mapping[str, Any],
    units: Sequence[ImportedUnit],
    changed_at_start: Mapping[str, str | None],
    inject: str,
    descriptors: Sequence[int],
    prctl: Any,
) -> str:
    """Turn this fork into what an interpreter started for the trial would be."""
    answer, *outputs = descriptors
    step = "fork"
    try:
        os.setsid()
        for number, descriptor in enumerate(outputs, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        end_s = time.monotonic() + 10.0
        while os.getppid() != request["guard"]:
            if time.monotonic() > end_s:
                raise RuntimeError("the guard did not inherit the process")
            time.sleep(0.0002)
        prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: SIGKILL when the current parent, the guard, ends
        if os.getppid() != request["guard"]:
            os._exit(127)
        step = "cwd"
        os.chdir(request["cwd"])
        step = "exec"
        os.environ.clear()
        os.environ.update(request["env"])
        folders = Folders(request["env"]["AUTOTUNE_TRIAL_DIR"], request["temporary"])
        folders.change_environ(changed_at_start)
        sys.argv[1:] = request["arguments"]
        if hasattr(sys, "orig_argv"):  # since Python 3.10
            sys.orig_argv[1:] = request["argv"][1:]
        own = os.path.join(request["env"]["AUTOTUNE_TRIAL_DIR"], "inject")
        sys.path[:] = [own if os.path.abspath(path) == inject else path for path in sys.path]
        # Python reseeds `random`; the global generators of NumPy and PyTorch would be equal in all trials.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        if "torch.random" in sys.modules:
            sys.modules["torch.random"].default_generator.seed()
        # Cached, perhaps before the fork; each trial has its own.
        if "tempfile" in sys.modules:
            vars(sys.modules["tempfile"])["tempdir"] = None
        ParkedModules(units, folders, request["unfit"])
    except Exception as error:  # noqa: BLE001 - reported to the search, which runs the trial otherwise
        code = error.errno if isinstance(error, OSError) else None
        _answer(answer, step=step, errno=code, error=os.strerror(code) if code else str(error))
        os._exit(127)
    _answer(answer, pid=os.getpid())
    return own

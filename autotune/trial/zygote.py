"""Zygote: an interpreter that has made the trainer's imports, and is forked for each trial.

It is started by the trainer's own command, without its arguments. Before the interpreter comes to the trainer's code it
executes the ``sitecustomize`` of the trial's ``inject`` folder, and that executes this file and calls `serve`, which
returns in the forks only: from there on the interpreter itself does what it does for every command, so that arguments,
``__main__``, tracebacks and endings are those of a fresh process. Python 3.9 syntax, and the standard library only.

A socket from the guard is command channel and lifeline. Each message is one byte with descriptors, the first of a file
with the request as JSON, the second of a pipe for the answer::

    {"imports": [{"module", "environ"}], "folder", "trial_dir", "temporary", "env"}
    → {"took_s"}, or {"module", "why"} if that module must not be imported before a fork: the end of this interpreter

    {"argv", "arguments", "cwd", "env", "guard", "unfit", "temporary"}, with the ends of the trial's output pipes
    → {"pid"} just before the trial goes on, or {"step", "errno", "error"}

The process of a trial is forked twice, so that the guard, which is the child subreaper, becomes its parent.

Modules that are imported already are *parked* outside of ``sys.modules`` until the trainer imports them: an installed
one comes back with all that its import brought along, and with what that import changed in the environment and in
modules of earlier ones; one of the standard library with those whose objects it holds. Should the import mean something
else by then (another environment, another module of that name in front of it), the trial gives up before it has
trained: it writes why into the file ``unfit`` and ends, and a fresh process makes it.
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
"""Modules that the interpreter has loaded when it executes this file; ``sitecustomize`` sets it."""

LATE_VARIABLES = frozenset(
    (
        # Of each trial; the zygote itself keeps to the system's place for temporary files, which outlives the trials.
        *("AUTOTUNE_TRIAL_ID", "AUTOTUNE_TRIAL_DIR", "AUTOTUNE_CACHE_DIR", "AUTOTUNE_CONFIGS", "TMPDIR"),
        # TensorFlow reads these at the first operation, not at import.
        *("TF_XLA_FLAGS", "XLA_FLAGS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"),
        # cuBLAS reads the first with its first handle, torch.distributed the others when it connects.
        *("CUBLAS_WORKSPACE_CONFIG", "MASTER_ADDR", "MASTER_PORT"),
    )
)
"""Variables that may differ from trial to trial: no import reads them."""

# Python reads the seed of its hashes when it starts: a trainer sets it for other processes, a plan for its own.
_READ_BY_NO_IMPORT = LATE_VARIABLES | {"PYTHONHASHSEED"}

# Imported by others, now here and now there, to look for a version; a trainer's settings are nothing to them.
_PACKAGING = frozenset(("pkg_resources", "setuptools"))

# Words for a trial's own folders in the values of variables; no real value holds a NUL.
TRIAL_DIR, TEMPORARY = "\0trial", "\0temporary"

_SITE = tuple(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
_STANDARD = (os.path.dirname(os.__file__), *(path for path in sys.path if os.path.basename(path) == "lib-dynload"))
_ABSENT = object()


def _top(module: str) -> str:
    return module.partition(".")[0]


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return what has changed in an environment, None for what is gone."""
    return {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def _namespace(module: Any) -> dict[str, Any]:
    """Return a module's namespace without running code of its: a lazy one would be loaded by reading an attribute."""
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
    """Return whether the finder that calls this was asked for an import, not by importlib.util.find_spec."""
    frame = sys._getframe(2)
    # Other finders, such as the observer's hook, may stand between the import and us.
    while frame is not None and (
        frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "find_spec"
    ):
        if frame.f_code.co_name == "_find_and_load_unlocked":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Recorder:
    """Finder that finds nothing, and records which installed modules a trial imports, not those they import in turn."""

    def __init__(self) -> None:
        self._path = os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], "imports.jsonl")
        self._pid = os.getpid()
        self._at_start = dict(os.environ)
        self._latest = ""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Record the module, and the changes of the environment since the start of the trial."""
        spec = _namespace(sys.modules.get(self._latest)).get("__spec__")
        if os.getpid() != self._pid or getattr(spec, "_initializing", False) or not _is_import():
            return
        with contextlib.suppress(Exception):  # a path that a trainer has put together may hold anything
            if _top(name) == "autotune" or not _lies_in(_SITE, importlib.machinery.PathFinder.find_spec(_top(name))):
                return
            self._latest = name
            changes = _changes(self._at_start, os.environ)
            line = json.dumps({"t_s": time.monotonic(), "module": name, "environ": changes})
            # Opened anew for each line: a trainer may close descriptors that it does not know.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line.encode("ascii") + b"\n")
            os.close(file)


class Folders:
    """Folders that no other trial has, with a word for each in the values of variables.

    PyTorch sets a variable to a folder below the one for temporary files when it is imported, for instance.

    Args:
        temporary: The folder for temporary files; None if it is the same for all trials.
    """

    def __init__(self, trial_dir: str, temporary: str | None) -> None:
        # The latter first: it may lie inside the former.
        self._words = [(path, word) for path, word in ((temporary, TEMPORARY), (trial_dir, TRIAL_DIR)) if path]

    def environ(self) -> dict[str, str]:
        """Return the environment without the variables that are read late."""
        environ = {name: value for name, value in os.environ.items() if name not in _READ_BY_NO_IMPORT}
        for folder, word in self._words:
            environ = {name: value.replace(folder, word) for name, value in environ.items()}
        return environ

    def change_environ(self, changes: Mapping[str, str | None]) -> None:
        """Set variables, and remove those whose value is None."""
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
                continue
            for folder, word in self._words:
                value = value.replace(word, folder)
            os.environ[name] = value


class ImportedUnit:
    """Module that was imported for the trials.

    Attributes:
        modules: Names in ``sys.modules`` that its import added.
        before: The environment in which it was imported.
        changes: What its import changed in the environment.
        late: What its import changed in modules of earlier ones: their namespace, name, value before and after.
    """

    def __init__(self, name: str, folders: Folders) -> None:
        early = {other: dict(_namespace(module)) for other, module in sys.modules.items()}
        self.before = folders.environ()
        with contextlib.suppress(BaseException):  # it may need a setup that only the trainer makes
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
        """Return the reason for which it must not be imported before a fork; None if it may.

        Args:
            folder: Where the trainer's own modules are. An environment may be in it, and PyTorch imports a module that
                it has just written into a place of its own.
        """
        for name in self.modules:
            spec = _namespace(sys.modules[name]).get("__spec__")
            if _lies_in((folder,), spec) and not _lies_in(_SITE, spec) and not _is_standard(spec):
                return "needs a module of the trainer's own"
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
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which are looked at below
        return os.fork()


def _why_not_forkable() -> str | None:
    """Return the reason for which this process must not be forked; None if it may.

    NumPy, SciPy, scikit-learn, pandas, Numba, librosa, PyTorch, Lightning, transformers, JAX, TensorFlow, Keras and
    OpenCV start no threads at import but OpenBLAS's, which end at each fork until they are needed (pthread_atfork), and
    jemalloc's where PyArrow is installed, which pandas imports (it handles forks too, background_thread.c).
    OpenMP's are started by the first parallel loop.
    """
    process = _fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    for _ in range(20):  # one that was joined may still be listed for a moment
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
        except OSError:  # the one that this list was read from
            continue
    return None


class ParkedModules:
    """Finder that hands out modules imported before the fork, when the trainer comes to import them.

    Args:
        units: The modules imported beforehand, in that order.
        unfit: File for the reason for which a fresh process has to make the trial.
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
        spec = self._found_behind(name, path)
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
        """See importlib.abc.Loader; a module may replace itself in ``sys.modules`` when it is executed."""

    def exec_module(self, module: ModuleType) -> None:
        """Put back the module, and the modules that were imported along with it."""
        name = module.__name__
        if name in self._parked and name in self._standard:
            family = self._family(name)
            self._check_origins({_top(member) for member in family}, name)
            self._put_back(family)
        while name in self._parked and self._units:
            # With those before it: had the trainer not imported them yet, this import would have.
            self._hand_out(self._units.pop(0), name)
        self._put_back({name})  # if nobody's import has loaded it, but a function that is called at a fork
        sys.modules[name] = self._modules[name]  # also if another thread has just put it back
        for finder in sys.meta_path:
            # The import of one package may bring a framework.
            if type(finder).__module__ == "_autotune_trainee.observe":
                finder.look()  # type: ignore[attr-defined]

    def _family(self, name: str) -> set[str]:
        """Return a module of the standard library, its parents, and those of its modules that they hold objects of."""
        family: set[str] = set()
        found = [name]
        while found:
            name = found.pop()
            if name in family or name not in self._parked or name not in self._standard:
                continue
            family.add(name)
            found.append(name.rpartition(".")[0])
            # Such as `typing.io`, which `typing` itself makes.
            found += [other for other, spec in self._specs.items() if spec is None and other.startswith(name + ".")]
            found += {_home_of(value) or "" for value in list(_namespace(self._parked[name]).values())}
            found += self._imported_by(name)
        return family

    def _imported_by(self, name: str) -> list[str]:
        """Return the modules that another one's import has brought as parts of their package.

        As ``import importlib.util`` of runpy, which then holds nothing but ``importlib``.
        """
        with contextlib.suppress(Exception):
            code = self._specs[name].loader.get_code(name)  # type: ignore[union-attr]
            return [part for part in code.co_names if "." in part]
        return []

    def _hand_out(self, unit: ImportedUnit, wanted: str) -> None:
        tops = {_top(name) for name in unit.modules if name not in self._standard}
        if not tops <= self._tops and _top(wanted) not in _PACKAGING:  # else the trainer has this package already
            for name in sorted(_changes(unit.before, self._folders.environ()))[:1]:
                self._give_up(
                    f"when the trainer imports {_top(wanted)}, {name} is not set as it was in the first trial"
                )
        self._check_origins({_top(name) for name in unit.modules} - self._tops, wanted)
        self._tops |= tops
        self._folders.change_environ(unit.changes)
        self._put_back(unit.modules)
        for names, key, before, value in unit.late:
            if names.get(key, _ABSENT) is before:
                _put(names, key, value)

    def _check_origins(self, tops: set[str], wanted: str) -> None:
        """Check that the trainer's own folder, which comes first on its path, holds no module of these names."""
        for top in tops & self._parked.keys():
            spec = self._specs[top]
            # C modules are known by a second name that no import finds: SciPy's `scipy._cyutility` is `_cyutility` too.
            if spec is not None and (spec.name == top or top == _top(wanted)):
                found = self._found_behind(top, None)
                if (found or top == _top(wanted)) and getattr(found, "origin", None) != spec.origin:
                    self._give_up(f"the trainer has a module {top} of its own in front of the installed one")

    def _put_back(self, names: Iterable[str]) -> None:
        for name in sorted(self._parked.keys() & names):
            module = self._parked.pop(name)
            there = _namespace(sys.modules.get(name)).get("__spec__")
            if name in sys.modules and getattr(there, "loader", None) is not self:
                self._give_up(f"the trainer loads {name} without importing it")
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if name in self._standard and parent in sys.modules:
                _namespace(sys.modules[parent]).setdefault(child, module)  # as its own import does

    def _found_behind(self, name: str, path: Any) -> Any:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
        return None

    def _give_up(self, why: str) -> None:
        """End the trial, so that a fresh process makes it; unless it has trained: its steps count already."""
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
        os.kill(self._pid, 9)  # not only this process, which may be a worker of the trial


def _put(names: dict[str, Any], key: str, value: Any) -> None:
    if value is _ABSENT:
        names.pop(key, None)
    else:
        names[key] = value


# The main loop, and the fork.


def serve(number: int, inject: str) -> str:
    """Serve requests; return only in the process of a trial: the ``inject`` folder that it has.

    Args:
        number: Descriptor of the channel.
        inject: The ``inject`` folder that this interpreter was started with.
    """
    import ctypes
    import gc
    import socket

    if sys.getfilesystemencoding() != "utf-8":
        os._exit(1)  # the texts of requests would not mean the same bytes
    # What this file needs stays its own: all that is loaded from here on is as the trainer's imports load it.
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
    # By a wrapper around the interpreter, the C locale, or a ``.pth`` file.
    changed_at_start = _changes(request["env"], os.environ)
    started_s = time.monotonic()
    units, words = _import_all(request)
    _answer(answer, **(words or {"took_s": time.monotonic() - started_s}))
    if words:
        os._exit(0)
    # All objects of now stay for good: left out of garbage collections, their pages stay shared with the trials.
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    why = None
    while True:
        request, (answer, *outputs) = receive()
        if why is None:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            libc.fflush(None)  # else the output of an import is printed again by every trial
            between = _fork()
            if between == 0:
                # Its parent ends at once, so that the guard inherits it.
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
    with contextlib.suppress(OSError):  # the guard is gone, and so are we in a moment
        os.write(descriptor, json.dumps(words).encode("ascii"))
    os.close(descriptor)


def _import_all(request: Mapping[str, Any]) -> tuple[list[ImportedUnit], dict[str, Any] | None]:
    """Import the modules in order, each in the environment in which the trainer did it.

    Returns:
        What was imported, and what to answer if one must not be.
    """
    folders = Folders(request["trial_dir"], request["temporary"])
    start, units = dict(os.environ), []
    is_safe_path = sys.flags.isolated or getattr(sys.flags, "safe_path", False)  # the latter since Python 3.11
    if not is_safe_path:
        sys.path.insert(0, request["folder"])  # where the trainer's own modules are found
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
    """Make this process, fresh from the fork, what an interpreter is that was started for the trial."""
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
                raise RuntimeError("the guard did not take the process over")
            time.sleep(0.0002)
        prctl(1, 9, 0, 0, 0)  # SIGKILL when the guard ends, PR_SET_PDEATHSIG; bound to the parent of this moment
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
        # Python reseeds `random` itself; the global generators of NumPy and PyTorch would be the same in all trials.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        if "torch.random" in sys.modules:
            sys.modules["torch.random"].default_generator.seed()
        # It is looked up once, perhaps by an import before the fork; each trial has its own.
        if "tempfile" in sys.modules:
            vars(sys.modules["tempfile"])["tempdir"] = None
        ParkedModules(units, folders, request["unfit"])
    except Exception as error:  # noqa: BLE001 - the search has to know, and makes the trial otherwise
        code = error.errno if isinstance(error, OSError) else None
        _answer(answer, step=step, errno=code, error=os.strerror(code) if code else str(error))
        os._exit(127)
    _answer(answer, pid=os.getpid())
    return own

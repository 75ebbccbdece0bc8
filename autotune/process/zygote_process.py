"""Zygote: a warm interpreter that imports what the trainer will import, then forks one trial per request.

The guard starts it as ``python <the trainer's options> -c BOOTSTRAP`` (see zygote.py): with the trainer's interpreter,
environment and directory, with the standard library and nothing of autotune on its path, in Python 3.9 syntax. The
text of this file comes on descriptor 3. Descriptor 4 is a socket from the guard, the lifeline as well: each message on
it is one byte with descriptors, the first of a file with the request as JSON, the second of a pipe for the answer.

The first request says what to import::

    {"imports": [{"module", "environ"}], "left_out": [names of packages], "trial_dir", "env"}

and is answered, when all of it is imported, with ``{"took_s"}``; if a package turned out to make forking dangerous
with ``{"not_forkable": package, "why", "took_s"}``, and that is the end of this interpreter. Modules that cannot be
imported are skipped. Every other request is a trial, with the write ends of its output pipes as further descriptors::

    {"argv", "script" | "module", "arguments", "cwd", "env", "guard", "record", "unfit"}

The answer is ``{"pid"}`` just before the trainer's code begins, or ``{"step", "errno", "error"}`` if it cannot.
The process of the trial is forked twice, so that the guard, which is the child subreaper, becomes its parent.

To the trainer's code all is as in an interpreter that was started for it: modules that are imported already are
*parked* outside of ``sys.modules`` until the trainer imports them. Should the import by then mean something else than
it meant here (another environment, another module of that name in front of it), the trial gives up before it has
trained: it writes the reason into the file ``unfit`` and ends, and a fresh interpreter makes the trial instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import re
import runpy
import signal
import socket
import sys
import sysconfig
import time
import warnings
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

AT_START: frozenset[str]
"""Modules that an interpreter has loaded when it comes to the trainer's code; set by `BOOTSTRAP`."""

NAME = "<autotune zygote>"
BOOTSTRAP = (
    f"exec(compile(__import__('posix').read(3, 1 << 20), {NAME!r}, 'exec'), "
    f"{{'__name__': {NAME!r}, 'AT_START': frozenset(__import__('sys').modules)}})"
)
"""Code that runs this file, and leaves no trace in ``__main__``."""

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
_CHANNEL = 4
_REQUEST_BYTES = 1 << 24
_TRIAL_DIR = "\0run"  # stands for the trial's own folder in values; no real value holds a NUL
_REPARENTED_S = 10.0
_PR_SET_PDEATHSIG = 1
_IS_SAFE_PATH = sys.flags.isolated or getattr(sys.flags, "safe_path", False)  # the latter since Python 3.11
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


class Package:
    """Package that was imported for the trials, with all modules that it brought along."""

    def __init__(self, modules: set[str], before: dict[str, str], after: dict[str, str]) -> None:
        self.modules = modules
        self.names = {_top(name) for name in modules}
        self.before = before
        self.changes = {
            name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        }


def _top(module: str) -> str:
    return module.partition(".")[0]


def _environ(trial_dir: str) -> dict[str, str]:
    """Return the environment, with the trial's own folder replaced by a placeholder in all values."""
    return {
        name: value.replace(trial_dir, _TRIAL_DIR) if trial_dir else value
        for name, value in os.environ.items()
        if name not in LATE_VARIABLES
    }


def _change_environ(changes: dict[str, str | None], trial_dir: str) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value.replace(_TRIAL_DIR, trial_dir)


# Imports before the fork.


def _site_folders() -> tuple[str, ...]:
    """Return the folders of installed packages: not the trainer's own modules, nor projects installed for editing."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders.update(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders if folder)


def _is_installed(spec: importlib.machinery.ModuleSpec | None, folders: tuple[str, ...]) -> bool:
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and all(place.startswith(folders) for place in places)


def _blas_threads() -> int:
    """Count the threads of OpenBLAS: it starts them at import, and handles forks itself (pthread_atfork)."""
    threads = 0
    with open("/proc/self/maps", "rb") as file:
        libraries = {line.split(None, 5)[5].rstrip(b"\n") for line in file if b"openblas" in line}
    for path in libraries:
        try:
            library = ctypes.CDLL(os.fsdecode(path))  # is loaded already
        except OSError:
            continue
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_", "_64"):
                count = getattr(library, prefix + "openblas_get_num_threads" + suffix, None)
                if count is not None:
                    threads += max(count() - 1, 0)
    return threads


def _why_not_forkable() -> str | None:
    """Return the reason for which this process must not be forked any more; None if it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1 and threads > 1 + _blas_threads():
        return "starts threads"
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + number).startswith(_DEVICES):
                return "opens the accelerator's device file"
        except OSError:  # the one that this list was read from
            continue
    return None


def _import_all(
    imports: Sequence[dict[str, Any]], left_out: set[str], trial_dir: str
) -> tuple[list[Package], dict[str, Any]]:
    """Import the requested modules in order, each in the environment in which the trainer did it."""
    started_s = time.monotonic()
    folders = _site_folders()
    installed: dict[str, bool] = {}
    start = dict(os.environ)
    packages: list[Package] = []
    for wanted in imports:
        module = wanted["module"]
        top = _top(module)
        if module in sys.modules or top in left_out or top == "autotune":
            continue
        if top not in installed:
            installed[top] = _is_installed(importlib.machinery.PathFinder.find_spec(top), folders)
        if not installed[top]:
            continue
        _change_environ({name: start.get(name) for name in os.environ.keys() | start.keys()}, trial_dir)
        _change_environ(wanted["environ"], trial_dir)
        before, loaded, begun_s = _environ(trial_dir), set(sys.modules), time.monotonic()
        with contextlib.suppress(BaseException):  # it may need a setup that only the trainer makes
            __import__(module)
        new = {name for name in sys.modules.keys() - loaded if _is_installed(_spec_of(_top(name)), folders)}
        packages.append(Package(new, before, _environ(trial_dir)))
        why = _why_not_forkable()
        if why is not None:
            return packages, {"not_forkable": top, "why": why, "took_s": time.monotonic() - begun_s}
    return packages, {"took_s": time.monotonic() - started_s}


def _spec_of(module: str) -> importlib.machinery.ModuleSpec | None:
    return getattr(sys.modules.get(module), "__spec__", None)


# The trial's side of the fork.


class ParkedModules:
    """Finder that hands out modules imported before the fork, when the trainer comes to import them.

    Args:
        packages: The packages imported beforehand, in that order.
        trial_dir: The trial's folder.
        unfit: File for the reason for which a fresh interpreter has to make the trial.
    """

    def __init__(self, packages: Sequence[Package], trial_dir: str, unfit: str) -> None:
        self._packages = list(packages)
        self._trial_dir = trial_dir
        self._unfit = unfit
        self._pid = os.getpid()
        self._handed_out: set[str] = set()
        self._parked: dict[str, ModuleType] = {}  # not yet asked for
        self._modules: dict[str, ModuleType] = {}

    def park(self) -> None:
        """Remove the modules from ``sys.modules``: a trainer may look there for what it has imported."""
        ours: set[str] = set().union(*(package.modules for package in self._packages))
        for name in sys.modules.keys() - AT_START:  # noqa: F821 - see there
            # What has no file of its own was put there by another module, and cannot be found again without it.
            if name in ours or _spec_of(_top(name)) is not None:
                self._parked[name] = self._modules[name] = sys.modules.pop(name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        return importlib.machinery.ModuleSpec(name, self) if name in self._parked else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """See importlib.abc.Loader; a module may replace itself in ``sys.modules`` when it is executed."""

    def exec_module(self, module: ModuleType) -> None:
        """Put back the module, and the modules that were imported along with it."""
        name = module.__name__
        if any(name in package.modules for package in self._packages):
            # With those before it: had the trainer not imported them yet, this import would have.
            while not self._hand_out(self._packages.pop(0), name):
                pass
        else:
            self._check_origins({_top(name)})
            self._put_back({parked for parked in self._parked if _top(parked) == _top(name)})
        sys.modules[name] = self._modules[name]  # also if another thread has just put it back

    def _put_back(self, names: set[str]) -> None:
        for name in names:
            module = self._parked.pop(name, None)
            if module is not None:
                sys.modules[name] = module

    def _hand_out(self, package: Package, wanted: str) -> bool:
        if not package.names <= self._handed_out:  # else the trainer has this package already
            environ = _environ(self._trial_dir)
            differing = {
                name for name in environ.keys() | package.before.keys() if environ.get(name) != package.before.get(name)
            }
            if differing:
                self._give_up(sorted(package.names)[0], "variable", sorted(differing)[0])
            self._check_origins(package.names)
        self._handed_out |= package.names
        _change_environ(package.changes, self._trial_dir)
        self._put_back(package.modules)
        return wanted in package.modules

    def _check_origins(self, names: set[str]) -> None:
        """Check that the trainer's own folder, which comes first on its path, holds no module of that name."""
        for name in names:
            known = getattr(self._parked.get(name), "__spec__", None)
            if known is not None and known.origin != self._origin(name):
                self._give_up(name, "module", name)

    def _origin(self, name: str) -> str | None:
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, None)
            if spec is not None:
                return spec.origin
        return None

    def _give_up(self, package: str, kind: str, name: str) -> None:
        if _has_trained(self._trial_dir):  # too late to begin again: its steps count already
            return
        try:
            with os.fdopen(os.open(self._unfit, _NEW_FLAGS, 0o600), "w", encoding="utf-8") as file:
                json.dump({"package": package, "kind": kind, "name": name}, file)
        except OSError:
            return
        os.kill(self._pid, signal.SIGKILL)  # not only this process, which may be a worker of the trial


def _has_trained(trial_dir: str) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(trial_dir):
            if re.fullmatch(r"steps\.\d+\.\d+\.jsonl", name):
                with os.fdopen(os.open(os.path.join(trial_dir, name), _READ_FLAGS), "rb") as file:
                    if b'"k": "step"' in file.read(1 << 14):
                        return True
    return False


class Recorder:
    """Finder that finds nothing, and records the modules that are looked for: later trials import them beforehand.

    Args:
        path: The file for it, a line of JSON for each module.
        trial_dir: The trial's folder.
    """

    def __init__(self, path: str, trial_dir: str) -> None:
        self._path = path
        self._trial_dir = trial_dir
        self._pid = os.getpid()
        self._at_start = self._environ = _environ(trial_dir)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Record the module, and the changes of the environment since the start of the trial."""
        if os.getpid() != self._pid:
            return
        line: dict[str, Any] = {"t_s": time.monotonic(), "module": name}
        if path is None:  # a package as such, whose import may read the environment
            self._environ = _environ(self._trial_dir)
        line["environ"] = {
            variable: self._environ.get(variable)
            for variable in self._environ.keys() | self._at_start.keys()
            if self._environ.get(variable) != self._at_start.get(variable)
        }
        # Opened anew for each line: a trainer may close descriptors that it does not know.
        with contextlib.suppress(OSError):
            file = os.open(self._path, _APPEND_FLAGS, 0o600)
            try:
                os.write(file, json.dumps(line).encode("ascii") + b"\n")
            finally:
                os.close(file)


def _answer(descriptor: int, **words: Any) -> None:
    with contextlib.suppress(OSError):  # the guard is gone, and so are we in a moment
        os.write(descriptor, json.dumps(words).encode("ascii"))
    os.close(descriptor)


def _reseed() -> None:
    # Python reseeds `random` itself; NumPy's global generator would be the same in all trials.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _forget_temporary_folder() -> None:
    # It is looked up once, perhaps by an import before the fork; each trial has its own.
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["tempdir"] = None


def _changed_at_start(env: dict[str, str]) -> dict[str, str | None]:
    """Return the variables changed since the interpreter's start: by a wrapper, the C locale, or a ``.pth`` file."""
    return {
        name: os.environ.get(name) for name in os.environ.keys() | env.keys() if os.environ.get(name) != env.get(name)
    }


def _set_up_trial(
    request: dict[str, Any],
    packages: Sequence[Package],
    changed_at_start: dict[str, str | None],
    answer: int,
    outputs: Sequence[int],
) -> None:
    """Set up this process, fresh from the fork, like an interpreter that was started with this command line."""
    step = "fork"
    try:
        os.setsid()
        for number, descriptor in enumerate(outputs, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        end_s = time.monotonic() + _REPARENTED_S
        while os.getppid() != request["guard"]:
            if time.monotonic() > end_s:
                raise RuntimeError("the guard did not take the process over")
            time.sleep(0.0002)
        # Only now: the signal is bound to the parent of this moment.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != request["guard"]:
            os._exit(127)
        step = "cwd"
        os.chdir(request["cwd"])
        step = "exec"
        os.environ.clear()
        os.environ.update(request["env"])
        _change_environ(changed_at_start, "")
        _set_up_main(request)
        _reseed()
        _forget_temporary_folder()
        trial_dir = request["env"]["AUTOTUNE_TRIAL_DIR"]
        ParkedModules(packages, trial_dir, request["unfit"]).park()
        _observe(os.path.join(trial_dir, "inject"))
        if request["record"]:
            sys.meta_path.insert(0, Recorder(request["record"], trial_dir))
    except Exception as error:  # noqa: BLE001 - the search has to know, and makes the trial otherwise
        code = error.errno if isinstance(error, OSError) else None
        _answer(answer, step=step, errno=code, error=os.strerror(code) if code else str(error))
        os._exit(127)
    _answer(answer, pid=os.getpid())


def _observe(folder: str) -> None:
    """Load the step observer, as the trial's ``sitecustomize`` does in an interpreter that was started for it."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        return
    sys.path.insert(0, folder)
    with contextlib.suppress(Exception):  # as there: without the observer, no steps of the trial are seen
        importlib.import_module("_autotune_trainee.observe").install()
    sys.path.remove(folder)


def _set_up_main(request: dict[str, Any]) -> None:
    """Set up ``sys.argv`` and ``sys.path`` as the interpreter does before it runs the trainer's code."""
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        sys.orig_argv = list(request["argv"])
    main = sys.modules["__main__"]
    if request["module"] is not None:
        sys.argv = ["-m", *request["arguments"]]
        folder = os.getcwd()
    else:
        script = request["script"]
        sys.argv = [script, *request["arguments"]]
        folder = os.path.dirname(os.path.realpath(script))
        main.__file__ = os.path.join(os.getcwd(), script)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
        main.__dict__["__cached__"] = None
    if not _IS_SAFE_PATH:
        sys.path.insert(0, folder)


def _run_main(module: str | None) -> None:
    if module is not None:
        # The interpreter itself has loaded and calls this module for -m.
        sys.modules["runpy"] = runpy
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
        return
    main = sys.modules["__main__"]
    assert main.__file__ is not None
    with open(main.__file__, "rb") as file:
        source = file.read()
    exec(compile(source, main.__file__, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the trainer


# The main loop.


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, descriptors, _, _ = socket.recv_fds(channel, 1, 4)
    if not data:  # the guard is gone
        os._exit(0)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    request = json.loads(os.pread(descriptors[0], _REQUEST_BYTES, 0))
    os.close(descriptors[0])
    return request, descriptors[1:]


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with OpenBLAS's threads; see _blas_threads
        return os.fork()


def _texts(portable: Any) -> Any:
    """Decode texts of the search, which encodes bytes as the guard does, in the way of this interpreter."""
    if isinstance(portable, str):
        return os.fsdecode(portable.encode("utf-8", "surrogateescape"))
    if isinstance(portable, list):
        return [_texts(item) for item in portable]
    if isinstance(portable, dict):
        return {_texts(name): _texts(item) for name, item in portable.items()}
    return portable


def _serve() -> str | None:
    """Serve requests; return only in the process of a trial: the module to run, or None for a script."""
    os.close(3)
    channel = socket.socket(fileno=_CHANNEL)
    os.set_inheritable(_CHANNEL, False)
    if not _IS_SAFE_PATH:
        del sys.path[0]  # the working directory, which -c puts there
    request, (answer,) = _receive(channel)
    trial_dir, changed_at_start = _texts(request["trial_dir"]), _changed_at_start(_texts(request["env"]))
    packages, words = _import_all(request["imports"], set(request["left_out"]), trial_dir)
    _answer(answer, **words)
    if "not_forkable" in words:
        os._exit(0)
    # All objects of now stay for good: left out of garbage collections, their pages stay shared with the trials.
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    while True:
        request, (answer, *outputs) = _receive(channel)
        why = _why_not_forkable()
        if why is not None:
            _answer(answer, step="fork", errno=None, error="the warm interpreter " + why)
        else:
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
                request = _texts(request)
                _set_up_trial(request, packages, changed_at_start, answer, outputs)
                module: str | None = request["module"]
                return module
            os.close(answer)
            os.waitpid(between, 0)
        for descriptor in outputs:
            os.close(descriptor)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    if trace is not None:
        trace = trace.tb_next  # BOOTSTRAP's own
    while trace is not None and trace.tb_frame.f_code.co_filename == NAME:
        trace = trace.tb_next
    return trace


def _hide_our_frames() -> None:
    """Install an exception hook that removes our frames from the traceback of an error that ends the trainer."""
    show = sys.excepthook

    def show_theirs(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = show
        error.__traceback__ = sys.last_traceback = _without_our_frames(trace)
        show(kind, error, error.__traceback__)

    sys.excepthook = show_theirs


def _live() -> None:
    module = _serve()
    try:
        _run_main(module)
    except SystemExit:
        raise
    except BaseException:
        _hide_our_frames()
        raise


if __name__ == NAME:
    _live()

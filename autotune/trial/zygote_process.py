"""Zygote: a warm interpreter that imports what the trainer will import, then forks one trial per request.

The guard starts it as ``python <the trainer's options> -c BOOTSTRAP`` (see warm.py): with the trainer's interpreter,
environment and directory, with the standard library and nothing of autotune on its path, in Python 3.9 syntax. The
text of this file comes on descriptor 3, those of zygote_forkable.py and zygote_imports.py on 4 and 5; all are executed
in one namespace. Descriptor 6 is a socket from the guard, the lifeline as well: each message on it is one byte with
descriptors, the first of a file with the request as JSON, the second of a pipe for the answer.

The first request says what to import::

    {"imports": [{"module", "environ", "place"}], "left_out": [names of modules], "is_tried", "trial_dir",
     "temporary", "env"}

and is answered, when all of it is imported, with ``{"took_s", "left_out": [{"module", "why", "took_s"}]}``; if a module
turned out to make forking dangerous with ``{"not_forkable": module}``, and that is the end of this interpreter. The
next one is told to try each import in a process of its own first, and leaves out what is dangerous. Modules that cannot
be imported are skipped. Every other request is a trial, with the write ends of its output pipes as further
descriptors::

    {"argv", "script" | "module", "arguments", "cwd", "env", "guard", "record", "unfit", "temporary"}

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
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the trainer's interpreter has no autotune: `BOOTSTRAP` executes these files in this namespace
    from autotune.trial.zygote_forkable import _PR_SET_PDEATHSIG, _fork, _why_not_forkable
    from autotune.trial.zygote_imports import Folders, Package, ParkedModules, Recorder, _import_all

NAME = "<autotune zygote>"
BOOTSTRAP = (
    f"exec(compile(__import__('posix').read(3, 1 << 20), {NAME!r}, 'exec'), "
    f"{{'__name__': {NAME!r}, 'AT_START': frozenset(__import__('sys').modules)}})"
)
"""Code that runs this file, and leaves no trace in ``__main__``."""

_OTHER_PARTS = (4, 5)
_CHANNEL = 6
_REPARENTED_S = 10.0
_IS_SAFE_PATH = sys.flags.isolated or getattr(sys.flags, "safe_path", False)  # the latter since Python 3.11


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
        trial_dir = request["env"]["AUTOTUNE_TRIAL_DIR"]
        folders = Folders(trial_dir, request["temporary"])
        folders.change_environ(changed_at_start)
        _set_up_main(request)
        _reseed()
        _forget_temporary_folder()
        parked = ParkedModules(packages, request["unfit"], folders, trial_dir)
        parked.park()
        _observe(os.path.join(trial_dir, "inject"))
        for finder in sys.meta_path:
            if (
                type(finder).__module__ == "_autotune_trainee.observe"
            ):  # the import of one package may bring a framework
                parked.on_hand_out = finder.look  # type: ignore[attr-defined]
        if request["record"]:
            sys.meta_path.insert(0, Recorder(request["record"], folders))
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
        import runpy  # the interpreter itself does it for -m, and only then

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
    request = json.loads(os.pread(descriptors[0], 1 << 24, 0))
    os.close(descriptors[0])
    return request, descriptors[1:]


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
    os.closerange(3, _CHANNEL)
    channel = socket.socket(fileno=_CHANNEL)
    os.set_inheritable(_CHANNEL, False)
    if not _IS_SAFE_PATH:
        del sys.path[0]  # the working directory, which -c puts there
    request, (answer,) = _receive(channel)
    changed_at_start = _changed_at_start(_texts(request["env"]))
    folders = Folders(_texts(request["trial_dir"]), _texts(request["temporary"]))
    packages, words = _import_all(request["imports"], set(request["left_out"]), folders, request["is_tried"])
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
    for _part in _OTHER_PARTS:
        exec(compile(os.read(_part, 1 << 20), NAME, "exec"), globals())  # noqa: S102 - our own files
    _live()

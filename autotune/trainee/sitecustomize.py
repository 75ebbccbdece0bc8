"""Start-up hook of interpreters in a trial's environment; lies in the trial's ``inject/`` folder.

It then executes the ``sitecustomize`` that would have been executed without autotune. ``AUTOTUNE_WARM`` names the file
autotune/trial/zygote.py and the descriptor that makes this interpreter a zygote; without a descriptor, the imports of
this trial are recorded for one.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_code, _, _channel = os.environ.pop("AUTOTUNE_WARM", "").rpartition(":")
_warm: "dict[str, object]" = {"__name__": "<autotune zygote>", "AT_START": frozenset(sys.modules)}


def _load() -> None:
    with open(_code, "rb") as file:
        exec(compile(file.read(), "<autotune zygote>", "exec"), _warm)  # noqa: S102 - our own file


def _become_zygote() -> None:
    """Go on only in the forks."""
    global _FOLDER
    try:
        _load()
        _FOLDER = _warm["serve"](int(_channel), _FOLDER)  # type: ignore[operator]
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)  # never on to the trainer's code, which would train beside the trials


def _observe() -> None:
    # The variable is a trial's, or that of a process that a zygote's import has started.
    if os.environ.get("AUTOTUNE_TRIAL_ID", "").endswith("/zygote"):
        return
    try:
        from autotune.trainee import observe

        observe.install()
        if _code and not _channel:
            _load()
            _warm["Recorder"]()  # type: ignore[operator]
    except Exception:
        pass


def _execute_next() -> None:
    sys.modules.pop("sitecustomize", None)
    # Without any, this is what the interpreter expects to be told.
    __import__("sitecustomize")


# The folder is of no more use then: the modules of a package are found through the package.
if _channel:
    _become_zygote()
_observe()
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
sys.path_importer_cache.pop(_FOLDER, None)
_execute_next()

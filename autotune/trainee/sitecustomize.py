"""Start-up hook of interpreters in a trial's environment, in the trial's ``inject/``.

It then executes the ``sitecustomize`` that it shadows. ``AUTOTUNE_WARM`` names autotune/trial/zygote.py and the
descriptor that makes this interpreter a zygote; without a descriptor, imports are recorded for one.
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
    """Return in the forks only."""
    global _FOLDER
    try:
        _load()
        _FOLDER = _warm["serve"](int(_channel), _FOLDER)  # type: ignore[operator]
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)  # never continue with the trainer's code, which would train next to the trials


def _observe() -> None:
    # A process that a zygote's import has started has the zygote's variable, not a trial's.
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
    # If there is none, the interpreter expects this ImportError.
    __import__("sitecustomize")


# The folder isn't needed any longer: the modules of a package are found through the package.
if _channel:
    _become_zygote()
_observe()
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
sys.path_importer_cache.pop(_FOLDER, None)
_execute_next()

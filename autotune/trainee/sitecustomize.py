"""Start-up hook of interpreters in a trial's environment; lies in the trial's ``inject/`` folder.

It then executes the ``sitecustomize`` that would have been executed without autotune.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _observe() -> None:
    # The variable is a trial's, or that of a warm interpreter, whose forks are observed and not itself.
    if os.environ.get("AUTOTUNE_TRIAL_ID", "").endswith("/zygote"):
        return
    try:
        from autotune.trainee import observe

        observe.install()
        if os.environ.get("AUTOTUNE_PROFILE_STEP"):
            from autotune.trainee import step_profile

            step_profile.install()
    except Exception:
        pass


def _execute_next() -> None:
    sys.modules.pop("sitecustomize", None)
    # Without any, this is what the interpreter expects to be told.
    __import__("sitecustomize")


# The folder is of no more use then: the modules of a package are found through the package.
_observe()
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]
sys.path_importer_cache.pop(_FOLDER, None)
_execute_next()

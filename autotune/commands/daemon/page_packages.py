"""Packages of the daemon's page, which autotune does without otherwise."""

from types import ModuleType

from autotune.errors import AutotuneError

_PACKAGES = frozenset(("prometheus_client", "starlette", "uvicorn"))


def page_server() -> ModuleType:
    """Return the module `autotune.daemon.web.server`.

    Raises:
        AutotuneError: A package that it needs is not installed.
    """
    try:
        from autotune.daemon.web import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _PACKAGES:
            raise
        raise AutotuneError(
            f"the page needs {error.name}, which is not installed",
            where="--web",
            remedy="Run, in the clone that autotune was installed from: pip install '.[web]'",
        ) from error
    return server

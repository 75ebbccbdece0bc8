"""``autotune --version``: what a bug report needs, on one screen and without a name, a path or a secret."""

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from autotune import __version__
from autotune.commands.output import say
from autotune.frameworks import FRAMEWORKS
from autotune.measure.host import text_of


def say_version() -> None:
    """Print the versions."""
    say("\n".join(version_lines()))


def version_lines() -> Iterator[str]:
    """Yield the lines, the version of autotune first."""
    yield f"autotune {__version__}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()})"
    libc = " ".join(platform.libc_ver()).strip()
    yield f"{platform.system()} {platform.release()}, {platform.machine()}" + (f", {libc}" if libc else "")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {memory_bytes / 2**30:.1f} GiB of memory"
    yield f"GPU: {_gpu()}"
    yield f"needs: {_versions(_needed()) or 'not installed as a package'}"
    frameworks = tuple(name for row in FRAMEWORKS for name in (*row.distributions, *row.built_on_it))
    yield f"frameworks beside it: {_versions(frameworks) or 'none'}"


def _gpu() -> str:
    """Return the version of NVIDIA's driver, and the number of GPUs; the driver is not asked, as it may hang."""
    text = text_of(Path("/proc/driver/nvidia/version"))
    if text is None:
        return "no NVIDIA driver"
    number = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", text)
    try:
        gpus = len(os.listdir(Path("/proc/driver/nvidia/gpus")))
    except OSError:
        gpus = 0
    return f"NVIDIA driver {number[0] if number else 'of unknown version'}, {gpus} GPU{'s' * (gpus != 1)}"


def _needed() -> tuple[str, ...]:
    try:
        wanted = requires("autotune") or ()
    except PackageNotFoundError:  # run from a checkout
        return ()
    names = (re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in wanted if "extra ==" not in one)
    return tuple(dict.fromkeys(names))  # one that depends on the version of Python is named for each


def _versions(names: tuple[str, ...]) -> str:
    """Return those of these packages that are installed, with their versions."""
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)

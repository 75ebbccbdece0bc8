"""What travels to a machine with a GPU: autotune, this run, and the wheels of their dependencies, in one folder.

``--pack`` makes the folder, where there is a network. On the machine the wheels are unpacked into an environment for
autotune, which needs neither pip nor a network.
"""

import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
"""The checkout, or the pack that this runs from."""
MOST_BYTES = 60_000_000
_SOURCES = (
    "pyproject.toml",
    "LICENSE",
    "scripts/gpu-evidence",
    "scripts/bench/__init__.py",
    "scripts/bench/results.py",
    "tests/__init__.py",
    "tests/until.py",
    "tests/fake_nvml",
    "tests/gpu/__init__.py",
    "tests/gpu/check.py",
    "tests/gpu/check_parts.py",
    "tests/gpu/load.py",
    "tests/gpu/evidence",
    "autotune",
)
_NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc", "test_*.py")
_LINUX = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64")
TRAINER_PACKAGES = ("yaml",)
"""What the trainers need beside PyTorch: given to them from the pack where their interpreter has none."""


class PackError(Exception):
    """A pack cannot be made, or does not suit this machine."""


def make_pack(folder: Path, python_version: str) -> int:
    """Make a pack for Linux on x86-64; return its size in bytes. A pack that is there is replaced.

    Args:
        python_version: Version of the Python on the machine with the GPU, such as ``3.12``.

    Raises:
        PackError: The folder is something else, a wheel is not to be had, or the pack is too large to be carried.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "wheels").is_dir():
        raise PackError(f"{folder} is there, and is no pack: name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels" / _tag(python_version)
    wheels.mkdir(parents=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    target = ("--only-binary=:all:", "--implementation", "cp", "--python-version", python_version)
    platforms = [word for name in _LINUX for word in ("--platform", name)]
    constraint = ("--constraint", str(ROOT / "constraints.txt"), "--dest", str(wheels))
    done = subprocess.run([*pip, *target, *platforms, *constraint, *project["dependencies"]], check=False)
    if done.returncode:
        raise PackError(f"pip could not download all wheels for Python {python_version}")
    for name in _SOURCES:
        source, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=_NOT_SOURCES)
        else:
            shutil.copy2(source, copy)
    return portable_size(folder)


def portable_size(folder: Path) -> int:
    """Return the size of a pack in bytes.

    Raises:
        PackError: It is too large to be carried.
    """
    size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size_bytes > MOST_BYTES:
        raise PackError(f"the pack has {size_bytes / 1e6:.1f} MB; {MOST_BYTES / 1e6:.0f} MB at most can be carried")
    return size_bytes


def wheels_for(python_version: str) -> Path | None:
    """Return the folder of the wheels for a version of Python; None if there is no pack for it."""
    tag = _tag(python_version)
    places = (ROOT / "wheels" / tag, ROOT / "build" / "gpu-evidence-pack" / "wheels" / tag)
    return next((place for place in places if place.is_dir()), None)


def make_environment(folder: Path, wheels: Path) -> str:
    """Make an environment with autotune and its dependencies, without pip; return its interpreter."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    (packages / "checkout.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    return str(folder / "bin" / "python")


def copy_trainer_packages(packages: Path, folder: Path) -> None:
    """Copy what the trainers need beside PyTorch, in pure Python, out of a folder of packages."""
    for name in TRAINER_PACKAGES:
        shutil.copytree(packages / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))


def _tag(python_version: str) -> str:
    major, minor = python_version.split(".")[:2]
    return f"cp{major}{minor}"

"""Promises of a release: what is in the wheel and the source distribution; ``scripts/test-install`` installs it."""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_LARGEST_BYTES = 2 << 20


def _build(source: Path, kind: str, folder: Path) -> Path:
    """Return the distribution of a source tree, built without network by what is installed here."""
    pytest.importorskip("hatchling", reason="hatchling, which builds distributions, is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)],
        cwd=source,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz" if kind == "sdist" else "*.whl"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source distribution."""
    return _build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel, made from the source distribution alone."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return _build(next(folder.iterdir()), "wheel", tmp_path_factory.mktemp("wheel"))


def test_a_wheel_has_what_runs_and_nothing_else(wheel: Path) -> None:
    """The package and its types; no tests, no benchmarks, no pages, nothing compiled."""
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < _LARGEST_BYTES
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("autotune_training-")} == {"autotune"}
    assert {"autotune/__main__.py", "autotune/py.typed"} <= set(names)
    read = ("report/html/page.html.jinja", "diagnose/tables.toml", "search/traps.toml")
    assert {f"autotune/{name}" for name in read} <= set(names)
    assert [name for name in names if "scripts/bench/" in name or "test_" in name or name.endswith(".so")] == []


def test_a_source_distribution_has_what_a_wheel_is_made_of(sdist: Path) -> None:
    """No tests and no benchmarks either."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "autotune/cli.py"} <= names
    assert [name for name in names if name.startswith(("tests/", "scripts/bench/", "docs/", "."))] in (
        [],
        [".gitignore"],
    )


@pytest.mark.services
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["tensorflow==2.16.*", "torch==2.1.* numpy<2", "tensorflow"])
def test_it_changes_no_package_of_a_framework(wheel: Path, tmp_path: Path, framework: str) -> None:
    """Beside a framework pip adds packages and replaces none, and nothing lacks what it requires.

    The packages are there as far as pip looks: their metadata, without the gigabytes.
    """
    venv.create(tmp_path / "env", with_pip=True, upgrade_deps=True)
    python = tmp_path / "env" / "bin" / "python"
    (packages,) = tmp_path.glob("env/lib/python3*/site-packages")

    def pip(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "pip", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)

    def install(*wanted: str) -> dict[str, str]:
        """Put the metadata of what pip would install there; return its versions by name."""
        done = pip("install", "--quiet", "--dry-run", "--report", "report.json", "--only-binary", ":all:", *wanted)
        if done.returncode != 0 and "No matching distribution" in done.stderr + done.stdout:
            pytest.skip(f"{wanted[0]} cannot be fetched here, or is not for this Python")
        assert done.returncode == 0, done.stderr
        found = {}
        for entry in json.loads((tmp_path / "report.json").read_text())["install"]:
            about = entry["metadata"]
            lines = [f"{name}: {about[name.lower()]}" for name in ("Name", "Version")]
            lines += [f"Requires-Dist: {one}" for one in about.get("requires_dist", ())]
            lines += [f"Provides-Extra: {one}" for one in about.get("provides_extra", ())]
            name = re.sub("[-_.]+", "_", about["name"]).lower()
            info = packages / f"{name}-{about['version']}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
            found[name] = about["version"]
        return found

    there = install(*framework.split())
    added = install(str(wheel))
    assert "autotune_training" in added
    assert {name: (there[name], added[name]) for name in added if name in there} == {}
    checked = pip("check")
    assert checked.returncode == 0, checked.stdout

"""Identity of a study: trials that share one."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.records import Gpu, Machine
from autotune.study.identity import StudyIdentity, framework_versions
from autotune.trial.folders import StateFolder

MACHINE = Machine(cpu_cores=8, cpu_model="A", memory_bytes=32 << 30)
CONFIG = {"data": {"batch_size": 8, "path": "/d"}, "out": {"dir": "a"}, "layers": [{"size": 1}, {"size": 2}]}
GIVEN: dict[str, Any] = {
    "stem": "config",
    "config": CONFIG,
    "left_out": ["data.batch_size", "out.dir"],
    "fixed": {"epochs": 1},
    "command": ["python", "train.py"],
    "environment": {"A": "1"},
    "objective": "effective_utilization",
    "machine": MACHINE,
    "frameworks": {"tensorflow": "2.21.0"},
}
NAME = StudyIdentity(**GIVEN).name


def _name(**changes: Any) -> str:
    return StudyIdentity(**{**GIVEN, **changes}).name


def _config(**changes: Any) -> dict[str, Any]:
    return {"config": {**CONFIG, **changes}}


@pytest.mark.parametrize(
    "changes",
    [
        _config(data={"batch_size": 64, "path": "/d"}),
        _config(out={"dir": "elsewhere"}),
        _config(data={"path": "/d", "batch_size": 8}),
        {"machine": replace(MACHINE, memory_bytes=(32 << 30) + 4096)},
        {"left_out": ["out.dir", "data.batch_size"]},
    ],
    ids=["a knob's value", "an output path", "the order of keys", "a little memory", "the order of knobs"],
)
def test_the_study_stays_the_same(changes: dict[str, Any]) -> None:
    """The study is kept by changes of `apply`, and by those without influence on speed."""
    assert _name(**changes) == NAME


@pytest.mark.parametrize(
    "changes",
    [
        _config(data={"batch_size": 8, "path": "/other"}),
        _config(new=None),
        _config(layers=[{"size": 1}, {"size": 3}]),
        _config(layers=[{"size": 2}, {"size": 1}]),
        {"left_out": ["out.dir"]},
        {"fixed": {"epochs": 2}},
        {"environment": {"A": "2"}},
        {"environment": {}},
        {"objective": "throughput"},
        {"machine": replace(MACHINE, cpu_cores=4)},
        {"machine": replace(MACHINE, cpu_model="B")},
        {"machine": replace(MACHINE, memory_bytes=64 << 30)},
        {"machine": replace(MACHINE, gpus=(Gpu(name="H200", uuid="GPU-1", memory_bytes=None),))},
        {"command": ["python", "other.py"]},
        {"frameworks": {"tensorflow": "2.20.0"}},
    ],
    ids=str,
)
def test_any_other_edit_starts_another_study(changes: dict[str, Any]) -> None:
    """Numbers of unlike trainings or machines are never compared."""
    assert _name(**changes) != NAME


def test_the_value_of_a_variable_that_is_a_knob_does_not_count() -> None:
    """`apply` may write autotune.env.A too, and keeps the study."""
    left_out = [*GIVEN["left_out"], "autotune.env.A"]
    one, other = (_name(left_out=left_out, environment={"A": value}) for value in ("1", "2"))
    assert one == other


def test_command_and_frameworks_show_in_parts_of_their_own() -> None:
    """So a study is found where its command is not known, and one of other frameworks is told from it."""
    parts, typed, upgraded = (
        name.rsplit("-", 2) for name in (NAME, _name(command=["other"]), _name(frameworks={"tensorflow": "2.22.0"}))
    )
    assert (typed[:2], upgraded[0], upgraded[2]) == (parts[:2], parts[0], parts[2])
    assert typed[2] != parts[2]
    assert upgraded[1] != parts[1]


@pytest.mark.parametrize(
    "stem", ["a b", "a/../b", "x" * 300, "a\nb", "a'b\"c", "Größe", ".hidden", "конфиг", "-x", ".."]
)
def test_any_stem_gives_a_name_for_a_file(stem: str) -> None:
    """Short, and nothing in it that a shell, or the state folder, would take for something else."""
    name = _name(stem=stem)
    assert len(name) < 80
    assert StateFolder(Path("/state")).trials(name) == Path("/state/trials") / name


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The interpreter of an environment that has two frameworks and something else."""
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    for name, version in (("tensorflow_cpu", "2.21.0"), ("Keras", "3.1"), ("numpy", "2.0")):
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    python.chmod(0o755)
    return python


def test_frameworks_are_read_beside_the_interpreter(environment: Path) -> None:
    """By any spelling of their names, others left out, and without starting anything."""
    assert framework_versions(environment) == {"tensorflow-cpu": "2.21.0", "keras": "3.1"}
    assert not (environment.parent.parent / "started").exists()
    assert framework_versions(Path(os.devnull)) == {}


def test_our_own_interpreter_knows_its_packages(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions are those that the interpreter would import, wherever they lie."""
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    monkeypatch.syspath_prepend(environment.parent.parent / "lib" / "python3.12" / "site-packages")
    assert framework_versions(Path("/nowhere/bin/python"))["tensorflow-cpu"] == "2.21.0"


def test_the_training_is_the_same_on_another_machine() -> None:
    """With another command and other frameworks too; any other edit makes it another one."""
    training = StudyIdentity(**GIVEN).training
    for changes in ({"machine": replace(MACHINE, cpu_cores=4)}, {"command": ["other"]}, {"frameworks": {}}):
        assert StudyIdentity(**{**GIVEN, **changes}).training == training
    for changes in (_config(layers=[]), {"fixed": {}}, {"environment": {}}, {"objective": "throughput"}):
        assert StudyIdentity(**{**GIVEN, **changes}).training != training


def test_the_name_of_a_study_stays_what_it_was() -> None:
    """Users have studies of these names, and a search goes on with them."""
    assert NAME == "config-d671745b-c945-4d4f"

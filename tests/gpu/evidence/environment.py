"""Preparation of a run: an environment with autotune, the fake GPU if one is asked for, and what machine this is.

    python -m tests.gpu.evidence.environment FOLDER [--fake]

Run by the Python that has PyTorch; writes ``environment.json`` into the folder.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.gpu.evidence.notes import replace_file
from tests.gpu.evidence.pack import ROOT, TRAINER_PACKAGES, copy_trainer_packages, make_environment, wheels_for

FAKE_MEMORY_BYTES = 80 << 30
_PROBE_S = 23.0  # for what PyTorch says of itself; the run goes on without it


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the parts run in.

    Attributes:
        python: Interpreter that has autotune.
        env: Variables to set, beyond this process's own.
        gpu: Name of the GPU.
        facts: Versions and the machine, for the report.
    """

    python: str
    env: Mapping[str, str]
    gpu: str
    facts: Mapping[str, str]


class UnfitMachineError(Exception):
    """The run cannot be made here; the message says why."""


_TORCH = """\
import json, torch
cuda = torch.cuda.is_available()
name = torch.cuda.get_device_name() if cuda and torch.ones(8, device="cuda").sum().item() == 8 else None
print(json.dumps([torch.__version__, name]))
"""
_HAS_AUTOTUNE = "import autotune.measure.gpu.driver, msgspec, optuna, psutil, pynvml, ruamel.yaml, rich, sqlalchemy"
_MACHINE = """\
import json, os
import autotune, numpy, optuna, psutil
import ruamel.yaml, rich.console, sqlalchemy.orm  # compiled now, and not within the first search
from autotune.measure.gpu.driver import Driver, gpus
inventory = gpus()
if inventory.why_none:
    raise SystemExit(inventory.why_none)
with Driver() as driver:
    version = driver.version()
gpu = inventory.gpus[0]
print(json.dumps({
    "gpu": gpu.name, "GPUs": str(len(inventory.gpus)), "GPU memory": f"{gpu.memory_bytes / 2**30:.1f} GiB",
    "driver": version, "cores": str(len(os.sched_getaffinity(0))),
    "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
    "autotune": autotune.__version__, "Optuna": optuna.__version__, "NumPy": numpy.__version__,
}))
"""
_FAKE = """\
import json, sys
from pathlib import Path
from tests.fake_nvml.library import FakeGpu, build
from tests.fake_nvml.scenario import Gpu, Scenario
folder = Path(sys.argv[1])
library = folder / "libnvidia-ml.so.1"
build(library)
scenario = Scenario(gpus=(Gpu(memory_total_bytes=int(sys.argv[2])),), follow=True)
machine = FakeGpu(library, folder, scenario, at_s=None, began_s_ago=30.0)
names = [name for name in machine.env if name.startswith("AUTOTUNE_FAKE_NVML") or name == "LD_LIBRARY_PATH"]
print(json.dumps({name: machine.env[name] for name in names}))
"""


def prepare(folder: Path, *, is_fake: bool) -> Environment:
    """Prepare the environment of the parts in a folder.

    Raises:
        UnfitMachineError: There is no PyTorch, no GPU that it sees, or no autotune.
    """
    ends_s = time.monotonic() + _PROBE_S
    env: dict[str, str] = {}
    # Begun first: the first import of PyTorch from a cold disk takes longest, and the parts find it warm.
    with tempfile.TemporaryFile("w+") as errors:
        probe = subprocess.Popen([sys.executable, "-c", _TORCH], stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            python = _python(folder / "autotune")
            if is_fake:
                fake = folder / "fake GPU"
                fake.mkdir()
                env |= json.loads(_said(python, _FAKE, str(fake), str(FAKE_MEMORY_BYTES), env=env))
                env["OMP_NUM_THREADS"] = "1"  # training on the CPU leaves the other cores to the loader's workers
            machine = json.loads(_said(python, _MACHINE, env=env))
            said, _ = probe.communicate(timeout=max(0.1, ends_s - time.monotonic()))
            if probe.returncode:
                errors.seek(0)
                raise UnfitMachineError(f"{sys.executable} has no PyTorch that works: {errors.read().strip()[-1000:]}")
            version, seen = json.loads(said)
        except subprocess.TimeoutExpired:
            version, seen = f"not known: its first import took longer than {_PROBE_S:.0f} s", ""
        finally:
            probe.kill()
            probe.communicate()
    if seen is None and not is_fake:
        raise UnfitMachineError(f"PyTorch {version} sees no GPU")
    if missing := [name for name in TRAINER_PACKAGES if importlib.util.find_spec(name) is None]:
        packages = folder / "trainer packages"
        where = _said(python, f"import {missing[0]}; print({missing[0]}.__file__)", env=env).strip()
        copy_trainer_packages(Path(where).parents[1], packages)
        env["PYTHONPATH"] = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    gpu = machine.pop("gpu")
    facts = {
        "GPU": f"fake ({gpu})" if is_fake else gpu,
        **machine,
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "PyTorch": f"{version}{', on the CPU' if is_fake else ''}",
    }
    return Environment(python=python, env=env, gpu="fake GPU" if is_fake else gpu, facts=facts)


def _python(folder: Path) -> str:
    wheels = wheels_for(platform.python_version())
    if wheels is not None:
        return make_environment(folder, wheels)
    for python in (sys.executable, str(ROOT / ".venv" / "bin" / "python")):
        if (
            os.access(python, os.X_OK)
            and subprocess.run([python, "-c", _HAS_AUTOTUNE], stderr=subprocess.DEVNULL, check=False).returncode == 0
        ):
            return python
    raise UnfitMachineError(
        f"there is no pack for this Python {platform.python_version()}, nor has it what autotune needs: make one with "
        f"scripts/gpu-evidence --pack --python-version {'.'.join(platform.python_version_tuple()[:2])}"
    )


def _said(python: str, code: str, *words: str, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        [python, "-c", code, *words], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnfitMachineError(done.stderr.strip() or f"{python} ended with {done.returncode}")
    return done.stdout


def read_environment(folder: Path) -> Environment:
    """Return what `main` has written."""
    return Environment(**json.loads((folder / "environment.json").read_text(encoding="utf-8")))


def main() -> int:
    """Prepare, or say why that is not possible."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fake", action="store_true")
    arguments = parser.parse_args()
    try:
        found = prepare(arguments.folder, is_fake=arguments.fake)
    except UnfitMachineError as error:
        print(error, file=sys.stderr)
        return 1
    replace_file(arguments.folder / "environment.json", json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

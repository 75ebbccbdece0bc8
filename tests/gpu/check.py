"""Is what autotune measures on a real GPU what the GPU does? ``scripts/gpu-check`` writes a report about it.

The tests hold what is said about a fake driver; this looks at a real one, with a load whose busy time is known
(load.py). What it finds is for people: it decides nothing but its exit status, 1 where there is no GPU.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.measure.gpu.driver import Device, Driver, DriverError, GpuInventory, gpus, reasons_of
from scripts.bench.results import markdown_table
from tests.gpu import check_parts as parts
from tests.gpu.check_parts import Part, Place
from tests.until import DEADLINE_S

HERE = Path(__file__).parent
FAKE = "fake"

PROBES = {
    "torch": "import torch; assert torch.cuda.is_available(); print('PyTorch', torch.__version__)",
    "tensorflow": (
        "import tensorflow as tf; assert tf.config.list_physical_devices('GPU'); print('TensorFlow', tf.__version__)"
    ),
}

PARTS: Sequence[tuple[Callable[[Place], Part], str]] = (
    (parts.driver_windows, ""),
    (parts.call_costs, ""),
    (parts.loads, "load"),
    (parts.attribution, "load"),
    (parts.out_of_memory, "cuda"),
    (parts.fork_before_cuda, "cuda"),
)
"""What is done, and what it needs beyond a driver."""


def _why_not(place: Place, needs: str) -> str | None:
    if needs and place.framework is None:
        return "no framework that sees the GPU was found (PyTorch or TensorFlow; see --python)"
    return "this GPU is a fake one" if needs == "cuda" and place.framework == FAKE else None


def _framework(python: str, env: Mapping[str, str]) -> tuple[str | None, str]:
    """The first framework that sees the GPU, and its version."""
    if "AUTOTUNE_FAKE_NVML" in env:
        return FAKE, "none: the GPU is a fake one"
    for framework, code in PROBES.items():
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
        done = subprocess.run([python, "-c", code], env=env, check=False, **how)
        if done.returncode == 0:
            return framework, done.stdout.strip()
    return None, "none that sees the GPU"


def reports(place: Place, version: str, inventory: GpuInventory) -> Iterator[str]:
    """Makes all parts, and after each says what was found so far."""
    with Driver() as driver:
        driver_version = driver.version()
        reasons = reasons_of(_mask(driver.device(place.gpu.uuid)))
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "gpu": place.gpu.name,
        "gpus": len(inventory.gpus),
        "memory_bytes": place.gpu.memory_bytes,
        "driver": driver_version,
        "framework": version,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "clock_reasons_before": list(reasons),
    }
    rows = [[key.replace("_", " "), str(value)] for key, value in facts.items()]
    texts, raw = [f"# {place.gpu.name}, driver {driver_version}", markdown_table(["", ""], rows)], dict[str, Any](facts)
    for make, needs in PARTS:
        print(f"{make.__name__.replace('_', ' ')} ...", file=sys.stderr)
        title = make.__name__.replace("_", " ").capitalize()
        try:
            why_not = _why_not(place, needs)
            part = Part(title=title, text=f"not run: {why_not}") if why_not else make(place)
        except (DriverError, AssertionError, subprocess.SubprocessError) as error:  # the other parts still tell a lot
            part = Part(title=title, text=f"failed: {error!r}")
        texts.append(f"## {part.title}\n\n{part.text}")
        raw[make.__name__] = part.raw
        yield "\n\n".join([*texts, f"## Raw numbers\n\n```json\n{json.dumps(raw, indent=1)}\n```"]) + "\n"


def _mask(device: Device) -> int:
    try:
        return device.clock_reasons()
    except DriverError:
        return 0


def main() -> int:
    """Checks one GPU, and writes the report."""
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--gpu", type=int, default=0, help="the driver's number of it (default: 0)")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch or TensorFlow")
    parser.add_argument("--seconds", type=float, default=12.0, help="for which each load is watched (default: 12)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the report (default: tests/gpu)")
    arguments = parser.parse_args()
    inventory = gpus()
    if inventory.why_none or arguments.gpu >= len(inventory.gpus):
        why = inventory.why_none or f"this machine has {len(inventory.gpus)} GPUs, numbered from 0"
        print(f"gpu-check: {why}. There is nothing to check here.", file=sys.stderr)
        return 1
    gpu = inventory.gpus[arguments.gpu]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid, "TF_CPP_MIN_LOG_LEVEL": "2"}
    framework, version = _framework(arguments.python, env)
    place = Place(gpu=gpu, python=arguments.python, framework=framework, env=env, loaded_s=arguments.seconds)
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")
    file = arguments.out / f"{datetime.now(UTC):%Y-%m-%d}-{slug}.md"
    with place.processes_ready():
        for text in reports(place, version, inventory):
            file.write_text(text, encoding="utf-8")
    print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())

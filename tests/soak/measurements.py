"""Warm imports compared with cold ones: modules, their objects, a small computation, and the time."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.clock import SystemClock
from autotune.records import TrialPlan
from autotune.trial.launch import Guard, ProcessRunner, Runner
from autotune.trial.warm import ZygoteRunner
from tests.soak.harness import Result, Soak, check

COMPUTATIONS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("computations.yaml").read_text())
"""Import of each package, and a small computation with it, as a trainer's code."""

# The rest of the trainer's code: it writes what it finds into a file of the trial's folder.
_REPORT = """
import json, os, sys, time
ready_s = time.monotonic()
tables = {}
for when in ("after the imports", "after the computation"):
    if when == "after the computation":
        exec(computation)
    # By the interpreter's own tables: a lazy module is loaded by reading an attribute of it.
    homeless = set()
    for name, module in list(sys.modules.items()):
        try:
            names = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        for key, thing in list(names.items()):
            kind = type(thing)
            if kind.__name__ in ("function", "builtin_function_or_method"):
                home = thing.__module__
            else:
                home = type.__dict__["__module__"].__get__(thing if issubclass(kind, type) else kind)
            if isinstance(home, str) and home not in sys.modules:
                homeless.add(f"{name}.{key} of {home}")
    tables[when] = {"modules": sorted(sys.modules), "homeless": sorted(homeless)}
with open(os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], "imports.json"), "w") as file:
    json.dump({"tables": tables, "value": repr(value), "ready_s": ready_s}, file)
"""
_AT_RANDOM = {"_remote_module_non_scriptable", "multiprocessing.resource_tracker"}  # loaded or not by a cold import


def compared(python: str, package: str, place: Path) -> Result:
    """Compare the warm imports of a package with its cold ones, in an empty folder."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", code], check=False).returncode:
        return Result(f"{package:<13} not installed")
    clock, computation = SystemClock(), COMPUTATIONS[package]
    imports = [line for line in computation.splitlines() if line.startswith(("import ", "from "))]
    (place / "train.py").write_text("\n".join([*imports, f"computation = {computation!r}", _REPORT]), encoding="utf-8")

    def run(runner: Runner, name: str) -> dict[str, Any]:
        folder, argv = place / "trials" / name, (python, "train.py")
        plan = TrialPlan(trial_id=f"soak/{name}", folder=folder, argv=argv, cwd=place, env={}, config_text="")
        ended = runner.run(plan, lambda _: None, clock.now_s() + 300.0)
        try:
            found: dict[str, Any] = json.loads((folder / "imports.json").read_text())
        except OSError:
            return {"error": (ended.stderr_tail.strip().splitlines() or [f"exit status {ended.exit_code}"])[-1]}
        return {**found, "import_s": found["ready_s"] - ended.started_s}

    with Guard() as guard:
        remarks: list[str] = []
        zygotes = ZygoteRunner(guard, clock, remarks.append)
        cold = run(ProcessRunner(guard, clock), "cold")
        warm = {name: run(zygotes, name) for name in ("first", "warm", "again")}
    if "error" in cold:  # not to be imported at all: then the same has to come of it
        wrong = [f"{name} it can" for name, found in warm.items() if "error" not in found]
        return Result(f"{package:<13} cannot be imported ({cold['error'][:80]})", *wrong)
    wrong = [f"{name}: {one}" for name, found in warm.items() for one in _unlike(cold, found)]
    starts = zygotes.warm_starts != 2 and f"{zygotes.warm_starts} warm starts of 2"
    times = f"cold import {cold['import_s']:5.1f} s, warm {warm['again'].get('import_s', math.nan):5.2f} s"
    return Result(f"{package:<13} {times}", *wrong, starts, *remarks)


def _unlike(cold: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return what is unlike a cold import."""
    if "error" in found:
        return [found["error"]]
    unlike = [] if found["value"] == cold["value"] else [f"{found['value']} instead of {cold['value']}"]
    for when, table in cold["tables"].items():
        modules, own = set(table["modules"]), set(found["tables"][when]["modules"])
        homeless = set(found["tables"][when]["homeless"]) - set(table["homeless"])
        for what, names in (("missing", modules - own), ("too many", own - modules), ("without module", homeless)):
            if names - _AT_RANDOM:
                unlike.append(f"{what} {when}: {', '.join(sorted(names)[:12])} ({len(names)})")
    return unlike


@check(cases=COMPUTATIONS, options={"--python": sys.executable})
def warm(soak: Soak) -> Iterator[Result]:
    """Warm and cold imports of each package: loaded modules, their objects and a small computation are alike.

    In a fresh process, one whose imports are recorded, and two of the warm interpreter.
    """
    for package in soak.cases:
        yield compared(soak.options.python, package, soak.place())

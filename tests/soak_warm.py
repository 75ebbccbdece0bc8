"""Warm and cold imports: ``python -m tests.soak warm --python PATH [package…]`` compares them, package by package.

For each package of the table that the interpreter has: the trial of a fresh process, of one whose imports are recorded,
and two of the warm interpreter print which modules are loaded, which objects name a module that is not in
``sys.modules``, and the result of a small computation. All must be alike. Prints one line a package, and exits with 1
if one differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.clock import SystemClock
from autotune.records import TrialPlan
from autotune.trial.guard import Guard
from autotune.trial.launch import ProcessRunner, Runner
from autotune.trial.warm import ZygoteRunner

COMPUTATIONS = {
    "numba": "import numba\nvalue = numba.njit(lambda x: x * x + 1)(3)",
    "librosa": "import librosa, numpy\nvalue = float(librosa.feature.rms(y=numpy.ones(4096)).sum())",
    "scipy": "import scipy.linalg, scipy.optimize, scipy.signal, scipy.sparse.csgraph\n"
    "value = [scipy.linalg.det([[2.0, 1.0], [1.0, 3.0]]), scipy.signal.get_window('hann', 5).tolist()]",
    "sklearn": "from sklearn.linear_model import LinearRegression\n"
    "value = round(float(LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0]).coef_[0]), 6)",
    "pandas": "import pandas\nvalue = pandas.DataFrame({'a': [1, 1, 2], 'b': [3, 4, 5]}).groupby('a').b.sum().tolist()",
    "torch": "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
    "loss = nn.Linear(4, 2)(torch.ones(3, 4)).square().sum()\nloss.backward()\nvalue = round(loss.item(), 5)",
    "torchvision": "import torch, torchvision\n"
    "value = torchvision.ops.nms(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1), 0.5).tolist()",
    "lightning": "import lightning, torch\n"
    "class Model(lightning.LightningModule):\n"
    "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(2, 1)\n"
    "    def training_step(self, batch, index):\n        return self.layer(batch).sum()\n"
    "    def configure_optimizers(self):\n        return torch.optim.SGD(self.parameters(), 0.1)\n"
    "model = Model()\n"
    "lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,\n"
    "    enable_model_summary=False, accelerator='cpu').fit(model, torch.utils.data.DataLoader(torch.ones(8, 2)))\n"
    "value = model.global_step",
    "transformers": "import torch\nfrom transformers import BertConfig, BertModel, Trainer, TrainingArguments\n"
    "torch.manual_seed(0)\n"
    "config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)\n"
    "value = [list(BertModel(config)(torch.ones(1, 4, dtype=torch.long))[0].shape), Trainer.__module__]",
    "jax": "import jax\nvalue = float(jax.jit(jax.grad(lambda x: x * x))(3.0))",
    "tensorflow": "import tensorflow as tf\nvalue = float(tf.function(lambda x: x * x)(tf.constant(3.0)))",
    "keras": "import keras, numpy\nmodel = keras.Sequential([keras.layers.Dense(1, kernel_initializer='ones')])\n"
    "model.compile('sgd', 'mse')\n"
    "value = round(float(model.fit(numpy.ones((4, 2)), numpy.ones(4), verbose=0).history['loss'][0]), 5)",
    "cv2": "import cv2, numpy\nvalue = int(cv2.resize(numpy.full((4, 4), 7, 'uint8'), (2, 2)).sum())",
}
"""Import of each package, and a small computation with it, as a trainer's code."""

REPORT = """
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
"""Rest of the trainer's code: what it finds, into a file of the trial's folder."""

AT_RANDOM = ("_remote_module_non_scriptable", "multiprocessing.resource_tracker")
"""Modules that a cold import loads or not from one time to the next."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Findings of a trainer after its imports.

    Attributes:
        import_s: Time from its start to the end of its imports.
        value: Result of its computation; None if it did not come to that.
        modules: Loaded modules, by the moment.
        homeless: Objects whose module is not loaded, by the moment.
        error: The last line of what it said when it failed.
    """

    import_s: float = 0.0
    value: object = None
    modules: dict[str, frozenset[str]] = field(default_factory=dict)
    homeless: dict[str, frozenset[str]] = field(default_factory=dict)
    error: str = ""


def main(arguments: list[str]) -> int:
    """Compare the packages."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak warm", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the packages")
    parser.add_argument("packages", nargs="*", metavar="package", help=f"of {', '.join(COMPUTATIONS)}; default: all")
    wanted = parser.parse_args(arguments)
    if unknown := set(wanted.packages) - COMPUTATIONS.keys():
        parser.error(f"not in the table: {', '.join(sorted(unknown))}")
    bad = 0
    for package in wanted.packages or COMPUTATIONS:
        if not is_installed(wanted.python, package):
            print(f"{package:<13} not installed", flush=True)
            continue
        line, is_good = compared(wanted.python, package, COMPUTATIONS[package])
        print(f"{package:<13} {line}", flush=True)
        bad += not is_good
    return 1 if bad else 0


def is_installed(python: str, package: str) -> bool:
    """Ask an interpreter."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def compared(python: str, package: str, computation: str) -> tuple[str, bool]:
    """Return a line on the package, and whether its warm imports are like its cold ones."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="autotune soak ") as folder, Guard() as guard:
        lines = computation.splitlines()
        imports = [line for line in lines if line.startswith(("import ", "from "))]
        script = Path(folder, "train.py")
        script.write_text("\n".join([*imports, f"computation = {computation!r}", REPORT]), encoding="utf-8")
        zygotes, fresh = ZygoteRunner(guard, clock), ProcessRunner(guard, clock)
        cold = run(fresh, python, Path(folder), "cold")
        first, *warm = (run(zygotes, python, Path(folder), name) for name in ("first", "warm", "again"))
        remarks = list(zygotes.remarks)
    if cold.error:
        # Not to be imported at all: then the same has to come of it.
        same = all(found.error for found in (first, *warm))
        return f"cannot be imported ({cold.error[:80]}), warm {'neither' if same else 'it can'}", same
    wrong = [
        f"{name}: {difference}"
        for name, found in (("first", first), ("warm", warm[0]), ("again", warm[1]))
        for difference in differences(cold, found)
    ]
    if zygotes.warm_starts != len(warm):
        wrong.append(f"{zygotes.warm_starts} warm starts of {len(warm)}")
    wrong += remarks
    times = f"cold import {cold.import_s:5.1f} s, warm {warm[1].import_s:5.2f} s"
    return f"{times}  {'; '.join(wrong) or 'alike'}", not wrong


def run(runner: Runner, python: str, folder: Path, name: str) -> Found:
    """Make one trial, and return what it found."""
    plan = TrialPlan(
        trial_id=f"soak/{name}",
        folder=folder / "trials" / name,
        argv=(python, "train.py"),
        cwd=folder,
        env={},
        config_text="",
    )
    ended = runner.run(plan, lambda _: None, SystemClock().now_s() + 300.0)
    try:
        fields = json.loads((plan.folder / "imports.json").read_text())
    except OSError:
        return Found(error=(ended.stderr_tail.strip().splitlines() or [f"exit status {ended.exit_code}"])[-1])
    tables = fields["tables"]
    return Found(
        import_s=fields["ready_s"] - ended.started_s,
        value=fields["value"],
        modules={when: frozenset(table["modules"]) for when, table in tables.items()},
        homeless={when: frozenset(table["homeless"]) for when, table in tables.items()},
    )


def differences(cold: Found, found: Found) -> list[str]:
    """Return what is unlike after a warm import."""
    if found.error:
        return [found.error]
    unlike = [] if found.value == cold.value else [f"{found.value} instead of {cold.value}"]
    for when, modules in cold.modules.items():
        unlike += [
            f"{what} {when}: {some(names)}"
            for what, names in (
                ("modules missing", modules - found.modules[when]),
                ("modules too many", found.modules[when] - modules),
                ("objects without their module", found.homeless[when] - cold.homeless[when]),
            )
            if names - set(AT_RANDOM)
        ]
    return unlike


def some(names: Sequence[str] | frozenset[str]) -> str:
    """Name a few, and how many there are."""
    return f"{', '.join(sorted(names)[:12])} ({len(names)})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

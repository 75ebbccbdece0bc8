"""Diagnosis of a real training: a config and a child process with the command line, as a user has it."""

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from autotune.diagnose.findings import Limit, Verdict
from autotune.environment import inherited_environment
from autotune.errors import TrialError
from autotune.records import Scalar
from autotune.trial.search_child import OWN_COMMAND, run_short
from scripts.bench.causes import trainers

_TRAINERS = Path(trainers.__file__).parent
_CHECKOUT = Path(trainers.__file__).parents[4]
_GRACE_S = 30.0  # beyond the budget; then the diagnosis hangs


def diagnose_trainer(
    trainer: str,
    recipe: Mapping[str, Scalar],
    *,
    budget_s: float,
    python: str = sys.executable,
    neighbours: int = 0,
    keep: Path | None = None,
) -> Verdict:
    """Diagnose one of the trainers with a recipe, in a temporary folder.

    Args:
        trainer: Name of its module.
        recipe: The keys of its config, see `trainers.recipe.Recipe`; ``batch_size`` is the only knob.
        budget_s: Budget of the diagnosis.
        python: Interpreter of the trainer; autotune need not be installed there.
        neighbours: Busy processes of somebody else, meanwhile.
        keep: Folder that what was found is copied into; None for none.

    Raises:
        TrialError: The diagnosis gave no verdict.
    """
    batch = recipe["batch_size"]
    assert isinstance(batch, int), "each case says its batch"
    command = shlex.join([python, str(_TRAINERS / f"{trainer}.py"), "--config"]) + " {config}"
    section = {"command": command, "knobs": {"batch_size": [batch, 2 * batch]}}
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "diagnosis"
        config = folder / "config.json"
        config.write_text(json.dumps(recipe, indent=2))
        (folder / "config.autotune.yaml").write_text(json.dumps({"autotune": section}))  # JSON is YAML, too
        options = {"--config": config, "--budget": f"{budget_s:g}s", "--out": out, "--state-dir": folder / "state"}
        argv = [*OWN_COMMAND, "diagnose", *(str(part) for option in options.items() for part in option)]
        env = {**inherited_environment(), "TMPDIR": name, "PYTHONPATH": _import_path()}
        with _busy_processes(neighbours):
            ended = run_short(argv, budget_s + _GRACE_S, env=env, cwd=folder)
        if ended.status != 0 or not (out / "diagnosis.json").exists():
            raise TrialError(f"the diagnosis ended with {ended.status}: {ended.text}")
        if keep is not None:
            shutil.copytree(out, keep, dirs_exist_ok=True)
        found = json.loads((out / "diagnosis.json").read_text())["verdict"]
    return Verdict(sentence=found["sentence"], limit=Limit(found["limit"]) if found["limit"] else None)


def _import_path() -> str:
    """Return the import path with that of this checkout, for the recipe of a trainer in another interpreter."""
    return os.pathsep.join(filter(None, (str(_CHECKOUT), os.environ.get("PYTHONPATH", ""))))


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Keep processes busy that are no part of any trial."""
    context = get_context("spawn")
    processes = [context.Process(target=_stay_busy, daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _stay_busy() -> None:
    while True:
        sum(range(100_000))

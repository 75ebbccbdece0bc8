"""Benchmark of the diagnosis: trainers with one staged cause each, and healthy ones; what is it said to be?

Cases are those of this folder (twelve causes in a loop of PyTorch, a loop of TensorFlow, Keras' fit; healthy ones of
four sizes), or those of a folder that is named: one folder a case, with ``train.py``, ``config.yaml`` and ``case.toml``
(``kind = "reading"``), written by somebody who does not know the rules of the diagnosis.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from scripts.bench.results import Commands, markdown_table

_HERE = Path(__file__).parent
_INPUT = frozenset(("reading", "preparing", "no overlap", "loading"))

RIGHT = {
    "reading": {"reading", "loading"},
    "preparing": {"preparing"},
    "no_overlap": {"no overlap"},
    "python": {"preparing"},
    "compiling": {"compiling"},
    "launches": {"host"},
    "workers": {"stalls"},
    "stalls": {"stalls", "outside steps"},
    "outside": {"outside steps"},
    "refill": {"stalls"},
    "drift": {"drift"},
    "compute": {"step", "host"},
    "healthy": {"step", "host"},
}
"""Kind of a case → what the verdict may say of it."""

_ALIASES = {"python_in_pipeline": "python", "workers_restart": "workers"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Trainer with one cause.

    Attributes:
        script: Its file; the config lies in the folder that it is copied to.
        config: Text of the config; None where the script's folder has one.
    """

    name: str
    kind: str
    script: Path
    config: str | None = None

    def judged(self, limit: str | None) -> str:
        """Return whether the verdict is right: in part, where it names the right side and not the right part."""
        if limit in RIGHT[self.kind]:
            return "right"
        if self.kind in ("compute", "healthy"):
            return "false alarm"
        return (
            "in part"
            if limit in _INPUT and RIGHT[self.kind] & _INPUT
            else "not seen"
            if limit == "not seen"
            else "wrong"
        )


def add_causes(commands: Commands) -> None:
    """Add the command ``causes``."""
    parser = commands.add_parser("causes", help="staged causes of slowness, and what a diagnosis says of them")
    parser.add_argument("folder", nargs="?", type=Path, help="further cases, in place of those of this benchmark")
    parser.add_argument("--python", default=sys.executable, help="interpreter with PyTorch and TensorFlow")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--only", default="", metavar="PATTERN", help="those whose names this matches")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Diagnose each case; print what was said, and how often it was right."""
    cases = _cases_in(arguments.folder) if arguments.folder else _own_cases()
    rows, counts = [], Counter[str]()
    for case in cases:
        if not re.search(arguments.only, case.name):
            continue
        found = diagnosed(case, arguments.python, arguments.budget)
        verdict = found.get("verdict", {"limit": "not seen", "sentence": str(found.get("error"))})
        judged = case.judged(verdict["limit"])
        gains = [one["gain"]["ratio"] for one in found.get("recommendations", ()) if one["evidence"] == "measured"]
        bound = (verdict.get("bound") or {}).get("ratio")
        counts[judged] += 1
        rows.append([case.name, case.kind, judged, verdict["limit"] or "", bound, max(gains, default=None)])
        print(f"{case.name} ({case.kind}): {judged}: {verdict['sentence']}", flush=True)
    head = ("case", "cause", "verdict", "limit", "bound", "measured")
    shown = [
        ["" if cell is None else f"{cell:.2f}x" if isinstance(cell, float) else cell for cell in row] for row in rows
    ]
    print(markdown_table(head, shown))
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))


def diagnosed(case: Case, python: str, budget: str) -> dict[str, Any]:
    """Return the object of a diagnosis, made in a copy of the case's folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "case"
        if case.config is None:
            shutil.copytree(case.script.parent, folder)
        else:
            folder.mkdir()
            shutil.copy(case.script, folder / "train.py")
            (folder / "config.yaml").write_text(case.config)
        words = ["diagnose", "--config", "config.yaml", "--budget", budget, "--json", "--state-dir", "state"]
        takes_flag = "--config" in (folder / "train.py").read_text()
        trainer = [python, "train.py", *(["--config"] if takes_flag else []), "{config}"]
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *words, "--", *trainer],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr[-300:]}
    return found


def _cases_in(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*/case.toml")):
        kind = msgspec.toml.decode(path.read_bytes())["kind"]
        yield Case(name=path.parent.name, kind=_ALIASES.get(kind, kind), script=path.with_name("train.py"))


def _own_cases() -> Iterator[Case]:
    builds = {"torch": ("torch", False), "loop": ("tensorflow", False), "fit": ("tensorflow", True)}
    for build, (framework, fits) in builds.items():
        for kind in RIGHT:
            if kind == "workers" and framework != "torch":
                continue  # it is a matter of PyTorch's processes
            # A step that is quicker than the loader is no healthy one, and nothing overlaps with it.
            is_large = kind in ("compute", "no_overlap", "outside", "refill")
            for width in (1024, 1280, 1536, 2048) if kind == "healthy" else (1024 if is_large else 64,):
                config = {
                    "staged": kind,
                    "data": _data(kind, framework),
                    "model": {"width": width},
                    "training": {"fit": fits},
                }
                name = f"{build}-{kind}-{width}" if kind == "healthy" else f"{build}-{kind}"
                script = _HERE / f"{framework}_trainer.py"
                yield Case(name=name, kind=kind, script=script, config=yaml.safe_dump(config, sort_keys=False))


def _data(kind: str, framework: str) -> dict[str, int]:
    is_in_turn = kind in ("preparing", "no_overlap")
    if framework == "torch":
        return {"batch_size": 16, "num_workers": 0 if is_in_turn else 1}
    return {"batch_size": 16, "num_workers": 1, "prefetch": 0 if is_in_turn else 4}

"""Benchmark of training that stops and goes: whole searches of trainers of exactly known speed, in virtual time.

The speed is that of 25 kinds of stalls: by steps and by time, from a fifth of a second to twenty, random, nested,
wandering. A search has one knob, and its other value makes training faster by a known ratio. With ``--real`` the same
trainers wait in real time, and the command is the user's.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from autotune.clock import VirtualClock, format_duration
from autotune.records import Machine, Ratio, Values, Verdict
from autotune.trial.instruments import Instruments
from scripts.bench import stalling_steps
from scripts.bench.harness import OURS, Harness
from scripts.bench.results import Commands, in_processes, markdown_table, parse_budgets_s
from scripts.bench.simulated_runner import SimulatedHostProbe, SimulatedRunner, Training
from scripts.bench.stalling_steps import KINDS, SAMPLES, STEP_S, times_of

_RATIOS = (1.0, 1.05, 1.15, 2.0)
_NOISE = 0.01  # of the speed of a process: these trainers compute nothing
_MACHINE = Machine(cpu_cores=2, cpu_model="simulated", memory_bytes=8 << 30)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One search."""

    kind: str
    ratio: float
    budget_s: float
    seed: int
    is_real: bool = False


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search said.

    Attributes:
        speedup: Ratio with its interval; None where nothing was confirmed.
    """

    piece: Piece
    verdict: Verdict | None
    speedup: Ratio | None

    @property
    def holds(self) -> bool:
        return self.speedup is not None and self.speedup.low <= self.piece.ratio <= self.speedup.high


@dataclass(frozen=True, kw_only=True)
class _Scenario:
    """One piece as a simulated trainer."""

    piece: Piece
    seed: int
    machine: Machine = field(default=_MACHINE)

    @property
    def config_text(self) -> str:
        return _config(self.piece, "{python} train.py {config}")

    def speed(self, values: Values) -> float:
        return SAMPLES / KINDS[self.piece.kind].mean_s(*self._times_of(str(values["storage"])))

    def best(self) -> tuple[Values, float]:
        return max((({"storage": one}, self.speed({"storage": one})) for one in ("one", "two")), key=lambda one: one[1])

    def runner(self, clock: VirtualClock, *, seed: int, fresh_processes: bool) -> SimulatedRunner:
        return SimulatedRunner(clock, self._training, seed=seed)

    def instruments(self, runner: SimulatedRunner) -> Instruments:
        return Instruments(SimulatedHostProbe(runner))

    def _times_of(self, storage: str) -> tuple[float, float]:
        return times_of(self.piece.kind, self.piece.ratio if storage == "two" else 1.0)

    def _training(self, text: str) -> Training:
        step_s, stall_s = self._times_of(yaml.safe_load(text)["storage"])

        def drawn(rng: np.random.Generator) -> Iterator[float]:
            return KINDS[self.piece.kind].steps(random.Random(int(rng.integers(1 << 62))), step_s, stall_s)

        return Training(
            samples=SAMPLES, step_s=STEP_S, start_s=0.4, first_step_s=0.05, noise=_NOISE, step_noise=0.01, drawn=drawn
        )


def _config(piece: Piece, command: str) -> str:
    document = {
        "kind": piece.kind,
        "storage": "one",
        "ratios": {"one": 1.0, "two": piece.ratio},
        "autotune": {"command": command, "knobs": {"storage": ["one", "two"]}},
    }
    return yaml.safe_dump(document, sort_keys=False)


def search(piece: Piece) -> Found:
    """Search once, in virtual time or, of a real piece, as a user does."""
    with tempfile.TemporaryDirectory() as folder:
        return (_search_really if piece.is_real else _search)(piece, Path(folder))


def _search(piece: Piece, folder: Path) -> Found:
    # Each has noise of its own: one seed for all would make all of them miss at once.
    seed = zlib.crc32(repr(piece).encode())
    harness = Harness(_Scenario(piece=piece, seed=seed), piece.budget_s, folder / "search", method=OURS)
    result = harness.search(harness.budget())
    if result is None:
        return Found(piece=piece, verdict=None, speedup=None)
    return Found(piece=piece, verdict=result.verdict, speedup=result.speedup)


def _search_really(piece: Piece, folder: Path) -> Found:
    config = folder / "config.yaml"
    config.write_text(_config(piece, f"{sys.executable} {stalling_steps.__file__} {{config}}"))
    command = [sys.executable, "-m", "autotune", "search", "--config", str(config)]
    done = subprocess.run(
        [*command, "--budget", f"{piece.budget_s:g}s", "--no-apply", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    told = answer.get("speedup")
    verdict = answer.get("verdict")
    return Found(piece=piece, verdict=verdict and Verdict(verdict), speedup=told and Ratio(**told))


def _run(arguments: argparse.Namespace) -> None:
    pieces = [
        Piece(kind=kind, ratio=ratio, budget_s=budget_s, seed=seed, is_real=arguments.real)
        for budget_s in arguments.budgets
        for kind in arguments.kinds or KINDS
        for ratio in arguments.ratios
        for seed in range(arguments.searches)
    ]
    found: list[Found] = []
    for one in in_processes(search, pieces, arguments.jobs):
        found.append(one)
        if arguments.verbose:
            print(_line(one), flush=True)
    for budget_s in arguments.budgets:
        of_budget = [one for one in found if one.piece.budget_s == budget_s]
        groups = {kind: [one for one in of_budget if one.piece.kind == kind] for kind in arguments.kinds or KINDS}
        rows = [_row(name, some) for name, some in [*groups.items(), ("all", of_budget)]]
        print(f"\nBudget {format_duration(budget_s)}\n")
        print(markdown_table(("steps", "holds", "no interval", "false better", *_heads(arguments.ratios)), rows))


def _line(one: Found) -> str:
    told = one.speedup and f"{one.speedup.ratio:.3f} ({one.speedup.low:.3f}-{one.speedup.high:.3f})"
    piece = one.piece
    return f"{piece.kind}; {piece.ratio}x; {piece.budget_s:g}s; {piece.seed}: {one.verdict} {told} {one.holds}"


def _heads(ratios: Sequence[float]) -> list[str]:
    return [f"{ratio:g}x: better; upper/lower" for ratio in ratios]


def _row(name: str, found: Sequence[Found]) -> tuple[str, ...]:
    told = [one for one in found if one.speedup]
    false = sum(one.verdict is Verdict.BETTER and one.piece.ratio == 1.0 for one in found)
    by_ratio: Mapping[float, list[Found]] = {
        ratio: [one for one in found if one.piece.ratio == ratio]
        for ratio in sorted({one.piece.ratio for one in found})
    }
    return (
        name,
        f"{np.mean([one.holds for one in told]):.1%} of {len(told)}" if told else "-",
        str(len(found) - len(told)),
        str(false),
        *(_found(some) for some in by_ratio.values()),
    )


def _found(found: Sequence[Found]) -> str:
    better = np.mean([one.verdict is Verdict.BETTER for one in found])
    widths = [math.log(one.speedup.high / one.speedup.low) for one in found if one.speedup]
    return f"{better:.0%}; {math.exp(np.median(widths)):.2f}" if widths else f"{better:.0%}; -"


def add_cycles(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("cycles", help="searches of 25 kinds of stalls with exactly known ratios")
    parser.add_argument("--searches", type=int, default=10, help="of each kind and ratio (10)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="kinds of stalls (all)")
    parser.add_argument("--ratios", type=float, nargs="+", default=_RATIOS)
    parser.add_argument("--budgets", type=parse_budgets_s, default=(120.0, 300.0), help="of a search (2m,5m)")
    parser.add_argument("--real", action="store_true", help="in real time, by the command")
    parser.add_argument("--verbose", action="store_true", help="a line for each search")
    parser.add_argument("--jobs", type=int, default=1, help="processes at work (1)")
    parser.set_defaults(run=_run)
